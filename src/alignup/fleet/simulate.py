"""A workload played on a host: what became of every pod, and of the machine.

    result = run(Host(machine, settings), events)

The host decides as it always does; nothing here is an estimate. Containers are not started one by one: init containers
keep what they have until their pod leaves, which is what the kubelet counts on when it admits.

How fragmented the host is depends on when one looks. In the end it may be idle again, so it is also looked at when
demand is highest: when the pods that have come and not left, refused or not, ask for the most CPUs. That moment is the
same whatever the settings are.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic

from alignup.align.bits import NodeSet
from alignup.align.decision import Rejection
from alignup.align.errors import PodError
from alignup.align.host import Host, Settings
from alignup.align.ledger import Ledger
from alignup.align.machine import Machine
from alignup.align.workload import Pod, QoS
from alignup.align.workload.names import CPU
from alignup.fleet.admission import admit
from alignup.fleet.events import PodArrival, WorkloadEvent, ordered
from alignup.fleet.fragmentation import StrandedResources, distinct_shapes, largest_requests, measure_stranded
from alignup.fleet.placements import ContainerPlacement, common_nodes, container_placements, on_one_node
from alignup.fleet.progress import Progress, ProgressReporter
from alignup.fleet.usage import UsageMeter, UsageStats

#: The reason of pods that no kubelet gets to see: the API server's own word.
INVALID = "Invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodOutcome:
    """What became of one pod."""

    time: float  #: when it came
    uid: str
    name: str
    namespace: str
    qos: QoS
    rejection: Rejection | None = None  #: ``None``: it was admitted
    places: tuple[ContainerPlacement, ...] = ()  #: what its containers were given; nothing when it was refused

    @property
    def admitted(self) -> bool:
        """Whether it may run."""
        return self.rejection is None

    @property
    def on_one(self) -> bool | None:
        """Whether all of the pod is on one NUMA node; ``None``: nothing of it has a place."""
        return on_one_node(site for place in self.places for site in place.sites)

    @property
    def nodes(self) -> NodeSet:
        """The NUMA nodes all of the pod is on, or where there are none, those it is spread over."""
        return common_nodes(site for place in self.places for site in place.sites)


@dataclass(frozen=True, slots=True)
class AlignmentCounts:
    """How many admitted pods, or containers of them, are on one NUMA node."""

    on_one: int
    on_several: int
    anywhere: int  #: nothing of theirs has a place

    @classmethod
    def of(cls, verdicts: Iterable[bool | None]) -> "AlignmentCounts":
        """Counted."""
        counts = Counter(verdicts)
        return cls(counts[True], counts[False], counts[None])


@dataclass(frozen=True, slots=True)
class HostSnapshot:
    """A host at one time: who holds what, and what it could still take (``room``)."""

    time: float
    ledger: Ledger
    room: Mapping[int, Mapping[str, int]]  #: NUMA node → resource → the most one container could still get there
    stranded: StrandedResources

    @property
    def largest(self) -> dict[str, int]:
        """The most one container could still get on any one node, by resource."""
        return {name: max(own.get(name, 0) for own in self.room.values()) for own in self.room.values() for name in own}


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """A workload played to its end."""

    machine: Machine
    settings: Settings
    outcomes: tuple[PodOutcome, ...]  #: of every pod, in the order they came
    reasons: Mapping[str, int]  #: why pods were refused, the most frequent reason first
    pods: AlignmentCounts
    containers: AlignmentCounts
    uses: Mapping[str, UsageStats]  #: in all, by resource; ``pods`` among them
    nodes: Mapping[int, Mapping[str, UsageStats]]  #: by NUMA node, rising, and by resource
    height: HostSnapshot  #: when demand was highest
    end: HostSnapshot
    duration: float  #: seconds from the first event to the last

    @property
    def admitted(self) -> int:
        """How many pods were."""
        return len(self.outcomes) - self.refused

    @property
    def refused(self) -> int:
        """How many pods were."""
        return sum(self.reasons.values())


def run(
    host: Host,
    events: Sequence[WorkloadEvent],
    *,
    progress: Progress | None = None,
    now: Callable[[], float] = monotonic,
) -> SimulationResult:
    """Let *events* happen to *host*, which is left as it then is; *progress* is told how many of them have.

    :class:`TraceError` when they cannot happen like that (``events.ordered``), ``WorkLimitError`` as of ``Host``.
    """
    events = ordered(events)
    start = events[0].time if events else 0.0
    highest = _highest(events)
    height = (start, host.ledger)
    meter = UsageMeter(host, start)
    ticker = ProgressReporter(progress, len(events), now=now)
    fates: list[PodOutcome] = []
    for number, event in enumerate(events):
        if isinstance(event, PodArrival):
            fates.append(_arrive(host, event))
        else:
            host.release(event.uid)
        meter.note(event.time, host.ledger)
        ticker.done(number + 1)
        if number == highest:
            height = (event.time, host.ledger)
    invalid = {fate.uid for fate in fates if fate.rejection and fate.rejection.reason == INVALID}
    came = distinct_shapes(
        event.pod for event in events if isinstance(event, PodArrival) and event.pod.uid not in invalid
    )
    end = _moment(host, (events[-1].time if events else start, host.ledger), came)
    same = height[1] is host.ledger
    return _result(host, fates, meter, (replace(end, time=height[0]) if same else _moment(host, height, came), end))


def _highest(events: Iterable[WorkloadEvent]) -> int:
    """The place of the first event after which the most CPUs are asked for."""
    there: dict[str, int] = {}
    asked = most = place = 0
    for number, event in enumerate(events):
        if isinstance(event, PodArrival):
            there[event.pod.uid] = own = _milli(event.pod)
            asked += own
        else:
            asked -= there.pop(event.uid, 0)
        if asked > most:
            most, place = asked, number
    return place


def _milli(pod: Pod) -> int:
    """What the containers of *pod* ask for, in thousandths of a CPU."""
    return sum([one.resources.requests[CPU].milli() for one in pod.containers if CPU in one.resources.requests])


def _moment(host: Host, when: tuple[float, Ledger], came: Iterable[Pod]) -> HostSnapshot:
    """The host as it was then; it is left as it is."""
    time, ledger = when
    now, host.ledger = host.ledger, ledger
    try:
        return HostSnapshot(time, ledger, largest_requests(host), measure_stranded(host, came))
    finally:
        host.ledger = now


def _arrive(host: Host, event: PodArrival) -> PodOutcome:
    pod = event.pod
    given: tuple[ContainerPlacement, ...] = ()
    try:
        rejection = admit(host, pod).rejection
        if rejection is None:
            given = container_placements(host, pod)
    except PodError as error:
        rejection = Rejection(INVALID, str(error))
    return PodOutcome(
        time=event.time,
        uid=pod.uid,
        name=pod.name,
        namespace=pod.namespace,
        qos=pod.qos,
        rejection=rejection,
        places=given,
    )


def _result(
    host: Host, fates: list[PodOutcome], meter: UsageMeter, moments: tuple[HostSnapshot, HostSnapshot]
) -> SimulationResult:
    uses = meter.uses()
    admitted = [fate for fate in fates if fate.admitted]
    return SimulationResult(
        machine=host.machine,
        settings=host.settings,
        outcomes=tuple(fates),
        reasons=dict(Counter(fate.rejection.reason for fate in fates if fate.rejection).most_common()),
        pods=AlignmentCounts.of(fate.on_one for fate in admitted),
        containers=AlignmentCounts.of(place.on_one for fate in admitted for place in fate.places),
        uses=uses[None],
        nodes={node: uses.get(node, {}) for node in moments[1].room},
        height=moments[0],
        end=moments[1],
        duration=meter.duration,
    )
