"""Processes as ``/proc`` tells of them: which one it is, where it may run, and who belongs to whom.

A number is no name: the kernel gives it to another process soon. So a process is known by its number, when it started
and since which boot; only the three together say that it is still the same.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from alignup.align import bits
from alignup.align.bits import CpuSet, NodeSet
from alignup.align.errors import EnforceError

PROC = Path("/proc")

_ENDED = frozenset("ZXx")  #: states of a process that does nothing any more
_START = 19  #: the place of the start time among the fields after the name
_PASSES = 5  #: over the threads of a process that starts new ones while it is looked at


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process, told apart from all that had or will have its number."""

    pid: int
    start: int  #: ticks of the clock since the machine was switched on
    boot: str  #: which time it was switched on
    space: int  #: the namespace its number counts in

    @classmethod
    def of(cls, pid: int) -> Self:
        """The process that has this number now; ``EnforceError`` when there is none."""
        told = _stat(pid)
        if told is None:
            raise EnforceError(f"there is no process {pid}")
        return cls(pid, told.start, _boot(), _space())

    @property
    def alive(self) -> bool:
        """Whether it still runs. Of one in another namespace that cannot be seen from here, so it counts as alive."""
        if self.boot != _boot():
            return False
        if self.space != _space():
            return True
        told = _stat(self.pid)
        return told is not None and told.start == self.start and told.state not in _ENDED

    def to_document(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {"pid": self.pid, "start": self.start, "boot": self.boot, "space": self.space}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """The process a document tells of; ``KeyError``, ``TypeError`` or ``ValueError`` when it tells of none."""
        return cls(int(document["pid"]), int(document["start"]), str(document["boot"]), int(document["space"]))


@dataclass(frozen=True, slots=True)
class ThreadAffinity:
    """Where one thread may run, and where its memory may come from."""

    thread: int
    cpus: CpuSet
    nodes: NodeSet


def thread_affinities(pid: int) -> tuple[ThreadAffinity, ...]:
    """Where each thread of a process may be; empty when it is gone."""
    found = []
    for thread in _threads(pid):
        fields = _fields(PROC / str(pid) / "task" / str(thread) / "status")
        if fields:
            cpus, nodes = fields.get("Cpus_allowed_list", ""), fields.get("Mems_allowed_list", "")
            found.append(ThreadAffinity(thread, bits.parse(cpus), bits.parse(nodes)))
    return tuple(found)


def pin(pid: int, cpus: CpuSet) -> None:
    """Have all threads of a process run on *cpus*; ``EnforceError`` when the kernel does not permit it."""
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
                raise EnforceError(f"process {pid} cannot be put on CPUs {bits.show(cpus)}: {why}") from error
        done |= new


def permitted_cpus() -> CpuSet:
    """The CPUs this process could be put on, whatever it was told: the kernel cuts a wish down to what is permitted."""
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, range(_possible()))
        return bits.of(os.sched_getaffinity(0))
    finally:
        os.sched_setaffinity(0, before)


def reset_affinity() -> None:
    """Let this process run wherever its cpuset permits."""
    os.sched_setaffinity(0, range(_possible()))


def find_by_environment(name: str) -> dict[str, tuple[int, ...]]:
    """Value → the processes that have *name* with that value in their environment, or descend from one that has.

    Whoever has a value of its own belongs to that alone. Of other users' processes nothing is known without privileges,
    so they count by descent only.
    """
    start = f"{name}=".encode()
    own: dict[int, str] = {}
    parents: dict[int, int] = {}
    for pid in _pids():
        told = _stat(pid)
        if told is None or told.state in _ENDED:
            continue
        parents[pid] = told.parent
        for entry in _environment(pid):
            if entry.startswith(start):
                own[pid] = entry.removeprefix(start).decode("utf-8", "replace")
    found: dict[str, list[int]] = {}
    for pid in sorted(parents):
        value = _inherited(pid, own, parents)
        if value is not None:
            found.setdefault(value, []).append(pid)
    return {value: tuple(pids) for value, pids in found.items()}


def _inherited(pid: int, own: Mapping[int, str], parents: Mapping[int, int]) -> str | None:
    """The value of a process, or of the nearest one it descends from."""
    seen: set[int] = set()  # numbers may be given anew while they are read
    while pid in parents and pid not in seen:
        if pid in own:
            return own[pid]
        seen.add(pid)
        pid = parents[pid]
    return None


@dataclass(frozen=True, slots=True)
class _Stat:
    state: str
    parent: int
    start: int


def _stat(pid: int) -> _Stat | None:
    """What the kernel says of a process in one line; nothing when it is gone."""
    try:
        text = (PROC / str(pid) / "stat").read_text("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name is in brackets, and may have blanks and brackets in it.
    fields = text.rpartition(")")[2].split()
    return _Stat(fields[0], int(fields[1]), int(fields[_START]))


def _pids() -> Iterator[int]:
    return (int(one.name) for one in PROC.iterdir() if one.name.isdecimal())


def _threads(pid: int) -> list[int]:
    try:
        return [int(one.name) for one in (PROC / str(pid) / "task").iterdir()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _environment(pid: int) -> list[bytes]:
    try:
        return (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []


def _fields(path: Path) -> dict[str, str]:
    """Names and values of a file with one of each on a line; empty when it is gone."""
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    pairs = (line.partition(":") for line in lines)
    return {name: value.strip() for name, _, value in pairs}


def _boot() -> str:
    return (PROC / "sys/kernel/random/boot_id").read_text("ascii").strip()


def _space() -> int:
    return (PROC / "self/ns/pid").stat().st_ino


def _possible() -> int:
    """One more than the highest CPU there could be."""
    text = Path("/sys/devices/system/cpu/possible").read_text("ascii").strip()
    return bits.parse(text).bit_length()
