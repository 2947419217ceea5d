"""Runs the tasks of a sweep that have no result yet."""

from collections.abc import Sequence

from alignup.align.errors import TraceError
from alignup.simulate.node_simulation import Progress
from alignup.simulate.sweeps.engines import Engine, Job
from alignup.simulate.sweeps.results_file import ResultsFile, row_key
from alignup.simulate.sweeps.tasks import Row, SweepTask, pack_task, run_packed


def run_sweep(
    tasks: Sequence[SweepTask],
    results: ResultsFile,
    engine: Engine,
    *,
    progress: Progress | None = None,
    job: Job = run_packed,
) -> tuple[Row, ...]:
    """The row of each task, in their order; *progress* gets the number of tasks with a row, *job* runs one of them.

    ``TraceError`` if the file has results of another sweep.
    """
    keys = [row_key(task.keys) for task in tasks]
    for task, key in zip(tasks, keys, strict=True):
        known = results.rows.get(key)
        if known is not None and known["fingerprint"] != task.fingerprint:
            what = f"has a result of another sweep for {' '.join(key)}: delete it, or choose another file"
            raise TraceError(what, file=str(results.path))
    unknown = results.rows.keys() - set(keys)
    if unknown:
        what = f"has results of another sweep ({' '.join(min(unknown))}): delete it, or choose another file"
        raise TraceError(what, file=str(results.path))
    left = [task for task, key in zip(tasks, keys, strict=True) if key not in results.rows]
    if progress:
        progress(len(tasks) - len(left), len(tasks))
    with engine:
        for row in engine.results(job, [pack_task(task) for task in left]):
            results.append(row)
            if progress:
                progress(len(results.rows), len(tasks))
    results.sort(keys)
    return tuple(results.rows[key] for key in keys)
