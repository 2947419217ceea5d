"""The ways to run jobs: in this process, in a pool of processes, or on the workers of a Dask cluster.

Executors run the jobs of a comparison. Engines run the tasks of a sweep and return results as they are finished, in any
order; a worker that is lost loses nothing, since its tasks run again elsewhere.
"""

import copyreg
import logging
import pickle
import signal
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from multiprocessing import forkserver, get_context, resource_tracker
from multiprocessing.synchronize import Event
from os import sched_getaffinity
from queue import SimpleQueue
from threading import current_thread, main_thread
from types import MappingProxyType
from typing import Any, Protocol, Self, TypeVar

from alignup.align.errors import AlignError, SettingsError

Value = TypeVar("Value")
Row = Mapping[str, str]  #: the results of a task, by column
Job = Callable[[bytes], Row]  #: runs a packed task

MAX_LOSSES = 3  #: pools in a row that break before any of their tasks is finished
_KILLED = (
    "a simulation ends the process that runs it, again and again: it may need more memory than there is; "
    "run fewer at once, or a smaller workload"
)
CONNECT_TIMEOUT = 30.0  #: seconds to reach a Dask scheduler


class SerialExecutor(Executor):
    def submit(self, job: Callable[..., Value], /, *args: object, **kwargs: object) -> Future[Value]:
        future: Future[Value] = Future()
        try:
            future.set_result(job(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - raised by ``future.result``
            future.set_exception(error)
        return future


class ProcessPool(ProcessPoolExecutor):
    """A pool of *count* processes (default: the CPUs available to this process).

    They are not forked from this one, so they inherit neither its threads nor its sockets. SIGINT reaches only this
    process. It sets an event, and workers stop by themselves when their jobs call :func:`raise_if_cancelled`: a pool
    whose workers are killed may never end.
    """

    def __init__(self, count: int | None = None) -> None:
        resource_tracker.ensure_running()  # started later, it would unblock SIGINT
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # workers inherit this
        try:
            forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        context = get_context("forkserver")
        self._stop = context.Event()
        count = count or len(sched_getaffinity(0))
        super().__init__(count, mp_context=context, initializer=_initialize_worker, initargs=(self._stop,))

    def submit(self, job: Callable[..., Value], /, *args: object, **kwargs: object) -> Future[Value]:
        with _interrupts_deferred():  # an interrupted submit would leave the pool inconsistent
            return super().submit(job, *args, **kwargs)

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._stop.set()
        self.shutdown(wait=True, cancel_futures=True)


def run_jobs(
    executor: Executor,
    job: Callable[..., Value],
    arguments: Iterable[tuple[object, ...]],
    on_progress: Callable[[int], None],
) -> list[Value]:
    """Return the results of *job* in the order of its *arguments*; *on_progress* gets the number of finished jobs.

    When all are finished, the error of a failed job is raised. An interruption cancels the jobs that have not started;
    the executor ends the others. Waiting can be interrupted at any time. The waiting functions of the standard library
    cannot: a wait that is interrupted while it takes a job's lock never releases it, and the pool, which needs the lock
    too, never ends.
    """
    futures: list[Future[Value]] = []
    ended: SimpleQueue[Future[Value]] = SimpleQueue()
    done = 0
    try:
        for args in arguments:
            future = executor.submit(job, *args)
            with _interrupts_deferred():
                futures.append(future)
                future.add_done_callback(ended.put)
            while not ended.empty():
                ended.get()
                done += 1
            on_progress(done)
        while done < len(futures):
            ended.get()
            done += 1
            on_progress(done)
        with _interrupts_deferred():
            return [future.result() for future in futures]
    finally:
        with _interrupts_deferred():
            for future in futures:
                future.cancel()


class JobCancelledError(Exception):
    """An error in a job whose result is not needed any more."""


def raise_if_cancelled(*_: object) -> None:
    """Raise :class:`JobCancelledError` if the pool of this worker is stopping."""
    if _stop_events and _stop_events[0].is_set():
        raise JobCancelledError


#: In a worker, the event that stops it.
_stop_events: list[Event] = []


def _initialize_worker(stop: Event) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _stop_events[:] = [stop]


@contextmanager
def _interrupts_deferred() -> Iterator[None]:
    """Defer SIGINT to the end of the block; only the main thread receives it."""
    if current_thread() is not main_thread():
        yield
        return
    received: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if received:
            signal.raise_signal(signal.SIGINT)


def _read_only(mapping: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(mapping)


copyreg.pickle(MappingProxyType, lambda view: (_read_only, (dict(view),)))  # settings contain some


def pack(value: object) -> bytes:
    return zlib.compress(pickle.dumps(value, protocol=5), level=1)


def unpack(parcel: bytes) -> Any:  # noqa: ANN401 - the packed value
    return pickle.loads(zlib.decompress(parcel))  # noqa: S301 - our own data


class Engine(AbstractContextManager["Engine", None], Protocol):
    def results(self, job: Job, parcels: Sequence[bytes]) -> Iterator[Row]:
        """Yield the result of *job* for each of *parcels*, as they are finished."""


class SerialEngine(Engine):
    def __exit__(self, *error: object) -> None:
        pass

    def results(self, job: Job, parcels: Sequence[bytes]) -> Iterator[Row]:
        yield from map(job, parcels)


class ProcessEngine(Engine):
    """An engine with *count* processes (default: one per CPU); a pool whose process is killed is replaced."""

    def __init__(self, count: int | None = None) -> None:
        self._count = count
        self._pool: ProcessPool | None = None

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.__exit__(*error)

    def results(self, job: Job, parcels: Sequence[bytes]) -> Iterator[Row]:
        left = dict(enumerate(parcels))
        losses = 0
        while left:
            before = len(left)
            ended: SimpleQueue[Future[Row]] = SimpleQueue()
            try:
                self._pool = pool = self._pool or ProcessPool(self._count)
                numbers = {pool.submit(job, parcel): number for number, parcel in left.items()}
                for future in numbers:
                    future.add_done_callback(ended.put)
                for _ in range(before):
                    done = ended.get()
                    row = done.result()
                    del left[numbers[done]]
                    yield row
            except BrokenProcessPool:
                losses = losses + 1 if len(left) == before else 0
                if losses >= MAX_LOSSES:
                    raise AlignError(_KILLED) from None
                self._pool = None


class DaskEngine(Engine):
    """An engine that uses the Dask cluster at *address*, or a local one with *count* processes."""

    def __init__(
        self, address: str | None = None, count: int | None = None, *, timeout: float = CONNECT_TIMEOUT
    ) -> None:
        self._address, self._count, self._timeout = address, count, timeout
        self.client: Any = None  #: a ``distributed.Client``, from the start on

    def __enter__(self) -> Self:
        try:
            from distributed import Client  # noqa: PLC0415 - an extra, and slow to import
        except ImportError as error:
            raise SettingsError("Dask is not installed: it is in the extra fleet") from error
        try:
            if self._address is not None:
                self.client = Client(self._address, timeout=self._timeout, set_as_default=False)  # type: ignore[no-untyped-call]
            else:
                self.client = Client(  # type: ignore[no-untyped-call]
                    n_workers=self._count,
                    threads_per_worker=1,
                    processes=True,
                    dashboard_address=None,
                    silence_logs=logging.CRITICAL,
                    set_as_default=False,
                )
        except (OSError, ValueError) as error:
            raise SettingsError(f"no Dask scheduler answers at {self._address}: {error}") from error
        return self

    def __exit__(self, *error: object) -> None:
        if self.client is not None:
            cluster = self.client.cluster
            self.client.close()
            if cluster is not None and self._address is None:
                cluster.close()

    def results(self, job: Job, parcels: Sequence[bytes]) -> Iterator[Row]:
        from distributed import as_completed  # noqa: PLC0415 - an extra, as above
        from distributed.scheduler import KilledWorker  # noqa: PLC0415 - an extra, as above

        futures = self.client.map(job, parcels, pure=False, retries=MAX_LOSSES)
        try:
            for _, row in as_completed(futures, loop=self.client.loop, with_results=True):  # type: ignore[no-untyped-call]
                yield row
        except KilledWorker:
            raise AlignError(_KILLED) from None


def make_engine(name: str, *, jobs: int | None, address: str | None) -> Engine:
    """Return the engine called serial, processes or dask."""
    if name == "serial":
        return SerialEngine()
    return DaskEngine(address, jobs) if name == "dask" else ProcessEngine(jobs)
