"""The parts of an agent that its HTTP API and its pages use."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from alignup.agent.admission_queue import AdmissionQueue, QueueProbe
from alignup.agent.device_allocator import DeviceAllocator
from alignup.agent.manifest_dir import ManifestWatcher
from alignup.align.errors import StateError
from alignup.store.history import DecisionQuery, History, StoredDecision
from alignup.web.event_streams import EventBus
from alignup.web.responses import NotReadyError

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class AgentParts:
    queue: AdmissionQueue
    probe: QueueProbe
    allocator: DeviceAllocator
    history: History
    event_bus: EventBus
    watcher: ManifestWatcher | None = None  #: ``None``: no manifest directory

    @property
    def notes(self) -> tuple[str, ...]:
        """What is wrong with manifests."""
        return () if self.watcher is None else self.watcher.notes

    async def decisions(self, query: DecisionQuery) -> Sequence[StoredDecision]:
        return await self._read_history(lambda: self.history.latest(query))

    async def decision(self, id_: int) -> StoredDecision | None:
        return await self._read_history(lambda: self.history.get(id_))

    async def _read_history(self, read: Callable[[], _Result]) -> _Result:
        """Return what *read* returns once all earlier decisions are in the history."""
        await self.queue.flush_events()
        try:
            return await asyncio.to_thread(read)
        except StateError as error:
            raise NotReadyError(str(error)) from error
