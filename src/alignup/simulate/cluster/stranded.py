"""What the workload of a cluster cannot use of its hosts, at peak demand.

Peak demand is when the pods that were created and would not have ended, had they started at once, request the most
CPUs. That time depends on the workload only, so strategies are compared at the same time.
"""

import heapq
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from copy import copy

from alignup.align.host import Host
from alignup.align.ledger import Ledger
from alignup.align.workload import Pod, demand
from alignup.simulate.cluster.groups import SimulatedHost
from alignup.simulate.cluster.result_documents import StrandedTotals
from alignup.simulate.cluster.submissions import PodSubmission
from alignup.simulate.fragmentation import StrandedResources, distinct_shapes, measure_stranded


def peak_demand(submissions: Iterable[PodSubmission]) -> float:
    """The first time when the requested CPUs are at their maximum."""
    ends: list[tuple[float, int]] = []
    requested = highest = 0
    peak = 0.0
    for one in sorted(submissions, key=lambda one: one.time):
        while ends and ends[0][0] <= one.time:
            requested -= heapq.heappop(ends)[1]
        own = demand.fit_request(one.pod).milli_cpu
        requested += own
        if one.duration is not None:
            heapq.heappush(ends, (one.time + one.duration, own))
        if requested > highest:
            highest, peak = requested, one.time
    return peak


def measure_cluster(
    hosts: Sequence[SimulatedHost], ledgers: Sequence[Ledger], pods: Iterable[Pod], *, time: float
) -> StrandedTotals:
    """What is stranded on *hosts* with these *ledgers*; hosts in the same state are measured once."""
    shapes = distinct_shapes(pods)
    known: dict[Hashable, StrandedResources] = {}
    devices: Counter[str] = Counter()
    free_devices: Counter[str] = Counter()
    free_cpus = free_memory = cpus = memory = more = 0
    for host, ledger in zip(hosts, ledgers, strict=True):
        used = ledger.used
        key = (id(host.group), ledger.alignment_key(), used[:4], frozenset(used.scalars.items()))
        found = known.get(key)
        if found is None:
            found = known[key] = measure_stranded(_at(host.kubelet, ledger), shapes)
        free_cpus += ledger.cpus.available.bit_count() if host.kubelet.cpus.allocatable else 0
        free_memory += max(0, host.allocatable.memory - used.memory)
        free_devices.update({name: free.bit_count() for name, free in ledger.devices.free.items()})
        cpus, memory, more = cpus + found.cpus, memory + found.memory, more + found.more
        devices.update(found.devices)
    return StrandedTotals(
        time=time,
        free_cpus=free_cpus,
        free_memory=free_memory,
        free_devices=dict(free_devices),
        cpus=cpus,
        memory=memory,
        devices=dict(devices),
        more=more,
    )


def _at(host: Host, ledger: Ledger) -> Host:
    other = copy(host)
    other.ledger = ledger
    return other
