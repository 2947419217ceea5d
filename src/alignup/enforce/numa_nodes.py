"""The NUMA nodes of the running system, as far as enforcement needs them: whose CPUs, and who has memory."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from alignup.align import bits
from alignup.align.bits import CpuSet, NodeSet

SYS = Path("/sys/devices/system/node")


@dataclass(frozen=True, slots=True)
class NodeMap:
    """Which CPUs each node has, and which nodes have memory; both empty where the kernel knows of no nodes."""

    cpus: Mapping[int, CpuSet]
    with_memory: NodeSet

    def of(self, cpus: CpuSet) -> NodeSet:
        """The nodes of some CPUs."""
        return bits.of(node for node, own in self.cpus.items() if own & cpus)


def read(folder: Path = SYS) -> NodeMap:
    """The nodes as they are now."""
    if not folder.is_dir():
        return NodeMap({}, 0)
    cpus = {
        int(one.name.removeprefix("node")): _list(one / "cpulist")
        for one in folder.iterdir()
        if one.name.removeprefix("node").isdecimal()
    }
    return NodeMap(dict(sorted(cpus.items())), _list(folder / "has_memory"))


def _list(path: Path) -> int:
    try:
        return bits.parse(path.read_text("ascii").strip())
    except FileNotFoundError:
        return 0
