"""Change the contents of a checkpoint, and give it a valid checksum."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def contents(path: Path) -> dict[str, Any]:
    """The document without its checksum."""
    document: dict[str, Any] = json.loads(b"{" + path.read_bytes().partition(b"\n")[2])
    return document


def with_checksum(body: bytes) -> bytes:
    """A checkpoint; *body* is everything after its first line."""
    return b'{"sha256":"%s",\n%s' % (hashlib.sha256(body).hexdigest().encode(), body)


def rewrite(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    document = contents(path)
    change(document)
    path.write_bytes(with_checksum(json.dumps(document).encode()[1:]))
