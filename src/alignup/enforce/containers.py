"""Running containers and their placement.

A container is identified by the pid of its first process. Runtimes create a cgroup for each container, with the
container's id in its name; a cgroup without the id belongs to something else and is left alone.
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


@dataclass(frozen=True, slots=True)
class ContainerProcesses:
    """A container and its current processes."""

    container: PlacedContainer
    pids: tuple[int, ...]


def find_container_processes(container: PlacedContainer, proc: Path = PROC) -> ContainerProcesses | None:
    """Return a container with its cgroup and processes; ``None`` if it has exited."""
    if not (proc / str(container.pid)).exists():
        return None
    group = _container_cgroup(cgroup.cpuset_cgroup(container.pid, proc), container.id)
    members = cgroup.members(group) if group is not None else ()
    return ContainerProcesses(replace(container, cgroup=group), tuple(sorted({container.pid, *members})))


def audit_container(processes: ContainerProcesses) -> Iterator[Drift]:
    """Yield what has drifted in a container."""
    container = processes.container
    found = list(audit.find_drift(container, processes.pids))
    if container.cgroup is None and (container.cpus or container.memory):
        intended, where = f"in a cgroup of container {container.id}", f"process {container.pid}"
        found.append(audit.make_drift(container, DriftKind.MEMBER, where, intended=intended, actual="in none"))
    yield from (replace(drift, container=container.container) for drift in found)


def restore_container(processes: ContainerProcesses) -> tuple[str, ...]:
    """Restore the placement of a container, and return an error for each part that failed."""
    container, errors = processes.container, list[str]()
    current = cgroup.read(container.cgroup) if container.cgroup is not None else None
    if container.cgroup is None:
        errors.append(
            f"{container.name}: its processes are in no cgroup of the container; release and re-admit its pod"
        )
    elif current is not None and (container.cpus or container.memory):
        with audit.collect_errors(errors):  # what was not decided stays as the runtime set it
            cgroup.write(container.cgroup, container.cpus or current.cpus, nodes=container.memory or current.nodes)
    return (*errors, *audit.restore_processes(container, processes.pids))


def _container_cgroup(directory: Path | None, id_: str) -> Path | None:
    """Return the outermost ancestor with the container's id in its name; a container may create cgroups inside."""
    if directory is None or not id_:
        return None
    ancestors = (directory, *directory.parents)
    return next((one for one in reversed(ancestors) if id_ in one.name), None)
