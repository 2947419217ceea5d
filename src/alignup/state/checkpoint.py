"""The checkpoint: the file from which an agent restores everything it has promised.

It is JSON with one pod per line. The first line holds nothing but the SHA-256 of the rest, so every changed bit is
detected. A new checkpoint replaces the old one atomically (``state.atomic_files``), and the old one is kept as
``checkpoint.json.previous``. An unreadable checkpoint is never overwritten: it is an error that says what to do. One
that is too large to be read again is never written.
"""

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from alignup.align.errors import CheckpointError, CheckpointFullError, FileError, ParseError
from alignup.schema import checkpoints, codec
from alignup.schema.checkpoints import CheckpointDocument, Fingerprint
from alignup.schema.codec import Document
from alignup.schema.ledgers.documents import ResidueDocument
from alignup.state import atomic_files
from alignup.state.directory import Directory, OpenDirectory

FORMAT = "alignup checkpoint"
NAME = "checkpoint.json"
PREVIOUS = f"{NAME}.previous"
MAX_BYTES = atomic_files.MAX_BYTES  #: of a checkpoint, for its reader and its writer
Migrations = Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]]  #: older version → upgrade to the next
#: Add one when a field changes its meaning or goes away.
MIGRATIONS: Migrations = {1: checkpoints.upgrade_version_1}

