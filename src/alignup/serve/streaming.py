"""An answer that is sent piece by piece as it comes to be, until it ends, the client is gone, or the server is.

A piece is made only when the one before it was read. Where the format knows a piece that says nothing, it is sent when
nothing else is, so that both sides notice when the other has vanished.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from starlette.types import Receive, Scope, Send

from alignup.serve.responses import HEADERS


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteStream:
    """Sends the *pieces* of one answer."""

    chunks: Callable[[], AbstractAsyncContextManager[AsyncIterator[bytes]]]
    media_type: str
    patience: float  #: seconds a client may take to read what it was sent
    opening: bytes = b""  #: what comes first
    heartbeat: tuple[float, bytes] | None = None  #: after how many seconds of silence what is sent
    stopping: asyncio.Event | None = None  #: set when the answer is to end though there may be more

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        del scope
        said = {"Content-Type": f"{self.media_type}; charset=utf-8", **HEADERS}
        headers = [(name.lower().encode(), value.encode()) for name, value in said.items()]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        until = [asyncio.ensure_future(_gone(receive))]
        if self.stopping is not None:
            until.append(asyncio.ensure_future(_set(self.stopping)))
        try:
            async with self.chunks() as pieces:
                await self._pump(pieces, _Writer(send, self.patience), until=frozenset(until))
        except TimeoutError:  # it reads nothing any more; the connection is given up
            return
        finally:
            for one in until:
                one.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pump(
        self, pieces: AsyncIterator[bytes], writer: "_Writer", *, until: frozenset[asyncio.Future[None]]
    ) -> None:
        """Pass pieces on until there are no more, or one of *until* is done."""
        silence, beat = self.heartbeat or (None, b"")
        if self.opening:
            await writer.write(self.opening)
        upcoming = asyncio.ensure_future(_next(pieces))
        try:
            while True:
                watched: set[asyncio.Future[Any]] = {upcoming, *until}
                done, _ = await asyncio.wait(watched, timeout=silence, return_when=asyncio.FIRST_COMPLETED)
                if done & until:
                    return
                if upcoming not in done:
                    await writer.write(beat)
                    continue
                piece = upcoming.result()
                if piece is None:
                    return
                await writer.write(piece)
                upcoming = asyncio.ensure_future(_next(pieces))
        finally:
            upcoming.cancel()
            # Whoever makes the pieces is to be done before it is closed; how it fared matters to nobody any more.
            await asyncio.gather(upcoming, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class _Writer:
    """Sends bytes to a client that has to read them in time."""

    send: Send
    patience: float

    async def write(self, piece: bytes) -> None:
        async with asyncio.timeout(self.patience):
            await self.send({"type": "http.response.body", "body": piece, "more_body": True})


async def _next(pieces: AsyncIterator[bytes]) -> bytes | None:
    return await anext(pieces, None)


async def _set(event: asyncio.Event) -> None:
    await event.wait()


async def _gone(receive: Receive) -> None:
    """Until the client is."""
    while (await receive())["type"] != "http.disconnect":
        pass
