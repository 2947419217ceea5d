"""Tells people why pods stay behind the gate: one event for each pod, a moment after no node admitted it.

The moment lets reasons pass that last less, such as a kubelet that has not confirmed the pod before. Explaining is
more work than deciding, since all nodes are asked for their reasons, so it is done for a class at most every few
seconds, and events are repeated only if the reasons are others.
"""

from collections.abc import Callable

from alignup.gate.blocked_reasons import BlockedReasons, blocked_reasons
from alignup.gate.pod_events import PodEvents
from alignup.gate.pod_queue import GatedPod, PodClass, PodQueue
from alignup.gate.reservations import Reservations
from alignup.schedule.live_cluster import LiveCluster

DELAY = 2.0  #: seconds
REASON = "NoNode"  #: of the events


class BlockedPods:
    def __init__(
        self,
        live: LiveCluster,
        events: PodEvents,
        reservations: Reservations,
        queue: PodQueue,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._live, self._events, self._reservations, self._queue = live, events, reservations, queue
        self._clock = clock
        self._due: dict[PodClass, float] = {}
        self._explained: dict[PodClass, BlockedReasons] = {}

    def add(self, pod_class: PodClass) -> None:
        """No node admits the pods of a class."""
        self._due.setdefault(pod_class, self._clock() + DELAY)

    def joined(self, waiting: GatedPod, pod_class: PodClass) -> None:
        """A pod waits that belongs to a class of blocked pods."""
        if pod_class in self._explained:
            self._note(waiting, self._explained[pod_class])
        else:
            self.add(pod_class)

    def next_check(self) -> float | None:
        """Return the seconds until something is to be explained; ``None``: nothing is."""
        return max(min(self._due.values()) - self._clock(), 0.0) if self._due else None

    def explain_due(self) -> None:
        """Write events about the pods that are still blocked."""
        now = self._clock()
        pods = self._queue.of_kind
        self._explained = {pod_class: why for pod_class, why in self._explained.items() if pods(pod_class)}
        for pod_class in [pod_class for pod_class, at in self._due.items() if at <= now]:
            del self._due[pod_class]
            waiting = pods(pod_class)
            if waiting and pod_class in self._queue.blocked:
                before = self._explained.get(pod_class)
                why = self._explained[pod_class] = self._explain(waiting[0], pod_class)
                if before is None or before.reasons.keys() != why.reasons.keys():
                    for pod in waiting:
                        self._note(pod, why)

    def _explain(self, waiting: GatedPod, pod_class: PodClass) -> BlockedReasons:
        return blocked_reasons(
            self._live.nodes.objects.values(),
            pod_class,
            verdicts=self._live.feasible(pod_class.pod),
            reserved=lambda name: self._reservations.keeps_out(name, waiting),
        )

    def _note(self, waiting: GatedPod, why: BlockedReasons) -> None:
        self._events.note(waiting.api, REASON, str(why), same=frozenset(why.reasons))
