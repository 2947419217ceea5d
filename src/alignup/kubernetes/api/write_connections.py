"""Sends the requests that change objects, with little work for each.

A scheduler binds hundreds of pods per second, and httpx2 takes longer for a small request than a decision takes. So
requests with a body go over connections that are kept here, as long as there is no proxy.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

import httpx2

from alignup.kubernetes.api.timing import Timing

MAX_CONNECTIONS = 100  #: at the same time
IDLE_SECONDS = 30.0  #: after which an idle connection is not used again; API servers close it after 90
MAX_HEAD_BYTES = 64 << 10  #: of a response

SocketOption = tuple[int, int, int]
_Headers = list[tuple[bytes, bytes]]


class WriteResponse(NamedTuple):
    status: int
    content: bytes
    retry_after: str  #: the header; empty: none


class WriteConnections:
    """Connections to the server at *url*; errors are those of httpx2. *tls* is for ``https``."""

    def __init__(
        self,
        url: httpx2.URL,
        timing: Timing,
        *,
        tls: ssl.SSLContext | None = None,
        server_name: str = "",
        socket_options: Sequence[SocketOption] = (),
    ) -> None:
        self._timing = timing
        self._host, self._tls, self._server_name = url.host, tls, server_name or url.host
        self._port = url.port or (80 if tls is None else 443)
        self._prefix = url.raw_path.rstrip(b"/")
        self._host_header = b"Host: %s\r\n" % url.netloc
        self._socket_options = socket_options
        self._idle: deque[_Connection] = deque()  #: the one used last is at the end
        self._slots = asyncio.Semaphore(MAX_CONNECTIONS)

    async def send(
        self, method: str, target: str, *, headers: Sequence[tuple[str, str]] = (), body: bytes
    ) -> WriteResponse:
        """Send a request for a path with its query, and return the response."""
        first = b"%s %s%s HTTP/1.1\r\n" % (method.encode("ascii"), self._prefix, target.encode("ascii"))
        lines = [f"{name}: {value}\r\n".encode("latin-1", "replace") for name, value in headers]
        lines.append(b"Content-Length: %d\r\n\r\n" % len(body))
        request = b"".join([first, self._host_header, *lines, body])
        if self._slots.locked():
            async with _limit(self._timing.connect, httpx2.PoolTimeout):
                await self._slots.acquire()
        else:
            await self._slots.acquire()
        try:
            connection = self._take_idle() or await self._connect()
            async with _limit(self._timing.response, httpx2.ReadTimeout, on_failure=connection.abort):
                response = await connection.exchange(request)
            if connection.reusable:
                connection.expires = asyncio.get_running_loop().time() + IDLE_SECONDS
                self._idle.append(connection)
            else:
                connection.abort()
            return response
        finally:
            self._slots.release()

    def close(self) -> None:
        while self._idle:
            self._idle.pop().abort()

    def _take_idle(self) -> "_Connection | None":
        now = asyncio.get_running_loop().time()
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and connection.expires > now:
                return connection
            connection.abort()
        return None

    async def _connect(self) -> "_Connection":
        tls, name = self._tls, None if self._tls is None else self._server_name
        async with _limit(self._timing.connect, httpx2.ConnectTimeout):
            try:
                reader, writer = await asyncio.open_connection(
                    self._host, self._port, limit=MAX_HEAD_BYTES, ssl=tls, server_hostname=name
                )
            except OSError as error:
                raise httpx2.ConnectError(str(error)) from error
        with suppress(OSError):
            for option in self._socket_options:
                writer.get_extra_info("socket").setsockopt(*option)
        return _Connection(reader, writer)


class _Connection:
    """One connection, for one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.reusable = False  #: whether the last response left the connection open
        self.expires = 0.0

    @property
    def is_open(self) -> bool:
        return not self._reader.at_eof() and not self._writer.is_closing()

    def abort(self) -> None:
        self._writer.transport.abort()

    async def exchange(self, request: bytes) -> WriteResponse:
        """Send a request and read the whole response."""
        self.reusable = False
        try:
            self._writer.write(request)
            status = 0
            while status < 200:  # what comes before is about a response to come
                status, version, headers = _parse_head(await self._reader.readuntil(b"\r\n\r\n"))
            content, ended = await self._read_body(status, headers)
        except (OSError, asyncio.IncompleteReadError) as error:
            raise httpx2.ReadError(str(error)) from error
        except (ValueError, asyncio.LimitOverrunError) as error:
            raise httpx2.RemoteProtocolError(f"not a response of HTTP: {error}") from error
        closes = b"close" in _value(headers, b"connection").lower()
        self.reusable = ended and version == b"HTTP/1.1" and not closes
        retry_after = _value(headers, b"retry-after").decode("ascii", "replace")
        return WriteResponse(status, content, retry_after)

    async def _read_body(self, status: int, headers: _Headers) -> tuple[bytes, bool]:
        """The body, and whether it ended before the connection did."""
        if b"chunked" in _value(headers, b"transfer-encoding").lower():
            return await self._read_chunks(), True
        length = _value(headers, b"content-length")
        if length:
            if not length.isdigit():
                raise ValueError(f"content length {length.decode('ascii', 'replace')}")
            return await self._reader.readexactly(int(length)), True
        if status in {204, 304}:
            return b"", True
        return await self._reader.read(), False

    async def _read_chunks(self) -> bytes:
        chunks = []
        while True:
            line = await self._reader.readuntil(b"\r\n")
            size = int(line.partition(b";")[0], 16)
            chunk = await self._reader.readexactly(size + 2) if size else b""
            chunks.append(chunk[:-2])
            if not size:
                while await self._reader.readuntil(b"\r\n") != b"\r\n":  # trailers
                    pass
                return b"".join(chunks)


def _parse_head(head: bytes) -> tuple[int, bytes, _Headers]:
    """The status, the version of HTTP, and the headers with lower-case names."""
    first, *lines = head[:-4].split(b"\r\n")
    version, _, rest = first.partition(b" ")
    if not version.startswith(b"HTTP/1."):
        raise ValueError(first[:40].decode("ascii", "replace"))
    headers = []
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon:
            raise ValueError(line[:40].decode("ascii", "replace"))
        headers.append((name.strip().lower(), value.strip()))
    return int(rest[:3]), version, headers


def _value(headers: _Headers, wanted: bytes) -> bytes:
    return next((value for name, value in headers if name == wanted), b"")


@asynccontextmanager
async def _limit(
    seconds: float, error: type[httpx2.TimeoutException], *, on_failure: Callable[[], None] = lambda: None
) -> AsyncIterator[None]:
    """Raise *error* after *seconds*; call *on_failure* for whatever is raised."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as timeout:
        on_failure()
        raise error(f"nothing within {seconds} seconds") from timeout
    except BaseException:
        on_failure()
        raise
