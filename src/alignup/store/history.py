"""Past decisions, in a small SQLite database beside the checkpoint.

Nothing depends on it: a full disk or a damaged file is reported and never raised where pods are admitted. A damaged or
foreign database is set aside and recreated. The oldest decisions are deleted when there are too many or they take too
much space. Decisions are ordered by when they were added, not by their times: clocks jump.
"""

import os
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from alignup.align.errors import ParseError, StateError
from alignup.documents import codec
from alignup.documents.decisions import DecisionDocument, upgrade

NAME = "history.sqlite"
MAX_ROWS = 10_000
MAX_BYTES = 64 << 20  #: of all documents
WRITE_TIMEOUT = 0.05  #: seconds to wait for another connection: admissions are waiting
MAX_SET_ASIDE = 8  #: databases; with more of them, something is wrong with the disk

_APPLICATION_ID = 0x616C6E75  # "alnu"; SQLite stores it in the file header
_VERSION = 1

_TABLES = f"""
    BEGIN;
    CREATE TABLE decisions (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        time REAL NOT NULL,
        uid TEXT NOT NULL,
        pod TEXT NOT NULL,
        outcome TEXT NOT NULL,
        document TEXT NOT NULL
    );
    CREATE INDEX by_uid ON decisions (uid);
    CREATE INDEX by_pod ON decisions (pod);
    CREATE INDEX by_outcome ON decisions (outcome);
    PRAGMA application_id = {_APPLICATION_ID};
    PRAGMA user_version = {_VERSION};
    COMMIT;
"""

_INSERT = "INSERT INTO decisions (time, uid, pod, outcome, document) VALUES (?, ?, ?, ?, ?)"
_Row = tuple[float, str, str, str, str]  #: in the order of the statement

#: Conditions on decisions, by parameter. Release 0.1 stored the outcome "rejected" as "refused".
_CONDITIONS = {
    "pod": "(uid = :pod OR pod = :pod OR substr(pod, instr(pod, '/') + 1) = :pod)",
    "outcome": "outcome IN (:outcome, CASE :outcome WHEN 'rejected' THEN 'refused' END)",
    "before": "id < :before",
    "id": "id = :id",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDecision:
    """A decision from the history."""

    id: int  #: rises with every decision, and is never reused
    time: float  #: seconds since 1970
    document: Mapping[str, Any]  #: as ``documents.decisions`` encodes it


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionQuery:
    """A selection of decisions from the history, newest first."""

    pod: str | None = None  #: a uid, a name, or ``namespace/name``
    outcome: str | None = None
    before: int | None = None  #: only lower IDs
    limit: int = 100


@dataclass(frozen=True, slots=True)
class HistoryWrite:
    """The result of adding a decision: its ``id``, or a ``problem``."""

    id: int | None
    problem: str = ""
    note: str = ""  #: that a database was set aside, and why


class History:
    """The decisions of one host. One thread at a time may add; any thread may read."""

    def __init__(
        self, directory: Path, *, rows: int = MAX_ROWS, size: int = MAX_BYTES, timeout: float = WRITE_TIMEOUT
    ) -> None:
        self.path = directory / NAME
        self._max_rows, self._max_bytes, self._timeout = rows, size, timeout
        self._rows = self._bytes = 0
        self._database: sqlite3.Connection | None = None

    def add(self, decision: DecisionDocument, *, time: float) -> HistoryWrite:
        """Store a decision; never raises."""
        return self.add_all([(decision, time)])

    def add_all(self, decisions: Iterable[tuple[DecisionDocument, float]]) -> HistoryWrite:
        """Store decisions with their times in one transaction; return the last ID and problem. Never raises."""
        rows, problem, note = list[_Row](), "", ""
        for decision, time in decisions:
            try:
                row = _row(decision, time)
            except (AttributeError, TypeError, ValueError) as error:
                problem = f"cannot write the history: {error}"
                continue
            if len(row[-1]) > self._max_bytes:
                problem = f"a decision of {len(row[-1])} bytes is too large for the history"
            else:
                rows.append(row)
        if not rows:
            return HistoryWrite(None, problem=problem)
        try:
            database = self._database
            if database is None:
                database, note = self._open()
            return HistoryWrite(self._insert(database, rows), problem=problem, note=note)
        except (sqlite3.Error, OSError, AttributeError, TypeError, ValueError) as error:
            self._close_if_damaged(error)
            return HistoryWrite(None, problem=f"cannot write the history: {error}", note=note)

    def open(self) -> str:
        """Open the database before the first decision; return a sentence for the log if there is a problem."""
        try:
            return self._open()[1] if self._database is None else ""
        except (sqlite3.Error, OSError, StateError) as error:
            self._close_if_damaged(error)
            return f"cannot open the history: {error}"

    def latest(
        self, *, pod: str | None = None, outcome: str | None = None, before: int | None = None, limit: int = 100
    ) -> tuple[StoredDecision, ...]:
        """Return decisions, newest first: of one *pod* (uid, name or namespace/name), with an id below *before*.

        :class:`StateError` if the database cannot be read.
        """
        return self._select({"pod": pod, "outcome": outcome, "before": _clamp(before)}, limit=max(0, limit))

    def get(self, id_: int) -> StoredDecision | None:
        found = self._select({"id": _clamp(id_)}, limit=1)
        return found[0] if found else None

    def _select(self, given: Mapping[str, str | int | None], *, limit: int) -> tuple[StoredDecision, ...]:
        """Read on a connection of its own, in any thread; parameters that are ``None`` do not filter."""
        if not self.path.exists():
            return ()
        where = " AND ".join(_CONDITIONS[name] for name, value in given.items() if value is not None) or "TRUE"
        # Only the constant conditions above are inserted into the text.
        query = f"SELECT id, time, document FROM decisions WHERE {where} ORDER BY id DESC"  # noqa: S608
        try:
            with closing(sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro", uri=True, timeout=1)) as database:
                rows = database.execute(query, given)
                return tuple(islice(filter(None, map(_stored, rows)), _clamp(limit)))
        except (sqlite3.Error, ValueError) as error:
            raise StateError(f"cannot read the history {self.path}: {error}") from error

    def close(self) -> None:
        """Close the database; adding a decision opens it again."""
        if self._database is not None:
            self._database.close()
            self._database = None

    def _insert(self, database: sqlite3.Connection, new_rows: Sequence[_Row]) -> int:
        """Add decisions and delete the oldest ones beyond the limits, in one transaction; return the last ID."""
        rows, size = self._rows + len(new_rows), self._bytes + sum(len(row[-1]) for row in new_rows)
        new = None
        with database:
            database.execute("BEGIN IMMEDIATE")
            for row in new_rows:
                new = database.execute(_INSERT, row).lastrowid
            while rows > self._max_rows or size > self._max_bytes:
                oldest = database.execute("SELECT id, length(document) FROM decisions ORDER BY id LIMIT 1").fetchone()
                if oldest[0] == new:  # another process deleted others
                    rows, size = _count(database)
                    break
                database.execute("DELETE FROM decisions WHERE id = ?", oldest[:1])
                rows, size = rows - 1, size - oldest[1]
        self._rows, self._bytes = rows, size
        return new or 0

    def _open(self) -> tuple[sqlite3.Connection, str]:
        """Open or create the database; with a sentence for the log if a damaged one was set aside."""
        note = ""
        try:
            self._database = self._connect()
        except sqlite3.Error as error:
            if not _is_damage(error):
                raise
            note = f"the history is corrupt ({error}); moved to {self._set_aside()} and recreated"
            self._database = self._connect()
        return self._database, note

    def _connect(self) -> sqlite3.Connection:
        # SQLite would create the file readable for others, and would follow a symbolic link.
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600))
        database = sqlite3.connect(self.path, timeout=self._timeout, isolation_level=None, check_same_thread=False)
        try:
            _check(database)
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")  # safe with WAL; a power failure can lose the last ones
            database.execute(f"PRAGMA journal_size_limit = {self._max_bytes}")
            self._rows, self._bytes = _count(database)
        except BaseException:
            database.close()
            raise
        return database

    def _set_aside(self) -> Path:
        """Rename the database and the files SQLite keeps beside it; return the new name."""
        for number in range(1, MAX_SET_ASIDE + 1):
            aside = self.path.with_name(f"{NAME}.aside-{number}")
            if not os.path.lexists(aside):
                self.path.rename(aside)
                for tail in ("-wal", "-shm"):
                    with suppress(FileNotFoundError):
                        self.path.with_name(NAME + tail).rename(aside.with_name(aside.name + tail))
                return aside
        raise StateError(
            f"{self.path.parent} has {MAX_SET_ASIDE} damaged histories already; check the disk, and remove them"
        )

    def _close_if_damaged(self, error: Exception) -> None:
        """Close a damaged database, so that the next decision opens it, finds the damage and recreates it."""
        if isinstance(error, sqlite3.Error) and _is_damage(error):
            self.close()


