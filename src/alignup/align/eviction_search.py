"""The smallest sets of running pods whose eviction lets a host admit a pod: for remedies, preemption and plans alike.

    shortage = HostShortage.of(host, pod)
    units = find_units(host, pod, shortage)
    search = EvictionSearch(units, prove, shortage)    # prove decides again without pods; None: the pod is rejected
    for units, proof in search.sufficient(1): ...

Sets are tried by the number of pods that they disturb, then by their cost: priority, memory to move, age. Equivalent
pods leave the same host behind. So of these only the cheapest are tried at first, and the others at the end: which of
two similar CPUs or devices is free may still matter to the later containers of a pod.
"""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, combinations_with_replacement, islice
from typing import Generic, NamedTuple, TypeVar

from alignup.align import bits, fit
from alignup.align.bits import NodeSet
from alignup.align.cpus.ledger import CpuLedger
from alignup.align.devices.ledger import DeviceLedger
from alignup.align.fit import PODS, InsufficientResource
from alignup.align.host import Host
from alignup.align.ledger import AdmittedPod
from alignup.align.machine import KubeletView
from alignup.align.workload import Pod
from alignup.align.workload.names import CPU, EPHEMERAL_STORAGE, MEMORY

Proof = TypeVar("Proof")
MAX_SORTED = 20_000  #: sets of one size that are sorted by cost; of more, the first ones are


class SearchTimeoutError(Exception):
    """A search that is out of time, or has made all the decisions that it may make."""


class EvictionCost(NamedTuple):
    """The cost of evicting pods; smaller is better, and the first difference decides."""

    pods: int = 1  #: that are disturbed
    priorities: tuple[int, ...] = (0,)  #: of the pods, the highest first
    memory: int = 0  #: bytes that the pods request, which their replacements have to fill again
    age: int = 0  #: of all pods together, in any unit

    @classmethod
    def total(cls, costs: Collection["EvictionCost"]) -> "EvictionCost":
        priorities = sorted((priority for cost in costs for priority in cost.priorities), reverse=True)
        return cls(
            sum(cost.pods for cost in costs),
            tuple(priorities),
            sum(cost.memory for cost in costs),
            sum(cost.age for cost in costs),
        )


@dataclass(frozen=True, slots=True)
class EvictionUnit:
    """Pods that are evicted together or not at all, usually one."""

    pods: tuple[str, ...]  #: uids of pods on the host
    cost: EvictionCost  #: of all its pods, on other hosts as well
    holdings: Hashable = None  #: what they hold of what the pod needs; equal for equivalent units
    nodes: NodeSet = 0  #: where they hold it; 0 if unknown
    uses: Mapping[str, int] = field(default_factory=dict, compare=False)  #: of what the whole host lacks

    @classmethod
    def together(cls, units: Sequence["EvictionUnit"], cost: EvictionCost) -> "EvictionUnit":
        uses: Counter[str] = Counter()
        for unit in units:
            uses.update(unit.uses)
        return cls(
            tuple(uid for unit in units for uid in unit.pods),
            cost,
            tuple(unit.holdings for unit in units),
            bits.union(unit.nodes for unit in units),
            uses,
        )


UnitSet = tuple[EvictionUnit, ...]


