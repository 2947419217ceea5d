"""The results of a sweep in one CSV file, to which every finished task appends its row at once.

A row is one write and reaches the disk before the next, so an interruption can tear only the last row, which is then
removed. A sweep that runs again skips the tasks that have a row. A complete file is sorted in the order of the tasks,
so it does not depend on which task finished first.
"""

import csv
import io
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from alignup.align.errors import TraceError
from alignup.simulate.sweeps.tasks import COLUMNS, KEYS, Row


class ResultsFile:
    """``TraceError`` if the file cannot be used; ``OSError`` if it cannot be written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[tuple[str, ...], Row] = {row_key(row): row for row in self._read()}

    def append(self, row: Row) -> None:
        text = _lines([row])
        if not self.rows and not (self.path.exists() and self.path.stat().st_size):
            text = _header() + text
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            data = memoryview(text.encode())
            while data:
                data = data[os.write(descriptor, data) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self.rows[row_key(row)] = row

    def sort(self, keys: Iterable[tuple[str, ...]]) -> None:
        """Write the rows in the order of *keys*, which have all of them."""
        beside = self.path.with_name(f"{self.path.name}.sorted")
        beside.write_text(_header() + _lines([self.rows[key] for key in keys]), encoding="utf-8")
        beside.replace(self.path)

    def _read(self) -> Iterator[Row]:
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return
        except (OSError, UnicodeDecodeError) as error:
            raise TraceError(f"cannot be read: {error}", file=str(self.path)) from error
        whole = text[: text.rfind("\n") + 1]
        if len(whole) < len(text):  # the last write was interrupted
            os.truncate(self.path, len(whole.encode()))
        reader = csv.DictReader(io.StringIO(whole, newline=""))
        if whole and tuple(reader.fieldnames or ()) != COLUMNS:
            raise TraceError("not the results of a sweep: it has other columns", file=str(self.path), line=1)
        yield from reader


def row_key(row: Row) -> tuple[str, ...]:
    return tuple(row[name] for name in KEYS)


def _header() -> str:
    return ",".join(COLUMNS) + "\n"


def _lines(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    csv.DictWriter(text, COLUMNS, lineterminator="\n").writerows(
        {name: " ".join(value.split("\n")) for name, value in row.items()} for row in rows
    )
    return text.getvalue()
