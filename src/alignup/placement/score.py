"""How good a placement is: for the pod, and for the pods that come after it.

For the pod: whether its hints were preferred, on how many NUMA nodes it is, and how far these are from each other. For
later pods: how much of the largest aligned requests is left, how many unused NUMA nodes it starts to use, and how much
it strands.
"""

from dataclasses import dataclass

from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.decision import Decision, Placement
from alignup.align.distances import Distances
from alignup.align.host import Host
from alignup.align.ledger import Ledger
from alignup.placement.room import Room, measure_room

LOCAL = 10  #: the distance of a NUMA node from itself


@dataclass(frozen=True, slots=True)
class PlacementScore:
    """The parts of a score, and ``total`` from 0 (worst) to 100."""

    preferred: bool  #: whether all hints were preferred
    nodes: int  #: NUMA nodes of the placement; 0 if it has no resources of its own
    distance: float  #: mean distance between those nodes; 10 is local
    room: Room  #: afterwards
    kept: float  #: the share of the largest aligned requests that is left, 0 to 1
    opened_nodes: int  #: unused NUMA nodes that the pod starts to use
    newly_stranded: int  #: CPUs and devices that were not stranded before
    total: float


def score_placement(host: Host, decision: Decision, *, before: Room) -> PlacementScore:
    """The score of an admission; *host* is as it is after it, *before* is what it offered before."""
    nodes = _nodes(decision.placements, host.ledger)
    preferred = all(one.hint.preferred for one in decision.placements)
    return build_score(
        preferred=preferred,
        nodes=nodes.bit_count(),
        distance=_mean_distance(nodes, host.view.distances),
        before=before,
        after=measure_room(host) if nodes or any(one.devices for one in decision.placements) else before,
    )


def build_score(*, preferred: bool, nodes: int, distance: float, before: Room, after: Room) -> PlacementScore:
    shares = [after.largest.get(name, 0) / size for name, size in before.largest.items() if size]
    kept = sum(shares) / len(shares) if shares else 1.0
    opened = max(0, before.unused_nodes - after.unused_nodes)
    newly = max(0, after.stranded - before.stranded)
    total = (
        (25 if preferred else 0)
        + 20 / max(nodes, 1)
        + 10 * LOCAL / max(distance, LOCAL)
        + 20 * kept
        + 15 / (1 + opened)
        + 10 / (1 + newly)
    )
    return PlacementScore(preferred, nodes, distance, after, kept, opened, newly, round(total, 3))


def _nodes(placements: tuple[Placement, ...], ledger: Ledger) -> NodeSet:
    """The NUMA nodes of everything that the containers have."""
    cpus, nodes = 0, 0
    for placement in placements:
        cpus |= placement.cpus or 0
        for block in placement.memory:
            nodes |= block.nodes
        for resource, ids in placement.devices.items():
            inventory = ledger.devices.inventories[resource]
            for id_ in ids:
                own = inventory.devices[inventory.indexes[id_]].nodes
                if own and own & own - 1 == 0:  # a device on several nodes is near all of them
                    nodes |= own & ledger.devices.nodes
    if cpus:
        nodes |= bits.of(node for node, own in ledger.cpus.node_cpus.items() if own & cpus)
    return nodes


def _mean_distance(nodes: NodeSet, distances: Distances | None) -> float:
    if distances is None or nodes & nodes - 1 == 0 or nodes & ~bits.of(distances.ids):
        return float(LOCAL)
    count = nodes.bit_count()
    return distances.total(nodes) / count**2
