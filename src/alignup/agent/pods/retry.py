"""Things that have to be done, however often that takes."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from structlog.typing import FilteringBoundLogger

from alignup.align.errors import AlignError
from alignup.schema.api import BusyError, NotReadyError

INITIAL_DELAY, MAX_DELAY = 1.0, 60.0  #: seconds until it is tried again: twice as long each time, and at most

_Answer = TypeVar("_Answer")


async def retry_forever(work: Callable[[], Awaitable[_Answer]], log: FilteringBoundLogger) -> _Answer:
    """What comes of *work* when it succeeds; why it cannot be done before is said once."""
    said, tries = "", 0
    while True:
        try:
            return await work()
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody else does it
            known = isinstance(error, AlignError | NotReadyError | BusyError | OSError)
            text = str(error) if known else describe_bug(error)
        if text != said:
            log.warning("runtime", detail=f"{text}; tried again")
        said = text
        await asyncio.sleep(retry_delay(tries))
        tries += 1


def retry_delay(failures: int) -> float:
    """Seconds until something is tried again that has failed so many times before."""
    return min(INITIAL_DELAY * 2.0 ** min(failures, 16), MAX_DELAY)


def describe_bug(error: Exception) -> str:
    """An error that nobody foresaw, for people."""
    return f"a fault of alignup: {type(error).__name__}: {error}"
