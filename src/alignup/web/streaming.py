"""Streaming responses: container logs and server-sent events.

A chunk is produced only after the client has read the one before; the server closes the connection of a client that
does not read. Event streams send a comment when they are idle, so that both sides notice a dead connection.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from starlette.types import Receive, Scope, Send

from alignup.web.event_bus import Subscription
from alignup.web.responses import HEADERS, TEXT

EVENT_STREAM = "text/event-stream"
_EVENT_OPENING = b": events from now on\nretry: 5000\n\n"
_HEARTBEAT = b": still here\n\n"

EventSource = Callable[[], AbstractAsyncContextManager[Subscription]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteStream:
    """An ASGI response that sends *chunks* until they end, the client disconnects, or *stopping* is set."""

    chunks: Callable[[], AbstractAsyncContextManager[AsyncIterator[bytes]]]
    media_type: str
    stopping: asyncio.Event | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        await _send_start(send, self.media_type)
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
        upcoming = asyncio.ensure_future(_next(chunks))
        try:
            while True:
                watched: set[asyncio.Future[Any]] = {upcoming, *until}
                done, _ = await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
                if disconnected in done or upcoming not in done:  # what is ready is sent even when the server stops
                    return
                chunk = upcoming.result()
                if chunk is None:
                    return
                await _send_chunk(send, chunk)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class EventStream:
    """An ASGI response that sends server-sent events until the client disconnects or *stopping* is set.

    ``Last-Event-ID`` is ignored because events are not stored: after a reconnect, clients list the pods again.
    """

    events: EventSource
    heartbeat: float  #: seconds of silence before a heartbeat
    stopping: asyncio.Event
    media_type: str = EVENT_STREAM

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        await _send_start(send, self.media_type)
        disconnected = asyncio.ensure_future(_disconnected(receive))
        stopped = asyncio.ensure_future(self.stopping.wait())
        try:
            async with self.events() as subscription:
                for end in (disconnected, stopped):
                    end.add_done_callback(lambda _: subscription.resume())
                await _send_chunk(send, _EVENT_OPENING)
                while not disconnected.done():
                    stops = stopped.done()  # what is published before that is sent
                    if chunk := subscription.take_text():
                        await _send_chunk(send, chunk)
                    elif stops:
                        break
                    elif not await subscription.wait(self.heartbeat):
                        await _send_chunk(send, _HEARTBEAT)
        finally:
            disconnected.cancel()
            stopped.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_start(send: Send, media_type: str) -> None:
    fields = {"Content-Type": f"{media_type}; charset=utf-8", **HEADERS}
    headers = [(name.lower().encode(), value.encode()) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def _send_chunk(send: Send, chunk: bytes) -> None:
    await send({"type": "http.response.body", "body": chunk, "more_body": True})


async def _next(chunks: AsyncIterator[bytes]) -> bytes | None:
    return await anext(chunks, None)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
