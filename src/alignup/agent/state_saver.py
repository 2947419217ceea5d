"""The writer of the agent's state: what changed since the last time, and the decisions, in one transaction.

A change costs the same however many pods there are: only pods that changed are looked at and encoded. If the database
is removed or damaged while the agent runs, everything is written to a new one.
"""

from collections.abc import Iterable, Iterator, Sequence

from structlog.typing import FilteringBoundLogger

from alignup.agent.state import AgentEvent, AgentState, EventKind, PodRecord
from alignup.align.errors import StoreError, StoreProblem
from alignup.align.host import Host
from alignup.align.ledger import Ledger
from alignup.documents import codec
from alignup.documents.decisions import recent_documents
from alignup.documents.ledgers import check_holders, pod_entry, residue
from alignup.documents.pod_documents import pod_document
from alignup.store.fingerprint import machine_fingerprint, settings_fingerprint
from alignup.store.history import NewDecision
from alignup.store.state_store import (
    HeldPodDocument,
    LedgerParts,
    PodRow,
    Stage,
    StateChange,
    StateStore,
    WaitingPodDocument,
)

#: What is wrong with a database that a running agent replaces by a new one.
_REPLACED = frozenset({StoreProblem.UNUSABLE, StoreProblem.MISSING})


class StateSaver:
    """The saver of the states of a host, whose pods are as ``AgentState.unsaved`` says; raises ``StoreError``."""

    def __init__(self, store: StateStore, host: Host, log: FilteringBoundLogger) -> None:
        self._store, self._log = store, log
        self._machine = machine_fingerprint(host.machine)
        self._settings = settings_fingerprint(host.settings)
        self._saved: AgentState | None = None  #: ``None``: the next change is the whole state
        self._inventories: object = None  #: the devices when the admitted pods were encoded
        self._problem = ""  #: of the history: the last one logged
        self._ids: dict[int, int] = {}  #: identity of an event that is not dispatched yet → ID of its decision

    def save(self, state: AgentState, events: Sequence[AgentEvent] = ()) -> None:
        """Return when *state* and the decisions of *events* are durable."""
        try:
            self._save(state, events)
        except StoreError as error:
            if error.kind not in _REPLACED:
                raise
            names = ", ".join(self._store.set_aside()) or "nothing"
            detail = (
                f"{error.where}: {error.message}; {names} was set aside, and all pods are written to a new database"
            )
            self._log.error("state", detail=detail)
            self._saved = None
            self._save(state, events)

    def record(self, events: Sequence[AgentEvent]) -> None:
        """Add the decisions of *events* to the history; a problem is only logged."""
        if decided := list(_decided(events)):
            self._finish(decided, self._store.add_decisions(map(_new_decision, decided)))

    def decision_id(self, event: AgentEvent) -> int | None:
        """Return the ID of the decision of *event* in the history, once; ``None`` if it has none."""
        return self._ids.pop(id(event), None)

    def _save(self, state: AgentState, events: Sequence[AgentEvent]) -> None:
        ledger = (state.settled_host() if state.pending else state.host).ledger
        decided = list(_decided(events))
        parts = LedgerParts(
            machine=self._machine,
            settings=self._settings,
            residue=residue(ledger, providers=state.host.providers),
            plugins=sorted(state.plugins),
            overtaken=state.waiting.overtakes,
        )
        saved = self._saved
        changes = None if saved is None else self._changes(state, saved, ledger)
        admitted, new = list[str](), False
        if saved is not None:
            # Pods that were waiting are stored already: they need no space on the disk, unless they got devices.
            admitted = [uid for uid in state.unsaved if uid in state.admitted and uid not in saved.admitted]
            new = any(uid not in saved.waiting or state.admitted[uid].grants for uid in admitted)
            if not new and state.waiting is not saved.waiting:
                new = any(uid not in saved.admitted and uid not in saved.waiting for uid in state.waiting.uids())
        whole = changes is None
        if changes is None:
            check_holders(ledger)
            changes = set(), (*_admitted(ledger, state, state.admitted), *map(_waiting, state.waiting))
        change = StateChange(
            parts=parts,
            removed=changes[0],
            pods=changes[1],
            whole=whole,
            has_new_pods=new,
            limited=new or bool(admitted),  # an admitted pod takes more space than a waiting one
            decisions=list(map(_new_decision, decided)),
        )
        self._finish(decided, self._store.save(change))
        self._saved, self._inventories = state, ledger.devices.inventories

    def _changes(
        self, state: AgentState, saved: AgentState, ledger: Ledger
    ) -> tuple[set[str], tuple[PodRow, ...]] | None:
        """Return the removed and the changed pods since the last save; ``None``: all pods must be written."""
        unsaved, before, after = state.unsaved, saved.admitted, state.admitted
        new = []  # pods that were added, or added again, are at the end
        for uid in reversed(after):
            if uid not in unsaved:
                break
            new.append(uid)
        new.reverse()
        added = set(new)
        removed = {uid for uid in unsaved if uid in before and (uid in added or uid not in after)}
        if len(before) - len(removed) + len(new) != len(after):
            return None
        replaced = {uid for uid in unsaved - added if uid in after}
        if ledger.devices.inventories is not self._inventories:  # devices may be on other NUMA nodes now
            replaced |= ledger.devices.held.keys() - added
        waiting: list[PodRow] = []
        if state.waiting is not saved.waiting:
            waiting_before, waiting_after = (
                {record.pod.uid: record for record in queue} for queue in (saved.waiting, state.waiting)
            )
            kept = [uid for uid in waiting_before if uid in waiting_after]
            if list(waiting_after)[: len(kept)] != kept:
                return None
            removed |= waiting_before.keys() - waiting_after.keys()
            waiting = [
                _waiting(record, last=uid not in waiting_before)
                for uid, record in waiting_after.items()
                if uid not in waiting_before or waiting_before[uid].pod is not record.pod
            ]
        return removed, (*_admitted(ledger, state, replaced), *_admitted(ledger, state, new, last=True), *waiting)

    def _finish(self, decided: Sequence[AgentEvent], problem: str) -> None:
        """Note the IDs of decisions, or log a problem of the history once."""
        if not problem:
            first = self._store.last_decision - len(decided) + 1
            self._ids |= {id(event): first + number for number, event in enumerate(decided)}
        if problem and problem != self._problem:
            self._log.warning("history", detail=problem)
        self._problem = problem


def _decided(events: Sequence[AgentEvent]) -> Iterator[AgentEvent]:
    """Yield the events whose decisions are in the history."""
    for event in events:
        if event.decision is not None and event.kind is not EventKind.KEPT:
            yield event


def _new_decision(event: AgentEvent) -> NewDecision:
    if event.decision is None:
        raise AssertionError("the event has no decision")
    waits = event.kind is EventKind.WAITING
    return NewDecision(recent_documents.document(event.decision), event.time, str(event.kind) if waits else "")


def _admitted(ledger: Ledger, state: AgentState, uids: Iterable[str], *, last: bool = False) -> Iterator[PodRow]:
    for uid in uids:
        record = state.admitted[uid]
        document = HeldPodDocument(
            entry=pod_entry(ledger, uid), since=record.since, source=record.source, grants=record.grants
        )
        yield PodRow(uid, Stage.ADMITTED, codec.encode(document), last)


def _waiting(record: PodRecord, *, last: bool = False) -> PodRow:
    document = WaitingPodDocument(pod=pod_document(record.pod), since=record.since, source=record.source)
    return PodRow(record.pod.uid, Stage.WAITING, codec.encode(document), last)
