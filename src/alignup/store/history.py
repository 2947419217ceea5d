"""The history: past decisions, in the order in which they were added, because clocks jump.

The oldest are deleted when there are too many, or when they take too much space.
"""

import itertools
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from alignup.align.errors import ParseError, StateError
from alignup.documents import codec
from alignup.documents.decisions import DecisionDocument
from alignup.store.database import insert_rows

MAX_ROWS = 10_000
MAX_BYTES = 64 << 20  #: of all documents
_READ_SECONDS = 1.0  #: to wait for another process

DecisionRow = tuple[float, str, str, str, str]  #: time, uid, pod, outcome, document
Entry = tuple[DecisionDocument, float] | tuple[DecisionDocument, float, str]  #: see ``NewDecision``

#: Conditions on decisions, by parameter.
_CONDITIONS = {
    "pod": "(uid = :pod OR pod = :pod OR substr(pod, instr(pod, '/') + 1) = :pod)",
    "outcome": "outcome = :outcome",
    "before": "id < :before",
    "id": "id = :id",
}


class NewDecision(NamedTuple):
    """A decision for the history."""

    document: DecisionDocument
    time: float  #: seconds since 1970
    outcome: str = ""  #: for the pod, ``waiting`` if it was set aside; empty: the outcome of the decision


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDecision:
    """A decision from the history."""

    id: int  #: rises with every decision, and is never reused
    time: float  #: seconds since 1970
    outcome: str  #: admitted, rejected, or waiting: rejected for now
    document: Mapping[str, Any]  #: as ``documents.decisions`` encodes it


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionQuery:
    """A selection of decisions from the history, newest first."""

    pod: str | None = None  #: a uid, a name, or ``namespace/name``
    outcome: str | None = None
    before: int | None = None  #: only lower IDs
    limit: int = 100


ALL_DECISIONS = DecisionQuery()  #: the newest of them


@dataclass(frozen=True, slots=True)
class HistorySize:
    rows: int
    bytes: int  #: of all documents
    last: int = 0  #: the ID of the last decision that was added; 0: none

    @classmethod
    def of(cls, connection: sqlite3.Connection, last: int = 0) -> "HistorySize":
        rows, size = connection.execute("SELECT count(*), total(length(document)) FROM decisions").fetchone()
        return cls(rows, int(size), last)


def decision_rows(decisions: Iterable[Entry], *, max_bytes: int) -> tuple[list[DecisionRow], str]:
    """Return decisions with their times as rows, and the problem of the last one that cannot be stored."""
    rows, problem = list[DecisionRow](), ""
    for decision, time, outcome in itertools.starmap(NewDecision, decisions):
        try:
            pod, text = decision.pod, codec.encode(decision).decode()
            row = time, pod.uid, f"{pod.namespace}/{pod.name}", outcome or decision.outcome, text
            "".join((row[1], row[2])).encode()
        except (AttributeError, TypeError, ValueError) as error:
            problem = f"cannot write the history: {error}"
            continue
        if len(text) > max_bytes:
            problem = f"a decision of {len(text)} bytes is too large for the history"
        else:
            rows.append(row)
    return rows, problem


def insert(
    connection: sqlite3.Connection, new_rows: Sequence[DecisionRow], old_size: HistorySize, limit: HistorySize
) -> HistorySize:
    """Add decisions and delete the oldest ones beyond the *limit*; return the new size."""
    if not new_rows:
        return old_size
    last = insert_rows(connection, "decisions (time, uid, pod, outcome, document)", new_rows)
    rows, size = old_size.rows + len(new_rows), old_size.bytes + sum(len(row[-1]) for row in new_rows)
    while (rows > limit.rows or size > limit.bytes) and rows > 1:
        count = max(1, rows - limit.rows)
        oldest = connection.execute(
            "SELECT id, length(document) FROM decisions ORDER BY id LIMIT ?", (count,)
        ).fetchall()
        if len(oldest) < count or oldest[-1][0] > last - len(new_rows):  # another process deleted others
            return HistorySize.of(connection, last)
        connection.execute("DELETE FROM decisions WHERE id <= ?", (oldest[-1][0],))
        rows, size = rows - count, size - sum(length for _, length in oldest)
    return HistorySize(rows, size, last)


class History:
    """The decisions in the database at *path*, read on connections of their own: any thread may read, and none waits.

    Methods raise :class:`StateError` if the database cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def latest(self, query: DecisionQuery = ALL_DECISIONS) -> tuple[StoredDecision, ...]:
        """Return decisions, newest first."""
        conditions = {"pod": query.pod, "outcome": query.outcome, "before": _clamp(query.before)}
        return self._select(conditions, limit=max(0, query.limit))

    def get(self, id_: int) -> StoredDecision | None:
        decisions = self._select({"id": _clamp(id_)}, limit=1)
        return decisions[0] if decisions else None

    def _select(self, parameters: Mapping[str, str | int | None], *, limit: int) -> tuple[StoredDecision, ...]:
        """Return decisions; parameters that are ``None`` do not filter."""
        if not self._path.exists():
            return ()
        condition = " AND ".join(_CONDITIONS[name] for name, value in parameters.items() if value is not None) or "TRUE"
        # Only the constant conditions above are inserted into the text.
        query = f"SELECT id, time, outcome, document FROM decisions WHERE {condition} ORDER BY id DESC"  # noqa: S608
        address = f"{self._path.absolute().as_uri()}?mode=ro"
        try:
            with closing(sqlite3.connect(address, uri=True, timeout=_READ_SECONDS)) as connection:
                rows = connection.execute(query, parameters)
                return tuple(itertools.islice(filter(None, map(_stored, rows)), _clamp(limit)))
        except (sqlite3.Error, ValueError) as error:
            raise StateError(f"cannot read the history in {self._path}: {error}") from error


def _stored(row: tuple[Any, Any, Any, Any]) -> StoredDecision | None:
    """Return the decision of a row; ``None`` if it is something else, which SQLite does not prevent."""
    id_, time, outcome, text = row
    try:
        document = codec.load(text)
    except (ParseError, TypeError):
        return None
    if not isinstance(document, dict) or not isinstance(time, int | float):
        return None
    return StoredDecision(id=id_, time=time, outcome=str(outcome), document=document)


def _clamp(number: int | None) -> int | None:
    """Return the nearest number that SQLite can represent."""
    return None if number is None else max(-(1 << 63), min(number, (1 << 63) - 1))
