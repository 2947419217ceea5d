"""Events handed out to whoever listens, without ever waiting for one of them.

Each listener has a buffer of its own. When it is full the oldest events in it give way, and before it hears anything
else the listener is told how many it missed; what then matters is found by asking anew.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from alignup.schema.api import PublishedEvent

MISSED = "missed"  #: the kind of event that stands for others: ``{"count": 3}``


class EventBus:
    """What happens, as it happens; *now* tells the time, and a listener may be *room* events behind."""

    def __init__(self, *, now: Callable[[], float], room: int = 256) -> None:
        self._now = now
        self._room = room
        self._last = 0
        self._listeners: set[_Listener] = set()

    @property
    def listening(self) -> int:
        """How many listen."""
        return len(self._listeners)

    def publish(self, kind: str, document: Mapping[str, Any]) -> PublishedEvent:
        """Tell everybody who listens."""
        self._last += 1
        event = PublishedEvent(id=self._last, time=self._now(), kind=kind, document=document)
        for listener in self._listeners:
            listener.put(event)
        return event

    @asynccontextmanager
    async def listen(self) -> AsyncIterator[AsyncIterator[PublishedEvent]]:
        """What happens from now on."""
        listener = _Listener(self._room)
        self._listeners.add(listener)
        try:
            yield listener.events()
        finally:
            self._listeners.discard(listener)


class _Listener:
    """One who listens, and what it has not read yet."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._waiting: deque[PublishedEvent] = deque()
        self._missed: list[PublishedEvent] = []  #: the last of those that gave way, if any did
        self._count = 0
        self._news = asyncio.Event()

    def put(self, event: PublishedEvent) -> None:
        """Keep one more to be read."""
        self._waiting.append(event)
        if len(self._waiting) > self._room:
            self._missed = [self._waiting.popleft()]
            self._count += 1
        self._news.set()

    async def events(self) -> AsyncIterator[PublishedEvent]:
        """Everything in order, and in place of what gave way how much that was."""
        while True:
            if self._missed:
                last, count = self._missed.pop(), self._count
                self._count = 0
                yield PublishedEvent(id=last.id, time=last.time, kind=MISSED, document={"count": count})
            elif self._waiting:
                yield self._waiting.popleft()
            else:
                self._news.clear()
                await self._news.wait()
