"""Recorded machines: an archive of the few files that describe one, and a tree read back from it.

A recording holds what discovery reads and nothing that tells whose machine it is: no host name, serial number,
address or product name. Of ``/proc/cpuinfo`` and the ``meminfo`` files only the lines that count are kept, and PCI
devices are plain directories, since the way to them can name a virtual machine. The same machine gives the same bytes.

An archive from elsewhere is never unpacked: its files are read into memory, up to a limit, and names or links that
lead out of it are refused.
"""

import gzip
import io
import os
import re
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from alignup.align.errors import SourceError
from alignup.discover.cpu_topology import CPU
from alignup.discover.file_reader import ArchiveFiles, DirectoryFiles, FileReader
from alignup.discover.numa import NODE
from alignup.discover.pci import BUS

#: The most an archive may hold, unpacked; a machine of 2048 CPUs takes some 130 MB of it, headers and all.
MAX_BYTES = 512 << 20
MAX_MEMBERS = 1 << 19

_TOPOLOGY = (
    *("core_id", "physical_package_id", "die_id", "cluster_id", "book_id", "drawer_id"),
    *("core_cpus", "core_cpus_list", "thread_siblings", "thread_siblings_list"),
    *("package_cpus", "package_cpus_list", "core_siblings", "core_siblings_list"),
    *("die_cpus", "die_cpus_list", "cluster_cpus", "cluster_cpus_list"),
)
_CACHE = ("id", "level", "type", "size", "shared_cpu_list", "shared_cpu_map")
_PCI = ("class", "vendor", "device", "numa_node", "local_cpulist", "local_cpus")
_CPUINFO = re.compile(r"(processor\s*:|physical id\s*:|core id\s*:|siblings\s*:|cpu cores\s*:|vendor_id\s*:)")
_MEMINFO = re.compile(r"(Node [0-9]+ )?(MemTotal|HugePages_[A-Za-z]+|Hugepagesize|Hugetlb):")


def record(root: Path, file: Path) -> None:
    """Write what describes the machine at *root* to *file*, a ``.tar.gz``; an older one there is replaced whole."""
    tree = FileReader(DirectoryFiles(os.fspath(root)))
    packed = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=packed, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for member, content in _members(tree):
            archive.addfile(member, io.BytesIO(content))
    written = file.with_name(f".{file.name}.part")
    try:
        written.write_bytes(packed.getvalue())
        written.replace(file)
    finally:
        written.unlink(missing_ok=True)


def read_archive(file: Path) -> ArchiveFiles:
    """The files in the archive *file*."""
    contents: dict[str, bytes] = {}
    links: dict[str, str] = {}
    with file.open("rb") as stored:
        zipped = stored.read(2) == b"\x1f\x8b"
        stored.seek(0)
        source: io.BufferedIOBase = gzip.GzipFile(fileobj=stored, mode="rb") if zipped else stored
        try:
            with tarfile.open(fileobj=_Bounded(source, file), mode="r|") as archive:
                for count, member in enumerate(archive):
                    if count >= MAX_MEMBERS:
                        raise SourceError(f"{file} is refused: it has more than {MAX_MEMBERS} members")
                    _take(archive, member, file=file, contents=contents, links=links)
        except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, UnicodeError, ValueError) as error:
            raise SourceError(f"{file} is no archive of a machine: {error}") from error
    return _rooted(contents, links)


class _Bounded(io.RawIOBase):
    """A stream that ends in an error rather than go on for ever."""

    def __init__(self, source: io.BufferedIOBase, file: Path) -> None:
        self._source = source
        self._file = file
        self._left = MAX_BYTES

    def read(self, size: int = -1) -> bytes:
        wanted = self._left + 1 if size < 0 else min(size, self._left + 1)
        chunk = self._source.read(wanted)
        self._left -= len(chunk)
        if self._left < 0:
            raise SourceError(f"{self._file} is refused: it unpacks to more than {MAX_BYTES} bytes")
        return chunk


