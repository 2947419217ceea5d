"""Cpusets through cgroups of version 2 or 1: one cgroup for each run.

A cgroup is represented by its directory, whose files show the version. New cgroups are created in the nearest ancestor
of this process that permits it and has the cpuset controller. Cgroups of other runs are skipped, so that a run started
inside a run becomes its sibling.

The surprising rule of version 2: below the root, a cgroup either has processes or enables controllers for its children,
never both. With both it becomes a threaded root, and its children can no longer take processes. So cgroups with
processes are skipped, too, and a cgroup is removed only after its last process has ended: there is no place to move one
back to.
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from alignup.align import bits
from alignup.align.bits import CpuSet, NodeSet
from alignup.align.errors import EnforceError

PREFIX = "alignup-"
PROC = Path("/proc/self")

_CPUSET = "cpuset"
_OCTAL = re.compile(r"\\([0-7]{3})")  #: mountinfo's escape for blanks in paths
#: Whether it is version 2 → the files of effective CPUs and NUMA nodes.
_EFFECTIVE = {
    True: ("cpuset.cpus.effective", "cpuset.mems.effective"),
    False: ("cpuset.effective_cpus", "cpuset.effective_mems"),
}


class Cpuset(NamedTuple):
    cpus: CpuSet
    nodes: NodeSet  #: empty in version 2: inherited


def candidate_parents(proc: Path = PROC) -> tuple[Path, ...]:
    """Return the directories in which cgroups with a cpuset can be created, the nearest first."""
    return tuple(filter(_is_usable, _ancestors(proc)))


def effective_cpuset(proc: Path = PROC) -> Cpuset | None:
    """Return the cpuset of this process, ignoring cgroups of runs; ``None`` if it sees no cpuset."""
    for directory in _ancestors(proc):
        cpus, nodes = (_read_list(directory / name) for name in _EFFECTIVE[_is_v2(directory)])
        if cpus:
            return Cpuset(cpus, nodes)
    return None


def cpuset_directory(process: Path) -> Path | None:
    """Return the cgroup that has the cpuset of the process with this directory in ``/proc``.

    ``None`` if this process does not see the cgroup, or the other process has ended.
    """
    with suppress(FileNotFoundError, ProcessLookupError):
        for directory, _ in _directories(process / "cgroup", PROC / "mountinfo"):
            if (directory / "cpuset.cpus").exists():
                return directory
    return None


def create(
    name: str, cpus: CpuSet, *, nodes: NodeSet, announce: Callable[[Path], None] = lambda _: None, proc: Path = PROC
) -> Path:
    """Create a cgroup for a run with *cpus* and *nodes* (empty: any), and return its directory.

    *announce* is called before a directory is created, to record what must be removed if this process is killed.
    Raises ``EnforceError``, and leaves nothing behind, if that is not permitted or the kernel grants another cpuset.
    """
    why = "no cgroup with a cpuset controller is writable"
    for parent in candidate_parents(proc):
        directory = parent / f"{PREFIX}{name}"
        control, type_file = parent / "cgroup.subtree_control", directory / "cgroup.type"
        try:
            if _is_v2(parent) and _CPUSET not in control.read_text("ascii").split():
                write_file(control, f"+{_CPUSET}")
            announce(directory)
            directory.mkdir()
        except OSError as error:
            why = f"{error.filename or parent}: {error.strerror or error}"
            continue
        if type_file.exists() and (kind := type_file.read_text("ascii").strip()) != "domain":
            why = f"{directory} cannot take processes: its type is {kind}"
        else:
            try:
                write(directory, cpus, nodes=nodes)
            except EnforceError as error:
                why = str(error)
            else:
                return directory
        directory.rmdir()
    raise EnforceError(f"cannot create a cpuset for {name}: {why}")


def write(directory: Path, cpus: CpuSet, *, nodes: NodeSet) -> None:
    """Set the cpuset of a cgroup, empty for any, and migrate its memory; raise ``EnforceError`` if that fails."""
    try:
        if not _is_v2(directory):
            write_file(directory / "cpuset.memory_migrate", "1")
            nodes = nodes or _read_list(directory.parent / "cpuset.mems")
        write_file(directory / "cpuset.mems", bits.show(nodes))
        write_file(directory / "cpuset.cpus", bits.show(cpus))
        granted_cpus, granted_nodes = (_read_list(directory / name) for name in _EFFECTIVE[_is_v2(directory)])
    except OSError as error:
        path, why = error.filename or directory, error.strerror or error
        raise EnforceError(f"cannot set the cpuset to CPUs {bits.show(cpus)}: {path}: {why}") from error
    if (cpus and granted_cpus != cpus) or (nodes and granted_nodes != nodes):
        granted_sets = f"CPUs {bits.show(granted_cpus)}, NUMA nodes {bits.show(granted_nodes)}"
        resources = f"CPUs {bits.show(cpus)}, NUMA nodes {bits.show(nodes) or 'any'}"
        raise EnforceError(f"the kernel granted {directory} {granted_sets} instead of {resources}")


def read(directory: Path) -> Cpuset | None:
    if not directory.is_dir():
        return None
    return Cpuset(_read_list(directory / "cpuset.cpus"), _read_list(directory / "cpuset.mems"))


def join(directory: Path, pid: int) -> None:
    write_file(directory / "cgroup.procs", str(pid))


def members(directory: Path) -> tuple[int, ...]:
    """Return the processes in a cgroup and its descendants; empty if the cgroup does not exist."""
    pids: set[int] = set()
    for parent, _, _ in os.walk(directory):
        with suppress(OSError):
            pids |= set(map(int, (Path(parent) / "cgroup.procs").read_text("ascii").split()))
    return tuple(sorted(pids))


def remove(directory: Path) -> bool:
    """Remove a cgroup and its empty descendants; return whether it is gone."""
    for parent, _, _ in os.walk(directory, topdown=False):
        with suppress(OSError):  # it still has processes
            Path(parent).rmdir()
    return not directory.exists()


def write_file(path: Path, text: str) -> None:
    """Write *text* with one system call, as the kernel requires."""
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(handle, f"{text}\n".encode("ascii"))
    except OSError as error:
        error.filename = os.fspath(path)
        raise
    finally:
        os.close(handle)


def _directories(cgroups: Path, mountinfo: Path) -> Iterator[tuple[Path, Path]]:
    """Yield the directory of each cgroup in *cgroups* and the mount point it is below, version 2 first."""
    paths = {}
    for line in cgroups.read_text("utf-8", "surrogateescape").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            paths["cgroup2"] = path
        elif _CPUSET in controllers.split(","):
            paths["cgroup"] = path
    mounts: dict[str, tuple[str, str]] = {}
    for line in mountinfo.read_text("utf-8", "surrogateescape").splitlines():
        mount_fields, _, super_fields = line.partition(" - ")
        kind, _, options = super_fields.split(" ", 2)
        if kind == "cgroup2" or (kind == "cgroup" and _CPUSET in options.replace(" ", ",").split(",")):
            root, point = (
                _OCTAL.sub(lambda match: chr(int(match[1], 8)), part) for part in mount_fields.split(" ")[3:5]
            )
            mounts.setdefault(kind, (root, point))
    for kind in ("cgroup2", "cgroup"):
        # A path with ".." is outside of what this process can see.
        if kind in paths and kind in mounts and ".." not in paths[kind].split("/"):
            root, point = mounts[kind]
            inside = os.path.relpath(paths[kind], root)
            if not inside.startswith(".."):
                yield Path(point, inside), Path(point)


def _ancestors(proc: Path) -> Iterator[Path]:
    """Yield the cgroups of a process and their ancestors up to the mount point, without cgroups of runs."""
    for directory, top in _directories(proc / "cgroup", proc / "mountinfo"):
        outside = list(takewhile(lambda part: not part.startswith(PREFIX), directory.relative_to(top).parts))
        for length in range(len(outside), -1, -1):
            yield top.joinpath(*outside[:length])


def _is_usable(directory: Path) -> bool:
    """Whether cgroups with a cpuset can be created here, and take processes."""
    if not os.access(directory, os.W_OK) or not os.access(directory / "cgroup.procs", os.W_OK):
        return False
    if not _is_v2(directory):
        return (directory / "cpuset.cpus").exists()
    if _CPUSET not in (directory / "cgroup.controllers").read_text("ascii").split():
        return False
    is_root = not (directory / "cgroup.type").exists()
    return is_root or not (directory / "cgroup.procs").read_text("ascii").split()


def _is_v2(directory: Path) -> bool:
    return (directory / "cgroup.controllers").exists()


def _read_list(path: Path) -> int:
    try:
        return bits.parse(path.read_text("ascii").strip())
    except OSError:
        return 0
