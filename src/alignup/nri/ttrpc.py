"""Calls over a trunk in both directions: one service is served on one channel, another is called on a second one.

Requests are handled concurrently, each in a task. What a peer may get wrong about one request is answered with a
status; only a trunk whose frames make no sense is closed. A request that names a deadline is answered before it, if
need be with an error: a runtime disconnects a plugin that is late.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import IntEnum

import structlog
from google.protobuf.message import DecodeError

from alignup.nri.frames import MAX_DATA, Decoder, Message, MessageType, encode
from alignup.wire import ttrpc_pb2 as wire

_READ_BYTES = 256 << 10
_USABLE_TIME = 0.9  #: of the time until a deadline; the rest is for the answer

_log = structlog.get_logger()


class Code(IntEnum):
    """The status codes of gRPC that are used here."""

    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class RpcError(Exception):
    """A call that failed, with the status of the peer or of this end."""

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        self.message = message
        super().__init__(message)


class ConnectionClosedError(RpcError):
    """A call on a trunk that is closed, or was closed before the response."""

    def __init__(self) -> None:
        super().__init__(Code.UNAVAILABLE, "the connection to the peer is closed")


@dataclass(frozen=True, slots=True)
class Service:
    """A service to serve: *call* gets a method and its request, returns a response, or raises ``RpcError``."""

    name: str  #: with its package
    channel: int
    call: Callable[[str, bytes], Awaitable[bytes]]


class TtrpcConnection:
    """A trunk on two streams of asyncio, which serves *service* and calls the peer's service on *channel*."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, service: Service, channel: int
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._service = service
        self._channel = channel
        self._decoder = Decoder(service.channel, channel)
        self._next_stream = 1
        self._last_request = 0  #: the last stream that the peer opened
        self._calls: dict[int, asyncio.Future[bytes]] = {}  #: by stream
        self._handlers: set[asyncio.Task[None]] = set()
        self._closed = False

    async def run(self) -> None:
        """Serve until the peer or :meth:`close` closes the trunk; ``FrameError`` if its bytes make no sense."""
        try:
            while data := await self._reader.read(_READ_BYTES):
                for channel, message in self._decoder.feed(data):
                    if channel == self._channel:
                        self._receive_response(message)
                    else:
                        self._receive_request(message)
        except ConnectionError:
            pass  # as good as the end
        finally:
            self.close()
            for task in self._handlers:
                task.cancel()
            await asyncio.gather(*self._handlers, return_exceptions=True)

    def close(self) -> None:
        """Close the trunk; calls that wait for a response fail."""
        self._closed = True
        self._writer.close()
        for call in self._calls.values():
            if not call.done():
                call.set_exception(ConnectionClosedError())

    async def call(self, service: str, method: str, payload: bytes, *, timeout: float) -> bytes:  # noqa: ASYNC109 - the peer gets it, too
        """Call the peer; ``RpcError`` if it fails, is not answered in *timeout* seconds, or the trunk is closed."""
        request = wire.Request(service=service, method=method, payload=payload, timeout_nano=int(timeout * 1e9))
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._calls[stream] = answer
        try:
            async with asyncio.timeout(timeout):
                await self._send(self._channel, Message(stream, MessageType.REQUEST, request.SerializeToString()))
                return await answer
        except ValueError as error:
            raise RpcError(Code.RESOURCE_EXHAUSTED, f"{method}: {error}") from None
        except TimeoutError:
            raise RpcError(Code.DEADLINE_EXCEEDED, f"{method} was not answered in {timeout:g} s") from None
        finally:
            del self._calls[stream]
            if not answer.cancel() and not answer.cancelled():
                answer.exception()  # else asyncio reports that nobody asked for it

    def _receive_response(self, message: Message) -> None:
        call = self._calls.get(message.stream)
        if call is None or call.done() or message.type != MessageType.RESPONSE:
            return  # of a call that timed out, or of a later version of the protocol
        try:
            call.set_result(_payload(message))
        except RpcError as error:
            call.set_exception(error)

    def _receive_request(self, message: Message) -> None:
        if message.type not in {MessageType.REQUEST, MessageType.DATA}:
            return
        task = asyncio.get_running_loop().create_task(self._answer(message, self._problem(message)))
        self._handlers.add(task)
        task.add_done_callback(self._handlers.discard)

    def _problem(self, message: Message) -> RpcError | None:
        """Return why *message* is no request to handle, and remember its stream."""
        if message.stream % 2 == 0:
            return RpcError(Code.INVALID_ARGUMENT, f"stream {message.stream} of a client is even")
        if message.type == MessageType.DATA:
            return RpcError(Code.INVALID_ARGUMENT, f"stream {message.stream} takes no data")
        if message.stream <= self._last_request:
            return RpcError(Code.INVALID_ARGUMENT, f"stream {message.stream} is not above {self._last_request}")
        self._last_request = message.stream
        if message.data is None:
            return RpcError(Code.RESOURCE_EXHAUSTED, f"the request is longer than {MAX_DATA} bytes")
        return None

    async def _answer(self, message: Message, problem: RpcError | None) -> None:
        try:
            response = _failure(problem) if problem else await self._handle(message.data or b"")
        except RpcError as error:
            response = _failure(error)
        except Exception:  # noqa: BLE001 - the peer must get an answer
            _log.exception("request failed", service=self._service.name)
            response = _failure(RpcError(Code.INTERNAL, "internal error; see the log of the plugin"))
        if response.ByteSize() > MAX_DATA:
            response = _failure(RpcError(Code.RESOURCE_EXHAUSTED, f"the response is longer than {MAX_DATA} bytes"))
        data = response.SerializeToString()
        try:
            await self._send(self._service.channel, Message(message.stream, MessageType.RESPONSE, data))
        except ConnectionClosedError:
            self.close()  # nobody waits for the answer

    async def _handle(self, data: bytes) -> wire.Response:
        try:
            request = wire.Request.FromString(data)
        except DecodeError:
            raise RpcError(Code.INVALID_ARGUMENT, "the request cannot be decoded") from None
        if request.service != self._service.name:
            raise RpcError(Code.UNIMPLEMENTED, f"service {request.service} is not served")
        seconds = request.timeout_nano / 1e9 * _USABLE_TIME if request.timeout_nano > 0 else None
        try:
            async with asyncio.timeout(seconds):
                return wire.Response(payload=await self._service.call(request.method, request.payload))
        except TimeoutError:
            raise RpcError(Code.DEADLINE_EXCEEDED, f"{request.method} takes too long") from None

    async def _send(self, channel: int, message: Message) -> None:
        if self._closed:
            raise ConnectionClosedError
        self._writer.write(encode(channel, message))
        try:
            await self._writer.drain()
        except ConnectionError:
            raise ConnectionClosedError from None


def _payload(response: Message) -> bytes:
    """Return the payload of *response*; ``RpcError`` if it has none."""
    if response.data is None:
        raise RpcError(Code.RESOURCE_EXHAUSTED, f"the response is longer than {MAX_DATA} bytes")
    try:
        wire_response = wire.Response.FromString(response.data)
    except DecodeError:
        raise RpcError(Code.INTERNAL, "the response cannot be decoded") from None
    if wire_response.status.code:
        raise RpcError(wire_response.status.code, wire_response.status.message)
    return wire_response.payload


def _failure(error: RpcError) -> wire.Response:
    return wire.Response(status=wire.Status(code=error.code, message=error.message))
