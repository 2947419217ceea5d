"""NUMA nodes of this machine, and the memory of processes: which nodes it comes from, where it is, how to move it.

Only a process can set its own memory policy; its children inherit it. Python does not wrap these system calls, so they
are called by number. On an architecture whose numbers are not listed here, memory is not bound and callers get an
error.
"""

import ctypes
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from alignup.align import bits
from alignup.align.bits import CpuSet, NodeSet
from alignup.align.errors import EnforceError

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


@dataclass(frozen=True, slots=True)
class NodeMap:
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
        return bits.of(node for node, own in self.cpus.items() if own & cpus)


def bind(nodes: NodeSet) -> None:
    """Allocate memory of this process and its children only from *nodes*; raise ``EnforceError`` if that fails."""
    mask, width = _mask(nodes)
    _call("set_mempolicy", _MPOL_BIND, mask, width, what=f"cannot bind memory to NUMA nodes {bits.show(nodes)}")


def can_bind(nodes: NodeSet) -> bool:
    """Whether the kernel lets this process bind memory to *nodes*; the policy is left unchanged."""
    try:
        bind(nodes)
        _call("set_mempolicy", _MPOL_DEFAULT, None, 0, what="cannot reset the memory policy")
    except EnforceError:
        return False
    return True


def migrate(pid: int, source: NodeSet, *, to: NodeSet) -> None:
    """Move the pages of a process from *source* to *to*; pages that cannot move stay."""
    length = max(source.bit_length(), to.bit_length())
    old, width = _mask(source, length)
    new, _ = _mask(to, length)
    what = f"cannot move memory of process {pid} to NUMA nodes {bits.show(to)}"
    _call("migrate_pages", pid, width, old, new, what=what)


def bytes_per_node(pid: int) -> dict[int, int] | None:
    """Return the private bytes of a process by NUMA node; ``None`` if it is gone or the kernel does not show them.

    Mapped files are left out: their pages are shared with the process that read them first.
    """
    try:
        text = Path(f"/proc/{pid}/numa_maps").read_text("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    found: dict[int, int] = {}
    for line in text.splitlines():
        if " file=" in line:
            continue
        size = _SIZE.search(line)
        page = int(size["size"]) * 1024 if size else os.sysconf("SC_PAGE_SIZE")
        for pages in _PAGES.finditer(line):
            node = int(pages["node"])
            found[node] = found.get(node, 0) + int(pages["count"]) * page
    return found


def _mask(nodes: NodeSet, length: int | None = None) -> tuple[ctypes.Array[ctypes.c_ulong], int]:
    """Return a node mask and its width in bits, to which the kernel wants one added."""
    words = (length or nodes.bit_length()) // _WORD + 1
    mask = (ctypes.c_ulong * words)(*(nodes >> _WORD * word & (1 << _WORD) - 1 for word in range(words)))
    return mask, words * _WORD + 1


def _call(name: str, *arguments: object, what: str) -> None:
    number = _SYSTEM_CALLS.get(os.uname().machine, {}).get(name)
    if number is None:
        raise EnforceError(f"{what}: not supported on {os.uname().machine}")
    libc = ctypes.CDLL(None, use_errno=True)
    converted = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    if libc.syscall(ctypes.c_long(number), *converted) < 0:
        raise EnforceError(f"{what}: {os.strerror(ctypes.get_errno())}")
