"""Workloads: pods that arrive and depart over time.

For one node a workload is a sequence of events. At the same time departures come before arrivals, so that released
resources can be allocated again; arrivals keep their order. For a cluster it is pods that are submitted and run for a
duration. Pods with the same value of ``GANG_LABEL`` in one namespace form a gang, as with the coscheduling plugin of
Kubernetes: they start together or not at all. The size of a gang is the number of its pods in the workload.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite

from alignup.align.errors import TraceError
from alignup.align.workload import Pod

GANG_LABEL = "scheduling.x-k8s.io/pod-group"  #: of pods that start together, as with the coscheduling plugin

HostSelector = Mapping[str, tuple[str, ...]]  #: label → values that a host may have


@dataclass(frozen=True, slots=True)
class PodArrival:
    time: float  #: seconds since the start
    pod: Pod  #: as defaulted by the API server, with a uid
    selector: HostSelector = field(default_factory=dict)  #: which hosts of a cluster may run it; empty: any


@dataclass(frozen=True, slots=True)
class PodDeparture:
    """The departure of a pod; it has no effect if the pod was rejected or never arrived."""

    time: float  #: seconds since the start
    uid: str


WorkloadEvent = PodArrival | PodDeparture


def ordered(events: Iterable[WorkloadEvent]) -> tuple[WorkloadEvent, ...]:
    """Return *events* in the order they happen; :class:`TraceError` if they are inconsistent."""
    in_order = sort_by_time(events)
    if invalid := find_invalid_event(in_order):
        raise TraceError(invalid[1])
    return in_order


def sort_by_time(events: Iterable[WorkloadEvent]) -> tuple[WorkloadEvent, ...]:
    def order(event: WorkloadEvent) -> tuple[float, int, str]:
        return (event.time, 0, event.uid) if isinstance(event, PodDeparture) else (event.time, 1, "")

    return tuple(sorted(events, key=order))


def find_invalid_event(events: Iterable[WorkloadEvent]) -> tuple[WorkloadEvent, str] | None:
    """Return the first of the sorted *events* that is impossible, and why: an invalid time, or a pod that is present.

    A pod is present from its arrival to its departure, even if it is rejected: that depends on the settings.
    """
    present: dict[str, float] = {}
    missed_times: dict[str, float] = {}
    for event in events:
        time = event.time
        if not isfinite(time) or time < 0:
            return event, f"{time} is not a time: must be seconds since the start, 0 or more"
        if isinstance(event, PodDeparture):
            if present.pop(event.uid, None) is None:
                missed_times[event.uid] = time
            continue
        uid = event.pod.uid
        if uid in present:
            since = format_seconds(present[uid])
            return event, f"pod {uid} arrives at {format_seconds(time)} but is present since {since}"
        if missed_times.get(uid) == time:
            return event, f"pod {uid} arrives and departs at {format_seconds(time)}: it must stay for some time"
        present[uid] = time
    return None


def arrivals(pods: Iterable[Pod], *, every: float = 1.0) -> tuple[WorkloadEvent, ...]:
    """Return the arrivals of *pods*, one after the other, *every* so many seconds."""
    return ordered(PodArrival(number * every, pod) for number, pod in enumerate(pods))


def format_seconds(time: float) -> str:
    return f"{time:.6f}".rstrip("0").rstrip(".") + " s"


def format_duration(seconds: float) -> str:
    """Return a duration in the largest unit that gives at least two."""
    for unit, name in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.1f} {name}"
    return format_seconds(seconds)


@dataclass(frozen=True, slots=True)
class PodSubmission:
    """A pod of a cluster simulation."""

    time: float  #: of creation, in seconds since the start
    pod: Pod  #: as defaulted by the API server, with a uid
    duration: float | None = None  #: seconds from its admission to its end; ``None``: it stays
    selector: HostSelector = field(default_factory=dict)  #: label → values that a host may have; empty: any host

    @property
    def gang(self) -> str:
        """The namespace and name of its gang; empty: none."""
        name = self.pod.labels.get(GANG_LABEL, "")
        return f"{self.pod.namespace}/{name}" if name else ""

    @property
    def priority(self) -> int:
        return self.pod.priority or 0

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(labels.get(name) in values for name, values in self.selector.items())


def from_events(events: Iterable[WorkloadEvent]) -> tuple[PodSubmission, ...]:
    """Return the arriving pods; each runs as long as it is present in *events*. ``TraceError`` as in ``ordered``."""
    present: dict[str, PodArrival] = {}
    durations: dict[int, float] = {}
    arrivals: list[PodArrival] = []
    for event in ordered(events):
        if isinstance(event, PodArrival):
            present[event.pod.uid] = event
            arrivals.append(event)
        elif event.uid in present:
            arrival = present.pop(event.uid)
            durations[id(arrival)] = event.time - arrival.time
    return tuple(
        [PodSubmission(arrival.time, arrival.pod, durations.get(id(arrival)), arrival.selector) for arrival in arrivals]
    )
