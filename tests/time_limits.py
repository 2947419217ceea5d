"""Time limits of tests: one that hangs fails, and the stacks of all its threads are printed.

pytest ends the process at the limit (``faulthandler_timeout`` in pyproject.toml), and xdist counts the test as failed
and starts another worker. This adds the time after a failure, for which pytest drops the limit, and other limits.
"""

import faulthandler
import os
import sys

import pytest

_STDERR = pytest.StashKey[int]()


def save_stderr(config: pytest.Config) -> None:
    """Save where stacks are printed, before pytest captures the output of tests."""
    assert sys.__stderr__ is not None
    config.stash[_STDERR] = os.dup(sys.__stderr__.fileno())


def start_limit(item: pytest.Item, seconds: float | None = None) -> None:
    """End this process if *item* is not finished within *seconds* from now (default: pytest's limit)."""
    if limit := seconds or float(item.config.getini("faulthandler_timeout")):
        faulthandler.dump_traceback_later(limit, file=item.config.stash[_STDERR], exit=True)
