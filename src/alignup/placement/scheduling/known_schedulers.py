"""The known schedulers: pods of other schedulers get no places, and no node is kept for such pods."""

from alignup.placement.scheduling.facts import PodFacts, WaitState
from alignup.placement.scheduling.options import DEFAULT_SCHEDULER
from alignup.placement.scheduling.turn import Turn

ASKED_SECONDS = 600.0  #: after the last question of a scheduler, for which it is known
MAX_SCHEDULERS = 100


class KnownSchedulers:
    def __init__(self, *, turn: Turn) -> None:
        self._turn = turn
        self.named: frozenset[str] = frozenset((DEFAULT_SCHEDULER,))  #: by an option
        self.of_gate: frozenset[str] = frozenset()  #: schedulers that pods are released to
        self._asked: dict[str, float] = {}  #: name → when it asked last

    def asked(self, name: str) -> None:
        now = self._turn.now
        self._asked = {other: at for other, at in self._asked.items() if now - at < ASKED_SECONDS and other != name}
        if len(self._asked) < MAX_SCHEDULERS:
            self._asked[name] = now

    def has(self, name: str) -> bool:
        """Return whether a scheduler is known: by an option, or since it has asked lately."""
        if (name or DEFAULT_SCHEDULER) in self.named | self.of_gate:
            return True
        return self._turn.now - self._asked.get(name, float("-inf")) < ASKED_SECONDS

    def know(self, facts: PodFacts) -> bool:
        """Return whether a known scheduler will schedule a pod; for a gated pod, whether pods are released to it."""
        if facts.state is WaitState.GATED:
            return (facts.scheduler or DEFAULT_SCHEDULER) in self.of_gate
        return self.has(facts.scheduler)
