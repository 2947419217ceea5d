"""Requests to one API server: authentication, limits, repeated attempts, and errors as :class:`ApiError`.

aiohttp sends them. ``docs/why/http-client.md`` says why, and what it costs.
"""

import asyncio
import base64
import os
import re
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Self
from urllib.parse import unquote, urlencode, urlsplit

import aiohttp
from yarl import URL

from alignup.kubernetes.api.access import Access
from alignup.kubernetes.api.credentials import ClientCertificate, Credential
from alignup.kubernetes.api.errors import (
    AccessError,
    ApiError,
    ApiStatusError,
    NotFoundError,
    ServerFailureError,
    TooManyRequestsError,
    UnreachableError,
    UnreadableError,
    status_error,
)
from alignup.kubernetes.api.resource import ApiRequest
from alignup.kubernetes.api.timing import RetryDelay, Timing

MAX_CONNECTIONS = 200
MAX_LINE = 64 << 20  #: bytes of one event of a watch: many times the largest object that etcd stores
_IDLE_SECONDS = 30.0  #: for which an idle connection is kept: the server, or something between, closes older ones
_PASSING = frozenset({429, 502, 503, 504})  #: status codes of failures that pass
#: Nothing was sent if one of these is the reason.
_NOT_SENT = (aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError, aiohttp.ClientHttpProxyError)
#: A peer that is gone without a word is noticed after about a minute, also by a watch without events.
_KEEPALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
        if hasattr(socket, name)
    ),
]
_USER = re.compile(r"^([a-z0-9]+://)?.*@", re.IGNORECASE)  #: and a password, in a URL
_NOT_IN_URL = re.compile(r"[^\x21-\x7e]")
_NUMBERS = re.compile(r"\[Errno (\d+)\]")


class _FailedError(Exception):
    """A failure that ends a request: aiohttp repeats some requests after errors of its own types."""

    def __init__(self, error: aiohttp.ClientError) -> None:
        self.error = error
        super().__init__(str(error))


@dataclass(frozen=True, slots=True)
class _Address:
    """The server of a URL."""

    url: str  #: without a user, and without a slash at its end
    host: str
    tls: bool
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
        if _NOT_IN_URL.search(name + parts.path):
            raise ValueError("it has a character that must be escaped")
        try:
            parts.port  # noqa: B018 - checks it
        except ValueError:
            raise ValueError("the port is not a number up to 65535") from None
        user = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username is not None else ""
        authorization = f"Basic {base64.b64encode(user.encode()).decode()}" if user else ""
        address = f"{parts.scheme}://{name}{parts.path.rstrip('/')}"
        return cls(address, parts.hostname, parts.scheme == "https", authorization)


class _ServerOrProxyContext(ssl.SSLContext):
    """The TLS settings of a server, and of the proxy before the server: aiohttp has one context for both."""

    server: ssl.SSLContext
    proxy: ssl.SSLContext
    proxy_name: str

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,  # noqa: FBT001, FBT002 - the signature of the base
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        context = self.proxy if server_hostname == self.proxy_name else self.server
        return context.wrap_bio(incoming, outgoing, server_side, server_hostname, session)


