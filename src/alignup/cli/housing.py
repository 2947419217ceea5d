"""The containers that an agent runs, for ``alignup audit``: what it intends compared with what the kernel says."""

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from alignup.align import bits
from alignup.cli.asking import RunClient
from alignup.enforce import containers
from alignup.enforce.audit import Drift, DriftKind
from alignup.enforce.containers import ContainerProcesses, PlacedContainer

Document = Mapping[str, Any]

_MOMENT = 0.3  #: seconds after which what has drifted is looked at again


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerAudit:
    """What was seen."""

    runtime: str = ""  #: its name; empty: the agent has none
    containers: tuple[ContainerProcesses, ...] = ()
    drifts: tuple[Drift, ...] = ()
    notes: tuple[str, ...] = ()  #: what is wrong with the runtime


def audit_containers(agent: RunClient | None) -> ContainerAudit:
    """The containers *agent* runs, and all of them that has drifted.

    Containers come and go, and are moved when CPUs become somebody's own. So whatever seems to have drifted is looked
    at again a moment later, and counts only if it still is so.
    """
    if agent is None:
        return ContainerAudit()
    if not agent.is_here:
        return ContainerAudit(
            notes=(f"the agent at {agent.address} is on another machine: its containers are not looked at",)
        )
    first = _looked(agent)
    if not first.drifts:
        return first
    time.sleep(_MOMENT)
    second = _looked(agent)
    before = set(map(drift_key, first.drifts))
    return replace(second, drifts=tuple(one for one in second.drifts if drift_key(one) in before))


def drift_key(drift: Drift) -> tuple[str, str, DriftKind, str]:
    """What tells one drift from another, whatever was intended and is so."""
    return drift.uid, drift.container, drift.kind, drift.where


def restore_containers(seen: ContainerAudit) -> tuple[str, ...]:
    """Put containers that have drifted back; why not, a sentence each."""
    astray = {(one.uid, one.container) for one in seen.drifts if one.kind not in {DriftKind.STRAY, DriftKind.DEVICE}}
    boxes = [one for one in seen.containers if (one.container.uid, one.container.container) in astray]
    return tuple(trouble for one in boxes for trouble in containers.restore_container(one))


def _looked(agent: RunClient) -> ContainerAudit:
    pods = agent.pods()
    report = agent.runtime()
    found = tuple(filter(None, (containers.find_container_processes(one) for pod in pods for one in _running(pod))))
    drifts = [drift for one in found for drift in containers.audit_container(one)]
    if any(one.container.devices for one in found):
        drifts += _of_devices(found, agent.devices())
    grants = {pod["uid"]: pod.get("grants", {}) for pod in pods}
    drifts += [drift for one in found for drift in _of_nodes(one.container, grants[one.container.uid])]
    drifts += map(_stray, report["strays"])
    name = str(report["runtime"]["name"]) if report["runtime"] else ""
    return ContainerAudit(
        runtime=name, containers=found, drifts=tuple(drifts), notes=tuple(map(str, report["problems"]))
    )


def _running(pod: Document) -> Iterator[PlacedContainer]:
    """The containers of a pod that run."""
    given = {one["container"]: one["given"].get("device", {}) for one in pod["placements"]}
    for one in (pod.get("run") or {"containers": ()})["containers"]:
        if one["state"] == "running" and one["pid"]:
            devices = given.get(one["name"], {})
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


def _of_devices(found: Iterable[ContainerProcesses], there: Mapping[str, Mapping[str, object]]) -> Iterator[Drift]:
    """Devices that containers have, and that nobody tells of any more."""
    for one in found:
        for resource, ids in one.container.devices.items():
            for id_ in ids:
                if id_ not in there.get(resource, {}):
                    yield _gone(one.container, f"{resource} {id_}")


def _of_nodes(container: PlacedContainer, grants: Document) -> Iterator[Drift]:
    """Files in ``/dev`` that containers were given, and that are not there any more."""
    for resource, grant in grants.get(container.container, {}).items():
        for node in grant["devices"]:
            if not os.path.lexists(node["host_path"]):
                yield _gone(container, f"{resource} {node['host_path']}")


def _gone(container: PlacedContainer, where: str) -> Drift:
    return Drift(
        uid=container.uid,
        name=container.name,
        container=container.container,
        kind=DriftKind.DEVICE,
        where=where,
        intended="there",
        actual="gone",
    )


def _stray(stray: Document) -> Drift:
    return Drift(
        uid=stray["uid"],
        name=stray["pod"],
        container=",".join(stray["containers"]),
        kind=DriftKind.STRAY,
        where=f"sandbox {stray['id']}",
        intended="gone",
        actual=f"there: {stray['why']}",
    )
