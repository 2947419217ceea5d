"""Compare the intended with the actual placement of processes and containers, and restore what drifted.

A thread that uses fewer CPUs than it was given is fine, and many programs do so on purpose: only a thread that may run
elsewhere has drifted. Of a process's memory, only private pages count, and only above a size that the kernel allocates
anyway.

A container is identified by the pid of its first process. Runtimes create a cgroup for each container, with the
container's id in its name; a cgroup without the id belongs to something else and is left alone.
"""

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from alignup.align import bits
from alignup.align.bits import CpuSet, NodeSet
from alignup.align.errors import EnforceError
from alignup.run import cgroup, process
from alignup.run import process_memory as memory
from alignup.run.process import ProcessInfo
from alignup.run.run_record import RUN_VARIABLE, RunRecord

Document = Mapping[str, Any]
DeviceTopology = Mapping[tuple[str, str], NodeSet | None]  #: (resource, id) → NUMA nodes of every current device

PAGE_TOLERANCE = 1 << 20  #: bytes on other NUMA nodes that do not count as drift
_RECHECK_DELAY = 0.3  #: seconds until drift of containers is checked again


class DriftKind(StrEnum):
    GROUP = "group"  #: the cgroup is gone, or has another cpuset
    MEMBER = "member"  #: a process is not in the cgroup of its run
    CPUS = "cpus"  #: a thread may run elsewhere
    MEMORY = "memory"  #: a thread may allocate memory elsewhere
    PAGES = "pages"  #: a process has memory elsewhere
    DEVICE = "device"  #: a device is gone, or near other NUMA nodes
    DECISION = "decision"  #: the ledger or the agent has no decision for it, or another one
    ORPHAN = "stray"  #: a sandbox of an unknown pod


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedContainer:
    uid: str  #: of its pod
    pod: str  #: namespace/name
    container: str
    id: str  #: in the runtime
    pid: int  #: of its first process
    cpus: CpuSet = 0  #: empty: any
    memory: NodeSet = 0  #: NUMA nodes; empty: any
    devices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  #: resource → ids
    cgroup: Path | None = None  #: ``None``: its first process is in no cgroup of the container
    pids: tuple[int, ...] = ()  #: of all its processes, once they were looked up

    @property
    def name(self) -> str:
        return f"{self.pod}/{self.container}"


PlacedWorkload = RunRecord | PlacedContainer


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    uid: str
    name: str
    kind: DriftKind
    where: str
    intended: str
    actual: str
    container: str = ""  #: its name; empty for a run

    @property
    def key(self) -> tuple[str, str, DriftKind, str]:
        """What identifies it, whatever the intended and actual values are."""
        return self.uid, self.container, self.kind, self.where

    def __str__(self) -> str:
        return f"{self.name}: {self.where}: intended {self.intended}, actual {self.actual}"


@dataclass(frozen=True, slots=True)
class RunProcesses:
    record: RunRecord
    pids: tuple[int, ...]


