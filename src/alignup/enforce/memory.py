"""Memory of processes: from which NUMA nodes it comes, where it is, and moving it.

A policy can only be set by a process for itself, before it becomes the command, and stays with all it starts. Python
has no words for these calls, so the kernel is called by number; on a kind of machine whose numbers are not known here
memory is not bound, and whoever asks is told so.
"""

import ctypes
import os
import re
from collections.abc import Mapping
from pathlib import Path

from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.errors import EnforceError

_DEFAULT = 0  #: MPOL_DEFAULT: from wherever the thread runs
_BIND = 2  #: MPOL_BIND: from these nodes and no others
_GENERIC = {"set_mempolicy": 237, "migrate_pages": 238}
_CALLS: Mapping[str, Mapping[str, int]] = {
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


def bind(nodes: NodeSet) -> None:
    """Take memory of this process, and of all it starts, from *nodes* alone; ``EnforceError`` when that cannot be."""
    mask, width = _mask(nodes)
    _call("set_mempolicy", _BIND, mask, width, what=f"memory cannot be bound to NUMA nodes {bits.show(nodes)}")


def can_bind(nodes: NodeSet) -> bool:
    """Whether the kernel lets this process bind memory to *nodes*; nothing stays changed."""
    try:
        bind(nodes)
        _call("set_mempolicy", _DEFAULT, None, 0, what="memory cannot be let go again")
    except EnforceError:
        return False
    return True


def migrate(pid: int, source: NodeSet, *, to: NodeSet) -> None:
    """Move what a process has on *source* to *to*; what cannot be moved stays."""
    length = max(source.bit_length(), to.bit_length())
    old, width = _mask(source, length)
    new, _ = _mask(to, length)
    what = f"memory of process {pid} cannot be moved to NUMA nodes {bits.show(to)}"
    _call("migrate_pages", pid, width, old, new, what=what)


def bytes_per_node(pid: int) -> dict[int, int] | None:
    """NUMA node → bytes of its own that a process has there; ``None`` when it is gone, or the kernel does not tell.

    Files are left out: their pages are shared with whoever read them first, wherever that was.
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
    """A set as the kernel takes it, and how many bits of it to look at, to which it wants one added."""
    words = (length or nodes.bit_length()) // _WORD + 1
    mask = (ctypes.c_ulong * words)(*(nodes >> _WORD * word & (1 << _WORD) - 1 for word in range(words)))
    return mask, words * _WORD + 1


def _call(name: str, *arguments: object, what: str) -> None:
    number = _CALLS.get(os.uname().machine, {}).get(name)
    if number is None:
        raise EnforceError(f"{what}: how to ask for that on {os.uname().machine} is not known here")
    kernel = ctypes.CDLL(None, use_errno=True)
    taken = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    if kernel.syscall(ctypes.c_long(number), *taken) < 0:
        raise EnforceError(f"{what}: {os.strerror(ctypes.get_errno())}")
