"""The calls that come to a plugin or a runtime for tests: remembered, spoilt where that is wanted, ended together."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from alignup.rpc import StatusError
from alignup.testing.faults import Faults

GRACE = 1.0  #: seconds for calls under way to end

Context = grpc.aio.ServicerContext[Any, Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # which is generic for the type checker only


class CallLog:
    """All calls of one server, and what becomes of them."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, Any]] = []  #: methods and requests, in the order they came
        self.faults = Faults()
        self.over = asyncio.Event()  #: nothing is answered any more
        self._under_way: set[asyncio.Task[Any]] = set()
        self._another = asyncio.Event()  #: set, and made anew, with every call

    def of(self, method: str) -> tuple[Any, ...]:
        """The requests of one kind, in the order they came."""
        return tuple(request for name, request in self.requests if name == method)

    async def until(self, method: str, times: int) -> None:
        """Return when *method* was called so many times."""
        while len(self.of(method)) < times:
            await self._another.wait()

    def begin(self, method: str, request: Message) -> None:
        """Remember a call: that it was made, and that it is under way."""
        self.requests.append((method, request))
        self._another.set()
        self._another = asyncio.Event()
        task = asyncio.current_task()
        if task is not None:
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    def answered(self, method: str, kind: type[Message], answer: Callable[[Any], Awaitable[Message]]) -> Handler:
        """A method with one answer to a request of this *kind*."""

        async def respond(raw: bytes, context: Context) -> bytes:
            try:
                request = kind.FromString(raw)
                self.begin(method, request)
                fault = self.faults.take(method)
                if not fault.done:
                    await fault.apply(over=self.over)
                made = await answer(request)
                if fault.done:
                    await fault.apply(over=self.over)
                return fault.raw(made)
            except DecodeError as error:
                await context.abort(grpc.StatusCode.INTERNAL, f"grpc: error unmarshalling request: {error}")
            except StatusError as error:
                await context.abort(error.code, str(error))

        return grpc.unary_unary_rpc_method_handler(respond)

    async def end(self) -> None:
        """Bring all calls to an end: the library complains about those under way when a server stops."""
        self.over.set()
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=GRACE)

    def again(self) -> None:
        """Answer calls after :meth:`end`."""
        self.over.clear()
