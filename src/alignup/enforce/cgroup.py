"""Cpusets by cgroup, version 2 or 1: a group of its own for each run, beside the one we are in or further up.

A group's folder is all there is to know: what is in it tells the version. Groups are made in the nearest group around
this process where that is permitted and cpusets can be had; the groups of other runs are passed over, so that a run
started inside a run stands beside it.

The surprising rule of version 2: below the root a group has processes or hands cpusets on, never both. With both it
becomes the root of threads, and no group in it can take a process any more. So groups with processes are passed over
too, and a group is removed when the last of its processes has ended, since nobody could go back.
"""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from alignup.align import bits
from alignup.align.bits import CpuSet, NodeSet
from alignup.align.errors import EnforceError

PREFIX = "alignup-"
PROC = Path("/proc/self")

_CPUSET = "cpuset"
_OCTAL = re.compile(r"\\([0-7]{3})")  #: how mountinfo spells blanks in paths


@dataclass(frozen=True, slots=True)
class Cpuset:
    """What a group holds its processes to."""

    cpus: CpuSet
    nodes: NodeSet  #: empty in version 2: whatever the group above has


def candidate_parents(proc: Path = PROC) -> tuple[Path, ...]:
    """The folders in which groups with a cpuset could be made, the best first; empty where none is permitted."""
    return tuple(folder for own in _own(proc) for folder in _upwards(*own) if _usable(folder))


def effective_cpuset(proc: Path = PROC) -> Cpuset | None:
    """What the groups around this process leave to it, those of runs aside; ``None`` when no cpuset is to be seen."""
    for own, top in _own(proc):
        for folder in _upwards(own, top):
            cpus, nodes = (_list(folder / name) for name in _EFFECTIVE[_is_v2(folder)])
            if cpus:
                return Cpuset(cpus, nodes)
    return None


def cpuset_cgroup(pid: int, proc: Path = PROC.parent) -> Path | None:
    """The group with a cpuset that a process is in; ``None`` when it is gone, or no such group is to be seen."""
    try:
        folders = [folder for folder, _ in _folders(proc / str(pid) / "cgroup", proc / "self" / "mountinfo")]
    except (FileNotFoundError, ProcessLookupError):
        return None
    return next((folder for folder in folders if (folder / "cpuset.cpus").exists()), None)


def create(name: str, cpus: CpuSet, *, nodes: NodeSet, proc: Path = PROC) -> Path:
    """Make a group for a run, that holds it to *cpus* and *nodes* (empty: any), and give its folder.

    ``EnforceError`` when there is no place where that is permitted, or the kernel grants something else; then nothing
    is left behind.
    """
    why = "no cpuset is to be had where this process may make groups"
    for place in candidate_parents(proc):
        folder = place / f"{PREFIX}{name}"
        try:
            _hand_on(place)
            folder.mkdir()
        except OSError as error:
            why = f"{error.filename or place}: {error.strerror or error}"
            continue
        try:
            _check_kind(folder)
            write(folder, cpus, nodes=nodes)
        except EnforceError as error:
            folder.rmdir()
            why = str(error)
        else:
            return folder
    raise EnforceError(f"there is no cpuset for {name}: {why}")


def write(folder: Path, cpus: CpuSet, *, nodes: NodeSet) -> None:
    """Hold a group to *cpus* and *nodes*, empty: any, and move its memory along; ``EnforceError`` when it cannot be."""
    try:
        if not _is_v2(folder):
            write_file(folder / "cpuset.memory_migrate", "1")
            nodes = nodes or _list(folder.parent / "cpuset.mems")
        write_file(folder / "cpuset.mems", bits.show(nodes))
        write_file(folder / "cpuset.cpus", bits.show(cpus))
        granted, from_nodes = (_list(folder / name) for name in _EFFECTIVE[_is_v2(folder)])
    except OSError as error:
        where, why = error.filename or folder, error.strerror or error
        raise EnforceError(f"the group of CPUs {bits.show(cpus)} cannot be made so: {where}: {why}") from error
    if (cpus and granted != cpus) or (nodes and from_nodes != nodes):
        got = f"CPUs {bits.show(granted)}, NUMA nodes {bits.show(from_nodes)}"
        asked = f"CPUs {bits.show(cpus)}, NUMA nodes {bits.show(nodes) or 'any'}"
        raise EnforceError(f"{folder} was to have {asked}, and is granted {got}")


def read(folder: Path) -> Cpuset | None:
    """What a group holds its processes to; ``None`` when there is no such group."""
    if not folder.is_dir():
        return None
    return Cpuset(_list(folder / "cpuset.cpus"), _list(folder / "cpuset.mems"))


