"""Why pods wait behind the gate, in events: the same words for all pods of a class, and again when they change."""

from collections.abc import Collection, Iterator

from alignup.align.errors import AlignError
from alignup.align.reason_codes import GANG_INCOMPLETE, NO_NODE
from alignup.placement.scheduling.claim_rules import GatedClaims
from alignup.placement.scheduling.common_parts import CommonParts
from alignup.placement.scheduling.facts import GroupKey, PodFacts
from alignup.placement.scheduling.gang_placement import FULL
from alignup.placement.scheduling.instructions import WriteEvent
from alignup.placement.scheduling.kept_nodes import KeptNodes
from alignup.placement.scheduling.pod_queue import PodClass, PodQueue
from alignup.placement.scheduling.reasons import count_reasons, describe_reasons
from alignup.placement.verdict import VerdictKind

EXPLAIN_SECONDS = 2.0  #: before it is said that no node admits a pod; some reasons last less


class BlockedExplanations:
    def __init__(self, parts: CommonParts, kept_nodes: KeptNodes, *, queue: PodQueue, claims: GatedClaims) -> None:
        self._cluster = parts.cluster
        self._facts = parts.facts
        self._assumptions = parts.assumptions
        self._turn = parts.turn
        self._kept_nodes = kept_nodes
        self._queue = queue
        self._claims = claims
        self._later: dict[PodClass, float] = {}  #: blocked classes → when to explain that; the first comes first

    def due(self) -> Collection[float]:
        """Return when the next class is to be explained, if there is one."""
        return [*self._later.values()][:1]

    def explain_later(self, pod_class: PodClass) -> None:
        self._later.setdefault(pod_class, self._turn.now + EXPLAIN_SECONDS)

    def joined(self, pod_class: PodClass, uid: str) -> None:
        """Say of a pod that has joined a blocked class what was said of the other pods of the class."""
        if pod_class.explained is None:
            self.explain_later(pod_class)
        else:
            reasons, message = pod_class.explained
            self._turn.emit(WriteEvent(uid, NO_NODE, message, reasons))

    def explain_missing(self, key: GroupKey, present: int, ready: Collection[str]) -> None:
        """Say of *ready* pods that their gang is incomplete; *present*: its pods behind the gate, or released."""
        minimum = self._facts.gang(key).minimum
        message = f"gang {key}: {present} of {minimum} pods are behind the gate or released"
        for uid in ready if present < minimum else ():
            self._turn.emit(WriteEvent(uid, GANG_INCOMPLETE, message))

    def next_class(self) -> PodClass | None:
        """Return a blocked class that is to be explained now."""
        while self._later:
            pod_class, at = next(iter(self._later.items()))
            if at > self._turn.now:
                return None
            del self._later[pod_class]
            if pod_class in self._queue.blocked and self._queue.of_kind(pod_class):
                return pod_class
        return None

    def explain(self, pod_class: PodClass) -> None:
        """Say why no node admits the pods of a class."""
        waiting_pods, explained_before = self._queue.of_kind(pod_class), pod_class.explained
        try:
            reasons = count_reasons(self._reasons(waiting_pods[0]))
            message = describe_reasons(reasons, nodes=len(self._facts.nodes))
        except AlignError as error:
            message = f"no kubelet can decide on the pod: {error}"
            reasons = {message: 1}
        pod_class.explained = frozenset(reasons), message
        if explained_before is None or explained_before[0] != reasons.keys():
            for facts in waiting_pods:
                self._turn.emit(WriteEvent(facts.uid, NO_NODE, message, pod_class.explained[0]))

    def _reasons(self, waiting_pod: PodFacts) -> Iterator[tuple[str, VerdictKind | None, str]]:
        """Yield each node that is not chosen with its kind of verdict (``None``: it does not matter) and a reason."""
        pod, excluded_nodes = waiting_pod.pod, self._facts.excluded(waiting_pod)
        verdicts = self._cluster.verdicts(pod, self._facts.nodes)
        for node in self._facts.nodes:
            if node in excluded_nodes:
                yield node, None, excluded_nodes[node]
                continue
            verdict = verdicts.get(node) or self._facts.verdict_without_report(pod, node)
            if not verdict.admits:
                yield node, verdict.kind, verdict.reason
            elif not self._assumptions.has_room(node, pod):
                yield node, None, FULL
            elif self._kept_nodes.keeps_out(node, pod, waiting_pod.order):
                yield node, None, self._kept_nodes.describe(node, pod)
            elif pod.uses_claims and (refusal := self._claims.refusal(pod, node)):
                yield node, None, refusal
