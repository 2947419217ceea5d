"""What the HTTP API needs of whoever stands behind it.

The agent is one such; tests bring their own. Everything here is in the terms of the heart: how a pod is written down
and how a decision is kept are for others to know.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from alignup.align.bits import CpuSet, NodeSet
from alignup.align.decision import Decision
from alignup.align.host import Host
from alignup.align.workload import Pod


class NotReadyError(Exception):
    """Nothing can be decided now; the message says why and what to do."""


class BusyError(Exception):
    """More is waiting than is allowed to; the message says how much."""


class AdmissionStatus(StrEnum):
    """How a pod that is known stands."""

    ADMITTED = "admitted"
    WAITING = "waiting"  #: it does not fit now, and is tried again when something is released
    FINISHED = "finished"  #: it has run to its end, and holds nothing any more


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRunStatus:
    """How a container is that a runtime has, or is to have."""

    name: str
    kind: str  #: ``init``, ``sidecar`` or ``app``
    state: str  #: ``waiting``, ``running`` or ``ended``, the newest of it
    ready: bool = False
    restarts: int = 0
    image: str = ""
    id: str = ""  #: by which the runtime knows it
    pid: int | None = None  #: of its first process
    cpus: CpuSet = 0  #: on which it was put
    nodes: NodeSet = 0  #: from which its memory is to come; empty: any
    started: float | None = None  #: seconds since 1970
    ended: float | None = None
    exit_code: int | None = None
    reason: str = ""  #: why it waits, or ended: ``CrashLoopBackOff``, ``OOMKilled``, ``Completed`` …
    message: str = ""
    last: "ContainerRunStatus | None" = None  #: how it ended the time before


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRunStatus:
    """How a pod is that a runtime runs."""

    phase: str  #: ``Pending``, ``Running``, ``Succeeded`` or ``Failed``
    reason: str = ""
    message: str = ""
    ending: bool = False  #: it was told to stop
    ips: tuple[str, ...] = ()
    containers: tuple[ContainerRunStatus, ...] = ()  #: in the order they begin
    warnings: tuple[str, ...] = ()  #: what its manifest says and nobody here heeds


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    """A pod that is known: it runs here, or waits to, or has run."""

    pod: Pod
    status: AdmissionStatus
    since: float  #: seconds since 1970
    source: str  #: ``api``, or the manifest file it comes from
    decision: Decision  #: the newest about it
    position: int | None = None  #: its place among those that wait, from 1
    #: container → resource → what the device plugin gave with the devices: variables, mounts, device nodes and more
    grants: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    run: PodRunStatus | None = None  #: ``None``: nobody runs it here


@dataclass(frozen=True, slots=True)
class AdmissionResult:
    """What became of a pod that was sent in."""

    decision: Decision
    entry: PodView | None  #: ``None``: refused, or only asked about


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDecision:
    """A decision of the past."""

    id: int
    time: float
    document: Mapping[str, Any]  #: as ``schema.decisions`` writes it


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionQuery:
    """Which decisions of the past; those that came last first."""

    pod: str | None = None  #: a uid, a name, or a namespace and name with a slash between them
    outcome: str | None = None
    before: int | None = None  #: only those with a lower id
    limit: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class LogQuery:
    """Which part of a log."""

    container: str = ""  #: empty: the only one, or the first that is no init container
    previous: bool = False  #: of the time before it was started again
    tail: int | None = None  #: the last so many lines; ``None``: all
    follow: bool = False  #: and all that come, until the container has ended
    timestamps: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanSandbox:
    """A sandbox that the runtime has for a pod which is not known here, or not any more."""

    id: str
    pod: str  #: namespace and name with a slash between them, as the sandbox is labelled
    uid: str  #: likewise
    containers: tuple[str, ...] = ()  #: the names of those in it
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeStatus:
    """How the container runtime is, and what it has that nobody asked for."""

    name: str  #: ``containerd``, ``cri-o`` …
    version: str
    endpoint: str = ""  #: where it is asked
    ready: bool
    network: str  #: ``host``: pods have that of the host; ``cni``: each has its own
    others: int = 0  #: sandboxes it has for somebody else
    strays: tuple[OrphanSandbox, ...] = ()
    problems: tuple[str, ...] = ()  #: each with what to do


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedEvent:
    """Something that happened; ``id`` rises by one each time, and begins anew when the agent does."""

    id: int
    time: float
    kind: str  #: admitted, refused, waiting, released, announced, started, ended, …
    document: Mapping[str, Any]


class AgentBackend(Protocol):
    """Whoever stands behind the API."""

    @property
    def host(self) -> Host:
        """The machine, the settings and the ledger as they are now."""
        ...

    def problems(self) -> tuple[str, ...]:
        """Why nothing can be decided now, each with what to do; empty when all is well."""
        ...

    def notes(self) -> tuple[str, ...]:
        """What people who look at pods should know: manifests that cannot be used, and why."""
        ...

    def entries(self) -> Sequence[PodView]:
        """Every pod that is known, those admitted first, in the order they came."""
        ...

    def entry(self, uid: str) -> PodView | None:
        """The pod of that uid."""
        ...

    async def admit(self, pod: Pod, *, dry_run: bool = False) -> AdmissionResult:
        """Decide, durably unless it is a *dry_run*; ``PodError``, :class:`NotReadyError`, :class:`BusyError`."""
        ...

    async def release(self, uid: str, *, grace: int | None = None) -> PodView | None:
        """The pod is gone, durably; what it was, or ``None`` when nobody knew it.

        Where a runtime runs it, it begins to end, and ``run.ending`` of what comes back says so: it is gone when its
        containers have stopped, which have *grace* seconds for that, or as many as the pod says.
        """
        ...

    async def decisions(self, query: DecisionQuery) -> Sequence[StoredDecision]:
        """Decisions of the past."""
        ...

    async def decision(self, id_: int) -> StoredDecision | None:
        """One of them."""
        ...

    async def logs(self, uid: str, query: LogQuery) -> AsyncIterator[bytes]:
        """What a container printed; ``LookupError`` with what is missing: the pod, the container, or its log."""
        ...

    def runtime(self) -> RuntimeStatus | None:
        """The container runtime as it was seen last; ``None``: none is used."""
        ...

    def events(self) -> AbstractAsyncContextManager[AsyncIterator[PublishedEvent]]:
        """What happens from now on; who reads too slowly is told that some were missed."""
        ...
