"""What the HTTP API asks: the desk for pods, the history for decisions, the feed for what happens."""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, replace
from typing import Protocol

from alignup.agent.devices import device_state
from alignup.agent.devices.allocator import DeviceAllocator
from alignup.agent.manifests.watcher import ManifestWatcher
from alignup.agent.pod_record import PodRecord
from alignup.agent.queue import AdmissionQueue
from alignup.agent.state import AgentState
from alignup.align.bits import quote
from alignup.align.errors import DocumentError, PodError, Problem, StateError
from alignup.align.host import Host
from alignup.align.workload import Pod, validation
from alignup.kube import documents, manifests
from alignup.kube.manifests import Accept
from alignup.kube.pod import read_pod as read_document
from alignup.kube.podspec import manifest_of
from alignup.kube.podspec.types import Permission
from alignup.schema.api import (
    AdmissionResult,
    BusyError,
    DecisionQuery,
    LogQuery,
    NotReadyError,
    PodRunStatus,
    PodView,
    PublishedEvent,
    RuntimeStatus,
    StoredDecision,
)
from alignup.serve.event_bus import EventBus
from alignup.state.history import History

SELF_RUN_ANNOTATION = "run.alignup.dev/itself"  #: the annotation of pods that are not to be run by the agent

_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,62}", re.ASCII)
_PATIENCE = 1.0  #: seconds that a question about the past waits for the present


class PodRunnerApi(Protocol):
    """Whoever runs the pods."""

    def nudge(self) -> None:
        """Something has changed."""
        ...

    def run_of(self, known: PodRecord) -> PodRunStatus:
        """How a pod is that is here."""
        ...

    async def logs(self, pod: Pod, run: PodRunStatus, query: LogQuery) -> AsyncIterator[bytes]:
        """What a container of a pod printed; ``LookupError`` with what is missing."""
        ...

    def report(self) -> RuntimeStatus:
        """How the runtime is."""
        ...


@dataclass(frozen=True, slots=True)
class AgentService:
    """The agent, as ``schema.api.AgentBackend`` has it."""

    desk: AdmissionQueue
    errands: DeviceAllocator
    history: History
    feed: EventBus
    runner: PodRunnerApi | None = None  #: ``None``: pods are only admitted here
    watcher: ManifestWatcher | None = None  #: ``None``: no manifests are followed

    @property
    def host(self) -> Host:
        """The machine with all devices, the settings and the ledger as they are now."""
        return device_state.with_announced_devices(self.desk.settled)

    def problems(self) -> tuple[str, ...]:
        """Why nothing can be decided now, each with what to do."""
        return self.desk.problems()

    def notes(self) -> tuple[str, ...]:
        """What is wrong with manifests."""
        return () if self.watcher is None else self.watcher.notes

    def pod_views(self) -> Sequence[PodView]:
        """Every pod that is known."""
        standing = self.desk.standing
        return [self._with_run(entry, standing) for entry in standing.pod_views()]

    def pod_view(self, uid: str) -> PodView | None:
        """The pod of that uid."""
        standing = self.desk.standing
        found = standing.pod_view(uid)
        return None if found is None else self._with_run(found, standing)

    async def admit(self, pod: Pod, *, dry_run: bool = False) -> AdmissionResult:
        """Decide, durably unless it is a *dry_run*."""
        if dry_run:
            return await self.errands.consider(pod)
        admission = await self.errands.admit(pod)
        if self.runner is None or admission.pod_view is None:
            return admission
        return replace(admission, pod_view=self._with_run(admission.pod_view, self.desk.standing))

    async def release(self, uid: str, *, grace: int | None = None) -> PodView | None:
        """The pod is gone, durably; where it runs, it is to end, and is gone when it has."""
        known = self.desk.standing.held.get(uid)
        if self.runner is None or (known is not None and is_self_run(known.pod)):
            return await self.desk.release(uid)
        entry = await self.desk.end(uid, grace=grace)
        self.runner.nudge()
        return None if entry is None else self._with_run(entry, self.desk.standing)

    async def decisions(self, query: DecisionQuery) -> Sequence[StoredDecision]:
        """Decisions of the past."""
        await self._told()
        try:
            found = await asyncio.to_thread(
                self.history.latest, pod=query.pod, outcome=query.outcome, before=query.before, limit=query.limit
            )
        except StateError as error:
            raise NotReadyError(str(error)) from error
        return [StoredDecision(id=one.id, time=one.time, document=one.document) for one in found]

    async def decision(self, id_: int) -> StoredDecision | None:
        """One of them."""
        await self._told()
        try:
            found = await asyncio.to_thread(self.history.get, id_)
        except StateError as error:
            raise NotReadyError(str(error)) from error
        return None if found is None else StoredDecision(id=found.id, time=found.time, document=found.document)

    async def logs(self, uid: str, query: LogQuery) -> AsyncIterator[bytes]:
        """What a container printed."""
        if self.runner is None:
            raise LookupError("nobody runs pods here, so there are no logs; start the agent with --runtime cri")
        entry = self.pod_view(uid)
        if entry is None or entry.run is None:
            raise LookupError(f"no pod {uid} runs here, or has")
        return await self.runner.logs(entry.pod, entry.run, query)

    def runtime(self) -> RuntimeStatus:
        """The container runtime."""
        return RuntimeStatus() if self.runner is None else self.runner.report()

    def _with_run(self, entry: PodView, standing: AgentState) -> PodView:
        """A pod, and how it runs if it does."""
        known = standing.held.get(entry.pod.uid)
        if self.runner is None or known is None or is_self_run(known.pod):
            return entry
        return replace(entry, run=self.runner.run_of(known))

    async def _told(self) -> None:
        """Wait until what was answered is in the history too, unless that takes long."""
        with suppress(TimeoutError, BusyError):
            await asyncio.wait_for(self.desk.told(), _PATIENCE)

    def events(self) -> AbstractAsyncContextManager[AsyncIterator[PublishedEvent]]:
        """What happens from now on."""
        return self.feed.subscribe()


def read_pod(content: bytes, media_type: str, *, accept: Accept = validation.accept, keep: bool = False) -> Pod:
    """The pod a request brings, as the API server hands it on; without a uid it gets the one its name always gets.

    It is to *keep* its manifest where somebody runs it.
    """
    del media_type  # JSON is YAML enough
    found = documents.read(content)
    if len(found) != 1:
        raise DocumentError(f"expected one document, not {len(found) or 'none'}", line=1)
    pod = accept(read_document(found[0].value, keep=keep))
    return pod if pod.uid else manifests.with_derived_uid(pod)


def is_self_run(pod: Pod) -> bool:
    """Whether only a place is wanted for a pod: whoever sent it runs it, as ``alignup run`` does."""
    return pod.annotations.get(SELF_RUN_ANNOTATION) == "true"


def accept_runnable(allowed: frozenset[Permission]) -> Accept:
    """Takes pods as the API server does, of which the manifest can be run with what is *allowed*."""

    def accept(pod: Pod) -> Pod:
        accepted = validation.accept(pod)
        if is_self_run(accepted):
            return replace(accepted, manifest=None)
        if accepted.uid and not _UID.fullmatch(accepted.uid):
            what = "has to be letters, digits, dashes and dots, as directories and groups are named after it"
            raise PodError([Problem("metadata.uid", f"{what}, not {quote(accepted.uid)}")])
        if manifest := manifest_of(accepted):
            manifest.parsed.check(allowed)
        return accepted

    return accept
