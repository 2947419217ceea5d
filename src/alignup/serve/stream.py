"""Server-sent events: an answer that goes on until the client is gone, or the server is.

A comment is sent when nothing else is, so that both sides notice when the other has vanished. ``Last-Event-ID`` is not
heeded: events are not kept, and whoever comes back asks for the pods anew.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from starlette.types import Receive, Scope, Send

from alignup.serve.documents import timestamp
from alignup.serve.service import Event

MEDIA_TYPE = "text/event-stream"
_OPENING = ": events from now on\nretry: 5000\n\n"
_HEARTBEAT = ": still here\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventStream:
    """Sends what *events* tells."""

    events: Callable[[], AbstractAsyncContextManager[AsyncIterator[Event]]]
    heartbeat: float  #: seconds of silence after which a comment is sent
    patience: float  #: seconds a client may take to read what it was sent
    stopping: asyncio.Event  #: set when the server is to end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        del scope
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        gone = asyncio.ensure_future(_gone(receive))
        ended = asyncio.ensure_future(_wait(self.stopping))
        try:
            async with self.events() as events:
                await self._pump(events, _Writer(send, self.patience), until=(gone, ended))
        except TimeoutError:  # it reads nothing any more; the connection is given up
            return
        finally:
            gone.cancel()
            ended.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pump(
        self, events: AsyncIterator[Event], writer: "_Writer", *, until: tuple[asyncio.Future[None], ...]
    ) -> None:
        """Pass events on until one of *until* is done."""
        await writer.write(_OPENING)
        upcoming = asyncio.ensure_future(_next(events))
        try:
            while True:
                watched: set[asyncio.Future[Any]] = {upcoming, *until}
                done, _ = await asyncio.wait(watched, timeout=self.heartbeat, return_when=asyncio.FIRST_COMPLETED)
                if done.intersection(until):
                    return
                if upcoming not in done:
                    await writer.write(_HEARTBEAT)
                    continue
                event = upcoming.result()
                if event is None:
                    return
                upcoming = asyncio.ensure_future(_next(events))
                await writer.write(written(event))
        finally:
            upcoming.cancel()


def written(event: Event) -> str:
    """The event as it goes over the wire."""
    data = {"id": event.id, "time": timestamp(event.time), "kind": event.kind, "detail": event.document}
    kind = "".join(event.kind.splitlines())
    return f"id: {event.id}\nevent: {kind}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n"


@dataclass(frozen=True, slots=True)
class _Writer:
    """Sends text to a client that has to read it in time."""

    send: Send
    patience: float

    async def write(self, text: str) -> None:
        async with asyncio.timeout(self.patience):
            await self.send({"type": "http.response.body", "body": text.encode(), "more_body": True})


async def _next(events: AsyncIterator[Event]) -> Event | None:
    return await anext(events, None)


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


async def _gone(receive: Receive) -> None:
    """Until the client is."""
    while (await receive())["type"] != "http.disconnect":
        pass
