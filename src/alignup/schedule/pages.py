"""The web pages of the cluster service: the cluster at ``/``, its nodes, and answers about pods.

Everything but the search for remedies runs in the event loop of the live cluster, some nodes at a time. Cards are kept
until their node changes, so that a page about thousands of nodes costs little.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from alignup.align.errors import AlignError, ParseError
from alignup.align.explain.remedies import Remedies, find_remedies
from alignup.align.host import Host
from alignup.align.workload import Pod
from alignup.documents import codec
from alignup.kubernetes.api.known_pods import check_container_count, known_pod
from alignup.kubernetes.api.objects import ApiNode, ApiPodSpec
from alignup.kubernetes.manifests import workloads as manifests
from alignup.picture.machine_svg import draw_parts
from alignup.picture.numa_bars import NumaBars, ResourceBar, add_bars, describe_bars, draw_bars, measure_bars
from alignup.picture.occupancy import format_amount
from alignup.picture.text_format import clean
from alignup.placement.free_capacity import measure_free_capacity
from alignup.schedule.cluster_snapshot import ClusterView, present_host
from alignup.schedule.large_pods import LargePods
from alignup.schedule.live_cluster import LiveCluster
from alignup.schedule.metrics import OUTCOMES, PredictionHistory
from alignup.schedule.node_selection import scheduling_spec, show_taint
from alignup.schedule.pod_answers import NO_REMEDIES, AnswerGroup, NodeAnswerKind, group_answers, iterate_answers
from alignup.schedule.rejections import rejection_text
from alignup.schedule.workload_answers import ask_about_gang, split_by_object
from alignup.web.authentication import count_authenticated
from alignup.web.event_streams import EventBus, EventStreams
from alignup.web.pages import PageHandler, Pages, path, read_form, static_routes
from alignup.web.paging import gather_items
from alignup.web.responses import ProblemError

EVENTS = "/v1/events"
LINKS = (("Cluster", "/"), ("Pods", "/pods"), ("Where would a pod go?", "/where"))
CHUNK = 60  #: cards that are sent at once; every number of columns divides it
POLICIES = ("none", "best-effort", "restricted", "single-numa-node")
MAX_FOUND = 200  #: pods that a search lists
MAX_STREAMS = 64
CHANGED = "changed"  #: the kind of event after which pages are renewed
CHANGE_SECONDS = 1.0  #: between events about changes
SEARCH_SECONDS = 1.0  #: for changes that would admit a pod
MAX_WORKLOADS = 20  #: of one manifest
MAX_GANG_STEPS = 1000  #: of the search for nodes for all pods of a workload, in which schedulers wait
AT_ONCE = 100  #: nodes that are asked before the loop does something else
MAX_SEARCHED = 3  #: groups of nodes for which remedies are searched

_MAX_MANIFEST = 256 << 10
_HEARTBEAT_SECONDS = 15.0
_NOTHING = Pod(name="", namespace="", uid="", containers=())

Problems = Callable[[], tuple[str, ...]]


def page_routes(pages: "ClusterPages", *, stopping: asyncio.Event) -> list[BaseRoute]:
    """Build the routes of *pages*; who may use them is checked before."""
    streams = EventStreams(pages.events.subscribe, limit=MAX_STREAMS, heartbeat=_HEARTBEAT_SECONDS, stopping=stopping)

    async def events(request: Request) -> ASGIApp:
        try:
            count_authenticated(request)
            return streams.response(request)
        except ProblemError as problem:
            return problem.response()

    return [
        *static_routes(),
        Route("/", pages.guard(pages.cluster)),
        Route("/nodes", pages.guard(pages.chunk)),
        Route("/nodes/{name}", pages.guard(pages.node)),
        Route("/pods", pages.guard(pages.pods)),
        Route("/pods/{namespace}/{name}", pages.guard(pages.pod)),
        Route("/where", pages.guard(pages.where), methods=["GET", "POST"]),
        Route(EVENTS, events),
    ]


@dataclass(slots=True, kw_only=True)
class NodeCard:
    """A node in brief."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    policy: str = ""  #: empty: unknown
    scope: str = ""
    pods: int = 0
    numa: tuple[NumaBars, ...] = ()
    largest: Mapping[str, int] = field(default_factory=dict)  #: the largest request that one container gets aligned
    unknown: str = ""  #: why the state is unknown
    restrictions: tuple[str, ...] = ()

    totals: Mapping[str, ResourceBar] = field(init=False, compare=False)  #: of all NUMA nodes, by resource
    free: int = field(init=False, compare=False)  #: free CPUs, stranded ones included
    #: CPUs and devices that are free, and that no aligned container can get
    stranded: int = field(init=False, compare=False)
    roomiest: int = field(init=False, compare=False)  #: the free CPUs of the NUMA node that has most of them

    def __post_init__(self) -> None:
        """Count once what queries compare again and again."""
        totals: dict[str, ResourceBar] = {}
        for node in self.numa:
            for bar in node.bars:
                totals[bar.resource] = add_bars(totals.get(bar.resource, ResourceBar(bar.resource)), bar)
        cpus = totals.get("cpu", ResourceBar("cpu"))
        stranded = sum(bar.stranded for bar in totals.values())
        roomiest = max((bar.free for node in self.numa for bar in node.bars if bar.resource == "cpu"), default=0)
        self.totals, self.free, self.stranded, self.roomiest = totals, cpus.free + cpus.stranded, stranded, roomiest


