"""The runs of one user: a small file for each, in a private directory.

A file exists as long as its run may have processes. Writers hold the lock; readers need none, since files are replaced
atomically. A run whose runner and processes are gone is removed by the next run, however they ended.
"""

import fcntl
import json
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from alignup import atomic_files
from alignup.align.errors import AlignError, EnforceError, FileError
from alignup.run import cgroup, process
from alignup.run.process import ProcessIdentity, ProcessInfo
from alignup.run.request import RUN_VARIABLE, RunRecord
from alignup.run.run_claims import RunClaims, read_regular_file

LOCK_NAME = "run.lock"
_LOCK_TIMEOUT = 60.0  #: seconds; others hold the lock for milliseconds
_MAX_FILE_BYTES = 1 << 20
_RETRIES, _RETRY_DELAY = 10, 0.02  #: for processes that are just exiting; delay in seconds


class RunProcesses(NamedTuple):
    record: RunRecord
    pids: tuple[int, ...]


class RunRegistry:
    """The records in one directory, which is created if needed and must be private to this user.

    The *claims* of its runs are kept alive as long as the records, for other users.
    """

    def __init__(self, directory: Path, claims: RunClaims | None = None) -> None:
        self._claims = claims or RunClaims(())
        try:
            status = atomic_files.make_private_directory(directory)
        except OSError as error:
            raise FileError(f"cannot create or read {directory}: {error.filename}: {error.strerror}") from error
        advice = "set ALIGNUP_RUN_DIR to another directory, or remove this one"
        if not stat.S_ISDIR(status.st_mode):
            raise FileError(f"{directory} is not a directory; {advice}")
        if status.st_uid != os.geteuid():
            raise FileError(f"{directory} belongs to user {status.st_uid}, not to this user ({os.geteuid()}); {advice}")
        if status.st_mode & 0o077:
            raise FileError(
                f"other users can access {directory} (mode {stat.S_IMODE(status.st_mode):o}); "
                f"check its contents, then run chmod 700 on it"
            )
        self.directory = directory

    @contextmanager
    def locked(self) -> Iterator[None]:
        path = self.directory / LOCK_NAME
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise FileError(f"cannot lock {path}: {error.strerror}") from error
        try:
            end = time.monotonic() + _LOCK_TIMEOUT
            while True:
                with suppress(BlockingIOError):
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                if time.monotonic() > end:
                    raise FileError(f"another alignup has held {path} locked for {_LOCK_TIMEOUT:.0f} seconds")
                time.sleep(0.005)
            yield
        finally:
            os.close(handle)

    def all(self) -> tuple[RunRecord, ...]:
        records = filter(None, map(_read, self.directory.glob("run-*.json")))
        return tuple(sorted(records, key=lambda record: (record.since, record.uid)))

    def put(self, record: RunRecord) -> None:
        atomic_files.write(self._path(record.uid), json.dumps(record.to_document()).encode("ascii"))
        self._claims.refresh(record)

    def get(self, uid: str) -> RunRecord | None:
        return _read(self._path(uid))

    def record_processes(self, uids: Iterable[str]) -> None:
        """Record the processes of runs without a cgroup that outlive their runner.

        Afterwards they are found by their identity, even if they cleared their environment.
        """
        records = [record for record in map(self.get, uids) if record is not None and record.cgroup is None]
        for run in find_run_processes(records):
            processes = []
            for pid in run.pids:
                with suppress(EnforceError):  # it has just ended
                    processes.append(ProcessIdentity.of(pid))
            if processes and tuple(processes) != run.record.started:
                self.put(run.record._replace(started=tuple(processes)))

    def remove(self, record: RunRecord) -> None:
        """Remove a run and its cgroup. A cgroup that is still busy keeps the record; the next run tries again."""
        folder = record.cgroup
        if folder is None or _retry(lambda: cgroup.remove(folder)):
            self._path(record.uid).unlink(missing_ok=True)
            self._claims.withdraw(record.uid)

    def _path(self, uid: str) -> Path:
        return self.directory / f"run-{uid}.json"


