"""The observation of one host: its sources joined into one exact :class:`Host`, with pod uids and names in its ledger.

No source has everything. The state files have pod uids and all containers, but neither names nor the topology of free
devices, and they keep entries of dead pods for a while. PodResources has names, devices with topology and only live
pods, but no uids and no init containers. The API server has names, uids and specs, a little later than the kubelet.

The state files are the kubelet's own accounts, so they count. PodResources adds the topology and health of devices, and
fills in for a file that is missing. The API server adds names and specs. Where two sources disagree, the observation
says so; nothing is guessed.

The kubelet changes its files in steps: an admission writes the CPUs in two steps, then the memory in two steps, and
``allocated_pods_state`` last. A snapshot between two steps is *unsettled*. The caller waits for the next step, and
takes an unsettled state as it is only if no step follows.
"""

from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field, replace

from alignup.align import bits
from alignup.align.bits import CpuSet, NodeSet
from alignup.align.claims.resource_claims import Slice
from alignup.align.cpus.options import CpuPolicy
from alignup.align.errors import StateError
from alignup.align.host import Host, Settings
from alignup.align.machine import Device, Machine
from alignup.align.memory.ledger import EMPTY_TABLE, Block
from alignup.align.memory.provider import MemoryPolicy
from alignup.align.workload import Container, Pod, Resources
from alignup.align.workload.names import MARKER, MEMORY
from alignup.kubernetes import configuration as kubelet_configuration
from alignup.kubernetes.api.known_pods import KnownPod
from alignup.kubernetes.configuration import Configuration
from alignup.kubernetes.kubelet_files.allocated_pods import AllocatedPod, AllocatedPods
from alignup.kubernetes.kubelet_files.ledger import GapKind, RestoredLedger, restore_ledger
from alignup.kubernetes.kubelet_files.state_files import (
    NO_NODE,
    CpuState,
    DeviceEntry,
    DeviceState,
    KubeletFiles,
    MemoryState,
)
from alignup.kubernetes.kubelet_files.sub_ids import SubIds
from alignup.kubernetes.plugins.pod_resources import ListedPod, ListedResources
from alignup.machines.plugin_addresses import address_of
from alignup.observe.claim_devices import PlacedDevices, join_claims, place_slices
from alignup.placement.host_report import PodStage

PodName = tuple[str, str]  #: namespace and name


class UnsettledError(StateError):
    """The kubelet is in the middle of a change; its next write completes it."""


class AdmittingError(UnsettledError):
    """The kubelet is admitting a pod; a device plugin may take its time between two containers."""


