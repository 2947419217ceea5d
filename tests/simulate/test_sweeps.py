"""Sweeps: every engine gives the same file, and interruptions lose nothing."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from urllib.parse import urlsplit

import dask.config
import pytest

from alignup.align.errors import SettingsError, TraceError
from alignup.simulate.cluster_files import WorkloadDescription
from alignup.simulate.executors import DaskEngine, EngineError, ProcessEngine, SerialEngine, pack
from alignup.simulate.sweeps import COLUMNS, ResultsFile, SweepTask, run_packed, run_sweep
from tests.deadlines import wait_for
from tests.simulate.clusters import group
from tests.simulate.jobs import die, die_once

WORKLOAD = WorkloadDescription(profile="telco", pods=10, load=2.0)


def tasks(count=4):
    groups = (group(count=2),)
    return [
        SweepTask(
            machine="m",
            configuration="c",
            strategy=strategy,
            seed=seed,
            groups=groups,
            workload=WORKLOAD,
            retries=1,
            fingerprint=f"{strategy}{seed}",
        )
        for strategy in ("alignup", "blind-most-allocated")
        for seed in range(count // 2)
    ]


@pytest.fixture(scope="module")
def serial(tmp_path_factory):
    """The file of a sweep in one process."""
    path = tmp_path_factory.mktemp("serial") / "results.csv"
    rows = run_sweep(tasks(), ResultsFile(path), SerialEngine())
    assert [row["seed"] for row in rows] == ["0", "1", "0", "1"]
    return path.read_text()


class StoppingEngine(SerialEngine):
    """Stops after two results."""

    def results(self, job, parcels):
        yield from map(job, parcels[:2])
        raise KeyboardInterrupt


class CountingEngine(SerialEngine):
    def __init__(self):
        self.ran = 0

    def results(self, job, parcels):
        self.ran = len(parcels)
        yield from super().results(job, parcels)


def test_an_interrupted_sweep_continues(tmp_path, serial):
    path = tmp_path / "results.csv"
    with pytest.raises(KeyboardInterrupt):
        run_sweep(tasks(), ResultsFile(path), StoppingEngine())
    with path.open("a") as file:
        file.write("m,c,blind-most-allocated,0,2,torn")

    engine, seen = CountingEngine(), []
    run_sweep(tasks(), ResultsFile(path), engine, progress=lambda *counts: seen.append(counts))

    assert engine.ran == 2
    assert seen == [(2, 4), (3, 4), (4, 4)]
    assert path.read_text() == serial


def test_a_complete_sweep_runs_nothing(tmp_path, serial):
    path = tmp_path / "results.csv"
    path.write_text(serial)
    engine = CountingEngine()

    run_sweep(tasks(), ResultsFile(path), engine)

    assert engine.ran == 0
    assert path.read_text() == serial


def test_the_order_of_results_does_not_matter(tmp_path, serial):
    class Backwards(SerialEngine):
        def results(self, job, parcels):
            yield from map(job, reversed(parcels))

    run_sweep(tasks(), ResultsFile(tmp_path / "results.csv"), Backwards())

    assert (tmp_path / "results.csv").read_text() == serial


def test_results_of_other_sweeps_are_not_mixed(tmp_path, serial):
    path = tmp_path / "results.csv"
    path.write_text(serial)

    with pytest.raises(TraceError, match=r"has a result of another sweep \(m c alignup 0\)"):
        run_sweep([replace(task, fingerprint="x") for task in tasks()], ResultsFile(path), SerialEngine())
    with pytest.raises(TraceError, match=r"has a result of another sweep \(m c alignup 1\)"):
        run_sweep(tasks(2), ResultsFile(path), SerialEngine())
    path.write_text("a,b\n")
    with pytest.raises(TraceError, match="not the results of a sweep"):
        ResultsFile(path)


@pytest.mark.parametrize("text", ["first\nlast", '{"a": 1}', "machine,other", "machine,configuration\nm,c"])
def test_a_file_of_something_else_is_left_alone(tmp_path, text):
    path = tmp_path / "notes.txt"
    path.write_text(text)

    with pytest.raises(TraceError, match="not the results of a sweep"):
        ResultsFile(path)

    assert path.read_text() == text


@pytest.mark.parametrize("size", [0, 10, len(",".join(COLUMNS))])
def test_a_sweep_that_was_interrupted_in_its_header_starts_again(tmp_path, serial, size):
    path = tmp_path / "results.csv"
    path.write_text(serial[:size])

    run_sweep(tasks(), ResultsFile(path), SerialEngine())

    assert path.read_text() == serial


def test_a_kubelet_that_does_not_start_is_a_row(tmp_path):
    wrong = replace(tasks()[0], groups=(), error="no\nway")
    run_sweep([wrong], ResultsFile(tmp_path / "results.csv"), SerialEngine())

    [row] = ResultsFile(tmp_path / "results.csv").rows.values()
    assert (row["error"], row["started"]) == ("no way", "")
    assert tuple(row) == COLUMNS


@pytest.mark.parametrize("engine", [lambda: ProcessEngine(2), lambda: DaskEngine(count=2)], ids=["processes", "dask"])
def test_a_killed_worker_loses_nothing(engine, tmp_path, serial):
    """Real processes: the first of them is killed in the middle."""
    job = partial(die_once, str(tmp_path / "killed"))

    run_sweep(tasks(), ResultsFile(tmp_path / "results.csv"), engine(), job=job)

    assert (tmp_path / "killed").exists()
    assert (tmp_path / "results.csv").read_text() == serial


@pytest.mark.parametrize("engine", [lambda: ProcessEngine(1), lambda: DaskEngine(count=1)], ids=["processes", "dask"])
def test_a_job_that_kills_every_worker_is_an_error_in_words(engine, tmp_path):
    with pytest.raises(EngineError, match="a simulation ends the process that runs it, again and again"):
        run_sweep(tasks(2)[:1], ResultsFile(tmp_path / "results.csv"), engine(), job=die)


def results_of(engine):
    with engine:
        return list(engine.results(run_packed, [pack(tasks()[0])]))


@pytest.mark.parametrize(
    ("timeouts", "message"),
    [
        pytest.param({"worker_timeout": 0.1}, "no worker of the local Dask cluster is left", id="no worker"),
        pytest.param({"result_timeout": 0.1}, r"no simulation is finished within 0\.1 seconds", id="no result"),
    ],
)
def test_a_dask_cluster_without_workers_is_an_error_in_words(timeouts, message):
    with pytest.raises(EngineError, match=message):
        results_of(DaskEngine(count=0, **timeouts))


def test_a_dask_cluster_that_stops_is_an_error_in_words():
    with DaskEngine(count=0) as engine, ThreadPoolExecutor(1) as pool:
        result = pool.submit(lambda: list(engine.results(run_packed, [pack(tasks()[0])])))
        wait_for(lambda: engine.client.futures)
        engine.client.cluster.close()
        with pytest.raises(EngineError, match="the connection to the Dask scheduler is lost"):
            result.result()


def test_a_dask_cluster_that_cannot_start_is_an_error_in_words(tmp_path):
    certificate = {"distributed.scheduler.dashboard.tls.cert": str(tmp_path / "missing")}
    with dask.config.set(certificate), pytest.raises(EngineError, match="cannot start a local Dask cluster: "):
        results_of(DaskEngine(count=0))


def test_local_dask_clusters_use_no_port_that_another_one_may_have():
    with DaskEngine(count=0) as first, DaskEngine(count=0) as second:
        addresses = {urlsplit(engine.client.dashboard_link).netloc for engine in (first, second)}

    assert len(addresses - {"127.0.0.1:8787"}) == 2


def test_a_dask_scheduler_that_is_away():
    engine = DaskEngine("tcp://127.0.0.1:1", timeout=0.2)

    with pytest.raises(SettingsError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:1"), engine:
        pass
