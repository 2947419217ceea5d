"""Compare the intended with the actual placement of processes, and restore what drifted.

A thread that uses fewer CPUs than it was given is fine, and many programs do so on purpose: only a thread that may run
elsewhere has drifted. Of a process's memory, only private pages count, and only above a size that the kernel allocates
anyway.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.errors import EnforceError
from alignup.run import cgroup, process
from alignup.run import process_memory as memory
from alignup.run.process import ProcessInfo
from alignup.run.run_record import RUN_VARIABLE, RunRecord

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    uid: str
    name: str
    kind: DriftKind
    where: str
    intended: str
    actual: str

    @property
    def key(self) -> tuple[str, DriftKind, str]:
        """What identifies it, whatever the intended and actual values are."""
        return self.uid, self.kind, self.where

    def __str__(self) -> str:
        return f"{self.name}: {self.where}: intended {self.intended}, actual {self.actual}"


@dataclass(frozen=True, slots=True)
class RunProcesses:
    record: RunRecord
    pids: tuple[int, ...]


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


def _restore_processes(record: RunRecord, pids: Iterable[int]) -> tuple[str, ...]:
    """Restore the affinity and the pages of processes, and return an error for each one that failed."""
    errors: list[str] = []
    for pid in pids:
        with _collect_errors(errors):
            if record.cpus and any(one.cpus & ~record.cpus for one in process.thread_cpusets(pid)):
                process.pin(pid, record.cpus)
            misplaced = bits.of(_misplaced_bytes(pid, record.memory))
            if misplaced:
                memory.migrate(pid, misplaced, to=record.memory)
    return tuple(errors)


def _find_drift(record: RunRecord, pids: Iterable[int]) -> Iterator[Drift]:
    members: tuple[int, ...] | None = None
    if record.cgroup is not None:
        yield from _cgroup_drift(record, record.cgroup)
        members = cgroup.members(record.cgroup)
    for pid in pids:
        if members is not None and pid not in members:
            intended = f"in {record.cgroup}"
            yield make_drift(record, DriftKind.MEMBER, f"process {pid}", intended=intended, actual="not in it")
        yield from _thread_drift(record, pid)
        if misplaced := _misplaced_bytes(pid, record.memory):
            actual = ", ".join(f"{size >> 10} KiB on NUMA node {node}" for node, size in misplaced.items())
            intended = f"memory on NUMA nodes {bits.show(record.memory)}"
            yield make_drift(record, DriftKind.PAGES, f"process {pid}", intended=intended, actual=actual)


def make_drift(record: RunRecord, kind: DriftKind, where: str, *, intended: str, actual: str) -> Drift:
    return Drift(
        uid=record.uid,
        name=record.name,
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


def _cgroup_drift(record: RunRecord, directory: Path) -> Iterator[Drift]:
    actual = cgroup.read(directory)
    if actual is None:
        yield make_drift(record, DriftKind.GROUP, str(directory), intended="present", actual="missing")
        return
    pairs = (("CPUs", record.cpus, actual.cpus), ("memory on NUMA nodes", record.memory, actual.nodes))
    for what, wanted, found in pairs:
        if wanted and found != wanted:
            shown = [f"{what} {bits.show(members) or 'any'}" for members in (wanted, found)]
            yield make_drift(record, DriftKind.GROUP, str(directory), intended=shown[0], actual=shown[1])


def _thread_drift(record: RunRecord, pid: int) -> Iterator[Drift]:
    """Yield threads of a process that may be elsewhere, one drift for all threads with the same affinity."""
    threads = process.thread_cpusets(pid)
    bound = record.cgroup is not None and record.memory
    cpus = Counter(one.cpus for one in threads if record.cpus and one.cpus & ~record.cpus)
    nodes = Counter(one.nodes for one in threads if bound and one.nodes & ~record.memory)
    for allowed, count in cpus.items():
        intended, actual = f"CPUs {bits.show(record.cpus)}", f"CPUs {bits.show(allowed)}"
        yield make_drift(record, DriftKind.CPUS, _threads(pid, count), intended=intended, actual=actual)
    for allowed, count in nodes.items():
        intended, actual = f"memory on NUMA nodes {bits.show(record.memory)}", f"NUMA nodes {bits.show(allowed)}"
        yield make_drift(record, DriftKind.MEMORY, _threads(pid, count), intended=intended, actual=actual)


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
