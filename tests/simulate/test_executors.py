import signal
from pathlib import Path
from time import monotonic, sleep
from types import MappingProxyType
from unittest.mock import Mock

import pytest
from hypothesis import given

from alignup.simulate import executors
from alignup.simulate.executors import ProcessEngine, ProcessPool, pack, raise_if_cancelled, unpack
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


class InterruptedPool:
    """A pool with futures of which every call is interrupted; *calls* has those that ended nevertheless."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __exit__(self, *error: object) -> None: ...

    def submit(self, _job: object, _parcel: object) -> Mock:
        self._be_interrupted("submit")
        return Mock(add_done_callback=lambda _: self._be_interrupted("add_done_callback"))

    def _be_interrupted(self, call: str) -> None:
        signal.raise_signal(signal.SIGINT)
        self.calls.append(call)


def test_an_interruption_waits_until_all_jobs_are_submitted(monkeypatch):
    """A lock that an interrupted call has taken is never released, and the pool never ends."""
    pool = InterruptedPool()
    monkeypatch.setattr(executors, "ProcessPool", lambda _: pool)

    with pytest.raises(KeyboardInterrupt), ProcessEngine() as engine:
        next(engine.results(str, [1, 2]))

    assert pool.calls == ["submit", "submit", "add_done_callback", "add_done_callback"]


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
