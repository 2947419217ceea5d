"""The desk: the one place that changes what stands.

Jobs come from anywhere and wait in one queue; one thread takes them, one after the other. Each is decided on what the
one before left, then all that came meanwhile are written down together, and only then does anybody hear of it. When
that cannot be written, nothing of it has happened: what stands is a value, and the old one was never given up.

Reading never waits: whoever asks gets what stands at that moment.
"""

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, Full, Queue
from typing import Any, Protocol, TypeVar

from alignup.agent.pending_admission import PendingAdmission, PodGrants
from alignup.agent.pod_record import API_SOURCE
from alignup.agent.state import AgentEvent, AgentState, Clock
from alignup.agent.transaction import Transaction
from alignup.align.decision import Decision
from alignup.align.devices import PreferenceAnswers, PreferenceRequest
from alignup.align.errors import AlignError, ProviderError
from alignup.align.host import Host
from alignup.align.machine import Device
from alignup.align.workload import Pod
from alignup.schema.api import AdmissionResult, BusyError, NotReadyError, PodRunStatus, PodView

MAX_JOBS = 1_024  #: that may be in the queue
MAX_BATCH = 32  #: jobs that are written down together at most
RETRY_SECONDS = 1.0  #: seconds until what could not be written is tried again

#: Python runs one thread at a time. So whoever got an answer goes first, and whoever asks next: all others hear of it
#: when nobody has asked for so many seconds, or when so much has happened.
DISPATCH_IDLE_SECONDS, DISPATCH_BATCH = 0.001, 8

_WORKER_DIED = "nothing can be decided any more, which is a fault of alignup; start the agent again, and report its log"

JobResult = TypeVar("JobResult")
DispatchEvents = Callable[[Sequence[AgentEvent]], None]
StartPending = Callable[[Sequence[PendingAdmission]], None]


class SaveState(Protocol):
    """Whoever makes what stands durable; ``OSError`` or an :class:`AlignError` when that cannot be."""

    def __call__(self, standing: AgentState, /) -> None:
        """Return when *standing* would survive a crash, not before."""
        ...


@dataclass(frozen=True, slots=True)
class _Job:
    """What is to be done, and who waits for it."""

    action: Callable[[Transaction], Any]
    future: Future[Any]
    after_telling: bool = False  #: answered only when everybody has heard what happened until then
    light: bool = False  #: nothing of it has to survive, so it is done whether anything can be written or not


@dataclass(slots=True)
class _Batch:
    """Jobs done on a draft each, waiting to be written down."""

    standing: AgentState
    answers: list[tuple[_Job, Any]] = field(default_factory=list)
    happenings: list[AgentEvent] = field(default_factory=list)
    begun: list[PendingAdmission] = field(default_factory=list)
    durable: bool = False  #: whether something of it has to be written down


