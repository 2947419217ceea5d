"""uvicorn on a listening socket, inside a running event loop: it leaves signals to the process.

Every limit that a hostile client could run into is here or in ``connections``, because httptools, the HTTP parser, has
none: how long and how large the head of a request is, how many requests are parsed ahead, how long a client takes to
read what it asked for, how long a connection stays unauthenticated, and how many there are.
"""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus

import uvicorn
from starlette.types import ASGIApp, Scope
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from alignup.web.connections import ConnectionLimits, ConnectionTable, has_hung_up, peer_of
from alignup.web.response_cycles import Http10Cycle, ResponseCycle

#: The key of the :class:`ServedConnection` in the ASGI scope of a request.
CONNECTION = "alignup.connection"

_ABORT_SECONDS = 10.0  #: for cancelled requests to send an error
_SLICE_BYTES = 4 << 10  #: parsed at once: the parser does not stop at the end of a request
_HEADER_BYTES = 32  #: that a header counts beside its text, as in HTTP/2: many short ones need much memory
_BACKLOG = 512  #: connections that the kernel accepts for us
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0  #: seconds between attempts to accept without a free file descriptor
_REPORT_SECONDS = 60.0  #: between log lines about that
_NO_DESCRIPTORS = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    head: float = 10.0  #: seconds for the TLS handshake, and to receive the request line and headers
    head_bytes: int = 64 << 10  #: of the request line and headers; see _HEADER_BYTES
    idle: int = 30  #: seconds before an idle connection is closed
    read: float = 60.0  #: seconds for a client to read a response, or a chunk of a stream
    unauthenticated: float = 30.0  #: seconds before a connection without an authorized request is closed
    gone: float = 5.0  #: seconds between checks whether a TLS client is still there while nothing is read from it
    end: float = 10.0  #: seconds to finish running requests at shutdown
    connections: ConnectionLimits = field(default_factory=lambda: ConnectionLimits().within_descriptors())


@asynccontextmanager
async def serve_app(
    app: ASGIApp,
    listener: socket.socket,
    *,
    stopping: asyncio.Event,
    limits: ServerLimits | None = None,
    tls: Callable[[], ssl.SSLContext] | None = None,
) -> AsyncIterator[None]:
    """Serve *app* on *listener* inside the context; with *tls*, which is called for every connection, over TLS.

    On exit, set *stopping*, which ends event streams, and finish running requests within *limits*.
    """
    limits = limits or ServerLimits()
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # strangers must not write to the log
    server = uvicorn.Server(_config(app, limits))
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    await server.startup(sockets=[])
    listener.settimeout(0)
    listener.listen(_BACKLOG)
    acceptor = _Acceptor(listener, server, limits, tls)
    acceptor.start()
    ticks = asyncio.ensure_future(server.main_loop())  # sets the date that responses carry
    try:
        yield
    finally:
        stopping.set()
        ticks.cancel()
        await acceptor.stop()
        await server.shutdown(sockets=[listener])
        if server.server_state.tasks:  # which were cancelled, and send an error
            await asyncio.wait(server.server_state.tasks, timeout=_ABORT_SECONDS)
        for connection in tuple(server.server_state.connections):
            connection.transport.abort()


