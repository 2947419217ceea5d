"""How work travels."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from time import monotonic, sleep
from types import MappingProxyType

import pytest
from hypothesis import given

from alignup.fleet.executors import JobBatch, SerialExecutor, pack, process_pool, raise_if_cancelled, unpack
from tests.align.hosts import hosts
from tests.fleet.workloads import some, workloads


@some
@given(hosts(), workloads(max_pods=3))
def test_what_is_packed_is_unpacked_as_it_was(one, events):
    machine, settings, happened = unpack(pack((one.machine, one.settings, events)))

    assert (machine, settings, happened) == (one.machine, one.settings, events)


def test_read_only_views_stay_read_only():
    view = unpack(pack(MappingProxyType({"a": 1})))

    assert view == {"a": 1}
    assert isinstance(view, MappingProxyType)


def test_serial_work_is_done_when_it_is_asked_for():
    future = SerialExecutor().submit(divmod, 7, 2)

    assert future.done()
    assert future.result() == (3, 1)


def test_serial_work_fails_when_the_result_is_asked_for():
    future = SerialExecutor().submit(divmod, 7, 0)

    with pytest.raises(ZeroDivisionError):
        future.result()


def test_an_interruption_is_not_held_back():
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        SerialExecutor().submit(interrupted)


def test_results_come_in_the_order_of_the_jobs_and_each_is_told_of():
    told: list[int] = []
    with ThreadPoolExecutor(2) as executor:
        jobs: JobBatch[float] = JobBatch(executor, told.append)
        for seconds in (0.05, 0.0, 0.02):
            jobs.submit(slept, seconds)
        found = jobs.results()

    assert found == [0.05, 0.0, 0.02]
    assert told == sorted(told)
    assert {1, 2, 3} <= set(told)


def slept(seconds: float) -> float:
    sleep(seconds)
    return seconds


def test_what_goes_wrong_is_raised_when_all_are_done():
    jobs: JobBatch[tuple[int, int]] = JobBatch(SerialExecutor(), lambda _: None)
    jobs.submit(divmod, 7, 0)
    jobs.submit(divmod, 7, 2)

    with pytest.raises(ZeroDivisionError):
        jobs.results()


def test_jobs_that_are_given_up_are_not_begun():
    begun: list[int] = []
    leave = Event()
    with ThreadPoolExecutor(1) as executor:
        jobs: JobBatch[object] = JobBatch(executor, lambda _: None)
        jobs.submit(leave.wait)
        jobs.submit(begun.append, 1)
        jobs.cancel()
        leave.set()

    assert begun == []


def endless(started: str) -> None:
    """A job that goes on until nobody wants it any more."""
    Path(started).touch()
    while monotonic():
        raise_if_cancelled()
        sleep(0.01)


def test_processes_that_are_left_in_a_hurry_stop_their_jobs(tmp_path):
    started = tmp_path / "started"

    with pytest.raises(ZeroDivisionError), process_pool(1) as executor:  # noqa: PT012 - leaving is what is tried
        jobs = [executor.submit(endless, str(started)) for _ in range(5)]
        while not started.exists():
            sleep(0.01)
        raise ZeroDivisionError

    assert all(job.done() for job in jobs)
    assert any(job.cancelled() for job in jobs)


def test_here_every_job_is_wanted():
    raise_if_cancelled()
