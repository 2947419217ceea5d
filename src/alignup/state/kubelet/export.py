"""A host's ledger as the state files of a kubelet with the same settings, which can go on from there."""

from collections.abc import Mapping
from itertools import chain
from typing import Any

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

EncodedResponses = Mapping[
    tuple[str, str, str], bytes
]  #: pod uid, container, resource → what the plugin said to give it


def export_ledger(host: Host, *, responses: EncodedResponses | None = None) -> KubeletFiles:
    """The states a kubelet with this host's settings starts on; the same ledger is always the same states.

    A plugin's *responses* are not in the ledger. Where one is missing the kubelet would start a container again
    without its devices' files and variables, which is a gap.

    One such state the kubelet itself cannot start on: all CPUs owned, none shared (``docs/why/differences.md``).
    """
    books: Mapping[str, Any] = host.ledger.books
    entries = _entries(books["device"], responses or {})
    silent = sorted({one.resource for one in entries if not one.response})
    return KubeletFiles(
        cpu=_cpus(books["cpu"], host.settings),
        memory=_memory(books["memory"], policy=host.settings.memory_policy),
        devices=DeviceState(entries=entries, registered=_registered(books["device"])),
        gaps=tuple(f"what the plugin of {resource} said to give containers is not known" for resource in silent),
    )


def _cpus(ledger: CpuLedger, settings: Settings) -> CpuState:
    """CPUs that were lost are shared again: a kubelet insists that all are there."""
    return CpuState(
        policy=settings.cpus.policy,
        default=ledger.shared | ledger.lost,
        entries=ledger.held,
        pod_entries=ledger.pod_held,
        baselines=ledger.held if settings.gates.on(cpu_file.BASELINES_GATE) else {},
    )


def _memory(ledger: MemoryLedger, *, policy: str) -> MemoryState:
    """A container may hold nothing of a type the machine does not have; with that in it a file would be refused."""
    types = {type_ for node in ledger.nodes.values() for type_ in node.tables}
    nodes = dict(ledger.nodes)
    held: dict[str, dict[str, tuple[Block, ...]]] = {}
    for uid, containers in ledger.held.items():
        held[uid] = {name: tuple(one for one in own if one.type in types) for name, own in containers.items()}
        if uid in ledger.pod_held:  # its containers are not counted
            continue
        for block in chain.from_iterable(containers.values()):
            if block.type not in types:
                _uncount(nodes, block)
    return MemoryState(policy=policy, machine_state=nodes, entries=held, pod_entries=ledger.pod_held)


def _uncount(nodes: dict[int, NodeMemory], block: Block) -> None:
    for id_ in bits.members(block.nodes):
        node = nodes[id_]
        left = node.assignments - 1
        nodes[id_] = node._replace(cells=node.cells if left else 1 << id_, assignments=left)


def _entries(ledger: DeviceLedger, responses: EncodedResponses) -> tuple[DeviceEntry, ...]:
    return tuple(
        DeviceEntry(
            uid=uid,
            container=container,
            resource=resource,
            devices=_by_node(ledger, resource, ids),
            response=responses.get((uid, container, resource), b""),
        )
        for uid, containers in sorted(ledger.held.items())
        for container, own in sorted(containers.items())
        for resource, ids in sorted(own.items())
    )


def _by_node(ledger: DeviceLedger, resource: str, ids: tuple[str, ...]) -> dict[int, tuple[str, ...]]:
    """NUMA node → those of *ids* that are there; one that is gone is nowhere."""
    inventory = ledger.inventories.get(resource)
    nodes: dict[int, tuple[str, ...]] = {}
    for id_ in ids:
        known = inventory.devices[inventory.places[id_]].nodes if inventory and id_ in inventory.places else None
        for node in bits.members(known) if known else (NO_NODE,):
            nodes[node] = (*nodes.get(node, ()), id_)
    return nodes


def _registered(ledger: DeviceLedger) -> dict[str, tuple[str, ...]]:
    return {
        resource: inventory.names(inventory.healthy)
        for resource, inventory in sorted(ledger.inventories.items())
        if inventory.registered
    }
