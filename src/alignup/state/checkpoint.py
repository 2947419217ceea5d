"""The checkpoint: one file from which everything an agent has promised can be had again after a crash.

It is JSON that people can read, a pod a line. The first line has nothing but the SHA-256 of all the rest, version
included, so any bit that changed is noticed. A new checkpoint takes the place of the old one in one step, when it has
reached the disk (``state.atomic_files``), and the old one stays beside it as ``checkpoint.json.previous``.

A checkpoint that cannot be read is never written over: it is refused with what to do, and moved aside when somebody
has decided to go on without it.
"""

import hashlib
import json
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from alignup.align.errors import CheckpointError, FileError
from alignup.state import atomic_files
from alignup.state.fingerprint import Fingerprint

FORMAT = "alignup checkpoint"
NAME = "checkpoint.json"

Migration = Callable[[dict[str, Any]], dict[str, Any]]

_HEAD, _NECK = b'{"sha256":"', b'",\n'
_DIGEST = 64  # hexadecimal digits
_START = len(_HEAD) + _DIGEST + len(_NECK)


@dataclass(frozen=True, slots=True)
class CheckpointSchema:
    """The version of checkpoints written, and how older ones become newer: version → a step to the next."""

    version: int
    steps: Mapping[int, Migration] = field(default_factory=dict)


