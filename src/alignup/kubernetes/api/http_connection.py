"""One HTTP/1.1 connection to a server, and the response that arrives on it. httptools parses responses."""

import asyncio
import os
import re
import select
import socket
import ssl
import zlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

if TYPE_CHECKING:
    from alignup.kubernetes.api.http_client import HttpClient

IDLE_SECONDS = 30.0  #: for which an idle connection is kept
_MAX_HEAD = 256 << 10  #: bytes of a response before its body
_MAX_UNREAD = 1 << 20  #: bytes of a body that are received before they are read
#: A peer that is gone without a word is noticed after about a minute, also by a watch without events.
_KEEPALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
        if hasattr(socket, name)
    ),
]
_KEPT_HEADERS = frozenset({b"content-encoding", b"content-length", b"retry-after", b"transfer-encoding"})
_NUMBERS = re.compile(r"\[Errno (\d+)\]")


class HttpError(Exception):
    """There is no response, or not all of it; the message says why.

    ``sent`` says whether the server may have got the request.
    """

    def __init__(self, message: str, *, sent: bool = True) -> None:
        self.sent = sent
        super().__init__(message)


class BodyTooLargeError(HttpError):
    """The body of a response is larger than its caller accepts."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the response is larger than {limit >> 20} MiB")


class ClientConnection(asyncio.Protocol):
    """One connection, with one request at a time."""

    def __init__(self, client: "HttpClient", loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.ended: asyncio.Future[None] = loop.create_future()
        self.idle_since = 0.0
        self._client = client
        self._transport: asyncio.Transport | None = None
        self._parser: HttpResponseParser | None = None
        self._response: HttpResponse | None = None  #: that is being received

    @property
    def fresh(self) -> bool:
        """Whether it was used lately: the server, or something between, may close older ones at any time."""
        return self.loop.time() - self.idle_since < IDLE_SECONDS

    @property
    def usable(self) -> bool:
        """Whether another request may be sent. Something to read is the end of the connection, or unasked for."""
        transport = self._transport
        if not self.fresh or transport is None or transport.is_closing():
            return False
        poll = select.poll()
        poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        return not poll.poll(0)

    def send(self, request: bytes, seconds: float) -> "HttpResponse":
        response = HttpResponse(self, seconds)
        self._response, self._parser = response, HttpResponseParser(response)
        response.parser = self._parser
        if self._transport is None or self._transport.is_closing():
            response.fail("the connection was closed", sent=False)
        else:
            self._transport.write(request)
        return response

    def finish(self, *, reusable: bool) -> None:
        """Stop receiving the response; the connection may be *reusable*."""
        self._response = self._parser = None
        self._client.give_back(self, reusable=reusable)

    def abort(self) -> None:
        if self._response is not None:
            self._response.fail("the connection was closed")
        if self._transport is not None:
            self._transport.abort()

    def pause(self, *, paused: bool) -> None:
        """Stop or resume to receive."""
        if self._transport is not None:
            (self._transport.pause_reading if paused else self._transport.resume_reading)()

    async def start_tls(self, tls: ssl.SSLContext, name: str) -> None:
        """Begin TLS after a proxy has opened a tunnel; a connection without TLS is closed."""
        self._response = self._parser = None
        if self._transport is None:
            raise HttpError("the connection was closed")
        transport = None
        try:
            transport = await self.loop.start_tls(self._transport, self, tls, server_hostname=name)
        except TypeError as error:  # early releases of Python 3.11 and 3.12 raise it for a failure of TLS within TLS
            raise HttpError(describe_failure(error.__context__ or error)) from error
        finally:
            if transport is None:  # asyncio does not report the end of a connection during the handshake
                self.abort()
                self.connection_lost(None)
        self._transport = transport

    # What asyncio calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # of a stream
        self._transport = transport
        self._client.opened(self)
        connected = transport.get_extra_info("socket")
        for level, option, value in _KEEPALIVE:
            connected.setsockopt(level, option, value)

    def data_received(self, data: bytes) -> None:
        if self._parser is None or self._response is None:
            self.abort()  # nothing was asked for
            return
        response = self._response
        try:
            self._parser.feed_data(data)
            response.received(len(data))
        except (HttpParserError, HttpParserUpgrade) as error:
            upgrade = isinstance(error, HttpParserUpgrade)
            response.fail(f"no valid HTTP response: {'it switches to another protocol' if upgrade else error}")
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        if self._response is not None:
            self._response.lost(error)
        self._transport = None
        self._client.closed(self)
        if not self.ended.done():
            self.ended.set_result(None)


class HttpResponse:
    """A response whose body arrives: :meth:`read` it, or iterate over :meth:`chunks`, and :meth:`close` it."""

    def __init__(self, connection: ClientConnection, seconds: float) -> None:
        self.status = 0  #: 0: the head is not there yet
        self.headers: dict[bytes, bytes] = {}  #: by name, in lower case; only those that matter
        self.parser: HttpResponseParser | None = None
        self._seconds = seconds
        self._connection: ClientConnection | None = connection
        self._loop = connection.loop
        self._waiter: asyncio.Future[None] | None = None
        self._chunks: list[bytes] = []  #: that are not read
        self._unread = 0  #: their bytes
        self._head_bytes = 0  #: received before the end of the head
        self._complete = self._keep_alive = self._surplus = self._reads_all = self._paused = False
        self._error: HttpError | None = None

    async def wait_for_head(self) -> None:
        while not self.status:
            await self._wait()

    async def read(self, limit: int = 1 << 40) -> bytes:
        """Return the body; :class:`BodyTooLargeError` if it has more than *limit* bytes, also after decompression."""
        self._reads_all = True
        while not self._complete and self._unread <= limit:
            self._resume()
            await self._wait()
        if self._unread > limit:
            raise BodyTooLargeError(limit)
        body = b"".join(self._chunks)
        self.close()
        if self._compressed:
            decoder = _GzipDecoder()
            body = decoder.decode(body, limit)
            decoder.finish()
        return body

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the parts of the body as they arrive."""
        decoder = _GzipDecoder() if self._compressed else None
        while True:
            if self._chunks:
                chunk = b"".join(self._chunks)
                self._chunks.clear()
                self._unread = 0
                self._resume()
                yield decoder.decode(chunk) if decoder else chunk
            elif self._complete:
                if decoder:
                    decoder.finish()
                return
            else:
                await self._wait()

    def close(self) -> None:
        """Give the connection back; one with more to come is closed."""
        self._resume()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.finish(reusable=self._keep_alive and not self._surplus and self._error is None)
        self.parser = None

    @property
    def _compressed(self) -> bool:
        return self.headers.get(b"content-encoding", b"").lower() == b"gzip"

    async def _wait(self) -> None:
        """Wait for more of the response."""
        if self._error is not None:
            raise self._error
        self._waiter = self._loop.create_future()
        timer = self._loop.call_later(self._seconds, self.fail, f"no response within {self._seconds:g} seconds")
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _resume(self) -> None:
        if self._paused and self._connection is not None:
            self._paused = False
            self._connection.pause(paused=False)

    # What the connection calls

    def received(self, count: int) -> None:
        """Count the bytes of the head."""
        if not self.status:
            self._head_bytes += count
            if self._head_bytes > _MAX_HEAD:
                self.fail("the head of the response is too large")

    def fail(self, reason: str, *, sent: bool = True) -> None:
        if self._error is None:
            self._error = HttpError(reason, sent=sent)
        self._wake()

    def lost(self, error: Exception | None) -> None:
        """Note the end of the connection, which is the end of a body of unknown length as well."""
        unknown_length = not {b"content-length", b"transfer-encoding"} & self.headers.keys()
        if error is None and self._error is None and self.status and unknown_length:
            self._complete = True
            self._wake()
        elif not self._complete:
            closed = "the connection was closed before the response was complete"
            self.fail(describe_failure(error) if error else closed)

    # What the parser calls

    def on_message_begin(self) -> None:
        self._surplus = self._complete
        self.headers = {} if not self._complete else self.headers

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in _KEPT_HEADERS and not self.status:  # trailers are ignored
            self.headers[name] = value

    def on_headers_complete(self) -> None:
        if self.parser is not None and not self._surplus:
            status = self.parser.get_status_code()
            self.status = status if status >= 200 else 0
            self._wake()

    def on_body(self, body: bytes) -> None:
        if self._surplus:
            return
        self._chunks.append(body)
        self._unread += len(body)
        if self._unread > _MAX_UNREAD and not self._reads_all and not self._paused and self._connection is not None:
            self._paused = True
            self._connection.pause(paused=True)
        self._wake()

    def on_message_complete(self) -> None:
        if self.status and self.parser is not None:
            self._complete, self._keep_alive = True, self.parser.should_keep_alive()
            self._wake()


