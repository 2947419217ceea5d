"""The decisions of the past, in a small database beside the checkpoint, for people who ask why.

Nothing depends on it. Whatever goes wrong here, a full disk or a damaged file, is said and never raised where pods are
admitted. A database that is damaged, or somebody else's, is moved aside and a new one begun. The oldest decisions go
when there are too many, or when they take too much room.

Order is the order in which decisions were written down, not their times: clocks jump.
"""

import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alignup.align.errors import StateError

NAME = "history.sqlite"
MAX_ROWS = 10_000  #: decisions kept unless told otherwise
MAX_BYTES = 64 << 20  #: bytes of their documents kept unless told otherwise
MAX_SET_ASIDE = 8  #: databases moved aside at most; after that somebody has to look

_OURS = 0x616C6E75  # "alnu": SQLite keeps it in the head of the file
_VERSION = 1
_PATIENCE = 0.05  # seconds to wait for somebody else who reads the file: pods are waiting

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
    PRAGMA application_id = {_OURS};
    PRAGMA user_version = {_VERSION};
    COMMIT;
"""


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """A decision that was written down."""

    id: int  #: rises with every decision, and is never used again
    time: float  #: seconds since 1970, as the clock was then
    document: Mapping[str, Any]  #: ``schema.decisions.to_document`` of it


@dataclass(frozen=True, slots=True)
class HistoryWrite:
    """What became of writing a decision down: it has an ``id``, or there was a ``problem``; ``note`` is news."""

    id: int | None
    problem: str = ""
    note: str = ""  #: that a database was moved aside, and why


class History:
    """The decisions of one host. One thread at a time may add; any may read."""

    def __init__(self, directory: Path, *, rows: int = MAX_ROWS, size: int = MAX_BYTES) -> None:
        self.path = directory / NAME
        self._most_rows, self._most_bytes = rows, size
        self._rows = self._bytes = 0
        self._database: sqlite3.Connection | None = None

    def add(self, decision: Mapping[str, Any], *, time: float) -> HistoryWrite:
        """Write down a decision, given as a document; nothing is raised."""
        note = ""
        try:
            document = json.dumps(decision, separators=(",", ":"))
            if len(document) > self._most_bytes:
                return HistoryWrite(None, problem=f"a decision of {len(document)} bytes is too large for the history")
            if self._database is None:
                note = self._open()
            return HistoryWrite(self._insert(decision, document, time=time), note=note)
        except (sqlite3.Error, OSError, KeyError, TypeError, ValueError) as error:
            self._give_up(error)
            return HistoryWrite(None, problem=f"the history cannot be written: {error}", note=note)

    def open(self) -> str:
        """Look at the database now and not with the first decision; what there is to say about it, if anything."""
        try:
            return self._open() if self._database is None else ""
        except (sqlite3.Error, OSError, StateError) as error:
            self._give_up(error)
            return f"the history cannot be opened: {error}"

    def latest(
        self, *, pod: str | None = None, outcome: str | None = None, before: int | None = None, limit: int = 100
    ) -> tuple[HistoryEntry, ...]:
        """The newest decisions first: of one pod (its uid, name or both), of one outcome, older than *before*.

        :class:`StateError` when the database cannot be read.
        """
        wanted = {
            "(uid = :pod OR pod = :pod OR substr(pod, instr(pod, '/') + 1) = :pod)": pod is not None,
            "outcome = :outcome": outcome is not None,
            "id < :before": before is not None,
        }
        where = " AND ".join(condition for condition, asked in wanted.items() if asked) or "TRUE"
        # Only the conditions above are put together; what they are about goes in as values.
        query = f"SELECT id, time, document FROM decisions WHERE {where} ORDER BY id DESC LIMIT :limit"  # noqa: S608
        values = {"pod": pod, "outcome": outcome, "before": _in_64_bits(before), "limit": _in_64_bits(max(0, limit))}
        with self._reading() as database:
            return tuple(_entry(row) for row in database.execute(query, values)) if database else ()

    def get(self, id_: int) -> HistoryEntry | None:
        """The decision of that number; ``None`` when there is none, or none any more."""
        query = "SELECT id, time, document FROM decisions WHERE id = ?"
        with self._reading() as database:
            row = database.execute(query, (_in_64_bits(id_),)).fetchone() if database else None
        return None if row is None else _entry(row)

    def close(self) -> None:
        """Let go of the database; it is opened again when need be."""
        database, self._database = self._database, None
        if database is not None:
            with suppress(sqlite3.Error):
                database.close()

    def _insert(self, decision: Mapping[str, Any], document: str, *, time: float) -> int:
        """One decision more, and as many less as are too many, in one step."""
        database = self._database
        if database is None:
            raise AssertionError("nothing is written before the database is open")
        pod = decision["pod"]
        row = (time, pod["uid"], f"{pod['namespace']}/{pod['name']}", decision["outcome"], document)
        rows, size = self._rows + 1, self._bytes + len(document)
        with database:
            database.execute("BEGIN IMMEDIATE")
            new = database.execute(
                "INSERT INTO decisions (time, uid, pod, outcome, document) VALUES (?, ?, ?, ?, ?)", row
            ).lastrowid
            while rows > self._most_rows or size > self._most_bytes:
                oldest = database.execute("SELECT id, length(document) FROM decisions ORDER BY id LIMIT 1").fetchone()
                if oldest[0] == new:  # somebody else took out all the others
                    rows, size = _counted(database)
                    break
                database.execute("DELETE FROM decisions WHERE id = ?", oldest[:1])
                rows, size = rows - 1, size - oldest[1]
        self._rows, self._bytes = rows, size
        return new or 0

    def _open(self) -> str:
        """Open the database, or begin a new one; what there is to say about that."""
        note = ""
        try:
            self._database = self._opened()
        except sqlite3.Error as error:
            if not _damaged(error):
                raise
            note = f"the history was no good ({error}) and is now {self._set_aside()}; a new one is begun"
            self._database = self._opened()
        return note

    def _opened(self) -> sqlite3.Connection:
        """A sound database of ours."""
        # SQLite would make the file readable for others, and would follow a link.
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600))
        database = sqlite3.connect(self.path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False)
        try:
            _check_ours(database)
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")  # safe with WAL; the last ones may be lost with the power
            database.execute(f"PRAGMA journal_size_limit = {self._most_bytes}")
            self._rows, self._bytes = _counted(database)
        except BaseException:
            database.close()
            raise
        return database

    def _set_aside(self) -> Path:
        """Move the database and what SQLite has beside it out of the way; where it is now."""
        for number in range(1, MAX_SET_ASIDE + 1):
            aside = self.path.with_name(f"{NAME}.aside-{number}")
            if not os.path.lexists(aside):
                self.path.rename(aside)
                for tail in ("-wal", "-shm"):
                    with suppress(FileNotFoundError):
                        self.path.with_name(NAME + tail).rename(aside.with_name(aside.name + tail))
                return aside
        raise StateError(
            f"{MAX_SET_ASIDE} damaged histories are in {self.path.parent} already; look at the disk, remove them"
        )

    def _give_up(self, error: Exception) -> None:
        """A damaged database is not used any more: the next decision finds it so, and begins a new one."""
        if isinstance(error, sqlite3.Error) and _damaged(error):
            self.close()

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection | None]:
        """A connection of one's own to read by, from any thread; ``None``: nothing was ever written."""
        if not self.path.exists():
            yield None
            return
        try:
            with closing(sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro", uri=True, timeout=1)) as database:
                yield database
        except (sqlite3.Error, ValueError) as error:
            raise StateError(f"the history {self.path} cannot be read: {error}") from error


def _check_ours(database: sqlite3.Connection) -> None:
    """Begin an empty database; refuse one that is damaged, of somebody else, or of a later version."""
    if not database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        database.executescript(_TABLES)
        return
    ours, version = (database.execute(f"PRAGMA {what}").fetchone()[0] for what in ("application_id", "user_version"))
    if ours != _OURS:
        raise sqlite3.DatabaseError("it is a database of another program")
    if version != _VERSION:
        raise sqlite3.DatabaseError(f"it is of version {version}, and this program writes version {_VERSION}")
    found = database.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise sqlite3.DatabaseError(found)


def _counted(database: sqlite3.Connection) -> tuple[int, int]:
    """How many decisions there are, and how many bytes their documents have."""
    rows, size = database.execute("SELECT count(*), total(length(document)) FROM decisions").fetchone()
    return rows, int(size)


def _damaged(error: sqlite3.Error) -> bool:
    """Whether it is the database that is no good, and not a full disk or somebody else who uses it."""
    primary = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_NOTADB) & 0xFF  # without a code it is our own verdict
    return primary in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}


def _entry(row: tuple[int, float, str]) -> HistoryEntry:
    return HistoryEntry(row[0], row[1], json.loads(row[2]))


def _in_64_bits(number: int | None) -> int | None:
    """*number*, or the nearest that SQLite can compare with."""
    return None if number is None else max(-(1 << 63), min(number, (1 << 63) - 1))
