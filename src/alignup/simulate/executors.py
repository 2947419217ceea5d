"""Engines, the ways to run jobs: in this process, in a pool of processes, or on the workers of a Dask cluster.

They return results as they are finished, in any order; a worker that is lost loses nothing, since its jobs run again
elsewhere.
"""

import copyreg
import logging
import pickle
import signal
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from multiprocessing import forkserver, get_context, resource_tracker
from multiprocessing.synchronize import Event
from os import sched_getaffinity
from queue import Empty, SimpleQueue
from threading import current_thread, main_thread
from types import MappingProxyType
from typing import Any, Protocol, Self, TypeVar

from alignup.align.errors import AlignError, SettingsError

Parcel = TypeVar("Parcel")  #: the input of a job; it can be pickled
Value = TypeVar("Value")

MAX_LOSSES = 3  #: pools in a row that break before any of their tasks is finished
_KILLED = (
    "a simulation ends the process that runs it, again and again: it may need more memory than there is; "
    "run fewer at once, or a smaller workload"
)
CONNECT_TIMEOUT = 30.0  #: seconds to reach a Dask scheduler
WORKER_TIMEOUT = 60.0  #: seconds without any worker of a local Dask cluster
RESULT_TIMEOUT = 3600.0  #: seconds without any result of a Dask cluster


class EngineError(AlignError):
    """An engine cannot finish its jobs; the results so far are valid."""


class ProcessPool(ProcessPoolExecutor):
    """A pool of *count* processes (default: the CPUs available to this process).

    They are not forked from this one, so they inherit neither its threads nor its sockets. SIGINT reaches only this
    process. It sets an event, and workers stop by themselves when their jobs call :func:`raise_if_cancelled`: a pool
    whose workers are killed may never end.
    """

    def __init__(self, count: int | None = None) -> None:
        resource_tracker.ensure_running()  # started later, it would unblock SIGINT
        old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # workers inherit this
        try:
            forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
        context = get_context("forkserver")
        self._stop = context.Event()
        count = count or len(sched_getaffinity(0))
        super().__init__(count, mp_context=context, initializer=_initialize_worker, initargs=(self._stop,))

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._stop.set()
        self.shutdown(wait=True, cancel_futures=True)


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
    received_signals: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: received_signals.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if received_signals:
            signal.raise_signal(signal.SIGINT)


