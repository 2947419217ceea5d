"""Where jobs are done: here, or in processes of their own; and how what they need travels."""

import io
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
from typing import Any, Generic, ParamSpec, TypeVar

JobParams = ParamSpec("JobParams")
Value = TypeVar("Value")


class SerialExecutor(Executor):
    """Does every job at once, where it is asked to."""

    def submit(
        self, job: Callable[JobParams, Value], /, *args: JobParams.args, **kwargs: JobParams.kwargs
    ) -> Future[Value]:
        """The job, done: what it raises comes with its result. Only an interruption is not held back."""
        future: Future[Value] = Future()
        try:
            future.set_result(job(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - handed on to whoever asks for the result
            future.set_exception(error)
        return future


def process_pool(count: int | None = None) -> ProcessPoolExecutor:
    """*count* processes to do jobs in, as many as there are CPUs to run on unless said.

    Left by an interruption or an error it ends within a moment, if jobs ask now and then whether they are
    :func:`raise_if_cancelled`.
    """
    return _Processes(count or len(sched_getaffinity(0)))


class _Processes(ProcessPoolExecutor):
    """Processes that are not forked from this one: its threads and sockets are none of their business.

    An interruption is for this process only. Workers are told to stop, and do so by themselves, because a pool whose
    workers are killed may never end.
    """

    def __init__(self, count: int) -> None:
        _start_server()
        context = get_context("forkserver")
        self._stop = context.Event()
        super().__init__(count, mp_context=context, initializer=_begin, initargs=(self._stop,))

    def submit(
        self, job: Callable[JobParams, Value], /, *args: JobParams.args, **kwargs: JobParams.kwargs
    ) -> Future[Value]:
        """The job, to be done; an interruption meanwhile comes after it, so that the pool stays whole."""
        with _interrupted_later():
            return super().submit(job, *args, **kwargs)

    def __exit__(self, kind: type[BaseException] | None, *what: object) -> None:
        if kind is not None:
            self._stop.set()
        self.shutdown(wait=True, cancel_futures=True)


class JobBatch(Generic[Value]):
    """Jobs of an executor; *told* hears how many are done, time and again.

    They can be interrupted at any moment. The standard library's own ways to wait cannot: whoever is interrupted as it
    takes a job's lock never gives it back, and the pool, which needs it too, never ends.
    """

    def __init__(self, executor: Executor, told: Callable[[int], None]) -> None:
        self._executor = executor
        self._told = told
        self._futures: list[Future[Value]] = []
        self._ended: SimpleQueue[Future[Value]] = SimpleQueue()
        self._done = 0

    def submit(self, job: Callable[JobParams, Value], /, *args: JobParams.args, **kwargs: JobParams.kwargs) -> None:
        """One more to be done."""
        future = self._executor.submit(job, *args, **kwargs)
        with _interrupted_later():
            self._futures.append(future)
            future.add_done_callback(self._ended.put)
        if self._ended.empty():
            self._told(self._done)
        while not self._ended.empty():
            self._next()

    def results(self) -> list[Value]:
        """What came of each, in the order they were submitted; what went wrong is raised."""
        while self._done < len(self._futures):
            self._next()
        with _interrupted_later():
            return [future.result() for future in self._futures]

    def cancel(self) -> None:
        """Leave none waiting; those that have begun are the executor's to end."""
        with _interrupted_later():
            for future in self._futures:
                future.cancel()

    def _next(self) -> None:
        self._ended.get()
        self._done += 1
        self._told(self._done)


class JobCancelledError(Exception):
    """Nobody waits for this job any more."""


def raise_if_cancelled(*_: object) -> None:
    """To be called now and then by a job: raises :class:`JobCancelledError` when it should stop."""
    if _orders and _orders[0].is_set():
        raise JobCancelledError


#: In a worker, what tells it to stop.
_orders: list[Event] = []


def _start_server() -> None:
    """Start the process that workers are forked from, so that no interruption ever reaches them, however young."""
    resource_tracker.ensure_running()  # on its own way it would let interruptions through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(stop: Event) -> None:
    """The first thing a worker does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _orders[:] = [stop]


@contextmanager
def _interrupted_later() -> Iterator[None]:
    """Put an interruption off until the end; other threads than the main one are not interrupted anyway."""
    if current_thread() is not main_thread():
        yield
        return
    came: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            signal.raise_signal(signal.SIGINT)


def pack(value: object) -> bytes:
    """*value* in few bytes."""
    stream = io.BytesIO()
    _Pickler(stream, protocol=5).dump(value)
    return zlib.compress(stream.getvalue(), level=1)


def unpack(parcel: bytes) -> Any:  # noqa: ANN401 - whatever was packed
    """What was packed, by this program; not for parcels of strangers."""
    return pickle.loads(zlib.decompress(parcel))  # noqa: S301 - our own


class _Pickler(pickle.Pickler):
    """Also takes read-only views of mappings, which settings are made of."""

    def reducer_override(self, value: object) -> Any:  # noqa: ANN401 - as pickle wants it
        if isinstance(value, MappingProxyType):
            return _read_only, (dict(value),)
        return NotImplemented


def _read_only(mapping: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    """A view of *mapping*; its class has no name by which another process could find it."""
    return MappingProxyType(mapping)
