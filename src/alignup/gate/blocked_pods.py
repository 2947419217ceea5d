"""Pods that no node admits: one event for each, a moment after no node admitted it.

The moment lets reasons pass that last less, such as a kubelet that has not confirmed the pod before. Explaining is
more work than deciding, since all nodes are asked for their reasons. So it is done for a class at most every few
seconds, for one class at a time, and only as fast as events are written. Events are repeated only if the reasons are
others.
"""

from collections.abc import Callable, Iterator, Mapping

from alignup.align.errors import AlignError
from alignup.gate.claim_nodes import ClaimNodes
from alignup.gate.pod_queue import GatedPod, PodClass, PodQueue
from alignup.schedule.node_selection import exclusions
from alignup.schedule.pod_answers import NodeAnswer, count_reasons
from alignup.schedule.pod_events import PodEvents
from alignup.schedule.schedulable_nodes import NodeCapacity

DELAY = 2.0  #: seconds
REASON = "NoNode"  #: of the events
MAX_REASONS = 6  #: in one event
FULL = "too little left by the Node object"
MAX_WAITING_EVENTS = 20  #: events that wait to be written; with more, nothing is explained

Clock = Callable[[], float]


class BlockedPods:
    def __init__(
        self,
        claim_nodes: ClaimNodes,
        events: PodEvents,
        capacity: NodeCapacity,
        queue: PodQueue,
        clock: Clock,
    ) -> None:
        self._live, self._claim_nodes = claim_nodes.live, claim_nodes
        self._events, self._capacity, self._queue = events, capacity, queue
        self._kept_nodes = claim_nodes.live.scheduling.kept_nodes
        self._clock = clock
        self._due: dict[PodClass, float] = {}  #: the first is the first that is due

    def add(self, pod_class: PodClass) -> None:
        """Explain soon that no node admits the pods of a class."""
        self._due.setdefault(pod_class, self._clock() + DELAY)

    def joined(self, waiting: GatedPod, pod_class: PodClass) -> None:
        """Explain a pod that joins a class of blocked pods."""
        if pod_class.explained is not None:
            self._note(waiting, *pod_class.explained)
        else:
            self.add(pod_class)

    def next_check(self) -> float | None:
        """Return the seconds until something is to be explained; ``None``: nothing is."""
        if self._events.waiting > MAX_WAITING_EVENTS:
            return 1.0
        return max(next(iter(self._due.values())) - self._clock(), 0.0) if self._due else None

    def explain_next(self) -> None:
        """Write events about the pods of one class that is due, if they are still blocked."""
        while self._due and self._events.waiting <= MAX_WAITING_EVENTS:
            pod_class, at = next(iter(self._due.items()))
            if at > self._clock():
                return
            del self._due[pod_class]
            if pod_class in self._queue.blocked:
                self._explain(pod_class)
                return

    def _explain(self, pod_class: PodClass) -> None:
        waiting, before = self._queue.of_kind(pod_class), pod_class.explained
        try:
            reasons: Mapping[str, int] = count_reasons(self._answers(waiting[0], pod_class))
            message = describe_reasons(reasons, nodes=len(self._live.nodes.objects))
        except AlignError as error:
            message = f"no kubelet can decide on the pod: {error}"
            reasons = {message: 1}
        pod_class.explained = frozenset(reasons), message
        if before is None or before[0] != reasons.keys():
            for pod in waiting:
                self._note(pod, *pod_class.explained)

    def _answers(self, waiting: GatedPod, pod_class: PodClass) -> Iterator[NodeAnswer]:
        """Yield why each node is not chosen, with the first reason only."""
        verdicts = self._live.feasible(pod_class.pod)
        for node in self._live.nodes.objects.values():
            name = node.metadata.name
            excluded = exclusions(node, pod_class.spec)[:1]
            if not excluded and verdicts[name].admits:
                if self._capacity.insufficient(node, waiting.pod):
                    excluded = (FULL,)
                elif self._kept_nodes.keeps_out(name, waiting.pod, waiting.order):
                    excluded = (self._kept_nodes.describe(name),)
                elif waiting.pod.uses_claims and (refusal := self._claim_nodes.refusal(waiting.pod, name)):
                    excluded = (refusal,)
            yield NodeAnswer(name, verdicts[name], excluded)

    def _note(self, waiting: GatedPod, reasons: frozenset[str], message: str) -> None:
        self._events.note(waiting.api, REASON, message, same=reasons)


def describe_reasons(reasons: Mapping[str, int], *, nodes: int) -> str:
    """Return the text of an event: ``0/5 nodes will admit the pod: 3 not enough cpu …``."""
    listed = [f"{count} {reason}" for reason, count in list(reasons.items())[:MAX_REASONS]]
    more = len(reasons) - MAX_REASONS
    listed += [f"{more} more reasons"] if more > 0 else []
    return f"0/{nodes} nodes will admit the pod" + (f": {', '.join(listed)}." if listed else ".")
