"""The admission queue: the only place that changes the agent's state.

Jobs wait in one queue, and one thread runs them one after the other, each on the state that the previous one left. All
jobs that arrive meanwhile are saved in one transaction, and answered only then. If it fails, the new state is dropped
and nothing has happened. If the ledger would be too large, each job is tried alone, so that only jobs that do not fit
fail. Reading never waits: the current state is an immutable value.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Concatenate, ParamSpec, TypeVar

from alignup.agent.pending_admission import PendingAdmission
from alignup.agent.state import AgentEvent, AgentState, Clock
from alignup.agent.transaction import Transaction
from alignup.align.errors import AlignError, StoreFullError
from alignup.web.responses import BusyError, LedgerFullError, NotReadyError

MAX_JOBS = 1_024  #: in the queue
MAX_BATCH = 32  #: jobs in one transaction of the database
READY_SECONDS = 5.0  #: that a probe may take
FLUSH_SECONDS = 5.0  #: that a reader of the history waits for earlier events

#: Python runs one thread at a time, so clients come first: events wait for some idle seconds, or until they are many.
#: Before many are dispatched, the event loop gets the time to send the answers.
DISPATCH_IDLE_SECONDS, DISPATCH_BATCH, ANSWER_SECONDS = 0.001, 16, 0.0002

_WORKER_DIED = "the admission queue has stopped, which is a bug in alignup; restart the agent, and report its log"

JobResult = TypeVar("JobResult")
Parameters = ParamSpec("Parameters")
DispatchEvents = Callable[[Sequence[AgentEvent]], None]
StartPending = Callable[[Sequence[PendingAdmission]], None]
#: Returns when the state and the decisions of the events are durable; raises ``OSError`` or ``AlignError``.
SaveState = Callable[[AgentState, Sequence[AgentEvent]], None]


@dataclass(slots=True, eq=False)
class _Job:
    action: Callable[..., Any]  #: a method of ``Transaction``
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    loop: asyncio.AbstractEventLoop  #: of the caller
    waiter: asyncio.Future[Any]  #: of the caller
    cancelled: bool = False  #: set by the caller; a job that has started ignores it
    result: Any = None
    error: Exception | None = None


class AdmissionQueue:
    """The queue of jobs, and the thread that runs them until the queue is closed.

    After the jobs are answered, *record* gets the events whose decisions no save has stored because nothing else
    changed, and *dispatch* gets all events. *when_idle* is called once there were no jobs for *idle_seconds* after a
    save. None of the three may raise. The initial state is saved too, so that a full disk shows at once. A failed save
    is repeated after *retry_seconds*. With *problems* the queue is read-only: it saves nothing and rejects all jobs.
    """

    def __init__(  # noqa: PLR0913
        self,
        state: AgentState,
        save: SaveState,
        *,
        clock: Clock,
        dispatch: DispatchEvents,
        record: DispatchEvents = lambda _: None,
        problems: tuple[str, ...] = (),
        retry_seconds: float = 1.0,
        when_idle: Callable[[], None] = lambda: None,
        idle_seconds: float = 1.0,
    ) -> None:
        self.state = state  #: the current one; only the thread replaces it
        self._save = save
        self._clock = clock
        self._dispatch = dispatch
        self._record = record
        self._problems = problems
        self._retry_seconds = retry_seconds
        self._when_idle = when_idle
        self._idle_seconds = idle_seconds
        self._saved = False  #: whether something was saved since ``when_idle`` was called
        self.start_pending: StartPending = lambda _: None  #: called with waiting pods that need their device plugins
        self._events: list[AgentEvent] = []  #: not dispatched yet
        self._unrecorded: list[AgentEvent] = []  #: events that are not in the history yet
        self._save_error = "" if problems else "the state is not written yet"  #: empty: it is written
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._results: dict[asyncio.AbstractEventLoop, deque[_Job]] = {}  #: not yet with their callers
        self._thread = threading.Thread(target=self._work, name="admission queue", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def read_only(self) -> bool:
        return bool(self._problems)

    def problems(self) -> tuple[str, ...]:
        """Return why no pod can be decided on now, each with a remedy."""
        end_of_worker = "" if self.alive or self._problems else _WORKER_DIED
        return (*self._problems, *filter(None, (self._save_error, end_of_worker)))

    def transaction(self) -> Transaction:
        """Start a transaction on the current state that is never applied, for dry runs."""
        return Transaction(self.state, self._clock)

    async def run(
        self,
        action: Callable[Concatenate[Transaction, Parameters], JobResult],
        *args: Parameters.args,
        **kwargs: Parameters.kwargs,
    ) -> JobResult:
        """Run a method of :class:`Transaction` as a job, durably.

        Raise ``NotReadyError`` or ``BusyError`` if that is not possible now. Cancelling the caller cancels a job that
        has not started.
        """
        if self._problems or not self._thread.is_alive():
            raise NotReadyError("; ".join(self._problems) or _WORKER_DIED)
        if self._jobs.qsize() >= MAX_JOBS:
            raise BusyError(f"{MAX_JOBS} requests are in the queue, which is the limit; try again later")
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[JobResult] = loop.create_future()
        job = _Job(action, args, kwargs, loop, waiter)
        self._jobs.put(job)
        try:
            return await waiter
        except asyncio.CancelledError:
            job.cancelled = True
            if not waiter.cancelled():  # it had its result already
                self._hand_over(job)
            raise

    async def flush_events(self) -> None:
        """Wait until all earlier events are in the history and on the streams, unless that takes long."""
        with suppress(TimeoutError, BusyError, NotReadyError):
            await asyncio.wait_for(self.run(Transaction.flush_events), FLUSH_SECONDS)

    def close(self, *, seconds: float = 10.0) -> None:
        """Finish the jobs in the queue within *seconds*, and accept no more."""
        self._problems = (*self._problems, "the agent is stopping; start it again")
        self._jobs.put(None)
        self._thread.join(seconds)

    def _deliver(self, *jobs: _Job) -> None:
        """Have the event loops of the callers give them their results; each loop is woken up once."""
        for job in jobs:
            self._results.setdefault(job.loop, deque()).append(job)
        for loop in {job.loop for job in jobs}:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._resume_callers, self._results[loop])

    def _resume_callers(self, jobs: deque[_Job]) -> None:
        while jobs:  # other threads may add some meanwhile
            job = jobs.popleft()
            if not job.waiter.done():
                job.waiter.set_result(job.result) if job.error is None else job.waiter.set_exception(job.error)
            else:
                self._hand_over(job)

    def _hand_over(self, job: _Job) -> None:
        """Have another task finish a pending pod whose caller is gone."""
        if isinstance(job.result, PendingAdmission):
            self.start_pending([job.result])

    def _work(self) -> None:
        stop = False
        if not self._problems:
            self._write(self.state)
        while not stop:
            jobs: list[_Job] = []
            try:
                idle = self._idle_seconds if self._saved else None
                seconds = self._retry_seconds if self._save_error else idle
                job = self._jobs.get(timeout=DISPATCH_IDLE_SECONDS if self._events else seconds)
                while job is not None and len(jobs) < MAX_BATCH - 1:
                    jobs.append(job)
                    job = self._jobs.get_nowait()
                stop = job is None
                jobs += [] if job is None else [job]
            except Empty:  # no more jobs now
                pass
            if jobs:
                self._process([job for job in jobs if not job.cancelled])
            elif self._events:
                self._dispatch_events()
            elif self._save_error and not stop:
                self._write(self.state)
            elif self._saved and not stop:
                self._saved = False
                self._when_idle()
        self._dispatch_events()

    def _process(self, jobs: Iterable[_Job], *, admits_waiting: bool = True) -> None:
        state, batch = self._run_all(jobs, admits_waiting=admits_waiting)
        saved = durable = any(transaction.durable for _, transaction in batch)
        try:
            saved = durable and self._write(state, [event for _, transaction in batch for event in transaction.events])
        except StoreFullError as error:
            self._process_each([job for job, _ in batch], error, admits_waiting=admits_waiting)
            return
        if durable and not saved:
            failed_jobs = [job for job, transaction in batch if not transaction.always]
            for job in failed_jobs:
                job.result = None
                job.error = NotReadyError(self._save_error)
            self._deliver(*failed_jobs)
            state, batch = self._run_all(job for job, transaction in batch if transaction.always)
        self.state = state
        events = [event for _, transaction in batch for event in transaction.events]
        if not saved:
            self._unrecorded += events
        self._deliver(*(job for job, transaction in batch if not transaction.after_events))
        self._events += events
        if started_admissions := [admission for _, transaction in batch for admission in transaction.started]:
            self.start_pending(started_admissions)
        jobs_with_events = [job for job, transaction in batch if transaction.after_events]
        if jobs_with_events:
            self._dispatch_events()
        elif len(self._events) >= DISPATCH_BATCH:
            time.sleep(ANSWER_SECONDS)
            self._dispatch_events()
        self._deliver(*jobs_with_events)

    def _process_each(self, jobs: Sequence[_Job], error: StoreFullError, *, admits_waiting: bool) -> None:
        """Try jobs alone that are too large together, and then without admitting waiting pods: a release fits."""
        if len(jobs) > 1 or admits_waiting:
            for job in jobs:
                self._process([job], admits_waiting=len(jobs) > 1)
        else:
            jobs[0].result = None
            jobs[0].error = LedgerFullError(str(error))
            self._deliver(jobs[0])

    def _run_all(
        self, jobs: Iterable[_Job], *, admits_waiting: bool = True
    ) -> tuple[AgentState, list[tuple[_Job, Transaction]]]:
        """Run jobs, each on the state that the previous one left; a failed job changes nothing."""
        state, batch = self.state, list[tuple[_Job, Transaction]]()
        for job in jobs:
            transaction = Transaction(state, self._clock, admits_waiting=admits_waiting)
            try:
                job.result = job.action(transaction, *job.args, **job.kwargs)
            except Exception as error:  # noqa: BLE001 - any error goes to the caller
                job.error = error
                self._deliver(job)
            else:
                state = transaction.state()
                batch.append((job, transaction))
        return state, batch

    def _dispatch_events(self) -> None:
        if self._unrecorded:
            self._record(self._unrecorded)
            self._unrecorded = []
        events, self._events = self._events, []
        if events:
            self._dispatch(events)

    def _write(self, state: AgentState, events: Sequence[AgentEvent] = ()) -> bool:
        """Return whether *state* is durable; if not, ``problems`` reports the error until it is.

        Raise ``StoreFullError`` if a new state is too large; the current one stays.
        """
        try:
            self._save(state, [*self._unrecorded, *events])
        except (OSError, AlignError) as error:
            if isinstance(error, StoreFullError) and state is not self.state:
                raise
            self._save_error = f"no pod can be admitted or released while the state cannot be written: {error}"
        except Exception as error:  # noqa: BLE001 - waiting clients must get an answer
            message = f"{type(error).__name__}: {error}"
            self._save_error = f"the state cannot be written because of a bug in alignup: {message}"
        else:
            self._save_error = ""
            self._saved = True
            self._unrecorded = []
        return not self._save_error


class QueueProbe:
    """A proof that decisions can be made: a job that changes nothing passes through the queue.

    Callers share one probe at a time, so that they never fill the queue.
    """

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
            self._probe = asyncio.create_task(self._queue.run(lambda _: None), name="probe of the admission queue")
            # If no caller waits any longer, the error is retrieved here: asyncio would warn.
            self._probe.add_done_callback(lambda probe: probe.cancelled() or probe.exception())
        await asyncio.shield(self._probe)
