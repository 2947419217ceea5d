"""Decompress a file while it is read, by the standard library where it can.

Nothing is trusted: memory is limited, and the caller stops reading when it has enough.
"""

import bz2
import gzip
import io
import lzma
import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from typing import IO, BinaryIO

from alignup.align.errors import SourceError
from alignup.machines.magic_numbers import BZIP2, GZIP, XZ, ZSTD

Content = io.BufferedIOBase | IO[bytes]

_XZ_MEMORY = 128 << 20  #: bytes; what ``xz -9`` files need is 65 MiB
_CHUNK = 1 << 16
_ZSTD_ADVICE = "it is compressed with zstd: install the program zstd, use Python 3.14, or decompress it first"

#: What invalid data raises, besides ``OSError`` of bzip2.
ERRORS = (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError)


@contextmanager
def open_decompressed(stored: BinaryIO, *, name: str) -> Iterator[Content]:
    """Yield the content of *stored*, which is compressed as its first bytes say, or not at all."""
    head = stored.read(6)
    stored.seek(0)
    opener = next((opener for magic, opener in _OPENERS.items() if head.startswith(magic)), None)
    if opener is None:
        yield stored
    else:
        with opener(stored, name) as content:
            yield content


class _XzReader(io.BufferedIOBase):
    """``lzma.LZMAFile`` has no limit of memory."""

    def __init__(self, stored: BinaryIO) -> None:
        self._stored = stored
        self._decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        wanted = -1 if size is None else size
        while not self._decompressor.eof:
            stored = self._stored.read(_CHUNK) if self._decompressor.needs_input else b""
            if not stored and self._decompressor.needs_input:
                raise EOFError("the xz data ends too early")
            if found := self._decompressor.decompress(stored, wanted):
                return found
        return b""


@contextmanager
def _open_zstd(stored: BinaryIO, name: str) -> Iterator[Content]:
    if sys.version_info >= (3, 14):
        zstd = import_module("compression.zstd")
        try:
            with zstd.ZstdFile(stored) as content:
                yield content
        except zstd.ZstdError as error:
            raise SourceError(f"{name} is not a machine archive: {error}") from error
        return
    program = shutil.which("zstd")
    if program is None:
        raise SourceError(f"{name} cannot be read: {_ZSTD_ADVICE}")
    command = [program, "--decompress", "--stdout", "--quiet"]  # it limits its memory to 128 MiB
    os.lseek(stored.fileno(), 0, os.SEEK_SET)  # the program does not see what is in our buffer
    with subprocess.Popen(  # noqa: S603
        command, stdin=stored, stdout=subprocess.PIPE, stderr=subprocess.PIPE
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
            raise SourceError(f"{name} is not a machine archive: {message.decode(errors='replace').strip()}")


@contextmanager
def _open_gzip(stored: BinaryIO, _name: str) -> Iterator[Content]:
    with gzip.GzipFile(fileobj=stored, mode="rb") as content:
        yield content


@contextmanager
def _open_bzip2(stored: BinaryIO, _name: str) -> Iterator[Content]:
    with bz2.BZ2File(stored) as content:
        yield content


@contextmanager
def _open_xz(stored: BinaryIO, _name: str) -> Iterator[Content]:
    yield _XzReader(stored)


#: The first bytes of a file → how it is read.
_OPENERS: Mapping[bytes, Callable[[BinaryIO, str], AbstractContextManager[Content]]] = {
    GZIP: _open_gzip,
    BZIP2: _open_bzip2,
    XZ: _open_xz,
    ZSTD: _open_zstd,
}