def find_run_processes(records: Sequence[RunRecord]) -> tuple[RunProcesses, ...]:
    """Return each run of this user with its processes, which do not include the runner.

    A process belongs to a run if it is in the run's cgroup, was recorded when it was started, belongs to this user and
    has the run's uid in its environment, or descends from one that does or from the runner. The environment alone does
    not count: any user can set it.
    """
    if not records:
        return ()
    processes = process.list_processes(RUN_VARIABLE)
    pids: dict[str, set[int]] = {record.uid: set() for record in records}
    runs = {pid: info.mark for pid, info in processes.items() if info.mark and info.owner == os.geteuid()}
    runners: dict[int, str] = {}
    for record in records:
        runs |= dict.fromkeys((identity.pid for identity in record.started if identity.alive), record.uid)
        if record.cgroup is not None:
            pids[record.uid].update(cgroup.members(record.cgroup))
            runs |= dict.fromkeys(pids[record.uid], record.uid)
        if record.runner.alive:
            runners[record.runner.pid] = record.uid
    for pid in processes:
        uid = _run_of(pid, processes, runs, runners)
        if uid in pids:
            pids[uid].add(pid)
    return tuple(RunProcesses(record, tuple(sorted(pids[record.uid]))) for record in records)


def _run_of(
    pid: int, processes: Mapping[int, ProcessInfo], runs: Mapping[int, str], runners: Mapping[int, str]
) -> str | None:
    """The run of a process, or of its nearest ancestor with a run. The children of *runners* belong to their run."""
    visited_pids: set[int] = set()  # pids may be reused while they are read, which can make a cycle
    while pid in processes and pid not in visited_pids:
        visited_pids.add(pid)
        if pid in runs:
            return runs[pid]
        pid = processes[pid].parent
        if pid in runners:
            return runners[pid]
    return None


def finished_runs(records: Sequence[RunRecord], *, ending: str = "") -> tuple[RunRecord, ...]:
    """Return the runs without a runner and without processes. The runner of run *ending* does not count."""
    orphans = [record for record in records if record.uid == ending or not record.runner.alive]
    # A cgroup lists its processes; processes of a run without a cgroup are found by scanning /proc.
    loose = [record for record in orphans if record.cgroup is None]
    busy = {run.record.uid for run in find_run_processes(loose) if run.pids}
    return tuple(
        record for record in orphans if record.uid not in busy and not (record.cgroup and cgroup.members(record.cgroup))
    )


def remove_finished_runs(directory: Path) -> None:
    """Remove what finished runs left behind: their cgroups and records. A later run releases runs of an agent."""
    if not os.path.lexists(directory):
        return
    runs = RunRegistry(directory)
    with runs.locked():
        for record in finished_runs([record for record in runs.all() if not record.agent]):
            runs.remove(record)


def wait_until_finished(record: RunRecord) -> bool:
    """Return whether all processes of a run have exited, or exit within a moment."""
    return _retry(lambda: bool(finished_runs([record], ending=record.uid)))


def active_runs(directory: Path) -> tuple[RunProcesses, ...]:
    """Return the runs in *directory* that are running, with their processes. Does not create the directory."""
    if not os.path.lexists(directory):
        return ()
    runs = find_run_processes([record for record in RunRegistry(directory).all() if record.cpus])
    return tuple(run for run in runs if run.pids or run.record.runner.alive)


def _retry(succeeds: Callable[[], bool]) -> bool:
    for _ in range(_RETRIES):
        if succeeds():
            return True
        time.sleep(_RETRY_DELAY)
    return False


def _read(path: Path) -> RunRecord | None:
    """Read a record without following links; ``None`` when it is gone."""
    try:
        text, status = read_regular_file(path, _MAX_FILE_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from error
    if status.st_uid != os.geteuid():
        raise FileError(f"{path} is not a regular file of this user; check where it comes from, and remove it")
    try:
        return RunRecord.from_document(json.loads(text))
    except (AlignError, ValueError) as error:
        raise EnforceError(f"cannot read {path}: {error}; remove it when no process of that run is left") from error
