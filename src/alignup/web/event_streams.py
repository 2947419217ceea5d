"""Events for any number of subscribers, and the server-sent events of an HTTP response.

Each event is kept and encoded once for all subscribers. Publishing never waits. Subscribers are resumed in small groups
with pauses in between, so that many of them delay other requests little; what is published meanwhile reaches them
together. The server closes the connection of a client that does not read. A stream sends a comment when it is idle, so
that both sides notice a dead connection.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from alignup.documents import codec
from alignup.web.responses import HEADERS, RETRY_LATER, ProblemError

EVENT_STREAM = "text/event-stream"
MISSED = "missed"  #: the kind of event that stands for dropped ones: ``{"count": 3}``
_GROUP = 32  #: subscribers that are resumed at once
_PAUSE_SECONDS = 0.0002  #: after each of them
_OPENING = b": events from now on\nretry: 5000\n\n"
_HEARTBEAT = b": still here\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedEvent:
    id: int  #: increases by one, and restarts with the program
    time: float  #: seconds since 1970
    kind: str  #: of the agent: admitted, rejected, waiting, released, announced, …
    document: Mapping[str, Any]


class EventBus:
    """Distributes events to subscribers and never waits for one. *now* returns the time.

    The last *capacity* events are kept. A subscriber that is further behind gets the number of events that it missed
    before the next event; it should then list the pods again.
    """

    def __init__(self, *, now: Callable[[], float], capacity: int = 256) -> None:
        self._now = now
        self._last_id = 0
        self._recent = deque[PublishedEvent](maxlen=capacity)  #: empty without subscribers
        self._encoded = 0, 0, b""  #: first and last ID, and their text
        self._subscriptions: dict[Subscription, None] = {}
        self._to_resume: deque[Subscription] | None = None  #: in this round; ``None``: no round is running
        self._again = False  #: whether another round must follow

    @property
    def subscribers(self) -> int:
        return len(self._subscriptions)

    def publish(self, kind: str, document: Mapping[str, Any]) -> PublishedEvent:
        self._last_id += 1
        event = PublishedEvent(id=self._last_id, time=self._now(), kind=kind, document=document)
        if self._subscriptions:
            self._recent.append(event)
            if self._to_resume is None:
                self._to_resume = deque(self._subscriptions)
                self._resume_group()
            else:
                self._again = True
        return event

    @asynccontextmanager
    async def subscribe(self) -> AsyncIterator["Subscription"]:
        subscription = Subscription(self, self._last_id + 1)
        self._subscriptions[subscription] = None
        try:
            yield subscription
        finally:
            del self._subscriptions[subscription]
            if not self._subscriptions:
                self._recent.clear()

    def text_from(self, id_: int) -> bytes:
        """Return the events from *id_* on as server-sent events, with one in place of all that are no longer kept.

        There must be some. Most subscribers need the same text.
        """
        if self._encoded[:2] != (id_, self._last_id):
            first = self._recent[0]
            events = list(islice(self._recent, max(0, id_ - first.id), None))
            if id_ < first.id:
                missed_count = {"count": first.id - id_}
                events.insert(0, PublishedEvent(id=first.id - 1, time=first.time, kind=MISSED, document=missed_count))
            self._encoded = id_, self._last_id, b"".join(map(encode_event, events))
        return self._encoded[2]

    @property
    def next_id(self) -> int:
        return self._last_id + 1

    def _resume_group(self) -> None:
        waiting_streams, resumed_count = self._to_resume, 0
        while waiting_streams and resumed_count < _GROUP:
            waiting_streams.popleft().resume()
            resumed_count += 1
        if not waiting_streams:
            waiting_streams = deque(self._subscriptions) if self._again else None
            self._again = False
        self._to_resume = waiting_streams if resumed_count else None
        if resumed_count:
            asyncio.get_running_loop().call_later(resumed_count * _PAUSE_SECONDS, self._resume_group)


class Subscription:
    """The position of one subscriber in the events of a bus."""

    def __init__(self, bus: EventBus, next_id: int) -> None:
        self._bus = bus
        self._next_id = next_id
        self._waiter: asyncio.Future[bool] | None = None

    def take_text(self) -> bytes:
        """Return all new events as server-sent events."""
        text = self._bus.text_from(self._next_id) if self._next_id < self._bus.next_id else b""
        self._next_id = self._bus.next_id
        return text

    async def wait(self, seconds: float) -> bool:
        """Wait until there may be new events, at most *seconds*; return whether ``resume`` was called."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        self._waiter = waiter
        timer = loop.call_later(seconds, _finish, waiter, False)  # noqa: FBT003 - a result
        try:
            return await waiter
        finally:
            self._waiter = None
            timer.cancel()

    def resume(self) -> None:
        if self._waiter is not None:
            _finish(self._waiter, True)  # noqa: FBT003 - a result


def encode_event(event: PublishedEvent) -> bytes:
    kind = "".join(event.kind.splitlines())
    data = {"id": event.id, "time": codec.timestamp(event.time), "kind": event.kind, "detail": event.document}
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.id, kind.encode(), codec.encode(data))


def _finish(waiter: asyncio.Future[bool], result: bool) -> None:  # noqa: FBT001 - a result
    if not waiter.done():
        waiter.set_result(result)


EventSource = Callable[[], AbstractAsyncContextManager[Subscription]]


class EventStreams:
    """The event streams of a program, at most *limit* at a time.

    Streams end when *stopping* is set. ``Last-Event-ID`` is ignored because events are not stored: after a reconnect,
    clients list again what they show. A stream that is silent for *heartbeat* seconds sends a comment.
    """

    def __init__(self, source: EventSource, *, limit: int, heartbeat: float, stopping: asyncio.Event) -> None:
        self._source = source
        self._limit = limit
        self._heartbeat = heartbeat
        self._stopping = stopping
        self._open = 0

    def response(self, request: Request) -> ASGIApp:
        if request.method == "HEAD":
            return Response(media_type=EVENT_STREAM, headers=HEADERS)
        if self._open >= self._limit:
            raise ProblemError(429, f"Too many event streams: the limit is {self._limit}.", headers=RETRY_LATER)
        return self._send_events

    async def _send_events(self, _scope: Scope, receive: Receive, send: Send) -> None:
        self._open += 1
        fields = {"Content-Type": f"{EVENT_STREAM}; charset=utf-8", **HEADERS}
        headers = [(name.lower().encode(), value.encode()) for name, value in fields.items()]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        disconnection = asyncio.ensure_future(_disconnected(receive))
        stop_task = asyncio.ensure_future(self._stopping.wait())
        try:
            async with self._source() as subscription:
                for end in (disconnection, stop_task):
                    end.add_done_callback(lambda _: subscription.resume())
                await _send_chunk(send, _OPENING)
                while not disconnection.done():
                    stops = stop_task.done()  # what is published before that is sent
                    if chunk := subscription.take_text():
                        await _send_chunk(send, chunk)
                    elif stops:
                        break
                    elif not await subscription.wait(self._heartbeat):
                        await _send_chunk(send, _HEARTBEAT)
        finally:
            self._open -= 1
            disconnection.cancel()
            stop_task.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_chunk(send: Send, chunk: bytes) -> None:
    await send({"type": "http.response.body", "body": chunk, "more_body": True})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
