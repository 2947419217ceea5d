"""Claims: which CPUs and devices the runs of all users of this machine hold.

Each user has a private ledger. So that two users never hold the same CPU, a run also claims what it holds, in a
directory that all users can write. Nothing in it is trusted beyond what the kernel confirms:

* The directory belongs to root and is sticky, so nobody else can replace or remove a file. Its owner is the kernel's
  word, not the file's. Links and other special files are ignored, and so is everything that is not a claim.
* A claim counts as long as a process of its owner lives: the runner, a recorded process, or one in the cgroup of the
  run. A file alone reserves nothing, and a user holds only as much as with real runs.
* There is no lock that a user could hold forever. A run writes its claim, then reads the others: of two claims that
  overlap the older one counts, by the time at which the kernel changed the file, and the other run tries again.

A claim never changes, since that would change its time. What keeps it alive is in a second file, which is created
first: once a run's uid is known, others could take the name.
"""

import errno
import json
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from alignup.align import bits
from alignup.align.bits import CpuSet
from alignup.align.errors import AlignError
from alignup.run import cgroup, process
from alignup.run.process import ProcessIdentity
from alignup.run.request import RunRecord, read_identity

#: Where claims are read; written to the first one that is suitable. The first exists only if root creates it.
DIRECTORIES = (Path("/run/alignup-runs"), Path("/dev/shm"))  # noqa: S108 - see above
VARIABLE = "ALIGNUP_CLAIMS_DIR"  #: another directory; empty: none

_PREFIX, _CLAIM, _ALIVE = "alignup-run-", ".claim", ".alive"
_VERSION = 1
_MAX_BYTES = 64 << 10
_MAX_PER_USER, _MAX_PROCESSES = 200, 200  #: claims of one user, and recorded processes of one run
_CGROUPS = Path("/sys/fs/cgroup")
_INVALID = (AlignError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)  #: errors of files


class RunClaim(NamedTuple):
    run: str  #: uid; unique only together with the owner
    owner: int  #: user
    cpus: CpuSet
    devices: Mapping[str, frozenset[str]]  #: resource → ids
    time: int  #: nanoseconds; set by the kernel when the claim was made

    def overlaps(self, other: "RunClaim") -> bool:
        devices_overlap = any(ids & other.devices.get(resource, frozenset()) for resource, ids in self.devices.items())
        return devices_overlap or bool(self.cpus & other.cpus)


class RunClaims:
    """The claims in *directories*; an unsuitable directory is not used, and :attr:`problem` says why."""

    def __init__(self, directories: tuple[Path, ...], notify: Callable[[str], None] = lambda _: None) -> None:
        self._notify = notify
        problems = {directory: _problem(directory) for directory in directories}
        self._directories = [directory for directory, problem in problems.items() if not problem]
        if not directories:
            self.problem = f"{VARIABLE} is empty"
        elif not self._directories:
            self.problem = "; ".join(problems.values())
        else:
            # Without it the processes of other users could not be seen, nor whether their runs have ended.
            self.problem = "" if process.users(1) else "/proc hides the processes of other users"
        if self.problem:
            self._directories = []

    @classmethod
    def of_environment(cls, environment: Mapping[str, str], notify: Callable[[str], None]) -> "RunClaims":
        directory = environment.get(VARIABLE)
        if directory is None:
            return cls(DIRECTORIES, notify)
        return cls((Path(directory).absolute(),) if directory else (), notify)

    @property
    def directory(self) -> Path | None:
        """Where claims are written; ``None``: nowhere, because of :attr:`problem`."""
        return self._directories[0] if self._directories else None

    def read(self) -> tuple[RunClaim, ...]:
        """Return the claims of runs that are alive; remove the files of other runs, where this user may."""
        return tuple(claim for directory in self._directories for claim in _read_directory(directory))

    def make(self, run: str, *, cpus: CpuSet, devices: Mapping[str, frozenset[str]], ignore: bool = False) -> bool:
        """Claim for a run of this process. Returns whether no older claim overlaps, else nothing is claimed.

        With *ignore*, claims of others do not matter. If the claim cannot be written, because another user has filled
        the file system, the run goes on without one.
        """
        if self.directory is None:
            return True
        runner = ProcessIdentity.of(os.getpid())._asdict()
        document = {"cpus": bits.show(cpus), "devices": {name: sorted(ids) for name, ids in devices.items()}}
        try:
            _write(self.directory / f"{_PREFIX}{run}{_ALIVE}", {"runner": runner, "started": [], "cgroup": None})
            _write(self.directory / f"{_PREFIX}{run}{_CLAIM}", document)
        except OSError as error:
            self.withdraw(run)
            self._notify(f"other users may get the same CPUs and devices: {self.directory}: {error.strerror}")
            return True
        claims = self.read()
        mine = next((claim for claim in claims if (claim.run, claim.owner) == (run, os.geteuid())), None)
        others = [claim for claim in claims if claim is not mine]
        if ignore or (mine and not any(other.overlaps(mine) and other.time <= mine.time for other in others)):
            return True
        self.withdraw(run)
        return False

    def refresh(self, record: RunRecord) -> None:
        """Record what keeps the claim of a run alive, if it has one."""
        for directory in self._directories:
            path = directory / f"{_PREFIX}{record.uid}{_ALIVE}"
            with suppress(OSError):
                if path.lstat().st_uid == os.geteuid():
                    processes = [identity._asdict() for identity in record.started[:_MAX_PROCESSES]]
                    group = None if record.cgroup is None else str(record.cgroup)
                    _write(path, {"runner": record.runner._asdict(), "started": processes, "cgroup": group})

    def withdraw(self, run: str) -> None:
        for directory in self._directories:
            _remove(directory, run)