class AnsweredPod(NamedTuple):
    name: str
    groups: Sequence[AnswerGroup]
    notes: Sequence[str] = ()


class ClusterPages:
    """The handlers of the pages; *problems* says why answers could be wrong."""

    def __init__(
        self, live: LiveCluster, problems: Problems, predictions: PredictionHistory, large_pods: LargePods
    ) -> None:
        functions = {
            "chunk_path": lambda query, offset: path("/nodes", **query.parameters(offset)),
            "page_path": lambda query, offset: path("/", **query.parameters(offset)),
            "draw_bars": lambda card: draw_bars(card.numa, name=describe_bars(card.numa)),
        }
        self.events = EventBus(now=time.time)
        self._templates = Pages("alignup.schedule", links=LINKS, functions=functions)
        self._live, self._problems, self._predictions, self._large_pods = live, problems, predictions, large_pods
        self._computing = asyncio.Semaphore(1)  #: one question about pods at a time
        self._cards: dict[str, NodeCard] = {}
        self._pending = False  #: whether an event is about to be published
        live.on_change(self._changed)

    def guard(self, handler: PageHandler) -> PageHandler:
        async def handle(request: Request) -> Response:
            count_authenticated(request)
            return await handler(request)

        return self._templates.guard(handle, None)

    async def cluster(self, request: Request) -> Response:
        query = read_query(request.query_params)
        cards = await gather_items(self._all_cards())
        totals = self._predictions.totals
        return self._templates.response(
            "cluster.html",
            problems=self._problems(),
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
        cards = select_cards(await gather_items(self._all_cards()), query)
        return self._templates.response("cards.html", cards=cards, query=query, chunk=CHUNK)

    async def node(self, request: Request) -> Response:
        name = request.path_params["name"]
        card, host = self._card(name), present_host(self._live.cluster, name)
        if card is None:
            raise ProblemError(404, f"The cluster has no node {name}.")

        def build() -> Response:
            described = None if host is None else describe_host(host)
            return self._templates.response("node.html", card=card, machine_parts=described)

        return await asyncio.to_thread(build)

    async def pods(self, request: Request) -> Response:
        text = request.query_params.get("q", "")[:253]
        known = self._live.pods.objects.values() if text else ()
        named = (pod for pod in known if text in pod.metadata.full_name)
        pods = sorted(islice(named, MAX_FOUND), key=lambda pod: (pod.metadata.namespace, pod.metadata.name))
        return self._templates.response("pods.html", text=text, pods=pods, limit=MAX_FOUND)

    async def pod(self, request: Request) -> Response:
        namespace, name = request.path_params["namespace"], request.path_params["name"]
        pod = self._live.find_pod(namespace, name)
        if pod is None:
            raise ProblemError(404, f"There is no pod {namespace}/{name}.")
        spec = codec.convert({**codec.to_builtins(pod.spec), "nodeName": ""}, ApiPodSpec)
        bound = [f"The pod is bound to node {pod.spec.node_name}."] if pod.spec.node_name else []
        if text := rejection_text(pod):
            bound = [f"The kubelet of node {pod.spec.node_name} rejected the pod: {text}"]
        async with self._computing:
            answered = await self._ask(pod.metadata.full_name, known_pod(pod).pod, spec, bound)
        document = path("/v1/explain", namespace, name)
        return self._templates.response("pod.html", answered=answered, document=document)

    async def where(self, request: Request) -> Response:
        fields = await read_form(request, limit=_MAX_MANIFEST) if request.method == "POST" else {}
        manifest = fields.get("manifest", "")
        values: dict[str, Any] = {"manifest": manifest, "answers": (), "problem": ""}
        if manifest.strip():
            try:
                async with self._computing:
                    values["answers"] = await self._ask_manifest(manifest.encode())
            except AlignError as error:
                values["problem"] = str(error)
        return self._templates.response("where.html", **values)

    def _all_cards(self) -> Iterator[NodeCard]:
        for _, name in tuple(self._live.nodes.objects):
            if (card := self._card(name)) is not None:
                yield card

    def _card(self, node: str) -> NodeCard | None:
        known = self._live.nodes.get(node)
        if known is None:
            return None
        card = self._cards.get(node)
        if card is None or card.labels is not known.metadata.labels:
            card = self._cards[node] = self._measure(known)
        return card

    async def _ask_manifest(self, manifest: bytes) -> list[AnsweredPod]:
        """Answer for each workload of a manifest; raise an ``AlignError`` for one that cannot be read."""
        loaded = await asyncio.to_thread(manifests.read_workloads, manifest, name="the manifest")
        if not loaded.workloads:
            raise ParseError("\n".join(loaded.warnings) or "the manifest has no workloads")
        answers: list[AnsweredPod] = []
        served = self._live.claims.with_class_resources
        workloads = [replace(workload, pod=served(workload.pod)) for workload in loaded.workloads[:MAX_WORKLOADS]]
        for templates in split_by_object(workloads):
            asked = []
            for workload in templates:
                name = f"{workload.kind} {workload.title}"
                asked.append(await self._ask(name, workload.pod, scheduling_spec(workload), loaded.warnings))
            considered = [
                {node for group in answered.groups if not group.first.excluded for node in group.nodes}
                for answered in asked
            ]
            gang = ask_about_gang(self._live.cluster, templates, considered, max_steps=MAX_GANG_STEPS)
            if gang is not None:
                asked[0] = asked[0]._replace(notes=(gang.sentence, *asked[0].notes))
            answers += asked
        return answers

    async def _ask(self, name: str, pod: Pod, spec: ApiPodSpec, notes: Sequence[str]) -> AnsweredPod:
        check_container_count(len(pod.containers) + len(pod.init))
        answered, searched = [], 0
        for group in await self.ask_nodes(pod, spec):
            remedies = NO_REMEDIES
            if group.host is not None and group.first.kind is NodeAnswerKind.REJECTS and searched < MAX_SEARCHED:
                searched += 1
                remedies = await asyncio.to_thread(_search, group.host, pod)
            answered.append(replace(group, remedies=remedies))
        return AnsweredPod(name, answered, notes)

    async def ask_nodes(self, pod: Pod, spec: ApiPodSpec) -> tuple[AnswerGroup, ...]:
        """Ask some nodes at a time: thousands of them can take a second, in which schedulers would wait."""
        cluster, pod = self._live.cluster, self._live.claims.with_class_resources(pod)
        await self._large_pods.decide(pod)
        for number, name in enumerate(cluster.hosts, start=1):
            cluster.verdict(pod, name)  # is kept
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        view, answers = self._view(), []
        for number, answer in enumerate(iterate_answers(view, pod, spec), start=1):
            answers.append(answer)
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        return group_answers(view, pod, answers).groups

    def _view(self) -> ClusterView:
        live, nodes = self._live, {}
        reports, unknown = {}, {}
        for (_, name), node in live.nodes.objects.items():
            nodes[name] = node
            record = live.cluster.record(name)
            if record is not None:
                reports[name] = record.report
            else:
                unknown[name] = live.verdict(_NOTHING, name).reason
        return ClusterView(
            nodes=nodes,
            cluster=live.cluster,
            reports=reports,
            unknown=unknown,
            doubts={},
            stale={},
            claims=live.claims,
        )

    def _measure(self, node: ApiNode) -> NodeCard:
        name = node.metadata.name
        restrictions = ["unschedulable"] if node.spec.unschedulable else []
        restrictions += [show_taint(taint) for taint in node.spec.taints]
        card = NodeCard(name=name, labels=node.metadata.labels, restrictions=tuple(restrictions))
        host, record = present_host(self._live.cluster, name), self._live.cluster.record(name)
        if host is None:
            why = record.states().problem if record else self._live.verdict(_NOTHING, name).reason
            return replace(card, unknown=why or "unknown state")
        topology = host.settings.topology
        return replace(
            card,
            policy=str(topology.policy),
            scope=str(topology.scope),
            pods=len(host.ledger.pods),
            numa=measure_bars(host),
            largest=measure_free_capacity(host).largest,
        )

    def _changed(self, nodes: Collection[str]) -> None:
        for name in nodes:
            self._cards.pop(name, None)
        if not self._pending:
            self._pending = True
            asyncio.get_running_loop().call_later(CHANGE_SECONDS, self._publish)

    def _publish(self) -> None:
        self._pending = False
        self.events.publish(CHANGED, {})


def _search(host: Host, pod: Pod) -> Remedies:
    end = time.monotonic() + SEARCH_SECONDS
    return find_remedies(host, pod, should_stop=lambda: time.monotonic() > end)


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


def describe_host(host: Host) -> dict[str, Any]:
    """Return what the page of a node shows of its machine and its ledger."""
    parts = draw_parts(host.machine, host.ledger)
    facts = " · ".join([parts.layout.title, *parts.layout.facts])
    return {"facts": facts, "pictures": parts.pictures, "holders": parts.layout.occupancy.holders}


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "0 %"
