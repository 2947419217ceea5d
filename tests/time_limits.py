"""Time limits of tests: one that hangs ends its process, which prints the stacks of all threads.

xdist counts the test as failed, and starts another worker. The limit of pytest itself starts and ends a
thread for each test, which takes longer than most tests on a busy machine. Here one is started from time to time: a
test is ended after its limit, or a tenth later.
"""

import faulthandler
import os
import sys
import time
from dataclasses import dataclass

import pytest

from tests.effort import rounds

#: that a test may take: far more than any needs on a busy machine
SECONDS = float(os.environ.get("ALIGNUP_TEST_SECONDS", rounds(300, soak=3600)))
SLACK = 0.1  #: of the limit


@dataclass
class Timer:
    """A timer that ends this process."""

    stderr: int  #: where it prints stacks
    ends: float = 0.0  #: when it ends this process, by the monotonic clock; 0: it is not started


_TIMER = pytest.StashKey[Timer]()


def prepare_limits(config: pytest.Config) -> None:
    """Save where stacks are printed, before pytest captures the output of tests."""
    assert sys.__stderr__ is not None
    config.stash[_TIMER] = Timer(os.dup(sys.__stderr__.fileno()))


def start_limit(item: pytest.Item, seconds: float = SECONDS, *, again: bool = False) -> None:
    """End this process if *item* is not finished within *seconds* from now; *again*: pytest has stopped the timer."""
    timer, now = item.config.stash[_TIMER], time.monotonic()
    if again or timer.ends < now + seconds:
        limit = seconds * (1 + SLACK)
        faulthandler.dump_traceback_later(limit, file=timer.stderr, exit=True)
        timer.ends = now + limit
