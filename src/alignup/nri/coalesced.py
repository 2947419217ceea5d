"""Calls of one function by many tasks, such as a durable write, that do not queue up."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Coalesced(Generic[T]):
    """*function* as if each caller called it: calls that come while it runs share the next run."""

    def __init__(self, function: Callable[[], Awaitable[T]]) -> None:
        self._function = function
        self._running: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None

    async def __call__(self) -> T:
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._run(self._running))
        return await asyncio.shield(self._next)

    async def _run(self, previous: asyncio.Task[T] | None) -> T:
        if previous is not None:
            await asyncio.wait([previous])
        self._running = self._next
        self._next = None
        return await self._function()