class AdmissionQueue:
    """Takes jobs until it is closed; *tell* hears what happened, once it is durable and whoever asked has an answer.

    What stands at first is written too, so that a disk that cannot be written to shows at once. With *problems* nothing
    is ever written: it answers questions and refuses everything else. *tell* must not raise.
    """

    def __init__(
        self,
        standing: AgentState,
        save: SaveState,
        *,
        clock: Clock,
        tell: DispatchEvents,
        problems: tuple[str, ...] = (),
    ) -> None:
        self._standing = standing
        self._save = save
        self._clock = clock
        self._tell = tell
        self._barred = problems
        self._send: StartPending | None = None
        self._untold: list[AgentEvent] = []  #: what has happened, and was answered, and nobody else has heard yet
        self._unwritten = "" if problems else "nothing was written yet"  #: why it could not be; empty: it could
        self._jobs: Queue[_Job | None] = Queue(MAX_JOBS)
        self._thread = threading.Thread(target=self._work, name="desk", daemon=True)
        self._thread.start()

    def on_pending(self, send: StartPending) -> None:
        """Let *send* hear of pods in line that are on their way in, and have their device plugins asked."""
        self._send = send

    @property
    def standing(self) -> AgentState:
        """What stands now."""
        return self._standing

    @property
    def host(self) -> Host:
        """The host as it stands now; it stays like that."""
        return self._standing.host

    @property
    def alive(self) -> bool:
        """Whether jobs are still taken."""
        return self._thread.is_alive()

    @property
    def settled(self) -> Host:
        """The same with just the pods that are here for good."""
        return self._standing.settled()

    @property
    def barred(self) -> bool:
        """Whether nothing may ever be decided here."""
        return bool(self._barred)

    def problems(self) -> tuple[str, ...]:
        """Why nothing can be decided now, each with what to do."""
        ended = "" if self.alive or self._barred else _WORKER_DIED
        return (*self._barred, *filter(None, (self._unwritten, ended)))

    def pod_views(self) -> Sequence[PodView]:
        """Every pod that is known."""
        return self._standing.pod_views()

    def pod_view(self, uid: str) -> PodView | None:
        """The pod of that uid."""
        return self._standing.pod_view(uid)

    async def admit(self, pod: Pod) -> AdmissionResult | PendingAdmission:
        """Decide on a pod; one that is on its way in then is for :class:`alignup.agent.devices.allocator.DeviceAllocator`."""
        return await self._do(lambda draft: draft.admit(pod, source=API_SOURCE))

    async def consider(self, pod: Pod, answers: PreferenceAnswers) -> tuple[Decision, tuple[PreferenceRequest, ...]]:
        """What would become of a pod as things stand, and what plugins should be asked first; changes nothing."""
        draft = Transaction(self._standing, self._clock)
        decision, asks, _ = await asyncio.to_thread(draft.consider, pod, answers=answers)
        return decision, asks

    async def advise(
        self, pending: PendingAdmission, answers: PreferenceAnswers, *, last: bool = False
    ) -> AdmissionResult | PendingAdmission:
        """Plugins have said which devices they prefer for a pod on its way in."""
        return await self._do(lambda draft: draft.advise(pending, answers, last=last))

    async def commit(self, pending: PendingAdmission, grants: PodGrants) -> AdmissionResult:
        """Plugins have prepared the devices of a pod on its way in."""
        return await self._do(lambda draft: draft.commit(pending, grants))

    async def fail(self, pending: PendingAdmission, error: ProviderError) -> AdmissionResult:
        """A plugin has said no to a pod on its way in."""
        return await self._do(lambda draft: draft.fail(pending, error))

    async def undo(self, pending: PendingAdmission) -> None:
        """A pod on its way in gives its place back, whatever can be written."""
        if self.alive:
            await self._queued(lambda draft: draft.undo(pending), light=True)

    async def wake(self, uid: str) -> bool:
        """Try one again that rests; whether it still waits."""
        return await self._do(lambda draft: draft.wake(uid))

    async def release(self, uid: str) -> PodView | None:
        """A pod is gone."""
        return await self._do(lambda draft: draft.release(uid))

    async def end(self, uid: str, *, grace: float | None = None) -> PodView | None:
        """A pod that somebody runs is to end."""
        return await self._do(lambda draft: draft.end(uid, grace=grace))

    async def finish(self, uid: str, run: PodRunStatus) -> None:
        """A pod has run to its end."""
        await self._do(lambda draft: draft.finish(uid, run))

    async def started(self, uid: str, container: str) -> None:
        """A container starts."""
        await self._do(lambda draft: draft.started(uid, container))

    async def exchange(
        self, gone: Iterable[str], come: Iterable[tuple[Pod, str]]
    ) -> tuple[AdmissionResult | Exception, ...]:
        """Pods of manifests go and others come."""
        leaving, coming = tuple(gone), tuple(come)
        return await self._do(lambda draft: draft.exchange(leaving, coming))

    async def announce(self, resource: str, devices: Iterable[Device], *, preferred_allocation: bool = False) -> None:
        """A device plugin says which devices there are, and whether it wants to be asked which to take."""
        announced = tuple(devices)
        await self._do(lambda draft: draft.announce(resource, announced, preferred_allocation=preferred_allocation))

    async def stop(self, resource: str) -> None:
        """A device plugin is gone."""
        await self._do(lambda draft: draft.stop(resource))

    async def give_up(self, resource: str) -> None:
        """A device plugin did not come back in time."""
        await self._do(lambda draft: draft.give_up(resource))

    async def try_waiting(self) -> None:
        """Try again whoever waits."""
        await self._do(Transaction.try_waiting)

    async def told(self) -> None:
        """Return when everybody has heard what happened until now."""
        await self._queued(lambda _: None, after_telling=True)

    def close(self, *, seconds: float = 10.0) -> None:
        """Finish what is in the queue, as far as that takes no longer than *seconds*, and take nothing more."""
        self._barred = (*self._barred, "the agent stops; start it again")
        with suppress(Full):
            self._jobs.put(None, timeout=seconds)
        self._thread.join(seconds)

    async def _do(self, action: Callable[[Transaction], JobResult]) -> JobResult:
        """Have a job done, if anything may be."""
        if self._barred:
            raise NotReadyError("; ".join(self._barred))
        if not self.alive:
            raise NotReadyError(_WORKER_DIED)
        return await self._queued(action)

    async def _queued(
        self, action: Callable[[Transaction], JobResult], *, after_telling: bool = False, light: bool = False
    ) -> JobResult:
        """Have a job done; a caller who leaves takes it along, unless it was begun."""
        future: Future[JobResult] = Future()
        try:
            self._jobs.put_nowait(_Job(action, future, after_telling, light))
        except Full:
            raise BusyError(
                f"{MAX_JOBS} requests are in the queue, which is as many as may be; try again later"
            ) from None
        return await asyncio.wrap_future(future)

    def _work(self) -> None:
        """Take jobs, as many as there are, until told to stop."""
        stop = False
        if not self._barred:
            self._write(self._standing)
        while not stop:
            jobs, stop = self._next()
            if jobs:
                self._serve(jobs)
            elif self._untold:
                self._tell_all()
            elif self._unwritten and not stop:
                self._write(self._standing)
        self._tell_all()

    def _next(self) -> tuple[list[_Job], bool]:
        """The jobs there are, and whether they are the last; none when there is something else to do instead."""
        jobs: list[_Job] = []
        patience = DISPATCH_IDLE_SECONDS if self._untold else RETRY_SECONDS if self._unwritten else None
        try:
            job = self._jobs.get(timeout=patience)
            while job is not None:
                jobs.append(job)
                if len(jobs) == MAX_BATCH:
                    return jobs, False
                job = self._jobs.get_nowait()
        except Empty:
            return jobs, False
        return jobs, True

    def _serve(self, jobs: Iterable[_Job]) -> None:
        """Do jobs one after the other, write down what came of them, and answer."""
        batch = _Batch(self._standing)
        for job in jobs:
            if job.future.set_running_or_notify_cancel():
                self._attempt(job, batch)
        if batch.durable and not self._write(batch.standing):
            batch = self._without_writing(batch)
        self._standing = batch.standing
        for job, answer in batch.answers:
            if not job.after_telling:
                job.future.set_result(answer)
        if batch.begun and self._send is not None:
            self._send(batch.begun)
        self._untold += batch.happenings
        last = [(job, answer) for job, answer in batch.answers if job.after_telling]
        if last or len(self._untold) >= DISPATCH_BATCH:
            self._tell_all()
        for job, answer in last:
            job.future.set_result(answer)

    def _without_writing(self, failed: _Batch) -> _Batch:
        """What is left of jobs that could not be written down: those that leave nothing to write."""
        batch = _Batch(self._standing)
        for job, _ in failed.answers:
            if job.light:
                self._attempt(job, batch)
            else:
                job.future.set_exception(NotReadyError(self._unwritten))
        return batch

    def _tell_all(self) -> None:
        """Let everybody hear what has happened."""
        happened, self._untold = self._untold, []
        if happened:
            self._tell(happened)

    def _attempt(self, job: _Job, batch: _Batch) -> None:
        """Do one job on what the others left; one that fails leaves nothing."""
        draft = Transaction(batch.standing, self._clock)
        try:
            answer = job.action(draft)
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to whoever asked
            job.future.set_exception(error)
            return
        batch.standing = draft.standing()
        batch.answers.append((job, answer))
        batch.happenings += draft.happenings
        batch.begun += draft.begun
        batch.durable = batch.durable or draft.durable

    def _write(self, standing: AgentState) -> bool:
        """Whether *standing* is on disk now; if not, what is said of it stays until something is."""
        try:
            self._save(standing)
        except (OSError, AlignError) as error:
            self._unwritten = f"nothing can be admitted or released while the checkpoint cannot be written: {error}"
            return False
        except Exception as error:  # noqa: BLE001 - whoever waits for an answer must get one
            self._unwritten = (
                f"the checkpoint cannot be written, by a fault of alignup: {type(error).__name__}: {error}"
            )
            return False
        self._unwritten = ""
        return True
