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
        self._buffers: list[tuple[deque[PublishedEvent], asyncio.Event]] = []  #: of each subscriber

    @property
    def subscribers(self) -> int:
        return len(self._buffers)

    def publish(self, kind: str, document: Mapping[str, Any]) -> PublishedEvent:
        self._last_id += 1
        event = PublishedEvent(id=self._last_id, time=self._now(), kind=kind, document=document)
        for buffer, available in self._buffers:
            buffer.append(event)
            available.set()
        return event

    @asynccontextmanager
    async def subscribe(self) -> AsyncIterator[AsyncIterator[PublishedEvent]]:
        subscriber = deque[PublishedEvent](maxlen=self._capacity), asyncio.Event()
        self._buffers.append(subscriber)
        try:
            yield _events(*subscriber, expected=self._last_id + 1)
        finally:
            self._buffers = [one for one in self._buffers if one is not subscriber]


async def _events(
    buffer: deque[PublishedEvent], available: asyncio.Event, *, expected: int
) -> AsyncIterator[PublishedEvent]:
    """Yield events in order, and one event in place of all that were dropped since ID *expected*."""
    while True:
        while not buffer:
            available.clear()
            await available.wait()
        if count := buffer[0].id - expected:
            expected = buffer[0].id
            yield PublishedEvent(id=expected - 1, time=buffer[0].time, kind=MISSED, document={"count": count})
        else:
            expected += 1
            yield buffer.popleft()
