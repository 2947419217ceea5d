"""What a container printed, as plain text: bytes are passed on as they are, whatever they mean."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from alignup.serve.responses import TEXT
from alignup.serve.streaming import ByteStream


def log_response(log: AsyncIterator[bytes], *, patience: float, stopping: asyncio.Event | None) -> ByteStream:
    """An answer that gives all of *log*; one that may never end does when *stopping* is set."""

    @asynccontextmanager
    async def pieces() -> AsyncIterator[AsyncIterator[bytes]]:
        try:
            yield log
        finally:
            await close_log(log)

    return ByteStream(chunks=pieces, media_type=TEXT, patience=patience, stopping=stopping)


async def close_log(log: AsyncIterator[bytes]) -> None:
    """Nobody reads on; files are closed now, and not when memory is tidied."""
    if isinstance(log, AsyncGenerator):
        await log.aclose()
