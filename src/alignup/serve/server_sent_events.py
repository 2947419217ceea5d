"""Server-sent events: what happens, as it goes over the wire.

``Last-Event-ID`` is not heeded: events are not kept, and whoever comes back asks for the pods anew.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from alignup.schema.api import PublishedEvent
from alignup.serve.json_views import timestamp
from alignup.serve.streaming import ByteStream

MEDIA_TYPE = "text/event-stream"
_OPENING = b": events from now on\nretry: 5000\n\n"
_HEARTBEAT = b": still here\n\n"

EventSource = Callable[[], AbstractAsyncContextManager[AsyncIterator[PublishedEvent]]]


def event_stream(events: EventSource, *, heartbeat: float, patience: float, stopping: asyncio.Event) -> ByteStream:
    """An answer that tells *events*, and after *heartbeat* seconds without one that it is still there."""

    @asynccontextmanager
    async def pieces() -> AsyncIterator[AsyncIterator[bytes]]:
        async with events() as heard:
            yield (encode_event(event) async for event in heard)

    return ByteStream(
        chunks=pieces,
        media_type=MEDIA_TYPE,
        patience=patience,
        opening=_OPENING,
        heartbeat=(heartbeat, _HEARTBEAT),
        stopping=stopping,
    )


def encode_event(event: PublishedEvent) -> bytes:
    """The event as it goes over the wire."""
    data = {"id": event.id, "time": timestamp(event.time), "kind": event.kind, "detail": event.document}
    kind = "".join(event.kind.splitlines())
    return f"id: {event.id}\nevent: {kind}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()
