"""The simulation of a node: a workload on one host, with the outcome of every pod and the use of the machine.

The host decides as always; nothing is estimated. Init containers keep their resources until the pod departs, which is
also what the kubelet assumes at admission.

At the end the host may be idle again, so stranded resources are also measured at peak demand: when the pods that have
arrived and not departed, admitted or not, request the most CPUs. That time does not depend on the settings.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from time import monotonic
from typing import NamedTuple

from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.claims.alignment import ClaimState, ExplainedClaim, HostClaims
from alignup.align.decision import Rejection, Shortfall
from alignup.align.devices.choices import DeviceChooser, RandomChooser
from alignup.align.display import HtmlTable, Row
from alignup.align.errors import PodError
from alignup.align.explain import sentences
from alignup.align.host import Host, Settings
from alignup.align.ledger import Ledger
from alignup.align.machine import Machine
from alignup.align.reason_codes import INVALID, NOT_SCHEDULABLE
from alignup.align.workload import Pod
from alignup.align.workload.names import CPU
from alignup.placement.free_capacity import largest_requests
from alignup.placement.pod_demands import find_refusal
from alignup.simulate.arrivals import PodArrival, WorkloadEvent, ordered
from alignup.simulate.container_placements import (
    ContainerPlacement,
    admit,
    common_nodes,
    container_placements,
    on_one_node,
)
from alignup.simulate.device_connections import NO_CONNECTIONS, ConnectionCounts, container_connections
from alignup.simulate.shared_pods import SharedPoolMeter, SharedPoolResult
from alignup.simulate.simulated_claims import NO_CLAIMS, ClaimCounts, SimulatedClaims, explain_claims
from alignup.simulate.stranded import StrandedResources, distinct_shapes, measure_stranded
from alignup.simulate.usage import UsageMeter, UsageStats

_ALIGNED = {True: "one node", False: "several nodes", None: ""}
MIN_INTERVAL = 0.05  #: seconds between two reports of progress

Progress = Callable[[int, int], object]  #: called with the number of finished items and the total


class ProgressReporter:
    """A limit on reports: *progress* is called at most once per ``MIN_INTERVAL``, and at the end."""

    def __init__(self, progress: Progress | None, total: int, *, now: Callable[[], float] = monotonic) -> None:
        self._progress = progress
        self._total = total
        self._now = now
        self._reported = -1
        self._next = now() + MIN_INTERVAL

    def report(self, count: int) -> None:
        if self._progress is None or count == self._reported or (count < self._total and self._now() < self._next):
            return
        self._reported = count
        self._progress(count, self._total)
        self._next = self._now() + MIN_INTERVAL


class PodOutcome(NamedTuple):
    time: float  #: of arrival
    pod: Pod
    rejection: Rejection | None = None  #: ``None``: admitted
    placements: tuple[ContainerPlacement, ...] = ()  #: empty if rejected
    missing: tuple[str, ...] = ()  #: requested resources that no device plugin provides
    claims: tuple[ExplainedClaim, ...] = ()
    kubelet: str | None = None  #: of a pod that is not schedulable: "admitted", or why a kubelet would reject it

    @property
    def admitted(self) -> bool:
        return self.rejection is None

    @property
    def on_one(self) -> bool | None:
        return on_one_node(site for placement in self.placements for site in placement.sites)

    @property
    def nodes(self) -> NodeSet:
        return common_nodes(site for placement in self.placements for site in placement.sites)

    def to_row(self) -> Row:
        rejection = self.rejection
        blocks = [block for placement in self.placements for block in placement.memory]
        devices = [item for placement in self.placements for item in placement.devices.items()]
        return {
            "time": self.time,
            **{name: str(getattr(self.pod, name)) for name in ("namespace", "name", "uid", "qos")},
            "outcome": "rejected" if rejection else "admitted",
            "aligned": _ALIGNED[self.on_one],
            "nodes": bits.show(self.nodes),
            "cpus": bits.show(bits.union(placement.cpus for placement in self.placements)),
            "memory": " ".join(f"{block.type}@{bits.show(block.nodes)}={block.size}" for block in blocks),
            "devices": " ".join(f"{resource}={','.join(ids)}" for resource, ids in devices),
            "claims": " ".join(_claimed(claim) for claim in self.claims),
            "reason": rejection.reason if rejection else "",
            "container": (rejection.container or "") if rejection else "",
            "shortfall": shortfall(rejection) if rejection else "",
            "message": rejection.message if rejection else "",
            "missing": " ".join(self.missing),
            "kubelet": self.kubelet or "",
        }


def shortfall(rejection: Rejection) -> str:
    """Return what is missing, in short: ``cpu: 10 needed, at most 8 free on nodes 0-1``."""
    by_resource: dict[str, list[Shortfall]] = {}
    for short in rejection.shortfalls:
        by_resource.setdefault(short.resource, []).append(short)
    texts = []
    for resource, shortfalls in by_resource.items():
        first = shortfalls[0]
        milli = first.provider == sentences.HOST
        numbers = (first.needed, max(short.free for short in shortfalls))
        needed_amount, free_amount = (sentences.format_number(resource, number, milli=milli) for number in numbers)
        nodes = bits.union(short.nodes or 0 for short in shortfalls)
        most, plural = ("at most ", "s") if nodes.bit_count() > 1 else ("", "")
        area = f" on node{plural} {bits.show(nodes)}" if nodes else ""
        texts.append(f"{resource}: {needed_amount} needed, {most}{free_amount} free{area}")
    return "; ".join(texts)


def _claimed(claim: ExplainedClaim) -> str:
    verdict = {True: " (aligned)", False: " (not aligned)", None: ""}[claim.aligned]
    return f"{claim.state.name}={','.join(device.id.device for _, device in claim.state.devices)}{verdict}"


class AlignmentCounts(NamedTuple):
    on_one: int
    on_several: int
    anywhere: int  #: none of their resources has a node

    @classmethod
    def of(cls, verdicts: Iterable[bool | None]) -> "AlignmentCounts":
        counts = Counter(verdicts)
        return cls(counts[True], counts[False], counts[None])


@dataclass(frozen=True, slots=True)
class HostSnapshot:
    time: float
    ledger: Ledger
    largest_by_node: Mapping[int, Mapping[str, int]]  #: NUMA node → resource → the largest request that still fits
    stranded: StrandedResources

    @property
    def largest(self) -> dict[str, int]:
        nodes = self.largest_by_node.values()
        return {name: max(node.get(name, 0) for node in nodes) for node in nodes for name in node}


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The figures by which results are compared."""

    admitted: int
    rejected: int
    reasons: Mapping[str, int]  #: of rejections, the most frequent first
    pods: AlignmentCounts
    containers: AlignmentCounts
    claims: ClaimCounts = NO_CLAIMS
    connections: ConnectionCounts = NO_CONNECTIONS
    stranded: StrandedResources  #: at peak demand
    largest: Mapping[str, int]  #: at peak demand: resource → the largest request that still fits on one NUMA node

    @property
    def sort_key(self) -> tuple[int, int, int, int]:
        return -self.admitted, -self.pods.on_one, self.stranded.all_devices, self.stranded.cpus

    @property
    def reasons_text(self) -> str:
        return ", ".join(f"{number} {reason}" for reason, number in self.reasons.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult(HtmlTable, Score):
    machine: Machine
    settings: Settings
    outcomes: tuple[PodOutcome, ...]  #: in the order of arrival
    usage: Mapping[str, UsageStats]  #: in total, by resource, ``pods`` included
    nodes: Mapping[int, Mapping[str, UsageStats]]  #: by NUMA node, ascending, and by resource
    peak: HostSnapshot  #: at peak demand
    end: HostSnapshot
    duration: float  #: seconds from the first event to the last
    shared: SharedPoolResult | None = None  #: ``None``: it was not asked for

    def __repr__(self) -> str:
        return f"<SimulationResult: {self.admitted} pods admitted, {self.rejected} rejected>"

    def to_rows(self) -> list[Row]:
        """Return one row per pod, in the order of arrival."""
        return [outcome.to_row() for outcome in self.outcomes]

    @property
    def score(self) -> Score:
        """The figures alone."""
        return Score(**{field.name: getattr(self, field.name) for field in fields(Score)})


def run(  # noqa: PLR0913 - five have defaults
    host: Host,
    events: Sequence[WorkloadEvent],
    *,
    progress: Progress | None = None,
    ignore_missing_devices: bool = False,
    claims: HostClaims | None = None,
    shared_pool: bool = False,
    seed: int = 0,
) -> SimulationResult:
    """Apply *events* to *host*; *progress* gets the number of applied events.

    Pods that request devices which no device plugin provides are not schedulable, and never reach the host. A kubelet
    ignores such requests; with *ignore_missing_devices* the host does so, too. Nor is a pod schedulable whose *claims*
    get no devices. With *shared_pool* the result says where pods without exclusive CPUs could run. Devices that a
    kubelet or its plugins choose at random are drawn with *seed*.

    :class:`TraceError` if the events are inconsistent, ``WorkLimitError`` as in ``Host``.
    """
    events = ordered(events)
    start = events[0].time if events else 0.0
    peak_index = _peak_index(events)
    peak = (start, host.ledger)
    meter = UsageMeter(host, start)
    pool_meter = SharedPoolMeter(host, start) if shared_pool else None
    reporter = ProgressReporter(progress, len(events))
    outcomes: list[PodOutcome] = []
    chooser = RandomChooser(seed)
    simulated_claims = SimulatedClaims(claims) if claims is not None else None
    for number, event in enumerate(events):
        if isinstance(event, PodArrival):
            arrive = partial(_arrive, host, lenient=ignore_missing_devices, chooser=chooser)
            outcome = _claim(host, event, simulated_claims, arrive) if simulated_claims else None
            outcomes.append(outcome or arrive(event))
        else:
            host.release(event.uid)
            if simulated_claims is not None:
                simulated_claims.release(event.uid)
        meter.record(event.time, host.ledger)
        if pool_meter is not None:
            pool_meter.record(event.time, host.ledger)
        reporter.report(number + 1)
        if number == peak_index:
            peak = (event.time, host.ledger)
    never = {INVALID, NOT_SCHEDULABLE}
    shapes = distinct_shapes(
        outcome.pod for outcome in outcomes if not outcome.rejection or outcome.rejection.reason not in never
    )
    last = events[-1].time if events else start
    end = _snapshot(host, last, host.ledger, shapes)
    at_peak = replace(end, time=peak[0]) if peak[1] is host.ledger else _snapshot(host, *peak, shapes)
    result = _result(host, outcomes, meter, peak=at_peak, end=end)
    return result if pool_meter is None else replace(result, shared=pool_meter.result(last))


def _arrive(
    host: Host, event: PodArrival, *, lenient: bool, chooser: DeviceChooser, claims: Iterable[ClaimState] = ()
) -> PodOutcome:
    pod, missing_devices = event.pod, host.missing_devices(event.pod)
    try:
        if missing_devices and not lenient:
            rejection = Rejection(NOT_SCHEDULABLE, sentences.no_plugin(missing_devices))
            kubelet_rejection = host.decide_without_plugins(pod).rejection
            verdict = kubelet_rejection.reason if kubelet_rejection else "admitted"
            return PodOutcome(event.time, pod, rejection, missing=missing_devices, kubelet=verdict)
        if refusal := find_refusal(host, pod):
            rejection = Rejection(refusal.code, ": ".join(filter(None, (refusal.reason, refusal.detail))))
            return PodOutcome(event.time, pod, rejection, missing=missing_devices, kubelet="admitted")
        decision = admit(host, pod, chooser)
    except PodError as error:
        return PodOutcome(event.time, pod, Rejection(INVALID, str(error)), missing=missing_devices)
    placements = container_placements(host, decision.placements)
    explained_claims = explain_claims(pod, decision.placements, host.machine, claims if decision.admitted else ())
    return PodOutcome(event.time, pod, decision.rejection, placements, missing_devices, explained_claims)


def _claim(
    host: Host, event: PodArrival, claims: SimulatedClaims, arrive: Callable[..., PodOutcome]
) -> PodOutcome | None:
    """Allocate the claims of a pod and admit it; ``None`` if it has none."""
    pod = claims.prepare(event.pod)
    if not pod.uses_claims:
        return None
    states = claims.find(pod, host)
    if isinstance(states, str):
        return PodOutcome(event.time, pod, Rejection(NOT_SCHEDULABLE, states))
    claims.allocate(pod, states)
    outcome = arrive(replace(event, pod=pod), claims=states)
    if not outcome.admitted:
        claims.release(pod.uid)
    return outcome


def _peak_index(events: Iterable[WorkloadEvent]) -> int:
    """Return the index of the first event after which the requested CPUs are at their maximum."""
    present: dict[str, int] = {}
    requested_sum = highest = index = 0
    for number, event in enumerate(events):
        if isinstance(event, PodArrival):
            requests = [container.resources.requests for container in event.pod.containers]
            milli_cpu = sum([amounts[CPU].milli() for amounts in requests if CPU in amounts])
            present[event.pod.uid] = milli_cpu
            requested_sum += milli_cpu
        else:
            requested_sum -= present.pop(event.uid, 0)
        if requested_sum > highest:
            highest, index = requested_sum, number
    return index


def _snapshot(host: Host, time: float, ledger: Ledger, shapes: Iterable[Pod]) -> HostSnapshot:
    """Measure the host with an earlier *ledger*; its current ledger is restored."""
    now, host.ledger = host.ledger, ledger
    try:
        return HostSnapshot(time, ledger, largest_requests(host), measure_stranded(host, shapes))
    finally:
        host.ledger = now


def _result(
    host: Host, outcomes: list[PodOutcome], meter: UsageMeter, *, peak: HostSnapshot, end: HostSnapshot
) -> SimulationResult:
    usage = meter.stats()
    admitted_outcomes = [outcome for outcome in outcomes if outcome.admitted]
    return SimulationResult(
        machine=host.machine,
        settings=host.settings,
        outcomes=tuple(outcomes),
        admitted=len(admitted_outcomes),
        rejected=len(outcomes) - len(admitted_outcomes),
        reasons=dict(Counter(outcome.rejection.reason for outcome in outcomes if outcome.rejection).most_common()),
        stranded=peak.stranded,
        largest=peak.largest,
        pods=AlignmentCounts.of(outcome.on_one for outcome in admitted_outcomes),
        containers=AlignmentCounts.of(
            placement.on_one for outcome in admitted_outcomes for placement in outcome.placements
        ),
        claims=ClaimCounts.of(claim for outcome in admitted_outcomes for claim in outcome.claims),
        connections=ConnectionCounts.of(
            container_connections(
                host.machine, [placement.devices for outcome in admitted_outcomes for placement in outcome.placements]
            )
        ),
        usage=usage[None],
        nodes={node: usage.get(node, {}) for node in end.largest_by_node},
        peak=peak,
        end=end,
        duration=meter.duration,
    )
