"""The pages of the cluster service: the cluster at ``/``, its nodes, and answers about pods."""

import asyncio
import ipaddress
from collections.abc import Iterable, Sequence
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from alignup.agent.pages.agent_pages import PageHandler, guarded
from alignup.agent.pages.node_page import holder_table
from alignup.align.errors import AlignError
from alignup.align.host import Host
from alignup.picture.machine_svg import draw_parts
from alignup.picture.text_format import clean, pluralize
from alignup.schedule.pages import cluster_page
from alignup.schedule.pages.cluster_page import AnsweredPod, FoundPod, NodeCard
from alignup.schedule.pages.predictions import OUTCOMES, PredictionHistory
from alignup.web.access import count_authenticated
from alignup.web.pages.html import Content, Html, element, group, path, trusted
from alignup.web.pages.page import HTML, PAGE_HEADERS, page_response, section, static_routes
from alignup.web.pages.sign_in import read_form
from alignup.web.paging import gather_items
from alignup.web.responses import HEADERS, ProblemError
from alignup.web.streaming import EVENT_STREAM, EventSource, EventStream

EVENTS = "/v1/events"
CHANGED = "changed"  #: the kind of event after which pages are renewed
LINKS = (("Cluster", "/"), ("Pods", "/pods"), ("Where would a pod go?", "/where"))
MAX_FOUND = 200  #: pods that a search lists
MAX_STREAMS = 64
_MAX_MANIFEST = 256 << 10
_HEARTBEAT_SECONDS = 15.0


class ClusterBackend(Protocol):
    """The cluster behind the pages.

    ``cards`` creates the cards when they are read. ``ask`` answers for each workload of a manifest, and raises an
    ``AlignError`` for one that cannot be read; ``ask_pod`` returns ``None`` if there is no such pod.
    """

    def problems(self) -> tuple[str, ...]: ...
    def cards(self) -> Iterable[NodeCard]: ...
    def host(self, node: str) -> Host | None: ...
    def card(self, node: str) -> NodeCard | None: ...
    def pods(self, text: str, limit: int) -> Sequence[FoundPod]: ...
    async def ask(self, manifest: bytes) -> Sequence[AnsweredPod]: ...
    async def ask_pod(self, namespace: str, name: str) -> AnsweredPod | None: ...
    def events(self) -> EventSource: ...


def cluster_pages(backend: ClusterBackend, predictions: PredictionHistory, *, stopping: asyncio.Event) -> list[Route]:
    """The routes; who can connect may use them, as the scheduler extender beside them."""
    pages = _ClusterPages(backend, predictions)
    return [
        *static_routes(),
        Route("/", _guarded(pages.cluster)),
        Route("/nodes", _guarded(pages.chunk)),
        Route("/nodes/{name}", _guarded(pages.node)),
        Route("/pods", _guarded(pages.pods)),
        Route("/pods/{namespace}/{name}", _guarded(pages.pod)),
        Route("/where", _guarded(pages.where), methods=["GET", "POST"]),
        Route(EVENTS, _EventEndpoint(backend, stopping)),
    ]


def _guarded(handler: PageHandler) -> PageHandler:
    async def handle(request: Request) -> Response:
        check_host(request)
        count_authenticated(request)
        return await handler(request)

    return guarded(handle, None, links=LINKS)


def check_host(request: Request) -> None:
    """Refuse a name that another site has for this machine: its pages could read everything under that name."""
    name = request.url.hostname or ""
    client = request.client
    if request.url.scheme != "http" or client is None or not _is_address(client.host, loopback=True):
        return
    if not (name == "localhost" or name.endswith(".localhost") or _is_address(name)):
        raise ProblemError(421, f"Open these pages as localhost, not as {name}.")


def _is_address(text: str, *, loopback: bool = False) -> bool:
    try:
        return ipaddress.ip_address(text).is_loopback or not loopback
    except ValueError:
        return False


class _EventEndpoint:
    """A stream of the event ``changed``."""

    def __init__(self, backend: ClusterBackend, stopping: asyncio.Event) -> None:
        self._backend = backend
        self._stopping = stopping
        self._open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response = self._response(request)
        except ProblemError as problem:
            response = problem.response()
        self._open += 1
        try:
            await response(scope, receive, send)
        finally:
            self._open -= 1

    def _response(self, request: Request) -> ASGIApp:
        check_host(request)
        count_authenticated(request)
        if self._open >= MAX_STREAMS:
            raise ProblemError(429, f"Too many event streams: the limit is {MAX_STREAMS}.")
        if request.method == "HEAD":
            return Response(media_type=EVENT_STREAM, headers=HEADERS)
        return EventStream(events=self._backend.events(), heartbeat=_HEARTBEAT_SECONDS, stopping=self._stopping)


