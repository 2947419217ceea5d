"""What the HTTP API asks: the desk for pods, the history for decisions, the feed for what happens."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass

from alignup.agent import hardware
from alignup.agent.desk import Desk
from alignup.agent.errands import Errands
from alignup.align.errors import DocumentError, StateError
from alignup.align.host import Host
from alignup.align.workload import Pod, rules
from alignup.kube import documents, manifests
from alignup.kube.pod import read_pod as read_document
from alignup.serve.feed import Feed
from alignup.serve.service import Admission, BusyError, Entry, Event, Kept, NotReadyError, Query
from alignup.state.history import History

_PATIENCE = 1.0  #: seconds that a question about the past waits for the present


@dataclass(frozen=True, slots=True)
class Front:
    """The agent, as ``serve.service.Service`` has it."""

    desk: Desk
    errands: Errands
    history: History
    feed: Feed

    @property
    def host(self) -> Host:
        """The machine with all devices, the settings and the ledger as they are now."""
        return hardware.shown(self.desk.settled)

    def problems(self) -> tuple[str, ...]:
        """Why nothing can be decided now, each with what to do."""
        return self.desk.problems()

    def entries(self) -> Sequence[Entry]:
        """Every pod that is known."""
        return self.desk.entries()

    def entry(self, uid: str) -> Entry | None:
        """The pod of that uid."""
        return self.desk.entry(uid)

    async def admit(self, pod: Pod, *, dry_run: bool = False) -> Admission:
        """Decide, durably unless it is a *dry_run*."""
        return await (self.errands.consider(pod) if dry_run else self.errands.admit(pod))

    async def release(self, uid: str) -> Entry | None:
        """The pod is gone, durably."""
        return await self.desk.release(uid)

    async def decisions(self, query: Query) -> Sequence[Kept]:
        """Decisions of the past."""
        await self._told()
        try:
            found = await asyncio.to_thread(
                self.history.latest, pod=query.pod, outcome=query.outcome, before=query.before, limit=query.limit
            )
        except StateError as error:
            raise NotReadyError(str(error)) from error
        return [Kept(id=one.id, time=one.time, document=one.document) for one in found]

    async def decision(self, id_: int) -> Kept | None:
        """One of them."""
        await self._told()
        try:
            found = await asyncio.to_thread(self.history.get, id_)
        except StateError as error:
            raise NotReadyError(str(error)) from error
        return None if found is None else Kept(id=found.id, time=found.time, document=found.document)

    async def _told(self) -> None:
        """Wait until what was answered is in the history too, unless that takes long."""
        with suppress(TimeoutError, BusyError):
            await asyncio.wait_for(self.desk.told(), _PATIENCE)

    def events(self) -> AbstractAsyncContextManager[AsyncIterator[Event]]:
        """What happens from now on."""
        return self.feed.listen()


def read_pod(content: bytes, media_type: str) -> Pod:
    """The pod a request brings, as the API server hands it on; without a uid it gets the one its name always gets."""
    del media_type  # JSON is YAML enough
    found = documents.read(content)
    if len(found) != 1:
        raise DocumentError(f"expected one document, not {len(found) or 'none'}", line=1)
    pod = rules.accept(read_document(found[0].value))
    if pod.uid:
        return pod
    (workload,) = manifests.read_workloads(content, name="the document").workloads
    return workload.pod
