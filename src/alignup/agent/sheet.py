"""The next standing in the making: what of it has changed, what has to survive, and what there is to tell.

A sheet is written on by one job and then counts as a whole, or is thrown away. What jobs there are, and by what rules
they change things, is in ``agent.draft``.
"""

from copy import copy
from dataclasses import replace

from alignup.agent.known import API, Known, Record
from alignup.agent.pending import Pending
from alignup.agent.standing import Clock, Happening, Kind, Standing
from alignup.align.decision import Decision
from alignup.align.workload import Pod


class Sheet:
    """What stands, with room to change it."""

    def __init__(self, standing: Standing, clock: Clock) -> None:
        self._before = standing
        self._clock = clock
        self._host = copy(standing.host)  # a ledger is a value, so a copy may go its own way
        self._held = dict(standing.held)
        self._line = standing.line
        self._pending = dict(standing.pending)
        self._resting = set(standing.resting)
        self._finished = dict(standing.finished)
        self._changed = False
        self.durable = False  #: whether something changed that has to survive a crash
        self.happenings: list[Happening] = []
        self.begun: list[Pending] = []  #: those in line that have a place now, and whose plugins have to be asked

    def standing(self) -> Standing:
        """What came of it: the very same standing, if nothing did."""
        return self._drafted() if self._changed else self._before

    def _drafted(self) -> Standing:
        return replace(
            self._before,
            host=self._host,
            held=self._held,
            line=self._line,
            pending=self._pending,
            resting=frozenset(self._resting),
            finished=self._finished,
        )

    def _find(self, uid: str) -> Known | Pending | None:
        """A pod that is known in whatever way."""
        if finished := self._finished.get(uid):
            return finished.known
        return self._held.get(uid) or self._line.pods.get(uid) or self._pending.get(uid)

    def _note(self, known: Known) -> None:
        """Something is new about a pod that is here, or has run."""
        uid = known.pod.uid
        if uid in self._held:
            self._held[uid] = known
        else:
            self._finished[uid] = replace(self._finished[uid], known=known)
        self._changed = self.durable = True

    def _happened(self, kind: Kind, *, pod: Pod | None = None, source: str = API, detail: str = "") -> None:
        """Have something told about which nothing was decided."""
        self.happenings.append(Happening(kind=kind, time=self._clock.now(), pod=pod, source=source, detail=detail))

    def _decided(self, kind: Kind, pod: Pod, *, source: str, decision: Decision, seconds: float = 0.0) -> Record:
        """Have told what was decided, and give it to be kept."""
        record = Record(decision)
        self.happenings.append(
            Happening(
                kind=kind,
                time=self._clock.now(),
                pod=pod,
                source=source,
                decision=decision,
                record=record,
                seconds=seconds,
            )
        )
        return record
