"""Read the files of a system, live or recorded, so that no content can do harm.

A :class:`FileReader` reads ``/sys`` and ``/proc`` below any root: the running system, a directory or an archive. What
is missing is ``None``. What is there but unreadable or invalid is ``None`` plus a sentence in ``gaps``, so that it is
not mistaken for zero. No call blocks, follows links out of the root, or reads without limit. Paths are relative to the
root and use slashes.
"""

import errno
import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from alignup.align import bits
from alignup.align.bits import CpuSet
from alignup.align.errors import ParseError, SourceError
from alignup.align.machine import MAX_CPU_ID, MAX_NODE_ID

MAX_FILE_BYTES = 1 << 18  #: of a file; a list of 8192 CPUs takes 40 kB
MAX_PROC_BYTES = 64 << 20  #: of a file in ``/proc``; ``cpuinfo`` takes about 16 MB
MAX_TOTAL_BYTES = 256 << 20  #: of all files that are read
MAX_NAMES = 1 << 17  #: in a directory
MAX_DIRECTORIES = 1 << 17  #: of an archive, including directories that only the paths of members imply
MAX_GAPS = 20  #: sentences about single files; more are only counted

_MAX_LINKS = 40  # the kernel's limit
_MAX_STEPS = 400  # names on the way through all links of a path
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
_MASK = re.compile(r"[0-9a-f]{1,8}(,[0-9a-f]{1,8})*", re.ASCII | re.IGNORECASE)
_ABSENT = {errno.ENOENT, errno.ENOTDIR}


class FileSource(Protocol):
    """Where the files come from; every method raises ``OSError`` for what does not exist or is too large."""

    def read(self, path: str) -> bytes: ...
    def names(self, path: str) -> list[str]: ...  # of a directory, in no order
    def link(self, path: str) -> str | None: ...  # the target; ``None`` if it is not a link


@dataclass(frozen=True, slots=True)
class DirectoryFiles:
    root: str

    def read(self, path: str) -> bytes:
        # Only regular files: reading a pipe or a terminal would block.
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY
        handle = os.open(f"{self.root}/{path}", flags)
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
            content, limit = bytearray(), max_bytes(path)
            while chunk := os.read(handle, min(limit + 1 - len(content), 1 << 16)):
                content += chunk
                if len(content) > limit:
                    raise _too_long(limit)
            return bytes(content)
        finally:
            os.close(handle)

    def names(self, path: str) -> list[str]:
        with os.scandir(f"{self.root}/{path}") as entries:
            names = [entry.name for entry, _ in zip(entries, range(MAX_NAMES + 1), strict=False)]
        if len(names) > MAX_NAMES:
            raise OSError(errno.EFBIG, f"more than {MAX_NAMES} entries")
        return names

    def link(self, path: str) -> str | None:
        try:
            return os.readlink(f"{self.root}/{path}")  # noqa: PTH115 - called thousands of times; a Path is slow
        except OSError as error:
            if error.errno == errno.EINVAL:
                return None
            raise


@dataclass(frozen=True, slots=True)
class ArchiveFiles:
    """Files in memory, read like those of a directory."""

    contents: Mapping[str, bytes]
    links: Mapping[str, str]
    directories: Mapping[str, list[str]]

    @classmethod
    def of(cls, contents: Mapping[str, bytes], links: Mapping[str, str]) -> "ArchiveFiles":
        """Return files and links, with the directories they imply; a path that ends in ``/`` is a directory."""
        directories: dict[str, dict[str, None]] = {}
        for path in (*contents, *links):
            inside = path.rstrip("/")
            if path.endswith("/"):
                directories.setdefault(inside, {})
            while inside:
                inside, _, name = inside.rpartition("/")
                names_ = directories.setdefault(inside, {})
                if name in names_:
                    break
                names_[name] = None
            if len(directories) > MAX_DIRECTORIES:
                raise SourceError(f"the files are in more than {MAX_DIRECTORIES} directories")
        files = {path: content for path, content in contents.items() if not path.endswith("/")}
        return cls(files, links, {path: list(names) for path, names in directories.items()})

    def read(self, path: str) -> bytes:
        if path not in self.contents:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        if len(self.contents[path]) > max_bytes(path):
            raise _too_long(max_bytes(path))
        return self.contents[path]

    def names(self, path: str) -> list[str]:
        if path not in self.directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        return self.directories[path]

    def link(self, path: str) -> str | None:
        if path in self.links:
            return self.links[path]
        if path in self.contents or path in self.directories:
            return None
        raise FileNotFoundError(errno.ENOENT, "no such file or directory", path)


