"""The agent as the HTTP API uses it; implements ``agent.app.AgentBackend``."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar, overload

from alignup.agent.api import AdmissionResult, PodView
from alignup.agent.devices import device_state
from alignup.agent.devices.allocator import DeviceAllocator
from alignup.agent.manifests.watcher import ManifestWatcher
from alignup.agent.queue import AdmissionQueue
from alignup.agent.queue_probe import QueueProbe
from alignup.agent.state import AgentState
from alignup.agent.transaction import Transaction
from alignup.align.bits import quote
from alignup.align.errors import PodError, Problem, StateError
from alignup.align.host import Host
from alignup.align.workload import Pod, validation
from alignup.kubernetes.manifests import pod_json
from alignup.kubernetes.manifests import workloads as manifests
from alignup.kubernetes.manifests.pod import read_pod_text
from alignup.kubernetes.manifests.workloads import Accept
from alignup.kubernetes.podspec import manifest_of
from alignup.kubernetes.podspec.types import Permission
from alignup.store.history import DecisionQuery, History, StoredDecision
from alignup.web.events import EventBus, Subscription
from alignup.web.responses import BusyError, NotReadyError

if TYPE_CHECKING:
    from alignup.agent.pods.runner import PodRunner

SELF_RUN_ANNOTATION = "run.alignup.dev/itself"  #: marks pods that the client runs itself

_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,62}", re.ASCII)
_FLUSH_SECONDS = 5.0
_MAX_REJECTED = 64  #: pods that are kept

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class AgentService:
    queue: AdmissionQueue
    probe: QueueProbe
    allocator: DeviceAllocator
    history: History
    event_bus: EventBus
    runner: "PodRunner | None" = None  #: ``None``: the agent runs no containers
    watcher: ManifestWatcher | None = None  #: ``None``: no manifest directory
    #: the last pods that the API rejected, by uid: pages decide on them again
    rejected_pods: dict[str, Pod] = field(default_factory=dict)

    @property
    def host(self) -> Host:
        return device_state.with_announced_devices(self.queue.settled_host)

    async def problems(self) -> tuple[str, ...]:
        return await self.probe.problems()

    def notes(self) -> tuple[str, ...]:
        return () if self.watcher is None else self.watcher.notes

    def pod_views(self) -> Sequence[PodView]:
        return _PodViews(self.queue.state, self._with_run)

    def pod_view(self, uid: str) -> PodView | None:
        view = self.queue.state.pod_view(uid)
        return None if view is None else self._with_run(view)

    async def admit(self, pod: Pod, *, dry_run: bool = False) -> AdmissionResult:
        if dry_run:
            return await self.allocator.dry_run(pod)
        result = await self.allocator.admit(pod)
        if result.pod_view is None:
            self._remember(pod)
        if self.runner is None or result.pod_view is None:
            return result
        return replace(result, pod_view=self._with_run(result.pod_view))

    def pod(self, uid: str) -> Pod | None:
        view = self.queue.state.pod_view(uid)
        return self.rejected_pods.get(uid) if view is None else view.pod

    def plugins(self) -> dict[str, bool]:
        return {name: self.allocator.serves(name) for name in sorted(self.queue.state.plugins)}

    async def release(self, uid: str, *, grace: int | None = None) -> PodView | None:
        record = self.queue.state.admitted.get(uid)
        if self.runner is None or (record is not None and is_self_run(record.pod)):
            return await self.queue.run(Transaction.release, uid)
        view = await self.queue.run(Transaction.terminate, uid, grace=grace)
        self.runner.wake_up()
        return None if view is None else self._with_run(view)

    async def decisions(self, query: DecisionQuery) -> Sequence[StoredDecision]:
        return await self._read_history(
            lambda: self.history.latest(pod=query.pod, outcome=query.outcome, before=query.before, limit=query.limit)
        )

    async def decision(self, id_: int) -> StoredDecision | None:
        return await self._read_history(lambda: self.history.get(id_))

    async def logs(self, uid: str, query: LogQuery) -> AsyncIterator[bytes]:
        if self.runner is None:
            raise LookupError("the agent runs no containers, so there are no logs; start it with --runtime cri")
        view = self.pod_view(uid)
        if view is None or view.run is None:
            raise LookupError(f"the agent does not run pod {uid}")
        return await self.runner.logs(view.pod, view.run, query)

    def runtime(self) -> RuntimeStatus:
        return RuntimeStatus() if self.runner is None else self.runner.status()

    def events(self) -> AbstractAsyncContextManager[Subscription]:
        return self.event_bus.subscribe()

    def _remember(self, pod: Pod) -> None:
        self.rejected_pods.pop(pod.uid, None)
        self.rejected_pods[pod.uid] = pod
        while len(self.rejected_pods) > _MAX_REJECTED:
            del self.rejected_pods[next(iter(self.rejected_pods))]

    def _with_run(self, view: PodView) -> PodView:
        """Add the status of the containers, if the agent runs the pod."""
        record = self.queue.state.admitted.get(view.pod.uid)
        if self.runner is None or record is None or is_self_run(record.pod):
            return view
        return replace(view, run=self.runner.run_status(record))

    async def flush_events(self) -> None:
        """Wait until all earlier events are in the history and on the streams, unless that takes long."""
        with suppress(TimeoutError, BusyError, NotReadyError):
            await asyncio.wait_for(self.queue.run(Transaction.flush_events), _FLUSH_SECONDS)

    async def _read_history(self, read: Callable[[], _Result]) -> _Result:
        await self.flush_events()
        try:
            return await asyncio.to_thread(read)
        except StateError as error:
            raise NotReadyError(str(error)) from error


class _PodViews(Sequence[PodView]):
    """The pods of *state*; views are created when they are read."""

    def __init__(self, state: AgentState, with_run: Callable[[PodView], PodView]) -> None:
        self._state = state
        self._with_run = with_run

    def __len__(self) -> int:
        return self._state.pod_count

    @overload
    def __getitem__(self, index: int) -> PodView: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[PodView]: ...
    def __getitem__(self, index: int | slice) -> PodView | Sequence[PodView]:
        if isinstance(index, int):
            return self[range(len(self))[index] :][0]
        start, stop, step = index.indices(len(self))
        return [self._with_run(view) for view in self._state.pod_views(start, max(start, stop))[::step]]

    def __iter__(self) -> Iterator[PodView]:
        return map(self._with_run, self._state.pod_views())


def read_pod(content: bytes, *, accept: Accept = validation.accept, keep: bool = False) -> Pod:
    """Read the pod of a request, with the API server's defaults; a pod without a uid gets one derived from its name.

    With *keep*, the pod carries its manifest, so that the agent can run it.
    """
    pod = accept(read_pod_text(content, keep=keep))
    return pod if pod.uid else manifests.with_derived_uid(pod)


def read_json_pod(content: bytes, *, accept: Accept = validation.accept, keep: bool = False) -> Pod | None:
    """Like :func:`read_pod`, for usual pods in JSON, quickly; ``None``: :func:`read_pod` must read it."""
    found = pod_json.read_json_pod(content, keep=keep)
    if found is None:
        return None
    pod = accept(found)
    return pod if pod.uid else manifests.with_derived_uid(pod)


def is_self_run(pod: Pod) -> bool:
    """Whether the client runs the pod itself, as ``alignup run`` does, and needs only its resources."""
    return pod.annotations.get(SELF_RUN_ANNOTATION) == "true"


def accept_runnable(allowed: frozenset[Permission]) -> Accept:
    """Return a function that accepts pods which the agent can run with the *allowed* permissions."""

    def accept(pod: Pod) -> Pod:
        accepted = validation.accept(pod)
        if is_self_run(accepted):
            return replace(accepted, manifest=None)
        if accepted.uid and not _UID.fullmatch(accepted.uid):
            what = "must consist of letters, digits, dashes and dots: directories and cgroups are named after it"
            raise PodError([Problem("metadata.uid", f"{what}, not {quote(accepted.uid)}")])
        if manifest := manifest_of(accepted):
            manifest.parsed.check(allowed)
        return accepted

    return accept
