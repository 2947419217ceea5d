"""A gRPC server for tests that records its calls and injects faults into them."""

import asyncio
import os
import re
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message

from alignup.align.errors import ParseError
from alignup.kubernetes.plugins import rpc

ALL_METHODS = "*"  #: every method for which no other fault is set
GARBAGE = b"\xff\xff\xff\xff not a message"
GRACE = 1.0  #: seconds for pending calls to end


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """How calls of one method fail; the default is not at all."""

    delay: float = 0.0  #: seconds
    error: str = ""  #: the call fails with this message
    code: str = "UNKNOWN"  #: the gRPC status of ``error``
    garbage: bool = False  #: the response does not decode
    hang: bool = False  #: the call never returns
    crash: bool = False  #: the process dies as by ``kill -9``
    done: bool = False  #: the request is carried out before the fault applies: only the response is lost
    times: int | None = None  #: number of calls; ``None``: all

    def __post_init__(self) -> None:
        codes = [name for name in grpc.StatusCode.__members__ if name != "OK"]
        if self.code not in codes:
            raise ParseError(f"a call cannot fail with {self.code}; use one of {', '.join(codes)}")

    async def apply(self, *, stopping: asyncio.Event) -> None:
        """Delay, crash or raise ``StatusError``; a delay ends early when the server is *stopping*."""
        if self.hang or self.delay:
            with suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), None if self.hang else self.delay)
                raise rpc.StatusError("the server stops", code=grpc.StatusCode.UNAVAILABLE)
        if self.crash:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.error:
            raise rpc.StatusError(self.error, code=grpc.StatusCode[self.code])

    def serialize(self, response: Message) -> bytes:
        return GARBAGE if self.garbage else response.SerializeToString()


NO_FAULT = Fault()


class RecordingServer:
    """A server at *socket* that can be stopped and started again."""

    def __init__(self, socket: Path) -> None:
        self.entries: list[tuple[str, Any]] = []  #: methods and requests, in order of arrival
        self.stopping = asyncio.Event()
        self._socket = socket
        self._faults: dict[str, Fault] = {}  #: by method
        self._server: grpc.aio.Server | None = None
        self._pending: set[asyncio.Task[Any]] = set()
        self._arrived = asyncio.Event()  #: set, and replaced, with every call

    async def serve(self, *services: grpc.GenericRpcHandler) -> None:
        self._socket.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        self.stopping.clear()
        self._server = grpc.aio.server(handlers=list(services))
        rpc.listen(self._server, self._socket)
        await self._server.start()

    async def stop(self) -> None:
        """Break every connection, and remove the socket; do nothing if it does not serve."""
        if self._server is None:
            return
        self.stopping.set()
        if self._pending:  # grpcio logs errors for calls that are pending when a server stops
            await asyncio.wait(self._pending, timeout=GRACE)
        await self._server.stop(grace=0)
        self._server = None
        self._socket.unlink(missing_ok=True)

    def requests(self, method: str) -> tuple[Any, ...]:
        return tuple(request for name, request in self.entries if name == method)

    async def wait_called(self, method: str, times: int = 1) -> None:
        while len(self.requests(method)) < times:
            await self._arrived.wait()

    def inject(self, method: str, fault: Fault) -> None:
        """Apply *fault* to calls of *method*, ``*`` for all, from now on; ``Fault()`` removes it.

        A stream fails at the next message it sends.
        """
        self._faults[method] = fault

    def take_fault(self, method: str) -> Fault:
        """Return the fault for one call, and count the call."""
        name = method if method in self._faults else ALL_METHODS
        fault = self._faults.get(name, NO_FAULT)
        if fault.times is None:
            return fault
        if fault.times > 1:
            self._faults[name] = replace(fault, times=fault.times - 1)
        else:
            del self._faults[name]
        return fault if fault.times > 0 else NO_FAULT

    def record(self, method: str, request: Message) -> None:
        self.entries.append((method, request))
        self._arrived.set()
        self._arrived = asyncio.Event()
        task = asyncio.current_task()
        if task is not None:
            self._pending.add(task)
            task.add_done_callback(self._pending.discard)

    def service(
        self, descriptor: ServiceDescriptor, implementation: object, **streams: rpc.Handler
    ) -> grpc.GenericRpcHandler:
        """Return a handler of a service; ``GetPreferredAllocation`` calls ``get_preferred_allocation``.

        A method that returns ``None`` sends an empty response.
        """
        handlers = {
            method.name: self._handler(
                method, getattr(implementation, re.sub("(?<!^)([A-Z])", r"_\1", method.name).lower())
            )
            for method in descriptor.methods
            if method.name not in streams
        }
        return grpc.method_handlers_generic_handler(descriptor.full_name, {**handlers, **streams})

    def _handler(self, method: MethodDescriptor, respond: Callable[[Any], Awaitable[Message | None]]) -> rpc.Handler:
        empty = message_factory.GetMessageClass(method.output_type)()

        async def handle(request: Message) -> bytes:
            self.record(method.name, request)
            fault = self.take_fault(method.name)
            if not fault.done:
                await fault.apply(stopping=self.stopping)
            response = await respond(request)
            if fault.done:
                await fault.apply(stopping=self.stopping)
            return fault.serialize(empty if response is None else response)

        return rpc.unary_handler(message_factory.GetMessageClass(method.input_type), handle)
