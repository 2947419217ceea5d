"""Streaming responses: container logs and server-sent events, and the bus that the events come from.

A chunk is produced only after the client has read the one before; the server closes the connection of a client that
does not read. Event streams send a comment when they are idle, so that both sides notice a dead connection.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from starlette.types import Receive, Scope, Send

from alignup.schema import codec
from alignup.schema.api import PublishedEvent
from alignup.schema.run_status import timestamp
from alignup.serve.responses import HEADERS, TEXT

EVENT_STREAM = "text/event-stream"
MISSED = "missed"  #: the kind of event that stands for dropped ones: ``{"count": 3}``
_EVENT_OPENING = b": events from now on\nretry: 5000\n\n"
_HEARTBEAT = b": still here\n\n"

EventSource = Callable[[], AbstractAsyncContextManager[AsyncIterator[PublishedEvent]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteStream:
    """An ASGI response that sends *chunks* until they end, the client disconnects, or *stopping* is set."""

    chunks: Callable[[], AbstractAsyncContextManager[AsyncIterator[bytes]]]
    media_type: str
    opening: bytes = b""
    heartbeat: float | None = None  #: seconds of silence before a heartbeat; ``None``: no heartbeats
    stopping: asyncio.Event | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        fields = {"Content-Type": f"{self.media_type}; charset=utf-8", **HEADERS}
        headers = [(name.lower().encode(), value.encode()) for name, value in fields.items()]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        disconnected = asyncio.ensure_future(_disconnected(receive))
        until: list[asyncio.Future[Any]] = [disconnected]
        if self.stopping is not None:
            until.append(asyncio.ensure_future(self.stopping.wait()))
        try:
            async with self.chunks() as chunks:
                await self._send_chunks(chunks, send, disconnected=disconnected, until=frozenset(until))
        finally:
            for one in until:
                one.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_chunks(
        self,
        chunks: AsyncIterator[bytes],
        send: Send,
        *,
        disconnected: asyncio.Future[Any],
        until: frozenset[asyncio.Future[Any]],
    ) -> None:

        async def write(chunk: bytes) -> None:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})

        if self.opening:
            await write(self.opening)
        upcoming = asyncio.ensure_future(_next(chunks))
        try:
            while True:
                watched: set[asyncio.Future[Any]] = {upcoming, *until}
                done, _ = await asyncio.wait(watched, timeout=self.heartbeat, return_when=asyncio.FIRST_COMPLETED)
                if disconnected in done:
                    return
                if upcoming not in done:  # what is ready is sent even when the server stops
                    if done:
                        return
                    await write(_HEARTBEAT)
                    continue
                chunk = upcoming.result()
                if chunk is None:
                    return
                await write(chunk)
                upcoming = asyncio.ensure_future(_next(chunks))
        finally:
            upcoming.cancel()
            # The iterator must be idle before its context closes it; its result no longer matters.
            await asyncio.gather(upcoming, return_exceptions=True)


def log_response(log: AsyncIterator[bytes], *, stopping: asyncio.Event | None) -> ByteStream:

    @asynccontextmanager
    async def chunks() -> AsyncIterator[AsyncIterator[bytes]]:
        try:
            yield log
        finally:
            await close_log(log)

    return ByteStream(chunks=chunks, media_type=TEXT, stopping=stopping)


async def close_log(log: AsyncIterator[bytes]) -> None:
    """Close the files behind *log* now, rather than when it is garbage collected."""
    if isinstance(log, AsyncGenerator):
        await log.aclose()


def event_stream(events: EventSource, *, heartbeat: float, stopping: asyncio.Event) -> ByteStream:
    """Stream *events* as server-sent events.

    ``Last-Event-ID`` is ignored because events are not stored: after a reconnect, clients list the pods again.
    """

    @asynccontextmanager
    async def chunks() -> AsyncIterator[AsyncIterator[bytes]]:
        async with events() as subscription:
            yield (encode_event(event) async for event in subscription)

    return ByteStream(
        chunks=chunks,
        media_type=EVENT_STREAM,
        opening=_EVENT_OPENING,
        heartbeat=heartbeat,
        stopping=stopping,
    )


def encode_event(event: PublishedEvent) -> bytes:
    kind = "".join(event.kind.splitlines())
    data = {"id": event.id, "time": timestamp(event.time), "kind": event.kind, "detail": event.document}
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.id, kind.encode(), codec.encode(data))


async def _next(chunks: AsyncIterator[bytes]) -> bytes | None:
    return await anext(chunks, None)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventBus:
    """Distributes events to subscribers and never waits for one. *now* returns the time.

    Each subscriber buffers up to *capacity* events. When its buffer is full, the oldest events are dropped, and the
    subscriber gets their number before the next event; it should then list the pods again.
    """

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
            yield _buffered(*subscriber, expected=self._last_id + 1)
        finally:
            self._buffers = [one for one in self._buffers if one is not subscriber]


async def _buffered(
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
