"""The contents of a checkpoint: JSON with one pod per line.

The first line holds nothing but the SHA-256 of the rest, so every changed bit is detected.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alignup.align.errors import CheckpointError, ParseError
from alignup.documents import checkpoints, codec
from alignup.documents.checkpoints import CheckpointDocument, Fingerprint
from alignup.documents.codec import Document
from alignup.documents.ledgers.documents import ResidueDocument

NAME = "checkpoint.json"
PREVIOUS = f"{NAME}.previous"
FORMAT = "alignup checkpoint"
Migrations = Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]]  #: older version → upgrade to the next
#: Add one when a field changes its meaning or goes away.
MIGRATIONS: Migrations = {1: checkpoints.upgrade_version_1, 2: checkpoints.upgrade_version_2}

_HEAD, _NECK = b'{"sha256":"', b'",\n'
_DIGEST = 64  # hexadecimal digits
_START = len(_HEAD) + _DIGEST + len(_NECK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What to store. Documents of pods are already encoded, so that the caller can encode each only once."""

    machine: Fingerprint
    settings: Fingerprint
    residue: ResidueDocument
    plugins: Sequence[str] = ()
    pods: Sequence[bytes] = ()  #: each a ``HeldPodDocument``, in order of admission
    waiting: Sequence[bytes] = ()  #: each a ``WaitingPodDocument``, in order


@dataclass(frozen=True, slots=True)
class LoadedCheckpoint:
    path: Path
    serial: int  #: of the checkpoint itself; the document has that of the last change in the journal
    document: CheckpointDocument  #: with the changes in the journal
    notes: tuple[str, ...] = ()  #: sentences for the log about how it was read


class DamagedError(Exception):
    """The contents of a checkpoint are not what was written."""


class CheckpointHeader(Document, frozen=True):
    format: Any
    version: int
    serial: int = 0


def parse(data: bytes, path: Path, migrations: Migrations) -> LoadedCheckpoint:
    """Return the checkpoint in the file at *path*; ``DamagedError``, or ``CheckpointError`` for a newer version."""
    if not data.startswith(_HEAD) or data[_START - len(_NECK) : _START] != _NECK:
        raise DamagedError("not a checkpoint, or its first line is damaged" if data else "the file is empty")
    digest = hashlib.sha256(memoryview(data)[_START:]).hexdigest().encode()
    if data[len(_HEAD) : len(_HEAD) + _DIGEST] != digest:
        raise DamagedError("the checksum does not match the contents: the file was truncated or changed")
    version = max(migrations) + 1
    try:
        header = codec.decode(data, CheckpointHeader)
        if header.format != FORMAT:
            raise DamagedError(f"not a checkpoint but {header.format!r}")
        if header.version > version:
            raise CheckpointError(
                f"the checkpoint has version {header.version}, but this release reads versions up to {version}",
                where=str(path),
                advice="start the release of alignup that wrote it, or a newer one",
            )
        if header.version == version:
            return LoadedCheckpoint(path, header.serial, codec.decode(data, CheckpointDocument))
        document = codec.load(data)
        for number in range(header.version, version):
            document = migrations[number](document)
        note = f"the checkpoint has version {header.version}; the next one will have version {version}"
        return LoadedCheckpoint(path, header.serial, codec.convert(document, CheckpointDocument), (note,))
    except (ParseError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        what = f"missing {error}" if isinstance(error, KeyError) else str(error)
        raise DamagedError(f"the contents are invalid: {what}") from error


def encode(checkpoint: Checkpoint, serial: int, *, key: str, version: int) -> bytes:
    parts = {
        "format": FORMAT,
        "version": version,
        "serial": serial,
        "journal": key,
        "machine": checkpoint.machine,
        "settings": checkpoint.settings,
        "residue": checkpoint.residue,
        "plugins": checkpoint.plugins,
    }
    body = b'%s,\n"pods":[\n%s\n],\n"waiting":[\n%s\n]}\n' % (
        b",\n".join(b'"%s":%s' % (name.encode(), codec.encode(one)) for name, one in parts.items()),
        b",\n".join(checkpoint.pods),
        b",\n".join(checkpoint.waiting),
    )
    return b"".join((_HEAD, hashlib.sha256(body).hexdigest().encode(), _NECK, body))


def serial_of(data: bytes) -> int | None:
    """Return the serial number of a checkpoint that this process has written or read."""
    try:
        return codec.decode(data, CheckpointHeader).serial
    except ParseError:
        return None