def _read_only(mapping: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(mapping)


copyreg.pickle(MappingProxyType, lambda view: (_read_only, (dict(view),)))  # settings contain some


def pack(value: object) -> bytes:
    return zlib.compress(pickle.dumps(value, protocol=5), level=1)


def unpack(parcel: bytes) -> Any:  # noqa: ANN401 - the packed value
    return pickle.loads(zlib.decompress(parcel))  # noqa: S301 - our own data


class Engine(AbstractContextManager["Engine", None], Protocol):
    def results(self, job: Callable[[Parcel], Value], parcels: Sequence[Parcel]) -> Iterator[Value]:
        """Yield the result of *job* for each of *parcels*, as they are finished."""


class SerialEngine(Engine):
    def __exit__(self, *error: object) -> None:
        pass

    def results(self, job: Callable[[Parcel], Value], parcels: Sequence[Parcel]) -> Iterator[Value]:
        yield from map(job, parcels)


class ProcessEngine(Engine):
    """An engine with *count* processes (default: one per CPU); a pool whose process is killed is replaced."""

    def __init__(self, count: int | None = None) -> None:
        self._count = count
        self._pool: ProcessPool | None = None

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.__exit__(*error)

    def results(self, job: Callable[[Parcel], Value], parcels: Sequence[Parcel]) -> Iterator[Value]:
        waiting_parcels = dict(enumerate(parcels))
        losses = 0
        while waiting_parcels:
            count = len(waiting_parcels)
            ended_futures: SimpleQueue[Future[Value]] = SimpleQueue()
            try:
                self._pool = pool = self._pool or ProcessPool(self._count)
                # A call that is interrupted while it takes a lock never releases it, and the pool, which needs it, too,
                # never ends. That is why the waiting functions of the standard library are not used here.
                with _interrupts_deferred():
                    numbers = {pool.submit(job, parcel): number for number, parcel in waiting_parcels.items()}
                    for future in numbers:
                        future.add_done_callback(ended_futures.put)
                for _ in range(count):
                    ended_future = ended_futures.get()
                    value = ended_future.result()
                    del waiting_parcels[numbers[ended_future]]
                    yield value
            except BrokenProcessPool:
                losses = losses + 1 if len(waiting_parcels) == count else 0
                if losses >= MAX_LOSSES:
                    raise EngineError(_KILLED) from None
                self._pool = None


class DaskEngine(Engine):
    """An engine that uses the Dask cluster at *address*, or a local one with *count* processes.

    It gives up if there is no result, or no worker of a local cluster, for so many seconds.
    """

    def __init__(
        self,
        address: str | None = None,
        count: int | None = None,
        *,
        timeout: float = CONNECT_TIMEOUT,
        worker_timeout: float = WORKER_TIMEOUT,
        result_timeout: float = RESULT_TIMEOUT,
    ) -> None:
        self._address = address
        self._count = count
        self._timeout = timeout
        self._worker_timeout = worker_timeout
        self._result_timeout = result_timeout
        self.client: Any = None  #: a ``distributed.Client``, from the start on

    def __enter__(self) -> Self:
        try:
            import dask.config  # noqa: PLC0415 - an extra, and slow to import
            from distributed import Client  # noqa: PLC0415 - as above
        except ImportError as error:
            raise SettingsError("Dask is not installed: it is in the extra fleet") from error
        try:
            if self._address is not None:
                self.client = Client(self._address, timeout=self._timeout, set_as_default=False)  # type: ignore[no-untyped-call]
            else:
                with dask.config.set({"distributed.scheduler.no-workers-timeout": self._worker_timeout}):
                    self.client = Client(  # type: ignore[no-untyped-call]
                        n_workers=self._count,
                        threads_per_worker=1,
                        processes=True,
                        # The scheduler always serves HTTP: without an address, at a port that others may use.
                        dashboard_address="127.0.0.1:0",
                        scheduler_kwargs={"dashboard": False},
                        silence_logs=logging.CRITICAL,
                        set_as_default=False,
                    )
        except (OSError, ValueError, RuntimeError) as error:
            if self._address is None:
                raise EngineError(f"cannot start a local Dask cluster: {error}") from error
            raise SettingsError(f"no Dask scheduler answers at {self._address}: {error}") from error
        return self

    def __exit__(self, *error: object) -> None:
        if self.client is not None:
            cluster = self.client.cluster
            self.client.close()
            if cluster is not None and self._address is None:
                cluster.close()

    def results(self, job: Callable[[Parcel], Value], parcels: Sequence[Parcel]) -> Iterator[Value]:
        import distributed  # noqa: PLC0415 - an extra, as above

        ended_futures: SimpleQueue[Any] = SimpleQueue()
        futures = self.client.map(job, parcels, pure=False, retries=MAX_LOSSES)
        for future in futures:
            future.add_done_callback(ended_futures.put)
        try:
            for _ in futures:
                yield ended_futures.get(timeout=self._result_timeout).result(timeout=self._result_timeout)
        except distributed.KilledWorker:
            raise EngineError(_KILLED) from None
        except distributed.scheduler.NoWorkerError:
            raise EngineError(f"no worker of the local Dask cluster is left. Perhaps {_KILLED}") from None
        except distributed.CancelledError:
            raise EngineError("the connection to the Dask scheduler is lost") from None
        except (Empty, TimeoutError):
            problem = f"no simulation is finished within {self._result_timeout:g} seconds"
            raise EngineError(f"{problem}: the Dask cluster may have no worker, or a simulation takes longer") from None


def make_engine(name: str, *, jobs: int | None, address: str | None, result_timeout: float) -> Engine:
    """Return the engine called serial, processes or dask."""
    if name == "serial":
        return SerialEngine()
    return DaskEngine(address, jobs, result_timeout=result_timeout) if name == "dask" else ProcessEngine(jobs)
