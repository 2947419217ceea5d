"""The HTTP server: an ASGI application on a listening socket, inside a running event loop.

Signals are left to the process. Strangers cannot lock out clients with the token: a connection is unauthenticated until
a request on it is authorized, with the token or on a socket that needs none. A new connection is never refused. If
there are too many unauthenticated ones, the oldest of them is closed instead: a client with the token sends it at once,
and moves to the slots that are reserved for authenticated connections.
"""

import asyncio
import errno
import ipaddress
import resource
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import structlog
from starlette.types import ASGIApp

from alignup.tasks import cancel_tasks
from alignup.web.authentication import HostCheck
from alignup.web.served_connection import ServedConnection
from alignup.web.sockets import tcp_socket

_ABORT_SECONDS = 10.0  #: for cancelled requests to send an error
_BACKLOG = 512  #: connections that the kernel accepts for us
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0  #: seconds between attempts to accept without a free file descriptor
_REPORT_SECONDS = 60.0  #: between log lines about that
_NO_DESCRIPTORS = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_DESCRIPTORS_PER_SLOT = 4  #: of each kind of connection; the other half of the descriptors is for everything else
_POLL_SECONDS = 0.01  #: between checks whether all connections are closed
_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    authenticated: int = 768
    unauthenticated: int = 256
    per_peer: int = 64  #: unauthenticated connections from one address

    def within_descriptors(self) -> "ConnectionLimits":
        """Return limits that leave half of the file descriptors of this process for other uses."""
        slots = max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _DESCRIPTORS_PER_SLOT)
        return ConnectionLimits(**{name: min(limit, slots) for name, limit in asdict(self).items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    head: float = 10.0  #: seconds for the TLS handshake, and to receive the request line and headers
    head_bytes: int = 64 << 10  #: of the request line and headers; each header counts 32 more
    idle: float = 30.0  #: seconds before an idle connection is closed
    first: float | None = None  #: the same for one without any request yet; ``None``: as for the head
    read: float = 60.0  #: seconds for a client to read a response, or a chunk of a stream
    unauthenticated: float = 30.0  #: seconds before a connection without an authorized request is closed
    drain: float = 5.0  #: seconds for a client to read the response to a request that it is still sending
    gone: float = 5.0  #: seconds between checks whether a TLS client is still there while nothing is read from it
    end: float = 10.0  #: seconds to finish running requests at shutdown
    names: tuple[str, ...] = ()  #: by which clients may call the program, beside those that HostCheck allows
    connections: ConnectionLimits = field(default_factory=lambda: ConnectionLimits().within_descriptors())


def kubernetes_limits(names: tuple[str, ...] = ()) -> ServerLimits:
    """Return the limits of listeners that API servers and schedulers call.

    Their clients keep an idle connection for 90 seconds. A POST on a connection that the server closes at this moment
    fails, and is not repeated. So the clients must be the ones to close idle connections.
    """
    return ServerLimits(idle=180.0, first=180.0, unauthenticated=180.0, names=names)


class ConnectionTable:
    """The open connections of a server, authenticated and unauthenticated ones."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._authenticated: set[ServedConnection] = set()
        self._peers: dict[ServedConnection, str | None] = {}  #: of unauthenticated connections
        self._by_peer: dict[str | None, dict[ServedConnection, None]] = {}  #: unauthenticated connections, oldest first

    def __len__(self) -> int:
        return len(self._authenticated) + len(self._peers)

    def add(self, connection: ServedConnection, peer: str | None) -> None:
        """Add an unauthenticated connection; close the oldest if there are too many now.

        *peer* is the address of the client, ``None`` on a unix socket.
        """
        group = self._by_peer.setdefault(peer, {})
        if peer is not None and len(group) >= self._limits.per_peer:
            self._close_oldest(peer)
        elif len(self._peers) >= self._limits.unauthenticated:
            self.close_one()
        self._by_peer.setdefault(peer, group)[connection] = None
        self._peers[connection] = peer

    def authenticate(self, connection: ServedConnection) -> bool:
        """Count *connection* as authenticated; return whether there is a slot for it."""
        if connection not in self._peers:  # authenticated or closed
            return True
        if len(self._authenticated) >= self._limits.authenticated:
            return False
        self.remove(connection)
        self._authenticated.add(connection)
        return True

    def remove(self, connection: ServedConnection) -> None:
        self._authenticated.discard(connection)
        if connection in self._peers:
            peer = self._peers.pop(connection)
            del self._by_peer[peer][connection]
            if not self._by_peer[peer]:
                del self._by_peer[peer]

    def close_one(self) -> None:
        """Close the oldest unauthenticated connection of the client that has most of them, if there is one."""
        if self._by_peer:
            self._close_oldest(max(self._by_peer, key=lambda peer: len(self._by_peer[peer])))

    def _close_oldest(self, peer: str | None) -> None:
        oldest = next(iter(self._by_peer[peer]), None)
        if oldest is not None:
            self.remove(oldest)
            oldest.close_now()


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

    Requests must call this program by its address, or by a name that :class:`HostCheck` allows.
    On exit, set *stopping*, which ends event streams, and finish running requests within *limits*.
    """
    limits = limits or ServerLimits()
    listener.settimeout(0)
    listener.listen(_BACKLOG)
    server = _Server(HostCheck(app, limits.names), listener, limits, tls)
    server.start()
    try:
        yield
    finally:
        stopping.set()
        await server.stop()


@asynccontextmanager
async def serve_tcp(app: ASGIApp, listen: tuple[str, int], *, names: tuple[str, ...]) -> AsyncIterator[None]:
    """Serve *app* on a host and port inside the context; clients call this program by one of *names*."""
    with tcp_socket(listen[1], listen[0]) as listener:
        async with serve_app(app, listener, stopping=asyncio.Event(), limits=ServerLimits(names=(*names, listen[0]))):
            yield


class _Server:
    """Accepts connections, one in each turn of the event loop.

    asyncio's own server logs thousands of lines per second when there is no free file descriptor, and leaves no choice
    which connections to close.
    """

    def __init__(
        self, app: ASGIApp, listener: socket.socket, limits: ServerLimits, tls: Callable[[], ssl.SSLContext] | None
    ) -> None:
        self._app = app
        self._listener = listener
        self._limits = limits
        self._tls = tls
        self._table = ConnectionTable(limits.connections)
        self._loop = asyncio.get_running_loop()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._open: set[ServedConnection] = set()  #: connections with a transport
        self._retry: asyncio.TimerHandle | None = None
        self._pause = _FIRST_PAUSE
        self._reported = -_REPORT_SECONDS

    def start(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    async def stop(self) -> None:
        """Close idle connections, let requests finish, cancel requests that take too long, and close the listener."""
        self._loop.remove_reader(self._listener)
        if self._retry is not None:
            self._retry.cancel()
        await cancel_tasks(self._handshakes)
        self._listener.close()
        for connection in tuple(self._open):
            connection.close_when_idle()
        end = self._loop.time() + self._limits.end
        while self._open and self._loop.time() < end:  # noqa: ASYNC110 - connections close for many reasons
            await asyncio.sleep(_POLL_SECONDS)
        tasks = [connection.task for connection in self._open if connection.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_ABORT_SECONDS)
        for connection in tuple(self._open):
            connection.close_now()

    def _accept(self) -> None:
        try:
            client, address = self._listener.accept()
        except OSError as error:
            if error.errno in _NO_DESCRIPTORS:
                self._wait_for_descriptors(error)
            return  # the client is gone already
        self._pause = _FIRST_PAUSE
        client.settimeout(0)
        connection = ServedConnection(self._app, self._limits, self._table, self._open)

        def end(task: asyncio.Task[None]) -> None:
            self._handshakes.discard(task)
            connection.handshake = None
            if not connection.established:
                client.close()
                self._table.remove(connection)

        connection.handshake = task = self._loop.create_task(self._shake_hands(connection, client))
        self._handshakes.add(task)
        task.add_done_callback(end)
        self._table.add(connection, peer_of(address))

    def _wait_for_descriptors(self, error: OSError) -> None:
        now = self._loop.time()
        if now - self._reported >= _REPORT_SECONDS:
            self._reported = now
            _log.warning("cannot accept connections", error=error.strerror)
        self._table.close_one()
        self._loop.remove_reader(self._listener)
        self._retry = self._loop.call_later(self._pause, self.start)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    async def _shake_hands(self, connection: ServedConnection, client: socket.socket) -> None:
        context = None if self._tls is None else self._tls()
        timeout = None if context is None else self._limits.head
        with suppress(OSError):  # no valid TLS handshake, or not in time
            await self._loop.connect_accepted_socket(
                lambda: connection, client, ssl=context, ssl_handshake_timeout=timeout, ssl_shutdown_timeout=timeout
            )


def peer_of(address: object) -> str | None:
    """Return the client in the address of a socket: its IPv4 address, or its IPv6 network; ``None``: a unix socket.

    One client usually has a whole IPv6 network (/64) of addresses.
    """
    if not isinstance(address, tuple):
        return None
    try:
        ip = ipaddress.ip_address(str(address[0]).partition("%")[0])
    except ValueError:
        return str(address[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            return str(ip.ipv4_mapped)
        return str(ipaddress.ip_network((int(ip) >> 64 << 64, 64)))
    return str(ip)


async def run_until_signal(work: Coroutine[Any, Any, None]) -> None:
    """Run *work*, and cancel it on SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    work_task = asyncio.ensure_future(work)
    for number in _SIGNALS:
        loop.add_signal_handler(number, work_task.cancel)
    try:
        with suppress(asyncio.CancelledError):
            await work_task
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