class _GzipDecoder:
    """The decoder of a body of gzip members."""

    def __init__(self) -> None:
        self._member: zlib._Decompress | None = None  #: that has begun

    def decode(self, data: bytes, limit: int = 0) -> bytes:
        """Return the next part of the body, of at most *limit* bytes; 0: of any size."""
        parts: list[bytes] = []
        while data:
            self._member = self._member or zlib.decompressobj(16 + zlib.MAX_WBITS)
            try:
                parts.append(self._member.decompress(data, limit and limit + 1))
            except zlib.error as error:
                raise HttpError(f"the body cannot be decompressed: {error}") from None
            if limit and sum(map(len, parts)) > limit:
                raise BodyTooLargeError(limit)
            data = self._member.unused_data
            if self._member.eof:
                self._member = None
        return b"".join(parts)

    def finish(self) -> None:
        if self._member is not None:
            raise HttpError("the body cannot be decompressed: its end is missing")


def describe_failure(error: BaseException) -> str:
    """Say why, in the words of the operating system if there are any."""
    if isinstance(error, socket.gaierror):  # a name that cannot be resolved
        return error.strerror or str(error)
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError):
        # asyncio joins the errors of several addresses into one without a number.
        number = error.errno or next((int(digits) for digits in _NUMBERS.findall(str(error))), 0)
        if number:
            return os.strerror(number)
    return str(error) or "the connection broke"
