"""Processes of this machine: their identity, owner, affinity and descent, and the NUMA nodes of their memory.

The kernel reuses pids soon. So a process is identified by its pid, its start time and the boot id together.

Only a process can set its own memory policy; its children inherit it. Python does not wrap these system calls, so they
are called by number. On an architecture whose numbers are not listed here, memory is not bound and callers get an
error.
"""

import ctypes
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

from alignup.align import bits
from alignup.align.bits import CpuSet, NodeSet
from alignup.align.errors import EnforceError
from alignup.run.cgroup import Cpuset

PROC = Path("/proc")
SYS = Path("/sys/devices/system/node")

_MPOL_DEFAULT = 0
_MPOL_BIND = 2
_GENERIC = {"set_mempolicy": 237, "migrate_pages": 238}
_SYSTEM_CALLS: Mapping[str, Mapping[str, int]] = {
    "x86_64": {"set_mempolicy": 238, "migrate_pages": 256},
    "aarch64": _GENERIC,
    "riscv64": _GENERIC,
    "loongarch64": _GENERIC,
    "ppc64le": {"set_mempolicy": 261, "migrate_pages": 258},
    "s390x": {"set_mempolicy": 270, "migrate_pages": 287},
}
_WORD = 64
_PAGES = re.compile(r"N(?P<node>[0-9]+)=(?P<count>[0-9]+)", re.ASCII)
_SIZE = re.compile(r"kernelpagesize_kB=(?P<size>[0-9]+)", re.ASCII)

_ENDED = frozenset("ZXx")  #: states of ended processes
_START = 19  #: index of the start time among the fields after the name
_PR_SET_CHILD_SUBREAPER = 36
_PASSES = 5  #: over the threads of a process that starts new ones meanwhile


class ProcessIdentity(NamedTuple):
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
        """Whether this process can see the identified process, if it is alive."""
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
    owner: int | None  #: its user; ``None``: it runs with the rights of several users, like a setuid program
    mark: str  #: its value of an environment variable; empty: none, or not readable


class NodeMap(NamedTuple):
    """The CPUs of each NUMA node, and the nodes with memory; both empty if the kernel has no NUMA support."""

    cpus: Mapping[int, CpuSet]
    with_memory: NodeSet

    @classmethod
    def read(cls, directory: Path = SYS) -> Self:
        lists = {path.parent.name: path for path in directory.glob("node*/cpulist")}
        numbers = sorted(int(name[4:]) for name in lists if name[4:].isdecimal())
        cpus = {number: bits.parse(lists[f"node{number}"].read_text("ascii").strip()) for number in numbers}
        memory = directory / "has_memory"
        return cls(cpus, bits.parse(memory.read_text("ascii").strip()) if memory.exists() else 0)

    def of(self, cpus: CpuSet) -> NodeSet:
        return bits.of(node for node, node_cpus in self.cpus.items() if node_cpus & cpus)


def thread_cpusets(pid: int) -> tuple[Cpuset, ...]:
    """Return where each thread may run and allocate, in a process; empty if it is gone."""
    cpusets = []
    for thread in _threads(pid):
        with suppress(FileNotFoundError, ProcessLookupError):
            text = (PROC / str(pid) / "task" / str(thread) / "status").read_text("utf-8", "replace")
            fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
            cpus, nodes = (fields.get(name, "").strip() for name in ("Cpus_allowed_list", "Mems_allowed_list"))
            cpusets.append(Cpuset(bits.parse(cpus), bits.parse(nodes)))
    return tuple(cpusets)


def pin(pid: int, cpus: CpuSet) -> None:
    """Set the affinity of all threads of a process; raise ``EnforceError`` if the kernel does not permit it."""
    cpu_numbers = set(bits.members(cpus))
    pinned_threads: set[int] = set()
    for _ in range(_PASSES):
        new = set(_threads(pid)) - pinned_threads
        if not new:
            return
        for thread in new:
            try:
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(thread, cpu_numbers)
            except OSError as error:
                why = error.strerror or str(error)
                raise EnforceError(f"cannot move process {pid} to CPUs {bits.show(cpus)}: {why}") from error
        pinned_threads |= new


def permitted_cpus() -> CpuSet:
    """Return the CPUs this process could use, ignoring its affinity: the kernel trims a request to the cpuset."""
    old_cpus = os.sched_getaffinity(0)
    try:
        reset_affinity()
        return bits.of(os.sched_getaffinity(0))
    finally:
        os.sched_setaffinity(0, old_cpus)


def reset_affinity() -> None:
    possible = Path("/sys/devices/system/cpu/possible").read_text("ascii").strip()
    os.sched_setaffinity(0, range(bits.parse(possible).bit_length()))