class EvictionSearch(Generic[Proof]):
    """The search on one host. *prove* returns a proof that evicting these pods suffices, or ``None``.

    At most *max_equivalent* sets of one size that only differ in equivalent pods are tried.
    """

    def __init__(
        self,
        units: Iterable[EvictionUnit],
        prove: Callable[[tuple[str, ...]], Proof | None],
        shortage: "HostShortage",
        *,
        max_equivalent: int | None = None,
    ) -> None:
        self.units: UnitSet = tuple(sorted(units, key=_order))  #: the cheapest first
        self._prove = prove
        self._shortage = shortage
        self._max_equivalent = max_equivalent
        self.limited: set[int] = set()  #: sizes of which not all sets were tried
        by_holdings: dict[Hashable, list[EvictionUnit]] = {}
        for unit in self.units:
            by_holdings.setdefault((unit.holdings, unit.cost.pods), []).append(unit)
        self.groups: list[list[EvictionUnit]] = list(by_holdings.values())  #: of equivalent units
        self._simple = all(unit.cost.pods == 1 for unit in self.units)

    def prove(self, units: Sequence[EvictionUnit]) -> Proof | None:
        if not self._shortage.may_be_covered(units):
            return None
        return self._prove(tuple([uid for unit in units for uid in unit.pods]))

    def sufficient(self, size: int) -> Iterator[tuple[UnitSet, Proof]]:
        """Yield the sufficient sets that disturb *size* pods, each with its proof."""
        for units in self.sets(size):
            proof = self.prove(units)
            if proof is not None:
                yield units, proof

    def smallest(self, at_most: int, *, most: int | None = None, tries: int | None = None) -> "SmallestSets[Proof]":
        """Return the sufficient sets of the smallest size up to *at_most*, at most so many.

        Of each size, *tries* sets are tried at most. A search that is out of time returns what it has.
        """
        sufficient: list[tuple[UnitSet, Proof]] = []
        for size in range(1, at_most + 1):
            sets = self.sets(size)
            try:
                proofs = ((units, self.prove(units)) for units in islice(sets, tries))
                for units, proof in proofs:
                    if proof is not None:
                        sufficient.append((units, proof))
                    if most is not None and len(sufficient) >= most:
                        break
            except SearchTimeoutError:
                return SmallestSets(sufficient, size, timed_out=True)
            if sufficient:
                return SmallestSets(sufficient, size)
            if tries is not None and next(sets, None):
                return SmallestSets([], size, left_out=True)
        return SmallestSets([], at_most)

    def spare(self) -> tuple[UnitSet, Proof] | None:
        """Return a set from which no unit can be spared, found by sparing the most expensive first.

        ``None``: not even the eviction of all units suffices.
        """
        ending = list(self.units)
        proof = self.prove(ending)
        for unit in reversed(self.units if proof is not None else ()):
            rest = [other for other in ending if other is not unit]
            fewer = self.prove(rest)
            if fewer is not None:
                ending, proof = rest, fewer
        return None if proof is None else (tuple(ending), proof)

    def sets(self, size: int) -> Iterator[UnitSet]:
        """Yield the sets of units that disturb *size* pods."""
        for count in (size,) if self._simple else range(1, size + 1):
            if self._shortage.may_be_covered(self.units, count):
                yield from self._sets(count, size)

    def _sets(self, count: int, size: int) -> Iterator[UnitSet]:
        """Yield the sets of *count* units that disturb *size* pods: sets with distinct holdings first.

        Large sets whose units share a NUMA node come first.
        """
        distinct = (
            tuple([unit for number, times in kinds.items() for unit in self.groups[number][:times]])
            for kinds in map(Counter, combinations_with_replacement(range(len(self.groups)), count))
        )
        tried_sets: set[frozenset[tuple[str, ...]]] = set()
        for units in _sorted_sets((units for units in distinct if len(units) == count), size):
            tried_sets.add(frozenset(unit.pods for unit in units))
            yield units
        if len(self.units) == len(self.groups):
            return
        every = combinations(self.units, count)
        others = (units for units in every if frozenset(unit.pods for unit in units) not in tried_sets)
        yield from _sorted_sets(islice(others, self._max_equivalent), size)
        if next(others, None):
            self.limited.add(size)


@dataclass(frozen=True, slots=True)
class SmallestSets(Generic[Proof]):
    sufficient: list[tuple[UnitSet, Proof]]  #: of one size, each with its proof
    size: int  #: the last that was tried
    timed_out: bool = False
    left_out: bool = False  #: whether sets of that size were not tried


def _sorted_sets(sets: Iterator[UnitSet], size: int) -> Iterator[UnitSet]:
    of_size = (units for units in sets if sum(unit.cost.pods for unit in units) == size)
    yield from sorted(islice(of_size, MAX_SORTED), key=_set_order)
    yield from of_size


def _set_order(units: UnitSet) -> tuple[bool, EvictionCost, tuple[tuple[str, ...], ...]]:
    common = units[0].nodes
    for unit in units[1:]:
        common &= unit.nodes
    cost = EvictionCost.total([unit.cost for unit in units])
    return len(units) > 2 and not common, cost, tuple([unit.pods for unit in units])


def _order(unit: EvictionUnit) -> tuple[EvictionCost, tuple[str, ...]]:
    return unit.cost, unit.pods


# The units of a host


class HostShortage(NamedTuple):
    """What a whole host lacks for a pod."""

    shortfalls: tuple[InsufficientResource, ...]
    offered: Mapping[str, int]  #: totals that the providers offer, by resource

    @classmethod
    def of(cls, host: Host, pod: Pod) -> "HostShortage":
        ledgers = host.ledger.by_provider()
        capacity: dict[str, int] = {}
        for provider in host.providers:
            capacity.update(provider.capacity(ledgers[provider.name], pod.uid))
        if host.rules.allocatable is None:
            return cls((), capacity)
        # A pod that already holds devices may count on more of them.
        allocatable = host.rules.allocatable.with_devices(capacity)
        request = fit.effective_request(pod, allocatable)
        return cls(fit.insufficient_resources(request, usage=host.ledger.used, allocatable=allocatable), capacity)

    def may_be_covered(self, units: Sequence[EvictionUnit], count: int | None = None) -> bool:
        """Return whether *units*, or the *count* largest users of them, use as much as the host lacks."""
        for short in self.shortfalls:
            most = sum(sorted((unit.uses[short.resource] for unit in units), reverse=True)[:count])
            if most < short.missing and short.resource not in self.offered:  # for devices only a decision is conclusive
                return False
        return True


