"""The calls that a test server receives: recorded, failed on demand, and ended together when the server stops."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from google.protobuf.message import Message

from alignup import rpc
from alignup.testing.faults import Faults

GRACE = 1.0  #: seconds for pending calls to end


class CallLog:
    """All calls of one server."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, Any]] = []  #: methods and requests, in order of arrival
        self.faults = Faults()
        self.stopping = asyncio.Event()
        self._pending: set[asyncio.Task[Any]] = set()
        self._arrived = asyncio.Event()  #: set, and replaced, with every call

    def requests(self, method: str) -> tuple[Any, ...]:
        """Return the requests to *method*, in order of arrival."""
        return tuple(request for name, request in self.entries if name == method)

    async def wait_called(self, method: str, times: int) -> None:
        """Return once *method* has been called *times* times."""
        while len(self.requests(method)) < times:
            await self._arrived.wait()

    def record(self, method: str, request: Message) -> None:
        self.entries.append((method, request))
        self._arrived.set()
        self._arrived = asyncio.Event()
        task = asyncio.current_task()
        if task is not None:
            self._pending.add(task)
            task.add_done_callback(self._pending.discard)

    def handler(self, method: str, kind: type[Message], respond: Callable[[Any], Awaitable[Message]]) -> rpc.Handler:
        """Return a handler that records each request and applies the fault that is set for *method*."""

        async def handle(request: Message) -> bytes:
            self.record(method, request)
            fault = self.faults.take(method)
            if not fault.done:
                await fault.apply(stopping=self.stopping)
            response = await respond(request)
            if fault.done:
                await fault.apply(stopping=self.stopping)
            return fault.serialize(response)

        return rpc.unary_handler(kind, handle)

    async def stop(self) -> None:
        """End all pending calls: grpcio logs errors for calls that are pending when a server stops."""
        self.stopping.set()
        if self._pending:
            await asyncio.wait(self._pending, timeout=GRACE)

    def restart(self) -> None:
        self.stopping.clear()
