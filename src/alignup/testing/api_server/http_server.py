"""A small HTTP/1.1 server on asyncio whose connections can be broken at any time."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import parse_qsl, unquote, urlsplit

import h11

_READ = 1 << 16


class ClosedError(Exception):
    """The client has closed the connection, or the server broke it."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request; names of headers are in lower case."""

    method: str
    path: str
    parameters: dict[str, str]
    headers: dict[str, str]
    body: bytes = field(repr=False)


class HttpConnection:
    """A connection of a client, which sends one request after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._protocol = h11.Connection(h11.SERVER)

    async def receive(self) -> HttpRequest | None:
        """Return the next request; ``None`` if the client closes the connection."""
        head: h11.Request | None = None
        body: list[bytes] = []
        while True:
            event = self._protocol.next_event()
            match event:
                case h11.NEED_DATA:
                    if self._protocol.they_are_waiting_for_100_continue:
                        await self._write(h11.InformationalResponse(status_code=100, headers=[]))
                    self._protocol.receive_data(await self._reader.read(_READ))
                case h11.Request():
                    head = event
                case h11.Data():
                    body.append(bytes(event.data))
                case h11.EndOfMessage() if head is not None:
                    return _request(head, b"".join(body))
                case _:
                    return None

    async def respond(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        await self.begin(status, {"Content-Length": str(len(body)), **(headers or {})})
        await self._write(h11.Data(data=body))
        await self.end()

    async def begin(self, status: int, headers: dict[str, str] | None = None) -> None:
        """Begin a response, whose body follows in parts."""
        fields = {"Content-Type": "application/json", **(headers or {})}
        reason = HTTPStatus(status).phrase.encode()
        await self._write(h11.Response(status_code=status, headers=list(fields.items()), reason=reason))

    async def send(self, data: bytes) -> None:
        await self._write(h11.Data(data=data))

    async def end(self) -> None:
        await self._write(h11.EndOfMessage())

    def next(self) -> bool:
        """Prepare for the next request; ``False`` if the connection must be closed."""
        if self._protocol.our_state is not h11.DONE or self._protocol.their_state is not h11.DONE:
            return False
        self._protocol.start_next_cycle()
        return True

    async def wait_closed(self) -> None:
        """Return when the client closes the connection, as clients do to end a watch."""
        with suppress(OSError):
            await self._reader.read(1)

    def abort(self) -> None:
        self._writer.transport.abort()

    def close(self) -> None:
        self._writer.close()

    async def _write(self, event: h11.Event) -> None:
        data = self._protocol.send(event)
        if data:
            try:
                self._writer.write(data)
                await self._writer.drain()
            except OSError:
                raise ClosedError from None


class HttpServer:
    """A server on 127.0.0.1, which serves every request with *handle*."""

    def __init__(self, handle: Callable[[HttpRequest, HttpConnection], Awaitable[None]]) -> None:
        self._handle = handle
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], HttpConnection] = {}

    async def start(self, port: int, tls: ssl.SSLContext | None) -> int:
        """Listen on *port*, or with 0 on any free one; return the port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", port, ssl=tls)
        listening_port: int = self._server.sockets[0].getsockname()[1]
        return listening_port

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self.disconnect()
            await asyncio.gather(*self._connections, return_exceptions=True)
            await asyncio.sleep(0)  # for the last transport to be closed
            await self._server.wait_closed()
            self._server = None

    def disconnect(self) -> None:
        """Break every connection, without ending responses."""
        for task, connection in self._connections.items():
            connection.abort()
            task.cancel()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = HttpConnection(reader, writer)
        task = asyncio.create_task(self._serve(connection))
        self._connections[task] = connection
        task.add_done_callback(self._connections.pop)

    async def _serve(self, connection: HttpConnection) -> None:
        try:
            while (request := await connection.receive()) is not None:
                await self._handle(request, connection)
                if not connection.next():
                    break
        except (OSError, ClosedError, h11.ProtocolError, asyncio.CancelledError):
            connection.abort()
        finally:
            connection.close()


def _request(head: h11.Request, body: bytes) -> HttpRequest:
    url = urlsplit(head.target.decode("ascii"))
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in head.headers}
    parameters = dict(parse_qsl(url.query, keep_blank_values=True))
    return HttpRequest(head.method.decode("ascii"), unquote(url.path), parameters, headers, body)
