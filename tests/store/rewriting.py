"""Change the contents of a database, and give it a valid checksum."""

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from alignup.store.database import NAME
from alignup.store.state_store import row_digest

#: The parts by name, and the rows of pods: ``number``, ``uid``, ``stage`` and ``document``.
Contents = dict[str, Any]


@contextmanager
def opened(directory: Path) -> Iterator[sqlite3.Connection]:
    """Open the database, and commit at the end."""
    with closing(sqlite3.connect(directory / NAME)) as connection, connection:
        yield connection


def contents(directory: Path) -> Contents:
    """Return the documents as JSON values."""
    with opened(directory) as connection:
        parts = {name: json.loads(text) for name, text in connection.execute("SELECT name, document FROM parts")}
        rows = connection.execute("SELECT number, uid, stage, document FROM pods ORDER BY number").fetchall()
    pods = [
        {"number": number, "uid": uid, "stage": stage, "document": json.loads(text)}
        for number, uid, stage, text in rows
    ]
    return {"parts": parts, "pods": pods}


def rewrite(directory: Path, change: Callable[[Contents], object]) -> None:
    everything = contents(directory)
    change(everything)
    replace_contents(directory, everything)


def replace_contents(directory: Path, everything: Contents) -> None:
    """Write *everything*; documents that are not JSON values are written as they are."""
    digest = 0
    with opened(directory) as connection:
        connection.execute("DELETE FROM parts")
        connection.execute("DELETE FROM pods")
        for name, document in everything["parts"].items():
            if name != "check":
                text = as_text(document)
                digest ^= row_digest(0, name, "", text.encode())
                connection.execute("INSERT INTO parts VALUES (?, ?)", (name, text))
        for pod in everything["pods"]:
            text = as_text(pod["document"])
            digest ^= row_digest(pod["number"], pod["uid"], pod["stage"], text.encode())
            connection.execute("INSERT INTO pods VALUES (?, ?, ?, ?)", (pod["number"], pod["uid"], pod["stage"], text))
        check = {"serial": everything["parts"]["check"]["serial"], "digest": f"{digest:016x}"}
        connection.execute("INSERT INTO parts VALUES ('check', ?)", (json.dumps(check),))


def as_text(document: Any) -> str:
    return document.decode() if isinstance(document, bytes) else json.dumps(document)
