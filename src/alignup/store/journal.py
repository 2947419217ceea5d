"""The journal: what changed since the checkpoint, so that an admission appends one line and syncs it.

Every line is a record: its length, a checksum, and a JSON document. The checksum covers the key of the checkpoint that
the journal follows, and the documents have consecutive serial numbers, so no record is ever applied to another
checkpoint or twice. The first record is a header.

A process never appends to a journal that it has not created: after a start, a checkpoint is written first. So an
incomplete record at the end, which was never acknowledged, is ignored and needs no repair. Damage that valid records
follow is an error.
"""

import errno
import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from alignup.align.errors import ParseError
from alignup.documents import codec
from alignup.documents.journal import ChangeDocument, JournalHeader
from alignup.documents.ledgers.documents import ResidueDocument
from alignup.store.directory import Directory, OpenDirectory

FORMAT, VERSION = "alignup journal", 1
NAME = "checkpoint.journal"
OVERHEAD = 256  #: bytes that a record takes at most besides its document, with the header of the journal
PREVIOUS = f"{NAME}.previous"  #: the journal of the previous checkpoint, once the current one has a journal too


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalChange:
    """What to append; see :class:`ChangeDocument`. Documents of pods are already encoded."""

    residue: ResidueDocument
    plugins: Sequence[str] | None = None
    removed_pods: Sequence[str] = ()
    pods: Sequence[bytes] = ()
    removed_waiting: Sequence[str] = ()
    waiting: Sequence[bytes] = ()
    overtaken: Mapping[str, int] | None = None

    def encode(self, serial: int) -> bytes:
        """Return the document; what is empty is left out."""
        parts = [b'"serial":%d' % serial, b'"residue":%s' % codec.encode(self.residue)]
        if self.plugins is not None:
            parts.append(b'"plugins":%s' % codec.encode(self.plugins))
        values = (
            (b"removedPods", self.removed_pods),
            (b"removedWaiting", self.removed_waiting),
            (b"overtaken", self.overtaken),
        )
        encoded = ((b"pods", self.pods), (b"waiting", self.waiting))
        parts += [b'"%s":%s' % (key, codec.encode(value)) for key, value in values if value]
        parts += [b'"%s":[%s]' % (key, b",".join(value)) for key, value in encoded if value]
        return b"{%s}" % b",".join(parts)


@dataclass(frozen=True, slots=True)
class JournalContents:
    changes: tuple[ChangeDocument, ...] = ()  #: up to the first damage
    torn: bool = False  #: whether an incomplete record follows, which was never acknowledged
    damage: str = ""  #: what is wrong with the rest; empty: nothing
    version: int = VERSION  #: with another one, nothing is read


def read(data: bytes, *, key: str, serial: int) -> JournalContents | None:
    """Return the contents of the journal that follows the checkpoint with this *key* and *serial*.

    ``None``: it follows another one, or nothing was ever acknowledged.
    """
    lines = data.removesuffix(b"\n").split(b"\n")
    header = _document(lines[0], key)
    changes: list[ChangeDocument] = []
    for number, line in enumerate(lines):
        document = _document(line, key)
        if document is None:
            later = any(_document(other, key) is not None for other in lines[number + 1 :])
            if header is None and not later:
                return None
            damage = f"line {number + 1} is damaged, and valid ones follow" if later else ""
            return JournalContents(tuple(changes), torn=not later, damage=damage)
        try:
            if not number:
                version = codec.decode(document, JournalHeader).version
                if version != VERSION:
                    return JournalContents(version=version)
                continue
            change = codec.decode(document, ChangeDocument)
        except ParseError as error:
            return JournalContents(tuple(changes), damage=f"line {number + 1} is invalid: {error}")
        if change.serial != serial + number:
            damage = f"line {number + 1} has the serial number {change.serial} instead of {serial + number}"
            return JournalContents(tuple(changes), damage=damage)
        changes.append(change)
    return JournalContents(tuple(changes))


class JournalWriter:
    """Creates the journal of a checkpoint with a first record, and appends others; methods raise ``OSError``.

    After a failed sync it is not ``usable``: the kernel may have dropped what it could not write, and would not say so
    a second time. ``settled`` is whether a failed record is gone for good; if not, a power failure may leave it.
    """

    def __init__(self, checkpoint: Path, open_directory: OpenDirectory) -> None:
        self._checkpoint, self._open = checkpoint, open_directory
        self._key = ""
        self._expected: tuple[os.stat_result | None, ...] = ()  #: the checkpoint and the journal
        self.size = 0  #: of the file, without what was not acknowledged
        self.usable, self.settled = False, True

    def create(self, document: bytes, *, key: str, serial: int) -> None:
        """Create the journal of the checkpoint with this *key* and *serial*; the one that exists becomes the previous.

        That is durable before the new one exists: it belongs to the previous checkpoint.
        """
        data = record(codec.encode(JournalHeader(FORMAT, VERSION, serial)), key) + record(document, key)
        with self._open(self._checkpoint.parent) as directory:
            if directory.status(NAME) is not None:
                directory.rename(NAME, PREVIOUS)
                directory.sync()
            file = directory.create(NAME)
            try:
                directory.write(file, data)
                directory.sync_file(file)
                directory.sync()
            except BaseException:
                self.settled = False
                with suppress(OSError):
                    directory.remove(NAME)
                    directory.sync()
                    self.settled = True
                raise
            finally:
                directory.close_file(file)
            self._key, self._expected = key, self._files(directory)
        self.size, self.usable = len(data), True

    def append(self, document: bytes) -> None:
        self.usable = False
        with self._open(self._checkpoint.parent) as directory:
            if not all(map(_is_same, self._files(directory), self._expected)):
                raise FileNotFoundError(errno.ENOENT, "the checkpoint or its journal was moved or removed")
            file = directory.open_to_append(NAME)
            try:
                self._append(directory, file, record(document, self._key))
            finally:
                directory.close_file(file)
        self.usable = True

    def _append(self, directory: Directory, file: int, data: bytes) -> None:
        written = False
        try:
            directory.write(file, data)
            written = True
            directory.sync_data(file)
        except BaseException:
            self.settled = False
            with suppress(OSError):
                directory.truncate(file, self.size)
                directory.sync_file(file)
                self.settled = True
                self.usable = not written  # on a full disk, a shorter record may still fit
            raise
        self.size += len(data)

    def _files(self, directory: Directory) -> tuple[os.stat_result | None, ...]:
        return directory.status(self._checkpoint.name), directory.status(NAME)


def _is_same(one: os.stat_result | None, other: os.stat_result | None) -> bool:
    return one is not None and other is not None and os.path.samestat(one, other)


def record(document: bytes, key: str) -> bytes:
    """Return one line of a journal."""
    return b"%d %s %s\n" % (len(document), _checksum(document, key), document)


def _document(line: bytes, key: str) -> bytes | None:
    """Return the document of a valid line."""
    length, _, rest = line.partition(b" ")
    checksum, _, document = rest.partition(b" ")
    if length != b"%d" % len(document) or checksum != _checksum(document, key):
        return None
    return document


def _checksum(document: bytes, key: str) -> bytes:
    return hashlib.sha256(b"%s %s" % (key.encode("utf-8", "surrogatepass"), document)).hexdigest().encode()
