"""Compare the intended with the actual placement of processes, and restore what drifted.

A thread that uses fewer CPUs than it was given is fine, and many programs do so on purpose: only a thread that may run
elsewhere has drifted. Of a process's memory, only private pages count, and only above a size that the kernel allocates
anyway.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from alignup.align import bits
from alignup.align.bits import CpuSet, NodeSet
from alignup.align.errors import EnforceError
from alignup.enforce import cgroup, memory, process
from alignup.enforce.run_record import RUN_VARIABLE, RunRecord

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
    ORPHAN = "stray"  #: a sandbox of an unknown pod


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedContainer:
    """A running container, and where it belongs."""

    uid: str  #: of its pod
    pod: str  #: namespace/name
    container: str
    id: str  #: in the runtime
    pid: int  #: of its first process
    cpus: CpuSet = 0  #: empty: any
    memory: NodeSet = 0  #: NUMA nodes; empty: any
    devices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  #: resource → ids
    cgroup: Path | None = None  #: ``None``: its first process is in no cgroup of the container

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

    def __str__(self) -> str:
        return f"{self.name}: {self.where}: intended {self.intended}, actual {self.actual}"


@dataclass(frozen=True, slots=True)
class RunProcesses:
    record: RunRecord
    pids: tuple[int, ...]


def find_run_processes(records: Sequence[RunRecord]) -> tuple[RunProcesses, ...]:
    """Return each run with its processes, which do not include the runner."""
    by_uid = process.find_by_environment(RUN_VARIABLE) if records else {}
    found = []
    for record in records:
        members = cgroup.members(record.cgroup) if record.cgroup else ()
        found.append(RunProcesses(record, tuple(sorted({*by_uid.get(record.uid, ()), *members}))))
    return tuple(found)


def audit_runs(runs: Sequence[RunProcesses], *, devices: DeviceTopology | None = None) -> tuple[Drift, ...]:
    """Return everything that has drifted; devices are compared if *devices* are given."""
    drifts: list[Drift] = []
    for run in runs:
        drifts += find_drift(run.record, run.pids)
        if devices is not None:
            drifts += _device_drift(run.record, devices)
    return tuple(drifts)


def restore_run(run: RunProcesses) -> tuple[str, ...]:
    """Restore the placement of a run, and return an error for each part that failed.

    Only a process can change its own memory policy. So its pages move back, but further pages may go elsewhere again.
    """
    errors: list[str] = []
    record = run.record
    if record.cgroup is not None:
        with collect_errors(errors):
            if cgroup.read(record.cgroup) is None:
                record.cgroup.mkdir()
            cgroup.write(record.cgroup, record.cpus, nodes=record.memory)
            for pid in set(run.pids) - set(cgroup.members(record.cgroup)):
                with suppress(ProcessLookupError):
                    cgroup.join(record.cgroup, pid)
    return (*errors, *restore_processes(record, run.pids))


def restore_processes(workload: PlacedWorkload, pids: Iterable[int]) -> tuple[str, ...]:
    """Restore the affinity and the pages of processes, and return an error for each one that failed."""
    errors: list[str] = []
    for pid in pids:
        with collect_errors(errors):
            if workload.cpus and any(one.cpus & ~workload.cpus for one in process.thread_affinities(pid)):
                process.pin(pid, workload.cpus)
            misplaced = bits.of(_misplaced_bytes(pid, workload.memory))
            if misplaced:
                memory.migrate(pid, misplaced, to=workload.memory)
    return tuple(errors)


def find_drift(workload: PlacedWorkload, pids: Iterable[int]) -> Iterator[Drift]:
    """Yield what has drifted in the cgroup and the processes of *workload*."""
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
def collect_errors(errors: list[str]) -> Iterator[None]:
    """Append an error to *errors* instead of raising it."""
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
    threads = process.thread_affinities(pid)
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
