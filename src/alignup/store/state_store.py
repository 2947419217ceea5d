"""The state of an agent, or of the runs of a user, in its database: the ledger with its pods, and the history.

Each pod is a row with a JSON document, and so is each part of the rest. Only what changed is written, so a change costs
the same however many pods there are. A row has a digest, and the database stores the exclusive or of all digests:
changed, lost and repeated rows are detected when the state is loaded, which SQLite alone would not do.
"""

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from alignup.align.errors import ParseError, StoreError, StoreFullError, StoreProblem
from alignup.documents import codec
from alignup.documents.codec import Count, Document
from alignup.documents.ledgers import PodEntryDocument, ResidueDocument
from alignup.documents.pod_documents import PodDocument, PodGrants
from alignup.store import history
from alignup.store.database import FREE_PAGES, LOCK_SECONDS, MIN_FREE_PAGES, Database, insert_rows
from alignup.store.fingerprint import Fingerprint
from alignup.store.history import DecisionRow, History, HistorySize

MAX_LEDGER_BYTES = 48 << 20  #: of the documents of all pods, with a new one

_CHECK = "check"  #: the part with the digest of all rows
_BYTES_PER_PAGE, _PAGES_PER_CHANGE = 2_000, 1  #: what documents take at most, and what is added for each change
_REPLACE = "ON CONFLICT (name) DO UPDATE SET document = excluded.document"


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


class PodRow(NamedTuple):
    uid: str
    stage: Stage
    document: bytes  #: a ``HeldPodDocument`` or a ``WaitingPodDocument``
    last: bool = False  #: whether it comes after all other pods of its stage, else it keeps its place


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerParts:
    """What the ledger consists of besides its pods."""

    machine: Fingerprint
    settings: Fingerprint
    residue: ResidueDocument
    plugins: Sequence[str] = ()  #: resources that device plugins serve
    overtaken: Mapping[str, int] = field(default_factory=dict)  #: uids of waiting pods → how many have overtaken them


