"""The state of a pod's containers, in the agent's HTTP API and in its checkpoint.

It is separate from ``api`` so that ``alignup run``, which reads checkpoints, imports little.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

from msgspec import Meta

from alignup.documents.codec import Count, Document, LinuxList

Timestamp = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]

#: container → resource → what the device plugin returned for the devices
PodGrants = Mapping[str, Mapping[str, Mapping[str, Any]]]

_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799


def timestamp(seconds: float) -> Timestamp:
    """Format seconds since 1970 as RFC 3339 in UTC: ``2026-11-15T07:30:00.000Z``; the years are 1 to 9999."""
    known = min(max(seconds, _FIRST_SECOND), _LAST_SECOND)
    return datetime.fromtimestamp(known, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def optional_timestamp(seconds: float) -> Timestamp | None:
    """Like :func:`timestamp`; 0 stands for a time that is not known."""
    return timestamp(seconds) if seconds else None


class ContainerRunStatus(Document, frozen=True, kw_only=True):
    """A container of a pod that the agent runs."""

    name: str
    kind: Annotated[str, Meta(extra_json_schema={"enum": ["init", "sidecar", "app"]})]
    state: Annotated[str, Meta(extra_json_schema={"enum": ["waiting", "running", "ended"]})]
    ready: bool = False
    restarts: Count = 0
    image: str = ""
    id: Annotated[str, Meta(description="The runtime's ID; empty before the container is created.")] = ""
    pid: Annotated[int, Meta(description="PID of the first process.")] | None = None
    cpus: Annotated[LinuxList, Meta(description="The container's cpuset; empty: any CPU.")] = ""
    nodes: Annotated[LinuxList, Meta(description="NUMA nodes of the container's memory; empty: any node.")] = ""
    started: Timestamp | None = None
    ended: Timestamp | None = None
    exit_code: int | None = None
    reason: Annotated[str, Meta(description="Why the container waits or ended, such as CrashLoopBackOff.")] = ""
    message: str = ""
    last: Annotated["ContainerRunStatus | None", Meta(description="The previous termination.")] = None


class PodRunStatus(Document, frozen=True, kw_only=True):
    """The status of a pod that the agent runs."""

    phase: Annotated[str, Meta(extra_json_schema={"enum": ["Pending", "Running", "Succeeded", "Failed", "Unknown"]})]
    reason: str = ""
    message: str = ""
    ending: Annotated[bool, Meta(description="Whether the pod is terminating.")] = False
    ips: tuple[str, ...] = ()
    containers: Annotated[tuple[ContainerRunStatus, ...], Meta(description="In start order.")] = ()
    warnings: Annotated[tuple[str, ...], Meta(description="Manifest fields that have no effect.")] = ()
