"""The live cluster as the web pages show it: a card for each node, and answers about pods.

Everything but the search for remedies runs in the event loop of the live cluster, some nodes at a time. Cards are kept
until their node changes, so that a page about thousands of nodes costs little.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from alignup.align.errors import ParseError
from alignup.align.explain.remedies import find_remedies
from alignup.align.host import Host
from alignup.align.workload import Pod
from alignup.documents import codec
from alignup.kubernetes.api.objects import ApiNode, ApiPodSpec
from alignup.kubernetes.api.pods import known_pod
from alignup.kubernetes.manifests import workloads as manifests
from alignup.picture.numa_bars import NumaBars, ResourceBar, add_bars, measure_bars
from alignup.placement.free_capacity import measure_free_capacity
from alignup.schedule.cluster_snapshot import ClusterView
from alignup.schedule.live_cluster import LiveCluster
from alignup.schedule.node_selection import scheduling_spec, show_taint
from alignup.schedule.pod_answers import AnswerGroup, NodeAnswerKind, group_answers, iterate_answers
from alignup.web.event_streams import EventBus, Subscription

CHANGED = "changed"  #: the kind of event after which pages are renewed
CHANGE_SECONDS = 1.0  #: between events about changes
SEARCH_SECONDS = 1.0  #: for changes that would admit a pod
MAX_WORKLOADS = 20  #: of one manifest
AT_ONCE = 100  #: nodes that are asked before the loop does something else
MAX_SEARCHED = 3  #: groups of nodes for which remedies are searched

_NOTHING = Pod(name="", namespace="", uid="", containers=())


@dataclass(frozen=True, slots=True, kw_only=True)
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
        counted = {"totals": totals, "free": cpus.free + cpus.stranded, "stranded": stranded, "roomiest": roomiest}
        for name, value in counted.items():
            object.__setattr__(self, name, value)


class FoundPod(NamedTuple):
    namespace: str
    name: str
    node: str
    phase: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredGroup:
    """Nodes that answer alike."""

    kind: str
    reason: str
    numa_nodes: str
    nodes: tuple[str, ...]
    misfits: tuple[str, ...] = ()
    proposals: tuple[tuple[str, str], ...] = ()  #: what would admit the pod on the first node, and where it would go


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredPod:
    name: str
    groups: tuple[AnsweredGroup, ...]
    notes: tuple[str, ...] = ()


class LivePages:
    """The cluster for the pages; *problems* says why answers could be wrong."""

    def __init__(self, live: LiveCluster, problems: Callable[[], tuple[str, ...]]) -> None:
        self.problems = problems
        self._live = live
        self._cards: dict[str, NodeCard] = {}
        self._events = EventBus(now=time.time)
        self._pending = False  #: whether an event is about to be published
        live.on_change(self._changed)

    def events(self) -> AbstractAsyncContextManager[Subscription]:
        return self._events.subscribe()

    def cards(self) -> Iterator[NodeCard]:
        for _, name in tuple(self._live.nodes.objects):
            if (card := self.card(name)) is not None:
                yield card

    def card(self, node: str) -> NodeCard | None:
        known = self._live.nodes.get(node)
        if known is None:
            return None
        card = self._cards.get(node)
        if card is None or card.labels is not known.metadata.labels:
            card = self._cards[node] = self._measure(known)
        return card

    def host(self, node: str) -> Host | None:
        record = self._live.cluster.record(node)
        ledgers = record.states().ledgers if record else ()
        return record.model.at(ledgers[0]) if record and ledgers else None

    def pods(self, text: str, limit: int) -> list[FoundPod]:
        """Return up to *limit* pods whose name contains *text*."""
        matches = []
        for (namespace, name), pod in self._live.pods.objects.items():
            if text in f"{namespace}/{name}":
                status = pod.status
                matches.append(FoundPod(namespace, name, pod.spec.node_name, status.phase, status.reason))
                if len(matches) == limit:
                    break
        return sorted(matches)

    async def ask(self, manifest: bytes) -> list[AnsweredPod]:
        """Answer for each workload of a manifest; raise an ``AlignError`` for one that cannot be read."""
        loaded = await asyncio.to_thread(_read, manifest)
        if not loaded.workloads:
            raise ParseError("\n".join(loaded.warnings) or "the manifest has no workloads")
        answers = []
        for workload in loaded.workloads[:MAX_WORKLOADS]:
            name = f"{workload.kind} {workload.title}"
            answers.append(await self._ask(name, workload.pod, scheduling_spec(workload), loaded.warnings))
        return answers

    async def ask_pod(self, namespace: str, name: str) -> AnsweredPod | None:
        """Answer for a pod of the cluster; return ``None`` if there is no such pod."""
        pod = self._live.find_pod(namespace, name)
        if pod is None:
            return None
        spec = codec.convert({**codec.to_builtins(pod.spec), "nodeName": ""}, ApiPodSpec)
        bound = (f"The pod is bound to node {pod.spec.node_name}.",) if pod.spec.node_name else ()
        return await self._ask(pod.metadata.full_name, known_pod(pod).pod, spec, bound)

    async def _ask(self, name: str, pod: Pod, spec: ApiPodSpec, notes: Sequence[str]) -> AnsweredPod:
        answered, searched = [], 0
        groups = await self.ask_nodes(pod, spec)
        for group in groups:
            answer = _answered(group)
            if group.host is not None and group.first.kind is NodeAnswerKind.REJECTS and searched < MAX_SEARCHED:
                searched += 1
                answer = replace(answer, proposals=await asyncio.to_thread(_proposals, group.host, pod))
            answered.append(answer)
        return AnsweredPod(name=name, groups=tuple(answered), notes=tuple(notes))

    async def ask_nodes(self, pod: Pod, spec: ApiPodSpec) -> tuple[AnswerGroup, ...]:
        """Ask some nodes at a time: thousands of them can take a second, in which schedulers would wait."""
        cluster = self._live.cluster
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
        return ClusterView(nodes=nodes, cluster=live.cluster, reports=reports, unknown=unknown, doubts={}, stale={})

    def _measure(self, node: ApiNode) -> NodeCard:
        name = node.metadata.name
        restrictions = ["unschedulable"] if node.spec.unschedulable else []
        restrictions += [show_taint(taint) for taint in node.spec.taints]
        card = NodeCard(name=name, labels=node.metadata.labels, restrictions=tuple(restrictions))
        host, record = self.host(name), self._live.cluster.record(name)
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
        self._events.publish(CHANGED, {})


def _read(manifest: bytes) -> manifests.LoadedWorkloads:
    return manifests.read_workloads(manifest, name="the manifest")


def _answered(group: AnswerGroup) -> AnsweredGroup:
    first = group.first
    return AnsweredGroup(
        kind=str(first.kind),
        reason=first.reason,
        numa_nodes=first.numa_nodes,
        nodes=group.nodes,
        misfits=group.misfits,
    )


def _proposals(host: Host, pod: Pod) -> tuple[tuple[str, str], ...]:
    end = time.monotonic() + SEARCH_SECONDS
    remedies = find_remedies(host, pod, should_stop=lambda: time.monotonic() > end)
    return tuple((proposal.describe(host.ledger), proposal.describe_result()) for proposal in remedies.proposals)