class _Acceptor:
    """Accepts connections, one in each turn of the event loop.

    asyncio's own server logs thousands of lines per second when there is no free file descriptor, and leaves no choice
    which connections to close.
    """

    def __init__(
        self,
        listener: socket.socket,
        server: uvicorn.Server,
        limits: ServerLimits,
        tls: Callable[[], ssl.SSLContext] | None,
    ) -> None:
        self._listener = listener
        self._server = server
        self._limits = limits
        self._tls = tls
        self._table = ConnectionTable(limits.connections)
        self._loop = asyncio.get_running_loop()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._pause = _FIRST_PAUSE
        self._reported = -_REPORT_SECONDS

    def start(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    async def stop(self) -> None:
        self._loop.remove_reader(self._listener)
        if self._retry is not None:
            self._retry.cancel()
        for task in self._handshakes:
            task.cancel()
        await asyncio.gather(*self._handshakes, return_exceptions=True)

    def _accept(self) -> None:
        try:
            accepted, address = self._listener.accept()
        except OSError as error:
            if error.errno in _NO_DESCRIPTORS:
                self._wait_for_descriptors(error)
            return  # the client is gone already
        self._pause = _FIRST_PAUSE
        accepted.settimeout(0)
        config, state = self._server.config, self._server.server_state
        connection = ServedConnection(config, state, {}, table=self._table, limits=self._limits)
        self._start(connection, accepted)
        self._table.add(connection, peer_of(address))

    def _wait_for_descriptors(self, error: OSError) -> None:
        now = self._loop.time()
        if now - self._reported >= _REPORT_SECONDS:
            self._reported = now
            _log.warning("cannot accept connections now: %s", error.strerror)
        self._table.close_one()
        self._loop.remove_reader(self._listener)
        self._retry = self._loop.call_later(self._pause, self.start)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def _start(self, connection: "ServedConnection", accepted: socket.socket) -> None:
        def end(task: asyncio.Task[None]) -> None:
            self._handshakes.discard(task)
            if not connection.established:
                accepted.close()
                self._table.remove(connection)

        connection.handshake = task = asyncio.ensure_future(self._shake_hands(connection, accepted))
        self._handshakes.add(task)
        task.add_done_callback(end)

    async def _shake_hands(self, connection: "ServedConnection", accepted: socket.socket) -> None:
        context = None if self._tls is None else self._tls()
        timeout = None if context is None else self._limits.head
        with suppress(OSError):  # no valid TLS handshake, or not in time
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=context,
                ssl_handshake_timeout=timeout,
                ssl_shutdown_timeout=timeout,
            )


class _FlowControl(FlowControl):
    """Reads nothing while reading is held, whatever uvicorn resumes."""

    _held = False

    def __init__(self, transport: asyncio.Transport, *, on_pause: Callable[[], None]) -> None:
        super().__init__(transport)
        self.on_pause: Callable[[], None] | None = on_pause

    def pause_reading(self) -> None:
        super().pause_reading()
        if self.on_pause is not None:
            self.on_pause()

    def hold_reading(self, held: bool) -> None:  # noqa: FBT001 - the only parameter
        if held:
            self.pause_reading()
        was_held, self._held = self._held, held
        if was_held and not held:
            self.resume_reading()

    def resume_reading(self) -> None:
        if not self._held:
            super().resume_reading()


