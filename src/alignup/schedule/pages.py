"""The web pages of the cluster service: the cluster at ``/``, its nodes, and answers about pods."""

import asyncio
import ipaddress
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from alignup.align.errors import AlignError
from alignup.align.host import Host
from alignup.picture.machine_svg import draw_parts
from alignup.picture.numa_bars import ResourceBar, add_bars, describe_bars, draw_bars
from alignup.picture.occupancy import format_amount
from alignup.picture.text_format import clean, pluralize
from alignup.schedule.metrics import OUTCOMES, PredictionHistory
from alignup.schedule.page_backend import LivePages, NodeCard
from alignup.web.authentication import count_authenticated
from alignup.web.event_streams import EventStreams
from alignup.web.pages import PageHandler, Pages, path, read_form, static_routes
from alignup.web.paging import gather_items
from alignup.web.responses import ProblemError

EVENTS = "/v1/events"
LINKS = (("Cluster", "/"), ("Pods", "/pods"), ("Where would a pod go?", "/where"))
CHUNK = 60  #: cards that are sent at once; every number of columns divides it
POLICIES = ("none", "best-effort", "restricted", "single-numa-node")
MAX_FOUND = 200  #: pods that a search lists
MAX_STREAMS = 64
_MAX_MANIFEST = 256 << 10
_HEARTBEAT_SECONDS = 15.0


def page_routes(backend: LivePages, predictions: PredictionHistory, *, stopping: asyncio.Event) -> list[BaseRoute]:
    """Build the pages; who can connect may use them, as the scheduler extender beside them."""
    pages = _ClusterPages(backend, predictions)
    streams = EventStreams(backend.events, limit=MAX_STREAMS, heartbeat=_HEARTBEAT_SECONDS, stopping=stopping)
    return [
        *static_routes(),
        Route("/", pages.guard(pages.cluster)),
        Route("/nodes", pages.guard(pages.chunk)),
        Route("/nodes/{name}", pages.guard(pages.node)),
        Route("/pods", pages.guard(pages.pods)),
        Route("/pods/{namespace}/{name}", pages.guard(pages.pod)),
        Route("/where", pages.guard(pages.where), methods=["GET", "POST"]),
        Route(EVENTS, _EventEndpoint(streams)),
    ]


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

    def __init__(self, streams: EventStreams) -> None:
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            check_host(request)
            count_authenticated(request)
            response = self._streams.response(request)
        except ProblemError as problem:
            response = problem.response()
        await response(scope, receive, send)


class _ClusterPages:
    """The handlers of the pages."""

    def __init__(self, backend: LivePages, predictions: PredictionHistory) -> None:
        functions = {
            "chunk_path": lambda query, offset: path("/nodes", **query.parameters(offset)),
            "page_path": lambda query, offset: path("/", **query.parameters(offset)),
            "describe_card": describe_card,
            "draw_bars": lambda card: draw_bars(card.numa, name=describe_bars(card.numa)),
        }
        self._templates = Pages("alignup.schedule", links=LINKS, functions=functions)
        self._backend = backend
        self._predictions = predictions
        self._computing = asyncio.Semaphore(1)  #: one question about pods at a time

    def guard(self, handler: PageHandler) -> PageHandler:
        async def handle(request: Request) -> Response:
            check_host(request)
            count_authenticated(request)
            return await handler(request)

        return self._templates.guard(handle, None)

    async def cluster(self, request: Request) -> Response:
        query = read_query(request.query_params)
        cards = await gather_items(self._backend.cards())
        totals = self._predictions.totals
        return self._templates.response(
            "cluster.html",
            problems=self._backend.problems(),
            summary=summarize(cards),
            query=query,
            sorts=[(key, text) for key, (text, _) in SORTS.items()],
            policies=[("", "all"), *((policy, policy) for policy in (*POLICIES, "unknown"))],
            cards=select_cards(cards, query),
            chunk=CHUNK,
            predicted=sum(totals.values()),
            outcomes=", ".join(f"{totals[name]} {text}" for name, text in OUTCOMES.items()),
            right=totals["as_predicted"],
            plot=self._predictions.plot(),
        )

    async def chunk(self, request: Request) -> Response:
        """Return some cards, for the script."""
        query = read_query(request.query_params)
        cards = select_cards(await gather_items(self._backend.cards()), query)
        return self._templates.response("cards.html", cards=cards, query=query, chunk=CHUNK)

    async def node(self, request: Request) -> Response:
        name = request.path_params["name"]
        card, host = self._backend.card(name), self._backend.host(name)
        if card is None:
            raise ProblemError(404, f"The cluster has no node {name}.")
        labels = ", ".join(f"{key}={value}" for key, value in sorted(card.labels.items()))

        def build() -> Response:
            described = None if host is None else describe_host(host)
            return self._templates.response("node.html", card=card, labels=labels, machine_parts=described)

        return await asyncio.to_thread(build)

    async def pods(self, request: Request) -> Response:
        text = request.query_params.get("q", "")[:253]
        pods = self._backend.pods(text, MAX_FOUND) if text else ()
        return self._templates.response("pods.html", text=text, pods=pods, limit=MAX_FOUND)

    async def pod(self, request: Request) -> Response:
        namespace, name = request.path_params["namespace"], request.path_params["name"]
        async with self._computing:
            answered = await self._backend.ask_pod(namespace, name)
        if answered is None:
            raise ProblemError(404, f"There is no pod {namespace}/{name}.")
        document = path("/v1/explain", namespace, name)
        return self._templates.response("pod.html", answered=answered, document=document)

    async def where(self, request: Request) -> Response:
        fields = await read_form(request, limit=_MAX_MANIFEST) if request.method == "POST" else {}
        manifest = fields.get("manifest", "")
        values: dict[str, Any] = {"manifest": manifest, "answers": (), "problem": ""}
        if manifest.strip():
            try:
                async with self._computing:
                    values["answers"] = await self._backend.ask(manifest.encode())
            except AlignError as error:
                values["problem"] = str(error)
        return self._templates.response("where.html", **values)


