"""The answers of nodes to a pod: whether a kubelet would admit it, where it would go, and why not.

Nodes that answer alike form a group. For a group that rejects the pod, the changes that would admit it are searched on
its first node.
"""

import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any

from alignup.align import bits
from alignup.align.claims.alignment import ExplainedClaim
from alignup.align.errors import PodError
from alignup.align.explain import sentences
from alignup.align.explain.remedies import Remedies, find_remedies
from alignup.align.host import Host
from alignup.align.quantity import Quantity
from alignup.align.reason_codes import NOT_CONSIDERED
from alignup.align.workload import Pod
from alignup.documents.codec import convert, to_builtins
from alignup.documents.decisions import placement_document
from alignup.kubernetes.api.objects import ApiNode, ApiPod, ApiPodSpec
from alignup.picture.text_format import format_ids, pluralize
from alignup.placement.free_capacity import DEVICE
from alignup.placement.host_record import HostRecord
from alignup.placement.pod_shape import needs_alignment
from alignup.placement.scheduling.claim_rules import choose_steering
from alignup.placement.score import POINT, PlacementScore
from alignup.placement.steered import STEERED_ANNOTATION, count_markers
from alignup.placement.verdict import NO_REPORT, Verdict, defect, unknown
from alignup.schedule.claim_alignment import explain_claims
from alignup.schedule.cluster_snapshot import ClusterView, present_host
from alignup.schedule.node_selection import exclusions
from alignup.schedule.rejections import recorded_verdict

NO_REMEDIES = Remedies()
MAX_CLAIM_ROWS = 100  #: nodes of a document on which claims are explained

MakeRow = Callable[["NodeAnswer", int], dict[str, Any]]  #: returns the row of a node; its place is 0 for the best one


class NodeAnswerKind(StrEnum):
    """The kinds of verdicts and one more, in the order in which groups are listed."""

    ADMITS = "admits"
    REJECTS = "rejects"
    UNKNOWN = "unknown"
    NOT_CONSIDERED = "not considered"


_ORDER = list(NodeAnswerKind)


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    node: str
    verdict: Verdict  #: of the kubelet
    excluded: tuple[str, ...] = ()  #: why schedulers do not consider the node
    claims: tuple[ExplainedClaim, ...] = ()  #: of the pod, beside what it gets there
    steering: str = ""  #: where the pod is or would be steered to, and why

    @property
    def kind(self) -> NodeAnswerKind:
        return NodeAnswerKind.NOT_CONSIDERED if self.excluded else NodeAnswerKind(self.verdict.kind)

    @property
    def code(self) -> str:
        """The reason code; empty if the pod can go there."""
        return NOT_CONSIDERED if self.excluded else self.verdict.code

    @property
    def reason(self) -> str:
        """Why the pod cannot go there, in words that nodes have in common; empty if it can."""
        return "; ".join(self.excluded) or self.verdict.reason

    @property
    def numa_nodes(self) -> str:
        """Where the containers go; empty unless the kubelet admits the pod."""
        if self.steering and self.verdict.admits:
            return self.steering
        by_container = {}
        for placement in self.verdict.shared_placements:
            nodes = placement.hint.nodes
            nodes_text = "any NUMA node" if nodes is None else format_ids("NUMA node", bits.members(nodes))
            by_container[placement.container] = nodes_text
        if len(set(by_container.values())) == 1:
            return next(iter(by_container.values()))
        return ", ".join(f"{container}: {nodes}" for container, nodes in by_container.items())


