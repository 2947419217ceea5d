"""Things that have to be done, however often that takes."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from structlog.typing import FilteringBoundLogger

from alignup.align.errors import AlignError
from alignup.serve.service import BusyError, NotReadyError

SOON, LONGEST = 1.0, 60.0  #: seconds until it is tried again: twice as long each time, and at most

_Answer = TypeVar("_Answer")


async def persistently(work: Callable[[], Awaitable[_Answer]], log: FilteringBoundLogger) -> _Answer:
    """What comes of *work* when it succeeds; why it cannot be done before is said once."""
    said, tries = "", 0
    while True:
        try:
            return await work()
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody else does it
            known = isinstance(error, AlignError | NotReadyError | BusyError | OSError)
            text = str(error) if known else fault(error)
        if text != said:
            log.warning("runtime", detail=f"{text}; tried again")
        said = text
        await asyncio.sleep(nap(tries))
        tries += 1


def nap(failures: int) -> float:
    """Seconds until something is tried again that has failed so many times before."""
    return min(SOON * 2.0 ** min(failures, 16), LONGEST)


def fault(error: Exception) -> str:
    """An error that nobody foresaw, for people."""
    return f"a fault of alignup: {type(error).__name__}: {error}"
