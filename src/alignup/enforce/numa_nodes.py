"""The NUMA nodes of the running system: their CPUs, and which have memory."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from alignup.align import bits
from alignup.align.bits import CpuSet, NodeSet

SYS = Path("/sys/devices/system/node")


@dataclass(frozen=True, slots=True)
class NodeMap:
    """The CPUs of each node, and the nodes with memory; both empty if the kernel has no NUMA support."""

    cpus: Mapping[int, CpuSet]
    with_memory: NodeSet

    def of(self, cpus: CpuSet) -> NodeSet:
        return bits.of(node for node, own in self.cpus.items() if own & cpus)


def read(directory: Path = SYS) -> NodeMap:
    if not directory.is_dir():
        return NodeMap({}, 0)
    cpus = {
        int(one.name.removeprefix("node")): _read_list(one / "cpulist")
        for one in directory.iterdir()
        if one.name.removeprefix("node").isdecimal()
    }
    return NodeMap(dict(sorted(cpus.items())), _read_list(directory / "has_memory"))


def _read_list(path: Path) -> int:
    try:
        return bits.parse(path.read_text("ascii").strip())
    except FileNotFoundError:
        return 0
