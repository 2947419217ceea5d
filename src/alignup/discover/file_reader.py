"""Files of one system, live or recorded, read so that nothing in them can hurt.

A :class:`FileReader` answers questions about ``/sys`` and ``/proc`` under any root: the running system, a directory or an
archive. What is not there is ``None``; what is there but cannot be read or understood is ``None`` and a sentence in
``gaps``, so that nobody takes silence for zero. No question blocks, follows links out of the root, or reads without
end. Paths are relative to the root and written with slashes.
"""

import errno
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from alignup.align import bits
from alignup.align.bits import CpuSet
from alignup.align.errors import ParseError

#: The most one file may hold: a list of all CPUs takes 40 kB where there are 8192, ``/proc/cpuinfo`` some 16 MB.
MAX_BYTES = 1 << 18
MAX_PROC_BYTES = 64 << 20
#: CPUs and NUMA nodes are numbered below this; no kernel runs a tenth as many.
MAX_NUMBER = 1 << 16
#: The most entries one directory may have.
MAX_NAMES = 1 << 17
#: Sentences about single files; more of them are only counted.
MAX_GAPS = 20

_MAX_LINKS = 40  # as many as the kernel follows
_NUMBER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_MASK = re.compile(r"[0-9a-f]{1,8}(,[0-9a-f]{1,8})*", re.ASCII | re.IGNORECASE)
_ABSENT = {errno.ENOENT, errno.ENOTDIR}


class FileSource(Protocol):
    """Where a tree keeps its files; every question about what is not there raises ``OSError``."""

    def read(self, path: str) -> bytes:
        """What the file at *path* holds; ``OSError`` when that is more than a file may."""

    def names(self, path: str) -> list[str]:
        """The entries of the directory at *path*."""

    def link(self, path: str) -> str | None:
        """Where the link at *path* leads; ``None`` when it is none."""


@dataclass(frozen=True, slots=True)
class DirectoryFiles:
    """The files under a directory, such as ``/``."""

    root: str

    def read(self, path: str) -> bytes:
        """What the file holds; only plain files, so that no pipe or terminal is ever waited for."""
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY
        opened = os.open(f"{self.root}/{path}", flags)
        try:
            if not stat.S_ISREG(os.fstat(opened).st_mode):
                raise OSError(errno.EINVAL, "not a plain file")
            return b"".join(_chunks(opened, _limit(path)))
        finally:
            os.close(opened)

    def names(self, path: str) -> list[str]:
        """The entries of the directory, in no order."""
        with os.scandir(f"{self.root}/{path}") as entries:
            found = [entry.name for entry, _ in zip(entries, range(MAX_NAMES + 1), strict=False)]
        if len(found) > MAX_NAMES:
            raise OSError(errno.EFBIG, f"more than {MAX_NAMES} entries")
        return found

    def link(self, path: str) -> str | None:
        """Where the link leads."""
        try:
            return os.readlink(f"{self.root}/{path}")  # noqa: PTH115 - asked thousands of times; a Path costs more
        except OSError as error:
            if error.errno == errno.EINVAL:
                return None
            raise


@dataclass(frozen=True, slots=True)
class ArchiveFiles:
    """Files held in memory: contents by path, links by path, directories by path."""

    contents: Mapping[str, bytes]
    links: Mapping[str, str]
    directories: Mapping[str, list[str]]

    @classmethod
    def of(cls, contents: Mapping[str, bytes], links: Mapping[str, str]) -> "ArchiveFiles":
        """Files and links, with the directories they imply; a path that ends in ``/`` is a directory of its own."""
        directories: dict[str, dict[str, None]] = {}
        for path in (*contents, *links):
            inside = path.rstrip("/")
            if path.endswith("/"):
                directories.setdefault(inside, {})
            while inside:
                inside, _, name = inside.rpartition("/")
                known = directories.setdefault(inside, {})
                if name in known:
                    break
                known[name] = None
        files = {path: held for path, held in contents.items() if not path.endswith("/")}
        return cls(files, links, {path: list(names) for path, names in directories.items()})

    def read(self, path: str) -> bytes:
        """What the file holds."""
        if path not in self.contents:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        if len(self.contents[path]) > _limit(path):
            raise _too_long(_limit(path))
        return self.contents[path]

    def names(self, path: str) -> list[str]:
        """The entries of the directory, in no order."""
        if path not in self.directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        return self.directories[path]

    def link(self, path: str) -> str | None:
        """Where the link leads."""
        if path in self.links:
            return self.links[path]
        if path in self.contents or path in self.directories:
            return None
        raise FileNotFoundError(errno.ENOENT, "no such file or directory", path)


