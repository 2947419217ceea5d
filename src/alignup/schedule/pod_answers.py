"""What every node of a cluster answers to a pod: whether its kubelet would admit it, where it would go, and why not.

Nodes that answer alike form a group. For a group that rejects the pod, the changes that would admit it are searched on
its first node.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from alignup.align import bits
from alignup.align.decision import Placement
from alignup.align.explain import sentences
from alignup.align.explain.remedies import Remedies, find_remedies
from alignup.align.host import Host
from alignup.align.quantity import Quantity
from alignup.align.workload import Pod
from alignup.kubernetes.api.objects import ApiNode, ApiPodSpec
from alignup.placement.verdict import NO_REPORT, Verdict, VerdictKind, unknown
from alignup.schedule.cluster_snapshot import ClusterView
from alignup.schedule.node_selection import exclusions

NO_REMEDIES = Remedies()


class NodeAnswerKind(StrEnum):
    """In the order in which groups are listed."""

    ADMITS = "admits"
    REJECTS = "rejects"
    UNKNOWN = "unknown"
    NOT_CONSIDERED = "not considered"


_KINDS = {
    VerdictKind.ADMITS: NodeAnswerKind.ADMITS,
    VerdictKind.REJECTS: NodeAnswerKind.REJECTS,
    VerdictKind.UNKNOWN: NodeAnswerKind.UNKNOWN,
}


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    node: str
    verdict: Verdict  #: of the kubelet
    excluded: tuple[str, ...] = ()  #: why schedulers do not consider the node

    @property
    def kind(self) -> NodeAnswerKind:
        return NodeAnswerKind.NOT_CONSIDERED if self.excluded else _KINDS[self.verdict.kind]

    @property
    def reason(self) -> str:
        """Why the pod cannot go there, in words that nodes have in common; empty if it can."""
        return "; ".join(self.excluded) or self.verdict.reason

    @property
    def numa_nodes(self) -> str:
        """Where the containers go; empty unless the kubelet admits the pod."""
        found = {one.container: _show_nodes(one) for one in self.verdict.shared_placements}
        if len(set(found.values())) == 1:
            return next(iter(found.values()))
        return ", ".join(f"{container}: {nodes}" for container, nodes in found.items())


@dataclass(frozen=True, slots=True)
class AnswerGroup:
    """Nodes that answer alike; what follows from a decision is about the first of them."""

    answers: tuple[NodeAnswer, ...]
    misfits: tuple[str, ...] = ()  #: what does not fit
    remedies: Remedies = NO_REMEDIES
    host: Host | None = None  #: where the remedies were tried

    @property
    def first(self) -> NodeAnswer:
        return self.answers[0]

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(one.node for one in self.answers)


@dataclass(frozen=True, slots=True)
class PodAnswers:
    pod: Pod
    groups: tuple[AnswerGroup, ...]

    def count(self, kind: NodeAnswerKind) -> int:
        return sum(len(group.answers) for group in self.groups if group.first.kind is kind)


def ask_nodes(
    view: ClusterView, pod: Pod, spec: ApiPodSpec, *, seconds: float = 0.0, clock: Callable[[], float] = time.monotonic
) -> PodAnswers:
    """Ask every node about *pod*, whose API object has *spec*; ``PodError`` if the pod is invalid.

    Search up to *seconds* in all for changes that would admit it where it is rejected.
    """
    return group_answers(view, pod, iterate_answers(view, pod, spec), seconds=seconds, clock=clock)


def group_answers(
    view: ClusterView,
    pod: Pod,
    answers: Iterable[NodeAnswer],
    *,
    seconds: float = 0.0,
    clock: Callable[[], float] = time.monotonic,
) -> PodAnswers:
    """The groups of all *answers* to *pod*; see ``ask_nodes``."""
    grouped: dict[tuple[NodeAnswerKind, str, str], list[NodeAnswer]] = {}
    for one in sorted(answers, key=lambda one: one.node):
        where = one.numa_nodes if one.kind is NodeAnswerKind.ADMITS else ""
        grouped.setdefault((one.kind, one.reason, where), []).append(one)
    order = list(NodeAnswerKind)
    groups = sorted(
        (AnswerGroup(tuple(found)) for found in grouped.values()),
        key=lambda group: (order.index(group.first.kind), -len(group.answers), group.first.node),
    )
    rejecting = sum(group.first.kind is NodeAnswerKind.REJECTS for group in groups)
    end = clock() + seconds
    for number, group in enumerate(groups):
        if group.first.kind is NodeAnswerKind.REJECTS:
            share = max(end - clock(), 0.0) / rejecting
            rejecting -= 1
            groups[number] = _explain(view, pod, group, should_stop=_deadline(clock, share))
    return PodAnswers(pod, tuple(groups))


def _deadline(clock: Callable[[], float], seconds: float) -> Callable[[], bool]:
    end = clock() + seconds
    return lambda: clock() > end


def iterate_answers(view: ClusterView, pod: Pod, spec: ApiPodSpec) -> Iterator[NodeAnswer]:
    """The answers of all nodes; the cluster may change meanwhile."""
    verdicts = view.cluster.feasible(pod)
    for name, node in view.nodes.items():
        record = view.cluster.record(name)
        verdict = verdicts[name] if record else unknown(view.unknown.get(name, NO_REPORT.reason))
        if record and record.holds(pod.uid):
            verdict = view.cluster.assume(pod, name)  # changes nothing: the pod is there
        excluded = exclusions(node, spec)
        if missing := _missing_devices(view, node, pod):
            excluded = (*excluded, sentences.no_plugin(missing))
        yield NodeAnswer(name, verdict, excluded)


def _missing_devices(view: ClusterView, node: ApiNode, pod: Pod) -> tuple[str, ...]:
    """Devices that no plugin provides; an administrator may have added the resource to the status of the node."""
    record = view.cluster.record(node.metadata.name)
    if record is None:
        return ()
    missing = record.model.at(record.ledger).missing_devices(pod)
    allocatable = node.status.allocatable
    return tuple(name for name in missing if Quantity.parse(str(allocatable.get(name, 0))).is_zero)


def _explain(view: ClusterView, pod: Pod, group: AnswerGroup, *, should_stop: Callable[[], bool]) -> AnswerGroup:
    node = group.first.node
    current = view.host(node)
    if current is None:
        return group
    report = view.reports[node]
    host = Host(report.machine, report.settings, ledger=current.ledger)  # with its devices, for other settings
    misfits = sentences.describe_rejection(host.decide_without_plugins(pod))
    return replace(group, misfits=misfits, remedies=find_remedies(host, pod, should_stop=should_stop), host=host)


def _show_nodes(placement: Placement) -> str:
    nodes = placement.hint.nodes
    if nodes is None:
        return "any NUMA node"
    return f"NUMA node {bits.show(nodes)}" if nodes.bit_count() == 1 else f"NUMA nodes {bits.show(nodes)}"
