"""The ledger of a host and the history of its decisions in a database: the one module that saves and loads them.

Each pod is a row with a JSON document, and so is each part of the rest. A :class:`DurableState` and all that it refers
to are immutable values, so what changed since the last save is what is not the same object. Only that is encoded and
written: a change costs the same however many pods there are. A row has a digest, and the database stores the exclusive
or of all digests: changed, lost and repeated rows are detected when the state is loaded, which SQLite alone would not
do.
"""

import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from hashlib import blake2b
from operator import is_not
from pathlib import Path
from typing import NamedTuple, cast, get_type_hints

import msgspec

from alignup.align.errors import ParseError, StoreError, StoreFullError, StoreProblem
from alignup.align.host import Host
from alignup.align.layered_map import changed_keys
from alignup.align.ledger import Ledger
from alignup.align.workload import Pod
from alignup.documents import codec
from alignup.documents.codec import Count, Document
from alignup.documents.ledgers import PodEntryDocument, ResidueDocument, check_holders, pod_entry, residue
from alignup.documents.pod_documents import PodDocument, PodGrants, pod_document
from alignup.store import history
from alignup.store.database import FREE_PAGES, LOCK_SECONDS, MIN_FREE_PAGES, Database, insert_rows
from alignup.store.fingerprint import Fingerprint, machine_fingerprint, settings_fingerprint
from alignup.store.history import DecisionRow, History, HistorySize

MAX_LEDGER_BYTES = 48 << 20  #: of the documents of all pods, with a new one

_CHECK = "check"  #: the part with the digest of all rows
_BYTES_PER_PAGE, _PAGES_PER_CHANGE = 2_000, 1  #: what documents take at most, and what is added for each change
_REPLACE = "ON CONFLICT ({}) DO UPDATE SET document = excluded.document"
#: What is wrong with a database that is replaced by a new one, because the program that saves has the whole state.
_REPLACED = frozenset({StoreProblem.UNUSABLE, StoreProblem.MISSING})


@dataclass(frozen=True, slots=True, kw_only=True)
class DurablePod:
    """What is stored about a pod besides what it holds."""

    pod: Pod
    since: float  #: seconds since 1970
    source: str  #: ``api``, or the path of the manifest file
    grants: PodGrants = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DurableState:
    """What a restart must not lose; nothing in it may be changed."""

    host: Host  #: a copy, if its ledger may be replaced
    #: by uid, in the order to restore; ``None``: nothing but what pods hold is stored
    admitted: Mapping[str, DurablePod] | None = None
    waiting: Iterable[DurablePod] = ()  #: in order
    overtaken: Mapping[str, int] = field(default_factory=dict)  #: uids of waiting pods → how many have overtaken them
    plugins: Collection[str] = frozenset()  #: resources that device plugins serve

    @property
    def pods(self) -> Mapping[str, object]:
        """The admitted pods, by uid and in order."""
        return self.host.ledger.pods if self.admitted is None else self.admitted


class SaveResult(NamedTuple):
    history_problem: str  #: why decisions are missing in the history; empty if none is
    replaced: str = ""  #: what was wrong with the database that was set aside, and its new names; empty if it was not


class HeldPodDocument(Document, frozen=True, omit_defaults=True, kw_only=True):
    """An admitted pod. ``alignup run`` stores only the ledger entry."""

    entry: PodEntryDocument
    since: float | None = None  #: seconds since 1970
    source: str | None = None
    grants: PodGrants = msgspec.field(default_factory=dict)


class WaitingPodDocument(Document, frozen=True, omit_defaults=True, kw_only=True):
    pod: PodDocument
    since: float  #: seconds since 1970
    source: str


class CheckDocument(Document, frozen=True):
    serial: Count  #: rises with every change
    digest: str  #: hexadecimal


class Stage(StrEnum):
    """Where a pod is on its way."""

    ADMITTED = "admitted"
    WAITING = "waiting"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredState:
    """What was saved, as documents."""

    machine: Fingerprint
    settings: Fingerprint
    residue: ResidueDocument
    plugins: list[str]
    overtaken: dict[str, Count]
    pods: list[HeldPodDocument]  #: in the order to restore
    waiting: list[WaitingPodDocument]  #: in order