#: The types of the documents of ``LedgerParts``.
_PARTS: dict[str, Any] = {
    "machine": Fingerprint,
    "settings": Fingerprint,
    "residue": ResidueDocument,
    "plugins": list[str],
    "overtaken": dict[str, Count],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChange:
    """What to write in one transaction."""

    parts: LedgerParts
    removed: Iterable[str] = ()  #: uids of pods; those that are not stored are ignored
    pods: Iterable[PodRow] = ()  #: that are new or changed
    whole: bool = False  #: whether *pods* are all pods, in order: others are removed
    has_new_pods: bool = False  #: whether it fails if the disk has no space for more
    limited: bool = False  #: whether the limit on the size of the ledger applies
    decisions: Sequence[history.Entry] = ()  #: for the history


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredState(LedgerParts):
    pods: list[HeldPodDocument]  #: in order of admission
    waiting: list[WaitingPodDocument]  #: in order


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
        self._serial = self._next_number = self._ledger_bytes = self._digest = 0
        self._history_size = HistorySize(0, 0)
        self._free_pages = 0  #: of the database, at least

    def load(self) -> StoredState | None:
        """Return the state; ``None`` if nothing was ever stored here. No file is changed."""
        self._forget()
        try:
            state = self._database.read(self._read)
        except (ParseError, LookupError, TypeError, ValueError, RecursionError) as error:
            if isinstance(error, StoreError):
                raise
            message = f"missing {error}" if isinstance(error, KeyError) else str(error)
            raise self._database.unusable(f"its contents are invalid: {message}") from error
        self._loaded = True
        return state

    def lost_changes(self) -> str:
        """Return how many changes a damaged log may have lost; empty if it is not damaged. Call it before a save."""
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
        stored = codec.decode(check or b"{}", CheckDocument)
        if stored.digest != f"{self._digest:016x}":
            raise ParseError("the checksum does not match: a row was changed, lost or repeated")
        self._serial = stored.serial
        self._history_size = HistorySize.of(connection)
        return StoredState(
            **{name: codec.decode(documents[name], type_) for name, type_ in _PARTS.items()},
            pods=[codec.decode(text, HeldPodDocument) for text in pods[Stage.ADMITTED]],
            waiting=[codec.decode(text, WaitingPodDocument) for text in pods[Stage.WAITING]],
        )

    def save(self, change: StateChange) -> str:
        """Write *change* durably in one transaction; return why decisions are missing in the history, if they are.

        After an error nothing has changed. :class:`StoreFullError` if it is limited and the ledger would be too large.
        """
        if not self._loaded:
            self.load()
        try:
            plan = self._plan(change)
        except (TypeError, ValueError, ArithmeticError, RecursionError) as error:  # of a provider from outside
            raise self._database.unwritable(str(error)) from error
        if change.limited and plan.ledger_bytes > self._limit:
            raise StoreFullError(str(self.path), size=plan.ledger_bytes, limit=self._limit)
        rows, problem = history.decision_rows(change.decisions, max_bytes=self._history_limit.bytes)
        if change.has_new_pods or rows:
            try:
                self._reserve(plan.added_bytes + sum(len(row[-1]) for row in rows))
            except StoreError as error:
                if change.has_new_pods or error.kind is not StoreProblem.UNWRITABLE:
                    raise
                rows, problem = [], f"cannot write the history: {error}"
        self._history_size = self._database.transact(lambda connection: self._write(connection, plan, rows))
        for uid, row in plan.pods.items():
            if row is None:
                del self._pods[uid]
            else:
                self._pods[uid] = row
        self._parts |= plan.part_digests
        self._digest, self._ledger_bytes, self._next_number = plan.digest, plan.ledger_bytes, plan.next_number
        self._serial += 1
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
        needed = size // _BYTES_PER_PAGE + _PAGES_PER_CHANGE
        if self._free_pages < needed + MIN_FREE_PAGES:
            least = needed + MIN_FREE_PAGES
            self._free_pages = self._database.grow(pages=least + FREE_PAGES, least=least)
        self._free_pages -= needed

    def _plan(self, change: StateChange) -> "_Plan":
        plan = _Plan(self._digest, self._ledger_bytes, self._next_number)
        for name in _PARTS:
            document = codec.encode(getattr(change.parts, name))
            before, digest = self._parts.get(name), row_digest(0, name, "", document)
            if digest != before:
                plan.digest ^= digest ^ (before or 0)
                plan.part_digests[name] = digest
                plan.parts.append((name, document.decode()))
        pods, removed = change.pods, change.removed
        if change.whole:
            pods = tuple(pods)
            removed = self._pods.keys() - {row.uid for row in pods}
        for uid in removed:
            if (known := self._pods.get(uid)) is not None:
                plan.remove(uid, known)
        last_numbers = dict.fromkeys(Stage, -1)  # of the pods of each stage that were put before
        for uid, stage, document, last in pods:
            known, size = plan.pods.get(uid, self._pods.get(uid)), len(document)
            misplaced = known and (known.stage != stage or (change.whole and known.number < last_numbers[stage]))
            if known is not None and (last or misplaced):
                plan.remove(uid, known)
                known = None
            number = plan.next_number if known is None else known.number
            last_numbers[stage] = number
            digest = row_digest(number, uid, stage, document)
            if known is None:
                plan.inserted.append((number, uid, stage, document.decode()))
                plan.next_number += 1
                plan.digest ^= digest
                plan.ledger_bytes += size
            elif digest != known.digest:
                plan.updated.append((document.decode(), number))
                plan.digest ^= digest ^ known.digest
                plan.ledger_bytes += size - known.size
            else:
                continue
            plan.added_bytes += size
            plan.pods[uid] = _StoredRow(number, stage, digest, size)
        return plan

    def _write(self, connection: sqlite3.Connection, plan: "_Plan", rows: Sequence[DecisionRow]) -> HistorySize:
        check = codec.encode(CheckDocument(self._serial + 1, f"{plan.digest:016x}"))
        insert_rows(connection, "parts (name, document)", [*plan.parts, (_CHECK, check.decode())], _REPLACE)
        if plan.deleted:
            connection.executemany("DELETE FROM pods WHERE number = ?", plan.deleted)
        if plan.updated:
            connection.executemany("UPDATE pods SET document = ? WHERE number = ?", plan.updated)
        insert_rows(connection, "pods (number, uid, stage, document)", plan.inserted)
        return history.insert(connection, rows, self._history_size, self._history_limit)

    def prepare_for_more(self) -> None:
        """Do work that would delay the next change, while there is nothing else to do; never raises."""
        with suppress(StoreError):
            self._free_pages = self._database.grow(pages=FREE_PAGES, least=FREE_PAGES // 2)
        self._database.move_log()

    def set_aside(self) -> tuple[str, ...]:
        """Rename the files of the state to unused names, and return these; the next change must be whole."""
        names = self._database.set_aside()
        self._forget()
        return names

    def close(self) -> None:
        self._database.close()


@dataclass(slots=True)
class _Plan:
    """The rows that a change writes, and what the store contains then."""

    digest: int
    ledger_bytes: int
    next_number: int
    added_bytes: int = 0
    parts: list[tuple[str, str]] = field(default_factory=list)
    part_digests: dict[str, int] = field(default_factory=dict)
    deleted: list[tuple[int]] = field(default_factory=list)
    updated: list[tuple[str, int]] = field(default_factory=list)
    inserted: list[tuple[int, str, str, str]] = field(default_factory=list)
    pods: dict[str, _StoredRow | None] = field(default_factory=dict)  #: that change, by uid; ``None``: removed

    def remove(self, uid: str, known: _StoredRow) -> None:
        self.digest ^= known.digest
        self.ledger_bytes -= known.size
        self.deleted.append((known.number,))
        self.pods[uid] = None


def row_digest(number: int, name: str, stage: str, document: bytes) -> int:
    """Return the digest of a row; a part of the ledger has number 0 and no stage."""
    head = f"{number}\0{stage}\0{len(name)}\0{name}\0".encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(head + document, digest_size=8).digest(), "big")
