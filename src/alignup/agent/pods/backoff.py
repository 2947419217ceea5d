"""Back-off delays of containers and sandboxes, and retries of the agent's own operations.

The kubelet restarts a container at once the first time, then after 10 s, 20 s and so on up to 5 min, and resets the
delay when the container has run for 10 min. It counts in memory. This module derives the count from the container
statuses, so that it survives a restart of the agent: the pause before the last start is the last delay, and the next
delay is twice as long.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from structlog.typing import FilteringBoundLogger

from alignup.align.errors import AlignError
from alignup.enforce.cri.types import CriContainer
from alignup.schema.api import BusyError, NotReadyError

INITIAL_DELAY = 10.0  #: seconds
MAX_DELAY = 300.0  #: seconds
RESET_AFTER = 600.0  #: seconds a container must run for its delay to reset
INITIAL_RETRY_DELAY, MAX_RETRY_DELAY = 1.0, 60.0  #: seconds; the delay doubles after each failure

_MAX_STEPS = 6  #: failures in a row that reach the maximum delay

_Result = TypeVar("_Result")


def delay(failures: int) -> float:
    """Seconds to wait after *failures* in a row."""
    return min(INITIAL_DELAY * 2 ** (min(failures, _MAX_STEPS) - 1), MAX_DELAY) if failures > 0 else 0.0


def crash_count(exited: CriContainer, previous: CriContainer | None) -> int:
    """The number of crashes in a row; 0: the container may restart at once.

    *previous* is the instance that exited before this one. Without it, every attempt counts.
    """
    if _ran_long_enough(exited):
        return 0
    if previous is None:
        return exited.attempt
    pause = 0.0 if _ran_long_enough(previous) else exited.created - finished_at(previous)
    waited = max((step for step in range(_MAX_STEPS + 1) if delay(step) <= pause), default=0)
    return min(waited + 1, exited.attempt)


def finished_at(container: CriContainer) -> float:
    """When a container exited; falls back to when it started if the runtime does not report it."""
    return max(container.finished, container.started, container.created)


def _ran_long_enough(container: CriContainer) -> bool:
    return container.started > 0 and finished_at(container) - container.started > RESET_AFTER


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
    return min(INITIAL_RETRY_DELAY * 2.0 ** min(failures, 16), MAX_RETRY_DELAY)


def describe_bug(error: Exception) -> str:
    return f"internal error (a bug in alignup): {type(error).__name__}: {error}"
