"""The next standing in the making: what of it has changed, what has to survive, and what there is to tell.

A sheet is written on by one job and then counts as a whole, or is thrown away. What jobs there are, and by what rules
they change things, is in ``agent.transaction``.
"""

from copy import copy
from dataclasses import replace

from alignup.agent.pending_admission import PendingAdmission
from alignup.agent.pod_record import API_SOURCE, PodRecord, StoredRecord
from alignup.agent.state import AgentEvent, AgentState, Clock, EventKind
from alignup.align.decision import Decision
from alignup.align.workload import Pod


class TransactionBase:
    """What stands, with room to change it."""

    def __init__(self, standing: AgentState, clock: Clock) -> None:
        self._before = standing
        self._clock = clock
        self._host = copy(standing.host)  # a ledger is a value, so a copy may go its own way
        self._held = dict(standing.held)
        self._line = standing.line
        self._pending = dict(standing.pending)
        self._resting = set(standing.backing_off)
        self._finished = dict(standing.finished)
        self._changed = False
        self.durable = False  #: whether something changed that has to survive a crash
        self.happenings: list[AgentEvent] = []
        self.begun: list[
            PendingAdmission
        ] = []  #: those in line that have a place now, and whose plugins have to be asked

    def standing(self) -> AgentState:
        """What came of it: the very same standing, if nothing did."""
        return self._drafted() if self._changed else self._before

    def _drafted(self) -> AgentState:
        return replace(
            self._before,
            host=self._host,
            held=self._held,
            line=self._line,
            pending=self._pending,
            backing_off=frozenset(self._resting),
            finished=self._finished,
        )

    def _find(self, uid: str) -> PodRecord | PendingAdmission | None:
        """A pod that is known in whatever way."""
        if finished := self._finished.get(uid):
            return finished.known
        return self._held.get(uid) or self._line.pods.get(uid) or self._pending.get(uid)

    def _note(self, known: PodRecord) -> None:
        """Something is new about a pod that is here, or has run."""
        uid = known.pod.uid
        if uid in self._held:
            self._held[uid] = known
        else:
            self._finished[uid] = replace(self._finished[uid], known=known)
        self._changed = self.durable = True

    def _happened(self, kind: EventKind, *, pod: Pod | None = None, source: str = API_SOURCE, detail: str = "") -> None:
        """Have something told about which nothing was decided."""
        self.happenings.append(AgentEvent(kind=kind, time=self._clock.now(), pod=pod, source=source, detail=detail))

    def _decided(
        self, kind: EventKind, pod: Pod, *, source: str, decision: Decision, seconds: float = 0.0
    ) -> StoredRecord:
        """Have told what was decided, and give it to be kept."""
        record = StoredRecord(decision)
        self.happenings.append(
            AgentEvent(
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