class ServedConnection(HttpToolsProtocol):
    """A connection with limits.

    While a request waits for the response to an earlier one, what the client sends is neither parsed nor read.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: uvicorn.server.ServerState,
        app_state: dict[str, object],
        *,
        table: ConnectionTable,
        limits: ServerLimits,
    ) -> None:
        super().__init__(config, server_state, app_state)
        self.handshake: asyncio.Task[None] | None = None
        self.established = False  #: whether there is a transport
        self._over_tls = False
        self._table = table
        self._limits = limits
        self._reading_body = False  #: whether the next byte belongs to the body of a request, or its trailers
        self._head_bytes = 0  #: received of the head of the next request, or of a body without its content
        self._body_left = 0  #: bytes of the body that are still to come, if its length is known
        self._unparsed = b""  #: received while a request was waiting
        self._ignores_rest = False  #: after an invalid request, or a request to change the protocol
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def authenticate(self) -> bool:
        """Move the connection to the authenticated ones; return whether there is a slot for it."""
        self._stop_timer("unauthenticated")
        return self._table.authenticate(self)

    def has_received(self, scope: Scope) -> bool:
        """Whether the request with this *scope*, if it is the latest, has arrived completely."""
        return self.cycle is not None and self.cycle.scope is scope and not self.cycle.more_body

    def close_now(self) -> None:
        if self.established:
            self.transport.abort()
        elif self.handshake is not None:
            self.handshake.cancel()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn itself
        super().connection_made(transport)
        self.established = True
        self._over_tls = transport.get_extra_info("sslcontext") is not None
        self.flow = self._flow = _FlowControl(transport, on_pause=self._watch_client)
        transport.set_write_buffer_limits(high=1, low=0)  # pause_writing while anything is unread
        self._start_timer("head", self._limits.head, self._time_out)
        self._start_timer("unauthenticated", self._limits.unauthenticated, transport.close)

    def data_received(self, data: bytes) -> None:
        self._unparsed += data
        self._parse()

    def _parse(self) -> None:
        """Parse what was received, up to the first request that must wait for another response."""
        while self._unparsed and not self.pipeline and not self.transport.is_closing():
            size = self._body_left or min(_SLICE_BYTES, self._limits.head_bytes - self._head_bytes)
            part, self._unparsed = self._unparsed[:size], self._unparsed[size:]
            if self._ignores_rest:
                continue
            self._head_bytes += len(part)
            super().data_received(part)
            if self._head_bytes >= self._limits.head_bytes:
                self._reject_head()
        self._flow.hold_reading(bool(self._unparsed))
        if not self._between_requests():
            self._stop_timer("head")
        elif not self.transport.is_closing():
            self._start_timer("head", self._limits.head, self._time_out)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[CONNECTION] = self  # type: ignore[literal-required] # an ASGI scope may have more keys
        self._reading_body = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._reading_body:  # trailers are ignored
            self._head_bytes += _HEADER_BYTES
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.get_http_version() == "1.1" and sum(name == b"host" for name, _ in self.headers) != 1:
            raise ValueError("a request needs one Host header")  # answered as an invalid request
        super().on_headers_complete()
        self._reading_body, self._head_bytes = True, 0
        self._body_left = next((int(value) for name, value in self.headers if name == b"content-length"), 0)
        self.cycle.__class__ = Http10Cycle if self.scope["http_version"] == "1.0" else ResponseCycle
        if self.parser.should_upgrade():  # the parser reads no further
            self.cycle.keep_alive = False
            self._ignores_rest = True

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        self._body_left = max(0, self._body_left - len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._reading_body, self._head_bytes, self._body_left = False, 0, 0

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._unparsed:
            self.loop.call_soon(self._parse)

    def send_400_response(self, msg: str) -> None:
        """Answer an invalid request, after the response to a valid one before it."""
        self._ignores_rest = True
        if self._reading_body or self._between_requests():
            super().send_400_response(msg)
        else:
            self.cycle.keep_alive = False

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_timer("read", self._limits.read, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_timer("read")

    def connection_lost(self, exc: Exception | None) -> None:
        for name in tuple(self._timers):
            self._stop_timer(name)
        self._table.remove(self)
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # uvicorn does so only without an error
        # These refer to the connection. Without them, its headers are freed now, not when garbage is collected.
        self.pipeline.clear()
        self._flow.on_pause = None
        self.scope = self.cycle = None  # type: ignore[assignment] # as uvicorn does with the parser

    def _watch_client(self) -> None:
        """While nothing is read over TLS, asyncio reports no end of the connection, and then never closes it."""
        if self._over_tls and not self.transport.is_closing():
            self._start_timer("gone", self._limits.gone, self._check_client)

    def _check_client(self) -> None:
        if self._flow.read_paused and not self.transport.is_closing():
            if has_hung_up(self.transport.get_extra_info("socket").fileno()):
                self.transport.abort()
            else:
                self._watch_client()

    def _between_requests(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _reject_head(self) -> None:
        if not self.transport.is_closing():
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            self.transport.write(
                b"HTTP/1.1 %d %s\r\nConnection: close\r\nContent-Length: 0\r\n\r\n" % (status, status.phrase.encode())
            )
            self.transport.close()

    def _time_out(self) -> None:
        if self._between_requests():
            self.transport.close()

    def _start_timer(self, name: str, seconds: float, action: Callable[[], None]) -> None:
        """Call *action* after *seconds*, unless a timer with this *name* runs already."""

        def call() -> None:
            del self._timers[name]
            action()

        if name not in self._timers:
            self._timers[name] = self.loop.call_later(seconds, call)

    def _stop_timer(self, name: str) -> None:
        with suppress(KeyError):
            self._timers.pop(name).cancel()


def _config(app: ASGIApp, limits: ServerLimits) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=ServedConnection,
        ws="none",
        loop="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=limits.idle,
        timeout_graceful_shutdown=limits.end,  # type: ignore[arg-type] # uvicorn takes fractions too
    )
