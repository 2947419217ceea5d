"""Record the guests of ``tests/machines`` again: ``python -m e2e.record_machines [NAME…]``.

The expected hardware is that of the guest's shape. Only what the kernel decides (its own memory, cache ids, the board's
devices) is read from single files in the guest.
"""

import base64
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from e2e import disk
from e2e.guest import Node, Shape, missing, run

MACHINES = Path(__file__).parent.parent / "tests" / "machines"

SHAPES = {
    "guest-2n": Shape(2, 2, 2, (Node(256, "0-3"), Node(256, "4-7")), nics=(1,), hugepages={0: 8}),
    "guest-4n-2s": Shape(
        2,
        4,
        1,
        tuple(Node(192, f"{2 * node}-{2 * node + 1}") for node in range(4)),
        distances={(a, b): 12 if a // 2 == b // 2 else 21 + b for a in range(4) for b in range(4) if a < b},
        nics=(0, 3),
        hugepages={1: 4, 3: 16},
    ),
    "guest-8n": Shape(4, 2, 2, tuple(Node(128, f"{2 * node}-{2 * node + 1}") for node in range(8)), hugepages={7: 2}),
    "guest-16n": Shape(4, 4, 1, tuple(Node(96, str(node)) for node in range(16))),
    "guest-memory-only": Shape(
        1,
        4,
        2,
        (Node(256, "0-3"), Node(256, "4-7"), Node(128), Node(128)),  # Linux numbers nodes with CPUs first
        distances={(0, 1): 21, (0, 2): 17, (0, 3): 28, (1, 2): 28, (1, 3): 17, (2, 3): 28},
        hugepages={2: 3},
    ),
    "guest-offline": Shape(
        3, 2, 2, (Node(192, "0-3"), Node(192, "4-7"), Node(192, "8-11")), offline=(1, 6, 7, 8, 9, 10, 11)
    ),
}

_SCRIPT = """
import base64, glob, json
from alignup.machines import record

def read(path):
    return Path(path).read_text().strip()

def kib(path):
    return next(int(line.split()[-2]) for line in read(path).splitlines() if "MemTotal:" in line)

def number(path, prefix):
    return path.rpartition("/" + prefix)[2].partition("/")[0]

system = "/sys/devices/system"
raw = {
    "total": kib("/proc/meminfo"),
    "memory": {number(path, "node"): kib(path) for path in glob.glob(system + "/node/node*/meminfo")},
    "sizes": [number(path, "hugepages-")[:-2] for path in glob.glob("/sys/kernel/mm/hugepages/*")],
    "l3": {number(path, "cpu"): int(read(path)) for path in glob.glob(system + "/cpu/cpu*/cache/index3/id")},
    "pci": [
        {"addr": Path(path).name} | {name: read(path + "/" + name) for name in ("class", "vendor", "device")}
        | {"numa_node": int(read(path + "/numa_node")), "local_cpulist": read(path + "/local_cpulist")}
        for path in sorted(glob.glob("/sys/bus/pci/devices/*"))
    ],
}
record(Path("/"), Path("/tmp/machine.tar.gz"))
print(json.dumps(raw))
print(base64.b64encode(Path("/tmp/machine.tar.gz").read_bytes()).decode())
"""


def main(names: list[str]) -> int:
    """Record the guests called *names*, or all."""
    if why := missing():
        sys.stderr.write(f"{why}\n")
        return 1
    with tempfile.TemporaryDirectory() as scratch:
        image = disk.make(Path(scratch))
        for name in names or SHAPES:
            archive, expected = record_guest(SHAPES[name], image=image)
            (MACHINES / f"{name}.tar.gz").write_bytes(archive)
            for suffix, facts in (("", expected.hardware()), (".kubelet", expected.kubelet())):
                path = MACHINES / "expected" / f"{name}{suffix}.json"
                path.write_text(json.dumps({"name": name} | facts, separators=(",", ":")) + "\n")
            sys.stdout.write(f"{name}\n")
    return 0


def record_guest(shape: Shape, *, image: Path) -> tuple[bytes, "ExpectedGuest"]:
    """Record a guest of *shape*; return the archive and the expected hardware."""
    raw, archive = run(shape, _SCRIPT, image=image).splitlines()[-2:]
    return base64.b64decode(archive), ExpectedGuest(shape, json.loads(raw))


class ExpectedGuest:
    """The expected hardware of one guest; ``RuntimeError`` if the guest does not have its shape."""

    def __init__(self, shape: Shape, raw: Mapping[str, Any]) -> None:
        self.shape, self.raw = shape, raw
        self.all = range(shape.sockets * shape.cores * shape.threads)
        self.online = [cpu for cpu in self.all if cpu not in shape.offline]
        self.near = {cpu: node for node, wanted in enumerate(shape.nodes) for cpu in _members(wanted.cpus)}
        for node, wanted in enumerate(shape.nodes):
            if not 0.4 * wanted.memory < self.memory(node) / 1024 <= wanted.memory:
                raise RuntimeError(f"node {node} has {self.memory(node)} KiB of memory, not {wanted.memory} MiB")
        for node in shape.nics:
            cards = [card for card in raw["pci"] if card["class"] == "0x020000" and card["numa_node"] == node]
            if not cards:
                raise RuntimeError(f"node {node} has no network card")

    def core(self, cpu: int) -> int:
        return cpu // self.shape.threads

    def socket(self, cpu: int) -> int:
        return self.core(cpu) // self.shape.cores

    def memory(self, node: int) -> int:
        """Return the usable memory of a NUMA node in KiB."""
        kib: int = self.raw["memory"][str(node)]
        return kib

    def pages(self, node: int | None) -> dict[str, dict[str, int]]:
        """Return the huge pages of a NUMA node, or of all."""
        counts = self.shape.hugepages
        huge = sum(counts.values()) if node is None else counts.get(node, 0)
        return {size: {"nr": huge if size == "2048" else 0} for size in sorted(self.raw["sizes"], key=int)}

    def distance(self, a: int, b: int) -> int:
        """Return the distance of two NUMA nodes; 20 is QEMU's default."""
        return 10 if a == b else self.shape.distances.get((min(a, b), max(a, b)), 20)

    def rows(self) -> list[list[int]]:
        nodes = range(len(self.shape.nodes))
        return [[self.distance(a, b) for b in nodes] for a in nodes]

    def hardware(self) -> dict[str, Any]:
        """Return the content of ``expected/NAME.json``."""
        nodes = range(len(self.shape.nodes))
        inside = {node: [cpu for cpu in self.online if self.near[cpu] == node] for node in nodes}
        return {
            "cpus": {"online": self.online, "offline_with_dir": sorted(self.shape.offline)},
            "partitions": {
                "core": {"partition": self._groups(self.core)},
                "socket": {"partition": self._groups(self.socket)},
                "numa": {"partition": [cpus for cpus in inside.values() if cpus]},
                "l3": {"partition": self._groups(self.socket)},  # QEMU creates one per socket
            },
            "cpus_without_node": [],
            "numa_nodes": [
                {"id": node, "cpus_online": cpus, "memory_kib": self.memory(node), "hugepages": self.pages(node)}
                for node, cpus in inside.items()
            ],
            "memory_only_nodes": [node for node, wanted in enumerate(self.shape.nodes) if not wanted.cpus],
            "memoryless_nodes": [],
            "distances": {"node_ids": list(nodes), "matrix": self.rows()},
            "hugepages_global": self.pages(None),
            "meminfo_total_kib": self.raw["total"],
            "pci": self.raw["pci"],
        }

    def kubelet(self) -> dict[str, Any]:
        """Return the content of ``expected/NAME.kubelet.json``."""
        cpus = {str(cpu): self._numbers(cpu) for cpu in self.online}
        order = sorted(range(len(self.shape.nodes)), key=str)
        return {
            "num_cpus": len(cpus),
            "num_cores": len({core for _, _, core, _ in cpus.values()}),
            "num_sockets": len({socket for socket, _, _, _ in cpus.values()}),
            "num_numa_nodes_with_cpus": len({node for _, node, _, _ in cpus.values()}),
            "num_uncore_caches": len({cache for _, _, _, cache in cpus.values()}),
            "memory_capacity": self.raw["total"] * 1024,
            "discover_error": None,
            "cpus": cpus,
            "nodes": [
                {
                    "id": node,
                    "memory_bytes": self.memory(node) * 1024,
                    "hugepages": self._kubelet_pages(node),
                    "distances": self.rows()[node],
                }
                for node in order
            ],
            "hugepages": self._kubelet_pages(None),
            "topologymanager": {"prefer-closest-numa-nodes": "ok"},
        }

    def _numbers(self, cpu: int) -> list[int]:
        """Return socket, NUMA node, core and cache, with the kubelet's ids.

        An L3 with as many CPUs as the NUMA node would have if all its cores were like this one belongs to the node; the
        kubelet then uses the socket's id for the cache.
        """
        siblings = [other for other in self.online if self.core(other) == self.core(cpu)]
        sharing = [other for other in self.online if self.socket(other) == self.socket(cpu)]
        here = {self.core(other) for other in self.online if self.near[other] == self.near[cpu]}
        threads = len([other for other in siblings if self.near[other] == self.near[cpu]])
        cache = self.socket(cpu) if len(sharing) == len(here) * threads else self.raw["l3"][str(cpu)]
        return [self.socket(cpu), self.near[cpu], min(siblings), cache]

    def _kubelet_pages(self, node: int | None) -> list[dict[str, int]]:
        counts = self.pages(node)
        return [{"page_size": int(size), "num_pages": counts[size]["nr"]} for size in sorted(counts)]

    def _groups(self, key: Callable[[int], int]) -> list[list[int]]:
        numbers = sorted({key(cpu) for cpu in self.online})
        return [[cpu for cpu in self.online if key(cpu) == number] for number in numbers]


def _members(listed: str) -> range:
    first, _, last = listed.partition("-")
    return range(int(first), int(last or first) + 1) if listed else range(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
