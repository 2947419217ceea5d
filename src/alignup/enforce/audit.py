"""Is everything where it was put? What is intended compared with what the kernel says, and put back.

Whatever is found is a value, a :class:`Drift`. A thread that keeps to fewer CPUs than it was given does no harm, and
programs do so on purpose: only one that may run elsewhere has drifted. Of memory only what a process has of its own
counts, and only from a size on that the kernel does not spend by itself.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum

from alignup.align import bits
from alignup.align.bits import Nodes
from alignup.align.errors import EnforceError
from alignup.enforce import cgroup, memory, process
from alignup.enforce.intent import MARK, Intent

Found = Mapping[tuple[str, str], Nodes | None]  #: (resource, id) → the nodes of a device, of all that are there now

SLACK = 1 << 20  #: bytes on other nodes that are not worth a word


class Kind(StrEnum):
    """What has drifted."""

    GROUP = "group"  #: the cgroup is gone, or holds its processes to something else
    MEMBER = "member"  #: a process is not in the cgroup of its run
    CPUS = "cpus"  #: a thread may run elsewhere
    MEMORY = "memory"  #: a thread may take memory elsewhere
    PAGES = "pages"  #: a process has memory elsewhere
    DEVICE = "device"  #: a device is gone, or near other nodes
    DECISION = "decision"  #: who decided knows nothing of it any more, or something else


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """One thing that is not as intended."""

    uid: str
    name: str
    kind: Kind
    where: str
    intended: str
    actual: str

    def __str__(self) -> str:
        return f"{self.name}: {self.where}: intended {self.intended}, actually {self.actual}"


@dataclass(frozen=True, slots=True)
class Living:
    """One run with the processes it has now."""

    intent: Intent
    pids: tuple[int, ...]


def living(intents: Sequence[Intent]) -> tuple[Living, ...]:
    """Each run with its processes; the runner is none of them."""
    by_mark = process.marked(MARK) if intents else {}
    found = []
    for one in intents:
        inside = cgroup.members(one.cgroup) if one.cgroup else ()
        found.append(Living(one, tuple(sorted({*by_mark.get(one.uid, ()), *inside}))))
    return tuple(found)


def audit(runs: Sequence[Living], *, devices: Found | None = None) -> tuple[Drift, ...]:
    """All that has drifted; devices are compared where *devices* tells which there are now."""
    return tuple(drift for run in runs for drift in _of_run(run, devices))


def restore(run: Living) -> tuple[str, ...]:
    """Put a run back where it belongs, as far as that can be; why not, a sentence each, for the rest.

    A memory policy is a process's own, so memory is moved back, but what it takes next may be elsewhere again.
    """
    troubles: list[str] = []
    intent = run.intent
    if intent.cgroup is not None:
        with _noting(troubles):
            if cgroup.read(intent.cgroup) is None:
                intent.cgroup.mkdir()
            cgroup.write(intent.cgroup, intent.cpus, nodes=intent.memory)
            for pid in set(run.pids) - set(cgroup.members(intent.cgroup)):
                with suppress(ProcessLookupError):
                    cgroup.join(intent.cgroup, pid)
    for pid in run.pids:
        with _noting(troubles):
            if any(one.cpus & ~intent.cpus for one in process.allowed(pid)):
                process.pin(pid, intent.cpus)
            elsewhere = bits.of(_elsewhere(pid, intent.memory))
            if elsewhere:
                memory.move(pid, elsewhere, to=intent.memory)
    return tuple(troubles)


def _of_run(run: Living, devices: Found | None) -> Iterator[Drift]:
    intent = run.intent
    inside = set(run.pids)
    if intent.cgroup is not None:
        yield from _of_group(intent)
        inside = set(cgroup.members(intent.cgroup))
    for pid in run.pids:
        if pid not in inside:
            yield _drift(intent, Kind.MEMBER, f"process {pid}", intended=f"in {intent.cgroup}", actual="not in it")
        yield from _of_threads(intent, pid)
        yield from _of_pages(intent, pid)
    if devices is not None:
        yield from _of_devices(intent, devices)


def _of_group(intent: Intent) -> Iterator[Drift]:
    if intent.cgroup is None:
        return
    actual = cgroup.read(intent.cgroup)
    if actual is None:
        yield _drift(intent, Kind.GROUP, str(intent.cgroup), intended="there", actual="gone")
        return
    if actual.cpus != intent.cpus:
        shown = [f"CPUs {bits.show(cpus) or 'any'}" for cpus in (intent.cpus, actual.cpus)]
        yield _drift(intent, Kind.GROUP, str(intent.cgroup), intended=shown[0], actual=shown[1])
    if intent.memory and actual.nodes != intent.memory:
        shown = [f"memory of nodes {bits.show(nodes) or 'any'}" for nodes in (intent.memory, actual.nodes)]
        yield _drift(intent, Kind.GROUP, str(intent.cgroup), intended=shown[0], actual=shown[1])


def _of_threads(intent: Intent, pid: int) -> Iterator[Drift]:
    """Threads of one process that may be elsewhere; those alike in one line."""
    cpus: dict[int, int] = {}
    nodes: dict[int, int] = {}
    for one in process.allowed(pid):
        if one.cpus & ~intent.cpus:
            cpus[one.cpus] = cpus.get(one.cpus, 0) + 1
        if intent.cgroup is not None and intent.memory and one.nodes & ~intent.memory:
            nodes[one.nodes] = nodes.get(one.nodes, 0) + 1
    for allowed, count in cpus.items():
        intended, actual = f"CPUs {bits.show(intent.cpus)}", f"CPUs {bits.show(allowed)}"
        yield _drift(intent, Kind.CPUS, _threads(pid, count), intended=intended, actual=actual)
    for allowed, count in nodes.items():
        intended, actual = f"memory of nodes {bits.show(intent.memory)}", f"nodes {bits.show(allowed)}"
        yield _drift(intent, Kind.MEMORY, _threads(pid, count), intended=intended, actual=actual)


def _of_pages(intent: Intent, pid: int) -> Iterator[Drift]:
    elsewhere = _elsewhere(pid, intent.memory)
    if elsewhere:
        actual = ", ".join(f"{size >> 10} KiB on node {node}" for node, size in elsewhere.items())
        intended = f"memory on nodes {bits.show(intent.memory)}"
        yield _drift(intent, Kind.PAGES, f"process {pid}", intended=intended, actual=actual)


def _of_devices(intent: Intent, devices: Found) -> Iterator[Drift]:
    for resource, ids in intent.devices.items():
        for id_, nodes in ids.items():
            where = f"{resource} {id_}"
            if (resource, id_) not in devices:
                yield _drift(intent, Kind.DEVICE, where, intended=_near(nodes), actual="gone")
            elif devices[resource, id_] != nodes:
                actual = _near(devices[resource, id_])
                yield _drift(intent, Kind.DEVICE, where, intended=_near(nodes), actual=actual)


def _elsewhere(pid: int, nodes: Nodes) -> dict[int, int]:
    """What a process has on other nodes, if that is worth a word."""
    placed = memory.placed(pid) if nodes else None
    found = {node: size for node, size in (placed or {}).items() if not nodes >> node & 1}
    return found if sum(found.values()) > SLACK else {}


def _drift(intent: Intent, kind: Kind, where: str, *, intended: str, actual: str) -> Drift:
    return Drift(uid=intent.uid, name=intent.name, kind=kind, where=where, intended=intended, actual=actual)


def _threads(pid: int, count: int) -> str:
    return f"process {pid}" if count == 1 else f"{count} threads of process {pid}"


def _near(nodes: Nodes | None) -> str:
    return f"near node {bits.show(nodes)}" if nodes else "near no node in particular"


@contextmanager
def _noting(troubles: list[str]) -> Iterator[None]:
    try:
        yield
    except (EnforceError, OSError) as error:
        troubles.append(str(error))
