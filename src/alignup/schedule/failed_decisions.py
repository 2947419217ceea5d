"""Decisions about nodes that a defect prevented: they are counted, logged, and made again after a while.

A node that raises an error for any pod must not keep pods from all other nodes: it is not used meanwhile.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import structlog

from alignup.schedule.step_guard import ServiceStep, StepGuard

_log = structlog.get_logger()


class FailedDecisions:
    """*retry* is called with the name of a node when decisions about it may be made again."""

    def __init__(self, guard: StepGuard, retry: Callable[[str], object]) -> None:
        self._guard = guard
        self._retry = retry
        self.count = 0

    def note(self, node: str, error: Exception) -> None:
        """Count a decision that failed, and log the first one until the next try."""
        self.count += 1
        step, name = ServiceStep.FOLLOW, f"node {node}"
        if self._guard.may_try(step, name):
            seconds = self._guard.failed(step, name)
            _log.error("decision failed", node=node, retry=seconds, exc_info=error)
            with suppress(RuntimeError):  # a thread decides on a large pod, whose question raises the error again
                asyncio.get_running_loop().call_later(seconds, self._retry, node)