def find_units(
    host: Host,
    pod: Pod,
    shortage: HostShortage,
    *,
    cost: Callable[[int, AdmittedPod], EvictionCost] | None = None,
) -> list[EvictionUnit]:
    """Return the running pods that hold or use something that *pod* lacks, each alone; evicting others changes nothing.

    *cost* gets the place of a pod in the order of admission. Without it, the newest of equal pods is the cheapest.

    Two pods are equivalent when evicting either leaves the same host: the same memory on the same nodes, as many
    devices of the same nodes, and CPUs of cores in the same places with the same other users. Where the whole host runs
    short, they also use the same amount.
    """
    ledgers = host.ledger.by_provider()
    needed_resources = {
        provider.name: {
            resource
            for container in (*pod.all_containers, None)
            for resource in provider.needs(ledgers[provider.name], pod, container)
        }
        for provider in host.providers
    }
    units = []
    for arrival, (uid, admitted_pod) in enumerate(host.ledger.pods.items()):
        holdings, nodes = _holdings(host, admitted_pod, needed_resources)
        usage = admitted_pod.usage
        amounts = {PODS: 1, CPU: usage.milli_cpu, MEMORY: usage.memory, EPHEMERAL_STORAGE: usage.ephemeral_storage}
        amounts |= usage.scalars
        uses = {short.resource: amounts.get(short.resource, 0) for short in shortage.shortfalls}
        if any(holdings) or any(uses.values()):
            price = cost(arrival, admitted_pod) if cost else default_cost(arrival, admitted_pod)
            units.append(EvictionUnit((uid,), price, (*holdings, *uses.items()), nodes, uses))
    return units


def default_cost(arrival: int, admitted_pod: AdmittedPod) -> EvictionCost:
    """Return the cost of a pod about which nothing more is known; an earlier *arrival* is a greater age."""
    return EvictionCost(1, (admitted_pod.pod.priority or 0,), admitted_pod.usage.memory, -arrival)


def _holdings(
    host: Host, admitted_pod: AdmittedPod, needed_resources: Mapping[str, set[str]]
) -> tuple[tuple[Hashable, ...], NodeSet]:
    """Return what a pod holds of *needed_resources*, and on which nodes."""
    uid = admitted_pod.pod.uid
    cores, nodes = _cores(host.view, host.ledger.cpus, uid) if needed_resources[host.cpus.name] else ((), 0)
    memory = host.ledger.memory
    by_container = [memory.pod_held[uid]] if uid in memory.pod_held else memory.held.get(uid, {}).values()
    blocks = (
        tuple(sorted(block for container_blocks in by_container for block in container_blocks))
        if needed_resources[host.memory.name]
        else ()
    )
    devices = tuple(sorted(_devices(host.ledger.devices, uid, needed_resources[host.devices.name])))
    nodes |= bits.union(block.nodes for block in blocks) | bits.union(device[1] for device in devices)
    # Providers from outside need not list requests, so everything they allocated may matter.
    others = tuple(
        (provider.name, *item)
        for provider in host.others
        for container in admitted_pod.pod.all_containers
        for item in sorted(provider.describe(host.ledger.others[provider.name], uid, container.name).items())
    )
    return (cores, blocks, devices, others), nodes


def _cores(view: KubeletView, ledger: CpuLedger, uid: str) -> tuple[Hashable, NodeSet]:
    """Return each core the pod has CPUs of: where its CPUs are, and whether each is the pod's, shared or reserved."""
    owned_cpus = ledger.owned(uid)
    cores: dict[int, list[tuple[int, ...]]] = {core: [] for core, cpus in view.core_cpus.items() if cpus & owned_cpus}
    for cpu in view.cpus if cores else ():
        if cpu.core in cores:
            state = [cpus >> cpu.id & 1 for cpus in (owned_cpus, ledger.shared, ledger.reserved)]
            cores[cpu.core].append((cpu.node or 0, cpu.socket, cpu.cache or 0, *state))
    nodes = bits.of(node for node, cpus in view.node_cpus.items() if cpus & owned_cpus)
    return tuple(sorted(tuple(sorted(places)) for places in cores.values())), nodes


def _devices(ledger: DeviceLedger, uid: str, resources: set[str]) -> Iterator[tuple[str, NodeSet, bool]]:
    """Yield the resource, nodes and health of each device; a device that is gone has no nodes."""
    for resource in resources:
        inventory = ledger.inventories.get(resource)
        devices_by_id = {device.id: device for device in inventory.devices} if inventory else {}
        for id_ in ledger.owned(uid, resource):
            device = devices_by_id.get(id_)
            yield (resource, device.nodes or 0, device.healthy) if device else (resource, 0, False)