def list_processes(variable: str) -> dict[int, ProcessInfo]:
    """Return all processes that have not ended, with their value of an environment variable.

    The environment of other users' processes is not readable without privileges. With privileges it is, but says
    nothing: users choose the environment of their own processes, so a caller must compare the owners, too.
    """
    processes = {}
    for pid in (int(path.name) for path in PROC.iterdir() if path.name.isdecimal()):
        with suppress(FileNotFoundError, ProcessLookupError):
            # All files are read through one handle, so that they belong to one process even if the pid is reused.
            handle = os.open(PROC / str(pid), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                info = _read_info(handle, variable)
            finally:
                os.close(handle)
            if info is not None:
                processes[pid] = info
    return processes


def owner(pid: int) -> int | None:
    """Return the user of a process; ``None`` if it is gone, or runs with the rights of several users."""
    return _only_user(users(pid))


def users(pid: int) -> set[int]:
    """Return the real, effective and saved user of a process; empty if it is gone or hidden."""
    with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        return _parse_users((PROC / str(pid) / "status").read_bytes())
    return set()


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends, in any session. Best effort."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def bind_memory(nodes: NodeSet) -> None:
    """Allocate memory of this process and its children only from *nodes*; raise ``EnforceError`` if that fails."""
    mask, width = _mask(nodes)
    _call("set_mempolicy", _MPOL_BIND, mask, width, purpose=f"bind memory to NUMA nodes {bits.show(nodes)}")


def can_bind_memory(nodes: NodeSet) -> bool:
    """Whether the kernel lets this process bind memory to *nodes*; the policy is left unchanged."""
    try:
        bind_memory(nodes)
        _call("set_mempolicy", _MPOL_DEFAULT, None, 0, purpose="reset the memory policy")
    except EnforceError:
        return False
    return True


def migrate_memory(pid: int, source: NodeSet, *, to: NodeSet) -> None:
    """Move the pages of a process from *source* to *to*; pages that cannot move stay."""
    length = max(source.bit_length(), to.bit_length())
    old, width = _mask(source, length)
    new, _ = _mask(to, length)
    purpose = f"move memory of process {pid} to NUMA nodes {bits.show(to)}"
    _call("migrate_pages", pid, width, old, new, purpose=purpose)


def memory_per_node(pid: int) -> dict[int, int] | None:
    """Return the private bytes of a process by NUMA node; ``None`` if it is gone or the kernel does not show them.

    Mapped files are left out: their pages are shared with the process that read them first.
    """
    try:
        text = (PROC / str(pid) / "numa_maps").read_text("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    sizes: dict[int, int] = {}
    for line in text.splitlines():
        if " file=" in line:
            continue
        size = _SIZE.search(line)
        page = int(size["size"]) * 1024 if size else os.sysconf("SC_PAGE_SIZE")
        for pages in _PAGES.finditer(line):
            node = int(pages["node"])
            sizes[node] = sizes.get(node, 0) + int(pages["count"]) * page
    return sizes


def _read_info(handle: int, variable: str) -> ProcessInfo | None:
    stat = _parse_stat(_read_file("stat", handle))
    if stat.state in _ENDED:
        return None
    owner = _only_user(_parse_users(_read_file("status", handle)))
    prefix, value = f"{variable}=".encode(), ""
    with suppress(PermissionError):
        for entry in _read_file("environ", handle).split(b"\0"):
            if entry.startswith(prefix):
                value = entry.removeprefix(prefix).decode("utf-8", "replace")
    return ProcessInfo(parent=stat.parent, owner=owner, mark=value)


def _read_file(name: str, directory: int) -> bytes:
    with open(name, "rb", opener=lambda path, flags: os.open(path, flags, dir_fd=directory)) as file:
        return file.read()


def _parse_users(status: bytes) -> set[int]:
    uids = next((line for line in status.splitlines() if line.startswith(b"Uid:")), b"")
    return {int(uid) for uid in uids.split()[1:]}  # real, effective, saved, file system


def _only_user(users: set[int]) -> int | None:
    return next(iter(users)) if len(users) == 1 else None


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
        for path in (PROC / str(pid) / "task").iterdir():
            yield int(path.name)


def _boot_id() -> str:
    return (PROC / "sys/kernel/random/boot_id").read_text("ascii").strip()


def _pid_namespace() -> int:
    return (PROC / "self/ns/pid").stat().st_ino


def _mask(nodes: NodeSet, length: int | None = None) -> tuple[ctypes.Array[ctypes.c_ulong], int]:
    """Return a node mask and its width in bits, to which the kernel wants one added."""
    words = (length or nodes.bit_length()) // _WORD + 1
    mask = (ctypes.c_ulong * words)(*(nodes >> _WORD * word & (1 << _WORD) - 1 for word in range(words)))
    return mask, words * _WORD + 1


def _call(name: str, *arguments: object, purpose: str) -> None:
    number = _SYSTEM_CALLS.get(os.uname().machine, {}).get(name)
    if number is None:
        raise EnforceError(f"cannot {purpose}: not supported on {os.uname().machine}")
    libc = ctypes.CDLL(None, use_errno=True)
    c_arguments = [ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments]
    if libc.syscall(ctypes.c_long(number), *c_arguments) < 0:
        raise EnforceError(f"cannot {purpose}: {os.strerror(ctypes.get_errno())}")
