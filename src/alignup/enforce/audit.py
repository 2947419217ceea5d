"""Is everything where it was put? What is intended compared with what the kernel says, and put back.

Whatever is found is a value, a :class:`Drift`. A thread that keeps to fewer CPUs than it was given does no harm, and
programs do so on purpose: only one that may run elsewhere has drifted. Of memory only what a process has of its own
counts, and only from a size on that the kernel does not spend by itself.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from alignup.align import bits
from alignup.align.bits import CpuSet, NodeSet
from alignup.align.errors import EnforceError
from alignup.enforce import cgroup, memory, process
from alignup.enforce.run_record import RUN_VARIABLE, RunRecord

DeviceTopology = Mapping[
    tuple[str, str], NodeSet | None
]  #: (resource, id) → the nodes of a device, of all that are there now

PAGE_TOLERANCE = 1 << 20  #: bytes on other nodes that are not worth a word


class DriftKind(StrEnum):
    """What has drifted."""

    GROUP = "group"  #: the cgroup is gone, or holds its processes to something else
    MEMBER = "member"  #: a process is not in the cgroup of its run
    CPUS = "cpus"  #: a thread may run elsewhere
    MEMORY = "memory"  #: a thread may take memory elsewhere
    PAGES = "pages"  #: a process has memory elsewhere
    DEVICE = "device"  #: a device is gone, or near other nodes
    DECISION = "decision"  #: who decided knows nothing of it any more, or something else
    STRAY = "stray"  #: containers of which nobody knows


class PlacedWorkload(Protocol):
    """Whatever was put somewhere: a run, or a container."""

    @property
    def uid(self) -> str:
        """Of the run, or of the container's pod."""
        ...

    @property
    def name(self) -> str:
        """What people call it."""
        ...

    @property
    def cpus(self) -> CpuSet:
        """The CPUs it is to run on; empty: any."""
        ...

    @property
    def memory(self) -> NodeSet:
        """The NUMA nodes its memory is to come from; empty: any."""
        ...

    @property
    def cgroup(self) -> Path | None:
        """The group that holds it there, if one does."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """One thing that is not as intended."""

    uid: str
    name: str
    kind: DriftKind
    where: str
    intended: str
    actual: str
    container: str = ""  #: its name; empty: it is about a run

    def __str__(self) -> str:
        return f"{self.name}: {self.where}: intended {self.intended}, actual {self.actual}"


@dataclass(frozen=True, slots=True)
class RunProcesses:
    """One run with the processes it has now."""

    intent: RunRecord
    pids: tuple[int, ...]


def find_run_processes(intents: Sequence[RunRecord]) -> tuple[RunProcesses, ...]:
    """Each run with its processes; the runner is none of them."""
    by_mark = process.find_by_environment(RUN_VARIABLE) if intents else {}
    found = []
    for one in intents:
        inside = cgroup.members(one.cgroup) if one.cgroup else ()
        found.append(RunProcesses(one, tuple(sorted({*by_mark.get(one.uid, ()), *inside}))))
    return tuple(found)


def audit_runs(runs: Sequence[RunProcesses], *, devices: DeviceTopology | None = None) -> tuple[Drift, ...]:
    """All that has drifted; devices are compared where *devices* tells which there are now."""
    return tuple(drift for run in runs for drift in _of_run(run, devices))


def restore_run(run: RunProcesses) -> tuple[str, ...]:
    """Put a run back where it belongs, as far as that can be; why not, a sentence each, for the rest.

    A memory policy is a process's own, so memory is moved back, but what it takes next may be elsewhere again.
    """
    troubles: list[str] = []
    intent = run.intent
    if intent.cgroup is not None:
        with collect_errors(troubles):
            if cgroup.read(intent.cgroup) is None:
                intent.cgroup.mkdir()
            cgroup.write(intent.cgroup, intent.cpus, nodes=intent.memory)
            for pid in set(run.pids) - set(cgroup.members(intent.cgroup)):
                with suppress(ProcessLookupError):
                    cgroup.join(intent.cgroup, pid)
    return (*troubles, *restore_processes(intent, run.pids))


def restore_processes(placed: PlacedWorkload, pids: Iterable[int]) -> tuple[str, ...]:
    """Put processes of *placed*, and what memory they have, back where they belong; why not, a sentence each."""
    troubles: list[str] = []
    for pid in pids:
        with collect_errors(troubles):
            if placed.cpus and any(one.cpus & ~placed.cpus for one in process.thread_affinities(pid)):
                process.pin(pid, placed.cpus)
            elsewhere = bits.of(_elsewhere(pid, placed.memory))
            if elsewhere:
                memory.migrate(pid, elsewhere, to=placed.memory)
    return tuple(troubles)


def find_drift(placed: PlacedWorkload, pids: Iterable[int]) -> Iterator[Drift]:
    """What of the group and of the processes of *placed* has drifted."""
    inside: tuple[int, ...] | None = None
    if placed.cgroup is not None:
        yield from _of_group(placed, placed.cgroup)
        inside = cgroup.members(placed.cgroup)
    for pid in pids:
        if inside is not None and pid not in inside:
            yield make_drift(
                placed, DriftKind.MEMBER, f"process {pid}", intended=f"in {placed.cgroup}", actual="not in it"
            )
        yield from _of_threads(placed, pid)
        yield from _of_pages(placed, pid)


def make_drift(placed: PlacedWorkload, kind: DriftKind, where: str, *, intended: str, actual: str) -> Drift:
    """Something of *placed* that is not as intended."""
    return Drift(uid=placed.uid, name=placed.name, kind=kind, where=where, intended=intended, actual=actual)


@contextmanager
def collect_errors(troubles: list[str]) -> Iterator[None]:
    """Note what cannot be done, and go on."""
    try:
        yield
    except (EnforceError, OSError) as error:
        troubles.append(str(error))


def _of_run(run: RunProcesses, devices: DeviceTopology | None) -> Iterator[Drift]:
    yield from find_drift(run.intent, run.pids)
    if devices is not None:
        yield from _of_devices(run.intent, devices)


def _of_group(placed: PlacedWorkload, folder: Path) -> Iterator[Drift]:
    actual = cgroup.read(folder)
    if actual is None:
        yield make_drift(placed, DriftKind.GROUP, str(folder), intended="there", actual="gone")
        return
    if placed.cpus and actual.cpus != placed.cpus:
        shown = [f"CPUs {bits.show(cpus) or 'any'}" for cpus in (placed.cpus, actual.cpus)]
        yield make_drift(placed, DriftKind.GROUP, str(folder), intended=shown[0], actual=shown[1])
    if placed.memory and actual.nodes != placed.memory:
        shown = [f"memory of nodes {bits.show(nodes) or 'any'}" for nodes in (placed.memory, actual.nodes)]
        yield make_drift(placed, DriftKind.GROUP, str(folder), intended=shown[0], actual=shown[1])


def _of_threads(placed: PlacedWorkload, pid: int) -> Iterator[Drift]:
    """Threads of one process that may be elsewhere; those alike in one line."""
    cpus: dict[int, int] = {}
    nodes: dict[int, int] = {}
    for one in process.thread_affinities(pid):
        if placed.cpus and one.cpus & ~placed.cpus:
            cpus[one.cpus] = cpus.get(one.cpus, 0) + 1
        if placed.cgroup is not None and placed.memory and one.nodes & ~placed.memory:
            nodes[one.nodes] = nodes.get(one.nodes, 0) + 1
    for allowed, count in cpus.items():
        intended, actual = f"CPUs {bits.show(placed.cpus)}", f"CPUs {bits.show(allowed)}"
        yield make_drift(placed, DriftKind.CPUS, _threads(pid, count), intended=intended, actual=actual)
    for allowed, count in nodes.items():
        intended, actual = f"memory of nodes {bits.show(placed.memory)}", f"nodes {bits.show(allowed)}"
        yield make_drift(placed, DriftKind.MEMORY, _threads(pid, count), intended=intended, actual=actual)


def _of_pages(placed: PlacedWorkload, pid: int) -> Iterator[Drift]:
    elsewhere = _elsewhere(pid, placed.memory)
    if elsewhere:
        actual = ", ".join(f"{size >> 10} KiB on node {node}" for node, size in elsewhere.items())
        intended = f"memory on nodes {bits.show(placed.memory)}"
        yield make_drift(placed, DriftKind.PAGES, f"process {pid}", intended=intended, actual=actual)


def _of_devices(intent: RunRecord, devices: DeviceTopology) -> Iterator[Drift]:
    for resource, ids in intent.devices.items():
        for id_, nodes in ids.items():
            where = f"{resource} {id_}"
            if (resource, id_) not in devices:
                yield make_drift(intent, DriftKind.DEVICE, where, intended=_near(nodes), actual="gone")
            elif devices[resource, id_] != nodes:
                actual = _near(devices[resource, id_])
                yield make_drift(intent, DriftKind.DEVICE, where, intended=_near(nodes), actual=actual)


def _elsewhere(pid: int, nodes: NodeSet) -> dict[int, int]:
    """What a process has on other nodes, if that is worth a word."""
    placed = memory.bytes_per_node(pid) if nodes else None
    found = {node: size for node, size in (placed or {}).items() if not nodes >> node & 1}
    return found if sum(found.values()) > PAGE_TOLERANCE else {}


def _threads(pid: int, count: int) -> str:
    return f"process {pid}" if count == 1 else f"{count} threads of process {pid}"


def _near(nodes: NodeSet | None) -> str:
    return f"near node {bits.show(nodes)}" if nodes else "near no node in particular"