@dataclass(frozen=True, slots=True, kw_only=True)
class CardQuery:
    """A selection of nodes, and their order."""

    sort: str = "name"
    policy: str = ""
    free: int = 0  #: at least so many free CPUs
    stranded: bool = False  #: only with something stranded
    label: str = ""  #: key or key=value, several with commas
    text: str = ""  #: in the name
    offset: int = 0

    def parameters(self, offset: int | None) -> dict[str, str | int | None]:
        return {
            "sort": self.sort if self.sort != "name" else None,
            "policy": self.policy or None,
            "free": self.free or None,
            "stranded": "yes" if self.stranded else None,
            "label": self.label or None,
            "q": self.text or None,
            "offset": offset or None,
        }


SORTS = {
    "name": ("Name", lambda card: card.name),
    "free": ("Most free CPUs", lambda card: (-card.free, card.name)),
    "largest": ("Largest aligned CPU request", lambda card: (-card.largest.get("cpu", 0), card.name)),
    "stranded": ("Most stranded", lambda card: (-card.stranded, card.name)),
    "pods": ("Most pods", lambda card: (-card.pods, card.name)),
}


def read_query(parameters: Mapping[str, str]) -> CardQuery:
    """Return the query; what cannot be read is left out."""

    def number(name: str) -> int:
        text = parameters.get(name, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 8 else 0

    sort, policy = parameters.get("sort", "name"), parameters.get("policy", "")
    return CardQuery(
        sort=sort if sort in SORTS else "name",
        policy=policy if policy in {*POLICIES, "unknown"} else "",
        free=number("free"),
        stranded=parameters.get("stranded") == "yes",
        label=parameters.get("label", "")[:500],
        text=parameters.get("q", "")[:253],
        offset=number("offset"),
    )


def select_cards(cards: Iterable[NodeCard], query: CardQuery) -> list[NodeCard]:
    wanted = [part.strip().partition("=") for part in query.label.split(",") if part.strip()]

    def matches(card: NodeCard) -> bool:
        return (
            query.text in card.name
            and query.policy in {"", card.policy or "unknown"}
            and card.free >= query.free
            and (card.stranded > 0 or not query.stranded)
            and all(key in card.labels and (not equals or card.labels[key] == value) for key, equals, value in wanted)
        )

    return sorted(filter(matches, cards), key=SORTS[query.sort][1])


def summarize(cards: Sequence[NodeCard]) -> list[tuple[str, str]]:
    """Return the capacity of the whole cluster, and what is free, stranded and fragmented, as names and texts."""
    known = [card for card in cards if not card.unknown]
    totals: dict[str, ResourceBar] = {"cpu": ResourceBar("cpu")}
    for card in known:
        for resource, bar in card.totals.items():
            totals[resource] = add_bars(totals.get(resource, ResourceBar(resource)), bar)
    cpus = totals.pop("cpu")
    free = cpus.free + cpus.stranded
    elsewhere = free - sum(card.roomiest for card in known)
    pairs = [
        ("Nodes", f"{len(cards)}, of which {len(known)} report their state"),
        ("Pods", str(sum(card.pods for card in known))),
        ("CPUs", f"{cpus.total}, {free} free ({_share(free, cpus.total)})"),
        ("Stranded CPUs", f"{cpus.stranded} ({_share(cpus.stranded, free)} of the free ones)"),
        ("Fragmentation", f"{_share(elsewhere, free)} of the free CPUs are not on the NUMA node with most of them"),
    ]
    for resource, bar in sorted(totals.items())[:12]:
        text = f"{format_amount(resource, bar.total)}, {format_amount(resource, bar.free + bar.stranded)} free"
        pairs.append((clean(resource), text + (f", {bar.stranded} stranded" if bar.stranded else "")))
    return pairs


def describe_card(card: NodeCard) -> str:
    return " · ".join(_card_facts(card))


def _card_facts(card: NodeCard) -> Iterator[str]:
    if card.unknown:
        yield f"unknown: {card.unknown}"
        return
    yield card.policy
    yield pluralize(card.pods, "pod")
    yield f"{card.free} CPUs free"
    if card.stranded:
        yield f"! {card.stranded} stranded"
    yield from card.restrictions


def describe_host(host: Host) -> dict[str, Any]:
    """Return what the page of a node shows of its machine and its ledger."""
    parts = draw_parts(host.machine, host.ledger)
    facts = " · ".join([parts.layout.title, *parts.layout.facts])
    return {"facts": facts, "pictures": parts.pictures, "holders": parts.layout.occupancy.holders}


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "0 %"
