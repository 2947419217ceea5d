"""Containers that a runtime runs, as the kernel sees them: which group is whose, and is everything where it was put?

A container is known by the number of its first process. Runtimes make a group for each container and have the
container's id in the group's name; a group that has it not belongs to somebody else, and is not touched.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from alignup.align.bits import CpuSet, NodeSet
from alignup.enforce import audit, cgroup
from alignup.enforce.audit import Drift, DriftKind
from alignup.enforce.process import PROC


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedContainer:
    """One container that runs, and where it belongs."""

    uid: str  #: of its pod
    pod: str  #: namespace and name with a slash between them
    container: str
    id: str  #: by which the runtime knows it
    pid: int  #: of its first process
    cpus: CpuSet = 0  #: it is to run on; empty: any
    memory: NodeSet = 0  #: the NUMA nodes its memory is to come from; empty: any
    devices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  #: resource → ids
    cgroup: Path | None = None  #: ``None``: its first process is in no group that is the container's

    @property
    def name(self) -> str:
        """What people call it."""
        return f"{self.pod}/{self.container}"


@dataclass(frozen=True, slots=True)
class ContainerProcesses:
    """One container with the processes it has now."""

    container: PlacedContainer
    pids: tuple[int, ...]


def find_container_processes(container: PlacedContainer, proc: Path = PROC) -> ContainerProcesses | None:
    """A container with its group and all processes in it; ``None`` when it has ended."""
    if not (proc / str(container.pid)).exists():
        return None
    group = _own(cgroup.cpuset_cgroup(container.pid, proc), container.id)
    inside = cgroup.members(group) if group is not None else ()
    return ContainerProcesses(replace(container, cgroup=group), tuple(sorted({container.pid, *inside})))


def audit_container(one: ContainerProcesses) -> Iterator[Drift]:
    """All of a container that has drifted."""
    placed = one.container
    found = list(audit.find_drift(placed, one.pids))
    if placed.cgroup is None and (placed.cpus or placed.memory):
        intended, where = f"in a group of container {placed.id}", f"process {placed.pid}"
        found.append(audit.make_drift(placed, DriftKind.MEMBER, where, intended=intended, actual="in none"))
    yield from (replace(drift, container=placed.container) for drift in found)


def restore_container(one: ContainerProcesses) -> tuple[str, ...]:
    """Put a container back where it belongs, as far as that can be; why not, a sentence each, for the rest."""
    placed, troubles = one.container, list[str]()
    now = cgroup.read(placed.cgroup) if placed.cgroup is not None else None
    if placed.cgroup is None:
        troubles.append(f"{placed.name}: its processes are in no group of its own; release its pod, and admit it again")
    elif now is not None and (placed.cpus or placed.memory):
        with audit.collect_errors(troubles):  # what nobody decided on stays as the runtime has it
            cgroup.write(placed.cgroup, placed.cpus or now.cpus, nodes=placed.memory or now.nodes)
    return (*troubles, *audit.restore_processes(placed, one.pids))


def _own(folder: Path | None, id_: str) -> Path | None:
    """The group of a container around one its process is in; what a container makes inside is its own business."""
    if folder is None or not id_:
        return None
    around = (folder, *folder.parents)
    return next((place for place in reversed(around) if id_ in place.name), None)