class FileReader:
    def __init__(self, files: FileSource) -> None:
        self._files = files
        self._read: dict[str, str | None] = {}
        self._gaps: dict[str, None] = {}
        self._failed = 0
        self._bytes = 0  #: of all files read

    @property
    def gaps(self) -> tuple[str, ...]:
        more = self._failed - MAX_GAPS
        return (*self._gaps, *([f"{more} more files are unreadable or invalid"] if more > 0 else []))

    def add_gap(self, sentence: str) -> None:
        self._gaps.setdefault(sentence)

    def add_unusable(self, path: str, problem: str) -> None:
        """Record that a file exists but is unusable; of very many only the first are listed."""
        sentence = f"{path} {problem}"
        if sentence in self._gaps:
            return
        self._failed += 1
        if self._failed <= MAX_GAPS:
            self.add_gap(sentence)

    def read(self, path: str) -> str | None:
        """Return the unchanged content, one character per byte; ``None`` if it is missing or unreadable."""
        if path not in self._read:
            self._read[path] = None
            try:
                self._read[path] = text = self._files.read(path).decode("latin-1")
            except (OSError, ValueError) as error:
                self._add_unreadable(path, error)
            else:
                self._bytes += len(text)
                if self._bytes > MAX_TOTAL_BYTES:
                    raise SourceError(f"the files that describe the machine have more than {MAX_TOTAL_BYTES} bytes")
        return self._read[path]

    def text(self, path: str) -> str | None:
        """Return the file without surrounding blanks, and without the NULs that some kernels add."""
        content = self.read(path)
        return None if content is None else content.strip("\0 \t\r\n")

    def number(self, path: str) -> int | None:
        return self._parse(path, _parse_number, "a number")

    def read_cpu_list(self, path: str) -> CpuSet | None:
        """Return the set in a file of the form ``0-3,8``; an empty file is the empty set."""
        return self._parse(path, partial(bits.parse, below=MAX_CPU_ID), "a list of CPUs")

    def cpus(self, *paths: str) -> CpuSet | None:
        """Return the set in the first usable of *paths*: ``…list`` files have lists, all others masks."""
        for path in paths:
            is_list = path.endswith("list")
            cpus = self.read_cpu_list(path) if is_list else self._parse(path, parse_mask, "a mask of CPUs")
            if cpus is not None:
                return cpus
        return None

    def _parse(self, path: str, parse: Callable[[str], int], expectation: str) -> int | None:
        text = self.text(path)
        if text is None:
            return None
        try:
            return parse(text)
        except ParseError:
            self.add_unusable(path, f"is not {expectation}: {_quote(text)}")
            return None

    def names(self, path: str) -> tuple[str, ...]:
        """Return the names, sorted; empty if the directory does not exist."""
        try:
            return tuple(sorted(self._files.names(path)))
        except (OSError, ValueError) as error:
            self._add_unreadable(path, error)
            return ()

    def has(self, path: str) -> bool:
        """Return whether anything is at *path*, including a dangling link."""
        try:
            self._files.link(path)
        except (OSError, ValueError):
            return False
        return True

    def read_numbered(self, path: str, prefix: str) -> list[int]:
        """Return the numbers of the entries named *prefix* and a number, ascending."""
        numbers = []
        for name in self.names(path):
            digits = name.removeprefix(prefix)
            if digits == name or not (digits.isascii() and digits.isdigit()):
                continue
            if len(digits) > 9 or int(digits) >= (MAX_NODE_ID if prefix == "node" else MAX_CPU_ID):
                self.add_unusable(f"{path}/{_quote(name)}", "is left out: its number is too large")
            elif str(int(digits)) == digits:
                numbers.append(int(digits))
        return sorted(numbers)

    def link(self, path: str) -> str | None:
        """Return the unresolved target of a link; ``None`` if it is not a link."""
        try:
            return self._files.link(path)
        except (OSError, ValueError):
            return None

    def resolve(self, path: str) -> str | None:
        """Return *path* without links; ``None`` if a link is dangling, circular, very long or leaves the root."""
        stack = path.split("/")[::-1]
        parts: list[str] = []
        links = steps = 0
        while stack:
            name = stack.pop()
            steps += 1
            if steps > _MAX_STEPS:
                return None
            if name in {"", "."}:
                continue
            if name == "..":
                if not parts:
                    return None
                parts.pop()
                continue
            parts.append(name)
            try:
                target = self._files.link("/".join(parts))
            except (OSError, ValueError):
                return None
            if target is not None:
                links += 1
                if links > _MAX_LINKS:
                    return None
                parts = [] if target.startswith("/") else parts[:-1]
                stack += target.split("/")[::-1]
        return "/".join(parts)

    def _add_unreadable(self, path: str, error: Exception) -> None:
        if isinstance(error, OSError) and error.errno in _ABSENT:
            return
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        self.add_unusable(path, f"cannot be read: {reason}")


def _parse_number(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise ParseError("not a number")
    return int(text)


def parse_mask(text: str) -> CpuSet:
    """Return the set of a mask of the form ``00000000,0000ffff``."""
    if len(text) > MAX_CPU_ID // 32 * len("ffffffff,") or not _MASK.fullmatch(text):
        raise ParseError("not a mask")
    first, *others = text.split(",")
    return int(first + "".join(word.zfill(8) for word in others), 16)


def max_bytes(path: str) -> int:
    """Return how long the file at *path* may be."""
    return MAX_PROC_BYTES if path.startswith("proc/") else MAX_FILE_BYTES


def _too_long(limit: int) -> OSError:
    return OSError(errno.EFBIG, f"longer than {limit} bytes")


def _quote(text: str) -> str:
    return bits.quote(text if len(text) <= 40 else f"{text[:40]}…")
