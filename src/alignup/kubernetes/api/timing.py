"""All waits and time-outs of API clients in one value, so that tests need not wait."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Waits and time-outs in seconds, and the clock they are measured with."""

    connect: float = 10.0  #: to connect, including the TLS handshake
    response: float = 60.0  #: without a byte of a response; watches excepted
    total: float = 300.0  #: for a whole response; watches excepted
    watch: float = 300.0  #: after which the server ends a watch; each asks for up to twice as long
    credentials: float = 60.0  #: for a credential plugin
    retry: float = 0.5  #: the first delay after a failure; it doubles with every further one
    longest_retry: float = 30.0
    attempts: int = 5  #: of a request that is safe to repeat
    lease: float = 15.0  #: after which a leader that does not renew its lease is replaced
    renew: float = 10.0  #: after which a leader that cannot renew its lease gives up
    poll: float = 2.0  #: between renewals, and between attempts to become leader
    clock: Callable[[], float] = time.monotonic
    time_of_day: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    random: Callable[[], float] = random.random  #: from 0 to 1

    def spread(self, seconds: float) -> float:
        """Return a random time from half of *seconds* to all of it, so that clients do not act at the same time."""
        return seconds * (1 + self.random()) / 2


class RetryDelay:
    """Delays between attempts that double up to a limit, each shortened at random."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._failures = 0

    def reset(self) -> None:
        self._failures = 0

    async def wait(self, *, at_least: float = 0.0) -> None:
        """Wait before the next attempt; *at_least* is the server's wish, which counts up to the longest delay."""
        timing = self._timing
        delay = min(timing.retry * 2 ** min(self._failures, 32), timing.longest_retry)
        self._failures += 1
        await timing.sleep(max(timing.spread(delay), min(at_least, timing.longest_retry)))