def _row(decision: DecisionDocument, time: float) -> _Row:
    pod = decision.pod
    return time, pod.uid, f"{pod.namespace}/{pod.name}", decision.outcome, codec.encode(decision).decode()


def _check(database: sqlite3.Connection) -> None:
    """Initialize an empty database; raise for one that is damaged, foreign or has another version."""
    if not database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        database.executescript(_TABLES)
        return
    names = ("application_id", "user_version")
    application, version = (database.execute(f"PRAGMA {name}").fetchone()[0] for name in names)
    if application != _APPLICATION_ID:
        raise sqlite3.DatabaseError("it belongs to another program")
    if version != _VERSION:
        raise sqlite3.DatabaseError(f"it has version {version}, but this release writes version {_VERSION}")
    found = database.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise sqlite3.DatabaseError(found)


def _count(database: sqlite3.Connection) -> tuple[int, int]:
    rows, size = database.execute("SELECT count(*), total(length(document)) FROM decisions").fetchone()
    return rows, int(size)


def _is_damage(error: sqlite3.Error) -> bool:
    """Return whether the database itself is bad, as opposed to a full disk or a concurrent user."""
    primary = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_NOTADB) & 0xFF  # without a code it is from _check
    return primary in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}


def _stored(row: tuple[Any, Any, Any]) -> StoredDecision | None:
    """Return the decision of a row; ``None`` if it is something else, which SQLite does not prevent."""
    id_, time, text = row
    try:
        document = codec.load(text)
    except (ParseError, TypeError):
        return None
    if not isinstance(document, dict) or not isinstance(time, int | float):
        return None
    with suppress(ParseError):  # a decision of a later version is shown as it is
        document = upgrade(document)
    return StoredDecision(id=id_, time=time, document=document)


def _clamp(number: int | None) -> int | None:
    """Return the nearest number that SQLite can represent."""
    return None if number is None else max(-(1 << 63), min(number, (1 << 63) - 1))