class FileReader:
    """Questions to the files of one system, and what they left unanswered."""

    def __init__(self, files: FileSource) -> None:
        self._files = files
        self._read: dict[str, str | None] = {}
        self._gaps: dict[str, None] = {}
        self._failed = 0

    @property
    def gaps(self) -> tuple[str, ...]:
        """What could not be learnt, one sentence each, in the order it was asked for."""
        more = self._failed - MAX_GAPS
        return (*self._gaps, *([f"{more} more files cannot be read or understood"] if more > 0 else []))

    def gap(self, sentence: str) -> None:
        """Note that something is not known."""
        self._gaps.setdefault(sentence)

    def add_unusable(self, path: str, what: str) -> None:
        """Note that a file is there, but of no use; of very many such files only the first are named."""
        sentence = f"{path} {what}"
        if sentence in self._gaps:
            return
        self._failed += 1
        if self._failed <= MAX_GAPS:
            self.gap(sentence)

    def read(self, path: str) -> str | None:
        """The file as it stands, one character a byte; ``None`` when there is none that can be read."""
        if path not in self._read:
            self._read[path] = self._contents(path)
        return self._read[path]

    def text(self, path: str) -> str | None:
        """The file without blanks around it, and without the NULs some kernels put there."""
        read = self.read(path)
        return None if read is None else read.strip("\0 \t\r\n")

    def number(self, path: str) -> int | None:
        """The number in the file."""
        text = self.text(path)
        if text is None:
            return None
        if not _NUMBER.fullmatch(text):
            self.add_unusable(path, f"is no number: {_shown(text)}")
            return None
        return int(text)

    def read_cpu_list(self, path: str) -> CpuSet | None:
        """The set in a file of the form ``0-3,8``; an empty file is the empty set."""
        text = self.text(path)
        if text is None:
            return None
        try:
            return bits.parse(text)
        except ParseError:
            self.add_unusable(path, f"is no list of CPUs: {_shown(text)}")
            return None

    def read_cpu_mask(self, path: str) -> CpuSet | None:
        """The set in a file of the form ``00000000,0000ffff``."""
        text = self.text(path)
        if text is None:
            return None
        if len(text) > bits.MAX_MEMBER // 4 or not _MASK.fullmatch(text):
            self.add_unusable(path, f"is no mask of CPUs: {_shown(text)}")
            return None
        first, *others = text.split(",")
        return int(first + "".join(word.zfill(8) for word in others), 16)

    def cpus(self, *paths: str) -> CpuSet | None:
        """The set in the first of *paths* that holds one: ``…list`` files hold lists, all others masks."""
        for path in paths:
            found = self.read_cpu_list(path) if path.endswith("list") else self.read_cpu_mask(path)
            if found is not None:
                return found
        return None

    def names(self, path: str) -> tuple[str, ...]:
        """The entries of a directory in the order of their names; none when there is no such directory."""
        try:
            return tuple(sorted(self._files.names(path)))
        except (OSError, ValueError) as error:
            self._unread(path, error)
            return ()

    def has(self, path: str) -> bool:
        """Whether there is anything at *path*, be it a link that leads nowhere."""
        try:
            self._files.link(path)
        except (OSError, ValueError):
            return False
        return True

    def numbered(self, path: str, prefix: str) -> list[int]:
        """The numbers of the entries that are *prefix* and a number, rising."""
        found = []
        for name in self.names(path):
            digits = name.removeprefix(prefix)
            if digits == name or not (digits.isascii() and digits.isdigit()):
                continue
            if len(digits) > 9 or int(digits) >= MAX_NUMBER:
                self.add_unusable(f"{path}/{_shown(name)}", "is left out: its number is too large")
            elif str(int(digits)) == digits:
                found.append(int(digits))
        return sorted(found)

    def link(self, path: str) -> str | None:
        """Where the link at *path* leads, as it stands there; ``None`` when there is none."""
        try:
            return self._files.link(path)
        except (OSError, ValueError):
            return None

    def resolve(self, path: str) -> str | None:
        """*path* without links; ``None`` when a link leads nowhere, in circles or out of the root."""
        ahead = path.split("/")[::-1]
        done: list[str] = []
        followed = 0
        while ahead:
            name = ahead.pop()
            if name in {"", "."}:
                continue
            if name == "..":
                if not done:
                    return None
                done.pop()
                continue
            done.append(name)
            try:
                target = self._files.link("/".join(done))
            except (OSError, ValueError):
                return None
            if target is not None:
                followed += 1
                if followed > _MAX_LINKS:
                    return None
                done = [] if target.startswith("/") else done[:-1]
                ahead += target.split("/")[::-1]
        return "/".join(done)

    def _contents(self, path: str) -> str | None:
        try:
            return self._files.read(path).decode("latin-1")
        except (OSError, ValueError) as error:
            self._unread(path, error)
            return None

    def _unread(self, path: str, error: Exception) -> None:
        if isinstance(error, OSError) and error.errno in _ABSENT:
            return
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        self.add_unusable(path, f"cannot be read: {why}")


def _limit(path: str) -> int:
    return MAX_PROC_BYTES if path.startswith("proc/") else MAX_BYTES


def _too_long(limit: int) -> OSError:
    return OSError(errno.EFBIG, f"longer than {limit} bytes")


def _chunks(opened: int, limit: int) -> Iterator[bytes]:
    left = limit
    while chunk := os.read(opened, min(left + 1, 1 << 16)):
        left -= len(chunk)
        if left < 0:
            raise _too_long(limit)
        yield chunk


def _shown(text: str) -> str:
    return bits.quote(text if len(text) <= 40 else f"{text[:40]}…")
