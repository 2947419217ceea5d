"""Recorded machines: archives of the few files that describe a machine, compressed or not.

A recording has what discovery reads and nothing that identifies the machine: no host name, serial number, address or
product name. If a kubelet is installed, its version is recorded too, which older readers ignore. Of ``/proc/cpuinfo``
and the ``meminfo`` files only the needed lines are kept. PCI devices become plain directories, because the path of a
device can name a virtual machine. The same machine gives the same bytes.

Archives are untrusted and never unpacked to disk: their files are read into memory, up to a limit.
Names and links that lead outside are rejected, and so are sparse files, whose content can be longer than the archive.
"""

import bz2
import gzip
import io
import lzma
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from typing import IO, BinaryIO

from alignup.align.errors import SourceError
from alignup.atomic_files import open_input
from alignup.machines.file_reader import ArchiveFiles, DirectoryFiles, FileReader, max_bytes
from alignup.machines.machine_source import BZIP2, GZIP, XZ, ZSTD
from alignup.machines.system import BUS, KUBELET_VERSION, NUMA_BALANCING, PCI_ROOT
from alignup.machines.topology import CPU, NODE

MAX_ARCHIVE_BYTES = 512 << 20  #: uncompressed; a machine with 2048 CPUs takes about 130 MB with headers
MAX_ARCHIVE_CONTENT_BYTES = 128 << 20  #: of names and contents, which are kept in memory
MAX_HEADER_BYTES = 1 << 17  #: of one member, with extended headers
MAX_GLOBAL_HEADERS = 100
MAX_MEMBERS = 1 << 19
MAX_PATH = 512  #: characters of a path or of the target of a link
MAX_PATH_PARTS = 32
COLLECTION_INDEX = "collection.json"  #: the file that every archive of ``alignup collect`` has

_TOPOLOGY = (
    *("core_id", "physical_package_id", "die_id", "cluster_id", "book_id", "drawer_id"),
    *("core_cpus", "core_cpus_list", "thread_siblings", "thread_siblings_list"),
    *("package_cpus", "package_cpus_list", "core_siblings", "core_siblings_list"),
    *("die_cpus", "die_cpus_list", "cluster_cpus", "cluster_cpus_list"),
)
_CACHE = ("id", "level", "type", "size", "shared_cpu_list", "shared_cpu_map")
_PCI = ("class", "vendor", "device", "numa_node", "local_cpulist", "local_cpus")
_CPUINFO = re.compile(r"(processor\s*:|physical id\s*:|core id\s*:|siblings\s*:|cpu cores\s*:|vendor_id\s*:)")
_DAMAGED = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError)
_CHUNK = 1 << 15
_XZ_MEMORY = 128 << 20  #: bytes; what ``xz -9`` files need is 65 MiB
_STEPS = {"..": -1, "": 0, ".": 0}  #: how much deeper a part of a path leads; 1 for all others
_MEMINFO = re.compile(r"(Node [0-9]+ )?(MemTotal|HugePages_[A-Za-z]+|Hugepagesize|Hugetlb):")


