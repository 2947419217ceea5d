"""The agent as its HTTP API and its pages use it."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from typing import TypeVar, overload

from alignup.agent.admission_queue import AdmissionQueue, QueueProbe
from alignup.agent.device_allocator import DeviceAllocator
from alignup.agent.manifest_dir import ManifestWatcher
from alignup.agent.pending_admission import with_announced_devices
from alignup.agent.state import AdmissionResult, AgentState, PodView
from alignup.agent.transaction import Transaction
from alignup.align.errors import StateError
from alignup.align.host import Host
from alignup.align.workload import Pod
from alignup.store.history import DecisionQuery, History, StoredDecision
from alignup.web.event_streams import EventBus, Subscription
from alignup.web.responses import BusyError, NotReadyError

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
    watcher: ManifestWatcher | None = None  #: ``None``: no manifest directory
    #: the last pods that the API rejected, by uid: pages decide on them again
    rejected_pods: dict[str, Pod] = field(default_factory=dict)

    @property
    def host(self) -> Host:
        return with_announced_devices(self.queue.state.settled_host())

    async def problems(self) -> tuple[str, ...]:
        return await self.probe.problems()

    def notes(self) -> tuple[str, ...]:
        return () if self.watcher is None else self.watcher.notes

    def pod_views(self) -> Sequence[PodView]:
        return _PodViews(self.queue.state)

    def pod_view(self, uid: str) -> PodView | None:
        return self.queue.state.pod_view(uid)

    async def admit(self, pod: Pod, *, dry_run: bool = False) -> AdmissionResult:
        if dry_run:
            return await self.allocator.dry_run(pod)
        result = await self.allocator.admit(pod)
        if result.pod_view is None:
            self.rejected_pods.pop(pod.uid, None)
            self.rejected_pods[pod.uid] = pod
            while len(self.rejected_pods) > _MAX_REJECTED:
                del self.rejected_pods[next(iter(self.rejected_pods))]
        return result

    def pod(self, uid: str) -> Pod | None:
        view = self.queue.state.pod_view(uid)
        return self.rejected_pods.get(uid) if view is None else view.pod

    def plugins(self) -> dict[str, bool]:
        return {name: self.allocator.serves(name) for name in sorted(self.queue.state.plugins)}

    async def release(self, uid: str) -> PodView | None:
        return await self.queue.run(Transaction.release, uid)

    async def decisions(self, query: DecisionQuery) -> Sequence[StoredDecision]:
        return await self._read_history(lambda: self.history.latest(query))

    async def decision(self, id_: int) -> StoredDecision | None:
        return await self._read_history(lambda: self.history.get(id_))

    def events(self) -> AbstractAsyncContextManager[Subscription]:
        return self.event_bus.subscribe()

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

    def __init__(self, state: AgentState) -> None:
        self._state = state

    def __len__(self) -> int:
        return len(self._state.admitted) + len(self._state.waiting)

    @overload
    def __getitem__(self, index: int) -> PodView: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[PodView]: ...
    def __getitem__(self, index: int | slice) -> PodView | Sequence[PodView]:
        if isinstance(index, int):
            return self[range(len(self))[index] :][0]
        start, stop, step = index.indices(len(self))
        return self._state.pod_views(start, max(start, stop))[::step]

    def __iter__(self) -> Iterator[PodView]:
        return iter(self._state.pod_views())
