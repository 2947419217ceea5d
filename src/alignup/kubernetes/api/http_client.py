"""HTTP/1.1 to one server: connections that are kept, TLS, proxies, and a time limit for every step.

It is written by hand because of its cost. The gate sends a request for every pod, and the observer runs on every node:
a general HTTP library needs several times the CPU time for a request, and 5 MB of memory.
"""

import asyncio
import base64
import ipaddress
import re
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self
from urllib.parse import unquote, urlsplit

from alignup.kubernetes.api.http_connection import ClientConnection, HttpError, HttpResponse, describe_failure

MAX_CONNECTIONS = 200
MAX_IDLE = 64  #: connections that are kept: another TLS handshake costs more than a request
_EYEBALLS_SECONDS = 0.25  #: after which the next address of a host is tried beside the first, as RFC 8305 says
_NOT_IN_TARGET = re.compile(r"[^\x21-\x7e]")
_NOT_IN_HEADER = re.compile(r"[\0\r\n]")


@dataclass(frozen=True, slots=True)
class _Address:
    """The server of a URL."""

    tls: bool
    host: str
    port: int
    path: str  #: of the URL, without a slash at its end
    name: str  #: as in the URL: the host, and the port if it is given
    authorization: str  #: the value of a header for the user in the URL; empty: there is none

    @classmethod
    def of(cls, url: str) -> Self:
        """Read a URL; :class:`ValueError` if it is unusable."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https"):
            raise ValueError(f"the scheme is {parts.scheme or 'missing'}; http and https are supported")
        if not parts.hostname:
            raise ValueError("there is no host")
        name = parts.netloc.rpartition("@")[2]
        if _NOT_IN_TARGET.search(name + parts.path):
            raise ValueError("it has a character that must be escaped")
        try:
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            raise ValueError("the port is not a number up to 65535") from None
        user = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username is not None else ""
        authorization = f"Basic {base64.b64encode(user.encode()).decode()}" if user else ""
        return cls(parts.scheme == "https", parts.hostname, port, parts.path.rstrip("/"), name, authorization)

    @property
    def numeric(self) -> bool:
        """Whether the host is an IP address."""
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            return False
        return True

    @property
    def endpoint(self) -> str:
        """Host and port."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class HttpClient:
    """The connections to one server; *tls* is for ``https``, *proxy* a URL.

    :class:`ValueError` if a URL is unusable.
    """

    def __init__(
        self,
        url: str,
        *,
        connect_seconds: float,
        tls: ssl.SSLContext | None = None,
        server_name: str = "",
        proxy: str = "",
    ) -> None:
        self._server, self._proxy = _Address.of(url), _Address.of(proxy) if proxy else None
        self._tls = (tls or ssl.create_default_context()) if self._server.tls else None
        self.authorization = self._server.authorization  #: for a request without another
        self._server_name = server_name or self._server.host
        self._proxy_tls = ssl.create_default_context() if self._proxy is not None and self._proxy.tls else None
        self._connect_seconds = connect_seconds
        self._closed = False
        self._idle: list[ClientConnection] = []  #: the last used one last
        self._open: set[ClientConnection] = set()
        self._slots = asyncio.Semaphore(MAX_CONNECTIONS)
        self._prefix = self._server.path
        self._first_headers = [f"Host: {self._server.name}"]
        if self._proxy is not None and not self._server.tls:
            self._prefix = f"http://{self._server.name}{self._server.path}"
            self._first_headers += _proxy_headers(self._proxy)

    async def close(self) -> None:
        """End all requests; later ones fail."""
        self._closed = True
        for connection in self._open:
            connection.abort()
        if self._open:
            await asyncio.wait([connection.ended for connection in self._open])

    async def send(
        self,
        method: str,
        target: str,
        headers: Iterable[tuple[str, str]],
        body: bytes | None = None,
        *,
        seconds: float,
    ) -> HttpResponse:
        """Send a request, and return the response when its head is there; it must be closed.

        :class:`HttpError` if there is none, also after *seconds* without a byte of it; :class:`ValueError` if it is no
        valid request.
        """
        request = self._encode(method, target, headers, body)
        await self._wait_for_slot()
        try:
            connection = self._take_idle() or await self._connect()
        except BaseException:
            self._slots.release()
            raise
        response = connection.send(request, seconds)
        try:
            await response.wait_for_head()
        except BaseException:
            response.close()
            raise
        return response

    def _encode(self, method: str, target: str, headers: Iterable[tuple[str, str]], body: bytes | None) -> bytes:
        if _NOT_IN_TARGET.search(target):
            raise ValueError("a URL has a character that must be escaped")
        lines = [f"{method} {self._prefix}{target} HTTP/1.1", *self._first_headers]
        lines += [f"{name}: {value}" for name, value in headers]
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
        head = "\r\n".join([*lines, "", ""])
        if head.count("\r") + head.count("\n") > 2 * (len(lines) + 1) or "\0" in head:
            name = next(line for line in lines if _NOT_IN_HEADER.search(line)).partition(":")[0]
            raise ValueError(f"the header {name} has a line break")
        return head.encode() + (body or b"")

    async def _wait_for_slot(self) -> None:
        if not self._slots.locked():
            await self._slots.acquire()
            return
        try:
            async with asyncio.timeout(self._connect_seconds):
                await self._slots.acquire()
        except TimeoutError:
            message = f"none of {MAX_CONNECTIONS} connections was free within {self._connect_seconds:g} seconds"
            raise HttpError(message, sent=False) from None

    def _take_idle(self) -> ClientConnection | None:
        """Return the connection that was used last; those that are of no use any more are closed."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
            connection.abort()
        return None

    def give_back(self, connection: ClientConnection, *, reusable: bool) -> None:
        """Keep a connection for another request, or close it."""
        self._slots.release()
        if not reusable or connection not in self._open:
            connection.abort()
            return
        connection.idle_since = connection.loop.time()
        self._idle.append(connection)
        if len(self._idle) > MAX_IDLE or not self._idle[0].fresh:
            self._idle.pop(0).abort()

    def opened(self, connection: ClientConnection) -> None:
        self._open.add(connection)
        if self._closed:
            connection.abort()

    def closed(self, connection: ClientConnection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    async def _connect(self) -> ClientConnection:
        if self._closed:
            raise HttpError("the client is closed", sent=False)
        try:
            async with asyncio.timeout(self._connect_seconds):
                if self._proxy is None:
                    return await self._connect_to(self._server, self._tls, self._server_name)
                connection = await self._connect_to(self._proxy, self._proxy_tls, self._proxy.host)
                if self._tls is not None:
                    await self._open_tunnel(connection, self._proxy, self._tls)
                return connection
        except HttpError as error:
            raise HttpError(str(error), sent=False) from error
        except (OSError, UnicodeError) as error:  # a name that is not one is a UnicodeError
            if isinstance(error, TimeoutError) and not error.errno:
                reason = f"no connection within {self._connect_seconds:g} seconds"
            else:
                reason = describe_failure(error)
            raise HttpError(reason, sent=False) from error

    async def _connect_to(self, address: _Address, tls: ssl.SSLContext | None, name: str) -> ClientConnection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: ClientConnection(self, loop),
            address.host,
            address.port,
            ssl=tls,
            server_hostname=name if tls else None,
            happy_eyeballs_delay=None if address.numeric else _EYEBALLS_SECONDS,
        )
        return connection

    async def _open_tunnel(self, connection: ClientConnection, proxy: _Address, tls: ssl.SSLContext) -> None:
        """Let the proxy connect to the server, and begin TLS with it."""
        name = self._server.endpoint
        lines = [f"CONNECT {name} HTTP/1.1", f"Host: {name}", *_proxy_headers(proxy), "", ""]
        response = connection.send("\r\n".join(lines).encode(), self._connect_seconds)
        try:
            await response.wait_for_head()
        except BaseException:
            connection.abort()
            raise
        if not 200 <= response.status < 300:
            connection.abort()
            raise HttpError(f"the proxy {proxy.endpoint} responded with HTTP status {response.status}")
        await connection.start_tls(tls, self._server_name)


def _proxy_headers(proxy: _Address) -> list[str]:
    return [f"Proxy-Authorization: {proxy.authorization}"] if proxy.authorization else []
