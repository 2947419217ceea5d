"""The runs of one user: a small file for each, in a directory that belongs to the user alone.

A file is there as long as the run may have processes. Whoever writes has the lock; who only looks needs none, since
files are replaced in one step. A run whose runner and processes are all gone, however they went, is cleared away by
whoever comes next.
"""

import fcntl
import json
import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from alignup.align.errors import AlignError, EnforceError, FileError
from alignup.enforce import audit, cgroup
from alignup.enforce.audit import RunProcesses
from alignup.enforce.run_record import RunRecord
from alignup.state import atomic_files

LOCK = "run.lock"
_PREFIX, _SUFFIX = "run-", ".json"
_PATIENCE = 60.0  #: seconds until a lock is given up that others have for milliseconds
_LONGEST = 1 << 20  #: bytes of a run's file
_MOMENTS, _MOMENT = 10, 0.02  #: how often, and after how many seconds, to look again for processes that are just ending


def default_directory(environment: Mapping[str, str], *, root: Path) -> Path:
    """Where runs are written down, unless something else is said: in *root*, beside an agent's things."""
    said = environment.get("ALIGNUP_RUN_DIR")
    return Path(said).absolute() if said else root / "run"


class RunRegistry:
    """All runs written down in one directory, which is made if need be and must belong to this user alone."""

    def __init__(self, directory: Path) -> None:
        _prepare(directory)
        self.directory = directory

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Have the directory to oneself, once all others are done with it."""
        path = self.directory / LOCK
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise FileError(f"{path} cannot be locked: {error.strerror}") from error
        try:
            _take(handle, path)
            yield
        finally:
            os.close(handle)

    def all(self) -> tuple[RunRecord, ...]:
        """Every run that is written down, in the order they began."""
        found = []
        for path in self.directory.glob(f"{_PREFIX}*{_SUFFIX}"):
            text = _read(path)
            if text is not None:
                found.append(_parsed(text, path))
        return tuple(sorted(found, key=lambda one: (one.since, one.uid)))

    def put(self, intent: RunRecord) -> None:
        """Write a run down, or write it anew."""
        atomic_files.write(self._path(intent.uid), json.dumps(intent.to_document()).encode("ascii"))

    def remove(self, intent: RunRecord) -> None:
        """Remove the group of a run, and forget the run; where the group cannot go yet, whoever comes next tries."""
        if intent.cgroup is None or _removed(intent.cgroup):
            self._path(intent.uid).unlink(missing_ok=True)

    def _path(self, uid: str) -> Path:
        return self.directory / f"{_PREFIX}{uid}{_SUFFIX}"


def finished_runs(intents: Sequence[RunRecord], *, mine: str = "") -> tuple[RunRecord, ...]:
    """Those of which nobody is left: no runner, except that of run *mine*, which is about to end, and no process."""
    orphans = [one for one in intents if one.uid == mine or not one.runner.alive]
    # Who is in a group shows there; to find all others every process has to be looked at.
    loose = {
        run.intent.uid for run in audit.find_run_processes([one for one in orphans if one.cgroup is None]) if run.pids
    }
    return tuple(one for one in orphans if one.uid not in loose and not (one.cgroup and cgroup.members(one.cgroup)))


def wait_until_finished(intent: RunRecord) -> bool:
    """Whether all processes of a run have ended, or do so in a moment."""
    for _ in range(_MOMENTS):
        if finished_runs([intent], mine=intent.uid):
            return True
        time.sleep(_MOMENT)
    return False


def _removed(folder: Path) -> bool:
    """Whether a group is gone; the last process may need a moment to leave it for good."""
    for _ in range(_MOMENTS):
        if cgroup.remove(folder):
            return True
        time.sleep(_MOMENT)
    return False


def active_runs(directory: Path) -> tuple[RunProcesses, ...]:
    """The runs in *directory* that go on, with their processes; none where there is no such directory."""
    if not os.path.lexists(directory):
        return ()
    found = audit.find_run_processes([one for one in RunRegistry(directory).all() if one.cpus])
    return tuple(run for run in found if run.pids or run.intent.runner.alive)


def _prepare(directory: Path) -> None:
    """Make the directory, or see that the one there is ours alone."""
    try:
        known = atomic_files.make_private_directory(directory)
    except OSError as error:
        raise FileError(f"{directory} cannot be made or looked at: {error.filename}: {error.strerror}") from error
    advice = "name another with ALIGNUP_RUN_DIR, or have this one removed"
    if not stat.S_ISDIR(known.st_mode):
        raise FileError(f"{directory} is no directory, or a link to one; {advice}")
    if known.st_uid != os.geteuid():
        raise FileError(f"{directory} belongs to user {known.st_uid}, and this is user {os.geteuid()}; {advice}")
    if known.st_mode & 0o077:
        raise FileError(
            f"others may look into {directory} or write there (mode {stat.S_IMODE(known.st_mode):o}); "
            f"see that nothing in it is foreign, and make it mode 700"
        )


def _take(handle: int, path: Path) -> None:
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                raise FileError(f"{path} has been locked by another alignup for {_PATIENCE:.0f} seconds") from None
            time.sleep(0.005)
        else:
            return


def _read(path: Path) -> bytes | None:
    """The contents of a run's file; ``None`` when it is gone. A link in its place is not followed."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}") from error
    with os.fdopen(handle, "rb") as file:
        known = os.fstat(file.fileno())
        if not stat.S_ISREG(known.st_mode) or known.st_uid != os.geteuid():
            raise FileError(f"{path} is not a file of this user; see who put it there, and remove it")
        return file.read(_LONGEST)


def _parsed(text: bytes, path: Path) -> RunRecord:
    try:
        return RunRecord.from_document(json.loads(text))
    except (AlignError, ValueError) as error:
        raise EnforceError(f"{path} cannot be read: {error}; remove it once no process of that run is left") from error