class Connection:
    """The HTTP connections to an API server."""

    def __init__(self, access: Access, timing: Timing) -> None:
        self.access = access
        self.timing = timing
        self._limits = aiohttp.ClientTimeout(timing.total, timing.connect, timing.response)
        self._session: aiohttp.ClientSession | None = None
        self._closed = False
        self._responses: set[aiohttp.ClientResponse] = set()  #: that are being received
        self._certificate: ClientCertificate | None = None
        self._tls: ssl.SSLContext | None = None  #: with this certificate
        self._headers = [*access.headers, ("User-Agent", access.user_agent)]
        self._headers.append(("Accept-Encoding", "gzip" if access.compress else "identity"))
        self._proxy_headers = [("User-Agent", access.user_agent)]

    async def close(self) -> None:
        """Close the connections; requests that are under way fail, and are not sent again."""
        self._closed = True
        for response in tuple(self._responses):
            self._finish(response)
        if self._session is not None:
            await self._session.close()

    async def send(self, request: ApiRequest) -> bytes:
        """Return the body of the response; :class:`ApiError` if it is not a success."""
        delay = RetryDelay(self.timing)
        for attempt in range(self.timing.attempts):
            try:
                response = await self._response(request, self._limits)
                return await self._read(response, self._limits, request.max_bytes)
            except NotFoundError:
                if attempt and request.method == "DELETE" and request.idempotent:
                    return b""  # an attempt whose response was lost has deleted it
                raise
            except (ApiStatusError, UnreachableError) as error:
                if attempt + 1 == self.timing.attempts or not _repeatable(request, error):
                    raise
                await delay.wait(at_least=getattr(error, "retry_after", None) or 0.0)
        raise AssertionError  # the last attempt returns or raises

    @asynccontextmanager
    async def lines(self, request: ApiRequest, *, seconds: float) -> AsyncIterator[AsyncIterator[bytes]]:
        """Yield the lines of a response as they arrive, for at most *seconds*."""
        limits = aiohttp.ClientTimeout(seconds, self.timing.connect)
        response = await self._response(request, limits)
        try:
            yield self._lines(response, limits)
        finally:
            self._finish(response)

    async def _lines(self, response: aiohttp.ClientResponse, limits: aiohttp.ClientTimeout) -> AsyncIterator[bytes]:
        begun: list[bytes] = []  # parts of a line that has not ended
        size = 0  # their bytes
        async for chunk in self._chunks(response, limits):
            first, *others = chunk.split(b"\n")
            begun.append(first)
            size += len(first)
            for other in others:
                line = b"".join(begun)
                begun = [other]
                size = len(other)
                if line:
                    yield line
            if size > MAX_LINE:
                raise self._unreachable(f"a line of the response is larger than {MAX_LINE >> 20} MiB")

    async def _response(self, request: ApiRequest, limits: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        """Return the successful response; a rejected credential is replaced once if there is another."""
        credential = await self.access.credentials.current()
        response = await self._send_once(request, credential, limits)
        if response.status == 401:
            self.access.credentials.reject(credential)
            try:
                another = await self.access.credentials.current()
            except BaseException:
                self._finish(response)
                raise
            if another != credential:
                self._finish(response)
                response = await self._send_once(request, another, limits)
        if 200 <= response.status < 300:
            return response
        body = await self._read(response, limits, request.max_bytes)
        user = f" as {self.access.source}" if response.status == 401 and self.access.source else ""
        retry_after = response.headers.get("Retry-After")
        raise status_error(request.description + user, code=response.status, body=body, retry_after=retry_after)

    async def _send_once(  # noqa: C901 - a clause for each kind of failure
        self, request: ApiRequest, credential: Credential, limits: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        """Return the response when its head is there; it must be finished."""
        if self._closed:
            raise self._unreachable("the client is closed", sent=False)
        session = self._open_session()
        headers = [*self._headers, ("Accept", request.accept)]
        if authorization := credential.authorization or self._server.authorization:
            headers.append(("Authorization", authorization))
        if request.body is not None:
            headers.append(("Content-Type", request.content_type))
        target = f"{request.path}?{urlencode(request.parameters)}" if request.parameters else request.path
        try:
            if _NOT_IN_URL.search(target):
                raise ValueError("a URL has a character that must be escaped")  # noqa: TRY301
            response = await session.request(
                request.method,
                URL(self._server.url + target, encoded=True),
                headers=headers,
                data=request.body,
                allow_redirects=False,
                timeout=limits,
                ssl=self._tls_context(credential.certificate) or True,
                server_hostname=self.access.server_name or None,
                proxy_headers=self._proxy_headers,
            )
        except _FailedError as failure:
            raise self._failure(failure.error, limits) from failure.error
        except TimeoutError as error:
            raise self._failure(error, limits) from error
        except AttributeError as error:  # TLS within TLS failed, in early releases of Python 3.11 and 3.12
            raise self._unreachable(str(_first_cause(error)), sent=False) from error
        except ValueError as error:
            raise AccessError(f"{self.access.source}: cannot send a request: {error}") from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if session.closed and task is not None and not task.cancelling():  # it was waiting for a connection
                raise self._unreachable("the client is closed", sent=False) from None
            raise
        self._responses.add(response)
        return response

    def _open_session(self) -> aiohttp.ClientSession:
        """Return the session; :class:`AccessError` if there is none yet, and an address is unusable."""
        if self._session is None:
            access = self.access
            try:
                self._server = _Address.of(access.server)
                self._proxy = _Address.of(access.proxy) if access.proxy else None
            except ValueError as error:
                proxy = f" by proxy {_shown(access.proxy)}" if access.proxy else ""
                raise AccessError(f"{access.source}: cannot use {_shown(access.server)}{proxy}: {error}") from None
            if self._proxy is not None and self._proxy.authorization:
                headers = self._proxy_headers if self._server.tls else self._headers
                headers.append(("Proxy-Authorization", self._proxy.authorization))
            connector = aiohttp.TCPConnector(
                limit=MAX_CONNECTIONS, keepalive_timeout=_IDLE_SECONDS, socket_factory=_make_socket
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                middlewares=(_send_once_only,),
                proxy=self._proxy.url if self._proxy is not None else None,
            )
        return self._session

    def _tls_context(self, certificate: ClientCertificate | None) -> ssl.SSLContext | None:
        """Return the TLS settings of all connections; other settings, and so a new certificate, open new ones."""
        proxy = self._proxy
        if self._tls is None or certificate != self._certificate:
            server_tls = self.access.ssl_context(certificate) if self._server.tls else None
            proxy_tls = ssl.create_default_context() if proxy is not None and proxy.tls else None
            self._certificate = certificate
            self._tls = server_tls or proxy_tls
            server_name = self.access.server_name or self._server.host
            if server_tls is not None and proxy is not None and proxy_tls is not None and proxy.host != server_name:
                self._tls = context = _ServerOrProxyContext(ssl.PROTOCOL_TLS_CLIENT)
                context.server = server_tls
                context.proxy = proxy_tls
                context.proxy_name = proxy.host
        return self._tls

    async def _read(self, response: aiohttp.ClientResponse, limits: aiohttp.ClientTimeout, max_bytes: int) -> bytes:
        chunks = []
        size = 0
        try:
            async for chunk in self._chunks(response, limits):
                chunks.append(chunk)
                size += len(chunk)
                if size > max_bytes:  # it would be as large again
                    problem = f"the response is larger than {max_bytes >> 20} MiB"
                    raise UnreadableError(f"{_shown(self.access.server)}: {problem}")
        finally:
            self._finish(response)
        return b"".join(chunks)

    async def _chunks(self, response: aiohttp.ClientResponse, limits: aiohttp.ClientTimeout) -> AsyncIterator[bytes]:
        """Yield the parts of the body as they arrive."""
        while True:
            try:
                chunk = await response.content.readany()
            except (aiohttp.ClientError, TimeoutError, RuntimeError) as error:  # of a closed connection: a RuntimeError
                raise self._failure(error, limits) from error
            if not chunk:
                return
            yield chunk

    def _finish(self, response: aiohttp.ClientResponse) -> None:
        """Close a response. Its connection is used again if all of the response was received, and ends otherwise."""
        self._responses.discard(response)
        if response.connection is not None and response.connection.transport is not None:
            response.connection.transport.abort()  # TLS would wait for the other side
        response.close()

    def _failure(self, error: Exception, limits: aiohttp.ClientTimeout) -> UnreachableError:
        # TLS within TLS fails with one, in early releases of Python 3.11 and 3.12.
        handshake = isinstance(error.__cause__, TypeError)
        return self._unreachable(_describe(error, limits), sent=not (handshake or isinstance(error, _NOT_SENT)))

    def _unreachable(self, reason: str, *, sent: bool = True) -> UnreachableError:
        source = f" ({self.access.source})" if self.access.source else ""
        message = f"cannot reach the API server {_shown(self.access.server)}{source}: {reason}"
        return UnreachableError(message, sent=sent)


async def _send_once_only(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Keep aiohttp from repeating a request: it would repeat every DELETE once, and not say so."""
    try:
        return await handler(request)
    except aiohttp.InvalidURL:
        raise
    except aiohttp.ClientError as error:
        raise _FailedError(error) from error


def _make_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    client_socket = socket.socket(*address[:3])
    for level, option, value in _KEEPALIVE:
        client_socket.setsockopt(level, option, value)
    return client_socket


def _shown(url: str) -> str:
    """Return a URL without a user and a password."""
    return _USER.sub(r"\1", url)


def _repeatable(request: ApiRequest, error: ApiError) -> bool:
    idempotent = request.idempotent or request.method == "GET"
    if isinstance(error, UnreachableError):
        return idempotent or not error.sent
    if isinstance(error, TooManyRequestsError):
        return request.repeat
    return isinstance(error, ServerFailureError) and idempotent and error.code in _PASSING


def _first_cause(error: BaseException) -> BaseException:
    while error.__context__ is not None:
        error = error.__context__
    return error


def _describe(error: Exception, limits: aiohttp.ClientTimeout) -> str:
    """Say why there is no response."""
    match error:
        case aiohttp.ConnectionTimeoutError():
            return f"no connection within {limits.connect:g} seconds"
        case aiohttp.SocketTimeoutError():
            return f"no response within {limits.sock_read:g} seconds"
        case TimeoutError():
            return f"no complete response within {limits.total:g} seconds"
        case aiohttp.ClientHttpProxyError():
            return f"the proxy responded with HTTP status {error.status}"
        case aiohttp.ClientResponseError():
            return f"no valid HTTP response: {error.message}"
        case aiohttp.ClientPayloadError():
            return f"the response is incomplete or damaged: {error.__cause__ or error}"
        case aiohttp.ServerDisconnectedError():
            return "the connection was closed before the response was complete"
        case _:
            return _system_reason(error)


def _system_reason(error: Exception) -> str:
    """Return the reason in the words of the operating system, if there are any."""
    reason: BaseException = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(error.__cause__, TypeError):
        reason = error.__cause__.__context__ or error
    if isinstance(reason, socket.gaierror):  # a name that cannot be resolved
        return reason.strerror or str(reason)
    if isinstance(reason, OSError) and not isinstance(reason, ssl.SSLError):
        # The errors of several addresses are joined into one without a number.
        number = reason.errno or next((int(digits) for digits in _NUMBERS.findall(str(reason))), 0)
        if number:
            return os.strerror(number)
    return str(reason) or "the connection broke"
