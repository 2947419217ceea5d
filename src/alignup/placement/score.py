"""The score of a placement: how good it is for the pod, and for the pods that come after it.

For the pod: whether its hints were preferred, on how many NUMA nodes it is, and how far these are from each other. For
later pods it counts what the pod takes from them, not how much a host has left:

* devices that it strands: free ones that lose their share of CPUs and memory. See ``free_capacity``;
* devices beside it that it leaves unused, and then CPUs that stay free beside it. Few of both is best: what is used
  already is filled up, hosts with devices are left to the pods that need them, and large gaps stay whole.

Each part gives points, which add up to the score. All are integers: equal states have equal scores everywhere.
"""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from alignup.align import bits
from alignup.align.decision import Decision
from alignup.align.fit import NodeAllocatable
from alignup.align.host import Host
from alignup.align.ledger import Ledger
from alignup.align.workload.demand import FitRequest
from alignup.placement.free_capacity import DEVICE, FreeCapacity, count_beside, count_stranded, measure_free_capacity

LOCAL = 10  #: the distance of a NUMA node from itself
POINT = 1000  #: points are counted in thousandths
_CPUS = 16  #: free CPUs that halve the points for few


class ScorePoints(NamedTuple):
    """Thousandths of points for each part; at most 100 points in total."""

    preferred: int  #: 25: all hints were preferred
    numa_nodes: int  #: 20 for one or none, 10 for two …
    distance: int  #: 10 if the nodes are local
    stranded: int  #: 30 if no device is stranded, 15 for one …
    devices_beside: int  #: 10 for none, 5 for one …
    cpus_beside: int  #: 5 for none


@dataclass(frozen=True, slots=True)
class PlacementScore:
    """The parts of a score, and ``total`` from 0 (worst) to 100."""

    preferred: bool  #: whether all hints were preferred
    nodes: int  #: NUMA nodes of the placement; 0 if it has no resources of its own
    distance: float  #: mean distance between those nodes; 10 is local
    free_capacity: FreeCapacity  #: afterwards
    stranded: int  #: thousandths of devices that the pod strands; negative: it uses stranded ones
    devices_beside: int  #: devices on its NUMA nodes that it leaves unused: free ones, and all that it does not request
    cpus_beside: int  #: free CPUs on its NUMA nodes; of the host, if it has no CPUs of its own
    approximate: bool = False  #: whether the placement is not known, which halves the points
    total: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", sum(self.points) / POINT)

    @property
    def points(self) -> ScorePoints:
        points = ScorePoints(
            preferred=25 * POINT if self.preferred else 0,
            numa_nodes=20 * POINT // max(self.nodes, 1),
            distance=int(10 * POINT * LOCAL / max(self.distance, LOCAL)),
            stranded=30 * POINT * DEVICE // (DEVICE + max(self.stranded, 0)),
            devices_beside=10 * POINT // (1 + self.devices_beside),
            cpus_beside=5 * POINT * _CPUS // (_CPUS + self.cpus_beside),
        )
        if self.approximate:
            points = ScorePoints(*(value // 2 for value in points))
        return points


def score_placement(host: Host, decision: Decision, *, before: FreeCapacity) -> PlacementScore:
    """Return the score of an admission; *host* has the pod already, *before* is its capacity without the pod."""
    placements, ledger = decision.placements, host.ledger
    preferred = all(placement.hint.preferred for placement in placements)
    # The NUMA nodes of everything that the containers have.
    cpus, nodes = 0, 0
    for placement in placements:
        cpus |= placement.cpus or 0
        for block in placement.memory:
            nodes |= block.nodes
        for resource, ids in placement.devices.items():
            inventory = ledger.devices.inventories[resource]
            for id_ in ids:
                device_nodes = inventory.devices[inventory.indexes[id_]].nodes
                # A device on several nodes is near all of them.
                if device_nodes and device_nodes & device_nodes - 1 == 0:
                    nodes |= device_nodes & ledger.devices.nodes
    for node, node_cpus in ledger.cpus.node_cpus.items():
        if node_cpus & cpus:
            nodes |= 1 << node
    resources = {name for placement in placements for name in placement.devices}
    if not nodes and not resources:
        return score_shared(host, free_capacity=before, preferred=preferred)
    after = measure_free_capacity(host, earlier=before)
    free = ledger.cpus.free
    distances, distance = host.view.distances, float(LOCAL)
    if distances is not None and nodes & nodes - 1 and not nodes & ~bits.of(distances.ids):
        distance = distances.total(nodes) / nodes.bit_count() ** 2  # the mean
    return PlacementScore(
        preferred=preferred,
        nodes=nodes.bit_count(),
        distance=distance,
        free_capacity=after,
        stranded=sum(after.stranded_devices.values()) - sum(before.stranded_devices.values()),
        devices_beside=count_beside(ledger.devices, nodes or host.view.all_nodes, resources),
        cpus_beside=sum([free.get(node, 0) for node in bits.members(nodes)]),
    )


def score_shared(host: Host, *, free_capacity: FreeCapacity, preferred: bool) -> PlacementScore:
    """Return the score of a pod without resources of its own, which takes nothing but a part of the totals."""
    return PlacementScore(
        preferred=preferred,
        nodes=0,
        distance=LOCAL,
        free_capacity=free_capacity,
        stranded=0,
        devices_beside=count_beside(host.ledger.devices, host.view.all_nodes, ()),
        cpus_beside=0,
    )


def consider_totals(
    score: PlacementScore, ledger: Ledger, *, before: FreeCapacity, allocatable: NodeAllocatable, request: FitRequest
) -> PlacementScore:
    """Return *score* with what the pod takes from the host's totals; *ledger* and *before* are without the pod."""
    usage, devices = ledger.used, ledger.devices
    stranded_parts = score.stranded
    if devices.inventories:
        stranded_parts = count_stranded(score.free_capacity.stranded_devices, devices, usage, allocatable, request)
        stranded_parts -= count_stranded(before.stranded_devices, devices, usage, allocatable)
    cpus_beside = score.cpus_beside
    if not score.nodes:
        cpus_beside = max(0, allocatable.milli_cpu - usage.milli_cpu - request.milli_cpu) // 1000
    if stranded_parts == score.stranded and cpus_beside == score.cpus_beside:
        return score
    return replace(score, stranded=stranded_parts, cpus_beside=cpus_beside)
