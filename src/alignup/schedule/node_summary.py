"""The nodes of a cluster in brief: their policies, what is free on each NUMA node, and what still fits there."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from alignup.align import bits
from alignup.align.host import Host, Settings
from alignup.placement.free_capacity import measure_free_capacity
from alignup.schedule.cluster_snapshot import ClusterView
from alignup.schedule.node_selection import show_taint

Amounts = Mapping[str, int]  #: by resource; memory in bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSummary:
    node: str
    kubelet_version: str = ""
    restrictions: tuple[str, ...] = ()  #: unschedulable, and taints
    settings: Settings | None = None  #: ``None``: unknown
    pods: int = 0  #: that the kubelet has admitted, or will
    free: Mapping[int, Amounts] = field(default_factory=dict)  #: NUMA node → what containers can still get there
    largest: Amounts = field(default_factory=dict)  #: the largest request that a container gets on one NUMA node
    unknown: str = ""  #: why the state is unknown
    doubts: tuple[str, ...] = ()  #: gaps and contradictions that the observer reports
    stale: str = ""  #: since when the observer has not reported; empty: it has


def summarize(view: ClusterView, node: str) -> NodeSummary:
    found = view.nodes[node]
    restrictions = ["unschedulable"] if found.spec.unschedulable else []
    restrictions += [show_taint(taint) for taint in found.spec.taints if taint.key != _UNSCHEDULABLE]
    host = view.host(node)
    report, record = view.reports.get(node), view.cluster.record(node)
    problem = record.states().problem if record else ""
    return NodeSummary(
        node=node,
        kubelet_version=found.status.node_info.kubelet_version,
        restrictions=tuple(restrictions),
        settings=report.settings if report else None,
        pods=len(host.ledger.pods) if host else 0,
        free=free_by_numa_node(host) if host else {},
        largest=measure_free_capacity(host).largest if host else {},
        unknown=view.unknown.get(node, problem),
        doubts=view.doubts.get(node, ()),
        stale=view.stale.get(node, ""),
    )


_UNSCHEDULABLE = "node.kubernetes.io/unschedulable"  #: follows from the field of the node


def free_by_numa_node(host: Host) -> dict[int, dict[str, int]]:
    """What the managers of the kubelet have left on each NUMA node; devices without topology are on none."""
    cpus, memory, devices = host.ledger.cpus, host.ledger.memory, host.ledger.devices
    found: dict[int, dict[str, int]] = {}
    for node in bits.members(host.view.all_nodes):
        free = found[node] = {}
        if host.cpus.allocatable:
            free["cpu"] = cpus.free.get(node, 0)
        if node in memory.nodes:
            free |= {type_: table.free for type_, table in memory.nodes[node].tables.items()}
        for resource, inventory in sorted(devices.inventories.items()):
            if here := inventory.on.get(node, 0) if inventory.placed else 0:
                free[resource] = (devices.free[resource] & here).bit_count()
    return found
