"""What the HTTP API needs of whoever stands behind it.

The agent is one such; tests bring their own. Everything here is in the terms of the heart: how a pod is written down
and how a decision is kept are for others to know.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from alignup.align.decision import Decision
from alignup.align.host import Host
from alignup.align.workload import Pod


class NotReadyError(Exception):
    """Nothing can be decided now; the message says why and what to do."""


class BusyError(Exception):
    """More is waiting than is allowed to; the message says how much."""


class Status(StrEnum):
    """How a pod that is known stands."""

    ADMITTED = "admitted"
    WAITING = "waiting"  #: it does not fit now, and is tried again when something is released


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A pod that is known: it runs here, or waits to."""

    pod: Pod
    status: Status
    since: float  #: seconds since 1970
    source: str  #: ``api``, or the manifest file it comes from
    decision: Decision  #: the newest about it
    position: int | None = None  #: its place among those that wait, from 1
    #: container → resource → what the device plugin gave with the devices: variables, mounts, device nodes and more
    grants: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Admission:
    """What became of a pod that was sent in."""

    decision: Decision
    entry: Entry | None  #: ``None``: refused, or only asked about


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A decision of the past."""

    id: int
    time: float
    document: Mapping[str, Any]  #: as ``align.record`` writes it


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Which decisions of the past; those that came last first."""

    pod: str | None = None  #: a uid, a name, or a namespace and name with a slash between them
    outcome: str | None = None
    before: int | None = None  #: only those with a lower id
    limit: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened; ``id`` rises by one each time, and begins anew when the agent does."""

    id: int
    time: float
    kind: str  #: admitted, refused, waiting, released, announced, …
    document: Mapping[str, Any]


class Service(Protocol):
    """Whoever stands behind the API."""

    @property
    def host(self) -> Host:
        """The machine, the settings and the ledger as they are now."""
        ...

    def problems(self) -> tuple[str, ...]:
        """Why nothing can be decided now, each with what to do; empty when all is well."""
        ...

    def entries(self) -> Sequence[Entry]:
        """Every pod that is known, those admitted first, in the order they came."""
        ...

    def entry(self, uid: str) -> Entry | None:
        """The pod of that uid."""
        ...

    async def admit(self, pod: Pod, *, dry_run: bool = False) -> Admission:
        """Decide, durably unless it is a *dry_run*; ``PodError``, :class:`NotReadyError`, :class:`BusyError`."""
        ...

    async def release(self, uid: str) -> Entry | None:
        """The pod is gone, durably; what it was, or ``None`` when nobody knew it."""
        ...

    async def decisions(self, query: Query) -> Sequence[Kept]:
        """Decisions of the past."""
        ...

    async def decision(self, id_: int) -> Kept | None:
        """One of them."""
        ...

    def events(self) -> AbstractAsyncContextManager[AsyncIterator[Event]]:
        """What happens from now on; who reads too slowly is told that some were missed."""
        ...