_KEPT = f".{NAME}.kept"  # the old checkpoint while a new one is written
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

    It writes the version that the last of *migrations* leads to, and at most *limit* bytes. Not thread-safe;
    ``state.lock`` keeps other processes out.
    """

    def __init__(
        self,
        directory: Path,
        *,
        migrations: Migrations = MIGRATIONS,
        limit: int = MAX_BYTES,
        open_directory: OpenDirectory = Directory,
    ) -> None:
        self._migrations, self._version = migrations, max(migrations) + 1
        self._limit, self._open = limit, open_directory
        try:
            found = atomic_files.make_private_directory(directory, open_directory=open_directory)
            if not stat.S_ISDIR(found.st_mode):
                raise _untrusted(directory, "it is not a directory")
            _check_owner(directory, found)
            if found.st_mode & 0o077:
                directory.chmod(0o700)
        except OSError as error:
            where = directory if error.filename is None else error.filename
            raise _untrusted(directory, f"cannot be created or read: {where}: {error.strerror}") from error
        self.path, self.previous = directory / NAME, directory / PREVIOUS
        self._serial = 0
        self._loaded = False  #: whether the file is known to be valid or absent
        self._use_previous = False  #: whether the previous checkpoint replaces the current one
        self._unsettled = False  #: whether a failed sync leaves it open which checkpoint survives a power failure

    def load(self, *, previous: bool = False) -> LoadedCheckpoint | None:
        """Return the checkpoint, or the *previous* one; ``None`` if nothing was ever stored here.

        :class:`CheckpointError` if it is damaged, newer than this release, or missing although a previous one exists.
        """
        with self._opened() as directory:
            with suppress(OSError):  # the directory may be read-only; the next load tries again
                _finish_replacement(directory)
            path = self.previous if previous else self.path
            loaded = self._read(path, directory)
            if loaded is None and previous:
                raise CheckpointError(
                    "there is no previous checkpoint", where=str(path), advice="start without --recover previous"
                )
            if loaded is None and (before := self._read(self.previous, directory)) is not None:
                raise CheckpointError(
                    f"the checkpoint is missing, but the previous one ({_count_pods(before)}) exists",
                    where=str(self.previous),
                    advice=f"start with --recover previous, or move it out of {path.parent} to start empty",
                )
        self._serial = loaded.document.serial if loaded else 0
        self._loaded, self._use_previous = True, previous
        if loaded and previous:
            note = f"using the previous checkpoint, serial {self._serial}: later changes are lost"
            return replace(loaded, notes=(*loaded.notes, note))
        return loaded

    def save(self, checkpoint: Checkpoint, *, limit: int | None = None) -> int:
        """Store *checkpoint* durably and return its serial number; :class:`CheckpointError` if that fails.

        :class:`CheckpointFullError`, and nothing is written, if it has more than *limit* bytes. Loads the existing
        checkpoint first, if that has not happened, to never overwrite a damaged one.
        """
        if not self._loaded:
            self.load()
        serial = self._serial + 1
        try:
            data = _encode(checkpoint, serial, version=self._version)
        except (TypeError, ValueError, ArithmeticError, RecursionError) as error:  # of a provider from outside
            raise _unwritable(self.path, error) from error
        most = min(self._limit, self._limit if limit is None else limit)
        if len(data) > most:
            raise CheckpointFullError(str(self.path), size=len(data), limit=most)
        try:
            with self._open(self.path.parent) as directory:
                if self._unsettled:
                    self._settle(directory)
                if self._use_previous and directory.status(NAME) is not None:
                    _set_aside(directory)
                self._replace(directory, data)
        except OSError as error:
            raise _unwritable(self.path, error, unsettled=self._unsettled) from error
        self._serial, self._use_previous = serial, False
        return serial

    def set_aside(self) -> Path:
        """Rename the checkpoint to an unused name, and return it."""
        try:
            with self._open(self.path.parent) as directory:
                return self.path.with_name(_set_aside(directory))
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def _replace(self, directory: Directory, data: bytes) -> None:
        """Replace the checkpoint durably, and keep the old one as the previous one.

        The old one gets a second name, and becomes the previous one only after the new one is in place: two different
        ones exist even if writing fails repeatedly. On an error the old one is in place again.
        """
        directory.remove(_KEPT)
        exists = directory.status(NAME) is not None
        if exists:
            directory.link(NAME, _KEPT)
        try:
            atomic_files.replace(directory, NAME, data)
        except OSError:
            with suppress(OSError):  # the next load or save tries again
                directory.remove(_KEPT)
            raise
        try:
            directory.sync()
            if not exists:  # a directory that a killed process created may not be durable itself
                _sync_parent(self.path.parent, self._open)
        except OSError:
            self._unsettled = True
            with suppress(OSError):
                self._settle(directory)
            raise
        if exists:
            with suppress(OSError):  # the new one is in place, which is what counts; the next load tries again
                directory.rename(_KEPT, PREVIOUS)

    def _settle(self, directory: Directory) -> None:
        """Put the checkpoint that was last acknowledged in place again, durably. ``OSError``: it is still open.

        It is written anew: after a failed sync, a second one may succeed although data is lost.
        """
        for name in (_KEPT, NAME):
            data = self._contents(directory, self.path.with_name(name)) if self._serial else None
            if data is not None and _serial_of(data) == self._serial:
                atomic_files.replace(directory, NAME, data)
                break
        else:
            if self._serial:
                raise FileNotFoundError(errno.ENOENT, "the last valid checkpoint is gone")
            directory.remove(NAME)
        directory.remove(_KEPT)
        directory.sync()
        self._unsettled = False

    @contextmanager
    def _opened(self) -> Iterator[Directory]:
        try:
            directory = self._open(self.path.parent)
        except OSError as error:
            raise _untrusted(self.path, error.strerror or str(error)) from error
        with directory:
            yield directory

    def _read(self, path: Path, directory: Directory) -> LoadedCheckpoint | None:
        """Return a checkpoint, ``None`` if it does not exist, or raise an error that says what to do."""
        try:
            return self._parse(self._contents(directory, path), path)
        except _DamagedError as error:
            before = None
            with suppress(CheckpointError, _DamagedError):
                if path == self.path:
                    before = self._parse(self._contents(directory, self.previous), self.previous)
            advice = f"move it out of {path.parent} to start empty: what its pods hold is then free"
            if before is None:
                advice = f"no valid previous one exists; {advice}" if path == self.path else advice
            else:
                which = f"the previous one ({_count_pods(before)})"
                advice = f"start with --recover previous to continue from {which}, or {advice}"
            raise CheckpointError(str(error), where=str(path), advice=advice) from error

    def _contents(self, directory: Directory, path: Path) -> bytes | None:
        """Return the contents of a file that only this user can write to; ``None`` if it does not exist."""
        try:
            found = directory.status(path.name)
            if found is None:
                return None
            if not stat.S_ISREG(found.st_mode):
                raise _untrusted(path, "it is not a regular file")
            _check_owner(path, found)
            return directory.read(path.name, limit=self._limit)
        except OSError as error:
            raise _untrusted(path, error.strerror or str(error)) from error
        except FileError as error:
            raise _DamagedError(str(error)) from error

    def _parse(self, data: bytes | None, path: Path) -> LoadedCheckpoint | None:
        if data is None:
            return None
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
        except (ParseError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            what = f"missing {error}" if isinstance(error, KeyError) else str(error)
            raise _DamagedError(f"the contents are invalid: {what}") from error


class _DamagedError(Exception):
    """The contents of a checkpoint are not what was written."""


class _Header(Document, frozen=True):
    format: Any
    version: int
    serial: int = 0


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


def _serial_of(data: bytes) -> int | None:
    """Return the serial number of a checkpoint that this process has written or read."""
    try:
        return codec.decode(data, _Header).serial
    except ParseError:
        return None


def _count_pods(loaded: LoadedCheckpoint) -> str:
    pods = len(loaded.document.pods)
    return f"{pods} pod{'' if pods == 1 else 's'}"


def _finish_replacement(directory: Directory) -> None:
    """Finish what a killed writer began: if the new checkpoint is in place, the old one is the previous one."""
    kept, current = directory.status(_KEPT), directory.status(NAME)
    if kept is None:
        return
    if current is not None and os.path.samestat(kept, current):
        directory.remove(_KEPT)
    else:
        directory.rename(_KEPT, PREVIOUS)


def _set_aside(directory: Directory) -> str:
    """Rename the checkpoint to an unused name, and return it; a power failure loses neither name."""
    number = 1
    while directory.status(aside := f"{NAME}.aside-{number}") is not None:
        number += 1
    directory.link(NAME, aside)
    directory.sync()
    directory.remove(NAME)
    return aside


def _sync_parent(path: Path, open_directory: OpenDirectory) -> None:
    with suppress(PermissionError), open_directory(path.parent) as parent:
        parent.sync()


def _check_owner(path: Path, found: os.stat_result) -> None:
    if found.st_uid != os.geteuid():
        raise _untrusted(path, f"it belongs to user {found.st_uid}, but this process runs as user {os.geteuid()}")
    if found.st_mode & 0o022:
        raise _untrusted(path, f"other users can write to it (mode {stat.S_IMODE(found.st_mode):o})")


def _untrusted(path: Path, what: str) -> CheckpointError:
    advice = "give the agent a directory that belongs to its user alone (mode 700)"
    return CheckpointError(what, where=str(path), advice=advice)


def _unwritable(path: Path, error: Exception, *, unsettled: bool = False) -> CheckpointError:
    why = error.strerror if isinstance(error, OSError) else None
    advice = "the previous one is still valid; make sure that the disk is writable and not full, and try again"
    if unsettled:
        advice = (
            "until it can be written, a power failure may leave the change in place or not; "
            "make sure that the disk is writable and not full"
        )
    return CheckpointError(f"the checkpoint cannot be written: {why or error}", where=str(path), advice=advice)
