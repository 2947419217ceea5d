"""The checkpoint and its journal: the files from which an agent restores everything it has promised.

A new checkpoint replaces the old one atomically (``store.atomic_files``), and the old one is kept as
``checkpoint.json.previous``. Changes after it are appended to a journal (``store.journal``), which the next checkpoint
makes obsolete. An unreadable checkpoint or journal is never overwritten: it is an error that says what to do. No more
is written than can be read again.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from alignup.align.errors import CheckpointError, CheckpointFullError
from alignup.store import atomic_files, checkpoint_format, journal
from alignup.store.checkpoint_format import MIGRATIONS, NAME, PREVIOUS, Checkpoint, LoadedCheckpoint, Migrations
from alignup.store.checkpoint_reader import CheckpointReader, check_owner, untrusted
from alignup.store.directory import Directory, OpenDirectory
from alignup.store.journal import JournalChange, JournalWriter

MAX_BYTES = atomic_files.MAX_BYTES  #: of a checkpoint and its journal together, for their reader and their writer

_KEPT = f".{NAME}.kept"  # the old checkpoint while a new one is written
_READ_TIMES = 5  # while another process replaces the checkpoint


class CheckpointStore:
    """The checkpoint and its journal in one directory, which is created if necessary and belongs to this user alone.

    It writes the version that the last of *migrations* leads to, and at most *limit* bytes. Not thread-safe;
    ``store.lock`` keeps other processes out.
    """

    def __init__(
        self,
        directory: Path,
        *,
        migrations: Migrations = MIGRATIONS,
        limit: int = MAX_BYTES,
        open_directory: OpenDirectory = Directory,
    ) -> None:
        self._migrations = migrations
        self._limit, self._open = limit, open_directory
        try:
            found = atomic_files.make_private_directory(directory, open_directory=open_directory)
            if not stat.S_ISDIR(found.st_mode):
                raise untrusted(directory, "it is not a directory")
            check_owner(directory, found)
            if found.st_mode & 0o077:
                directory.chmod(0o700)
        except OSError as error:
            where = directory if error.filename is None else error.filename
            raise untrusted(directory, f"cannot be created or read: {where}: {error.strerror}") from error
        self.path, self.previous = directory / NAME, directory / PREVIOUS
        self._reader = CheckpointReader(directory, migrations=migrations, limit=limit)
        self._serial = 0  #: of the last change, in the checkpoint or in the journal
        self._checkpoint_serial = 0
        self._key = ""  #: of the journal that follows the checkpoint; empty: this process has not written it
        self._size = 0  #: of the checkpoint
        self._journal: JournalWriter | None = None
        self._loaded = False  #: whether the file is known to be valid or absent
        self._use_previous = False  #: whether the previous checkpoint replaces the current one
        self._unsettled = False  #: whether a failed sync leaves it open which checkpoint survives a power failure

    def load(self, *, previous: bool = False, attempt: int = 0) -> LoadedCheckpoint | None:
        """Return the checkpoint with the changes in its journal; ``None`` if nothing was ever stored here.

        :class:`CheckpointError` if something is damaged, newer than this release, or missing although a previous
        checkpoint exists. With *previous*, return an earlier state instead: what precedes the damage of the journal, or
        the previous checkpoint. Each *attempt* returns an older one.
        """
        with self._opened() as directory:
            with suppress(OSError):  # the directory may be read-only; the next load tries again
                _finish_replacement(directory)
            for _ in range(_READ_TIMES):
                before = directory.status(NAME)
                loaded = self._earlier(directory, attempt) if previous else self._reader.current(directory)
                after = directory.status(NAME)
                if before is None or after is None or os.path.samestat(before, after):
                    break
        self._serial, self._checkpoint_serial = (loaded.document.serial, loaded.serial) if loaded else (0, 0)
        self._loaded, self._use_previous = True, previous
        self._journal, self._key = None, ""
        return loaded

    def _earlier(self, directory: Directory, attempt: int) -> LoadedCheckpoint:
        found = self._reader.earlier(directory)
        if attempt >= len(found):
            advice = "start the alignup version that wrote it"
            raise CheckpointError("there is no earlier state", where=str(self.previous), advice=advice)
        return found[attempt]

    @property
    def journal_size(self) -> int:
        """The bytes of the journal that this process has written since the last checkpoint."""
        return self._journal.size if self._journal else 0

    @property
    def checkpoint_size(self) -> int:
        return self._size

    def append(self, change: JournalChange, *, limit: int | None = None) -> int:
        """Append a change to the journal durably and return its serial number; :class:`CheckpointError` if that fails.

        Then, and before the first checkpoint of this process, only ``save`` is possible. :class:`CheckpointFullError`,
        and nothing is written, if the checkpoint and the journal have more than *limit* bytes together.
        """
        if not self._key or self._unsettled or (self._journal and not self._journal.usable):
            raise _unwritable(self.path, OSError(errno.EIO, "a checkpoint must be written first"))
        serial = self._serial + 1
        try:
            data = change.encode(serial)
        except (TypeError, ValueError, ArithmeticError, RecursionError) as error:  # of a provider from outside
            raise _unwritable(self.path, error) from error
        most, size = self._most(limit), self._size + self.journal_size + len(data) + journal.OVERHEAD
        if size > most:
            raise CheckpointFullError(str(self.path), size=size, limit=most)
        writer = self._journal or JournalWriter(self.path, self._open)
        try:
            if self._journal is None:
                self._journal = writer
                writer.create(data, key=self._key, serial=self._serial)
            else:
                writer.append(data)
        except OSError as error:
            raise _unwritable(self.path, error, unsettled=not writer.settled) from error
        self._serial = serial
        return serial

    def _most(self, limit: int | None) -> int:
        return self._limit if limit is None else min(self._limit, limit)

    def save(self, checkpoint: Checkpoint, *, limit: int | None = None) -> int:
        """Store *checkpoint* durably and return its serial number; :class:`CheckpointError` if that fails.

        :class:`CheckpointFullError`, and nothing is written, if it has more than *limit* bytes. Loads the existing
        checkpoint first, if that has not happened, to never overwrite a damaged one.
        """
        if not self._loaded:
            self.load()
        serial, key = self._serial + 1, os.urandom(8).hex()
        try:
            data = checkpoint_format.encode(checkpoint, serial, key=key, version=max(self._migrations) + 1)
        except (TypeError, ValueError, ArithmeticError, RecursionError) as error:  # of a provider from outside
            raise _unwritable(self.path, error) from error
        if len(data) > (most := self._most(limit)):
            raise CheckpointFullError(str(self.path), size=len(data), limit=most)
        try:
            with self._open(self.path.parent) as directory:
                if self._unsettled:
                    self._settle(directory)
                if self._use_previous and directory.status(NAME) is not None:
                    _set_aside(directory)
                self._replace(directory, data)
        except OSError as error:
            tail = self._journal is not None and not self._journal.settled
            raise _unwritable(self.path, error, unsettled=self._unsettled or tail) from error
        self._journal = None
        self._serial = self._checkpoint_serial = serial
        self._key, self._size, self._use_previous = key, len(data), False
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
            data = self._reader.contents(directory, self.path.with_name(name)) if self._checkpoint_serial else None
            if data is not None and checkpoint_format.serial_of(data) == self._checkpoint_serial:
                atomic_files.replace(directory, NAME, data)
                break
        else:
            if self._checkpoint_serial:
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
            raise untrusted(self.path, error.strerror or str(error)) from error
        with directory:
            yield directory


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
    while any(directory.status(f"{NAME}.aside-{number}{tail}") for tail in ("", ".journal")):
        number += 1
    aside = f"{NAME}.aside-{number}"
    directory.link(NAME, aside)
    if directory.status(journal.NAME) is not None:  # it stays: it may belong to the previous checkpoint
        directory.link(journal.NAME, f"{aside}.journal")
    directory.sync()
    directory.remove(NAME)
    return aside


def _sync_parent(path: Path, open_directory: OpenDirectory) -> None:
    with suppress(PermissionError), open_directory(path.parent) as parent:
        parent.sync()


def _unwritable(path: Path, error: Exception, *, unsettled: bool = False) -> CheckpointError:
    why = error.strerror if isinstance(error, OSError) else None
    advice = "the previous one is still valid; make sure that the disk is writable and not full, and try again"
    if unsettled:
        advice = (
            "until it can be written, a power failure may leave the change in place or not; "
            "make sure that the disk is writable and not full"
        )
    return CheckpointError(f"the checkpoint cannot be written: {why or error}", where=str(path), advice=advice)
