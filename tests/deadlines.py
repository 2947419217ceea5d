"""Waiting for a condition, and limits on CPU time.

The deadlines are far beyond what a busy machine needs. A test reaches one only if what it waits for never happens.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

SECONDS = 60.0
_EAGER_TURNS = 20  #: of the event loop: most conditions are true after a few


async def until(condition: Callable[[], object], *, seconds: float = SECONDS) -> None:
    """Let other tasks run until *condition* is true; the limit is of real time."""
    deadline = time.monotonic() + seconds
    turns = 0
    while not condition():
        if time.monotonic() >= deadline:
            raise TimeoutError
        await asyncio.sleep(0 if turns < _EAGER_TURNS else 0.005)
        turns += 1


@asynccontextmanager
async def counted_turns() -> AsyncIterator[list[None]]:
    """Return a list that grows at each turn of the event loop, while a block runs that is to leave turns to others."""
    turns: list[None] = []

    async def count() -> None:
        while True:
            turns.append(None)
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    try:
        yield turns
    finally:
        counting.cancel()


def wait_for(
    condition: Callable[[], object],
    *,
    describe: Callable[[], str] = lambda: "a condition",
    seconds: float = SECONDS,
    interval: float = 0.005,
) -> None:
    """Block until *condition* is true; a failure says what it waited for, as *describe* returns it."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:g} seconds for {describe()}"
        time.sleep(interval)


@contextmanager
def cpu_limit(seconds: float = 30.0) -> Iterator[None]:
    """Fail if the block uses more CPU time: more work than the size of its input explains."""
    start = time.process_time()
    yield
    assert time.process_time() - start < seconds