#: The types of the parts that belong to no pod.
_PARTS = {name: type_ for name, type_ in get_type_hints(StoredState).items() if name not in {"pods", "waiting"}}


class _StoredRow(NamedTuple):
    number: int
    stage: str
    digest: int
    size: int  #: of the document


class StateStore:
    """The state in the database of one directory; methods raise :class:`StoreError`.

    One thread at a time may load and save; any thread may read the ``history``.
    """

    def __init__(
        self,
        directory: Path,
        *,
        limit: int = MAX_LEDGER_BYTES,
        max_decisions: int = history.MAX_ROWS,
        max_decision_bytes: int = history.MAX_BYTES,
        lock_seconds: float = LOCK_SECONDS,
    ) -> None:
        self._database = Database(directory, lock_seconds=lock_seconds)
        self.path = self._database.path
        self.history = History(self.path)
        self._limit = limit
        self._history_limit = HistorySize(max_decisions, max_decision_bytes)
        self._forget()

    def _forget(self) -> None:
        self._loaded = False  #: whether what follows is what the database contains
        self._pods: dict[str, _StoredRow] = {}  #: by uid
        self._parts: dict[str, int] = {}  #: name → digest
        self._serial = 0
        self._next_number = 0
        self._ledger_bytes = 0
        self._digest = 0
        self._history_size = HistorySize(0, 0)
        self._free_pages = 0  #: of the database, at least
        self._saved: DurableState | None = None  #: the last one, of which the database has everything

    def load(self, *, accept_loss: bool = False) -> StoredState | None:
        """Return the state; ``None`` if nothing was ever stored here. No file is changed.

        ``StoreError`` if acknowledged changes are missing, unless that is accepted: the next save accepts it for good.
        """
        self._forget()
        try:
            state = self._database.read(self._read)
        except (ParseError, LookupError, TypeError, ValueError, RecursionError) as error:
            if isinstance(error, StoreError):
                raise
            message = f"missing {error}" if isinstance(error, KeyError) else str(error)
            raise self._database.unusable(f"its contents are invalid: {message}") from error
        if not accept_loss and self._database.acknowledged > self._serial:
            raise self._database.incomplete(self._serial)
        self._loaded = True
        return state

    def lost_changes(self) -> str:
        """Return which changes are lost, or may be lost with a damaged log; empty if none. Call it before a save."""
        if self._database.acknowledged > self._serial:
            error = self._database.incomplete(self._serial)
            return f"{error.where}: {error.message}; compare the pods with those that run"
        if not (count := self._database.count_lost()):
            return ""
        changes = "1 change" if count == 1 else f"up to {count} changes"
        return (
            f"{self.path}-wal is damaged: {changes} after change {self._serial} may be lost, though they may have been "
            "acknowledged; compare the pods with those that run"
        )

    def _read(self, connection: sqlite3.Connection) -> StoredState | None:
        documents = {name.decode(): text for name, text in connection.execute("SELECT name, document FROM parts")}
        check = documents.pop(_CHECK, None)
        for name, text in documents.items():
            self._parts[name] = row_digest(0, name, "", text)
            self._digest ^= self._parts[name]
        pods = {stage: list[bytes]() for stage in Stage}
        for number, encoded_uid, encoded_stage, text in connection.execute(
            "SELECT number, uid, stage, document FROM pods ORDER BY number"
        ):
            uid, stage = encoded_uid.decode(), Stage(encoded_stage.decode())
            row = _StoredRow(number, stage, row_digest(number, uid, stage, text), len(text))
            self._pods[uid] = row
            self._digest ^= row.digest
            self._ledger_bytes += row.size
            self._next_number = number + 1
            pods[stage].append(text)
        if check is None and not documents and not self._pods:
            return None  # the process that created the database was killed
        check_document = codec.decode(check or b"{}", CheckDocument)
        if check_document.digest != f"{self._digest:016x}":
            raise ParseError("the checksum does not match: a row was changed, lost or repeated")
        self._serial = check_document.serial
        self._history_size = HistorySize.of(connection)
        return StoredState(
            **{name: codec.decode(documents[name], type_) for name, type_ in _PARTS.items()},
            pods=[codec.decode(text, HeldPodDocument) for text in pods[Stage.ADMITTED]],
            waiting=[codec.decode(text, WaitingPodDocument) for text in pods[Stage.WAITING]],
        )

    def save(self, state: DurableState, decisions: Sequence[history.Entry] = ()) -> SaveResult:
        """Write what changed since the last save, and *decisions*, durably in one transaction.

        After an error nothing has changed. :class:`StoreFullError` if the ledger would be too large with new pods. A
        database that was removed or damaged since it was loaded is set aside, and everything is written to a new one.
        """
        was_loaded = self._loaded
        try:
            return SaveResult(self._save(state, decisions))
        except StoreError as error:
            if not was_loaded or error.kind not in _REPLACED:
                raise
            names = ", ".join(self.set_aside()) or "nothing"
            remedy = f"{names} was set aside, and all pods are written to a new database"
            return SaveResult(self._save(state, decisions), f"{error.where}: {error.message}; {remedy}")

    def _save(self, state: DurableState, decisions: Sequence[history.Entry]) -> str:
        if not self._loaded:
            self.load()
        try:
            plan = self._plan(state)
        except (TypeError, ValueError, ArithmeticError, RecursionError) as error:  # of a provider from outside
            raise self._database.unwritable(str(error)) from error
        if plan.limited and plan.ledger_bytes > self._limit:
            raise StoreFullError(str(self.path), size=plan.ledger_bytes, limit=self._limit)
        rows, problem = history.decision_rows(decisions, max_bytes=self._history_limit.bytes)
        if plan.needs_space or rows:
            try:
                self._reserve(plan.added_bytes + sum(len(row[-1]) for row in rows))
            except StoreError as error:
                if plan.needs_space or error.kind is not StoreProblem.UNWRITABLE:
                    raise
                rows, problem = [], f"cannot write the history: {error}"
        self._history_size = self._database.transact(lambda connection: self._write(connection, plan, rows))
        for uid, row in plan.pods.items():
            if row is None:
                del self._pods[uid]
            else:
                self._pods[uid] = row
        self._parts |= plan.part_digests
        self._digest = plan.digest
        self._ledger_bytes = plan.ledger_bytes
        self._next_number = plan.next_number
        self._serial += 1
        self._database.acknowledge(self._serial)
        self._saved = state
        return problem

    @property
    def last_decision(self) -> int:
        """The ID of the last decision that was added to the history; 0: none was."""
        return self._history_size.last

    def add_decisions(self, decisions: Iterable[history.Entry]) -> str:
        """Add decisions to the history, durably; return why some are missing. Never raises."""
        rows, problem = history.decision_rows(decisions, max_bytes=self._history_limit.bytes)
        if rows:
            size, limit = self._history_size, self._history_limit
            try:
                self._reserve(sum(len(row[-1]) for row in rows))
                self._history_size = self._database.transact(lambda open_: history.insert(open_, rows, size, limit))
            except StoreError as error:
                return f"cannot write the history: {error}"
        return problem

    def _reserve(self, size: int) -> None:
        """Make sure that the database has free pages for documents of this *size*."""
        needed_pages = size // _BYTES_PER_PAGE + _PAGES_PER_CHANGE
        if self._free_pages < needed_pages + MIN_FREE_PAGES:
            least = needed_pages + MIN_FREE_PAGES
            self._free_pages = self._database.grow(pages=least + FREE_PAGES, least=least)
        self._free_pages -= needed_pages

    def _plan(self, state: DurableState) -> "_Plan":
        last, plan = self._saved, _Plan(self._pods, self._digest, self._ledger_bytes, self._next_number)
        for name, part in _changed_parts(state, last):
            document = codec.encode(part)
            saved_digest, digest = self._parts.get(name), row_digest(0, name, "", document)
            if digest != saved_digest:
                plan.digest ^= digest ^ (saved_digest or 0)
                plan.part_digests[name] = digest
                plan.parts.append((name, document.decode()))
        is_same = last is not None and state.waiting is last.waiting
        waiting_pods = {} if is_same else {record.pod.uid: record for record in state.waiting}
        if last is None:
            check_holders(state.host.ledger)
            changed_uids = {*self._pods, *state.pods, *waiting_pods}
        else:
            changed_uids = _changed_pods(state, last) | (set() if is_same else _changed_waiting(state, last))
        plan.remove({uid for uid in changed_uids if uid not in state.pods and uid not in waiting_pods})
        plan.place(Stage.ADMITTED, state.pods, changed_uids, partial(_admitted_document, state))
        plan.place(Stage.WAITING, waiting_pods, changed_uids, lambda uid: _waiting_document(waiting_pods[uid]))
        if last is None:  # what a program has already can always be written
            plan.limited = False
            plan.needs_space = False
        elif state.admitted is not None:
            # Pods that were waiting are stored already: they need no space on the disk, unless they got devices.
            plan.needs_space |= any(state.admitted[uid].grants for uid in plan.promoted)
        return plan

    def _write(self, connection: sqlite3.Connection, plan: "_Plan", rows: Sequence[DecisionRow]) -> HistorySize:
        check = codec.encode(CheckDocument(self._serial + 1, f"{plan.digest:016x}"))
        parts = [*plan.parts, (_CHECK, check.decode())]
        insert_rows(connection, "parts (name, document)", parts, _REPLACE.format("name"))
        if plan.deleted:
            connection.executemany("DELETE FROM pods WHERE number = ?", plan.deleted)
        insert_rows(connection, "pods (number, uid, stage, document)", plan.written, _REPLACE.format("number"))
        return history.insert(connection, rows, self._history_size, self._history_limit)

    def prepare_for_more(self) -> None:
        """Do work that would delay the next change, while there is nothing else to do; never raises."""
        with suppress(StoreError):
            self._free_pages = self._database.grow(pages=FREE_PAGES, least=FREE_PAGES // 2)
        self._database.move_log()

    def set_aside(self) -> tuple[str, ...]:
        """Rename the files of the state to unused names, and return these; the next save writes everything."""
        names = self._database.set_aside()
        self._forget()
        return names

    def close(self) -> None:
        self._database.close()


@dataclass(slots=True)
class _Plan:
    """The rows that a save writes, and what the store contains then."""

    rows: Mapping[str, _StoredRow]  #: that are stored, by uid
    digest: int
    ledger_bytes: int
    next_number: int
    added_bytes: int = 0
    needs_space: bool = False  #: whether the save fails if the disk has no space for more
    limited: bool = False  #: whether the limit on the size of the ledger applies
    parts: list[tuple[str, str]] = field(default_factory=list)
    part_digests: dict[str, int] = field(default_factory=dict)
    promoted: list[str] = field(default_factory=list)  #: uids of pods that were waiting and are admitted
    deleted: list[tuple[int]] = field(default_factory=list)
    written: list[tuple[int, str, str, str]] = field(default_factory=list)  #: new rows, and new documents of others
    pods: dict[str, _StoredRow | None] = field(default_factory=dict)  #: that change, by uid; ``None``: removed

    def remove(self, uids: set[str]) -> None:
        for uid in self.rows.keys() & uids:
            self._delete(uid, self.rows[uid])

    def place(
        self, stage: Stage, pods: Mapping[str, object], changed_uids: set[str], document: Callable[[str], bytes]
    ) -> None:
        """Put the pods of a stage with *changed_uids*; pods that were added are usually the last ones."""
        last, added_uids = -1, list[str]()
        for uid in reversed(cast("dict[str, object]", pods)):  # or a layered map
            if uid not in changed_uids:
                last = self.rows[uid].number
                break
            added_uids.append(uid)
        if len(added_uids) < sum(uid in pods for uid in changed_uids):  # some are among others
            last, added_uids = -1, [*pods][::-1]
        for uid in reversed(added_uids):
            last = self._put(uid, stage, document, changed=uid in changed_uids, after_number=last)

    def _put(
        self, uid: str, stage: Stage, document: Callable[[str], bytes], *, changed: bool, after_number: int
    ) -> int:
        """Put a pod behind the row with the number *after_number*; return the number of its row."""
        row = self.rows.get(uid)
        if row is None:
            self.needs_space = True
            self.limited = True
        elif row.stage != stage or row.number <= after_number:
            if row.stage != stage and stage is Stage.ADMITTED:
                self.promoted.append(uid)
                self.limited = True  # an admitted pod takes more space than a waiting one
            self._delete(uid, row)
            row = None
        elif not changed:
            return row.number
        text = document(uid)
        number = self.next_number if row is None else row.number
        digest = row_digest(number, uid, stage, text)
        if row is None:
            self.next_number += 1
        elif digest == row.digest:
            return number
        else:
            self._forget(row)
        self.digest ^= digest
        self.ledger_bytes += len(text)
        self.added_bytes += len(text)
        self.written.append((number, uid, stage, text.decode()))
        self.pods[uid] = _StoredRow(number, stage, digest, len(text))
        return number

    def _delete(self, uid: str, row: _StoredRow) -> None:
        self._forget(row)
        self.deleted.append((row.number,))
        self.pods[uid] = None

    def _forget(self, row: _StoredRow) -> None:
        self.digest ^= row.digest
        self.ledger_bytes -= row.size


def _changed_parts(state: DurableState, last: DurableState | None) -> Iterator[tuple[str, object]]:
    """Yield the name and the document of each part that may have changed."""
    host, saved_host = state.host, None if last is None else last.host
    if saved_host is None or host.machine is not saved_host.machine:
        yield "machine", machine_fingerprint(host.machine)
    if saved_host is None or host.settings is not saved_host.settings:
        yield "settings", settings_fingerprint(host.settings)
    if saved_host is None or any(map(is_not, _resources(host.ledger), _resources(saved_host.ledger))):
        yield "residue", residue(host.ledger, providers=host.providers)
    if last is None or state.plugins is not last.plugins:
        yield "plugins", sorted(state.plugins)
    if last is None or state.overtaken is not last.overtaken:
        yield "overtaken", state.overtaken


def _resources(ledger: Ledger) -> tuple[object, ...]:
    return ledger.cpus, ledger.memory, ledger.devices, ledger.others


def _changed_pods(state: DurableState, last: DurableState) -> set[str]:
    """Return the uids of admitted pods that were added, replaced or removed, or hold something else."""
    saved_ledger, ledger = last.host.ledger, state.host.ledger
    changed_uids = changed_keys(last.pods, state.pods).union(*map(changed_keys, _by_pod(saved_ledger), _by_pod(ledger)))
    if ledger.devices.inventories is not saved_ledger.devices.inventories:
        changed_uids |= ledger.devices.held.keys()  # they may be on other NUMA nodes now
    return changed_uids


def _by_pod(ledger: Ledger) -> tuple[Mapping[str, object], ...]:
    cpus, memory = ledger.cpus, ledger.memory
    return ledger.pods, cpus.held, cpus.pod_held, memory.held, memory.pod_held, ledger.devices.held


def _changed_waiting(state: DurableState, last: DurableState) -> set[str]:
    """Return the uids of pods that wait or waited, if that changed; a new decision about a pod is not stored."""
    saved_waiting = {record.pod.uid: (id(record.pod), record.since) for record in last.waiting}
    new_waiting = {record.pod.uid: (id(record.pod), record.since) for record in state.waiting}
    order_changed = [uid for uid in saved_waiting if uid in new_waiting] != [
        uid for uid in new_waiting if uid in saved_waiting
    ]
    return {
        uid for uid in {*saved_waiting, *new_waiting} if order_changed or saved_waiting.get(uid) != new_waiting.get(uid)
    }


def _admitted_document(state: DurableState, uid: str) -> bytes:
    entry = pod_entry(state.host.ledger, uid)
    if state.admitted is None:
        return codec.encode(HeldPodDocument(entry=entry))
    record = state.admitted[uid]
    return codec.encode(HeldPodDocument(entry=entry, since=record.since, source=record.source, grants=record.grants))


def _waiting_document(record: DurablePod) -> bytes:
    document = WaitingPodDocument(pod=pod_document(record.pod), since=record.since, source=record.source)
    return codec.encode(document)


def row_digest(number: int, name: str, stage: str, document: bytes) -> int:
    """Return the digest of a row; a part of the ledger has number 0 and no stage."""
    head = f"{number}\0{stage}\0{len(name)}\0{name}\0".encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(head + document, digest_size=8).digest(), "big")
