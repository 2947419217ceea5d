"""Where the tasks of a sweep run: in this process, in several, or on the workers of a Dask cluster.

An engine returns results as they are finished, in any order. A worker that is lost loses nothing: its tasks run again
elsewhere.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from enum import StrEnum
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from alignup.align.errors import SettingsError
from alignup.simulate.executors import ProcessPool
from alignup.simulate.sweeps.tasks import Row

if TYPE_CHECKING:
    from concurrent.futures import Future

MAX_LOSSES = 3  #: pools in a row that break before any of their tasks is finished
CONNECT_TIMEOUT = 30.0  #: seconds to reach a Dask scheduler

Job = Callable[[bytes], Row]


class EngineName(StrEnum):
    SERIAL = "serial"
    PROCESSES = "processes"
    DASK = "dask"


class Engine(Protocol):
    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def results(self, job: Job, parcels: Sequence[bytes]) -> Iterator[Row]:
        """The result of *job* for each of *parcels*, as they are finished."""


class SerialEngine:
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def results(self, job: Job, parcels: Sequence[bytes]) -> Iterator[Row]:
        yield from map(job, parcels)


class ProcessEngine:
    """Runs tasks in *count* processes (default: one per CPU); a pool whose process is killed is replaced."""

    def __init__(self, count: int | None = None) -> None:
        self._count = count
        self._pool: ProcessPool | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.__exit__(kind, error, trace)

    def results(self, job: Job, parcels: Sequence[bytes]) -> Iterator[Row]:
        left = dict(enumerate(parcels))
        losses = 0
        while left:
            before = len(left)
            try:
                for number, row in self._attempt(job, left):
                    del left[number]
                    yield row
            except BrokenProcessPool:
                losses = losses + 1 if len(left) == before else 0
                if losses >= MAX_LOSSES:
                    raise
                self._pool = None

    def _attempt(self, job: Job, left: dict[int, bytes]) -> Iterator[tuple[int, Row]]:
        self._pool = pool = self._pool or ProcessPool(self._count)
        ended: SimpleQueue[Future[Row]] = SimpleQueue()
        numbers: dict[Future[Row], int] = {}
        for number, parcel in left.items():
            future = pool.submit(job, parcel)
            numbers[future] = number
            future.add_done_callback(ended.put)
        for _ in range(len(numbers)):
            done = ended.get()
            yield numbers[done], done.result()


class DaskEngine:
    """Runs tasks on the Dask cluster at *address*, or on a local one with *count* processes."""

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
        from distributed import as_completed  # noqa: PLC0415

        futures = self.client.map(job, parcels, pure=False, retries=MAX_LOSSES)
        for _, row in as_completed(futures, loop=self.client.loop, with_results=True):  # type: ignore[no-untyped-call]
            yield row


def make_engine(name: EngineName, *, jobs: int | None, address: str | None) -> Engine:
    if name is EngineName.SERIAL:
        return SerialEngine()
    return ProcessEngine(jobs) if name is EngineName.PROCESSES else DaskEngine(address, jobs)
