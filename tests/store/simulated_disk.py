"""A disk in memory that loses power, stops or fails at any file operation.

It behaves like a real one at its worst. Contents survive a power cut only after ``sync_file``, and directory entries
only after ``sync``. Of later changes any part may survive: each change of an entry for itself, and of what was appended
to a file nothing, everything, a part, or zeros. After a failed sync, each change has been written or is lost for good,
and the next sync neither writes nor reports it.
"""

import errno
import os
import random
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from alignup.align.errors import FileError
from alignup.store.directory import Directory


class PowerCutError(BaseException):
    """The process is gone; no handler of errors may run on."""


@dataclass(eq=False)
class File:
    data: bytes = b""
    durable: bytes = b""
    mode: int = stat.S_IFREG | 0o600
    written: int = 0  #: the size up to which the kernel regards the contents as written, even if they are lost


@dataclass(eq=False)
class Folder:
    entries: dict[str, "File | Folder"] = field(default_factory=dict)
    durable: dict[str, "File | Folder"] = field(default_factory=dict)
    changes: list[dict[str, "File | Folder | None"]] = field(default_factory=list)  #: not synced; ``None``: removed
    mode: int = stat.S_IFDIR | 0o700

    def change(self, **names: "File | Folder | None") -> None:
        self.changes.append(names)
        _apply(self.entries, names)


class SimulatedDisk:
    """Has an empty root directory at first; ``open`` replaces ``store.directory.Directory``."""

    def __init__(self, root: Folder | None = None, *, rng: random.Random | None = None) -> None:
        self.root = root or Folder()
        self.rng = rng or random.Random(0)
        self.operations = 0
        self.cut_before: int | None = None  #: the number of the operation at which the power is cut
        self.fails: Callable[[str], bool] = lambda _: False  #: whether an operation fails now, by its name

    def open(self, path: Path) -> "SimulatedDirectory":
        return SimulatedDirectory(self, path)

    def operate(self, name: str) -> None:
        """Count an operation, which fails or is never reached."""
        if self.cut_before is not None and self.operations >= self.cut_before:
            raise PowerCutError
        self.operations += 1
        if self.fails(name):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def after_kill(self) -> "SimulatedDisk":
        """The disk as the next process finds it if only this one is killed."""
        return SimulatedDisk(_copied(self.root, lambda folder: folder.entries, lambda file: file.data))

    def after_power_cut(self, rng: random.Random) -> "SimulatedDisk":
        """One disk that a power cut may leave."""

        def entries(folder: Folder) -> dict[str, File | Folder]:
            return _entries_with(folder, [rng.random() < 0.5 for _ in folder.changes])

        return SimulatedDisk(_copied(self.root, entries, lambda file: rng.choice(_contents(file))))

    def all_after_power_cut(self) -> Iterator["SimulatedDisk"]:
        """Every disk that a power cut may leave; all files are in one of the four states at a time."""
        changed = [folder for folder in _folders(self.root) if folder.changes]
        for kept in product((False, True), repeat=sum(len(folder.changes) for folder in changed)):
            left = iter(kept)
            chosen = {id(one): _entries_with(one, [next(left) for _ in one.changes]) for one in changed}
            for choice in range(4):
                yield self._chosen(chosen, choice)

    def _chosen(self, chosen: Mapping[int, dict[str, File | Folder]], choice: int) -> "SimulatedDisk":
        return SimulatedDisk(
            _copied(
                self.root,
                lambda folder: chosen.get(id(folder), folder.durable),
                lambda file: _contents(file)[choice],
            )
        )


