"""What the HTTP API requires of the agent; tests provide their own implementation."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from alignup.align.host import Host
from alignup.align.workload import Pod
from alignup.schema.api import (
    AdmissionResult,
    DecisionQuery,
    LogQuery,
    PodView,
    PublishedEvent,
    RuntimeStatus,
    StoredDecision,
)


class AgentBackend(Protocol):
    @property
    def host(self) -> Host: ...

    def problems(self) -> tuple[str, ...]:
        """Return why pods cannot be decided on now, each with a remedy; empty if they can."""
        ...

    def notes(self) -> tuple[str, ...]: ...

    def pod_views(self) -> Sequence[PodView]:
        """Return every known pod: admitted pods first, in admission order."""
        ...

    def pod_view(self, uid: str) -> PodView | None: ...

    async def admit(self, pod: Pod, *, dry_run: bool = False) -> AdmissionResult:
        """Decide on a pod, durably unless *dry_run*.

        Raise ``PodError``, :class:`NotReadyError` or :class:`BusyError`.
        """
        ...

    async def release(self, uid: str, *, grace: int | None = None) -> PodView | None:
        """Release a pod durably and return its last state; ``None``: unknown uid.

        If the agent runs the pod, start its termination and return it with ``run.ending`` set. The containers get
        *grace* seconds, or the pod's own grace period.
        """
        ...

    async def decisions(self, query: DecisionQuery) -> Sequence[StoredDecision]: ...

    async def decision(self, id_: int) -> StoredDecision | None: ...

    async def logs(self, uid: str, query: LogQuery) -> AsyncIterator[bytes]:
        """Return the log of a container; ``LookupError`` names a missing pod, container or log."""
        ...

    def runtime(self) -> RuntimeStatus: ...

    def events(self) -> AbstractAsyncContextManager[AsyncIterator[PublishedEvent]]:
        """Subscribe to events from now on; a slow reader gets the number of events it missed."""
        ...