def join(folder: Path, pid: int) -> None:
    """Put a process, all its threads with it, into a group."""
    write_file(folder / "cgroup.procs", str(pid))


def members(folder: Path) -> tuple[int, ...]:
    """The processes in a group and in those it has made for itself; empty when there is no such group."""
    found: set[int] = set()
    for place, _, _ in os.walk(folder):
        with suppress(FileNotFoundError, OSError):
            found |= set(map(int, (Path(place) / "cgroup.procs").read_text("ascii").split()))
    return tuple(sorted(found))


def remove(folder: Path) -> bool:
    """Remove a group with the empty ones below it; whether it is gone."""
    for place, _, _ in os.walk(folder, topdown=False):
        with suppress(OSError):  # somebody is in there still
            Path(place).rmdir()
    return not folder.exists()


#: Whether it is version 2 → the files that tell what is granted.
_EFFECTIVE = {
    True: ("cpuset.cpus.effective", "cpuset.mems.effective"),
    False: ("cpuset.effective_cpus", "cpuset.effective_mems"),
}


def _own(proc: Path) -> Iterator[tuple[Path, Path]]:
    """The folder of the group this process is in and the topmost one to be seen, version 2 first."""
    return _folders(proc / "cgroup", proc / "mountinfo")


def _folders(groups: Path, mountinfo: Path) -> Iterator[tuple[Path, Path]]:
    """The folder of the group that *groups* tells of, where *mountinfo* says groups are, and the topmost one."""
    paths = {}
    for line in groups.read_text("utf-8", "surrogateescape").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            paths["cgroup2"] = path
        elif _CPUSET in controllers.split(","):
            paths["cgroup"] = path
    mounts: dict[str, tuple[str, str]] = {}
    for line in mountinfo.read_text("utf-8", "surrogateescape").splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind == "cgroup2" or (kind == "cgroup" and _CPUSET in options.replace(" ", ",").split(",")):
            root, point = map(_unescaped, before.split(" ")[3:5])
            mounts.setdefault(kind, (root, point))
    for kind in ("cgroup2", "cgroup"):
        # A path that goes up is of a group outside of all that this process can see.
        if kind in paths and kind in mounts and ".." not in paths[kind].split("/"):
            root, point = mounts[kind]
            inside = os.path.relpath(paths[kind], root)
            if not inside.startswith(".."):
                yield Path(point, inside), Path(point)


def _upwards(own: Path, top: Path) -> Iterator[Path]:
    """From a group to the topmost one, without those of runs."""
    inside = own.relative_to(top).parts
    runs = [place for place, part in enumerate(inside) if part.startswith(PREFIX)]
    if runs:
        inside = inside[: runs[0]]
    for length in range(len(inside), -1, -1):
        yield top.joinpath(*inside[:length])


def _usable(folder: Path) -> bool:
    """Whether groups with a cpuset could be made here, and processes put into them."""
    if not os.access(folder, os.W_OK) or not os.access(folder / "cgroup.procs", os.W_OK):
        return False
    if not _is_v2(folder):
        return (folder / "cpuset.cpus").exists()
    if _CPUSET not in (folder / "cgroup.controllers").read_text("ascii").split():
        return False
    is_root = not (folder / "cgroup.type").exists()
    return is_root or not (folder / "cgroup.procs").read_text("ascii").split()


def _check_kind(folder: Path) -> None:
    """Refuse a group that cannot take processes, because of what is around it."""
    kind = folder / "cgroup.type"
    if kind.exists() and (said := kind.read_text("ascii").strip()) != "domain":
        raise EnforceError(f"{folder} can take no processes: it is {said}")


def _hand_on(folder: Path) -> None:
    """See to it that groups made in *folder* have a cpuset; in version 1 they always do."""
    if _is_v2(folder):
        control = folder / "cgroup.subtree_control"
        if _CPUSET not in control.read_text("ascii").split():
            write_file(control, f"+{_CPUSET}")


def _is_v2(folder: Path) -> bool:
    return (folder / "cgroup.controllers").exists()


def write_file(path: Path, text: str) -> None:
    """Write in one piece, as the kernel wants it."""
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(handle, f"{text}\n".encode("ascii"))
    except OSError as error:
        error.filename = os.fspath(path)
        raise
    finally:
        os.close(handle)


def _list(path: Path) -> int:
    try:
        return bits.parse(path.read_text("ascii").strip())
    except (FileNotFoundError, OSError):
        return 0


def _unescaped(text: str) -> str:
    return _OCTAL.sub(lambda found: chr(int(found[1], 8)), text)