def _take(
    archive: tarfile.TarFile, member: tarfile.TarInfo, *, file: Path, contents: dict[str, bytes], links: dict[str, str]
) -> None:
    parts = [part for part in member.name.split("/") if part not in {"", "."}]
    if member.name.startswith("/") or ".." in parts:
        raise SourceError(f"{file} is refused: {member.name!r} leads out of it")
    path = "/".join(parts)
    if member.issym():
        if not _stays(parts, member.linkname):
            raise SourceError(f"{file} is refused: the link {member.name!r} leads out of it")
        links[path] = member.linkname
    elif member.isreg():
        if member.size > MAX_BYTES:
            raise SourceError(f"{file} is refused: {member.name!r} has {member.size} bytes")
        held = archive.extractfile(member)
        contents[path] = held.read() if held else b""
    elif member.isdir():
        links.pop(path, None)
        contents.setdefault(f"{path}/", b"")
    else:
        raise SourceError(f"{file} is refused: {member.name!r} is neither a file, a directory nor a link")


def _stays(parts: list[str], target: str) -> bool:
    """Whether a link at *parts* leads to a place inside the archive, be anything there or not."""
    depth = len(parts) - 1
    for part in target.split("/"):
        depth += {"..": -1, "": 0, ".": 0}.get(part, 1)
        if depth < 0:
            return False
    return not target.startswith("/")


def _rooted(contents: dict[str, bytes], links: dict[str, str]) -> ArchiveFiles:
    """The files; one directory around everything is taken off."""
    tops = {path.partition("/")[0] for path in (*contents, *links)} - {""}
    if "sys" not in tops and len(tops) == 1:
        cut = len(tops.pop()) + 1
        contents = {path[cut:]: held for path, held in contents.items()}
        links = {path[cut:]: target for path, target in links.items()}
    return ArchiveFiles.of(contents, links)


def _members(tree: FileReader) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    for path in _wanted(tree):
        member = tarfile.TarInfo(path)
        target = tree.link(path)
        if path.endswith("/"):
            member.type, member.mode = tarfile.DIRTYPE, 0o755
            yield member, b""
        elif target is not None:
            member.type, member.linkname = tarfile.SYMTYPE, target
            yield member, b""
        elif (held := _kept(tree, path)) is not None:
            member.size = len(held)
            yield member, held


def _kept(tree: FileReader, path: str) -> bytes | None:
    """What is recorded of a file; ``None`` when there is no such file."""
    if path.startswith(BUS):
        address, _, name = path.removeprefix(f"{BUS}/").partition("/")
        here = tree.resolve(f"{BUS}/{address}")
        read = tree.read(f"{here}/{name}") if here else None
    else:
        read = tree.read(path)
    lines = {"cpuinfo": _CPUINFO, "meminfo": _MEMINFO}.get(path.rpartition("/")[2])
    if read is not None and lines:
        read = "".join(line for line in read.splitlines(keepends=True) if lines.match(line))
    return None if read is None else read.encode("latin-1")


def _wanted(tree: FileReader) -> Iterator[str]:
    """Every path that may say something about the machine; not all of them are there."""
    yield from ("proc/cpuinfo", "proc/meminfo")
    yield from (f"{CPU}/{name}" for name in ("online", "offline", "present", "possible"))
    for cpu in tree.numbered(CPU, "cpu"):
        here = f"{CPU}/cpu{cpu}"
        yield f"{here}/"
        yield f"{here}/online"
        yield from (f"{here}/topology/{name}" for name in _TOPOLOGY)
        indexes = [name for name in tree.names(f"{here}/cache") if name.startswith("index")]
        yield from (f"{here}/cache/{index}/{name}" for index in indexes for name in _CACHE)
        yield from (f"{here}/node{node}" for node in tree.numbered(here, "node"))
    yield from (f"{NODE}/{name}" for name in ("online", "possible"))
    for node in tree.numbered(NODE, "node"):
        here = f"{NODE}/node{node}"
        yield f"{here}/"
        yield from (f"{here}/{name}" for name in ("cpulist", "cpumap", "distance", "meminfo"))
        yield from (f"{here}/cpu{cpu}" for cpu in tree.numbered(here, "cpu"))
        yield from _pages(tree, f"{here}/hugepages")
    yield from _pages(tree, "sys/kernel/mm/hugepages")
    if tree.has(BUS):
        yield f"{BUS}/"
    for address in tree.names(BUS):
        yield from (f"{BUS}/{address}/{name}" for name in _PCI)


def _pages(tree: FileReader, path: str) -> Iterator[str]:
    if tree.has(path):
        yield f"{path}/"
    yield from (f"{path}/{size}/{name}" for size in tree.names(path) for name in ("nr_hugepages", "free_hugepages"))
