"""Retry operations of the agent until they succeed."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from structlog.typing import FilteringBoundLogger

from alignup.align.errors import AlignError
from alignup.schema.api import BusyError, NotReadyError

INITIAL_DELAY, MAX_DELAY = 1.0, 60.0  #: seconds; the delay doubles after each failure

_Result = TypeVar("_Result")


async def retry_forever(operation: Callable[[], Awaitable[_Result]], log: FilteringBoundLogger) -> _Result:
    """Return the result of *operation* once it succeeds; each new error is logged once."""
    logged, failures = "", 0
    while True:
        try:
            return await operation()
        except Exception as error:  # noqa: BLE001 - a bug must not stop the retries either
            expected = isinstance(error, AlignError | NotReadyError | BusyError | OSError)
            text = str(error) if expected else describe_bug(error)
        if text != logged:
            log.warning("runtime", detail=f"{text}; retrying")
        logged = text
        await asyncio.sleep(retry_delay(failures))
        failures += 1


def retry_delay(failures: int) -> float:
    """Seconds to wait before the next attempt after *failures* earlier ones."""
    return min(INITIAL_DELAY * 2.0 ** min(failures, 16), MAX_DELAY)


def describe_bug(error: Exception) -> str:
    return f"internal error (a bug in alignup): {type(error).__name__}: {error}"