#: Raise the version when a field changes its meaning or goes away, and add the step from the one before.
SCHEMA = CheckpointSchema(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What is to be stored. Pods and waiting ones are encoded (:func:`encode_fragment`), so that each is encoded once."""

    machine: Fingerprint
    settings: Fingerprint
    crumbs: Mapping[str, Any]  #: ``schema.ledgers.crumbs``
    pods: Sequence[bytes] = ()  #: ``schema.ledgers.pod_document`` of each, in the order they came; more may be in it
    waiting: Sequence[bytes] = ()  #: who waits to be admitted, in order; theirs to say how
    extra: Mapping[str, Any] = field(default_factory=dict)  #: whatever else is to be found again


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedCheckpoint:
    """What was stored."""

    serial: int  #: rises by one with each checkpoint
    machine: Fingerprint  #: what it was written on
    settings: Fingerprint
    document: Mapping[str, Any]  #: for ``schema.ledgers.from_document``; its ``pods`` as they were given
    waiting: tuple[Any, ...]
    extra: Mapping[str, Any]
    notes: tuple[str, ...] = ()  #: what people should know about how this was read, a sentence each


def encode_fragment(document: Mapping[str, Any]) -> bytes:
    """A document as one line of JSON."""
    return json.dumps(document, separators=(",", ":")).encode("ascii")


class CheckpointStore:
    """The checkpoint in one directory, which is made if need be and must belong to this user alone.

    For one thread of one process: see ``state.lock``.
    """

    def __init__(self, directory: Path, *, schema: CheckpointSchema = SCHEMA) -> None:
        _prepare(directory)
        self.path = directory / NAME
        self.previous = directory / f"{NAME}.previous"
        self._kept = directory / f".{NAME}.kept"
        self._schema = schema
        self._serial = 0
        self._read = False  #: whether the file there is known to be sound, or to be absent
        self._back = False  #: whether the one before it is to count, and not the one there

    def load(self, *, previous: bool = False) -> LoadedCheckpoint | None:
        """The checkpoint, or with *previous* the one before it; ``None`` when nothing was ever stored here.

        :class:`CheckpointError` when it is damaged, newer than this program, or not where it should be.
        """
        self._settle()
        path = self.previous if previous else self.path
        data = _contents(path)
        if data is None:
            if previous or _contents(self.previous) is not None:
                raise self._absent(path)
            loaded = None
        else:
            loaded = self._parsed(data, path)
        self._serial = loaded.serial if loaded else 0
        self._read, self._back = True, previous
        if loaded and previous:
            note = f"went back to the checkpoint before the last, number {loaded.serial}: what came after it is lost"
            return replace(loaded, notes=(*loaded.notes, note))
        return loaded

    def save(self, checkpoint: Checkpoint) -> int:
        """Store *checkpoint* for good and give its number; :class:`CheckpointError` when it cannot be stored.

        What is there already is read first if nobody has yet, and never written over when it is no good.
        """
        if not self._read:
            self.load()
        serial = self._serial + 1
        try:
            data = _encoded(checkpoint, serial, version=self._schema.version)
        except (TypeError, ValueError) as error:  # a provider from outside may keep what it likes
            raise _unwritable(self.path, error) from error
        if self._back and os.path.lexists(self.path):
            self.set_aside()
        try:
            self._keep()
            atomic_files.write(self.path, data)
        except (OSError, FileError) as error:
            self._settle()
            raise _unwritable(self.path, error) from error
        with suppress(OSError):  # the new one is there, which is what counts; its next reader tries again
            self._kept.rename(self.previous)
        self._serial, self._back = serial, False
        return serial

    def set_aside(self) -> Path:
        """Move the checkpoint out of the way, good or bad, under a name nobody has; where it is now."""
        number = 1
        while True:
            aside = self.path.with_name(f"{NAME}.aside-{number}")
            try:
                os.link(self.path, aside, follow_symlinks=False)
                self.path.unlink()
            except FileExistsError:
                number += 1
            except OSError as error:
                raise _unwritable(self.path, error) from error
            else:
                return aside

    def _keep(self) -> None:
        """A second name for the checkpoint that is about to be replaced.

        It becomes the previous one only when the new one is in place, so that there are two different ones even if
        writing fails time and again.
        """
        self._kept.unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            os.link(self.path, self._kept, follow_symlinks=False)

    def _settle(self) -> None:
        """Finish what a writer could not: if it had come as far as the new one, the old one is the previous one."""
        # What cannot be finished now, in a directory that may only be read, can wait.
        with suppress(OSError):
            if self.path.exists() and self._kept.samefile(self.path):
                self._kept.unlink()
            else:
                self._kept.rename(self.previous)

    def _parsed(self, data: bytes, path: Path) -> LoadedCheckpoint:
        try:
            return _parsed(data, path, schema=self._schema)
        except _DamagedError as error:
            raise CheckpointError(str(error), where=str(path), advice=self._advice(path)) from error

    def _advice(self, path: Path) -> str:
        """What to do about a damaged checkpoint depends on whether the one before it is good."""
        begin = f"move it out of {path.parent} to begin with nothing: what its pods hold is then nobody's"
        if path == self.path and (before := self._before()):
            count = len(before.document["pods"])
            pods = f"{count} pod" if count == 1 else f"{count} pods"
            return f"start with --recover previous to go on from the one before it ({pods}), or {begin}"
        return f"there is no good one before it; {begin}"

    def _before(self) -> LoadedCheckpoint | None:
        """The one before, if it is good."""
        try:
            data = _contents(self.previous)
            return None if data is None else _parsed(data, self.previous, schema=self._schema)
        except (CheckpointError, _DamagedError):
            return None

    def _absent(self, path: Path) -> CheckpointError:
        if path == self.previous:
            return CheckpointError(
                "there is no checkpoint before the last", where=str(path), advice="start without --recover previous"
            )
        return CheckpointError(
            "there is no checkpoint, but the one before it is there",
            where=str(self.previous),
            advice=f"start with --recover previous, or move it out of {path.parent} as well to begin with nothing",
        )


class _DamagedError(Exception):
    """The contents of a checkpoint are not what was written."""


def _encoded(checkpoint: Checkpoint, serial: int, *, version: int) -> bytes:
    head = {"format": FORMAT, "version": version, "serial": serial}
    parts = {
        "machine": checkpoint.machine.to_document(),
        "settings": checkpoint.settings.to_document(),
        "crumbs": checkpoint.crumbs,
        "extra": checkpoint.extra,
    }
    lines = [
        encode_fragment(head)[1:-1],
        *(b'"%s":%s' % (name.encode(), encode_fragment(part)) for name, part in parts.items()),
    ]
    body = b'%s,\n"pods":[\n%s\n],\n"waiting":[\n%s\n]}\n' % (
        b",\n".join(lines),
        b",\n".join(checkpoint.pods),
        b",\n".join(checkpoint.waiting),
    )
    return b"".join((_HEAD, hashlib.sha256(body).hexdigest().encode(), _NECK, body))


def _parsed(data: bytes, path: Path, *, schema: CheckpointSchema) -> LoadedCheckpoint:
    """What *data* says, if it is what was once written; brought to the present version."""
    if not data.startswith(_HEAD) or data[_START - len(_NECK) : _START] != _NECK:
        raise _DamagedError("this is no checkpoint, or its first line is damaged" if data else "the file is empty")
    digest = hashlib.sha256(memoryview(data)[_START:]).hexdigest().encode()
    if data[len(_HEAD) : len(_HEAD) + _DIGEST] != digest:
        raise _DamagedError("the checksum is not that of the contents: it was cut short or changed")
    try:
        document = json.loads(data)
        version = document["version"]
        if document["format"] != FORMAT or type(version) is not int:
            raise _DamagedError(f"this is no checkpoint but {document['format']!r}")
        if version > schema.version:
            raise _newer(path, version, schema)
        return _read(_brought_up(document, version, schema), version, schema)
    except CheckpointError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _DamagedError(f"the contents make no sense: {type(error).__name__}: {error}") from error


def _brought_up(document: dict[str, Any], version: int, schema: CheckpointSchema) -> dict[str, Any]:
    """*document* in the present version, a step at a time."""
    for number in range(version, schema.version):
        document = schema.steps[number](document)
    return document


def _read(document: dict[str, Any], version: int, schema: CheckpointSchema) -> LoadedCheckpoint:
    older = f"the checkpoint was of version {version}; the next one will be of version {schema.version}"
    document["pods"], document["crumbs"] = list(document["pods"]), dict(document["crumbs"])
    return LoadedCheckpoint(
        serial=int(document["serial"]),
        machine=Fingerprint.from_document(document["machine"]),
        settings=Fingerprint.from_document(document["settings"]),
        document=document,
        waiting=tuple(document["waiting"]),
        extra=dict(document["extra"]),
        notes=(older,) if version < schema.version else (),
    )


def _contents(path: Path) -> bytes | None:
    """What is in a file that is ours and nobody else can write to; ``None`` when there is none."""
    try:
        known = path.lstat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error
    if not stat.S_ISREG(known.st_mode):
        raise _unreadable(path, "it is no regular file")
    _check_owner(path, known)
    try:
        return atomic_files.read(path)
    except FileError as error:
        raise _unreadable(path, str(error)) from error


def _prepare(directory: Path) -> None:
    """Make the directory, or see that the one there is ours alone."""
    try:
        known = atomic_files.make_private_directory(directory)
        if not stat.S_ISDIR(known.st_mode):
            raise _unreadable(directory, "it is no directory, or a link to one")
        _check_owner(directory, known)
        if known.st_mode & 0o077:
            directory.chmod(0o700)
    except OSError as error:
        raise _unreadable(directory, f"it cannot be made or looked at: {error.filename}: {error.strerror}") from error


def _check_owner(path: Path, known: os.stat_result) -> None:
    if known.st_uid != os.geteuid():
        raise _unreadable(path, f"it belongs to user {known.st_uid}, and this is user {os.geteuid()}")
    if known.st_mode & 0o022:
        raise _unreadable(path, f"others may write to it (mode {stat.S_IMODE(known.st_mode):o})")


def _unreadable(path: Path, what: str) -> CheckpointError:
    return CheckpointError(
        what, where=str(path), advice="give the agent a directory that belongs to its user alone (mode 700)"
    )


def _unwritable(path: Path, error: Exception) -> CheckpointError:
    why = error.strerror if isinstance(error, OSError) else None
    return CheckpointError(
        f"the checkpoint cannot be written: {why or error}",
        where=str(path),
        advice="the one before it still counts; see that the disk is not full and may be written to, and try again",
    )


def _newer(path: Path, version: int, schema: CheckpointSchema) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint is of version {version}, and this program knows versions up to {schema.version}",
        where=str(path),
        advice="start the alignup that wrote it, or a newer one; this one would not understand all of it",
    )
