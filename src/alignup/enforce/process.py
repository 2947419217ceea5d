"""Processes in ``/proc``: their identity, their affinity, and their descent.

The kernel reuses pids soon. So a process is identified by its pid, its start time and the boot id together.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from alignup.align import bits
from alignup.align.bits import CpuSet
from alignup.align.errors import EnforceError
from alignup.enforce.cgroup import Cpuset

PROC = Path("/proc")

_ENDED = frozenset("ZXx")  #: states of ended processes
_START = 19  #: index of the start time among the fields after the name
_PASSES = 5  #: over the threads of a process that starts new ones meanwhile


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process, distinguished from all others that had or will have its pid."""

    pid: int
    start: int  #: clock ticks since boot
    boot: str  #: the boot id
    space: int  #: the inode of its pid namespace

    @classmethod
    def of(cls, pid: int) -> Self:
        """Return the current process with that pid; raise ``EnforceError`` if there is none."""
        stat = _read_stat(pid)
        if stat is None:
            raise EnforceError(f"there is no process {pid}")
        return cls(pid, stat.start, _boot_id(), _pid_namespace())

    @property
    def alive(self) -> bool:
        """Whether it still runs; a process in another pid namespace cannot be seen, and counts as alive."""
        if self.boot != _boot_id():
            return False
        if self.space != _pid_namespace():
            return True
        stat = _read_stat(self.pid)
        return stat is not None and stat.start == self.start and stat.state not in _ENDED


def thread_cpusets(pid: int) -> tuple[Cpuset, ...]:
    """Return where each thread may run and allocate, in a process; empty if it is gone."""
    found = []
    for thread in _threads(pid):
        with suppress(FileNotFoundError, ProcessLookupError):
            text = (PROC / str(pid) / "task" / str(thread) / "status").read_text("utf-8", "replace")
            fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
            cpus, nodes = (fields.get(name, "").strip() for name in ("Cpus_allowed_list", "Mems_allowed_list"))
            found.append(Cpuset(bits.parse(cpus), bits.parse(nodes)))
    return tuple(found)


def pin(pid: int, cpus: CpuSet) -> None:
    """Set the affinity of all threads of a process; raise ``EnforceError`` if the kernel does not permit it."""
    wanted = set(bits.members(cpus))
    done: set[int] = set()
    for _ in range(_PASSES):
        new = set(_threads(pid)) - done
        if not new:
            return
        for thread in new:
            try:
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(thread, wanted)
            except OSError as error:
                why = error.strerror or str(error)
                raise EnforceError(f"cannot move process {pid} to CPUs {bits.show(cpus)}: {why}") from error
        done |= new


def permitted_cpus() -> CpuSet:
    """Return the CPUs this process could use, whatever its affinity: the kernel trims a request to the cpuset."""
    before = os.sched_getaffinity(0)
    try:
        reset_affinity()
        return bits.of(os.sched_getaffinity(0))
    finally:
        os.sched_setaffinity(0, before)


def reset_affinity() -> None:
    possible = Path("/sys/devices/system/cpu/possible").read_text("ascii").strip()
    os.sched_setaffinity(0, range(bits.parse(possible).bit_length()))


def find_by_environment(name: str) -> dict[str, tuple[int, ...]]:
    """Return value → the processes with that value of the variable *name*, and their descendants.

    A descendant with a different value belongs to that one. The environment of other users' processes is not readable
    without privileges, so they count by descent only.
    """
    prefix = f"{name}=".encode()
    own: dict[int, str] = {}
    parents: dict[int, int] = {}
    for pid in (int(one.name) for one in PROC.iterdir() if one.name.isdecimal()):
        stat = _read_stat(pid)
        if stat is None or stat.state in _ENDED:
            continue
        parents[pid] = stat.parent
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            for entry in (PROC / str(pid) / "environ").read_bytes().split(b"\0"):
                if entry.startswith(prefix):
                    own[pid] = entry.removeprefix(prefix).decode("utf-8", "replace")
    found: dict[str, list[int]] = {}
    for pid in sorted(parents):
        value = _inherited(pid, own, parents)
        if value is not None:
            found.setdefault(value, []).append(pid)
    return {value: tuple(pids) for value, pids in found.items()}


def _inherited(pid: int, own: Mapping[int, str], parents: Mapping[int, int]) -> str | None:
    seen: set[int] = set()  # pids may be reused while they are read, which can make a cycle
    while pid in parents and pid not in seen:
        if pid in own:
            return own[pid]
        seen.add(pid)
        pid = parents[pid]
    return None


class _Stat(NamedTuple):
    state: str
    parent: int
    start: int


def _read_stat(pid: int) -> _Stat | None:
    try:
        text = (PROC / str(pid) / "stat").read_text("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name is in parentheses, and may contain blanks and parentheses.
    fields = text.rpartition(")")[2].split()
    return _Stat(fields[0], int(fields[1]), int(fields[_START]))


def _threads(pid: int) -> Iterator[int]:
    with suppress(FileNotFoundError, ProcessLookupError):
        for one in (PROC / str(pid) / "task").iterdir():
            yield int(one.name)


def _boot_id() -> str:
    return (PROC / "sys/kernel/random/boot_id").read_text("ascii").strip()


def _pid_namespace() -> int:
    return (PROC / "self/ns/pid").stat().st_ino
