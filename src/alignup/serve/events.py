"""Server-sent events: what happens, as it goes over the wire.

``Last-Event-ID`` is not heeded: events are not kept, and whoever comes back asks for the pods anew.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from alignup.serve.documents import timestamp
from alignup.serve.service import Event
from alignup.serve.stream import Stream

MEDIA_TYPE = "text/event-stream"
_OPENING = b": events from now on\nretry: 5000\n\n"
_HEARTBEAT = b": still here\n\n"

Events = Callable[[], AbstractAsyncContextManager[AsyncIterator[Event]]]


def stream(events: Events, *, heartbeat: float, patience: float, stopping: asyncio.Event) -> Stream:
    """An answer that tells *events*, and after *heartbeat* seconds without one that it is still there."""

    @asynccontextmanager
    async def pieces() -> AsyncIterator[AsyncIterator[bytes]]:
        async with events() as heard:
            yield (written(event) async for event in heard)

    return Stream(
        pieces=pieces,
        media_type=MEDIA_TYPE,
        patience=patience,
        opening=_OPENING,
        heartbeat=(heartbeat, _HEARTBEAT),
        stopping=stopping,
    )


def written(event: Event) -> bytes:
    """The event as it goes over the wire."""
    data = {"id": event.id, "time": timestamp(event.time), "kind": event.kind, "detail": event.document}
    kind = "".join(event.kind.splitlines())
    return f"id: {event.id}\nevent: {kind}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()
