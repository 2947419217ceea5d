"""Sweeps: cluster simulations for every combination of machines, configurations, strategies and seeds.

A task is one combination. It can run anywhere and any number of times, with the same row of results. A sweep that runs
again skips the tasks that have a row in the results file.
"""

import csv
import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from alignup.align.errors import AlignError, TraceError
from alignup.atomic_files import open_input
from alignup.simulate.arrivals import PodSubmission
from alignup.simulate.cluster_files import WorkloadDescription
from alignup.simulate.cluster_hosts import HostGroup
from alignup.simulate.cluster_result import FleetResult
from alignup.simulate.cluster_simulation import ClusterSimulation
from alignup.simulate.executors import Engine, pack, raise_if_cancelled, unpack
from alignup.simulate.generate import Profile, generate_for_cluster
from alignup.simulate.node_simulation import Progress

Row = Mapping[str, str]  #: the results of a task, by column
Job = Callable[[bytes], Row]  #: runs a packed task

KEYS = ("machine", "configuration", "strategy", "seed")
COLUMNS = (
    *KEYS,
    *("nodes", "pods", "started", "failed", "pending", "rejections", "rejected_pods", "mispredictions"),
    *("waiting_mean", "waiting_p50", "waiting_p90", "waiting_p99", "waiting_max", "requested"),
    *("pods_by_numa_nodes", "mean_distance", "stranded_cpus", "stranded_memory", "stranded_devices"),
    *("error", "fingerprint"),
)

