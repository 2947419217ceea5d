"""The schedulers of cluster simulations, and the strategies: their names on the command line.

* ``TotalsScheduler`` knows nothing about NUMA nodes. It compares totals of hosts, as kube-scheduler does with its
  default plugins, without spreading, affinity between pods and images; every host is scored.
* ``AggregateScheduler`` knows the free amounts of every NUMA node, as the NodeResourceTopologyMatch plugin does.
* ``PredictingScheduler`` is Alignup: it sends a pod only to a host whose kubelet will admit it, and ranks hosts as the
  live service does. ``FilteringScheduler`` ranks the admitting hosts by totals, as kube-scheduler does if the service
  only filters. ``SteeringScheduler`` also chooses the NUMA node of pods that one NUMA node can hold.

Reports about hosts are immediate here. In a cluster they are late, which makes the aggregate scheduler use less of the
hosts.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from itertools import count
from typing import Protocol

from alignup.align.bits import NodeSet
from alignup.align.claims.alignment import ClaimState
from alignup.align.claims.claimed_locality import demands_near_claims
from alignup.align.decision import Decision
from alignup.align.errors import SettingsError
from alignup.align.fit import UsedResources
from alignup.align.host import Host
from alignup.align.ledger import Ledger
from alignup.align.settings import Policy, Scope
from alignup.align.workload import Amounts, Pod, QoS, demand
from alignup.align.workload.demand import FitRequest
from alignup.align.workload.names import CPU, MEMORY, is_hugepages
from alignup.placement.cluster import Cluster
from alignup.placement.host_report import HostReport
from alignup.placement.host_verdicts import used_key
from alignup.placement.steered import ANYWHERE, NumaOrder, choose_node, count_markers
from alignup.simulate.cluster_hosts import EqualPods, SimulatedHost
from alignup.simulate.simulated_claims import explain_claims

DEFAULT = "alignup"  #: strategy
MAX_SHAPES = 1024  #: pod shapes with kept verdicts
MAX_STATES = 10_000  #: states in which no host is any more, with kept verdicts

#: What kube-scheduler's scoring assumes for a pod without requests.
DEFAULT_MILLI_CPU, DEFAULT_MEMORY = 100, 200 << 20

Zone = dict[str, int]  #: what a NUMA node has free: CPUs in thousandths, bytes, devices


Rating = Callable[[EqualPods, SimulatedHost], float | None]  #: higher is better; ``None``: the pod cannot go there


#: What a rating depends on besides the class of the pod. Of states with equal ratings, the lowest comes first.
State = tuple[int, ...]


@dataclass(slots=True, eq=False)
class _ClassRatings:
    """The ratings of one class, as of a number of changes."""

    by_state: dict[State, float | None] = field(default_factory=dict)
    heap: list[tuple[float, State]] = field(default_factory=list)  #: minus the rating, and the state, if it has hosts
    queued: set[State] = field(default_factory=set)  #: the states in the heap
    changes: int = 0


class HostIndex:
    """The best host for each class of pods: a state is rated once for each class, when a pod of the class asks."""

    def __init__(
        self, hosts: Mapping[str, SimulatedHost], rate: Rating, state: Callable[[SimulatedHost], State | None]
    ) -> None:
        """*state* is called when a host has changed; ``None``: no pod can go there."""
        self._hosts = hosts
        self._rate = rate
        self._state = state
        self._states: dict[str, State] = {}  #: by host
        self._members: dict[State, dict[str, None]] = {}  #: hosts, in the order of their changes
        self._changed: dict[str, None] = dict.fromkeys(hosts)
        self._moved: list[str] = []  #: hosts, each time that they got a state
        self._ratings: dict[EqualPods, _ClassRatings] = {}

    def touch(self, host: str) -> None:
        """Note that a host has changed."""
        self._changed[host] = None

    def best(self, pod_class: EqualPods) -> SimulatedHost | None:
        """Return a host with the highest rating; ``None``: no host can run such a pod."""
        self._move_changed()
        ratings = self._ratings.get(pod_class)
        names: Iterable[str] = pod_class.hosts
        if ratings is None:
            ratings = self._ratings[pod_class] = _ClassRatings()
        else:
            names = [name for name in dict.fromkeys(self._moved[ratings.changes :]) if name in pod_class.hosts]
        ratings.changes = len(self._moved)
        for name in names:
            self._queue(pod_class, ratings, name)
        return self._first(pod_class, ratings)

    def _move_changed(self) -> None:
        for name in self._changed:
            old_state = self._states.pop(name, None)
            if old_state is not None:
                members = self._members[old_state]
                del members[name]
                if not members:
                    del self._members[old_state]
            state = self._state(self._hosts[name])
            if state is None:
                continue
            self._members.setdefault(state, {})[name] = None
            self._states[name] = state
            self._moved.append(name)
        self._changed.clear()

    def _queue(self, pod_class: EqualPods, ratings: _ClassRatings, name: str) -> None:
        state = self._states.get(name)
        if state is None or state in ratings.queued:
            return
        if state not in ratings.by_state:
            ratings.by_state[state] = self._rate(pod_class, self._hosts[name])
        rating = ratings.by_state[state]
        if rating is not None:
            ratings.queued.add(state)
            heapq.heappush(ratings.heap, (-rating, state))

    def _first(self, pod_class: EqualPods, ratings: _ClassRatings) -> SimulatedHost | None:
        skipped_entries = []
        best = None
        while ratings.heap and best is None:
            entry = ratings.heap[0]
            members = self._members.get(entry[1], {})
            best = next((name for name in members if name in pod_class.hosts), None)
            if best is None:
                heapq.heappop(ratings.heap)
                if members:  # others of the class may come
                    skipped_entries.append(entry)
                else:
                    ratings.queued.discard(entry[1])
        for entry in skipped_entries:
            heapq.heappush(ratings.heap, entry)
        return None if best is None else self._hosts[best]


Members = Sequence[tuple[EqualPods, Pod]]  #: the pods of a gang


class Scheduler(Protocol):
    def choose(self, pod_class: EqualPods, pod: Pod) -> SimulatedHost | None:
        """Return the host for *pod*, which counts on it from now on; ``None``: no host at present."""

    def choose_together(self, members: Members) -> dict[str, SimulatedHost] | None:
        """Return hosts for pods by uid, in the order of binding, although choosing one by one has failed."""

    def forget(self, pod: Pod, host: SimulatedHost) -> None:
        """Forget a chosen host: the pod is not bound after all."""

    def decided(self, pod: Pod, host: SimulatedHost, decision: Decision) -> None:
        """Note that the kubelet has admitted or rejected the pod; *host* is as it is afterwards."""

    def ended(self, pod: Pod, host: SimulatedHost) -> None:
        """Note that a pod has ended and released its resources."""

    @property
    def mispredictions(self) -> int:
        """The number of placements that were predicted and turned out otherwise."""


class Scoring(StrEnum):
    """The share of requested resources that is best."""

    LEAST_ALLOCATED = "least-allocated"
    MOST_ALLOCATED = "most-allocated"


def score_totals(scoring: Scoring, request: FitRequest, usage: UsedResources, host: SimulatedHost) -> float:
    """Return the score of kube-scheduler's NodeResourcesFit for CPUs and memory, from 0 to 100."""
    capacity = host.allocatable
    pairs = (
        (usage.milli_cpu + (request.milli_cpu or DEFAULT_MILLI_CPU), capacity.milli_cpu),
        (usage.memory + (request.memory or DEFAULT_MEMORY), capacity.memory),
    )
    amounts = [(amount, size) for amount, size in pairs if size]
    if scoring is Scoring.LEAST_ALLOCATED:
        scores = [max(0, size - amount) * 100 // size for amount, size in amounts]
    else:
        scores = [min(amount, size) * 100 // size for amount, size in amounts]
    return sum(scores) / len(scores) if scores else 0.0


class TotalsScheduler:
    """A scheduler that chooses the host with the lowest or highest share of requested CPUs and memory."""

    mispredictions = 0

    def __init__(self, hosts: Sequence[SimulatedHost], scoring: Scoring) -> None:
        self.scoring = scoring
        self._reserved: dict[str, dict[str, EqualPods]] = {}  #: host → uid → class, of pods that no kubelet has yet
        self._numbers = {host.name: number for number, host in enumerate(hosts)}
        self._changes = count()
        self.index = HostIndex({host.name: host for host in hosts}, self.rate, self.new_state)

    def new_state(self, host: SimulatedHost) -> State:
        """Return a state that no host had before; of hosts with equal ratings, the first is chosen."""
        return self._numbers[host.name], next(self._changes)

    def rate(self, pod_class: EqualPods, host: SimulatedHost) -> float | None:
        usage = self.used(host)
        if not pod_class.fits(host, usage):
            return None
        return score_totals(self.scoring, pod_class.request, usage, host)

    def used(self, host: SimulatedHost) -> UsedResources:
        """Return what the pods of a host use, including pods that its kubelet has not admitted yet."""
        usage = host.kubelet.ledger.used
        for reservation in self.reserved(host):
            usage = usage.plus(reservation.request)
        return usage

    def reserved(self, host: SimulatedHost) -> Sequence[EqualPods]:
        """Return the classes of the pods that are bound and not yet admitted."""
        return tuple(self._reserved.get(host.name, {}).values())

    def choose(self, pod_class: EqualPods, pod: Pod) -> SimulatedHost | None:
        best = self.index.best(pod_class)
        if best is not None:
            self._reserved.setdefault(best.name, {})[pod.uid] = pod_class
            self.index.touch(best.name)
        return best

    def choose_together(self, members: Members) -> dict[str, SimulatedHost] | None:  # noqa: ARG002 - of the protocol
        return None

    def forget(self, pod: Pod, host: SimulatedHost) -> None:
        self._reserved.get(host.name, {}).pop(pod.uid, None)
        self.index.touch(host.name)

    def decided(self, pod: Pod, host: SimulatedHost, decision: Decision) -> None:  # noqa: ARG002 - of the protocol
        self.forget(pod, host)

    def ended(self, pod: Pod, host: SimulatedHost) -> None:  # noqa: ARG002
        self.index.touch(host.name)


class AggregateScheduler(TotalsScheduler):
    """A scheduler that compares pods with the free amounts of NUMA nodes.

    Only hosts with policy single-numa-node are checked, all others pass. With scope container every container must fit
    on a NUMA node; app containers take the lowest one that fits, init containers and sidecars are checked and not
    counted. With scope pod the sum of the app containers, or the largest init container, must fit. CPUs, memory and
    huge pages matter for Guaranteed pods only, and fractions of CPUs count like whole ones; a resource that no NUMA
    node has passes. A pod that is on its way to a host is charged to all of its NUMA nodes until the kubelet has
    admitted it. Hosts are ranked by what is left of the NUMA nodes (the lowest score that is not 0) and of the host,
    both with the same weight.
    """

    def __init__(self, hosts: Sequence[SimulatedHost]) -> None:
        super().__init__(hosts, Scoring.LEAST_ALLOCATED)

    def rate(self, pod_class: EqualPods, host: SimulatedHost) -> float | None:
        total = super().rate(pod_class, host)
        topology = host.kubelet.settings.topology
        if total is None or topology.policy is not Policy.SINGLE_NUMA_NODE:
            return total
        zones = free_zones(host.kubelet)
        for reservation in self.reserved(host):
            charged_amounts = checked_amounts(reservation.pod, demand.requests(reservation.pod))
            for zone in zones:
                _take(zone, charged_amounts)
        amounts = _fit_on_zones(pod_class.pod, zones, topology.scope)
        return None if amounts is None else total + _zone_score(amounts, zones)


def free_zones(host: Host) -> list[Zone]:
    """Return the free amounts by NUMA node, in the order of their ids."""
    cpus, memory, devices = host.ledger.cpus, host.ledger.memory, host.ledger.devices
    free_cpus = cpus.free.items() if host.cpus.allocatable else ()
    zones: dict[int, Zone] = {node: {CPU: 1000 * free} for node, free in free_cpus}
    for node, node_memory in memory.nodes.items():
        zones.setdefault(node, {}).update({name: table.free for name, table in node_memory.tables.items()})
    for resource, inventory in devices.inventories.items():
        if inventory.placed:
            for node, free in devices.free_on(resource).items():
                zones.setdefault(node, {})[resource] = free
    return [zones[node] for node in sorted(zones)]


def checked_amounts(pod: Pod, requests: Amounts) -> Zone:
    """Return what is compared with NUMA nodes: everything for a Guaranteed pod, devices only for others."""
    guaranteed = pod.qos is QoS.GUARANTEED
    return {
        name: amount.milli() if name == CPU else amount.value()
        for name, amount in requests.items()
        if guaranteed or not (name in {CPU, MEMORY} or is_hugepages(name))
    }


def _fit_on_zones(pod: Pod, zones: list[Zone], scope: Scope) -> list[Zone] | None:
    """Return what is compared, by container or for the pod; ``None`` if it does not fit. *zones* are reduced."""
    checks = list(_checked(pod, scope))
    names = {name for zone in zones for name in zone}
    for amounts, counts in checks:
        needs = [(name, size) for name, size in amounts.items() if name in names]
        fitting_zone = next((zone for zone in zones if all(size <= zone.get(name, 0) for name, size in needs)), None)
        if fitting_zone is None and zones:
            return None
        if fitting_zone is not None and counts:
            _take(fitting_zone, amounts)
    return [amounts for amounts, counts in checks if counts]


def _checked(pod: Pod, scope: Scope) -> Iterator[tuple[Zone, bool]]:
    """Yield the requests that must fit on one NUMA node, and whether they are subtracted."""
    if scope is Scope.POD:
        apps: Counter[str] = Counter()
        for container in pod.containers:
            apps.update(checked_amounts(pod, container.resources.requests))
        largest = dict(apps)
        for container in pod.init:
            for name, size in checked_amounts(pod, container.resources.requests).items():
                largest[name] = max(largest.get(name, 0), size)
        yield largest, True
        return
    for container in pod.init:
        yield checked_amounts(pod, container.resources.requests), False
    for container in pod.containers:
        yield checked_amounts(pod, container.resources.requests), True


def _take(zone: Zone, amounts: Zone) -> None:
    for name, size in amounts.items():
        if name in zone:
            zone[name] -= size


def _zone_score(needs: Sequence[Zone], zones: Sequence[Zone]) -> float:
    """Return the mean over containers of the lowest score of a NUMA node that is not 0; *zones* are reduced already."""
    means = []
    for amounts in needs:
        scores = [_share_left(amounts, zone) for zone in zones]
        means.append(min((score for score in scores if score > 0), default=0.0))
    return sum(means) / len(means) if means else 100.0


def _share_left(amounts: Zone, zone: Zone) -> float:
    shares = [max(0, zone[name]) * 100 / (zone[name] + size) for name, size in amounts.items() if zone.get(name, 0) > 0]
    return sum(shares) / len(shares) if shares else 0.0


class PredictingScheduler:
    """Alignup; a host may get several pods before its kubelet confirms the first."""

    def __init__(self, hosts: Sequence[SimulatedHost]) -> None:
        self.cluster = Cluster(max_unconfirmed=None, max_shapes=MAX_SHAPES, max_states=MAX_STATES)
        self.hosts = {host.name: host for host in hosts}
        self.mispredictions = 0
        self._state_numbers: dict[Hashable, int] = {}
        self.index = HostIndex(self.hosts, self.rate, self.predicted_state)
        for host in hosts:
            self.report(host)

    def rate(self, pod_class: EqualPods, host: SimulatedHost) -> float | None:
        """Return the score of the service; ``None``: the kubelet will not admit such a pod."""
        verdict = self.cluster.verdict(pod_class.pod, host.name)
        if demands_near_claims(pod_class.pod):  # whether the devices are near is not simulated
            return None
        return verdict.score.total if verdict.admits and verdict.score else None

    def predicted_ledger(self, host: SimulatedHost) -> Ledger | None:
        """Return the ledger of a host when it has admitted the pods on their way; ``None``: unknown."""
        record = self.cluster.record(host.name)
        ledgers = record.states().ledgers if record else ()
        return ledgers[0] if len(ledgers) == 1 else None

    def predicted_state(self, host: SimulatedHost) -> State | None:
        """Return the number of the group of a host, its free CPUs, memory and devices, and what its pods use in total.

        Hosts return to the same states again and again.
        """
        ledger = self.predicted_ledger(host)
        if ledger is None:
            return None
        key = (id(host.group), ledger.alignment_key(), used_key(ledger.used))
        return (self._state_numbers.setdefault(key, len(self._state_numbers)),)

    def report(self, host: SimulatedHost) -> None:
        """Report the state of a host to the cluster."""
        host.sequence += 1
        group, ledger = host.group, host.kubelet.ledger
        report = HostReport(
            host=host.name, machine=group.machine, settings=group.settings, ledger=ledger, sequence=host.sequence
        )
        self.mispredictions += sum(not confirmation.as_predicted for confirmation in self.cluster.confirm(report))
        self.index.touch(host.name)

    def choose(self, pod_class: EqualPods, pod: Pod) -> SimulatedHost | None:
        best = self.index.best(pod_class)
        if best is None or not self.cluster.assume(pod, best.name).admits:
            return None
        self.index.touch(best.name)
        return best

    def choose_together(self, members: Members) -> dict[str, SimulatedHost] | None:
        eligible = {pod.uid: pod_class.hosts for pod_class, pod in members}
        answer = self.cluster.feasible_gang([pod for _, pod in members], eligible=lambda pod: eligible[pod.uid])
        if not answer.fits or not all(verdict.admits for verdict in self.cluster.assume_gang(answer.bindings)):
            return None
        for host in answer.hosts.values():
            self.index.touch(host)
        return {uid: self.hosts[host] for uid, host in answer.hosts.items()}

    def forget(self, pod: Pod, host: SimulatedHost) -> None:
        self.cluster.forget(pod.uid)
        self.index.touch(host.name)

    def decided(self, pod: Pod, host: SimulatedHost, decision: Decision) -> None:
        if decision.rejection is None:
            self.report(host)
            return
        self.mispredictions += 1
        self.cluster.observe_rejection(pod.uid, host.name, decision.rejection.reason)
        self.index.touch(host.name)

    def ended(self, pod: Pod, host: SimulatedHost) -> None:  # noqa: ARG002
        self.report(host)


class FilteringScheduler(PredictingScheduler):
    def __init__(self, hosts: Sequence[SimulatedHost], scoring: Scoring) -> None:
        self.scoring = scoring
        super().__init__(hosts)

    def rate(self, pod_class: EqualPods, host: SimulatedHost) -> float | None:
        ledger = self.predicted_ledger(host)
        if ledger is None or super().rate(pod_class, host) is None:
            return None
        return score_totals(self.scoring, pod_class.request, ledger.used, host)


class SteeringScheduler(PredictingScheduler):
    """Alignup with steering: pods with markers go beside the devices of their claims, or to a NUMA node by *order*."""

    def __init__(self, hosts: Sequence[SimulatedHost], order: NumaOrder) -> None:
        self.order = order
        super().__init__(hosts)

    def steer(self, pod: Pod, host: SimulatedHost, claims: Sequence[ClaimState]) -> NodeSet:
        """Return the NUMA node that a chosen pod with markers is steered to on *host*; ``ANYWHERE``: it is not."""
        options = self.cluster.steered(pod, host.name) if count_markers(pod) else {}
        beside = dict[NodeSet, str]()
        for nodes, verdict in options.items() if claims else ():
            explained_claims = explain_claims(pod, verdict.placements, host.kubelet.machine, claims)
            if all(claim.aligned for claim in explained_claims):
                beside[nodes] = " and ".join(claim.state.name for claim in explained_claims)
        choice = choose_node(options, self.order, beside)
        if choice is None or self.cluster.steer(pod, host.name, choice.nodes, certain=True) is None:
            return ANYWHERE
        self.index.touch(host.name)
        return choice.nodes


SchedulerFactory = Callable[[Sequence[SimulatedHost]], Scheduler]

STRATEGIES: Mapping[str, SchedulerFactory] = {
    "alignup": PredictingScheduler,
    "alignup-pack": partial(SteeringScheduler, order=NumaOrder.PACK),
    "alignup-spread": partial(SteeringScheduler, order=NumaOrder.SPREAD),
    "alignup-least-allocated": partial(FilteringScheduler, scoring=Scoring.LEAST_ALLOCATED),
    "alignup-most-allocated": partial(FilteringScheduler, scoring=Scoring.MOST_ALLOCATED),
    "aggregate": AggregateScheduler,
    "blind-least-allocated": partial(TotalsScheduler, scoring=Scoring.LEAST_ALLOCATED),
    "blind-most-allocated": partial(TotalsScheduler, scoring=Scoring.MOST_ALLOCATED),
}
STEERING = frozenset({"alignup-pack", "alignup-spread"})  #: strategies for which hosts and pods have markers


def find_strategy(name: str) -> SchedulerFactory:
    if name not in STRATEGIES:
        raise SettingsError(f"unknown strategy {name}; expected one of {', '.join(STRATEGIES)}")
    return STRATEGIES[name]