def _problem(directory: Path) -> str:
    """Why claims of several users in *directory* cannot be relied on; empty if they can."""
    try:
        status = directory.lstat()
    except OSError as error:
        return f"{directory}: {error.strerror}"
    if not stat.S_ISDIR(status.st_mode):
        return f"{directory} is not a directory"
    if status.st_uid not in {0, os.geteuid()}:
        return f"{directory} belongs to another user"
    if status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX:
        return f"{directory} is not sticky"
    return "" if os.access(directory, os.R_OK | os.W_OK | os.X_OK) else f"{directory} is not writable"


def _read_directory(directory: Path) -> Iterator[RunClaim]:
    with os.scandir(directory) as entries:
        names = sorted(entry.name for entry in entries if entry.name.startswith(_PREFIX))
    counts: Counter[int] = Counter()
    for name in names:
        run, dot, kind = name.removeprefix(_PREFIX).rpartition(".")
        is_orphan = dot + kind == _ALIVE and f"{_PREFIX}{run}{_CLAIM}" not in names
        content = _read(directory / name) if is_orphan or dot + kind == _CLAIM else None
        if content is None:
            continue
        document, status = content
        with suppress(*_INVALID):
            if is_orphan:
                if not read_identity(document["runner"]).alive:  # else it is just about to make a claim
                    _remove(directory, run)
                continue
            counts[status.st_uid] += 1
            if counts[status.st_uid] > _MAX_PER_USER:
                continue
            claim = RunClaim(
                run=run,
                owner=status.st_uid,
                cpus=bits.parse(document["cpus"]),
                devices={str(name): frozenset(map(str, ids)) for name, ids in document["devices"].items()},
                time=status.st_ctime_ns,
            )
            if _is_alive(claim, directory):
                yield claim
            else:
                _remove(directory, run)


def _is_alive(claim: RunClaim, directory: Path) -> bool:
    content = _read(directory / f"{_PREFIX}{claim.run}{_ALIVE}")
    if content is None or content[1].st_uid != claim.owner:
        return False
    document = content[0]
    for identity in map(read_identity, (document["runner"], *document["started"])):
        if identity.is_visible and identity.alive and claim.owner in process.users(identity.pid):
            return True
    group = document["cgroup"] and Path(str(document["cgroup"]))
    # Only the kernel creates directories there, and the owner of a cgroup is who created it.
    if not group or not group.is_relative_to(_CGROUPS) or ".." in group.parts:
        return False
    if group.name != f"{cgroup.PREFIX}{claim.run}" or not group.is_dir() or group.stat().st_uid != claim.owner:
        return False
    return bool(cgroup.members(group))


def _read(path: Path) -> tuple[Mapping[str, Any], os.stat_result] | None:
    """Return a document and the status of its file; ``None`` unless it is a small JSON object in a regular file."""
    with suppress(*_INVALID):
        text, status = read_regular_file(path, _MAX_BYTES)
        document = json.loads(text)
        if not status.st_mode & 0o022 and isinstance(document, dict) and document.get("version") == _VERSION:
            return document, status
    return None


def read_regular_file(path: Path, limit: int) -> tuple[bytes, os.stat_result]:
    """Return the first *limit* bytes of a file, and its status. Other files raise ``OSError``; links are not followed.

    It never blocks, even on a file that another user has put there.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(path, "rb", opener=lambda name, _: os.open(name, flags)) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return file.read(limit), status


def _write(path: Path, document: Mapping[str, Any]) -> None:
    """Replace a file atomically. Nothing is synced: claims do not outlive the processes of this boot."""
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(json.dumps({"version": _VERSION, **document}).encode("ascii"))
            file.flush()
            temporary.rename(path)
            os.fchmod(handle, 0o644)  # the time of a claim is not before the moment at which others see it
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _remove(directory: Path, run: str) -> None:
    for suffix in (_CLAIM, _ALIVE):
        with suppress(FileNotFoundError, PermissionError):
            (directory / f"{_PREFIX}{run}{suffix}").unlink()
