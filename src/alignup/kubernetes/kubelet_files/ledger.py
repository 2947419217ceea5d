"""The ledger of a host, restored from a kubelet's state files, and exported as such files.

The files know pods by uid and containers by name, and only their exclusive resources. A list of pods, if available,
provides the rest. A pod that is not in the list is replaced by a stand-in that requests exactly what it holds.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from itertools import chain, combinations
from typing import NamedTuple

from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.cpus.ledger import CpuLedger
from alignup.align.cpus.options import CpuPolicy
from alignup.align.cpus.provider import CpuProvider
from alignup.align.devices.hints import natural_sort_key
from alignup.align.devices.ledger import DeviceLedger
from alignup.align.devices.provider import DeviceProvider
from alignup.align.errors import StateError
from alignup.align.host import Host
from alignup.align.ledger import AdmittedPod, Ledger
from alignup.align.machine import Device
from alignup.align.memory.ledger import Block, MemoryLedger
from alignup.align.memory.provider import MemoryPolicy, MemoryProvider
from alignup.align.quantity import Quantity, QuantityFormat
from alignup.align.workload import Container, Pod, QoS, Resources
from alignup.align.workload.demand import FitRequest, fit_used
from alignup.align.workload.names import CPU, MEMORY
from alignup.kubernetes.kubelet_files import state_files
from alignup.kubernetes.kubelet_files.state_files import (
    NO_NODE,
    CpuState,
    DeviceEntry,
    DeviceState,
    KubeletFiles,
    MemoryState,
    check_policy,
)

EncodedResponses = Mapping[tuple[str, str, str], bytes]  #: (pod uid, container, resource) → ContainerAllocateResponse


class GapKind(Enum):
    """What would close a gap."""

    PODS = auto()  #: a list of the running pods
    UNLISTED_PODS = auto()  #: a list of pods that is complete
    DEVICE_TOPOLOGY = auto()  #: the NUMA nodes of the devices of ``Gap.resource``
    NOTHING = auto()


class Gap(NamedTuple):
    """A sentence about something unknown."""

    text: str
    kind: GapKind = GapKind.NOTHING
    resource: str = ""


@dataclass(frozen=True, slots=True)
class RestoredLedger:
    ledger: Ledger
    gaps: tuple[Gap, ...] = ()
    unknown: tuple[str, ...] = ()  #: uids of pods that hold resources but are not in the list


def restore_ledger(
    host: Host, files: KubeletFiles, pods: Iterable[Pod] = (), *, running: bool = False
) -> RestoredLedger:
    """Return the ledger of *host* with its kubelet's *files* and running *pods*; the host itself does not change.

    ``StateError`` if a file has a problem, or with the kubelet's message if a kubelet with the host's settings would
    not start with it. A missing file counts as that of an idle machine.

    A *running* kubelet does not check its files, and may run on state it could not restart from: that is a gap, not an
    error, if they belong to this machine.
    """
    for problem in files.problems:
        raise StateError(problem.message)
    gaps = [Gap(text) for text in files.gaps]
    cpus = _cpus(host.cpus, files.cpu, gaps, policy=host.settings.cpus.policy, running=running)
    memory = _memory(host.memory, files.memory, gaps, running=running)
    devices = _devices(host.devices, files.devices, gaps)
    ledger = replace(host.initial_ledger(), cpus=cpus, memory=memory, devices=devices)
    pods = tuple(pods)
    by_uid = {pod.uid: pod for pod in pods if pod.uid}
    holders = {*cpus.held, *cpus.pod_held, *memory.held, *memory.pod_held, *devices.held}
    unknown_uids = tuple(sorted(holders - by_uid.keys()))
    ledger = ledger.with_pods(AdmittedPod(pod, {}, fit_used(pod)) for pod in by_uid.values())
    ledger = ledger.with_pods([_stand_in(uid, ledger) for uid in unknown_uids])
    gaps += [
        Gap(f"pod {pod.namespace}/{pod.name} is ignored: without a uid it cannot be found in the state files")
        for pod in pods
        if not pod.uid
    ]
    count = "a pod" if len(unknown_uids) == 1 else f"{len(unknown_uids)} pods"
    if unknown_uids:
        gaps.append(Gap(f"the state files do not contain the names and shared CPU use of {count}", GapKind.PODS))
    if unknown_uids and pods:
        text = f"{count} in the state files but not in the list counted as running: {', '.join(unknown_uids)}"
        note = "if they are gone, a kubelet frees their resources when it admits the next pod"
        gaps.append(Gap(f"{text}; {note}", GapKind.UNLISTED_PODS))
    return RestoredLedger(ledger, tuple(gaps), unknown_uids)


def _cpus(provider: CpuProvider, state: CpuState | None, gaps: list[Gap], *, policy: str, running: bool) -> CpuLedger:
    """Return the CPU ledger in *state*, checked as a kubelet does when it starts."""
    if state is not None:
        check_policy(state_files.CPU_FORMAT, configured_policy=policy, stored_policy=state.policy)
    if state is None or provider.policy is CpuPolicy.NONE:
        return provider.initial_ledger()
    try:
        ledger = provider.restore_ledger(state.default, state.entries, pod_held=state.pod_entries)
    except StateError as error:
        if not running:
            raise
        ledger = _unchecked_cpus(provider, state, error)
        gaps.append(Gap(f"{state_files.CPU_FILE}: {error}; a kubelet would not start with it"))
    owned_cpus = {uid: ledger.owned(uid) for uid in sorted({*ledger.held, *ledger.pod_held})}
    for (uid, cpus), (other, other_cpus) in combinations(owned_cpus.items(), 2):
        if cpus & other_cpus:  # the kubelet does not check this, but neither could be released
            raise StateError(
                f"pods {uid} and {other} both hold CPUs {bits.show(cpus & other_cpus)}; delete one of them, "
                f"or drain the node and delete its {state_files.CPU_FILE}"
            )
    orphans = {uid: cpus for uid, cpus in ledger.pod_held.items() if uid not in ledger.held}
    pod_held = {uid: cpus for uid, cpus in ledger.pod_held.items() if uid not in orphans}
    gaps += [
        Gap(f"pod {uid} holds CPUs {bits.show(cpus)} as a whole, but its containers hold none; they stay unavailable")
        for uid, cpus in sorted(orphans.items())
    ]
    return replace(ledger, pod_held=pod_held, lost=ledger.lost | bits.union(orphans.values()))


def _unchecked_cpus(provider: CpuProvider, state: CpuState, error: StateError) -> CpuLedger:
    """Return the ledger in *state* as it is; CPUs that it does not list are lost. Raise *error* for unknown CPUs."""
    pod_held = state.pod_entries if provider.pod_level else {}
    exclusive = (cpus for containers in state.entries.values() for cpus in containers.values())
    exclusive_cpus = bits.union((*exclusive, *pod_held.values()))
    if (exclusive_cpus | state.default) & ~provider.view.all_cpus:
        raise error
    idle = provider.initial_ledger()
    shared_cpus = state.default & idle.shared & ~exclusive_cpus
    lost_cpus = idle.shared & ~state.default & ~exclusive_cpus
    return replace(idle, shared=shared_cpus, held=state.entries, pod_held=pod_held, lost=lost_cpus)


def _memory(provider: MemoryProvider, state: MemoryState | None, gaps: list[Gap], *, running: bool) -> MemoryLedger:
    idle = provider.initial_ledger()
    if state is not None:
        check_policy(state_files.MEMORY_FORMAT, configured_policy=provider.settings.policy, stored_policy=state.policy)
    if state is None or provider.settings.policy is MemoryPolicy.NONE:
        return idle
    stored_ledger = MemoryLedger(state.machine_state, state.entries, state.pod_entries)
    try:
        ledger = stored_ledger.restored(idle, pod_level=provider.settings.pod_level_managers)
    except StateError as error:
        layout, expected_layout = (
            {id_: node.tables.keys() for id_, node in ledger.nodes.items()} for ledger in (stored_ledger, idle)
        )
        if not running or layout != expected_layout:
            raise
        ledger = stored_ledger if provider.settings.pod_level_managers else replace(stored_ledger, pod_held={})
        gaps.append(Gap(f"{state_files.MEMORY_FILE}: {error}; a kubelet would not start with it"))
    orphans = ledger.pod_held.keys() - ledger.held.keys()
    gaps += [
        Gap(f"pod {uid} holds memory as a whole, but its containers hold none; it stays unavailable")
        for uid in sorted(orphans)
    ]
    pod_held = {uid: blocks for uid, blocks in ledger.pod_held.items() if uid not in orphans}
    return replace(ledger, pod_held=pod_held)


def _devices(provider: DeviceProvider, state: DeviceState | None, gaps: list[Gap]) -> DeviceLedger:
    """Return the device ledger in *state*, with the devices of the machine as far as they are known."""
    if state is None:
        return provider.initial_ledger()
    ledger = replace(provider, devices=()).initial_ledger()
    for restored_devices in restore_devices(provider.devices, state):
        resource = restored_devices.resource
        preferred = resource in provider.preferred_allocation
        ledger = ledger.announce(resource, restored_devices.devices.values(), preferred_allocation=preferred)
        ledger = ledger if restored_devices.present else ledger.give_up(resource)
        gaps += restored_devices.gaps
    devices_of_containers: dict[tuple[str, str], dict[str, tuple[str, ...]]] = {}
    for entry in state.entries:
        devices_of_containers.setdefault((entry.uid, entry.container), {})[entry.resource] = tuple(entry.nodes)
    for (uid, container), devices in devices_of_containers.items():
        try:
            ledger = ledger.give(uid, container, devices=devices)
        except StateError as error:
            raise StateError(
                f"pod {uid} container {container}: {error}; delete one of the two pods, "
                f"or drain the node and delete its {state_files.DEVICE_FILE}"
            ) from None
    return ledger


@dataclass(frozen=True, slots=True)
class RestoredDevices:
    resource: str
    devices: Mapping[str, Device]  #: by id
    present: bool  #: whether the file or the machine lists the resource; if not, only held devices are known
    gaps: tuple[Gap, ...]


def restore_devices(machine_devices: Iterable[Device], state: DeviceState) -> Iterator[RestoredDevices]:
    """Yield the devices of each resource of *machine_devices* or *state*, sorted by resource.

    The file has the ids of all healthy devices, but the NUMA nodes only of devices that a container holds. The devices
    of the machine provide the missing nodes: by id, or, if their ids are made up, by matching a device of the file
    with a device of the machine on the same nodes.
    """
    declared_devices: dict[str, dict[str, Device]] = {}
    for device in machine_devices:
        declared_devices.setdefault(device.resource, {})[device.id] = device
    nodes_by_resource: dict[str, dict[str, NodeSet]] = {}
    for entry in state.entries:
        nodes_by_id = nodes_by_resource.setdefault(entry.resource, {})
        for id_, nodes in entry.nodes.items():
            nodes_by_id[id_] = bits.of(node for node in nodes if 0 <= node < bits.MAX_MEMBER)
    for resource in sorted({*declared_devices, *nodes_by_resource, *state.registered}):
        healthy = frozenset(state.registered[resource] or ()) if resource in state.registered else None
        yield _match_devices(
            resource,
            declared_devices.get(resource, {}),
            nodes_by_id=nodes_by_resource.get(resource, {}),
            healthy=healthy,
        )


def _match_devices(
    resource: str,
    declared_devices: Mapping[str, Device],
    *,
    nodes_by_id: Mapping[str, NodeSet],
    healthy: Collection[str] | None,
) -> RestoredDevices:
    """Match the devices of one resource; *healthy* is ``None`` if the file does not list the resource."""
    listed_ids = [
        *sorted(nodes_by_id, key=natural_sort_key),
        *sorted({*(healthy or ())} - nodes_by_id.keys(), key=natural_sort_key),
    ]
    spare = {
        id_: declared_devices[id_] for id_ in sorted(declared_devices.keys() - {*listed_ids}, key=natural_sort_key)
    }
    devices, moved_ids, added_ids = {}, [], []
    for id_ in listed_ids:
        matches = [device for device in spare.values() if nodes_by_id.get(id_) in (None, device.nodes or 0)][:1]
        device = declared_devices.get(id_) or (spare.pop(matches[0].id) if matches else None)
        if device is None:
            added_ids.append(id_)
            device = Device(resource, id_, nodes_by_id.get(id_) or None, healthy=False)
        elif id_ in nodes_by_id and nodes_by_id[id_] != (device.nodes or 0):
            moved_ids.append(id_)
        devices[id_] = replace(device, id=id_, healthy=device.healthy if healthy is None else id_ in healthy)
    unhealthy = [id_ for id_, device in spare.items() if device.healthy and healthy is not None]
    for id_, device in spare.items():
        devices[id_] = replace(device, healthy=device.healthy and healthy is None)
    undeclared_ids = [id_ for id_ in added_ids if id_ in nodes_by_id and declared_devices]
    gaps = [
        Gap(f"{'devices' if ids[1:] else 'device'} {', '.join(ids)} of {resource} {'are' if ids[1:] else 'is'} {text}")
        for ids, text in (
            (moved_ids, "declared on other NUMA nodes than in the state files; using the declared nodes"),
            (undeclared_ids, "in the state files, but too few are declared on the same NUMA nodes; added there"),
            (unhealthy, "declared but not healthy in the state files; treated as unhealthy"),
        )
        if ids
    ]
    if unplaced_count := len([id_ for id_ in added_ids if id_ not in nodes_by_id]):
        free = "a free device" if unplaced_count == 1 else f"{unplaced_count} free devices"
        text = f"the state files do not contain the topology of {free} of {resource}"
        gaps.append(Gap(text, GapKind.DEVICE_TOPOLOGY, resource))
    return RestoredDevices(resource, devices, present=healthy is not None or bool(declared_devices), gaps=tuple(gaps))


def _stand_in(uid: str, ledger: Ledger) -> AdmittedPod:
    cpus = ledger.cpus.held.get(uid, {})
    blocks = ledger.memory.held.get(uid, {})
    devices = ledger.devices.held.get(uid, {})
    containers = tuple(
        Container(name, _guaranteed(cpus.get(name, 0), blocks.get(name, ()), devices.get(name, {})))
        for name in sorted({*cpus, *blocks, *devices})
    )
    whole = _guaranteed(ledger.cpus.pod_held.get(uid, 0), ledger.memory.pod_held.get(uid, ()), {})
    pod = Pod(
        name=uid,
        namespace="",
        uid=uid,
        containers=containers,
        resources=whole,
        # Only Guaranteed pods hold CPUs or memory; any pod can hold devices.
        recorded_qos=QoS.GUARANTEED if cpus or blocks or whole.requests else None,
    )
    # Its containers may use the same CPUs and devices one after the other.
    sizes = _sizes(ledger.memory.pod_held.get(uid) or chain.from_iterable(blocks.values()))
    resources = sorted({resource for resources_of_container in devices.values() for resource in resources_of_container})
    usage = FitRequest(
        milli_cpu=1000 * ledger.cpus.owned(uid).bit_count(),
        memory=sizes.pop(MEMORY, 0),
        ephemeral_storage=0,
        scalars=sizes | {resource: len(ledger.devices.owned(uid, resource)) for resource in resources},
    )
    return AdmittedPod(pod, {}, usage)


def _guaranteed(cpus: bits.CpuSet, blocks: Iterable[Block], devices: Mapping[str, tuple[str, ...]]) -> Resources:
    amounts = {CPU: Quantity.of(cpus.bit_count())} if cpus else {}
    for type_, size in _sizes(blocks).items():
        amounts[type_] = Quantity.of(size, QuantityFormat.BINARY_SI)
    amounts |= {resource: Quantity.of(len(ids)) for resource, ids in devices.items()}
    return Resources(amounts, amounts)


def _sizes(blocks: Iterable[Block]) -> dict[str, int]:
    sizes: Counter[str] = Counter()
    for block in blocks:
        sizes[block.type] += block.size
    return dict(+sizes)  # without empty ones


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
        for container, devices in sorted(containers.items())
        for resource, ids in sorted(devices.items())
    )
    registered_ids = {
        resource: inventory.names(inventory.healthy)
        for resource, inventory in sorted(ledger.devices.inventories.items())
        if inventory.registered
    }
    resources = sorted({entry.resource for entry in entries if not entry.response})
    return KubeletFiles(
        cpu=CpuState(
            policy=settings.cpus.policy,
            # A kubelet requires that every CPU is listed, so lost ones are shared again.
            default=ledger.cpus.shared | ledger.cpus.lost,
            entries=ledger.cpus.held,
            pod_entries=ledger.cpus.pod_held,
            baselines=ledger.cpus.held if settings.gates.on(state_files.BASELINES_GATE) else {},
        ),
        memory=_memory_state(ledger.memory, policy=settings.memory_policy),
        devices=DeviceState(entries=entries, registered=registered_ids),
        gaps=tuple(f"the Allocate response of the plugin of {resource} is unknown" for resource in resources),
    )


def _memory_state(ledger: MemoryLedger, *, policy: str) -> MemoryState:
    """Return the state without empty blocks of types that the machine does not have: a kubelet rejects such blocks."""
    types = {type_ for node in ledger.nodes.values() for type_ in node.tables}
    nodes = dict(ledger.nodes)
    blocks_of_containers: dict[str, dict[str, tuple[Block, ...]]] = {}
    for uid, containers in ledger.held.items():
        blocks_of_containers[uid] = {
            name: tuple(block for block in blocks if block.type in types) for name, blocks in containers.items()
        }
        if uid in ledger.pod_held:  # blocks of its containers do not count
            continue
        for block in chain.from_iterable(containers.values()):
            for id_ in bits.members(block.nodes) if block.type not in types else ():
                remaining_assignments = nodes[id_].assignments - 1
                nodes[id_] = nodes[id_]._replace(
                    cells=nodes[id_].cells if remaining_assignments else 1 << id_, assignments=remaining_assignments
                )
    return MemoryState(policy=policy, machine_state=nodes, entries=blocks_of_containers, pod_entries=ledger.pod_held)


def _ids_by_node(ledger: DeviceLedger, resource: str, ids: tuple[str, ...]) -> dict[int, tuple[str, ...]]:
    """Return NUMA node → *ids*; a device that no longer exists has no node."""
    inventory = ledger.inventories.get(resource)
    nodes: dict[int, tuple[str, ...]] = {}
    for id_ in ids:
        device_nodes = (
            inventory.devices[inventory.indexes[id_]].nodes if inventory and id_ in inventory.indexes else None
        )
        for node in bits.members(device_nodes) if device_nodes else (NO_NODE,):
            nodes[node] = (*nodes.get(node, ()), id_)
    return nodes
