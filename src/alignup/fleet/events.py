"""Pods that come and go, in the order of time: what a simulation is made of.

At one and the same time departures come first, so that what is given back can be given out again; arrivals stay in
the order they were written in.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite

from alignup.align.errors import TraceError
from alignup.align.workload import Pod


@dataclass(frozen=True, slots=True)
class PodArrival:
    """A pod comes to the host."""

    time: float  #: seconds since the beginning
    pod: Pod  #: as the API server hands it on, with a uid


@dataclass(frozen=True, slots=True)
class PodDeparture:
    """A pod is gone; nothing happens when it was refused, or never came."""

    time: float  #: seconds since the beginning
    uid: str


WorkloadEvent = PodArrival | PodDeparture


def ordered(events: Iterable[WorkloadEvent]) -> tuple[WorkloadEvent, ...]:
    """*events* in the order they happen; :class:`TraceError` when they cannot (``find_invalid_event``)."""
    found = sort_by_time(events)
    if wrong := find_invalid_event(found):
        raise TraceError(wrong[1])
    return found


def sort_by_time(events: Iterable[WorkloadEvent]) -> tuple[WorkloadEvent, ...]:
    """*events* by time, departures first."""
    return tuple(sorted(events, key=_turn))


def find_invalid_event(events: Iterable[WorkloadEvent]) -> tuple[WorkloadEvent, str] | None:
    """The first of *events*, which are in time, that cannot happen, and why: no time, or a pod that is there already.

    A pod is there from its arrival until it leaves, also if it is refused: nobody knows that beforehand.
    """
    there: dict[str, float] = {}
    missed: dict[str, float] = {}
    for event in events:
        time = event.time
        if not isfinite(time) or time < 0:
            return event, f"{time} is no time: seconds since the beginning are wanted, 0 or more"
        if isinstance(event, PodDeparture):
            if there.pop(event.uid, None) is None:
                missed[event.uid] = time
            continue
        uid = event.pod.uid
        if uid in there:
            return (
                event,
                f"pod {uid} arrives at {format_seconds(time)}, but is there since {format_seconds(there[uid])}",
            )
        if missed.get(uid) == time:
            return event, f"pod {uid} arrives and leaves at {format_seconds(time)}: it must stay for a while"
        there[uid] = time
    return None


def arrivals(pods: Iterable[Pod], *, every: float = 1.0) -> tuple[WorkloadEvent, ...]:
    """One pod after the other, *every* so many seconds; nobody leaves."""
    return ordered(PodArrival(number * every, pod) for number, pod in enumerate(pods))


def format_seconds(time: float) -> str:
    """A time as people read it: ``12 s``, ``0.25 s``."""
    return f"{time:.6f}".rstrip("0").rstrip(".") + " s"


def _turn(event: WorkloadEvent) -> tuple[float, int, str]:
    return (event.time, 0, event.uid) if isinstance(event, PodDeparture) else (event.time, 1, "")
