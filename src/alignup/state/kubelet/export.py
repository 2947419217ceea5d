"""Export a host's ledger as the state files of a kubelet with the same settings, which can continue from there."""

from collections.abc import Mapping
from itertools import chain

from alignup.align import bits
from alignup.align.devices.ledger import DeviceLedger
from alignup.align.host import Host
from alignup.align.memory.ledger import Block, MemoryLedger
from alignup.state.kubelet import cpu_file
from alignup.state.kubelet.cpu_file import CpuState
from alignup.state.kubelet.device_file import NO_NODE, DeviceEntry, DeviceState
from alignup.state.kubelet.memory_file import MemoryState
from alignup.state.kubelet.state_dir import KubeletFiles

EncodedResponses = Mapping[tuple[str, str, str], bytes]  #: (pod uid, container, resource) → ContainerAllocateResponse


def export_ledger(host: Host, *, responses: EncodedResponses | None = None) -> KubeletFiles:
    """Return the states with which a kubelet with this host's settings starts.

    The ledger does not contain the plugins' *responses*. Without one, a kubelet would restart the container without
    the device files and variables of its devices, so a missing response is a gap.

    A kubelet cannot start with one of these states: all CPUs are exclusive, none shared (``docs/why/differences.md``).
    """
    ledger, settings = host.ledger, host.settings
    entries = tuple(
        DeviceEntry(
            uid=uid,
            container=container,
            resource=resource,
            devices=_ids_by_node(ledger.devices, resource, ids),
            response=(responses or {}).get((uid, container, resource), b""),
        )
        for uid, containers in sorted(ledger.devices.held.items())
        for container, own in sorted(containers.items())
        for resource, ids in sorted(own.items())
    )
    registered = {
        resource: inventory.names(inventory.healthy)
        for resource, inventory in sorted(ledger.devices.inventories.items())
        if inventory.registered
    }
    unknown = sorted({one.resource for one in entries if not one.response})
    return KubeletFiles(
        cpu=CpuState(
            policy=settings.cpus.policy,
            # A kubelet requires that every CPU is listed, so lost ones are shared again.
            default=ledger.cpus.shared | ledger.cpus.lost,
            entries=ledger.cpus.held,
            pod_entries=ledger.cpus.pod_held,
            baselines=ledger.cpus.held if settings.gates.on(cpu_file.BASELINES_GATE) else {},
        ),
        memory=_memory_state(ledger.memory, policy=settings.memory_policy),
        devices=DeviceState(entries=entries, registered=registered),
        gaps=tuple(f"the Allocate response of the plugin of {resource} is unknown" for resource in unknown),
    )


def _memory_state(ledger: MemoryLedger, *, policy: str) -> MemoryState:
    """Return the state without empty blocks of types that the machine does not have: a kubelet rejects those."""
    types = {type_ for node in ledger.nodes.values() for type_ in node.tables}
    nodes = dict(ledger.nodes)
    held: dict[str, dict[str, tuple[Block, ...]]] = {}
    for uid, containers in ledger.held.items():
        held[uid] = {name: tuple(one for one in own if one.type in types) for name, own in containers.items()}
        if uid in ledger.pod_held:  # blocks of its containers do not count
            continue
        for block in chain.from_iterable(containers.values()):
            for id_ in bits.members(block.nodes) if block.type not in types else ():
                left = nodes[id_].assignments - 1
                nodes[id_] = nodes[id_]._replace(cells=nodes[id_].cells if left else 1 << id_, assignments=left)
    return MemoryState(policy=policy, machine_state=nodes, entries=held, pod_entries=ledger.pod_held)


def _ids_by_node(ledger: DeviceLedger, resource: str, ids: tuple[str, ...]) -> dict[int, tuple[str, ...]]:
    """Return NUMA node → *ids*; a device that no longer exists has no node."""
    inventory = ledger.inventories.get(resource)
    nodes: dict[int, tuple[str, ...]] = {}
    for id_ in ids:
        known = inventory.devices[inventory.indexes[id_]].nodes if inventory and id_ in inventory.indexes else None
        for node in bits.members(known) if known else (NO_NODE,):
            nodes[node] = (*nodes.get(node, ()), id_)
    return nodes
