"""Tells people why pods stay behind the gate: one event for each pod, a moment after no node admitted it.

The moment lets reasons pass that last less, such as a kubelet that has not confirmed the pod before. Explaining is
more work than deciding, since all nodes are asked for their reasons, so it is done for a class at most every few
seconds, and events are repeated only if the reasons are others.
"""

from collections.abc import Callable

from alignup.gate.blocked_reasons import BlockedReasons, blocked_reasons
from alignup.gate.pod_events import PodEvents
from alignup.gate.pod_queue import GatedPod, PodClass
from alignup.gate.reservations import Reservations
from alignup.schedule.live_cluster import LiveCluster

DELAY = 2.0  #: seconds
REASON = "NoNode"  #: of the events


class BlockedPods:
    def __init__(
        self, live: LiveCluster, events: PodEvents, reservations: Reservations, *, clock: Callable[[], float]
    ) -> None:
        self._live, self._events, self._reservations = live, events, reservations
        self._clock = clock
        self._due: dict[PodClass, float] = {}
        self._explained: dict[PodClass, BlockedReasons] = {}

    def add(self, own: PodClass) -> None:
        """No node admits the pods of a class."""
        self._due.setdefault(own, self._clock() + DELAY)

    def joined(self, waiting: GatedPod, own: PodClass) -> None:
        """A pod waits that belongs to a class of blocked pods."""
        if own in self._explained:
            self._note(waiting, self._explained[own])
        else:
            self.add(own)

    def next_check(self) -> float | None:
        """Return the seconds until something is to be explained; ``None``: nothing is."""
        return max(min(self._due.values()) - self._clock(), 0.0) if self._due else None

    def explain_due(self) -> None:
        """Write events about the pods that are still blocked."""
        now = self._clock()
        self._explained = {own: why for own, why in self._explained.items() if own.waiting}
        for own in [own for own, at in self._due.items() if at <= now]:
            del self._due[own]
            if own.blocked and own.waiting:
                before = self._explained.get(own)
                why = self._explained[own] = self._explain(own.waiting[0], own)
                if before is None or before.reasons.keys() != why.reasons.keys():
                    for waiting in own.waiting:
                        self._note(waiting, why)

    def _explain(self, waiting: GatedPod, own: PodClass) -> BlockedReasons:
        return blocked_reasons(
            self._live.nodes.objects.values(),
            own,
            verdicts=self._live.feasible(own.pod),
            reserved=lambda name: self._reservations.keeps_out(name, waiting),
        )

    def _note(self, waiting: GatedPod, why: BlockedReasons) -> None:
        self._events.note(waiting.api, REASON, str(why), same=frozenset(why.reasons))