#: The columns of which ``CombinationMeans`` has the mean.
MEAN_FIGURES = (
    *("started", "failed", "pending", "rejections", "waiting_p50", "waiting_p99"),
    *("mean_distance", "stranded_cpus", "stranded_memory"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepTask:
    machine: str
    configuration: str
    strategy: str
    seed: int
    groups: tuple[HostGroup, ...]  #: empty if there is an error
    workload: WorkloadDescription
    submissions: tuple[PodSubmission, ...] = ()  #: of a trace
    retries: int
    error: str = ""  #: why a kubelet does not start with this configuration on this machine
    fingerprint: str  #: equal for tasks with the same input

    @property
    def keys(self) -> dict[str, str]:
        return {name: str(getattr(self, name)) for name in KEYS}


def run_packed(parcel: bytes) -> Row:
    """Run a packed task in a worker, and return its row: its figures, or why there are none."""
    raise_if_cancelled()
    task: SweepTask = unpack(parcel)
    row = {**dict.fromkeys(COLUMNS, ""), **task.keys, "fingerprint": task.fingerprint}
    if task.error:
        return {**row, "error": task.error}
    try:
        simulation = ClusterSimulation(task.groups, _submissions(task), task.strategy, retries=task.retries)
        return {**row, **figures(simulation.run(raise_if_cancelled))}
    except AlignError as error:
        return {**row, "error": str(error)}


def _submissions(task: SweepTask) -> tuple[PodSubmission, ...]:
    workload, submissions = task.workload, task.submissions
    if workload.profile:
        profile = Profile(workload.profile)
        submissions = generate_for_cluster(profile, task.groups, seed=task.seed, pods=workload.pods, load=workload.load)
    return change_pace(submissions, rate=workload.rate, stay=workload.stay)


def change_pace(submissions: tuple[PodSubmission, ...], *, rate: float, stay: bool) -> tuple[PodSubmission, ...]:
    """Return *submissions* created *rate* times as fast; with *stay*, they never end."""
    if rate != 1:
        submissions = tuple(replace(submission, time=submission.time / rate) for submission in submissions)
    return tuple(replace(submission, duration=None) for submission in submissions) if stay else submissions


def figures(result: FleetResult) -> Row:
    waiting_times = result.waiting
    return {
        "nodes": str(result.hosts),
        **{name: str(getattr(result, name)) for name in ("pods", "started", "failed", "pending", "rejected_pods")},
        "rejections": str(result.rejected),
        "mispredictions": str(result.mispredictions),
        **{f"waiting_{name}": f"{getattr(waiting_times, name):g}" for name in ("mean", "p50", "p90", "p99", "max")},
        "requested": _join({name: f"{use.share:.4f}" for name, use in result.use.items()}),
        "pods_by_numa_nodes": _join(result.alignment.pods_by_numa_nodes),
        "mean_distance": f"{result.alignment.mean_distance:g}",
        "stranded_cpus": str(result.stranded.cpus),
        "stranded_memory": str(result.stranded.memory),
        "stranded_devices": _join(result.stranded.devices),
    }


def _join(values: Mapping[str, object]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())


class ResultsFile:
    """The CSV file of results, to which every finished task appends its row at once.

    A row is one write and reaches the disk before the next, so an interruption can tear only the last row, which is
    then removed. A complete file is in the order of the tasks, whichever task finished first. ``TraceError`` if the
    file cannot be used; ``OSError`` if it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[tuple[str, ...], Row] = {row_key(row): row for row in self._read()}

    def append(self, row: Row) -> None:
        text = _to_csv([row], header=not self.rows and not (self.path.exists() and self.path.stat().st_size))
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            data = memoryview(text.encode())
            while data:
                data = data[os.write(descriptor, data) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self.rows[row_key(row)] = row

    def sort(self, keys: Iterable[tuple[str, ...]]) -> None:
        """Write the rows in the order of *keys*, which has the keys of all rows."""
        beside = self.path.with_name(f"{self.path.name}.sorted")
        beside.write_text(_to_csv([self.rows[key] for key in keys], header=True), encoding="utf-8")
        beside.replace(self.path)

    def _read(self) -> Iterator[Row]:
        try:
            with open_input(self.path) as file:
                text = file.read().decode()
        except FileNotFoundError:
            return
        except (OSError, UnicodeDecodeError) as error:
            raise TraceError(f"cannot be read: {error}", file=str(self.path)) from error
        whole = text[: text.rfind("\n") + 1]
        reader = csv.DictReader(io.StringIO(whole, newline=""))
        begins = not whole and ",".join(COLUMNS).startswith(text)  # empty, or interrupted in the header
        if not begins and tuple(reader.fieldnames or ()) != COLUMNS:
            raise TraceError("not the results of a sweep: it has other columns", file=str(self.path), line=1)
        if len(whole) < len(text):  # the last write was interrupted
            os.truncate(self.path, len(whole.encode()))
        yield from reader


def row_key(row: Row) -> tuple[str, ...]:
    return tuple(row[name] for name in KEYS)


def _to_csv(rows: Sequence[Row], *, header: bool) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows({name: " ".join(value.split("\n")) for name, value in row.items()} for row in rows)
    return text.getvalue()


def run_sweep(
    tasks: Sequence[SweepTask],
    results: ResultsFile,
    engine: Engine,
    *,
    progress: Progress | None = None,
    job: Job = run_packed,
) -> tuple[Row, ...]:
    """Run the tasks that have no row yet, and return the row of each task in their order.

    *progress* gets the number of tasks with a row; *job* runs a packed task. ``TraceError`` if the file has results of
    another sweep.
    """
    by_key = {row_key(task.keys): task for task in tasks}
    for key, row in results.rows.items():
        if key not in by_key or row["fingerprint"] != by_key[key].fingerprint:
            message = f"has a result of another sweep ({' '.join(key)}): delete it, or choose another file"
            raise TraceError(message, file=str(results.path))
    tasks_to_run = [task for key, task in by_key.items() if key not in results.rows]
    if progress:
        progress(len(tasks) - len(tasks_to_run), len(tasks))
    with engine:
        for row in engine.results(job, [pack(task) for task in tasks_to_run]):
            results.append(row)
            if progress:
                progress(len(results.rows), len(tasks))
    results.sort(by_key)
    return tuple(results.rows[key] for key in by_key)


@dataclass(frozen=True, slots=True, kw_only=True)
class CombinationMeans:
    """The results of a machine, a configuration and a strategy: the mean of every figure over the seeds."""

    names: tuple[str, str, str]  #: of the machine, the configuration and the strategy
    seeds: int
    figures: Mapping[str, float]  #: by column of the results file, :data:`MEAN_FIGURES`
    requested: Mapping[str, float]  #: share of what is allocatable, by resource
    stranded_devices: Mapping[str, float]  #: by resource

    @property
    def started_share(self) -> float:
        """The share of its pods that started."""
        pods = sum(self.figures[name] for name in ("started", "failed", "pending"))
        return self.figures["started"] / pods if pods else 0.0

    @property
    def rank(self) -> tuple[float, float, float]:
        """Less is better: the most pods started, then the fewest rejections, then the shortest waiting."""
        return -self.started_share, self.figures["rejections"], self.figures["waiting_p99"]


def combination_means(rows: Iterable[Row]) -> tuple[CombinationMeans, ...]:
    """Return the means in the order of *rows*; rows with an error are left out."""
    rows_by_combination: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if not row["error"]:
            rows_by_combination.setdefault((row["machine"], row["configuration"], row["strategy"]), []).append(row)
    return tuple(
        CombinationMeans(
            names=names,
            seeds=len(seeds),
            figures={name: sum(float(row[name]) for row in seeds) / len(seeds) for name in MEAN_FIGURES},
            requested=_means([row["requested"] for row in seeds]),
            stranded_devices=_means([row["stranded_devices"] for row in seeds]),
        )
        for names, seeds in rows_by_combination.items()
    )


def invalid_combinations(rows: Iterable[Row]) -> tuple[tuple[str, str, str], ...]:
    """Return the machines and configurations with which a kubelet does not start, each with its error."""
    return tuple(dict.fromkeys((row["machine"], row["configuration"], row["error"]) for row in rows if row["error"]))


def _means(cells: Sequence[str]) -> dict[str, float]:
    """Return the means of cells such as ``cpu=0.5 memory=0.25``."""
    means: dict[str, float] = {}
    for cell in cells:
        for item in cell.split():
            name, _, value = item.rpartition("=")
            means[name] = means.get(name, 0.0) + float(value) / len(cells)
    return means