class SimulatedDirectory(Directory):
    def __init__(self, disk: SimulatedDisk, path: Path) -> None:
        self.path = path
        self._disk = disk
        found: File | Folder | None = disk.root
        for part in path.parts[1:]:
            found = found.entries.get(part) if isinstance(found, Folder) else None
        if not isinstance(found, Folder):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        self.folder = found
        self._open: dict[int, File] = {}

    def close(self) -> None:
        assert not self._open, "a file was not closed"

    def lock(self, *, seconds: float = 5.0) -> None:
        pass

    def status(self, name: str) -> os.stat_result | None:
        found = self.folder.entries.get(name)
        return None if found is None else _status(found)

    def read(self, name: str, *, limit: int) -> bytes | None:
        found = self.folder.entries.get(name)
        if found is None:
            return None
        if not isinstance(found, File) or len(found.data) > limit:
            raise FileError(f"cannot read {name}")
        return found.data

    def create(self, name: str) -> int:
        self._disk.operate("create")
        if name in self.folder.entries:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        number = len(self._open) + 1
        self._open[number] = File()
        self.folder.change(**{name: self._open[number]})
        return number

    def open_to_append(self, name: str) -> int:
        self._disk.operate("open")
        found = self._existing(name)
        assert isinstance(found, File)
        number = len(self._open) + 1
        self._open[number] = found
        return number

    def set_owner_and_mode(self, file: int, *, owner: tuple[int, int] | None, mode: int) -> None:
        del owner
        self._disk.operate("chmod")
        self._open[file].mode = stat.S_IFREG | mode

    def write(self, file: int, data: bytes) -> None:
        """Write in two steps, so that there is an operation at which half of it is written."""
        half = len(data) // 2
        for part in (data[:half], data[half:]):
            self._disk.operate("write")
            self._open[file].data += part

    def sync_file(self, file: int) -> None:
        self._sync_file(self._open[file], "sync file")

    def sync_data(self, file: int) -> None:
        self._sync_file(self._open[file], "sync data")

    def _sync_file(self, file: File, operation: str) -> None:
        try:
            self._disk.operate(operation)
        except OSError:
            file.durable, file.written = self._disk.rng.choice(_contents(file)), len(file.data)
            raise
        file.durable, file.written = _written_back(file), len(file.data)

    def truncate(self, file: int, size: int) -> None:
        self._disk.operate("truncate")
        self._open[file].data = self._open[file].data[:size]

    def close_file(self, file: int) -> None:
        del self._open[file]

    def link(self, old: str, new: str) -> None:
        self._disk.operate("link")
        if new in self.folder.entries:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        self.folder.change(**{new: self._existing(old)})

    def rename(self, old: str, new: str) -> None:
        self._disk.operate("rename")
        found = self._existing(old)
        if self.folder.entries.get(new) is not found:  # two names of one file stay, as in Linux
            self.folder.change(**{old: None, new: found})

    def remove(self, name: str) -> None:
        self._disk.operate("remove")
        if name in self.folder.entries:
            self.folder.change(**{name: None})

    def make_directory(self, name: str, *, mode: int) -> None:
        self._disk.operate("make directory")
        self.folder.change(**{name: Folder(mode=stat.S_IFDIR | mode)})

    def sync(self) -> None:
        folder = self.folder
        try:
            self._disk.operate("sync")
        except OSError:
            folder.durable = _entries_with(folder, [self._disk.rng.random() < 0.5 for _ in folder.changes])
            folder.changes = []
            raise
        for changes in folder.changes:
            _apply(folder.durable, changes)
        folder.changes = []

    def _existing(self, name: str) -> File | Folder:
        found = self.folder.entries.get(name)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return found


def _status(found: File | Folder) -> os.stat_result:
    size = len(found.data) if isinstance(found, File) else 0
    return os.stat_result((found.mode, id(found), 1, 1, os.geteuid(), os.getegid(), size, 0, 0, 0))


def _apply(entries: dict[str, File | Folder], changes: Mapping[str, File | Folder | None]) -> None:
    for name, what in changes.items():
        if what is None:
            entries.pop(name, None)
        else:
            entries[name] = what


def _entries_with(folder: Folder, kept: list[bool]) -> dict[str, File | Folder]:
    entries = dict(folder.durable)
    for changes, survives in zip(folder.changes, kept, strict=True):
        if survives:
            _apply(entries, changes)
    return entries


def _contents(file: File) -> tuple[bytes, bytes, bytes, bytes]:
    """What a power cut may leave of a file, which changes only at its end."""
    before, after = file.durable, _written_back(file)
    if not after.startswith(before):  # truncated
        return before, after, before, after
    added = after[len(before) :]
    return before, after, before + added[: len(added) * 2 // 3], before + bytes(len(added))


def _written_back(file: File) -> bytes:
    """What the next sync makes durable; what an earlier failed one has lost stays lost."""
    written = min(file.written, len(file.data))
    return file.durable[:written].ljust(written, b"\0") + file.data[written:]


def _folders(folder: Folder) -> Iterator[Folder]:
    yield folder
    for one in folder.entries.values():
        if isinstance(one, Folder):
            yield from _folders(one)


def _copied(
    folder: Folder, entries: Callable[[Folder], dict[str, File | Folder]], contents: Callable[[File], bytes]
) -> Folder:
    """Copy a directory tree; names of one file stay names of one file."""
    chosen = entries(folder)
    copies: dict[int, File | Folder] = {}
    for one in chosen.values():
        if isinstance(one, Folder):
            copies[id(one)] = _copied(one, entries, contents)
        elif id(one) not in copies:
            data = contents(one)
            copies[id(one)] = File(data, data, one.mode)
    found = {name: copies[id(one)] for name, one in chosen.items()}
    return Folder(found, dict(found), mode=folder.mode)
