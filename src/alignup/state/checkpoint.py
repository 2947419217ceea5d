"""The checkpoint: the file from which an agent restores everything it has promised.

It is JSON with one pod per line. The first line holds nothing but the SHA-256 of the rest, so every changed bit is
detected. A new checkpoint replaces the old one atomically (``state.atomic_files``), and the old one is kept as
``checkpoint.json.previous``. An unreadable checkpoint is never overwritten: it is an error that says what to do.
"""

import hashlib
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from alignup.align.errors import CheckpointError, FileError, ParseError
from alignup.schema import checkpoints, codec
from alignup.schema.checkpoints import CheckpointDocument, Fingerprint
from alignup.schema.codec import Document
from alignup.schema.ledgers.documents import ResidueDocument
from alignup.state import atomic_files

FORMAT = "alignup checkpoint"
NAME = "checkpoint.json"
Migrations = Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]]  #: older version → upgrade to the next
#: Add one when a field changes its meaning or goes away.
MIGRATIONS: Migrations = {1: checkpoints.upgrade_version_1}

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
    finished: Sequence[bytes] = ()  #: each a ``FinishedPodDocument``


@dataclass(frozen=True, slots=True)
class LoadedCheckpoint:
    document: CheckpointDocument
    notes: tuple[str, ...] = ()  #: sentences for the log about how it was read


class CheckpointStore:
    """The checkpoint in one directory, which is created if necessary and must belong to this user alone.

    It writes the version that the last of *migrations* leads to. Not thread-safe; ``state.lock`` keeps other processes
    out.
    """

    def __init__(self, directory: Path, *, migrations: Migrations = MIGRATIONS) -> None:
        self._migrations, self._version = migrations, max(migrations) + 1
        try:
            found = atomic_files.make_private_directory(directory)
            if not stat.S_ISDIR(found.st_mode):
                raise _untrusted(directory, "it is not a directory")
            _check_owner(directory, found)
            if found.st_mode & 0o077:
                directory.chmod(0o700)
        except OSError as error:
            what = f"cannot be created or read: {error.filename}: {error.strerror}"
            raise _untrusted(directory, what) from error
        self.path = directory / NAME
        self.previous = directory / f"{NAME}.previous"
        self._replaced = directory / f".{NAME}.kept"
        self._serial = 0
        self._loaded = False  #: whether the file is known to be valid or absent
        self._use_previous = False  #: whether the previous checkpoint replaces the current one

    def load(self, *, previous: bool = False) -> LoadedCheckpoint | None:
        """Return the checkpoint, or the *previous* one; ``None`` if nothing was ever stored here.

        :class:`CheckpointError` if it is damaged, newer than this release, or missing although a previous one exists.
        """
        self._finish_replacement()
        path = self.previous if previous else self.path
        data = _contents(path)
        if data is None and previous:
            raise CheckpointError(
                "there is no previous checkpoint", where=str(path), advice="start without --recover previous"
            )
        if data is None and _contents(self.previous) is not None:
            raise CheckpointError(
                "the checkpoint is missing, but the previous one exists",
                where=str(self.previous),
                advice=f"start with --recover previous, or move it out of {path.parent} to start empty",
            )
        loaded = None if data is None else self._read(data, path)
        self._serial = loaded.document.serial if loaded else 0
        self._loaded, self._use_previous = True, previous
        if loaded and previous:
            note = f"using the previous checkpoint, serial {self._serial}: later changes are lost"
            return replace(loaded, notes=(*loaded.notes, note))
        return loaded

    def save(self, checkpoint: Checkpoint) -> int:
        """Store *checkpoint* durably and return its serial number; :class:`CheckpointError` if that fails.

        Loads the existing checkpoint first, if that has not happened, to never overwrite a damaged one.
        """
        if not self._loaded:
            self.load()
        serial = self._serial + 1
        try:
            data = _encode(checkpoint, serial, version=self._version)
        except (TypeError, ValueError) as error:  # a provider from outside may store any value
            raise _unwritable(self.path, error) from error
        if self._use_previous and os.path.lexists(self.path):
            self.set_aside()
        try:
            # The old one gets a second name, and becomes the previous one only after the new one is in place: two
            # different ones exist even if writing fails repeatedly.
            self._replaced.unlink(missing_ok=True)
            with suppress(FileNotFoundError):
                os.link(self.path, self._replaced, follow_symlinks=False)
            atomic_files.write(self.path, data)
        except (OSError, FileError) as error:
            self._finish_replacement()
            raise _unwritable(self.path, error) from error
        with suppress(OSError):  # the new one is in place, which is what counts; the next load tries again
            self._replaced.rename(self.previous)
        self._serial, self._use_previous = serial, False
        return serial

    def set_aside(self) -> Path:
        """Rename the checkpoint to an unused name, and return it."""
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

    def _finish_replacement(self) -> None:
        """Finish what a killed writer began: if the new checkpoint is in place, the old one is the previous one."""
        with suppress(OSError):  # the directory may be read-only; the next load tries again
            if self.path.exists() and self._replaced.samefile(self.path):
                self._replaced.unlink()
            else:
                self._replaced.rename(self.previous)

    def _read(self, data: bytes, path: Path) -> LoadedCheckpoint:
        """Parse a checkpoint, or raise an error that says what to do."""
        try:
            return self._parse(data, path)
        except _DamagedError as error:
            before = None
            with suppress(CheckpointError, _DamagedError):
                if path == self.path and (older := _contents(self.previous)) is not None:
                    before = self._parse(older, self.previous)
            advice = f"move it out of {path.parent} to start empty: what its pods hold is then free"
            if before is None:
                advice = f"no valid previous one exists; {advice}"
            else:
                pods = len(before.document.pods)
                which = f"the previous one ({pods} pod{'' if pods == 1 else 's'})"
                advice = f"start with --recover previous to continue from {which}, or {advice}"
            raise CheckpointError(str(error), where=str(path), advice=advice) from error

    def _parse(self, data: bytes, path: Path) -> LoadedCheckpoint:
        if not data.startswith(_HEAD) or data[_START - len(_NECK) : _START] != _NECK:
            raise _DamagedError("not a checkpoint, or its first line is damaged" if data else "the file is empty")
        digest = hashlib.sha256(memoryview(data)[_START:]).hexdigest().encode()
        if data[len(_HEAD) : len(_HEAD) + _DIGEST] != digest:
            raise _DamagedError("the checksum does not match the contents: the file was truncated or changed")
        version = self._version
        try:
            header = codec.decode(data, _Header)
            if header.format != FORMAT:
                raise _DamagedError(f"not a checkpoint but {header.format!r}")
            if header.version > version:
                raise CheckpointError(
                    f"the checkpoint has version {header.version}, but this release reads versions up to {version}",
                    where=str(path),
                    advice="start the release of alignup that wrote it, or a newer one",
                )
            if header.version == version:
                return LoadedCheckpoint(codec.decode(data, CheckpointDocument))
            document = codec.load(data)
            for number in range(header.version, version):
                document = self._migrations[number](document)
            note = f"the checkpoint has version {header.version}; the next one will have version {version}"
            return LoadedCheckpoint(codec.convert(document, CheckpointDocument), (note,))
        except (ParseError, KeyError, TypeError, AttributeError) as error:
            what = f"missing {error}" if isinstance(error, KeyError) else str(error)
            raise _DamagedError(f"the contents are invalid: {what}") from error