@dataclass(frozen=True, slots=True)
class AnswerGroup:
    """Nodes that answer alike; what follows from a decision is about the first node."""

    answers: tuple[NodeAnswer, ...]
    misfits: tuple[str, ...] = ()  #: what does not fit
    remedies: Remedies = NO_REMEDIES
    host: Host | None = None  #: where the remedies were tried

    @property
    def first(self) -> NodeAnswer:
        return self.answers[0]

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(answer.node for answer in self.answers)

    @property
    def remedies_title(self) -> str:
        """What the list of changes is; empty if none was searched for."""
        if self.host is None:
            return ""
        if self.remedies.proposals:
            return f"What would admit it on {self.first.node} (each change was tried):"
        return f"No single change that was tried on {self.first.node} would admit it."

    @property
    def changes(self) -> list[tuple[str, str]]:
        """Each change that would admit the pod on the first node, and what the pod would get then."""
        if self.host is None:
            return []
        ledger = self.host.ledger
        return [(proposal.describe(ledger), proposal.describe_result()) for proposal in self.remedies.proposals]


@dataclass(frozen=True, slots=True)
class PodAnswers:
    pod: Pod
    groups: tuple[AnswerGroup, ...]

    def count(self, kind: NodeAnswerKind) -> int:
        return sum(len(group.answers) for group in self.groups if group.first.kind is kind)

    @property
    def considered(self) -> set[str]:
        """The nodes that schedulers consider for the pod."""
        return {node for group in self.groups if not group.first.excluded for node in group.nodes}

    @property
    def verdict(self) -> str:
        """How many nodes would admit the pod now, in a sentence without its period."""
        name, admitting_count = f"Pod {self.pod.namespace}/{self.pod.name}", self.count(NodeAnswerKind.ADMITS)
        total = sum(len(group.answers) for group in self.groups)
        if not total:
            return f"{name}: the cluster has no nodes"
        if not admitting_count and self.count(NodeAnswerKind.UNKNOWN):
            return f"{name} would be admitted by no node whose state is known"
        return f"{name} would be admitted by {admitting_count or 'none'} of {pluralize(total, 'node')}"


def group_by_answer(answers: Iterable[NodeAnswer]) -> list[AnswerGroup]:
    """Group nodes by kind, reason, NUMA nodes and claims: the largest group of each kind first, nodes by name."""
    answers_by_key: dict[Hashable, list[NodeAnswer]] = {}
    for answer in sorted(answers, key=lambda answer: answer.node):
        numa_nodes = answer.numa_nodes if answer.kind is NodeAnswerKind.ADMITS else ""
        claims = tuple((claim.aligned, claim.state.problem) for claim in answer.claims) if numa_nodes else ()
        answers_by_key.setdefault((answer.kind, answer.reason, numa_nodes, claims), []).append(answer)
    groups = [AnswerGroup(tuple(alike)) for alike in answers_by_key.values()]
    return sorted(groups, key=lambda group: (_ORDER.index(group.first.kind), -len(group.answers), group.first.node))


def count_reasons(answers: Iterable[NodeAnswer]) -> dict[str, int]:
    """Count the nodes that a pod cannot go to by reason, the most frequent first."""
    reasons: Counter[str] = Counter()
    for group in group_by_answer(answers):
        if group.first.reason:
            reasons[group.first.reason] += len(group.answers)
    return dict(reasons.most_common())


def ask_nodes(
    view: ClusterView, pod: Pod, spec: ApiPodSpec, *, seconds: float = 0.0, clock: Callable[[], float] = time.monotonic
) -> PodAnswers:
    """Ask every node about *pod*, whose API object has *spec*; ``PodError`` if the pod is invalid.

    Search up to *seconds* in all for changes that would admit it where it is rejected.
    """
    return search_remedies(group_answers(view, pod, iterate_answers(view, pod, spec)), seconds=seconds, clock=clock)


def ask_nodes_again(view: ClusterView, api_pod: ApiPod, pod: Pod) -> Iterator[NodeAnswer]:
    """Yield the answers about a pod of the API server as if it were created again, wherever it is bound.

    A node whose state is unknown now answers what it decided when it rejected the pod.
    """
    spec = convert({**to_builtins(api_pod.spec), "nodeName": ""}, ApiPodSpec)
    return iterate_answers(view, pod, spec, present=api_pod)