def record(root: Path, file: Path, *, kubelet_version: str = "") -> None:
    """Write the machine at *root* and the version of its kubelet to the ``.tar.gz`` *file*, replacing it atomically."""
    files = FileReader(DirectoryFiles(os.fspath(root)))
    packed_archive = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=packed_archive, mtime=0) as gzip_file,
        tarfile.open(fileobj=gzip_file, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        for member, content in (*_members(files), *_pci_members(files)):
            archive.addfile(member, io.BytesIO(content))
        if kubelet_version:
            member = tarfile.TarInfo(KUBELET_VERSION)
            member.size = len(content := kubelet_version.encode())
            archive.addfile(member, io.BytesIO(content))
    part_file = file.with_name(f".{file.name}.part")
    try:
        part_file.write_bytes(packed_archive.getvalue())
        part_file.replace(file)
    finally:
        part_file.unlink(missing_ok=True)


def read_archive(file: Path) -> ArchiveFiles:
    """Return the files of a machine in a tar archive, compressed or not; ``SourceError`` if it exceeds a limit."""
    contents, links = read_members(file, limit=_machine_limit)
    if COLLECTION_INDEX in contents:
        machine = "machine.tar.gz or machine.json"
        raise SourceError(f"{file} is an archive of 'alignup collect': unpack it with tar -xzf, and give its {machine}")
    tops = {path.partition("/")[0] for path in (*contents, *links)} - {""}
    if "sys" not in tops and len(tops) == 1:  # a single top-level directory
        prefix_length = len(tops.pop()) + 1
        contents = {path[prefix_length:]: content for path, content in contents.items()}
        links = {path[prefix_length:]: target for path, target in links.items()}
    return ArchiveFiles.of(contents, links)


def read_members(file: Path, *, limit: Callable[[str], int]) -> tuple[dict[str, bytes], dict[str, str]]:
    """Return the contents and the links of a tar archive by path; directories end in a slash.

    *limit* says how many bytes of a path are wanted; of a longer file, there is one byte more than that.
    """
    with open_input(file) as stream, _decompressed(stream, name=str(file)) as source:
        return members_of(source, name=str(file), limit=limit)


def members_of(
    source: "_Content", *, name: str, limit: Callable[[str], int]
) -> tuple[dict[str, bytes], dict[str, str]]:
    """Return the same as ``read_members``, of an archive that is not compressed."""
    reader = _ArchiveReader(name, source, limit)
    try:
        reader.read_members()
    except (*_DAMAGED, RecursionError, ValueError) as error:
        raise SourceError(f"{name} is not an archive: {error}") from error
    return reader.contents, reader.links


def _machine_limit(path: str) -> int:
    # In an archive with a single top-level directory, that comes before proc.
    first, _, rest = path.partition("/")
    return max_bytes(path if first == "proc" else rest)


class _ArchiveReader(io.RawIOBase):
    """Collects the members of an archive; ``tarfile`` reads its bytes through this object, which limits them."""

    def __init__(self, name: str, source: "_Content", limit: Callable[[str], int]) -> None:
        self.contents: dict[str, bytes] = {}
        self.links: dict[str, str] = {}
        self._name = name
        self._source = source
        self._limit = limit
        self._left = MAX_ARCHIVE_BYTES
        self._header = 0  #: bytes read since the last member or part of its content
        self._kept_bytes = 0  #: bytes of names and contents

    def read(self, size: int = -1) -> bytes:
        count = self._left + 1 if size < 0 else min(size, self._left + 1)
        chunk = self._source.read(count)
        self._left -= len(chunk)
        self._header += len(chunk)
        if self._left < 0:
            raise self._rejected(f"it decompresses to more than {MAX_ARCHIVE_BYTES} bytes")
        if self._header > MAX_HEADER_BYTES:
            raise self._rejected(f"a member has headers of more than {MAX_HEADER_BYTES} bytes")
        return chunk

    def read_members(self) -> None:
        with tarfile.open(fileobj=self, mode="r|") as archive:
            count = 0
            while (member := archive.next()) is not None:
                archive.members = []  # type: ignore[attr-defined] # the archive would keep all of them
                self._header = 0
                count += 1
                if count > MAX_MEMBERS:
                    raise self._rejected(f"it has more than {MAX_MEMBERS} members")
                if len(archive.pax_headers) > MAX_GLOBAL_HEADERS:
                    raise self._rejected(f"it has more than {MAX_GLOBAL_HEADERS} global headers")
                self._add(archive, member)

    def _add(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        name = member.name if len(member.name) <= MAX_PATH else f"{member.name[:40]}…"
        parts = [part for part in member.name.split("/") if part not in {"", "."}]
        if max(len(member.name), len(member.linkname)) > MAX_PATH or len(parts) > MAX_PATH_PARTS:
            most = f"{MAX_PATH} characters or {MAX_PATH_PARTS} directories"
            raise self._rejected(f"the path {name!r} or its target has more than {most}")
        if member.name.startswith("/") or ".." in parts:
            raise self._rejected(f"{name!r} leads outside")
        path = "/".join(parts)
        self._keep(len(path) + len(member.linkname))
        if member.issym():
            # Inside the archive, whether or not the target exists.
            depths = accumulate(_STEPS.get(part, 1) for part in member.linkname.split("/"))
            if member.linkname.startswith("/") or min(depths) < 1 - len(parts):
                raise self._rejected(f"the link {name!r} leads outside")
            self.links[path] = member.linkname
        elif member.issparse():
            raise self._rejected(f"{name!r} is a sparse file")
        elif member.isreg():
            self.contents[path] = self._content(archive, member, self._limit(path))
        elif member.isdir():
            self.links.pop(path, None)
            self.contents.setdefault(f"{path}/", b"")
        else:
            raise self._rejected(f"{name!r} is neither a file, a directory nor a link")

    def _content(self, archive: tarfile.TarFile, member: tarfile.TarInfo, limit: int) -> bytes:
        """Return the content up to one byte more than *limit*, which shows that it is too long; the rest is skipped."""
        content = bytearray()
        file = archive.extractfile(member)
        while file and (chunk := file.read(_CHUNK)):
            self._header = 0
            part = chunk[: limit + 1 - len(content)]
            self._keep(len(part))
            content += part
        return bytes(content)

    def _keep(self, size: int) -> None:
        self._kept_bytes += size
        if self._kept_bytes > MAX_ARCHIVE_CONTENT_BYTES:
            raise self._rejected(f"its names and contents have more than {MAX_ARCHIVE_CONTENT_BYTES} bytes")

    def _rejected(self, reason: str) -> SourceError:
        return SourceError(f"{self._name} is rejected: {reason}")


_Content = io.BufferedIOBase | IO[bytes]


@contextmanager
def _decompressed(stream: BinaryIO, *, name: str) -> Iterator[_Content]:
    """Yield the content of *stream*, which is compressed as its first bytes say, or not at all.

    Memory is limited, and the caller stops reading when it has enough.
    """
    head = stream.read(6)
    stream.seek(0)
    if head.startswith(GZIP):
        with gzip.GzipFile(fileobj=stream, mode="rb") as content:
            yield content
    elif head.startswith(BZIP2):
        with bz2.BZ2File(stream) as content:
            yield content
    elif head.startswith(XZ):
        yield _XzReader(stream)
    elif head.startswith(ZSTD):
        with _open_zstd(stream, name) as content:
            yield content
    else:
        yield stream


class _XzReader(io.BufferedIOBase):
    """``lzma.LZMAFile`` has no limit of memory."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        count = -1 if size is None else size
        while not self._decompressor.eof:
            chunk = self._stream.read(2 * _CHUNK) if self._decompressor.needs_input else b""
            if not chunk and self._decompressor.needs_input:
                raise EOFError("the xz data ends too early")
            if content := self._decompressor.decompress(chunk, count):
                return content
        return b""


@contextmanager
def _open_zstd(stream: BinaryIO, name: str) -> Iterator[_Content]:
    if sys.version_info >= (3, 14):
        zstd = import_module("compression.zstd")
        try:
            with zstd.ZstdFile(stream) as content:
                yield content
        except zstd.ZstdError as error:
            raise SourceError(f"{name} is not an archive: {error}") from error
        return
    program = shutil.which("zstd")
    if program is None:
        advice = "install the program zstd, use Python 3.14, or decompress it first"
        raise SourceError(f"{name} cannot be read: it is compressed with zstd: {advice}")
    command = [program, "--decompress", "--stdout", "--quiet"]  # it limits its memory to 128 MiB
    os.lseek(stream.fileno(), 0, os.SEEK_SET)  # the program does not see what is in our buffer
    with subprocess.Popen(  # noqa: S603
        command, stdin=stream, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        if process.stdout is None or process.stderr is None:
            raise SourceError(f"{name} cannot be read: the program zstd has no output")
        try:
            yield process.stdout
            rest = process.stdout.read(1)
            message = b"" if rest else process.stderr.read(500)
        finally:
            process.kill()
        if message:
            raise SourceError(f"{name} is not an archive: {message.decode(errors='replace').strip()}")


def _members(files: FileReader) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    for path in _recorded_paths(files):
        member = tarfile.TarInfo(path)
        target = files.link(path)
        if path.endswith("/"):
            member.type = tarfile.DIRTYPE
            member.mode = 0o755
            yield member, b""
        elif target is not None:
            member.type = tarfile.SYMTYPE
            member.linkname = target
            yield member, b""
        elif (content := _recorded_content(files, path)) is not None:
            member.size = len(content)
            yield member, content


def _recorded_content(files: FileReader, path: str) -> bytes | None:
    text = files.read(path)
    lines = {"cpuinfo": _CPUINFO, "meminfo": _MEMINFO}.get(path.rpartition("/")[2])
    if text is not None and lines:
        text = "".join(line for line in text.splitlines(keepends=True) if lines.match(line))
    return None if text is None else text.encode("latin-1")


def _recorded_paths(files: FileReader) -> Iterator[str]:
    """Yield every path that may describe the machine, existing or not."""
    yield from ("proc/cpuinfo", "proc/meminfo", NUMA_BALANCING)
    yield from (f"{CPU}/{name}" for name in ("online", "offline", "present", "possible"))
    for cpu in files.read_numbered(CPU, "cpu"):
        here = f"{CPU}/cpu{cpu}"
        yield f"{here}/"
        yield f"{here}/online"
        yield from (f"{here}/topology/{name}" for name in _TOPOLOGY)
        indexes = [name for name in files.names(f"{here}/cache") if name.startswith("index")]
        yield from (f"{here}/cache/{index}/{name}" for index in indexes for name in _CACHE)
        yield from (f"{here}/node{node}" for node in files.read_numbered(here, "node"))
    yield from (f"{NODE}/{name}" for name in ("online", "possible"))
    for node in files.read_numbered(NODE, "node"):
        here = f"{NODE}/node{node}"
        yield f"{here}/"
        yield from (f"{here}/{name}" for name in ("cpulist", "cpumap", "distance", "meminfo"))
        yield from (f"{here}/cpu{cpu}" for cpu in files.read_numbered(here, "cpu"))
        yield from _hugepage_paths(files, f"{here}/hugepages")
    yield from _hugepage_paths(files, "sys/kernel/mm/hugepages")
    if files.has(BUS):
        yield f"{BUS}/"


def _pci_members(files: FileReader) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    """Yield the files of PCI devices, and links to those whose bridges are known.

    A path begins at the root complex: what is above may identify the machine.
    """
    for address in files.names(BUS):
        link = f"{BUS}/{address}"
        source = files.resolve(link)
        if source is None:
            continue
        tree = source[root.start() :] if (root := PCI_ROOT.search(source)) else None
        if tree:
            member = tarfile.TarInfo(link)
            member.type = tarfile.SYMTYPE
            member.linkname = f"../../../devices{tree}"
            yield member, b""
        for name in _PCI:
            if (content := files.read(f"{source}/{name}")) is not None:
                member = tarfile.TarInfo(f"sys/devices{tree}/{name}" if tree else f"{link}/{name}")
                member.size = len(content)
                yield member, content.encode("latin-1")


def _hugepage_paths(files: FileReader, path: str) -> Iterator[str]:
    if files.has(path):
        yield f"{path}/"
    yield from (f"{path}/{size}/{name}" for size in files.names(path) for name in ("nr_hugepages", "free_hugepages"))
