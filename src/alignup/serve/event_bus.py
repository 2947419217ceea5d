"""Distributes events to subscribers and never waits for one.

Each subscriber has a buffer. When it is full, the oldest events are dropped, and the subscriber gets their number
before the next event; it should then list the pods again.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from alignup.schema.api import PublishedEvent

MISSED = "missed"  #: the kind of event that stands for dropped ones: ``{"count": 3}``


class EventBus:
    """*now* returns the time; each subscriber buffers up to *capacity* events."""

    def __init__(self, *, now: Callable[[], float], capacity: int = 256) -> None:
        self._now = now
        self._capacity = capacity
        self._last_id = 0
        self._subscribers: set[_Subscriber] = set()

    @property
    def subscribers(self) -> int:
        return len(self._subscribers)

    def publish(self, kind: str, document: Mapping[str, Any]) -> PublishedEvent:
        self._last_id += 1
        event = PublishedEvent(id=self._last_id, time=self._now(), kind=kind, document=document)
        for subscriber in self._subscribers:
            subscriber.put(event)
        return event

    @asynccontextmanager
    async def subscribe(self) -> AsyncIterator[AsyncIterator[PublishedEvent]]:
        subscriber = _Subscriber(self._capacity)
        self._subscribers.add(subscriber)
        try:
            yield subscriber.events()
        finally:
            self._subscribers.discard(subscriber)


class _Subscriber:
    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._buffer: deque[PublishedEvent] = deque()
        self._last_dropped: PublishedEvent | None = None
        self._dropped = 0
        self._available = asyncio.Event()

    def put(self, event: PublishedEvent) -> None:
        self._buffer.append(event)
        if len(self._buffer) > self._capacity:
            self._last_dropped = self._buffer.popleft()
            self._dropped += 1
        self._available.set()

    async def events(self) -> AsyncIterator[PublishedEvent]:
        """Yield events in order, and one event in place of all that were dropped."""
        while True:
            if self._last_dropped is not None:
                last, count = self._last_dropped, self._dropped
                self._last_dropped, self._dropped = None, 0
                yield PublishedEvent(id=last.id, time=last.time, kind=MISSED, document={"count": count})
            elif self._buffer:
                yield self._buffer.popleft()
            else:
                self._available.clear()
                await self._available.wait()