class ForeignFilesError(StateError):
    """The state files belong to another machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Everything that was read at one moment; ``None``: the source does not exist or does not answer."""

    machine: Machine  #: without devices, which the kubelet's device plugins report
    configuration: Configuration
    files: KubeletFiles
    allocated: AllocatedPods | None = None
    listed: tuple[ListedPod, ...] | None = None
    allocatable: ListedResources | None = None
    pods: Mapping[str, KnownPod] | None = None  #: by uid
    slices: tuple[Slice, ...] | None = None  #: ResourceSlices of this node
    kubelet: str = ""  #: changes when the kubelet restarts
    gaps: tuple[str, ...] = ()  #: why a source is missing, one sentence each
    sub_ids: SubIds = field(default_factory=dict)
    addresses: Mapping[str, str] = field(default_factory=dict)  #: PCI addresses of devices; see ``machines``


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One host as its kubelet counts."""

    host: Host  #: with its ledger; pods without a known name have an empty namespace and their uid as name
    configuration: Configuration
    sub_ids: SubIds = field(default_factory=dict)
    kubelet: str = ""  #: changes when the kubelet restarts
    ended: tuple[str, ...] = ()  #: uids of pods that only the state files still have
    gaps: tuple[str, ...] = ()  #: what no source contains, one sentence each
    contradictions: tuple[str, ...] = ()  #: where sources disagree, one sentence each


class UnchangedParts:
    """What two observations of a host share: its machine, configuration and slices, and most of its pods."""

    def __init__(self) -> None:
        self._pods: dict[str, tuple[Pod, AllocatedPod, Pod]] = {}  #: uid → spec, its allocation, and both joined
        self._settings: tuple[Configuration, Machine, Settings] | None = None
        self._host: Host | None = None
        self._placed: tuple[tuple[Slice, ...], Machine, PlacedDevices] | None = None

    def with_allocations(self, pods: Iterable[tuple[Pod, AllocatedPod | None]]) -> list[Pod]:
        """Return *pods* with the resources that the kubelet counts with, if these are known."""
        earlier, self._pods = self._pods, {}
        joined_pods = []
        for pod, allocated_pod in pods:
            if allocated_pod is not None:
                entry = earlier.get(pod.uid)
                if entry is None or entry[0] is not pod or entry[1] != allocated_pod:
                    entry = pod, allocated_pod, with_allocation(pod, allocated_pod)
                self._pods[pod.uid] = entry
            joined_pods.append(pod if allocated_pod is None else self._pods[pod.uid][2])
        return joined_pods

    def place(self, sources: Sources) -> PlacedDevices | None:
        """Return the devices in the slices of *sources*; ``None`` if these are unknown."""
        slices, machine, entry = sources.slices, sources.machine, self._placed
        if slices is None:
            return None
        if entry is None or entry[0] is not slices or entry[1] is not machine:
            entry = self._placed = slices, machine, place_slices(slices, machine)
        return entry[2]

    def get(self, sources: Sources, devices: tuple[Device, ...]) -> Host:
        """Return a host with the machine of *sources* and *devices*, and an initial ledger."""
        entry = self._settings
        if entry is None or entry[0] is not sources.configuration or entry[1] is not sources.machine:
            settings = kubelet_configuration.host_settings(sources.configuration, sources.machine)
            entry = self._settings = sources.configuration, sources.machine, settings
            self._host = None
        if self._host is None or self._host.machine.devices != devices:
            self._host = Host(sources.machine.with_reported(devices), entry[2])
        return copy(self._host)


def join(sources: Sources, *, settled: bool = True, unchanged_parts: UnchangedParts | None = None) -> Observation:
    """Return the host; ``StateError`` if the files cannot be those of this machine and configuration.

    :class:`UnsettledError` if the kubelet is in the middle of a change; with *settled*, no further write is expected.
    :class:`ConfigurationError` and ``SettingsError`` if the kubelet could not have started.
    """
    # PodResources fills in for missing files; one with a problem is not missing.
    listed_pods = (
        None if sources.listed is None or sources.files.problems else _listed_by_uid(sources.listed, sources.pods)
    )
    if listed_pods and sources.files.devices is None:
        sources = replace(sources, files=replace(sources.files, devices=_device_state(listed_pods)))
    devices = join_devices(sources)
    unchanged_parts = unchanged_parts or UnchangedParts()
    host = unchanged_parts.get(sources, with_addresses(devices.devices, sources))
    if listed_pods is not None:
        sources = replace(sources, files=_with_missing_files(sources.files, listed_pods, host))
    check_files(sources.machine, sources.files)
    holders = holdings(sources.files)
    pods = find_live_pods(sources, holders)
    if not settled:
        _check_settled(sources, pods, holders)
    files = replace(sources.files, devices=devices.state)
    allocated_pods = sources.allocated or {}
    specs = [pod for uid in pods.alive if (pod := _pod(sources, pods, holders, uid)) is not None]
    pods_to_restore = unchanged_parts.with_allocations((pod, allocated_pods.get(pod.uid)) for pod in specs)
    restored_ledger = _restore(host, files, pods_to_restore, settled=settled)
    named_pods = dict(restored_ledger.ledger.pods)
    for uid, name in pods.alive.items():
        if name is not None and not named_pods[uid].pod.namespace:  # only its holdings were known
            named_pods[uid] = named_pods[uid]._replace(
                pod=replace(named_pods[uid].pod, namespace=name[0], name=name[1])
            )
    live = {uid: pod for uid, pod in pods.listed.items() if uid in pods.alive}
    claims = join_claims(unchanged_parts.place(sources), live, pods.unmatched, pods_to_restore)
    host.ledger = replace(restored_ledger.ledger, pods=named_pods, claims=claims.ledger)
    for uid in pods.ended:
        host.release(uid)
    gaps = [gap.text for gap in restored_ledger.gaps if gap.kind not in (GapKind.PODS, GapKind.UNLISTED_PODS)]
    unnamed_pods = [f"the name of pod {uid} is unknown" for uid, name in pods.alive.items() if name is None]
    return Observation(
        host=host,
        configuration=sources.configuration,
        sub_ids=sources.sub_ids,
        kubelet=sources.kubelet,
        ended=pods.ended,
        gaps=(*sources.gaps, *gaps, *unnamed_pods, *claims.gaps),
        contradictions=(
            *pods.notes,
            *devices.notes,
            *_disagreements(sources, pods, holders, host),
            *claims.contradictions,
        ),
    )


def check_files(machine: Machine, files: KubeletFiles) -> None:
    """:class:`ForeignFilesError` if the state files have other CPUs or NUMA nodes than *machine*."""
    view = machine.kubelet_view()
    if files.cpu is not None and files.cpu.policy == CpuPolicy.STATIC:
        stored_cpus = files.cpu.default | bits.union(
            cpus for containers in files.cpu.entries.values() for cpus in containers.values()
        )
        if unknown_cpus := stored_cpus & ~view.all_cpus:
            raise ForeignFilesError(
                f"cpu_manager_state has CPUs {bits.show(unknown_cpus)}, which this machine does not have"
            )
    if files.memory is not None and files.memory.policy == MemoryPolicy.STATIC:
        nodes = {node.id: node.memory for node in view.nodes}
        stored_sizes = {
            id_: node.tables.get(MEMORY, EMPTY_TABLE).total for id_, node in files.memory.machine_state.items()
        }
        if stored_sizes.keys() != nodes.keys():
            have, want = (bits.show(bits.of(ids)) for ids in (stored_sizes, (id_ for id_ in nodes if id_ >= 0)))
            raise ForeignFilesError(f"memory_manager_state has NUMA nodes {have}, but this machine has {want}")
        for id_, size in stored_sizes.items():
            if nodes[id_] is not None and nodes[id_] != size:
                raise ForeignFilesError(
                    f"memory_manager_state has {size} bytes on NUMA node {id_}, but this machine has {nodes[id_]}"
                )


def _check_settled(sources: Sources, pods: "LivePods", holders: "Holdings") -> None:
    """Raise :class:`UnsettledError` if the kubelet has listed a pod, but not admitted it yet."""
    for pod in pods.newcomers:
        raise UnsettledError(f"pod {pod.namespace}/{pod.name} is not in the state files yet")
    for uid, name in pods.alive.items():
        server_pod = (sources.pods or {}).get(uid)
        if sources.allocated is not None:
            is_admitted = uid in sources.allocated
        else:  # an older kubelet, or one that has never admitted a pod
            is_admitted = uid in holders or server_pod is None or server_pod.reported
        if not is_admitted:
            raise AdmittingError(f"pod {'/'.join(name) if name else uid} is being admitted")


def _restore(host: Host, files: KubeletFiles, pods: list[Pod], *, settled: bool) -> RestoredLedger:
    try:
        return restore_ledger(host, files, pods)
    except StateError as error:
        if not settled and not files.problems:
            raise UnsettledError(str(error)) from error
    return restore_ledger(host, files, pods, running=True)


def _pod(sources: Sources, pods: "LivePods", holders: "Holdings", uid: str) -> Pod | None:
    """Return a live pod; ``None`` if only its holdings are known."""
    server_pod = (sources.pods or {}).get(uid)
    allocated_pod = (sources.allocated or {}).get(uid)
    if server_pod is not None:
        pod = server_pod.pod
        extra = holders.get(uid, {}).keys() - {container.name for container in pod.all_containers}
        if extra:  # only a pod with another spec, under the same uid, could lead here
            raise StateError(f"pod {uid} has no container {', '.join(sorted(extra))}, but the state files do")
        return pod
    if allocated_pod is None:
        return None
    namespace, name = pods.alive[uid] or ("", uid)
    names = dict.fromkeys((*allocated_pod.containers, *holders.get(uid, {})))
    return Pod(name=name, namespace=namespace, uid=uid, containers=tuple(map(Container, names)))


def with_allocation(pod: Pod, allocated_pod: AllocatedPod) -> Pod:
    """Return *pod* with the resources that the kubelet counts with, which differ from its spec while it is resized."""

    def resized(container: Container) -> Container:
        resources = allocated_pod.containers.get(container.name)
        return container if resources is None else replace(container, resources=merged(container.resources, resources))

    def merged(spec: Resources, resources: Resources) -> Resources:
        return replace(spec, requests=resources.requests, limits=resources.limits)

    return replace(
        pod,
        init=tuple(map(resized, pod.init)),
        containers=tuple(map(resized, pod.containers)),
        resources=merged(pod.resources, allocated_pod.resources)
        if allocated_pod.resources != Resources()
        else pod.resources,
        statuses={},
        resize_infeasible=False,
    )


def _disagreements(sources: Sources, pods: "LivePods", holders: "Holdings", host: Host) -> Iterator[str]:
    """Yield where PodResources disagrees with the state files, and what it can allocate with the configuration."""
    for uid, listed_pod in pods.listed.items():
        if uid in pods.alive:
            yield from _container_disagreements(listed_pod, uid, sources.files, holders)
    allocatable = sources.allocatable
    if allocatable is None:
        return
    if host.settings.cpus.policy == CpuPolicy.STATIC:
        expected_cpus = host.view.all_cpus & ~host.ledger.cpus.reserved
        if allocatable.cpus != expected_cpus:
            have, want = bits.show(allocatable.cpus), bits.show(expected_cpus)
            yield f"the kubelet allocates CPUs {have}, but by its configuration it would allocate {want}"
    if host.ledger.memory.nodes:
        expected_memory = _sizes(host.ledger.memory.allocatable())
        if (memory := _sizes(allocatable.memory)) != expected_memory:
            different = min({*memory.items()} ^ {*expected_memory.items()})[0]
            area = f"{different[1]} of NUMA node {bits.show(different[0])}"
            yield (
                f"the kubelet allocates {memory.get(different, 0)} bytes of {area}, "
                f"but by its files {expected_memory.get(different, 0)}"
            )


def _container_disagreements(
    listed_pod: ListedPod, uid: str, files: KubeletFiles, holders: "Holdings"
) -> Iterator[str]:
    for name, container in listed_pod.containers.items():
        container_holdings = holders.get(uid, {}).get(name, ContainerHoldings())
        owner = f"pod {listed_pod.namespace}/{listed_pod.name} container {name}"
        other_cpus = not container_holdings.lists_cpus(container.cpus, listed_pod.cpus)
        if files.cpu is not None and files.cpu.policy == CpuPolicy.STATIC and other_cpus:
            have, want = bits.show(container.cpus) or "none", bits.show(container_holdings.cpus) or "none"
            yield f"{owner} holds CPUs {have}, but {want} in the state file"
        in_pod = files.memory is not None and uid in files.memory.pod_entries and not container.memory
        other_memory = not in_pod and _sizes(container.memory) != _sizes(container_holdings.memory)
        if files.memory is not None and files.memory.policy == MemoryPolicy.STATIC and other_memory:
            yield f"{owner} holds other memory than in the state file"
        if device_ids(container) != container_holdings.devices:
            yield f"{owner} holds other devices than in the state file"


def _sizes(blocks: Iterable[Block]) -> Mapping[tuple[NodeSet, str], int]:
    sizes: dict[tuple[NodeSet, str], int] = {}
    for block in blocks:
        if block.size:
            sizes[block.nodes, block.type] = sizes.get((block.nodes, block.type), 0) + block.size
    return sizes


# Which pods of the state files are alive, and what they are called. A pod that has ended stays in the state files until
# the kubelet admits the next pod; that admission frees it first. So its entries must not count. But an entry is only
# left out on evidence: the kubelet no longer lists the pod, and the API server agrees. A kubelet that has just started
# lists no pods yet, while all of them run.


@dataclass(slots=True)
class ContainerHoldings:
    """What the state files say that one container holds."""

    cpus: CpuSet = 0
    memory: tuple[Block, ...] = ()
    devices: dict[str, frozenset[str]] = field(default_factory=dict)  #: by resource
    pod_cpus: CpuSet = 0  #: of its pod as a whole

    def lists_cpus(self, cpus: CpuSet, pod_cpus: CpuSet) -> bool:
        """Return whether PodResources lists *cpus*: none for a container that shares the CPUs of its pod."""
        return cpus == self.cpus or (not cpus and self.pod_cpus != 0 and pod_cpus in (0, self.pod_cpus))


Holdings = dict[str, dict[str, ContainerHoldings]]  #: pod uid → container


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePods:
    alive: Mapping[str, PodName | None]  #: by uid; ``None``: its name is unknown
    ended: tuple[str, ...]  #: uids that only the state files still have
    listed: Mapping[str, ListedPod]  #: by uid
    newcomers: tuple[ListedPod, ...]  #: listed by the kubelet, but not in its files
    unmatched: tuple[ListedPod, ...]  #: listed by the kubelet, but of unknown uid; newcomers are among them
    notes: tuple[str, ...]  #: where the sources disagree


def holdings(files: KubeletFiles) -> Holdings:
    """Collect what the state files have for each container."""
    holders: Holdings = {}

    def container(uid: str, name: str) -> ContainerHoldings:
        return holders.setdefault(uid, {}).setdefault(name, ContainerHoldings())

    for uid, cpus_by_container in files.cpu.entries.items() if files.cpu else ():
        for name, cpus in cpus_by_container.items():
            container(uid, name).cpus = cpus
            container(uid, name).pod_cpus = files.cpu.pod_entries.get(uid, 0) if files.cpu else 0
    for uid, blocks_by_container in files.memory.entries.items() if files.memory else ():
        for name, blocks in blocks_by_container.items():
            container(uid, name).memory = blocks
    for entry in files.devices.entries if files.devices else ():
        container(entry.uid, entry.container).devices[entry.resource] = frozenset(entry.nodes)
    return holders


def find_live_pods(sources: Sources, holders: Holdings) -> LivePods:
    pods_of_server = sources.pods or {}
    admitted_uids = [*dict.fromkeys((*(sources.allocated or ()), *holders))]
    if sources.allocated is None:  # an older kubelet: every pod that it lists was admitted
        names = {(pod.namespace, pod.name) for pod in sources.listed or ()}
        admitted_uids += [uid for uid, pod in pods_of_server.items() if uid not in holders and pod.name in names]
    entries, rest = _match(admitted_uids, pods_of_server, holders, sources.listed or ())
    uids = [uid for uid in admitted_uids if uid in pods_of_server and pods_of_server[uid].stage is PodStage.RUNNING]
    credible = sources.listed is not None and all(uid in entries for uid in uids)
    alive: dict[str, PodName | None] = {}
    ended_uids, notes = [], []
    for uid in admitted_uids:
        name = pods_of_server[uid].name if uid in pods_of_server else None
        if uid in entries:
            name = (entries[uid].namespace, entries[uid].name)
        if _has_ended(pods_of_server.get(uid), listed=uid in entries, credible=credible and sources.pods is not None):
            ended_uids.append(uid)
            continue
        alive[uid] = name
        if sources.listed is not None and uid not in entries:
            pod_name = "/".join(name) if name else uid
            notes.append(f"pod {pod_name} is in the kubelet's files, but PodResources does not list it")
    newcomers = tuple(pod for pod in rest if _holds_something(pod))
    notes += [f"pod {pod.namespace}/{pod.name} holds resources, but is not in the state files" for pod in newcomers]
    return LivePods(
        alive=alive,
        ended=tuple(ended_uids),
        listed=entries,
        newcomers=newcomers,
        unmatched=tuple(rest),
        notes=tuple(notes),
    )


def _has_ended(pod: KnownPod | None, *, listed: bool, credible: bool) -> bool:
    """Return whether the kubelet frees the resources of the pod before it admits the next pod."""
    if pod is not None and pod.finished:
        return True  # older kubelets list pods whose end they have reported
    if listed or not credible:
        return False
    return pod is None or pod.stage is not PodStage.RUNNING


def _match(
    uids: Iterable[str], pods: Mapping[str, KnownPod], holders: Holdings, listed_pods: Iterable[ListedPod]
) -> tuple[dict[str, ListedPod], list[ListedPod]]:
    """Match uids with listed pods, by name and then by what they hold; also return the listed pods without a uid."""
    unmatched_pods = list(listed_pods)
    entries: dict[str, ListedPod] = {}

    def take(uid: str, candidates: list[ListedPod]) -> None:
        entries[uid] = candidates[0]
        unmatched_pods.remove(candidates[0])
        by_name[candidates[0].namespace, candidates[0].name].remove(candidates[0])

    known_uids = [uid for uid in uids if uid in pods]
    by_name: dict[PodName, list[ListedPod]] = {}
    for pod in listed_pods:
        by_name.setdefault((pod.namespace, pod.name), []).append(pod)
    for exact in (True, False):  # two pods can have one name, if the first was force-deleted
        for uid in known_uids:
            candidates = by_name.get(pods[uid].name, [])
            if exact:
                candidates = [pod for pod in candidates if _agrees(pod, holders.get(uid, {}))]
            if uid not in entries and candidates:
                take(uid, candidates)
    for uid in uids:
        if uid in entries or uid in pods:
            continue
        candidates = [pod for pod in unmatched_pods if _holds_something(pod) and _agrees(pod, holders.get(uid, {}))]
        if len(candidates) == 1:
            take(uid, candidates)
    return entries, unmatched_pods


def _agrees(listed_pod: ListedPod, containers: Mapping[str, ContainerHoldings]) -> bool:
    nothing = ContainerHoldings()
    return all(
        container_holdings.lists_cpus(container.cpus, listed_pod.cpus)
        and device_ids(container) == container_holdings.devices
        for name, container in listed_pod.containers.items()
        for container_holdings in (containers.get(name, nothing),)
    )


def device_ids(container: ListedResources) -> dict[str, frozenset[str]]:
    ids_by_resource: dict[str, set[str]] = {}
    for device in container.devices:
        ids_by_resource.setdefault(device.resource, set()).add(device.id)
    return {resource: frozenset(ids) for resource, ids in ids_by_resource.items()}


def _holds_something(listed_pod: ListedPod) -> bool:
    parts = (container.cpus or container.memory or container.devices for container in listed_pod.containers.values())
    return bool(listed_pod.cpus or listed_pod.memory or any(parts))


# The devices of a host: their topology and health from PodResources, and who holds them from the state file.
# PodResources lists the healthy devices. The file has devices that were healthy when it was written, maybe before the
# kubelet was restarted. A device that only the file has cannot be allocated before its plugin registers again.


@dataclass(frozen=True, slots=True)
class JoinedDevices:
    devices: tuple[Device, ...]
    state: DeviceState | None  #: with the devices that are healthy now
    notes: tuple[str, ...] = ()  #: where the sources disagree


def join_devices(sources: Sources) -> JoinedDevices:
    state, allocatable = sources.files.devices, sources.allocatable
    devices: dict[tuple[str, str], Device] = {  # by resource and id
        (device.resource, device.id): replace(device, healthy=allocatable is None)
        for pod in sources.listed or ()
        for container in pod.containers.values()
        for device in container.devices
    }
    healthy = {(device.resource, device.id): device for device in (allocatable.devices if allocatable else ())}
    if state is None or allocatable is None:
        return JoinedDevices(tuple({**devices, **healthy}.values()), state)
    for entry in state.entries:  # also of containers that PodResources does not list, such as init containers
        for id_, ids in entry.nodes.items():
            nodes = bits.of(node for node in ids if 0 <= node < bits.MAX_MEMBER) or None
            devices.setdefault((entry.resource, id_), Device(entry.resource, id_, nodes, healthy=False))
    ready: dict[str, list[str]] = {resource: [] for resource in state.registered}
    for resource, id_ in healthy:
        ready.setdefault(resource, []).append(id_)
    notes = []
    for resource, registered_ids in state.registered.items():
        missing_ids = sorted({*(registered_ids or ())} - {*ready[resource]})
        for id_ in missing_ids:
            devices.setdefault((resource, id_), Device(resource, id_, None, healthy=False))
        if missing_ids and ready[resource]:
            notes.append(
                f"devices {', '.join(missing_ids)} of {resource} are registered, but PodResources does not list them"
            )
        elif missing_ids:
            notes.append(f"the device plugin of {resource} has stopped, or has not registered with this kubelet yet")
    registered_now = {resource: tuple(ids) for resource, ids in ready.items()}
    return JoinedDevices(
        tuple({**devices, **healthy}.values()), replace(state, registered=registered_now), tuple(notes)
    )


def with_addresses(devices: tuple[Device, ...], sources: Sources) -> tuple[Device, ...]:
    """Return *devices* with the addresses of their PCI devices, where these are certain."""
    pci = sources.machine.locality.pci
    addresses = [
        "" if device.resource == MARKER else address_of(sources.addresses, device.resource, device.id)
        for device in (devices if pci else ())
    ]
    if not any(address in pci for address in addresses):
        return devices
    return tuple(
        replace(device, address=address) if address in pci else device
        for device, address in zip(devices, addresses, strict=True)
    )


# State files that are missing: PodResources lists what the running containers hold, except for init containers that are
# no sidecars. The kubelet creates the file of devices only when a plugin registers. The other two exist unless they
# were deleted under a running kubelet, which writes them again at its next change.


def _listed_by_uid(listed_pods: Iterable[ListedPod], pods: Mapping[str, KnownPod] | None) -> dict[str, ListedPod]:
    """Return the listed pods by uid, or by name if the uid is unknown."""
    uids = {pod.name: uid for uid, pod in (pods or {}).items()}
    return {uids.get((pod.namespace, pod.name), f"{pod.namespace}/{pod.name}"): pod for pod in listed_pods}


def _device_state(pods: Mapping[str, ListedPod]) -> DeviceState | None:
    entries = []
    for uid, pod in pods.items():
        for name, container in pod.containers.items():
            by_resource: dict[str, dict[int, tuple[str, ...]]] = {}
            for device in container.devices:
                ids_by_node = by_resource.setdefault(device.resource, {})
                for node in bits.members(device.nodes) if device.nodes else (NO_NODE,):
                    ids_by_node[node] = (*ids_by_node.get(node, ()), device.id)
            entries += [
                DeviceEntry(uid=uid, container=name, resource=resource, devices=ids_by_node)
                for resource, ids_by_node in by_resource.items()
            ]
    return DeviceState(entries=tuple(entries)) if entries else None


def _with_missing_files(files: KubeletFiles, pods: Mapping[str, ListedPod], idle: Host) -> KubeletFiles:
    """Return *files* with the missing files of the CPU manager and the memory manager, made of what *pods* hold."""
    pod_cpus = {uid: pod.cpus for uid, pod in pods.items() if pod.cpus}
    pod_memory = {uid: pod.memory for uid, pod in pods.items() if pod.memory}
    cpus, memory = {}, idle.ledger.memory
    for uid, pod in pods.items():
        if exclusive := {name: container.cpus for name, container in pod.containers.items() if container.cpus}:
            cpus[uid] = exclusive
    if files.cpu is None and idle.settings.cpus.policy == CpuPolicy.STATIC:
        in_use = (container_cpus for containers in cpus.values() for container_cpus in containers.values())
        shared_cpus = idle.ledger.cpus.shared & ~bits.union((*in_use, *pod_cpus.values()))
        state = CpuState(policy=CpuPolicy.STATIC, default=shared_cpus, entries=cpus, pod_entries=pod_cpus)
        files = replace(files, cpu=state)
    if files.memory is None and idle.settings.memory_policy == MemoryPolicy.STATIC:
        for uid, pod in pods.items():
            for name, container in pod.containers.items():
                if container.memory:
                    memory = memory.give(uid, name, blocks=container.memory)
        blocks = MemoryState(
            policy=MemoryPolicy.STATIC, machine_state=memory.nodes, entries=memory.held, pod_entries=pod_memory
        )
        files = replace(files, memory=blocks)
    return files
