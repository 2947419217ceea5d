"""Streams of server-sent events.

A chunk is produced only after the client has read the one before; the server closes the connection of a client that
does not read. A stream sends a comment when it is idle, so that both sides notice a dead connection.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from starlette.types import Receive, Scope, Send

from alignup.web.event_bus import Subscription
from alignup.web.responses import HEADERS

EVENT_STREAM = "text/event-stream"
_EVENT_OPENING = b": events from now on\nretry: 5000\n\n"
_HEARTBEAT = b": still here\n\n"

EventSource = Callable[[], AbstractAsyncContextManager[Subscription]]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventStream:
    """An ASGI response that sends server-sent events until the client disconnects or *stopping* is set.

    ``Last-Event-ID`` is ignored because events are not stored: after a reconnect, clients list the pods again.
    """

    events: EventSource
    heartbeat: float  #: seconds of silence before a heartbeat
    stopping: asyncio.Event

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        await _send_start(send)
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


async def _send_start(send: Send) -> None:
    fields = {"Content-Type": f"{EVENT_STREAM}; charset=utf-8", **HEADERS}
    headers = [(name.lower().encode(), value.encode()) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def _send_chunk(send: Send, chunk: bytes) -> None:
    await send({"type": "http.response.body", "body": chunk, "more_body": True})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
