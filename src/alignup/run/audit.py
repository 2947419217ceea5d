"""The audit of a user's runs: compare the intended with the actual placement, and restore what drifted.

A thread that uses fewer CPUs than it was given is fine, and many programs do so on purpose: only a thread that may run
elsewhere has drifted. Of a process's memory, only private pages count, and only above a size that the kernel allocates
anyway.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.errors import EnforceError
from alignup.machines import discover
from alignup.run import cgroup, process, registry
from alignup.run.registry import RunProcesses
from alignup.run.request import CONTAINER, GPU, RunRecord
from alignup.store.state_store import StateStore
from alignup.web.agent_client import AgentClient

DeviceTopology = Mapping[tuple[str, str], NodeSet | None]  #: (resource, id) → NUMA nodes of every current device

PAGE_TOLERANCE = 1 << 20  #: bytes on other NUMA nodes that do not count as drift


class DriftKind(StrEnum):
    GROUP = "group"  #: the cgroup is gone, or has another cpuset
    MEMBER = "member"  #: a process is not in the cgroup of its run
    CPUS = "cpus"  #: a thread may run elsewhere
    MEMORY = "memory"  #: a thread may allocate memory elsewhere
    PAGES = "pages"  #: a process has memory elsewhere
    DEVICE = "device"  #: a device is gone, or near other NUMA nodes
    DECISION = "decision"  #: the ledger or the agent has no decision for it, or another one


class Drift(NamedTuple):
    run: str  #: its uid
    name: str
    kind: DriftKind
    where: str
    intended: str
    actual: str

    @property
    def key(self) -> tuple[str, DriftKind, str]:
        """The identity of the drift, independent of the intended and actual values."""
        return self.run, self.kind, self.where

    def __str__(self) -> str:
        return f"{self.name}: {self.where}: intended {self.intended}, actual {self.actual}"


class AuditReport(NamedTuple):
    runs: tuple[RunProcesses, ...]
    drifts: tuple[Drift, ...]
    fixed: tuple[Drift, ...] = ()
    failures: tuple[str, ...] = ()  #: why something was not fixed


def audit(directory: Path, *, agent: AgentClient | None, fix: bool) -> AuditReport:
    """Compare the runs in *directory* with what was intended; with *fix* restore them."""
    if fix:
        registry.remove_finished_runs(directory)
    first = _audit_once(directory, agent)
    if not fix or not first.drifts:
        return first
    run_names = {drift.run for drift in first.drifts}
    with registry.RunRegistry(directory).locked():
        runs = [run for run in first.runs if run.record.uid in run_names]
        failures = [failure for run in runs for failure in restore_run(run)]
    second = _audit_once(directory, agent)
    remaining_keys = {drift.key for drift in second.drifts}
    fixed_drifts = tuple(drift for drift in first.drifts if drift.key not in remaining_keys)
    return second._replace(fixed=fixed_drifts, failures=tuple(failures))


def _audit_once(directory: Path, agent: AgentClient | None) -> AuditReport:
    runs = registry.active_runs(directory)
    local = [run for run in runs if not run.record.agent]
    remote = [run for run in runs if run.record.agent]
    drifts = (
        *audit_runs(local, devices=_current_devices(local)),
        *_compare_with_ledger([run.record for run in local], directory),
        *audit_runs(remote),
        *_compare_with_agent([run.record for run in remote], agent),
    )
    return AuditReport(runs, drifts)


def _compare_with_ledger(records: Sequence[RunRecord], directory: Path) -> Iterator[Drift]:
    if not any(record.exclusive for record in records):
        return
    with registry.RunRegistry(directory).locked():
        stored_state = StateStore(directory).load()
    pods = stored_state.pods if stored_state else ()
    cpus_by_uid = {pod.entry.pod.uid: pod.entry.cpus.containers.get(CONTAINER, "") for pod in pods}
    for record in records:
        if record.exclusive:
            yield from _compare_cpus(record, cpus_by_uid.get(record.uid), source="the ledger")


def _compare_with_agent(records: Sequence[RunRecord], agent: AgentClient | None) -> Iterator[Drift]:
    for record in records:
        if agent is None or agent.address != record.agent:
            yield from _compare_cpus(record, None, source=f"the agent at {record.agent}", absence="no answer")
            continue
        pod = agent.pod(record.uid)
        placements = pod["placements"] if pod else ()
        if record.exclusive or not placements:
            cpus = placements[0]["given"].get("cpu", {}).get("cpu") if placements else None
            yield from _compare_cpus(record, cpus, source="the agent")


def _compare_cpus(record: RunRecord, cpus: str | None, *, source: str, absence: str = "no such run") -> Iterator[Drift]:
    if cpus is None or bits.parse(cpus) != record.cpus:
        intended_cpus, actual = f"CPUs {bits.show(record.cpus)}", absence if cpus is None else f"CPUs {cpus}"
        yield Drift(record.uid, record.name, DriftKind.DECISION, source, intended_cpus, actual)


def _current_devices(runs: Sequence[RunProcesses]) -> DeviceTopology | None:
    """Return the GPUs that discovery finds, and other devices as they were declared; ``None`` when no run has a GPU."""
    if not any(GPU in run.record.devices for run in runs):
        return None
    devices = {(device.resource, device.id): device.nodes for device in discover().devices}
    for run in runs:
        for resource, ids in run.record.devices.items():
            if resource != GPU:
                devices |= {(resource, id_): nodes for id_, nodes in ids.items()}
    return devices


def audit_runs(runs: Iterable[RunProcesses], *, devices: DeviceTopology | None = None) -> Iterator[Drift]:
    """Yield everything that has drifted; devices are compared if *devices* are given."""
    for record, pids in runs:
        members: tuple[int, ...] | None = None
        if record.cgroup is not None:
            yield from _cgroup_drift(record, record.cgroup)
            members = cgroup.members(record.cgroup)
        for pid in pids:
            if members is not None and pid not in members:
                target = f"in {record.cgroup}"
                yield Drift(record.uid, record.name, DriftKind.MEMBER, f"process {pid}", target, "not in it")
            yield from _thread_drift(record, pid)
            if misplaced_bytes := _misplaced_bytes(pid, record.memory):
                actual = ", ".join(f"{size >> 10} KiB on NUMA node {node}" for node, size in misplaced_bytes.items())
                target = f"memory on NUMA nodes {bits.show(record.memory)}"
                yield Drift(record.uid, record.name, DriftKind.PAGES, f"process {pid}", target, actual)
        if devices is not None:
            yield from _device_drift(record, devices)


def restore_run(run: RunProcesses) -> tuple[str, ...]:
    """Restore the placement of a run, and return an error for each part that failed.

    Processes of other users are never moved into the cgroup of the run, nor changed outside of it. Only a process can
    change its own memory policy. So its pages move back, but further pages may go elsewhere again.
    """
    errors: list[str] = []
    record = run.record
    if record.cgroup is not None:
        with _collect_errors(errors):
            if cgroup.read(record.cgroup) is None:
                record.cgroup.mkdir()
            cgroup.write(record.cgroup, record.cpus, nodes=record.memory)
            for pid in set(run.pids) - set(cgroup.members(record.cgroup)):
                if process.owner(pid) == os.geteuid():
                    with suppress(ProcessLookupError):
                        cgroup.join(record.cgroup, pid)
    members = cgroup.members(record.cgroup) if record.cgroup else ()
    foreign = [pid for pid in run.pids if pid not in members and process.owner(pid) not in {None, os.geteuid()}]
    errors += [f"process {pid} of {record.name} belongs to another user and is not moved" for pid in foreign]
    for pid in (pid for pid in run.pids if pid not in foreign):
        with _collect_errors(errors):
            if record.cpus and any(cpuset.cpus & ~record.cpus for cpuset in process.thread_cpusets(pid)):
                process.pin(pid, record.cpus)
            misplaced_nodes = bits.of(_misplaced_bytes(pid, record.memory))
            if misplaced_nodes:
                process.migrate_memory(pid, misplaced_nodes, to=record.memory)
    return tuple(errors)


@contextmanager
def _collect_errors(errors: list[str]) -> Iterator[None]:
    try:
        yield
    except (EnforceError, OSError) as error:
        errors.append(str(error))


def _cgroup_drift(record: RunRecord, directory: Path) -> Iterator[Drift]:
    actual = cgroup.read(directory)
    if actual is None:
        yield Drift(record.uid, record.name, DriftKind.GROUP, str(directory), "present", "missing")
        return
    pairs = (("CPUs", record.cpus, actual.cpus), ("memory on NUMA nodes", record.memory, actual.nodes))
    for resource, intended_mask, granted_mask in pairs:
        if intended_mask and granted_mask != intended_mask:
            texts = [f"{resource} {bits.show(members) or 'any'}" for members in (intended_mask, granted_mask)]
            yield Drift(record.uid, record.name, DriftKind.GROUP, str(directory), texts[0], texts[1])


def _thread_drift(record: RunRecord, pid: int) -> Iterator[Drift]:
    """Yield threads of a process that may be elsewhere, one drift for all threads with the same affinity."""
    threads = process.thread_cpusets(pid)
    memory = record.memory if record.cgroup is not None else 0
    for kind, prefix, resource, intended_mask, masks in (
        (DriftKind.CPUS, "", "CPUs", record.cpus, [thread.cpus for thread in threads]),
        (DriftKind.MEMORY, "memory on ", "NUMA nodes", memory, [thread.nodes for thread in threads]),
    ):
        for allowed_mask, count in Counter(mask for mask in masks if intended_mask and mask & ~intended_mask).items():
            subject = f"process {pid}" if count == 1 else f"{count} threads of process {pid}"
            target = f"{prefix}{resource} {bits.show(intended_mask)}"
            actual = f"{resource} {bits.show(allowed_mask)}"
            yield Drift(record.uid, record.name, kind, subject, target, actual)


def _device_drift(record: RunRecord, devices: DeviceTopology) -> Iterator[Drift]:
    for resource, ids in record.devices.items():
        for id_, nodes in ids.items():
            exists = (resource, id_) in devices
            if not exists or devices[resource, id_] != nodes:
                actual = _near(devices[resource, id_]) if exists else "missing"
                subject = f"{resource} {id_}"
                yield Drift(record.uid, record.name, DriftKind.DEVICE, subject, _near(nodes), actual)


def _misplaced_bytes(pid: int, nodes: NodeSet) -> dict[int, int]:
    """Return the bytes of a process on NUMA nodes other than *nodes*, if they exceed the tolerance."""
    bytes_per_node = process.memory_per_node(pid) if nodes else None
    bytes_elsewhere = {node: size for node, size in (bytes_per_node or {}).items() if not nodes >> node & 1}
    return bytes_elsewhere if sum(bytes_elsewhere.values()) > PAGE_TOLERANCE else {}


def _near(nodes: NodeSet | None) -> str:
    return f"near NUMA node {bits.show(nodes)}" if nodes else "near no NUMA node"
