"""What a container printed, as plain text: bytes are passed on as they are, whatever they mean."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from alignup.serve.answers import TEXT
from alignup.serve.stream import Stream


def stream(log: AsyncIterator[bytes], *, patience: float, stopping: asyncio.Event | None) -> Stream:
    """An answer that gives all of *log*; one that may never end does when *stopping* is set."""

    @asynccontextmanager
    async def pieces() -> AsyncIterator[AsyncIterator[bytes]]:
        try:
            yield log
        finally:
            await close(log)

    return Stream(pieces=pieces, media_type=TEXT, patience=patience, stopping=stopping)


async def close(log: AsyncIterator[bytes]) -> None:
    """Nobody reads on; files are closed now, and not when memory is tidied."""
    if isinstance(log, AsyncGenerator):
        await log.aclose()