class ContainerSource(Protocol):
    """The agent that runs the containers, through its API."""

    address: str

    @property
    def is_local(self) -> bool: ...
    def pods(self) -> Sequence[Document]: ...
    def runtime(self) -> Document: ...
    def devices(self) -> Mapping[str, Mapping[str, object]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerAudit:
    runtime: str = ""  #: name of the container runtime; empty: the agent has none
    containers: tuple[PlacedContainer, ...] = ()
    drifts: tuple[Drift, ...] = ()
    notes: tuple[str, ...] = ()  #: problems of the runtime, and what was not audited


def find_run_processes(records: Sequence[RunRecord]) -> tuple[RunProcesses, ...]:
    """Return each run of this user with its processes, which do not include the runner.

    A process belongs to a run if it is in the run's cgroup, was recorded when it was started, belongs to this user and
    has the run's uid in its environment, or descends from one that does or from the runner. The environment alone does
    not count: any user can set it.
    """
    if not records:
        return ()
    processes = process.list_processes(RUN_VARIABLE)
    found: dict[str, set[int]] = {record.uid: set() for record in records}
    runs = {pid: one.mark for pid, one in processes.items() if one.mark and one.owner == os.geteuid()}
    runners: dict[int, str] = {}
    for record in records:
        runs |= dict.fromkeys((one.pid for one in record.started if one.alive), record.uid)
        if record.cgroup is not None:
            found[record.uid].update(cgroup.members(record.cgroup))
            runs |= dict.fromkeys(found[record.uid], record.uid)
        if record.runner.alive:
            runners[record.runner.pid] = record.uid
    for pid in processes:
        uid = _run_of(pid, processes, runs, runners)
        if uid in found:
            found[uid].add(pid)
    return tuple(RunProcesses(record, tuple(sorted(found[record.uid]))) for record in records)


def _run_of(
    pid: int, processes: Mapping[int, ProcessInfo], runs: Mapping[int, str], runners: Mapping[int, str]
) -> str | None:
    """The run of a process or of its nearest ancestor that has one. *runners*: their children belong to that run."""
    seen: set[int] = set()  # pids may be reused while they are read, which can make a cycle
    while pid in processes and pid not in seen:
        seen.add(pid)
        if pid in runs:
            return runs[pid]
        pid = processes[pid].parent
        if pid in runners:
            return runners[pid]
    return None


def audit_runs(runs: Sequence[RunProcesses], *, devices: DeviceTopology | None = None) -> tuple[Drift, ...]:
    """Return everything that has drifted; devices are compared if *devices* are given."""
    drifts: list[Drift] = []
    for run in runs:
        drifts += _find_drift(run.record, run.pids)
        if devices is not None:
            drifts += _device_drift(run.record, devices)
    return tuple(drifts)


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
    return (*errors, *_restore_processes(record, [pid for pid in run.pids if pid not in foreign]))


def _restore_processes(workload: PlacedWorkload, pids: Iterable[int]) -> tuple[str, ...]:
    """Restore the affinity and the pages of processes, and return an error for each one that failed."""
    errors: list[str] = []
    for pid in pids:
        with _collect_errors(errors):
            if workload.cpus and any(one.cpus & ~workload.cpus for one in process.thread_cpusets(pid)):
                process.pin(pid, workload.cpus)
            misplaced = bits.of(_misplaced_bytes(pid, workload.memory))
            if misplaced:
                memory.migrate(pid, misplaced, to=workload.memory)
    return tuple(errors)


def _find_drift(workload: PlacedWorkload, pids: Iterable[int]) -> Iterator[Drift]:
    members: tuple[int, ...] | None = None
    if workload.cgroup is not None:
        yield from _cgroup_drift(workload, workload.cgroup)
        members = cgroup.members(workload.cgroup)
    for pid in pids:
        if members is not None and pid not in members:
            intended = f"in {workload.cgroup}"
            yield make_drift(workload, DriftKind.MEMBER, f"process {pid}", intended=intended, actual="not in it")
        yield from _thread_drift(workload, pid)
        if misplaced := _misplaced_bytes(pid, workload.memory):
            actual = ", ".join(f"{size >> 10} KiB on NUMA node {node}" for node, size in misplaced.items())
            intended = f"memory on NUMA nodes {bits.show(workload.memory)}"
            yield make_drift(workload, DriftKind.PAGES, f"process {pid}", intended=intended, actual=actual)


def make_drift(workload: PlacedWorkload, kind: DriftKind, where: str, *, intended: str, actual: str) -> Drift:
    return Drift(
        uid=workload.uid,
        name=workload.name,
        container=workload.container if isinstance(workload, PlacedContainer) else "",
        kind=kind,
        where=where,
        intended=intended,
        actual=actual,
    )


@contextmanager
def _collect_errors(errors: list[str]) -> Iterator[None]:
    try:
        yield
    except (EnforceError, OSError) as error:
        errors.append(str(error))


def _cgroup_drift(workload: PlacedWorkload, directory: Path) -> Iterator[Drift]:
    actual = cgroup.read(directory)
    if actual is None:
        yield make_drift(workload, DriftKind.GROUP, str(directory), intended="present", actual="missing")
        return
    pairs = (("CPUs", workload.cpus, actual.cpus), ("memory on NUMA nodes", workload.memory, actual.nodes))
    for what, wanted, found in pairs:
        if wanted and found != wanted:
            shown = [f"{what} {bits.show(members) or 'any'}" for members in (wanted, found)]
            yield make_drift(workload, DriftKind.GROUP, str(directory), intended=shown[0], actual=shown[1])


def _thread_drift(workload: PlacedWorkload, pid: int) -> Iterator[Drift]:
    """Yield threads of a process that may be elsewhere, one drift for all threads with the same affinity."""
    threads = process.thread_cpusets(pid)
    bound = workload.cgroup is not None and workload.memory
    cpus = Counter(one.cpus for one in threads if workload.cpus and one.cpus & ~workload.cpus)
    nodes = Counter(one.nodes for one in threads if bound and one.nodes & ~workload.memory)
    for allowed, count in cpus.items():
        intended, actual = f"CPUs {bits.show(workload.cpus)}", f"CPUs {bits.show(allowed)}"
        yield make_drift(workload, DriftKind.CPUS, _threads(pid, count), intended=intended, actual=actual)
    for allowed, count in nodes.items():
        intended, actual = f"memory on NUMA nodes {bits.show(workload.memory)}", f"NUMA nodes {bits.show(allowed)}"
        yield make_drift(workload, DriftKind.MEMORY, _threads(pid, count), intended=intended, actual=actual)


def _device_drift(record: RunRecord, devices: DeviceTopology) -> Iterator[Drift]:
    for resource, ids in record.devices.items():
        for id_, nodes in ids.items():
            known = (resource, id_) in devices
            if not known or devices[resource, id_] != nodes:
                actual = _near(devices[resource, id_]) if known else "missing"
                where = f"{resource} {id_}"
                yield make_drift(record, DriftKind.DEVICE, where, intended=_near(nodes), actual=actual)


def _misplaced_bytes(pid: int, nodes: NodeSet) -> dict[int, int]:
    """Return the bytes of a process on NUMA nodes other than *nodes*, if they exceed the tolerance."""
    placed = memory.bytes_per_node(pid) if nodes else None
    found = {node: size for node, size in (placed or {}).items() if not nodes >> node & 1}
    return found if sum(found.values()) > PAGE_TOLERANCE else {}


def _threads(pid: int, count: int) -> str:
    return f"process {pid}" if count == 1 else f"{count} threads of process {pid}"


def _near(nodes: NodeSet | None) -> str:
    return f"near NUMA node {bits.show(nodes)}" if nodes else "near no NUMA node"


def audit_containers(agent: ContainerSource | None) -> ContainerAudit:
    """Audit all containers of *agent*.

    Containers start and stop, and the agent moves those in the shared pool. So drift is checked again after a moment,
    and counts only if it persists.
    """
    if agent is None:
        return ContainerAudit()
    if not agent.is_local:
        return ContainerAudit(notes=(f"the agent at {agent.address} is remote; its containers are not audited",))
    first = _audit_containers_once(agent)
    if not first.drifts:
        return first
    time.sleep(_RECHECK_DELAY)
    second = _audit_containers_once(agent)
    before = {drift.key for drift in first.drifts}
    return replace(second, drifts=tuple(drift for drift in second.drifts if drift.key in before))


def restore_containers(audit: ContainerAudit) -> tuple[str, ...]:
    """Restore the containers that drifted. Returns a message for each failure."""
    drifted = {
        (drift.uid, drift.container) for drift in audit.drifts if drift.kind not in {DriftKind.ORPHAN, DriftKind.DEVICE}
    }
    found = [one for one in audit.containers if (one.uid, one.container) in drifted]
    return tuple(failure for one in found for failure in restore_container(one))


def find_container_processes(container: PlacedContainer, proc: Path = process.PROC) -> PlacedContainer | None:
    """Return a container with its cgroup and processes; ``None`` if it has exited."""
    if not (proc / str(container.pid)).exists():
        return None
    group = None
    innermost = cgroup.cpuset_cgroup(container.pid, proc)
    if innermost is not None and container.id:  # a container may create cgroups inside its own
        ancestors = (innermost, *innermost.parents)
        group = next((one for one in reversed(ancestors) if container.id in one.name), None)
    members = cgroup.members(group) if group is not None else ()
    return replace(container, cgroup=group, pids=tuple(sorted({container.pid, *members})))


def audit_container(container: PlacedContainer) -> Iterator[Drift]:
    yield from _find_drift(container, container.pids)
    if container.cgroup is None and (container.cpus or container.memory):
        intended, where = f"in a cgroup of container {container.id}", f"process {container.pid}"
        yield make_drift(container, DriftKind.MEMBER, where, intended=intended, actual="in none")


def restore_container(container: PlacedContainer) -> tuple[str, ...]:
    """Restore the placement of a container, and return an error for each part that failed."""
    errors: list[str] = []
    if container.cgroup is None:
        why = "its processes are in no cgroup of the container; release and re-admit its pod"
        errors.append(f"{container.name}: {why}")
    elif (current := cgroup.read(container.cgroup)) and (container.cpus or container.memory):
        with _collect_errors(errors):  # what was not decided stays as the runtime set it
            cgroup.write(container.cgroup, container.cpus or current.cpus, nodes=container.memory or current.nodes)
    return (*errors, *_restore_processes(container, container.pids))


def _audit_containers_once(agent: ContainerSource) -> ContainerAudit:
    pods = agent.pods()
    report = agent.runtime()
    found = tuple(filter(None, (find_container_processes(one) for pod in pods for one in _running_containers(pod))))
    drifts = [drift for one in found for drift in audit_container(one)]
    known = agent.devices() if any(one.devices for one in found) else {}
    grants = {pod["uid"]: pod.get("grants", {}) for pod in pods}
    drifts += [
        make_drift(one, DriftKind.DEVICE, where, intended="present", actual="missing")
        for one in found
        for where in _missing_devices(one, known=known, grants=grants[one.uid])
    ]
    drifts += [
        Drift(
            uid=sandbox["uid"],
            name=sandbox["pod"],
            container=",".join(sandbox["containers"]),
            kind=DriftKind.ORPHAN,
            where=f"sandbox {sandbox['id']}",
            intended="removed",
            actual=f"present: {sandbox['why']}",
        )
        for sandbox in report["strays"]
    ]
    name, notes = str(report["runtime"]["name"]) if report["runtime"] else "", tuple(map(str, report["problems"]))
    return ContainerAudit(runtime=name, containers=found, drifts=tuple(drifts), notes=notes)


def _running_containers(pod: Document) -> Iterator[PlacedContainer]:
    assigned = {one["container"]: one["given"].get("device", {}) for one in pod["placements"]}
    for one in (pod.get("run") or {"containers": ()})["containers"]:
        if one["state"] == "running" and one["pid"]:
            devices = assigned.get(one["name"], {})
            yield PlacedContainer(
                uid=pod["uid"],
                pod=f"{pod['namespace']}/{pod['name']}",
                container=one["name"],
                id=one["id"],
                pid=one["pid"],
                cpus=bits.parse(one["cpus"]),
                memory=bits.parse(one["nodes"]),
                devices={resource: tuple(ids.split(",")) for resource, ids in devices.items()},
            )


def _missing_devices(
    container: PlacedContainer, *, known: Mapping[str, Mapping[str, object]], grants: Document
) -> Iterator[str]:
    """Yield assigned devices that no device plugin reports any more, and files of devices that no longer exist."""
    for resource, ids in container.devices.items():
        yield from (f"{resource} {id_}" for id_ in ids if id_ not in known.get(resource, {}))
    for resource, grant in grants.get(container.container, {}).items():
        paths = (file["host_path"] for file in grant["devices"])
        yield from (f"{resource} {path}" for path in paths if not os.path.lexists(path))
