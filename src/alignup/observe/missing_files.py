"""Fill in for a state file that is missing: PodResources lists what the running containers hold.

The kubelet creates ``kubelet_internal_checkpoint`` only when a plugin registers. The other two exist unless they were
deleted under a running kubelet, which writes them again at its next change. Resources of init containers that are no
sidecars are not listed, so they are missing here.
"""

from dataclasses import replace

from alignup.align import bits
from alignup.align.cpus.options import CpuPolicy
from alignup.align.host import Host
from alignup.align.memory.provider import MemoryPolicy
from alignup.kubernetes.kubelet_files.state_files import NO_NODE, CpuState, DeviceEntry, DeviceState, MemoryState
from alignup.kubernetes.plugins.pod_resources_client import ListedPod
from alignup.observe.kubelet_sources import Sources


def with_missing_files(sources: Sources, idle: Host) -> Sources:
    """Return *sources* with the missing files made up from PodResources; a file with a problem is not missing."""
    files = sources.files
    if sources.listed is None or files.problems:
        return sources
    uids = {one.name: uid for uid, one in (sources.pods or {}).items()}
    pods = {uids.get((one.namespace, one.name), f"{one.namespace}/{one.name}"): one for one in sources.listed}
    if files.cpu is None and idle.settings.cpus.policy == CpuPolicy.STATIC:
        files = replace(files, cpu=_cpu_state(pods, idle))
    if files.memory is None and idle.settings.memory_policy == MemoryPolicy.STATIC:
        files = replace(files, memory=_memory_state(pods, idle))
    if files.devices is None and (entries := _device_entries(pods)):
        files = replace(files, devices=DeviceState(entries=entries))
    return replace(sources, files=files)


def _cpu_state(pods: dict[str, ListedPod], idle: Host) -> CpuState:
    entries = {
        uid: own
        for uid, pod in pods.items()
        if (own := {name: one.cpus for name, one in pod.containers.items() if one.cpus})
    }
    pod_entries = {uid: pod.cpus for uid, pod in pods.items() if pod.cpus}
    taken = bits.union((*(cpus for own in entries.values() for cpus in own.values()), *pod_entries.values()))
    shared = idle.ledger.cpus.shared & ~taken
    return CpuState(policy=CpuPolicy.STATIC, default=shared, entries=entries, pod_entries=pod_entries)


def _memory_state(pods: dict[str, ListedPod], idle: Host) -> MemoryState:
    ledger = idle.ledger.memory
    for uid, pod in pods.items():
        for name, own in pod.containers.items():
            if own.memory:
                ledger = ledger.give(uid, name, blocks=own.memory)
    pod_entries = {uid: pod.memory for uid, pod in pods.items() if pod.memory}
    return MemoryState(
        policy=MemoryPolicy.STATIC, machine_state=ledger.nodes, entries=ledger.held, pod_entries=pod_entries
    )


def _device_entries(pods: dict[str, ListedPod]) -> tuple[DeviceEntry, ...]:
    entries = []
    for uid, pod in pods.items():
        for name, own in pod.containers.items():
            by_resource: dict[str, dict[int, tuple[str, ...]]] = {}
            for device in own.devices:
                nodes = by_resource.setdefault(device.resource, {})
                for node in bits.members(device.nodes) if device.nodes else (NO_NODE,):
                    nodes[node] = (*nodes.get(node, ()), device.id)
            entries += [
                DeviceEntry(uid=uid, container=name, resource=resource, devices=nodes)
                for resource, nodes in by_resource.items()
            ]
    return tuple(entries)
