"""Requests to one API server: authentication, repeated attempts, and errors as :class:`ApiError`."""

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlencode

from alignup.kubernetes.api.access import Access
from alignup.kubernetes.api.credentials import ClientCertificate, Credential
from alignup.kubernetes.api.errors import (
    AccessError,
    ApiError,
    ApiStatusError,
    ServerFailureError,
    TooManyRequestsError,
    UnreachableError,
    UnreadableError,
    status_error,
)
from alignup.kubernetes.api.http_client import HttpClient
from alignup.kubernetes.api.http_connection import BodyTooLargeError, HttpError, HttpResponse
from alignup.kubernetes.api.timing import RetryDelay, Timing

_USER = re.compile(r"^([a-z0-9]+://)?.*@", re.IGNORECASE)  #: and a password, in a URL
MAX_BODY = 1 << 30  #: bytes of a response: all pods of a large cluster
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
    max_bytes: int = MAX_BODY  #: of the response, after decompression
    idempotent: bool = False  #: whether carrying it out twice does no harm; always true for GET


class Connection:
    """The HTTP connections to an API server."""

    def __init__(self, access: Access, timing: Timing) -> None:
        self.access, self.timing = access, timing
        self._certificate: ClientCertificate | None = None
        self._client: HttpClient | None = None
        self._previous: HttpClient | None = None  #: with another certificate; its watches go on for a while
        self._headers = [*access.headers, ("User-Agent", access.user_agent)]
        self._headers.append(("Accept-Encoding", "gzip" if access.compress else "identity"))

    async def close(self) -> None:
        """Close the connections; requests that are under way fail, and are not sent again."""
        for client in (self._client, self._previous):
            if client is not None:
                await client.close()

    async def send(self, request: ApiRequest) -> bytes:
        """Return the body of the response; :class:`ApiError` if it is not a success."""
        delay = RetryDelay(self.timing)
        for attempt in range(self.timing.attempts):
            try:
                response = await self._response(request, self.timing.response)
                return await self._read(response, request.max_bytes)
            except (ApiStatusError, UnreachableError) as error:
                if attempt + 1 == self.timing.attempts or not _repeatable(request, error):
                    raise
                await delay.wait(at_least=getattr(error, "retry_after", None) or 0.0)
        raise AssertionError  # the last attempt returns or raises

    @asynccontextmanager
    async def lines(self, request: ApiRequest, *, seconds: float) -> AsyncIterator[AsyncIterator[bytes]]:
        """Yield the lines of a response as they arrive, for at most *seconds* without one."""
        response = await self._response(request, seconds)
        try:
            yield self._lines(response)
        finally:
            response.close()

    async def _lines(self, response: HttpResponse) -> AsyncIterator[bytes]:
        begun: list[bytes] = []  # parts of a line that has not ended
        try:
            async for chunk in response.chunks():
                first, *others = chunk.split(b"\n")
                begun.append(first)
                for other in others:
                    line = b"".join(begun)
                    begun = [other]
                    if line:
                        yield line
        except HttpError as error:
            raise self._unreachable(error) from error

    async def _response(self, request: ApiRequest, seconds: float) -> HttpResponse:
        """Return the successful response; a rejected credential is replaced once if there is another."""
        credential = await self.access.credentials.current()
        response = await self._send_once(request, credential, seconds)
        if response.status == 401:
            self.access.credentials.reject(credential)
            try:
                another = await self.access.credentials.current()
            except BaseException:
                response.close()
                raise
            if another != credential:
                response.close()
                response = await self._send_once(request, another, seconds)
        if 200 <= response.status < 300:
            return response
        body = await self._read(response, request.max_bytes)
        user = f" as {self.access.source}" if response.status == 401 and self.access.source else ""
        retry_after = response.headers.get(b"retry-after", b"").decode("latin-1")
        raise status_error(request.description + user, code=response.status, body=body, retry_after=retry_after)

    async def _send_once(self, request: ApiRequest, credential: Credential, seconds: float) -> HttpResponse:
        client = await self._client_for(credential.certificate)
        headers = [*self._headers, ("Accept", request.accept)]
        if authorization := credential.authorization or client.authorization:
            headers.append(("Authorization", authorization))
        if request.body is not None:
            headers.append(("Content-Type", request.content_type))
        target = f"{request.path}?{urlencode(request.parameters)}" if request.parameters else request.path
        try:
            return await client.send(request.method, target, headers, request.body, seconds=seconds)
        except HttpError as error:
            raise self._unreachable(error) from error
        except ValueError as error:
            raise AccessError(f"{self.access.source}: cannot send a request: {error}") from None

    async def _client_for(self, certificate: ClientCertificate | None) -> HttpClient:
        """Return the HTTP client; a new one if the client certificate was replaced."""
        if self._client is None or certificate != self._certificate:
            access = self.access
            tls = access.ssl_context(certificate) if access.server.lower().startswith("https:") else None
            try:
                client = HttpClient(
                    access.server,
                    connect_seconds=self.timing.connect,
                    tls=tls,
                    server_name=access.server_name,
                    proxy=access.proxy,
                )
            except ValueError as error:
                proxy = f" by proxy {_shown(access.proxy)}" if access.proxy else ""
                raise AccessError(f"{access.source}: cannot use {_shown(access.server)}{proxy}: {error}") from None
            oldest, self._previous, self._certificate = self._previous, self._client, certificate
            self._client = client
            if oldest is not None:
                await oldest.close()
        return self._client

    async def _read(self, response: HttpResponse, limit: int) -> bytes:
        try:
            return await response.read(limit)
        except BodyTooLargeError as error:  # it would be as large again
            raise UnreadableError(f"{_shown(self.access.server)}: {error}") from None
        except HttpError as error:
            raise self._unreachable(error) from error
        finally:
            response.close()

    def _unreachable(self, error: HttpError) -> UnreachableError:
        source = f" ({self.access.source})" if self.access.source else ""
        unreachable = UnreachableError(f"cannot reach the API server {_shown(self.access.server)}{source}: {error}")
        unreachable.__cause__ = error
        return unreachable


def _shown(url: str) -> str:
    """Return a URL without a user and a password."""
    return _USER.sub(r"\1", url)


def _repeatable(request: ApiRequest, error: ApiError) -> bool:
    idempotent = request.idempotent or request.method == "GET"
    if isinstance(error, UnreachableError):
        return idempotent or (isinstance(error.__cause__, HttpError) and not error.__cause__.sent)
    if isinstance(error, TooManyRequestsError):
        return request.repeat
    return isinstance(error, ServerFailureError) and idempotent and error.code in _PASSING