def group_answers(view: ClusterView, pod: Pod, answers: Iterable[NodeAnswer]) -> PodAnswers:
    """Group all *answers* to *pod*, and say what does not fit where it is rejected."""
    groups = []
    for group in group_by_answer(answers):
        try:
            groups.append(_explain(view, pod, group) if group.first.kind is NodeAnswerKind.REJECTS else group)
        except Exception as error:
            if view.failed is None or isinstance(error, PodError):
                raise
            view.failed(group.first.node, error)
            groups.append(replace(group, misfits=(defect(error).note,)))
    return PodAnswers(pod, tuple(groups))


def search_remedies(answers: PodAnswers, *, seconds: float, clock: Callable[[], float] = time.monotonic) -> PodAnswers:
    """Search up to *seconds* in all for changes that would admit the pod on the first node of each rejecting group."""
    rejecting_count = sum(group.host is not None for group in answers.groups)
    end, groups = clock() + seconds, list(answers.groups)
    for number, group in enumerate(groups):
        if group.host is not None:
            deadline = clock() + max(end - clock(), 0.0) / rejecting_count
            rejecting_count -= 1
            remedies = find_remedies(group.host, answers.pod, should_stop=partial(_is_past, clock, deadline))
            groups[number] = replace(group, remedies=remedies)
    return replace(answers, groups=tuple(groups))


def _is_past(clock: Callable[[], float], deadline: float) -> bool:
    return clock() > deadline


def iterate_answers(
    view: ClusterView, pod: Pod, spec: ApiPodSpec, *, present: ApiPod | None = None
) -> Iterator[NodeAnswer]:
    """Yield the answers of all nodes; the cluster may change meanwhile.

    *present*: the pod as the API server has it, which a node may have rejected.
    """
    verdicts = view.cluster.feasible(pod)
    for name, node in view.nodes.items():
        try:
            answer = _ask_node(view, pod, spec, node, verdicts)
            if present is not None:
                answer = replace(answer, verdict=recorded_verdict(present, name, answer.verdict))
        except Exception as error:
            if view.failed is None or isinstance(error, PodError):
                raise
            view.failed(name, error)
            answer = NodeAnswer(name, defect(error))
        yield answer


def _ask_node(
    view: ClusterView, pod: Pod, spec: ApiPodSpec, node: ApiNode, verdicts: Mapping[str, Verdict]
) -> NodeAnswer:
    name = node.metadata.name
    record = view.cluster.record(name)
    verdict = verdicts[name] if record else unknown(view.unknown.get(name, NO_REPORT.reason))
    if record and record.holds(pod.uid):
        verdict = view.cluster.assume(pod, name)  # changes nothing: the pod is there
    exclusion_reasons = exclusions(node, spec)
    if resources := missing_devices(record, node, pod):
        exclusion_reasons = (*exclusion_reasons, sentences.no_plugin(resources))
    verdict, steering = steered_verdict(view, pod, name, verdict)
    claims: tuple[ExplainedClaim, ...] = ()
    if view.claims is not None and pod.uses_claims:
        fit = view.claims.fit_on(pod, name, record)
        exclusion_reasons = exclusion_reasons if fit.possible else (*exclusion_reasons, fit.reason)
        claims = next(iter(explain_claims(view.claims, record, pod, verdict)), ())
        exclusion_reasons = (
            *exclusion_reasons,
            *{claim.locality.unmet for claim in claims if not claim.locality.possible},
        )
    return NodeAnswer(name, verdict, exclusion_reasons, claims, steering)


def steered_verdict(view: ClusterView, pod: Pod, node: str, verdict: Verdict) -> tuple[Verdict, str]:
    """Return what a pod with markers gets on *node* if it is steered, and where to; or *verdict*, and nothing."""
    record = view.cluster.record(node) if verdict.admits and count_markers(pod) else None
    if record is None:
        return verdict, ""
    if record.holds(pod.uid):
        return verdict, pod.annotations.get(STEERED_ANNOTATION, "")
    options = view.cluster.steered(pod, node)
    claims = view.claims
    choice = choose_steering(options, pod, lambda option: explain_claims(claims, record, pod, option) if claims else ())
    return (choice.verdict, str(choice)) if choice else (verdict, "")


