"""Small hosts and agent states for tests of the agent."""

from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import structlog

from alignup.agent.event_history import EventHistory
from alignup.agent.state import AgentState, Clock, WaitingPods
from alignup.store.state_store import StateStore, StoredState
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
        waiting=WaitingPods(max_overtakes=max_overtakes, capacity=capacity),
        wait_enabled=wait_enabled,
    )


def quiet_history(store: StateStore) -> EventHistory:
    """Return what saves states and events, without a log."""
    return EventHistory(store, structlog.wrap_logger(None, processors=[drop]))


def drop(*_: object) -> Any:
    raise structlog.DropEvent


def save_states(directory: Path, *states: AgentState) -> None:
    """Save states one after the other, as one agent does."""
    with closing(StateStore(directory)) as store:
        for state in states:
            store.save(state.durable())


def stored(directory: Path) -> StoredState:
    """Return what the next agent loads."""
    state = StateStore(directory).load()
    assert state
    return state
