"""A scheduler that knows the free amounts of every NUMA node, as the NodeResourceTopologyMatch plugin does.

Only hosts with policy single-numa-node are checked, all others pass. With scope container every container must fit on a
NUMA node; app containers take the lowest one that fits, init containers and sidecars are checked and not counted. With
scope pod the sum of the app containers, or the largest init container, must fit. CPUs, memory and huge pages matter for
Guaranteed pods only, and fractions of CPUs count like whole ones; a resource that no NUMA node has passes. A pod that
is on its way to a host is charged to all of its NUMA nodes until the kubelet has admitted it. Hosts are ranked by what
is left of the NUMA nodes (the lowest score that is not 0) and of the host, both with the same weight.

Reports are immediate here. In a cluster they are late, which makes this scheduler use less of the hosts.
"""

from collections.abc import Iterable, Iterator, Sequence

from alignup.align.host import Host
from alignup.align.quantity import Quantity
from alignup.align.settings import Policy, Scope
from alignup.align.workload import Amounts, Container, Pod, QoS, demand
from alignup.align.workload.names import CPU, MEMORY, is_hugepages
from alignup.simulate.cluster.groups import SimulatedHost
from alignup.simulate.cluster.pod_classes import EqualPods
from alignup.simulate.cluster.scheduler import Scoring, TotalsScheduler, score_totals

Zone = dict[str, int]  #: what a NUMA node has free: CPUs in thousandths, bytes, devices


class AggregateScheduler(TotalsScheduler):
    def __init__(self, hosts: Sequence[SimulatedHost]) -> None:
        super().__init__(hosts, Scoring.LEAST_ALLOCATED)

    def rate(self, pod_class: EqualPods, host: SimulatedHost) -> float | None:
        used = self.used(host)
        if not pod_class.fits(host, used):
            return None
        total = score_totals(self.scoring, pod_class.request, used, host)
        topology = host.kubelet.settings.topology
        if topology.policy is not Policy.SINGLE_NUMA_NODE:
            return total
        zones = free_zones(host.kubelet)
        for reserved in self.reserved(host):
            charged = checked_amounts(reserved.pod, demand.requests(reserved.pod))
            for zone in zones:
                _take(zone, charged)
        wanted = _fit_on_zones(pod_class.pod, zones, topology.scope)
        return None if wanted is None else total + _zone_score(wanted, zones)


def free_zones(host: Host) -> list[Zone]:
    """The free amounts by NUMA node, in the order of their ids."""
    cpus, memory, devices = host.ledger.cpus, host.ledger.memory, host.ledger.devices
    counted = cpus.free.items() if host.cpus.allocatable else ()
    zones: dict[int, Zone] = {node: {CPU: 1000 * free} for node, free in counted}
    for node, own in memory.nodes.items():
        zones.setdefault(node, {}).update({name: table.free for name, table in own.tables.items()})
    for resource, inventory in devices.inventories.items():
        if inventory.placed:
            for node, free in devices.free_on(resource).items():
                zones.setdefault(node, {})[resource] = free
    return [zones[node] for node in sorted(zones)]


def checked_amounts(pod: Pod, requests: Amounts) -> Zone:
    """What is compared with NUMA nodes: everything for a Guaranteed pod, devices only for others."""
    guaranteed = pod.qos is QoS.GUARANTEED
    return {
        name: _amount(name, amount)
        for name, amount in requests.items()
        if guaranteed or not (name in {CPU, MEMORY} or is_hugepages(name))
    }


def _amount(name: str, amount: Quantity) -> int:
    return amount.milli() if name == CPU else amount.value()


def _fit_on_zones(pod: Pod, zones: list[Zone], scope: Scope) -> list[Zone] | None:
    """What is compared, one entry per container or pod; ``None`` if it does not fit. *zones* are reduced."""
    checked = list(_checked(pod, scope))
    for wanted, counts in checked:
        fitting = _first_fitting(zones, wanted)
        if fitting is None and zones:
            return None
        if fitting is not None and counts:
            _take(fitting, wanted)
    return [wanted for wanted, counts in checked if counts]


def _checked(pod: Pod, scope: Scope) -> Iterator[tuple[Zone, bool]]:
    """Requests that must fit on one NUMA node, and whether they are subtracted."""
    if scope is Scope.POD:
        apps = _sum(checked_amounts(pod, one.resources.requests) for one in pod.containers)
        largest = _largest(checked_amounts(pod, one.resources.requests) for one in pod.init)
        yield _largest((apps, largest)), True
        return
    for container, counts in _containers(pod):
        yield checked_amounts(pod, container.resources.requests), counts


def _containers(pod: Pod) -> Iterator[tuple[Container, bool]]:
    yield from ((container, False) for container in pod.init)
    yield from ((container, True) for container in pod.containers)


def _first_fitting(zones: Iterable[Zone], wanted: Zone) -> Zone | None:
    known = {name for zone in zones for name in zone}
    needed = [(name, size) for name, size in wanted.items() if name in known]
    return next((zone for zone in zones if all(size <= zone.get(name, 0) for name, size in needed)), None)


def _take(zone: Zone, wanted: Zone) -> None:
    for name, size in wanted.items():
        if name in zone:
            zone[name] -= size


def _sum(amounts: Iterable[Zone]) -> Zone:
    total: Zone = {}
    for one in amounts:
        for name, size in one.items():
            total[name] = total.get(name, 0) + size
    return total


def _largest(amounts: Iterable[Zone]) -> Zone:
    found: Zone = {}
    for one in amounts:
        for name, size in one.items():
            found[name] = max(found.get(name, 0), size)
    return found


def _zone_score(wanted: Sequence[Zone], zones: Sequence[Zone]) -> float:
    """The mean over containers of the lowest score of a NUMA node that is not 0; *zones* are reduced already."""
    means = []
    for one in wanted:
        scores = [_share_left(one, zone) for zone in zones]
        means.append(min((score for score in scores if score > 0), default=0.0))
    return sum(means) / len(means) if means else 100.0


def _share_left(wanted: Zone, zone: Zone) -> float:
    shares = [max(0, zone[name]) * 100 / (zone[name] + size) for name, size in wanted.items() if zone.get(name, 0) > 0]
    return sum(shares) / len(shares) if shares else 0.0
