from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from time import monotonic, sleep
from types import MappingProxyType

import pytest
from hypothesis import given

from alignup.simulate.executors import ProcessPool, SerialExecutor, pack, raise_if_cancelled, run_jobs, unpack
from tests.align.hosts import hosts
from tests.simulate.workloads import some, workloads


@some
@given(hosts(), workloads(max_pods=3))
def test_packing_round_trips(kubelet, events):
    machine, settings, unpacked = unpack(pack((kubelet.machine, kubelet.settings, events)))

    assert (machine, settings, unpacked) == (kubelet.machine, kubelet.settings, events)


def test_read_only_views_stay_read_only():
    view = unpack(pack(MappingProxyType({"a": 1})))

    assert view == {"a": 1}
    assert isinstance(view, MappingProxyType)


def test_the_serial_executor_runs_jobs_at_once():
    future = SerialExecutor().submit(divmod, 7, 2)

    assert future.done()
    assert future.result() == (3, 1)


def test_the_serial_executor_raises_errors_with_the_result():
    future = SerialExecutor().submit(divmod, 7, 0)

    with pytest.raises(ZeroDivisionError):
        future.result()


def test_the_serial_executor_does_not_catch_interruptions():
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        SerialExecutor().submit(interrupted)


def test_results_are_in_submission_order_and_progress_is_reported():
    progress: list[int] = []
    with ThreadPoolExecutor(2) as executor:
        third = Event()
        jobs = [(after, third, 1), (after, None, 2), (setting, third, 3)]
        results = run_jobs(executor, call, jobs, progress.append)

    assert results == [1, 2, 3]
    assert progress == sorted(progress)
    assert {1, 2, 3} <= set(progress)


def call(function, *args):
    return function(*args)


def after(event: Event | None, value: int) -> int:
    """Return *value* after *event*."""
    assert event is None or event.wait(60)
    return value


def setting(event: Event, value: int) -> int:
    event.set()
    return value


def test_errors_are_raised_after_all_jobs():
    progress: list[int] = []

    with pytest.raises(ZeroDivisionError):
        run_jobs(SerialExecutor(), divmod, [(7, 0), (7, 2)], progress.append)

    assert progress[-1] == 2


def test_cancelled_jobs_do_not_start():
    started: list[int] = []
    leave = Event()

    def jobs():
        yield (leave.wait,)
        yield started.append, 1
        raise KeyboardInterrupt

    with ThreadPoolExecutor(1) as executor:
        with pytest.raises(KeyboardInterrupt):
            run_jobs(executor, call, jobs(), lambda _: None)
        leave.set()

    assert started == []


def endless(started: str) -> None:
    """Run until cancelled."""
    Path(started).touch()
    while monotonic():
        raise_if_cancelled()
        sleep(0.01)


def test_an_error_stops_the_jobs_of_a_process_pool(tmp_path):
    started = tmp_path / "started"

    with pytest.raises(ZeroDivisionError), ProcessPool(1) as executor:  # noqa: PT012 - the exit is tested
        jobs = [executor.submit(endless, str(started)) for _ in range(5)]
        while not started.exists():
            sleep(0.01)
        raise ZeroDivisionError

    assert all(job.done() for job in jobs)
    assert any(job.cancelled() for job in jobs)


def test_jobs_outside_of_a_pool_are_never_cancelled():
    raise_if_cancelled()
