"""HTTP to one API server: authentication, repeated attempts, and errors as :class:`ApiError`."""

import os
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlencode

import httpx2

from alignup.kubernetes.api.access import Access
from alignup.kubernetes.api.credentials import ClientCertificate, Credential
from alignup.kubernetes.api.errors import (
    AccessError,
    ApiError,
    ApiStatusError,
    ServerFailureError,
    TooManyRequestsError,
    UnreachableError,
    status_error,
)
from alignup.kubernetes.api.timing import RetryDelay, Timing

#: A peer that is gone without a word is noticed after about a minute, also by a watch without events.
_KEEPALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
        if hasattr(socket, name)
    ),
]
#: More connections are kept than requests are sent at a time: another TLS handshake costs more than a request.
_LIMITS = httpx2.Limits(max_connections=200, max_keepalive_connections=64, keepalive_expiry=30.0)
_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
_PASSING = frozenset({429, 502, 503, 504})  #: status codes of failures that pass


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRequest:
    """One request; ``description`` is for messages."""

    description: str
    path: str
    method: str = "GET"
    parameters: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    content_type: str = "application/json"
    accept: str = "application/json"
    repeat: bool = True  #: whether to repeat it when the API server throttles it
    idempotent: bool = False  #: whether carrying it out twice does no harm; always true for GET


