"""The pods of a cluster simulation: when each is created, for how long it runs, and which hosts it may use.

Pods with the same value of ``GANG_LABEL`` in one namespace form a gang, as with the coscheduling plugin of Kubernetes:
they start together or not at all. The size of a gang is the number of its pods in the workload.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from alignup.align.workload import Pod
from alignup.simulate.arrivals import GANG_LABEL, HostSelector, PodArrival, PodDeparture, WorkloadEvent, ordered


@dataclass(frozen=True, slots=True)
class PodSubmission:
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
    """The arriving pods; each runs for as long as it is present in *events*. ``TraceError`` as in ``ordered``."""
    present: dict[str, PodArrival] = {}
    durations: dict[int, float] = {}
    arrivals: list[PodArrival] = []
    for event in ordered(events):
        if isinstance(event, PodArrival):
            present[event.pod.uid] = event
            arrivals.append(event)
        elif isinstance(event, PodDeparture) and event.uid in present:
            arrival = present.pop(event.uid)
            durations[id(arrival)] = event.time - arrival.time
    return tuple([PodSubmission(one.time, one.pod, durations.get(id(one)), one.selector) for one in arrivals])