def missing_devices(record: HostRecord | None, node: ApiNode, pod: Pod) -> tuple[str, ...]:
    """Return devices that no plugin provides; an administrator may have added the resource to the node's status."""
    if record is None:
        return ()
    resources = record.model.at(record.ledger).missing_devices(pod)
    allocatable = node.status.allocatable
    return tuple(name for name in resources if Quantity.parse(str(allocatable.get(name, 0))).is_zero)


def _explain(view: ClusterView, pod: Pod, group: AnswerGroup) -> AnswerGroup:
    node = group.first.node
    current = present_host(view.cluster, node)
    if current is None:
        return group
    report = view.reports[node]
    host = Host(report.machine, report.settings, ledger=current.ledger)  # with its devices, for other settings
    decision = host.decide_without_plugins(pod)
    if decision.admitted:  # it was rejected when the node was in another state, or the node does not meet a demand
        return replace(group, misfits=tuple(filter(None, [group.first.verdict.note])))
    return replace(group, misfits=sentences.describe_rejection(decision), host=host)


# Documents


def answers_document(api_pod: ApiPod, pod: Pod, verdicts: Mapping[str, Verdict], make_row: MakeRow) -> dict[str, Any]:
    """Return the verdicts of nodes about a pod, the best first, as a document for users."""
    answers = [NodeAnswer(name, verdict) for name, verdict in verdicts.items()]
    counts = Counter(answer.kind for answer in answers)

    def rank(answer: NodeAnswer) -> tuple[int, float, str]:
        score = answer.verdict.score
        return _ORDER.index(answer.kind), -score.total if score else 0.0, answer.node

    kinds = (NodeAnswerKind.ADMITS, NodeAnswerKind.REJECTS, NodeAnswerKind.UNKNOWN)
    return {
        "pod": api_pod.metadata.full_name,
        "uid": api_pod.metadata.uid,
        "boundTo": api_pod.spec.node_name,
        "needsAlignment": needs_alignment(pod),
        "counts": {str(kind): counts[kind] for kind in kinds},
        "nodes": [make_row(answer, position) for position, answer in enumerate(sorted(answers, key=rank))],
    }


def placement_documents(verdict: Verdict) -> list[Any]:
    return [to_builtins(placement_document(placement)) for placement in verdict.placements]


def answer_row(answer: NodeAnswer, pod: Pod) -> dict[str, Any]:
    """Return the answer of a node as a part of a document."""
    verdict = answer.verdict
    row: dict[str, Any] = {"node": answer.node, "verdict": str(verdict.kind), "approximate": verdict.approximate}
    if not verdict.admits:
        return {**row, "code": verdict.code, "reason": verdict.reason, "detail": verdict.detail}
    row["placements"] = placement_documents(verdict)
    if verdict.score is not None and needs_alignment(pod):
        row["score"] = _score(verdict.score)
    return row


def failed_row(node: str, error: Exception) -> dict[str, Any]:
    """Return the row of a node about which the answer raises an error."""
    verdict = defect(error)
    row = {"node": node, "verdict": str(verdict.kind), "approximate": False}
    return {**row, "code": verdict.code, "reason": verdict.reason, "detail": verdict.detail}


def _score(score: PlacementScore) -> dict[str, Any]:
    parts = ("preferred", "numaNodes", "distance", "stranded", "devicesBeside", "cpusBeside")
    return {
        "total": score.total,
        "points": {name: points / POINT for name, points in zip(parts, score.points, strict=True)},
        "preferred": score.preferred,
        "numaNodes": score.nodes,
        "distance": score.distance,
        "stranded": score.stranded / DEVICE,
        "devicesBeside": score.devices_beside,
        "cpusBeside": score.cpus_beside,
        "room": {
            "largest": dict(score.free_capacity.largest),
            "strandedCpus": score.free_capacity.stranded_cpus,
            "strandedDevices": {name: size / DEVICE for name, size in score.free_capacity.stranded_devices.items()},
        },
    }
