"""Proves that a decision can be made: a job that changes nothing passes through the admission queue."""

import asyncio

from alignup.agent.queue import AdmissionQueue
from alignup.agent.transaction import Transaction
from alignup.web.responses import BusyError, NotReadyError

READY_SECONDS = 5.0


class QueueProbe:
    """Callers share one probe at a time, so that they never fill the queue."""

    def __init__(self, queue: AdmissionQueue) -> None:
        self._queue = queue
        self._probe: asyncio.Task[None] | None = None

    async def problems(self, *, seconds: float = READY_SECONDS) -> tuple[str, ...]:
        """Return why no pod can be decided on now, each with a remedy."""
        if problems := self._queue.problems():
            return problems
        try:
            await asyncio.wait_for(self.passed(), seconds)
        except TimeoutError:
            message = f"the admission queue has not answered for {seconds:g} seconds"
            return (f"{message}: look for a disk that hangs, or restart the agent",)
        except (BusyError, NotReadyError) as error:
            return (str(error),)
        return self._queue.problems()

    async def passed(self) -> None:
        """Return once a probe has passed the queue; raise ``BusyError`` or ``NotReadyError`` if it cannot enter."""
        if self._probe is None or self._probe.done():
            self._probe = asyncio.create_task(self._queue.run(_change_nothing), name="probe of the admission queue")
            self._probe.add_done_callback(_retrieve)
        await asyncio.shield(self._probe)


def _change_nothing(_: Transaction) -> None: ...


def _retrieve(probe: asyncio.Task[None]) -> None:
    """Retrieve the error, so that asyncio does not warn when no caller waits for the probe any longer."""
    if not probe.cancelled():
        probe.exception()
