"""Export a host's ledger as the state files of a kubelet with the same settings, which can continue from there."""

from collections.abc import Mapping
from itertools import chain

from alignup.align import bits
from alignup.align.cpus.ledger import CpuLedger
from alignup.align.devices import DeviceLedger
from alignup.align.host import Host, Settings
from alignup.align.memory.ledger import Block, MemoryLedger, NodeMemory
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
    ledger = host.ledger
    entries = _device_entries(ledger.devices, responses or {})
    unknown = sorted({one.resource for one in entries if not one.response})
    return KubeletFiles(
        cpu=_cpu_state(ledger.cpus, host.settings),
        memory=_memory_state(ledger.memory, policy=host.settings.memory_policy),
        devices=DeviceState(entries=entries, registered=_registered(ledger.devices)),
        gaps=tuple(f"the Allocate response of the plugin of {resource} is unknown" for resource in unknown),
    )


def _cpu_state(ledger: CpuLedger, settings: Settings) -> CpuState:
    """Return the state with lost CPUs shared again: a kubelet requires that every CPU is listed."""
    return CpuState(
        policy=settings.cpus.policy,
        default=ledger.shared | ledger.lost,
        entries=ledger.held,
        pod_entries=ledger.pod_held,
        baselines=ledger.held if settings.gates.on(cpu_file.BASELINES_GATE) else {},
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
            if block.type not in types:
                _remove_assignment(nodes, block)
    return MemoryState(policy=policy, machine_state=nodes, entries=held, pod_entries=ledger.pod_held)


def _remove_assignment(nodes: dict[int, NodeMemory], block: Block) -> None:
    for id_ in bits.members(block.nodes):
        node = nodes[id_]
        left = node.assignments - 1
        nodes[id_] = node._replace(cells=node.cells if left else 1 << id_, assignments=left)


def _device_entries(ledger: DeviceLedger, responses: EncodedResponses) -> tuple[DeviceEntry, ...]:
    return tuple(
        DeviceEntry(
            uid=uid,
            container=container,
            resource=resource,
            devices=_ids_by_node(ledger, resource, ids),
            response=responses.get((uid, container, resource), b""),
        )
        for uid, containers in sorted(ledger.held.items())
        for container, own in sorted(containers.items())
        for resource, ids in sorted(own.items())
    )


def _ids_by_node(ledger: DeviceLedger, resource: str, ids: tuple[str, ...]) -> dict[int, tuple[str, ...]]:
    """Return NUMA node → *ids*; a device that no longer exists has no node."""
    inventory = ledger.inventories.get(resource)
    nodes: dict[int, tuple[str, ...]] = {}
    for id_ in ids:
        known = inventory.devices[inventory.indexes[id_]].nodes if inventory and id_ in inventory.indexes else None
        for node in bits.members(known) if known else (NO_NODE,):
            nodes[node] = (*nodes.get(node, ()), id_)
    return nodes


def _registered(ledger: DeviceLedger) -> dict[str, tuple[str, ...]]:
    return {
        resource: inventory.names(inventory.healthy)
        for resource, inventory in sorted(ledger.inventories.items())
        if inventory.registered
    }
