"""Small hosts and what stands on them, for tests of the agent."""

from itertools import count
from typing import Any

from alignup.agent.pod_record import StoredRecord
from alignup.agent.state import AgentState, Clock
from alignup.agent.wait_queue import WaitQueue
from tests.align.hosts import host, pod

NOTHING = StoredRecord(host().decide(pod("nothing")))  #: a decision that nobody looks at


def clock(*, start: float = 1_000.0) -> Clock:
    """A clock on which every look takes a second, and a watch on which it takes a millisecond."""
    seconds, ticks = count(start), count()
    return Clock(now=lambda: next(seconds), watch=lambda: next(ticks) / 1_000)


def standing(*, wait: bool = False, patience: int | None = None, room: int = 10, **options: Any) -> AgentState:
    """Nothing is here yet: two nodes, the first with three free CPUs, the second with four."""
    empty = host(**options)
    return AgentState(host=empty, idle=empty.ledger, line=WaitQueue(patience=patience, room=room), wait=wait)
