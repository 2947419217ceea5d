"""Compare the intended with the actual placement of an agent's containers, and restore it.

A container is identified by the pid of its first process. Runtimes create a cgroup for each container, with the
container's id in its name; a cgroup without the id belongs to something else and is left alone.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from alignup.align import bits
from alignup.enforce import cgroup
from alignup.enforce.audit import (
    Drift,
    DriftKind,
    PlacedContainer,
    collect_errors,
    find_drift,
    make_drift,
    restore_processes,
)
from alignup.enforce.process import PROC

Document = Mapping[str, Any]

_RECHECK_DELAY = 0.3  #: seconds until drift is checked again


@dataclass(frozen=True, slots=True)
class ContainerProcesses:
    container: PlacedContainer
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
    containers: tuple[ContainerProcesses, ...] = ()
    drifts: tuple[Drift, ...] = ()
    notes: tuple[str, ...] = ()  #: problems of the runtime, and what was not audited


def audit_containers(agent: ContainerSource | None) -> ContainerAudit:
    """Audit all containers of *agent*.

    Containers start and stop, and the agent moves those in the shared pool. So drift is checked again after a moment,
    and counts only if it persists.
    """
    if agent is None:
        return ContainerAudit()
    if not agent.is_local:
        return ContainerAudit(notes=(f"the agent at {agent.address} is remote; its containers are not audited",))
    first = _audit_once(agent)
    if not first.drifts:
        return first
    time.sleep(_RECHECK_DELAY)
    second = _audit_once(agent)
    before = set(map(drift_key, first.drifts))
    return replace(second, drifts=tuple(drift for drift in second.drifts if drift_key(drift) in before))


def drift_key(drift: Drift) -> tuple[str, str, DriftKind, str]:
    """What identifies a drift, whatever the intended and actual values are."""
    return drift.uid, drift.container, drift.kind, drift.where


def restore_containers(audit: ContainerAudit) -> tuple[str, ...]:
    """Restore the containers that drifted. Returns a message for each failure."""
    drifted = {
        (drift.uid, drift.container) for drift in audit.drifts if drift.kind not in {DriftKind.ORPHAN, DriftKind.DEVICE}
    }
    found = [one for one in audit.containers if (one.container.uid, one.container.container) in drifted]
    return tuple(failure for one in found for failure in restore_container(one))


def find_container_processes(container: PlacedContainer, proc: Path = PROC) -> ContainerProcesses | None:
    """Return a container with its cgroup and processes; ``None`` if it has exited."""
    if not (proc / str(container.pid)).exists():
        return None
    group = None
    innermost = cgroup.cpuset_cgroup(container.pid, proc)
    if innermost is not None and container.id:  # a container may create cgroups inside its own
        ancestors = (innermost, *innermost.parents)
        group = next((one for one in reversed(ancestors) if container.id in one.name), None)
    members = cgroup.members(group) if group is not None else ()
    return ContainerProcesses(replace(container, cgroup=group), tuple(sorted({container.pid, *members})))


def audit_container(processes: ContainerProcesses) -> Iterator[Drift]:
    container = processes.container
    yield from find_drift(container, processes.pids)
    if container.cgroup is None and (container.cpus or container.memory):
        intended, where = f"in a cgroup of container {container.id}", f"process {container.pid}"
        yield make_drift(container, DriftKind.MEMBER, where, intended=intended, actual="in none")


def restore_container(processes: ContainerProcesses) -> tuple[str, ...]:
    """Restore the placement of a container, and return an error for each part that failed."""
    container, errors = processes.container, list[str]()
    current = cgroup.read(container.cgroup) if container.cgroup is not None else None
    if container.cgroup is None:
        errors.append(
            f"{container.name}: its processes are in no cgroup of the container; release and re-admit its pod"
        )
    elif current is not None and (container.cpus or container.memory):
        with collect_errors(errors):  # what was not decided stays as the runtime set it
            cgroup.write(container.cgroup, container.cpus or current.cpus, nodes=container.memory or current.nodes)
    return (*errors, *restore_processes(container, processes.pids))


def _audit_once(agent: ContainerSource) -> ContainerAudit:
    pods = agent.pods()
    report = agent.runtime()
    found = tuple(filter(None, (find_container_processes(one) for pod in pods for one in _running_containers(pod))))
    drifts = [drift for one in found for drift in audit_container(one)]
    known = agent.devices() if any(one.container.devices for one in found) else {}
    grants = {pod["uid"]: pod.get("grants", {}) for pod in pods}
    drifts += [
        make_drift(one.container, DriftKind.DEVICE, where, intended="present", actual="missing")
        for one in found
        for where in _missing_devices(one.container, known=known, grants=grants[one.container.uid])
    ]
    drifts += map(_orphan_drift, report["strays"])
    name = str(report["runtime"]["name"]) if report["runtime"] else ""
    return ContainerAudit(
        runtime=name, containers=found, drifts=tuple(drifts), notes=tuple(map(str, report["problems"]))
    )


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


def _orphan_drift(sandbox: Document) -> Drift:
    return Drift(
        uid=sandbox["uid"],
        name=sandbox["pod"],
        container=",".join(sandbox["containers"]),
        kind=DriftKind.ORPHAN,
        where=f"sandbox {sandbox['id']}",
        intended="removed",
        actual=f"present: {sandbox['why']}",
    )
