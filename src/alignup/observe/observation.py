"""Join the sources of one host into one exact :class:`Host`: machine, settings, and ledger with pod uids and names.

The state files are the kubelet's own accounts, so they count. PodResources adds the topology and health of devices, and
fills in for a file that is missing. The API server adds names and specs. Where two sources disagree, the observation
says so; nothing is guessed.

The kubelet changes its files in steps: an admission writes the CPUs in two steps, then the memory in two steps, and
``allocated_pods_state`` last. A snapshot between two steps is *unsettled*. The caller waits for the next step, and
takes an unsettled state as it is only if no step follows.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.cpus.options import CpuPolicy
from alignup.align.errors import StateError
from alignup.align.host import Host
from alignup.align.ledger import Ledger
from alignup.align.machine import Machine
from alignup.align.memory.ledger import EMPTY_TABLE, Block
from alignup.align.memory.provider import MemoryPolicy
from alignup.align.workload import Container, Pod
from alignup.align.workload.names import MEMORY
from alignup.kubernetes import configuration as kubelet_configuration
from alignup.kubernetes.configuration import Configuration
from alignup.kubernetes.kubelet_files.ledger import GapKind, RestoredLedger, restore_ledger
from alignup.kubernetes.kubelet_files.state_files import KubeletFiles
from alignup.kubernetes.plugins.pod_resources_client import ListedPod
from alignup.observe.kubelet_sources import Sources, with_allocation
from alignup.observe.live_pods import Holdings, LivePods, device_ids, find_live_pods, holdings
from alignup.observe.missing_files import with_missing_files
from alignup.observe.observed_devices import join_devices


class UnsettledError(StateError):
    """The kubelet is in the middle of a change; its next write completes it."""


class AdmittingError(UnsettledError):
    """The kubelet is admitting a pod; a device plugin may take its time between two containers."""


class ForeignFilesError(StateError):
    """The state files are those of another machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One host as its kubelet counts."""

    host: Host  #: with its ledger; pods without a known name have an empty namespace and their uid as name
    configuration: Configuration
    kubelet: str = ""  #: changes when the kubelet restarts
    ended: tuple[str, ...] = ()  #: uids of pods that only the state files still have
    gaps: tuple[str, ...] = ()  #: what no source contains, one sentence each
    contradictions: tuple[str, ...] = ()  #: where sources disagree, one sentence each


def join(sources: Sources, *, settled: bool = True) -> Observation:
    """Return the host; ``StateError`` if the files cannot be those of this machine and configuration.

    :class:`UnsettledError` if the kubelet is in the middle of a change; with *settled*, no further write is expected.
    :class:`ConfigurationError` and ``SettingsError`` if the kubelet could not have started.
    """
    settings = kubelet_configuration.host_settings(sources.configuration, sources.machine)
    idle = Host(replace(sources.machine, devices=()), settings)
    sources = with_missing_files(sources, idle)
    check_files(sources.machine, sources.files)
    held = holdings(sources)
    pods = find_live_pods(sources, held)
    if not settled:
        _check_settled(sources, pods, held)
    joined = join_devices(sources)
    machine = replace(sources.machine, devices=joined.devices)
    host = Host(machine, settings)
    files = replace(sources.files, devices=joined.state)
    known = [pod for uid in pods.alive if (pod := _pod(sources, pods, held, uid)) is not None]
    restored = _restore(host, files, known, settled=settled)
    host = Host(machine, settings, ledger=_with_names(restored.ledger, pods))
    for uid in pods.ended:
        host.release(uid)
    return Observation(
        host=host,
        configuration=sources.configuration,
        kubelet=sources.kubelet,
        ended=pods.ended,
        gaps=(*sources.gaps, *_gaps(restored, pods)),
        contradictions=(*pods.notes, *joined.notes, *_disagreements(sources, pods, held, host)),
    )


def check_files(machine: Machine, files: KubeletFiles) -> None:
    """:class:`ForeignFilesError` if the state files have other CPUs or NUMA nodes than *machine*."""
    view = machine.kubelet_view()
    if files.cpu is not None and files.cpu.policy == CpuPolicy.STATIC:
        listed = files.cpu.default | bits.union(
            cpus for containers in files.cpu.entries.values() for cpus in containers.values()
        )
        if unknown := listed & ~view.all_cpus:
            raise ForeignFilesError(
                f"cpu_manager_state has CPUs {bits.show(unknown)}, which this machine does not have"
            )
    if files.memory is not None and files.memory.policy == MemoryPolicy.STATIC:
        nodes = {node.id: node.memory for node in view.nodes}
        stored = {id_: node.tables.get(MEMORY, EMPTY_TABLE).total for id_, node in files.memory.machine_state.items()}
        if stored.keys() != nodes.keys():
            have, want = (bits.show(bits.of(one)) for one in (stored, (id_ for id_ in nodes if id_ >= 0)))
            raise ForeignFilesError(f"memory_manager_state has NUMA nodes {have}, but this machine has {want}")
        for id_, size in stored.items():
            if nodes[id_] is not None and nodes[id_] != size:
                raise ForeignFilesError(
                    f"memory_manager_state has {size} bytes on NUMA node {id_}, but this machine has {nodes[id_]}"
                )


def _check_settled(sources: Sources, pods: LivePods, held: Holdings) -> None:
    for one in pods.newcomers:
        raise UnsettledError(f"pod {one.namespace}/{one.name} is not in the state files yet")
    for uid, name in pods.alive.items():
        if not _is_admitted(sources, held, uid):
            raise AdmittingError(f"pod {'/'.join(name) if name else uid} is being admitted")


def _is_admitted(sources: Sources, held: Holdings, uid: str) -> bool:
    """Whether the kubelet has admitted a pod; it lists a pod before."""
    if sources.allocated is not None:
        return uid in sources.allocated
    # An older kubelet, or one that has never admitted a pod.
    known = (sources.pods or {}).get(uid)
    return uid in held or known is None or known.reported


def _restore(host: Host, files: KubeletFiles, pods: list[Pod], *, settled: bool) -> RestoredLedger:
    try:
        return restore_ledger(host, files, pods)
    except StateError as error:
        if not settled and not files.problems:
            raise UnsettledError(str(error)) from error
    return restore_ledger(host, files, pods, running=True)


def _pod(sources: Sources, pods: LivePods, held: Holdings, uid: str) -> Pod | None:
    """Return a live pod with the resources that the kubelet counts with; ``None`` if only its holdings are known."""
    known = (sources.pods or {}).get(uid)
    allocated = (sources.allocated or {}).get(uid)
    if known is not None:
        pod = known.pod
        missing = held.get(uid, {}).keys() - {one.name for one in pod.all_containers}
        if missing:  # only a pod with another spec, under the same uid, could lead here
            raise StateError(f"pod {uid} has no container {', '.join(sorted(missing))}, but the state files do")
        return pod if allocated is None else with_allocation(pod, allocated)
    if allocated is None:
        return None
    namespace, name = pods.alive[uid] or ("", uid)
    names = dict.fromkeys((*allocated.containers, *held.get(uid, {})))
    pod = Pod(name=name, namespace=namespace, uid=uid, containers=tuple(map(Container, names)))
    return with_allocation(pod, allocated)


def _with_names(ledger: Ledger, pods: LivePods) -> Ledger:
    """Return *ledger* with the names of pods of which only the holdings are known."""
    named = dict(ledger.pods)
    for uid, name in pods.alive.items():
        if name is not None and not named[uid].pod.namespace:
            named[uid] = named[uid]._replace(pod=replace(named[uid].pod, namespace=name[0], name=name[1]))
    return replace(ledger, pods=named)


def _gaps(restored: RestoredLedger, pods: LivePods) -> Iterator[str]:
    yield from (gap.text for gap in restored.gaps if gap.kind not in (GapKind.PODS, GapKind.UNLISTED_PODS))
    for uid, name in pods.alive.items():
        if name is None:
            yield f"the name of pod {uid} is unknown"


def _disagreements(sources: Sources, pods: LivePods, held: Holdings, host: Host) -> Iterator[str]:
    """Compare what PodResources lists with the state files, and what it can allocate with the configuration."""
    for uid, listed in pods.listed.items():
        if uid in pods.alive:
            yield from _container_disagreements(listed, uid, sources.files, held)
    allocatable = sources.allocatable
    if allocatable is None:
        return
    if host.settings.cpus.policy == CpuPolicy.STATIC:
        expected = host.view.all_cpus & ~host.ledger.cpus.reserved
        if allocatable.cpus != expected:
            have, want = bits.show(allocatable.cpus), bits.show(expected)
            yield f"the kubelet allocates CPUs {have}, but by its configuration it would allocate {want}"
    if host.ledger.memory.nodes:
        expected_memory = _sizes(host.ledger.memory.allocatable())
        if (found := _sizes(allocatable.memory)) != expected_memory:
            different = min({*found.items()} ^ {*expected_memory.items()})[0]
            where = f"{different[1]} of NUMA node {bits.show(different[0])}"
            yield (
                f"the kubelet allocates {found.get(different, 0)} bytes of {where}, "
                f"but by its files {expected_memory.get(different, 0)}"
            )


def _container_disagreements(listed: ListedPod, uid: str, files: KubeletFiles, held: Holdings) -> Iterator[str]:
    for name, own in listed.containers.items():
        stored = held.get(uid, {}).get(name)
        owner = f"pod {listed.namespace}/{listed.name} container {name}"
        cpus = stored.cpus if stored else 0
        if files.cpu is not None and files.cpu.policy == CpuPolicy.STATIC and own.cpus != cpus:
            have, want = (bits.show(one) or "none" for one in (own.cpus, cpus))
            yield f"{owner} holds CPUs {have}, but {want} in the state file"
        memory = _sizes(stored.memory if stored else ())
        if files.memory is not None and files.memory.policy == MemoryPolicy.STATIC and _sizes(own.memory) != memory:
            yield f"{owner} holds other memory than in the state file"
        if device_ids(own) != (stored.devices if stored else {}):
            yield f"{owner} holds other devices than in the state file"


def _sizes(blocks: Iterable[Block]) -> Mapping[tuple[NodeSet, str], int]:
    found: dict[tuple[NodeSet, str], int] = {}
    for block in blocks:
        if block.size:
            found[block.nodes, block.type] = found.get((block.nodes, block.type), 0) + block.size
    return found