class _DamagedError(Exception):
    """The contents of a checkpoint are not what was written."""


class _Header(Document, frozen=True):
    format: Any
    version: int


def _encode(checkpoint: Checkpoint, serial: int, *, version: int) -> bytes:
    parts = {
        "format": FORMAT,
        "version": version,
        "serial": serial,
        "machine": checkpoint.machine,
        "settings": checkpoint.settings,
        "residue": checkpoint.residue,
        "plugins": checkpoint.plugins,
    }
    body = b'%s,\n"pods":[\n%s\n],\n"waiting":[\n%s\n],\n"finished":[\n%s\n]}\n' % (
        b",\n".join(b'"%s":%s' % (name.encode(), codec.encode(one)) for name, one in parts.items()),
        b",\n".join(checkpoint.pods),
        b",\n".join(checkpoint.waiting),
        b",\n".join(checkpoint.finished),
    )
    return b"".join((_HEAD, hashlib.sha256(body).hexdigest().encode(), _NECK, body))


def _contents(path: Path) -> bytes | None:
    """Return the contents of a file that only this user can write to; ``None`` if it does not exist."""
    try:
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode):
            raise _untrusted(path, "it is not a regular file")
        _check_owner(path, found)
        return atomic_files.read(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _untrusted(path, error.strerror or str(error)) from error
    except FileError as error:
        raise _untrusted(path, str(error)) from error


def _check_owner(path: Path, found: os.stat_result) -> None:
    if found.st_uid != os.geteuid():
        raise _untrusted(path, f"it belongs to user {found.st_uid}, but this process runs as user {os.geteuid()}")
    if found.st_mode & 0o022:
        raise _untrusted(path, f"other users can write to it (mode {stat.S_IMODE(found.st_mode):o})")


def _untrusted(path: Path, what: str) -> CheckpointError:
    advice = "give the agent a directory that belongs to its user alone (mode 700)"
    return CheckpointError(what, where=str(path), advice=advice)


def _unwritable(path: Path, error: Exception) -> CheckpointError:
    why = error.strerror if isinstance(error, OSError) else None
    return CheckpointError(
        f"the checkpoint cannot be written: {why or error}",
        where=str(path),
        advice="the previous one is still valid; make sure that the disk is writable and not full, and try again",
    )
