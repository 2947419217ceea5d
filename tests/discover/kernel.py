"""The files of a kernel for any ``Machine``, in memory or in a directory.

The kernel's habits are kept where they matter: core ids start again in every socket, lists name offline CPUs too.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alignup.align import bits
from alignup.align.machine import Cpu, Machine
from alignup.machines.file_reader import ArchiveFiles
from alignup.machines.topology import CPU, NODE


@dataclass(frozen=True)
class Files:
    """Contents and links by path."""

    contents: dict[str, bytes]
    links: dict[str, str]

    def packed(self) -> ArchiveFiles:
        return ArchiveFiles.of(self.contents, self.links)

    def write(self, root: Path) -> Path:
        """Write everything below *root*."""
        made: set[Path] = set()
        for path in (*self.contents, *self.links):
            place = root / path
            if place.parent not in made:
                place.parent.mkdir(parents=True, exist_ok=True)
                made.add(place.parent)
            if path in self.links:
                place.symlink_to(self.links[path])
            elif path.endswith("/"):
                place.mkdir(exist_ok=True)
            else:
                place.write_bytes(self.contents[path])
        return root


def describe(machine: Machine) -> Files:
    """The files of a current kernel for *machine*."""
    texts = dict(_texts(machine))
    links = {}
    for cpu in machine.cpus:
        if cpu.node is not None:
            links[f"{NODE}/node{cpu.node}/cpu{cpu.id}"] = f"../../cpu/cpu{cpu.id}"
            links[f"{CPU}/cpu{cpu.id}/node{cpu.node}"] = f"../../node/node{cpu.node}"
    return Files({path: f"{text}\n".encode() for path, text in texts.items()}, links)


def _texts(machine: Machine) -> Iterator[tuple[str, str]]:
    online = bits.of(cpu.id for cpu in machine.cpus)
    yield f"{CPU}/online", bits.show(online)
    yield f"{CPU}/present", bits.show(online | machine.offline)
    groups: dict[tuple[str, int | None], int] = {}
    for cpu in machine.cpus:
        for kind in ("core", "socket", "cache"):
            key = (kind, getattr(cpu, kind))
            groups[key] = groups.get(key, 0) | 1 << cpu.id
    ranks: dict[int, dict[int, int]] = {}
    for cpu in machine.cpus:
        cores = ranks.setdefault(cpu.socket, {})
        cores.setdefault(cpu.core, len(cores))
    for cpu in machine.cpus:
        yield from _cpu(cpu, groups, ranks[cpu.socket][cpu.core])
    for cpu_id in bits.members(machine.offline):
        yield f"{CPU}/cpu{cpu_id}/online", "0"
    lines = (f"processor\t: {cpu.id}\nphysical id\t: {cpu.socket}\nmodel name\t: Sample\n" for cpu in machine.cpus)
    yield "proc/cpuinfo", "\n".join(lines)
    if machine.memory is not None:
        yield "proc/meminfo", f"MemTotal:  {machine.memory // 1024} kB"
    yield from _nodes(machine)


def _cpu(cpu: Cpu, groups: dict[tuple[str, int | None], int], rank: int) -> Iterator[tuple[str, str]]:
    here = f"{CPU}/cpu{cpu.id}"
    yield f"{here}/online", "1"
    yield f"{here}/topology/core_id", str(rank)
    yield f"{here}/topology/physical_package_id", str(cpu.socket)
    for name, kind in (("core_cpus", "core"), ("thread_siblings", "core"), ("package_cpus", "socket")):
        group = groups[kind, getattr(cpu, kind)]
        yield f"{here}/topology/{name}", _mask(group)
        yield f"{here}/topology/{name}_list", bits.show(group)
    caches = [(0, 1, cpu.id, groups["core", cpu.core]), (1, 2, cpu.id, groups["core", cpu.core])]
    if cpu.cache is not None:
        caches.append((2, 3, cpu.cache, groups["cache", cpu.cache]))
    for index, level, number, shared in caches:
        yield f"{here}/cache/index{index}/level", str(level)
        yield f"{here}/cache/index{index}/id", str(number)
        yield f"{here}/cache/index{index}/type", "Unified"
        yield f"{here}/cache/index{index}/size", "1024K"
        yield f"{here}/cache/index{index}/shared_cpu_map", _mask(shared)
        yield f"{here}/cache/index{index}/shared_cpu_list", bits.show(shared)


def _nodes(machine: Machine) -> Iterator[tuple[str, str]]:
    yield f"{NODE}/online", bits.show(bits.of(node.id for node in machine.nodes))
    for node in machine.nodes:
        here = f"{NODE}/node{node.id}"
        yield f"{here}/cpulist", bits.show(bits.of(cpu.id for cpu in machine.cpus if cpu.node == node.id))
        if node.memory is not None:
            yield f"{here}/meminfo", f"Node {node.id} MemTotal:  {node.memory // 1024} kB"
        for pages in node.hugepages:
            yield f"{here}/hugepages/hugepages-{pages.size // 1024}kB/nr_hugepages", str(pages.count)
        if machine.distances:
            row = machine.distances.matrix[machine.distances.ids.index(node.id)]
            yield f"{here}/distance", " ".join(map(str, row))


def _mask(cpus: int) -> str:
    digits = f"{cpus:x}"
    digits = digits.zfill((len(digits) + 7) // 8 * 8)
    return ",".join(digits[start : start + 8] for start in range(0, len(digits), 8))


def groups(machine: Machine, key: Callable[[Cpu], Any]) -> dict[Any, str]:
    """What *key* says of CPUs → the CPUs it says it of, as a list."""
    sets: dict[Any, int] = {}
    for cpu in machine.cpus:
        sets[key(cpu)] = sets.get(key(cpu), 0) | 1 << cpu.id
    return {group: bits.show(cpus) for group, cpus in sets.items()}


def without(files: Files, *ends: str) -> Files:
    """*files* without those whose path, or a parent directory, ends in one of *ends*."""

    def kept(path: str) -> bool:
        parts = path.split("/")
        return not any("/".join(parts[:size]).endswith(ends) for size in range(1, len(parts) + 1))

    return Files(
        {path: held for path, held in files.contents.items() if kept(path)},
        {path: target for path, target in files.links.items() if kept(path)},
    )


def with_(files: Files, texts: dict[str, str]) -> Files:
    """*files* with some changed or added."""
    return Files(files.contents | {path: text.encode("latin-1") for path, text in texts.items()}, dict(files.links))
