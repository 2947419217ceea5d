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
class Arrive:
    """A pod comes to the host."""

    time: float  #: seconds since the beginning
    pod: Pod  #: as the API server hands it on, with a uid


@dataclass(frozen=True, slots=True)
class Leave:
    """A pod is gone; nothing happens when it was refused, or never came."""

    time: float  #: seconds since the beginning
    uid: str


Event = Arrive | Leave


def ordered(events: Iterable[Event]) -> tuple[Event, ...]:
    """*events* in the order they happen; :class:`TraceError` when they cannot (``fault``)."""
    found = in_time(events)
    if wrong := fault(found):
        raise TraceError(wrong[1])
    return found


def in_time(events: Iterable[Event]) -> tuple[Event, ...]:
    """*events* by time, departures first."""
    return tuple(sorted(events, key=_turn))


def fault(events: Iterable[Event]) -> tuple[Event, str] | None:
    """The first of *events*, which are in time, that cannot happen, and why: no time, or a pod that is there already.

    A pod is there from its arrival until it leaves, also if it is refused: nobody knows that beforehand.
    """
    there: dict[str, float] = {}
    missed: dict[str, float] = {}
    for event in events:
        time = event.time
        if not isfinite(time) or time < 0:
            return event, f"{time} is no time: seconds since the beginning are wanted, 0 or more"
        if isinstance(event, Leave):
            if there.pop(event.uid, None) is None:
                missed[event.uid] = time
            continue
        uid = event.pod.uid
        if uid in there:
            return event, f"pod {uid} arrives at {seconds(time)}, but is there since {seconds(there[uid])}"
        if missed.get(uid) == time:
            return event, f"pod {uid} arrives and leaves at {seconds(time)}: it must stay for a while"
        there[uid] = time
    return None


def arrivals(pods: Iterable[Pod], *, every: float = 1.0) -> tuple[Event, ...]:
    """One pod after the other, *every* so many seconds; nobody leaves."""
    return ordered(Arrive(number * every, pod) for number, pod in enumerate(pods))


def seconds(time: float) -> str:
    """A time as people read it: ``12 s``, ``0.25 s``."""
    return f"{time:.6f}".rstrip("0").rstrip(".") + " s"


def _turn(event: Event) -> tuple[float, int, str]:
    return (event.time, 0, event.uid) if isinstance(event, Leave) else (event.time, 1, "")
