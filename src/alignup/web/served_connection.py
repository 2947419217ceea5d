"""The HTTP/1.1 protocol of one client connection: requests to an ASGI application, its responses, and all limits.

httptools parses requests and has no limits of its own, so every limit is here: how long and how large the head of a
request is, how many requests are parsed ahead, how long a client takes to read a response, and how long a connection
stays unauthenticated. How many connections there are is limited in ``asgi_server``.
"""

import asyncio
import select
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import cache, cached_property, lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

import structlog
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser, parse_url
from starlette.types import ASGIApp, Message, Scope

from alignup.web.sockets import loopback_uid

if TYPE_CHECKING:
    from alignup.web.asgi_server import ConnectionTable, ServerLimits

#: The key of the :class:`ServedConnection` in the ASGI scope of a request.
CONNECTION = "alignup.connection"

_SLICE_BYTES = 4 << 10  #: parsed at once: the parser does not stop at the end of a request
_HEADER_BYTES = 32  #: that a header counts beside its text, as in HTTP/2: many short ones need much memory
_BODY_BYTES = 64 << 10  #: of a body that are received before the application reads them
_NO_BODY = {HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED}

_log = structlog.get_logger()


class ServedConnection(asyncio.Protocol):
    """The connection of one client, which sends one request after the other.

    While a request waits for the response to an earlier one, what the client sends is neither parsed nor read.
    It is in *open_connections* while it has a transport.
    """

    def __init__(
        self, app: ASGIApp, limits: "ServerLimits", table: "ConnectionTable", open_connections: set["ServedConnection"]
    ) -> None:
        self.handshake: asyncio.Task[None] | None = None
        self.established = False  #: whether there was a transport
        self.transport: asyncio.Transport | None = None  #: ``None``: not yet, or no longer, connected
        self.task: asyncio.Task[None] | None = None  #: of the running request
        self.table = table
        self._app = app
        self._limits = limits
        self._open_connections = open_connections
        self._loop = asyncio.get_running_loop()
        self._parser: HttpRequestParser | None = HttpRequestParser(self)
        self._exchanges: deque[_Exchange] = deque()  #: without a complete response; the first is running
        self._receiving: _Exchange | None = None  #: whose body is being received
        self._unparsed = b""  #: received while a request was waiting
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0  #: received of the head of the next request, or of a body without its content
        self._body_left = 0  #: bytes of the body that are still to come, if its length is known
        self._ignores_rest = False  #: after an invalid request, or a request to change the protocol
        self._drains = False  #: whether everything that still arrives is dropped
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._writable = asyncio.Event()
        self._writable.set()
        self._addresses: dict[str, Any] = {}

    def close_now(self) -> None:
        """Close the connection without waiting for the client."""
        if self.transport is not None:
            self.transport.abort()
        elif self.handshake is not None:
            self.handshake.cancel()

    def close_when_idle(self) -> None:
        """Close the connection after the responses to the requests that were parsed."""
        self._ignores_rest = True
        if self._exchanges:
            self._exchanges[-1].keep_alive = False
        elif self.transport is not None:
            self.transport.close()

    @cached_property
    def client_uid(self) -> int | None:
        """The user of the client, if it is on this machine; ``None``: unknown."""
        addresses = self._addresses
        return loopback_uid(addresses["client"], addresses["server"]) if addresses.get("client") else None

    # What asyncio calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # of a stream
        self.transport = transport
        self.established = True
        self._open_connections.add(self)
        tls = transport.get_extra_info("sslcontext") is not None
        server, client = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
        self._addresses = {
            "scheme": "https" if tls else "http",
            "server": server[:2] if isinstance(server, tuple) else None,
            "client": client[:2] if isinstance(client, tuple) else None,
        }
        transport.set_write_buffer_limits(high=1, low=0)  # pause_writing while anything is unread
        if self._limits.first is None:
            self._start_timer("head", self._limits.head, self._close_idle)
        else:
            self._start_timer("idle", self._limits.first, self._close_idle)
        self._start_timer("unauthenticated", self._limits.unauthenticated, transport.close)

    def data_received(self, data: bytes) -> None:
        """Parse what was received, up to the first request that must wait for another response."""
        self.stop_timer("idle")
        if self._drains:
            return
        self._unparsed += data
        transport = self.transport
        if transport is None:  # the connection is lost
            return
        while self._unparsed and len(self._exchanges) <= 1 and not transport.is_closing():
            if self._ignores_rest or self._parser is None:
                self._unparsed = b""
                break
            size = self._body_left or min(_SLICE_BYTES, self._limits.head_bytes - self._head_bytes)
            part = self._unparsed[:size]
            self._unparsed = self._unparsed[size:]
            self._head_bytes += len(part)
            try:
                self._parser.feed_data(part)
            except HttpParserUpgrade:
                self.close_when_idle()
            except HttpParserError:
                self._reject(HTTPStatus.BAD_REQUEST)
            if self._head_bytes >= self._limits.head_bytes:
                self._reject(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        self.control_reading()
        if self._exchanges:
            self.stop_timer("head")
        elif not transport.is_closing():
            self._start_timer("head", self._limits.head, self._close_idle)

    def pause_writing(self) -> None:
        self._writable.clear()
        self._start_timer("read", self._limits.read, self.close_now)

    def resume_writing(self) -> None:
        self._writable.set()
        self.stop_timer("read")

    def connection_lost(self, _error: Exception | None) -> None:
        for name in tuple(self._timers):
            self.stop_timer(name)
        self.table.remove(self)
        self._writable.set()
        for exchange in self._exchanges:
            exchange.disconnect()
        # These refer to the connection. Without them, its headers are freed now, not when garbage is collected.
        self._exchanges.clear()
        self._parser = None
        self._receiving = None
        self.transport = None
        self._open_connections.discard(self)

    # What the parser calls

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._receiving is None:  # trailers are ignored
            self._head_bytes += _HEADER_BYTES
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        parser = self._parser
        if parser is None:  # the connection is lost
            return
        version = parser.get_http_version()
        headers = dict(reversed(self._headers))  # of several with one name, the first counts
        if version == "1.1" and sum(name == b"host" for name, _ in self._headers) != 1:
            raise ValueError("a request needs one Host header")  # answered as an invalid request
        url = parse_url(self._url)
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": version,
            "method": parser.get_method().decode("ascii"),
            "path": unquote_to_bytes(url.path or b"/").decode("utf-8", "replace"),
            "raw_path": url.path or b"/",
            "query_string": url.query or b"",
            "root_path": "",
            "headers": self._headers,
            CONNECTION: self,
            **self._addresses,
        }
        expects_continue = headers.get(b"expect", b"").lower() == b"100-continue"
        exchange = _Exchange(self, scope, parser.should_keep_alive(), expects_continue)
        self._receiving = exchange
        self._head_bytes = 0
        self._body_left = int(headers.get(b"content-length", 0))
        self._exchanges.append(exchange)
        if len(self._exchanges) == 1:
            self.task = self._loop.create_task(exchange.run(self._app))

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        self._body_left = max(0, self._body_left - len(body))
        if self._receiving is not None and not self._receiving.complete:
            self._receiving.body += body
            self._receiving.changed.set()

    def on_message_complete(self) -> None:
        if self._receiving is not None:
            self._receiving.more_body = False
            self._receiving.changed.set()
        self._url = b""
        self._headers = []
        self._receiving = None
        self._head_bytes = 0
        self._body_left = 0

    def _reject(self, status: HTTPStatus) -> None:
        """Answer an invalid request, after the response to a valid one before it, and close the connection."""
        if self._receiving is not None:
            self._receiving.disconnect()
        if not self._exchanges and self.transport is not None and not self.transport.is_closing():
            self.transport.write(_status_line(status) + b"connection: close\r\ncontent-length: 0\r\n\r\n")
        self.close_when_idle()

    # What the running request calls

    async def write(self, data: bytes) -> None:
        """Write *data*, and wait until the client has read it."""
        if self.transport is not None:
            self.transport.write(data)
            await self._writable.wait()

    def finish(self, exchange: "_Exchange") -> None:
        """Go on to the next request after the response to the first one."""
        if not self._exchanges or self._exchanges[0] is not exchange:  # the connection is lost
            return
        self._exchanges.popleft()
        self.task = None
        if not exchange.keep_alive:
            self._exchanges.clear()
            if exchange.more_body:
                self._drain()
            elif self.transport is not None:
                self.transport.close()
        elif self._exchanges:
            self.task = self._loop.create_task(self._exchanges[0].run(self._app))
        elif self._unparsed:
            self._loop.call_soon(self.data_received, b"")
        else:
            self._start_timer("idle", self._limits.idle, self._close_idle)
        self.control_reading()

    def _drain(self) -> None:
        """Drop what the client still sends: after a reset of the connection, it would not read the response."""
        transport = self.transport
        if transport is not None and not transport.is_closing():
            self._drains = True
            self._unparsed = b""
            if transport.can_write_eof():
                transport.write_eof()
            self._start_timer("drain", self._limits.drain, transport.close)

    def control_reading(self) -> None:
        """Read nothing while a request waits, or the application does not read the body of one."""
        transport = self.transport
        if transport is None:
            return
        unread = 0 if self._receiving is None or self._receiving.complete else len(self._receiving.body)
        if not self._unparsed and len(self._exchanges) <= 1 and unread < _BODY_BYTES:
            transport.resume_reading()
            return
        transport.pause_reading()
        # While nothing is read over TLS, asyncio reports no end of the connection, and then never closes it.
        if self._addresses["scheme"] == "https" and not transport.is_closing():
            self._start_timer("gone", self._limits.gone, self._check_client)

    def _check_client(self) -> None:
        transport = self.transport
        if transport is not None and not transport.is_closing() and not transport.is_reading():
            if has_hung_up(transport.get_extra_info("socket").fileno()):
                self.close_now()
            else:
                self.control_reading()

    def _close_idle(self) -> None:
        if not self._exchanges and self.transport is not None:
            self.transport.close()

    def _start_timer(self, name: str, seconds: float, action: Callable[[], None]) -> None:
        """Call *action* after *seconds*, unless a timer with this *name* runs already."""

        def call() -> None:
            del self._timers[name]
            action()

        if name not in self._timers:
            self._timers[name] = self._loop.call_later(seconds, call)

    def stop_timer(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()


@dataclass(slots=True, eq=False)
class _Exchange:
    """A request and its response, as an ASGI application sees them."""

    _connection: ServedConnection
    _scope: Scope
    keep_alive: bool  #: whether the connection stays open after the response
    expects_continue: bool
    body: bytearray = field(default_factory=bytearray)  #: of the request, as far as it was not received
    more_body: bool = True
    _received: bool = False  #: whether the application has the whole body
    _disconnected: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)  #: whether there is something to receive
    _head: bytes = b""  #: of the response, until its body comes
    _started: bool = False
    complete: bool = False  #: whether the response is
    _chunked: bool = False
    _left: int | None = None  #: bytes of the response that are still to come; ``None``: unknown

    def disconnect(self) -> None:
        self._disconnected = True
        self.changed.set()

    async def run(self, app: ASGIApp) -> None:
        try:
            await app(self._scope, self._receive, self._send)
            if not self.complete and not self._disconnected:
                self._log_failure("the response has no end")
        except asyncio.CancelledError:  # the server stops
            self._log_failure("the server stops")
        except Exception as error:  # noqa: BLE001 - whatever the application raises
            self._log_failure(repr(error), exc_info=error)
        if not self.complete:
            self.keep_alive = False
            if not self._started:
                self._head = b""
                text = HTTPStatus.INTERNAL_SERVER_ERROR.phrase.encode()
                headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(text))]
                await self._send({"type": "http.response.start", "status": 500, "headers": headers})
                await self._send({"type": "http.response.body", "body": text})
        self._connection.finish(self)

    def _log_failure(self, detail: str, **fields: Any) -> None:  # noqa: ANN401 - of the log
        _log.error("request failed", method=self._scope["method"], path=self._scope["path"], detail=detail, **fields)

    async def _receive(self) -> Message:
        if self.expects_continue and self.more_body and not self._started:
            self.expects_continue = False
            await self._connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while not self._disconnected and not self.complete:
            if self.body or (not self.more_body and not self._received):
                body, self.body = bytes(self.body), bytearray()
                self._received = not self.more_body
                self._connection.control_reading()
                return {"type": "http.request", "body": body, "more_body": self.more_body}
            self.changed.clear()
            await self.changed.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            if self._head or self._started:
                raise RuntimeError("a request has one response")
            self._head = self._build_head(message["status"], message.get("headers", ()))
            if self._left is None:  # the first part of a stream can be minutes away
                head, self._head = self._head, b""
                self._started = True
                await self._connection.write(head)
            return
        if self.complete or not (self._head or self._started):
            raise RuntimeError("a response has one start and one end")
        data, more = message.get("body", b""), message.get("more_body", False)
        if self._scope["method"] == "HEAD":
            data = b""
        elif self._chunked:
            data = (b"%x\r\n%b\r\n" % (len(data), data) if data else b"") + (b"" if more else b"0\r\n\r\n")
        elif self._left is not None:
            self._left -= len(data)
            if self._left < 0 or (self._left and not more):
                raise RuntimeError("the body of a response is not as long as its Content-Length")
        if not more:
            self.complete = True
            self.changed.set()
        # The head with the first part of the body: one system call less, and one packet.
        data = self._head + data
        self._head = b""
        self._started = True
        await self._connection.write(data)

    def _build_head(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        lines = [_status_line(status)]
        for name, value in headers:
            if b"\r" in value or b"\n" in value:
                raise RuntimeError("a header of a response must be one line")
            if name.lower() == b"connection":  # below
                self.keep_alive = self.keep_alive and value.lower() != b"close"
                continue
            if name.lower() == b"content-length":
                self._left = int(value)
            lines.append(b"%b: %b\r\n" % (name, value))
        if self._left is None and status in _NO_BODY:
            self._left = 0
        elif self._left is None and self._scope["http_version"] == "1.0":  # which has no chunks
            self.keep_alive = False
        elif self._left is None:
            self._chunked = True
            lines.append(b"transfer-encoding: chunked\r\n")
        lines.append(_date_line(int(time.time())))
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        return b"".join(lines) + b"\r\n"


@cache
def _status_line(status: int) -> bytes:
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode("ascii")


@lru_cache(maxsize=1)
def _date_line(seconds: int) -> bytes:
    return f"date: {formatdate(seconds, usegmt=True)}\r\n".encode("ascii")


def has_hung_up(descriptor: int) -> bool:
    """Whether the peer of a socket sends nothing more, even if something it sent was not read."""
    poll = select.poll()
    poll.register(descriptor, select.POLLRDHUP)
    return bool(poll.poll(0))
