"""Processes in ``/proc``: their identity, their owner, their affinity, and their descent.

The kernel reuses pids soon. So a process is identified by its pid, its start time and the boot id together.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from alignup.align import bits
from alignup.align.bits import CpuSet
from alignup.align.errors import EnforceError
from alignup.run.cgroup import Cpuset

PROC = Path("/proc")

_ENDED = frozenset("ZXx")  #: states of ended processes
_START = 19  #: index of the start time among the fields after the name
_PR_SET_CHILD_SUBREAPER = 36
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
    def is_visible(self) -> bool:
        """Whether this process can see it, if it is alive."""
        return (self.boot, self.space) == (_boot_id(), _pid_namespace())

    @property
    def alive(self) -> bool:
        """Whether it still runs; a process in another pid namespace cannot be seen, and counts as alive."""
        if self.boot != _boot_id():
            return False
        if self.space != _pid_namespace():
            return True
        stat = _read_stat(self.pid)
        return stat is not None and stat.start == self.start and stat.state not in _ENDED


class ProcessInfo(NamedTuple):
    parent: int
    start: int  #: clock ticks since boot
    owner: int | None  #: its user; ``None``: it runs with the rights of several users, like a setuid program
    mark: str  #: its value of an environment variable; empty: none, or not readable


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


def list_processes(variable: str) -> dict[int, ProcessInfo]:
    """Return all processes that have not ended, with their value of an environment variable.

    The environment of other users' processes is not readable without privileges. With privileges it is, but says
    nothing: users choose the environment of their own processes, so a caller must compare the owners, too.
    """
    found = {}
    for pid in (int(one.name) for one in PROC.iterdir() if one.name.isdecimal()):
        with suppress(FileNotFoundError, ProcessLookupError):
            # All files are read through one handle, so that they belong to one process even if the pid is reused.
            handle = os.open(PROC / str(pid), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                info = _read_info(handle, variable)
            finally:
                os.close(handle)
            if info is not None:
                found[pid] = info
    return found


def owner(pid: int) -> int | None:
    """Return the user of a process; ``None`` if it is gone, or runs with the rights of several users."""
    found = users(pid)
    return found.pop() if len(found) == 1 else None


def users(pid: int) -> set[int]:
    """Return the real, effective and saved user of a process; empty if it is gone or hidden."""
    with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        return _parse_users((PROC / str(pid) / "status").read_bytes())
    return set()


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends, whatever session they are in. Best effort."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _read_info(handle: int, variable: str) -> ProcessInfo | None:
    stat = _parse_stat(_read_file("stat", handle))
    if stat.state in _ENDED:
        return None
    own = _parse_users(_read_file("status", handle))
    prefix, value = f"{variable}=".encode(), ""
    with suppress(PermissionError):
        for entry in _read_file("environ", handle).split(b"\0"):
            if entry.startswith(prefix):
                value = entry.removeprefix(prefix).decode("utf-8", "replace")
    return ProcessInfo(parent=stat.parent, start=stat.start, owner=own.pop() if len(own) == 1 else None, mark=value)


def _read_file(name: str, directory: int) -> bytes:
    with open(name, "rb", opener=lambda path, flags: os.open(path, flags, dir_fd=directory)) as file:
        return file.read()


def _parse_users(status: bytes) -> set[int]:
    line = next((one for one in status.splitlines() if one.startswith(b"Uid:")), b"")
    return {int(one) for one in line.split()[1:]}  # real, effective, saved, file system


class _Stat(NamedTuple):
    state: str
    parent: int
    start: int


def _read_stat(pid: int) -> _Stat | None:
    try:
        return _parse_stat((PROC / str(pid) / "stat").read_bytes())
    except (FileNotFoundError, ProcessLookupError):
        return None


def _parse_stat(stat: bytes) -> _Stat:
    # The name is in parentheses, and may contain blanks and parentheses.
    fields = stat.rpartition(b")")[2].decode("ascii").split()
    return _Stat(fields[0], int(fields[1]), int(fields[_START]))


def _threads(pid: int) -> Iterator[int]:
    with suppress(FileNotFoundError, ProcessLookupError):
        for one in (PROC / str(pid) / "task").iterdir():
            yield int(one.name)


def _boot_id() -> str:
    return (PROC / "sys/kernel/random/boot_id").read_text("ascii").strip()


def _pid_namespace() -> int:
    return (PROC / "self/ns/pid").stat().st_ino
