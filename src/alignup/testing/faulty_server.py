"""gRPC services on Unix sockets that record calls and fail on demand: what device plugins and DRA drivers share."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message

from alignup.align.errors import ParseError
from alignup.kubernetes.plugins import unix_grpc
from alignup.testing.script import InjectedFault, take_fault

ALL_METHODS = "*"  #: every method for which no other fault is set
GARBAGE = b"\xff\xff\xff\xff not a message"
GRACE = 1.0  #: seconds for pending calls to end

#: Request type, and what the stream sends at its start and whenever that has changed.
StreamMethod = tuple[type[Message], Callable[[], Message]]
Methods = Mapping[str, unix_grpc.Method | StreamMethod]  #: streams are the methods that the service declares as such
_Stream = asyncio.Queue[Message | None]  #: the messages to send; ``None`` ends it


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault(InjectedFault):
    """A fault of the calls of one method."""

    error: str = ""  #: the call fails with this message
    code: str = "UNKNOWN"  #: the gRPC status of ``error``
    crash: bool = False  #: the process dies as by ``kill -9``

    def __post_init__(self) -> None:
        codes = [name for name in grpc.StatusCode.__members__ if name != "OK"]
        if self.code not in codes:
            raise ParseError(f"a call cannot fail with {self.code}; use one of {', '.join(codes)}")

    async def apply(self, *, stopping: asyncio.Event, lifted: asyncio.Event) -> None:
        """Delay, hang until *lifted*, crash or raise ``StatusError``; waiting ends when the server is *stopping*."""
        if self.hang or self.delay:
            ends = [asyncio.ensure_future(event.wait()) for event in ((stopping, lifted) if self.hang else (stopping,))]
            try:
                await asyncio.wait(ends, timeout=None if self.hang else self.delay, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for end in ends:
                    end.cancel()
            if stopping.is_set():
                raise unix_grpc.StatusError("the server stops", code=grpc.StatusCode.UNAVAILABLE)
        if self.crash:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.error:
            raise unix_grpc.StatusError(self.error, code=grpc.StatusCode[self.code])

    def serialize(self, response: Message) -> bytes:
        return GARBAGE if self.garbage else response.SerializeToString()


@dataclass(slots=True)
class _Listener:
    """A server at one socket."""

    server: grpc.aio.Server
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    pending: set[asyncio.Task[Any]] = field(default_factory=set)  #: calls
    streams: dict[_Stream, Callable[[], Message]] = field(default_factory=dict)  #: what each sends when that changes

    def end_streams(self) -> None:
        for stream in self.streams:
            stream.put_nowait(None)


class FaultyServer:
    """The services of a test server, at any number of sockets."""

    def __init__(self) -> None:
        self._calls: list[tuple[str, Any]] = []  #: methods and requests, in order of arrival
        self._arrived = asyncio.Event()  #: set, and replaced, with every call
        self._faults: dict[str, Fault] = {}  #: by method
        self._lifted: dict[str, asyncio.Event] = {}  #: by method; set, and removed, with every new fault
        self._listeners: dict[Path, _Listener] = {}

    def requests(self, method: str) -> tuple[Any, ...]:
        return tuple(request for name, request in self._calls if name == method)

    async def wait_called(self, method: str, times: int = 1) -> None:
        while len(self.requests(method)) < times:
            await self._arrived.wait()

    def inject(self, method: str, fault: Fault) -> None:
        """Apply *fault* to calls of *method*, ``*`` for all, from now on; ``Fault()`` removes it.

        Calls that hang go on. A stream fails at the next message it sends.
        """
        self._faults[method] = fault
        for name in [*self._lifted] if method == ALL_METHODS else [method]:
            if lifted_event := self._lifted.pop(name, None):
                lifted_event.set()

    def end_streams(self) -> None:
        for listener in self._listeners.values():
            listener.end_streams()

    def _send_changes(self) -> None:
        """Send every stream again what it sent at its start, in its present state."""
        for listener in self._listeners.values():
            for stream, current in listener.streams.items():
                stream.put_nowait(current())

    async def _serve(self, socket: Path, services: Mapping[ServiceDescriptor, Methods]) -> None:
        socket.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        listener = _Listener(grpc.aio.server())
        for service, methods in services.items():
            handlers = {
                name: self._stream_handler(listener, name, method)
                if service.methods_by_name[name].server_streaming
                else self._unary_handler(listener, name, method)
                for name, method in methods.items()
            }
            listener.server.add_generic_rpc_handlers(
                [grpc.method_handlers_generic_handler(service.full_name, handlers)]
            )
        unix_grpc.listen(listener.server, socket)
        await listener.server.start()
        self._listeners[socket] = listener

    async def _stop(self, socket: Path) -> None:
        """Break every connection, and remove the socket; do nothing if it does not serve."""
        listener = self._listeners.pop(socket, None)
        if listener is None:
            return
        listener.end_streams()
        listener.stopping.set()
        if listener.pending:  # grpcio logs errors for calls that are pending when a server stops
            await asyncio.wait(listener.pending, timeout=GRACE)
        await listener.server.stop(grace=0)
        socket.unlink(missing_ok=True)  # noqa: ASYNC240 - a directory entry

    def _unary_handler(self, listener: _Listener, name: str, method: Any) -> unix_grpc.Handler:  # noqa: ANN401
        kind, respond = method

        async def handle(request: Message) -> bytes:
            self._record(listener, name, request)
            fault = take_fault(self._faults, name, ALL_METHODS) or Fault()
            if not fault.done:
                await self._apply(fault, listener, name)
            response = await respond(request)
            if fault.done:
                await self._apply(fault, listener, name)
            return fault.serialize(response)

        return unix_grpc.unary_handler(kind, handle)

    def _stream_handler(self, listener: _Listener, name: str, method: Any) -> unix_grpc.Handler:  # noqa: ANN401
        kind, current = method

        async def handle(raw: bytes, context: unix_grpc.Context) -> AsyncIterator[bytes]:
            self._record(listener, name, kind.FromString(raw))
            messages: _Stream = asyncio.Queue()
            messages.put_nowait(current())
            listener.streams[messages] = current
            try:
                while (message := await messages.get()) is not None:
                    fault = take_fault(self._faults, name, ALL_METHODS) or Fault()
                    await self._apply(fault, listener, name)
                    yield fault.serialize(message)
            except unix_grpc.StatusError as error:
                await context.abort(error.code, str(error))
            finally:
                del listener.streams[messages]

        return grpc.unary_stream_rpc_method_handler(handle)

    async def _apply(self, fault: Fault, listener: _Listener, name: str) -> None:
        lifted_event = self._lifted.setdefault(name, asyncio.Event())
        await fault.apply(stopping=listener.stopping, lifted=lifted_event)

    def _record(self, listener: _Listener, method: str, request: Message) -> None:
        self._calls.append((method, request))
        self._arrived.set()
        self._arrived = asyncio.Event()
        task = asyncio.current_task()
        if task is not None:
            listener.pending.add(task)
            task.add_done_callback(listener.pending.discard)
