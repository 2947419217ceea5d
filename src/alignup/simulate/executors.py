"""Runs jobs in this process or in a pool of processes, and serializes their arguments."""

import copyreg
import pickle
import signal
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import forkserver, get_context, resource_tracker
from multiprocessing.synchronize import Event
from os import sched_getaffinity
from queue import SimpleQueue
from threading import current_thread, main_thread
from types import MappingProxyType
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


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

    def __exit__(self, kind: type[BaseException] | None, *what: object) -> None:
        if kind is not None:
            self._stop.set()
        self.shutdown(wait=True, cancel_futures=True)


class JobBatch(Generic[Value]):
    """Jobs of an executor; *on_progress* gets the number of finished jobs.

    Waiting can be interrupted at any time. The waiting functions of the standard library cannot: a wait that is
    interrupted while it takes a job's lock never releases it, and the pool, which needs the lock too, never ends.
    """

    def __init__(self, executor: Executor, on_progress: Callable[[int], None]) -> None:
        self._executor = executor
        self._on_progress = on_progress
        self._futures: list[Future[Value]] = []
        self._ended: SimpleQueue[Future[Value]] = SimpleQueue()
        self._done = 0

    def submit(self, job: Callable[..., Value], *args: object) -> None:
        future = self._executor.submit(job, *args)
        with _interrupts_deferred():
            self._futures.append(future)
            future.add_done_callback(self._ended.put)
        if self._ended.empty():
            self._on_progress(self._done)
        while not self._ended.empty():
            self._wait_for_one()

    def results(self) -> list[Value]:
        """The result of each job in submission order; raises the error of a failed job."""
        while self._done < len(self._futures):
            self._wait_for_one()
        with _interrupts_deferred():
            return [future.result() for future in self._futures]

    def cancel(self) -> None:
        """Cancel the jobs that have not started; the executor ends the others."""
        with _interrupts_deferred():
            for future in self._futures:
                future.cancel()

    def _wait_for_one(self) -> None:
        self._ended.get()
        self._done += 1
        self._on_progress(self._done)


class JobCancelledError(Exception):
    """The result of this job is not needed any more."""


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