class _ClusterPages:
    def __init__(self, backend: ClusterBackend, predictions: PredictionHistory) -> None:
        self._backend = backend
        self._predictions = predictions
        self._computing = asyncio.Semaphore(1)  #: one question about pods at a time

    async def cluster(self, request: Request) -> Response:
        query = cluster_page.read_query(request.query_params)
        cards = await gather_items(self._backend.cards())
        shown = cluster_page.select_cards(cards, query)
        body = [
            element("div", self._banners(), id="problems", data_live=True),
            section("Summary", cluster_page.summary(cards), id_="summary", live=True),
            section(
                "Nodes",
                cluster_page.query_form(query),
                element("p", _LEGEND, class_="legend"),
                cluster_page.chunks(shown, query),
                id_="nodes",
                count=len(shown),
            ),
            section("Predictions", self._predicted(), id_="predictions", live=True),
        ]
        return page_response("Cluster", *body, links=LINKS, events=EVENTS)

    async def chunk(self, request: Request) -> Response:
        """Some cards, for the script."""
        query = cluster_page.read_query(request.query_params)
        shown = cluster_page.select_cards(await gather_items(self._backend.cards()), query)
        return Response(cluster_page.card_list(shown, query).markup, media_type=HTML, headers=PAGE_HEADERS)

    async def node(self, request: Request) -> Response:
        name = request.path_params["name"]
        card, host = self._backend.card(name), self._backend.host(name)
        if card is None:
            raise ProblemError(404, f"The cluster has no node {name}.")
        labels = element("p", ", ".join(f"{key}={value}" for key, value in sorted(card.labels.items())), class_="facts")
        if host is None:
            why = element("p", f"The state of this node is unknown: {card.unknown}", class_="banner note")
            return page_response(f"Node {clean(name)}", why, labels, links=LINKS)
        body = await asyncio.to_thread(_node_body, host)
        facts = f"policy {card.policy} · scope {card.scope} · {pluralize(card.pods, 'pod')}"
        return page_response(f"Node {clean(name)}", element("p", facts, class_="facts"), labels, body, links=LINKS)

    async def pods(self, request: Request) -> Response:
        text = request.query_params.get("q", "")[:253]
        form = element(
            "form",
            element("label", "Part of a name, or namespace/name", for_="q"),
            element("input", id="q", name="q", value=text, type="search"),
            element("button", "Find", type="submit"),
            method="get",
            action="/pods",
            role="search",
        )
        found = self._backend.pods(text, MAX_FOUND) if text else ()
        body = cluster_page.found_pods(found) if text else None
        more = element("p", f"Only the first {MAX_FOUND} are listed.", class_="empty")
        return page_response("Pods", form, body, more if len(found) == MAX_FOUND else None, links=LINKS)

    async def pod(self, request: Request) -> Response:
        where = request.path_params
        async with self._computing:
            answered = await self._backend.ask_pod(where["namespace"], where["name"])
        if answered is None:
            raise ProblemError(404, f"There is no pod {where['namespace']}/{where['name']}.")
        document = path("/v1/explain", where["namespace"], where["name"])
        link = element("p", element("a", "All verdicts as JSON", href=document))
        return page_response("Where would it go?", cluster_page.answer_section(answered), link, links=LINKS)

    async def where(self, request: Request) -> Response:
        fields = await read_form(request, limit=_MAX_MANIFEST) if request.method == "POST" else {}
        manifest = fields.get("manifest", "")
        answers: list[Content] = []
        if manifest.strip():
            try:
                async with self._computing:
                    answers += map(cluster_page.answer_section, await self._backend.ask(manifest.encode()))
            except AlignError as error:
                answers.append(element("p", str(error), class_="banner", role="alert"))
        form = element(
            "form",
            element("label", "Manifest, YAML or JSON: a Pod, a Deployment, a Job …", for_="manifest"),
            element("textarea", manifest, id="manifest", name="manifest", spellcheck="false", required=True),
            element("p", element("button", "Ask all nodes", type="submit"), class_="field"),
            method="post",
            action="/where",
            class_="manifest",
        )
        note = element("p", "Nothing is created. Every node answers as its kubelet would now.", class_="empty")
        return page_response(
            "Where would this pod go?", form, note, element("div", answers, role="status"), links=LINKS
        )

    def _banners(self) -> list[Html]:
        return [element("p", one, class_="banner", role="alert") for one in self._backend.problems()]

    def _predicted(self) -> Content:
        totals = self._predictions.totals
        if not totals:
            return element("p", "No pod was predicted since this service started.", class_="empty")
        every = sum(totals.values())
        text = ", ".join(f"{totals[name]} {word}" for name, word in OUTCOMES.items())
        right = f"{100 * totals['as_predicted'] / every:.1f} % as predicted"
        plot = element("div", trusted(self._predictions.plot()), class_="machine")
        return [element("p", f"{pluralize(every, 'pod')} in the last day at most: {text} ({right})."), plot]


_LEGEND = (
    "Each column is a NUMA node; its bars are CPUs, memory and devices. Blue is held by pods, gray is reserved, "
    "red with ! is stranded: free, but no aligned container can get it."
)


def _node_body(host: Host) -> Html:
    parts = draw_parts(host.machine, host.ledger)
    occupancy = parts.layout.occupancy
    return group(
        element("p", " · ".join([parts.layout.title, *parts.layout.facts]), class_="facts"),
        section("Machine", element("div", map(trusted, parts.pictures), class_="machine"), id_="machine"),
        section("Pods", holder_table(occupancy), id_="pods", count=len(occupancy.holders)),
    )
