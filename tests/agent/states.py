"""Small hosts and agent states for tests of the agent."""

from itertools import count
from typing import Any

from alignup.agent.state import AgentState, Clock
from alignup.agent.wait_queue import WaitQueue
from tests.align.hosts import host, pod

ANY_DECISION = host().decide(pod("any"))


def clock(*, start: float = 1_000.0) -> Clock:
    """A clock that advances by a second per call; its monotonic clock, by a millisecond."""
    seconds, ticks = count(start), count()
    return Clock(now=lambda: next(seconds), monotonic=lambda: next(ticks) / 1_000)


def empty_state(
    *, wait_enabled: bool = False, max_overtakes: int | None = None, capacity: int = 10, **options: Any
) -> AgentState:
    """Two NUMA nodes without pods: the first has three free CPUs, the second four."""
    empty = host(**options)
    return AgentState(
        host=empty,
        idle_ledger=empty.ledger,
        waiting=WaitQueue(max_overtakes=max_overtakes, capacity=capacity),
        wait_enabled=wait_enabled,
    )