class Connection:
    """The HTTP connections to an API server."""

    def __init__(self, access: Access, timing: Timing) -> None:
        self.access, self.timing = access, timing
        self._certificate: ClientCertificate | None = None
        self._client: httpx2.AsyncClient | None = None
        self._previous: httpx2.AsyncClient | None = None  #: with another certificate; its watches go on for a while

    async def close(self) -> None:
        for client in (self._client, self._previous):
            if client is not None:
                await client.aclose()
        self._client = self._previous = None

    async def send(self, request: ApiRequest) -> bytes:
        """Return the body of the response; :class:`ApiError` if it is not a success."""
        delay = RetryDelay(self.timing)
        for attempt in range(self.timing.attempts):
            try:
                async with self._response(request, read_timeout=self.timing.response) as response:
                    return response.content
            except (ApiStatusError, UnreachableError) as error:
                if attempt + 1 == self.timing.attempts or not _repeatable(request, error):
                    raise
                await delay.wait(at_least=getattr(error, "retry_after", None) or 0.0)
        raise AssertionError  # the last attempt returns or raises

    @asynccontextmanager
    async def lines(self, request: ApiRequest, *, seconds: float) -> AsyncIterator[AsyncIterator[bytes]]:
        """Yield the lines of a response as they arrive, for at most *seconds* without one."""
        async with self._response(request, read_timeout=seconds, stream=True) as response:
            yield self._lines(response)

    async def _lines(self, response: httpx2.Response) -> AsyncIterator[bytes]:
        begun: list[bytes] = []  # parts of a line that has not ended
        try:
            async for chunk in response.aiter_bytes():
                first, *others = chunk.split(b"\n")
                begun.append(first)
                for other in others:
                    line = b"".join(begun)
                    begun = [other]
                    if line:
                        yield line
        except httpx2.HTTPError as error:
            raise self._unreachable(error, self.timing.watch) from error

    @asynccontextmanager
    async def _response(
        self, request: ApiRequest, *, read_timeout: float, stream: bool = False
    ) -> AsyncIterator[httpx2.Response]:
        """Yield the successful response; a rejected credential is replaced once if there is another."""
        credential = await self.access.credentials.current()
        response = await self._send_once(request, credential, read_timeout)
        try:
            if response.status_code == 401:
                self.access.credentials.reject(credential)
                another = await self.access.credentials.current()
                if another != credential:
                    await response.aclose()
                    response = await self._send_once(request, another, read_timeout)
            if not response.is_success:
                code, body = response.status_code, await self._read(response, self.timing.response)
                user = f" as {self.access.source}" if code == 401 and self.access.source else ""
                retry_after = response.headers.get("Retry-After")
                raise status_error(request.description + user, code=code, body=body, retry_after=retry_after)
            if not stream:
                await self._read(response, read_timeout)
            yield response
        finally:
            await response.aclose()

    async def _send_once(self, request: ApiRequest, credential: Credential, read_timeout: float) -> httpx2.Response:
        client = await self._client_for(credential.certificate)
        timing, access = self.timing, self.access
        headers = [*access.headers, ("User-Agent", access.user_agent), ("Accept", request.accept)]
        headers += [("Accept-Encoding", "gzip" if access.compress else "identity")]
        if credential.authorization:
            headers.append(("Authorization", credential.authorization))
        if request.body is not None:
            headers.append(("Content-Type", request.content_type))
        query = f"?{urlencode(request.parameters)}" if request.parameters else ""
        timeout = httpx2.Timeout(timing.response, connect=timing.connect, read=read_timeout)
        extensions = {"sni_hostname": access.server_name} if access.server_name else {}
        built = httpx2.Request(  # not by the client, which would merge it with its settings
            request.method,
            access.server + request.path + query,
            content=request.body,
            headers=headers,
            extensions={**extensions, "timeout": timeout.as_dict()},
        )
        try:
            return await client.send(built, stream=True)
        except httpx2.HTTPError as error:
            raise self._unreachable(error, read_timeout) from error

    async def _client_for(self, certificate: ClientCertificate | None) -> httpx2.AsyncClient:
        """Return the HTTP client; a new one if the client certificate was replaced."""
        if self._client is None or certificate != self._certificate:
            access = self.access
            tls = access.ssl_context(certificate) if access.server.startswith("https:") else None
            try:
                httpx2.URL(access.server)
                transport = httpx2.AsyncHTTPTransport(
                    verify=tls or False,
                    trust_env=False,
                    limits=_LIMITS,
                    proxy=access.proxy or None,
                    socket_options=None if access.proxy else _KEEPALIVE,
                )
            except (httpx2.InvalidURL, ImportError, ValueError) as error:
                proxy = f" by proxy {access.proxy}" if access.proxy else ""
                raise AccessError(f"{access.source}: cannot use {access.server}{proxy}: {error}") from None
            oldest, self._previous, self._certificate = self._previous, self._client, certificate
            self._client = httpx2.AsyncClient(transport=transport, trust_env=False)
            if oldest is not None:
                await oldest.aclose()
        return self._client

    async def _read(self, response: httpx2.Response, read_timeout: float) -> bytes:
        try:
            return await response.aread()
        except httpx2.HTTPError as error:
            raise self._unreachable(error, read_timeout) from error

    def _unreachable(self, error: httpx2.HTTPError, seconds: float) -> UnreachableError:
        source = f" ({self.access.source})" if self.access.source else ""
        message = f"cannot reach the API server {self.access.server}{source}: {_reason(error, seconds)}"
        unreachable = UnreachableError(message)
        unreachable.__cause__ = error
        return unreachable


def _repeatable(request: ApiRequest, error: ApiError) -> bool:
    idempotent = request.idempotent or request.method == "GET"
    if isinstance(error, UnreachableError):
        return idempotent or isinstance(error.__cause__, _NOT_SENT)
    if isinstance(error, TooManyRequestsError):
        return request.repeat
    return isinstance(error, ServerFailureError) and idempotent and error.code in _PASSING


def _reason(error: BaseException, seconds: float) -> str:
    """Say why, in the words of the operating system if there are any."""
    if isinstance(error, httpx2.TimeoutException):
        doing = "connection" if isinstance(error, httpx2.ConnectTimeout) else "response"
        return f"no {doing} within {seconds:g} seconds"
    reason = str(error)
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
        if isinstance(cause, socket.gaierror):  # a name that cannot be resolved
            reason = cause.strerror or reason
        elif isinstance(cause, OSError) and cause.errno and not isinstance(cause, ssl.SSLError):
            reason = os.strerror(cause.errno)
        cause = cause.__cause__ or cause.__context__
    return reason or "the connection broke"
