"""The CPU provider: hints and selection on idle machines, and on worn ones with a third of the CPUs taken."""

from collections.abc import Iterator, Sequence
from functools import partial
from random import Random
from statistics import median

from alignup.align import bits
from alignup.align.bits import CpuSet
from alignup.align.cpus.options import CpuOptions
from alignup.align.cpus.provider import CpuNodes, create_selection
from alignup.align.cpus.selection import plan_distribution
from alignup.align.hint import AmountFamily, HintList, MergeInput
from alignup.align.machine import KubeletView
from alignup.align.merging.merge import merge
from alignup.machines.synthetic import parse
from bench.harness import Figure, best_cpu

#: NUMA nodes and CPUs → the kubelet's time for the hints of 8 CPUs.
KUBELET = {(2, 128): "0.055 ms", (8, 128): "4.1 ms", (8, 256): "10.9 ms"}

SHAPES = {
    (2, 128): "pack:2 numa:1 core:32 pu:2",
    (8, 128): "pack:2 numa:4 core:8 pu:2",
    (8, 256): "pack:2 numa:4 core:16 pu:2",
    (64, 1024): "pack:4 numa:16 core:8 pu:2",
}


def figures() -> Iterator[Figure]:
    yield from (hints(*shape) for shape in KUBELET)
    yield merged(8, 256, budget=60e-6)
    yield listed(8, 256, budget=0.1e-3)
    for count, budget in ((8, 0.08e-3), (64, 0.1e-3), (192, 0.2e-3)):
        yield taken(8, 256, count=count, budget=budget)
    for count, budget in ((8, 0.08e-3), (64, 0.1e-3), (160, 0.2e-3)):
        yield taken(8, 256, count=count, budget=budget, worn=True)
    for count in (8, 256, 640):
        yield taken(64, 1024, count=count, budget=0.5e-3)
        yield taken(64, 1024, count=count, budget=0.5e-3, worn=True)
    for options in (CpuOptions(), CpuOptions(full_pcpus_only=True), CpuOptions(align_by_socket=True)):
        yield from distributed(8, 256, options=options)
    yield from planned(8, sockets=False, budget=3e-3)
    yield from planned(8, sockets=True, budget=3e-3)
    yield from planned(16, sockets=False, budget=None)


def hints(nodes: int, cpus: int) -> Figure:
    """Return the hints of 8 CPUs as a family, compared with the kubelet's list."""
    known = CpuNodes(view_of(nodes, cpus), by_socket=False)
    free = known.count(view_of(nodes, cpus).all_cpus)
    seconds = best_cpu(lambda: known.hints(8, free=free))
    return Figure(f"hints of 8 CPUs, {nodes} nodes, {cpus} CPUs", seconds, note=f"kubelet {KUBELET[nodes, cpus]}")


def merged(nodes: int, cpus: int, *, budget: float) -> Figure:
    """Hints as a family, and their merge with those of two devices per node."""
    view = view_of(nodes, cpus)
    known = CpuNodes(view, by_socket=False)
    free = known.count(view.all_cpus)
    devices = MergeInput("devices", AmountFamily(dict.fromkeys(range(nodes), 2), 1, preferred_width=1))
    seconds = best_cpu(lambda: merge([MergeInput("cpu", known.hints(8, free=free)), devices], nodes=view.all_nodes))
    return Figure(f"hints and merge with one other, {nodes} nodes, {cpus} CPUs", seconds, budget)


def listed(nodes: int, cpus: int, *, budget: float) -> Figure:
    """Return all sets of nodes as a list."""
    known = CpuNodes(view_of(nodes, cpus), by_socket=False)
    free = known.count(view_of(nodes, cpus).all_cpus)
    seconds = best_cpu(lambda: HintList.of_family(known.hints(8, free=free)))
    assert len(HintList.of_family(known.hints(8, free=free)).masks) == (1 << nodes) - 1
    return Figure(f"all {(1 << nodes) - 1} hints listed, {nodes} nodes, {cpus} CPUs", seconds, budget)


def taken(nodes: int, cpus: int, *, count: int, budget: float, worn: bool = False) -> Figure:
    """Packed selection."""
    view = view_of(nodes, cpus)
    free = worn_out(view, 1) if worn else view.all_cpus
    chosen = create_selection(view, CpuOptions())
    seconds = best_cpu(lambda: chosen.take(free, count))
    return Figure(f"{count} of {cpus} CPUs on {nodes} nodes, packed{', worn' if worn else ''}", seconds, budget)


def distributed(nodes: int, cpus: int, *, options: CpuOptions) -> Iterator[Figure]:
    """Distributed selection: half of all CPUs, and a hundred requests on worn machines."""
    view = view_of(nodes, cpus)
    group = 2 if options.full_pcpus_only else 1
    spread = CpuOptions(
        distribute_cpus_across_numa=True,
        full_pcpus_only=options.full_pcpus_only,
        align_by_socket=options.align_by_socket,
    )
    chosen = create_selection(view, spread)
    name = "distributed" + ", whole cores" * options.full_pcpus_only + ", by socket" * options.align_by_socket
    yield Figure(
        f"{cpus // 2 - 4} of {cpus} CPUs, {name}", best_cpu(lambda: chosen.take(view.all_cpus, cpus // 2 - 4)), 1e-3
    )
    random = Random(1)
    times = []
    for seed in range(100):
        free = worn_out(view, seed)
        count = random.randrange(1, free.bit_count() // 2) * group
        if count <= free.bit_count():
            times.append(best_cpu(partial(chosen.take, free, count), rounds=3, seconds=0.002))
    yield from typical_and_worst(f"{name}, worn", times, typical=1e-3, worst=3e-3)


def planned(nodes: int, *, sockets: bool, budget: float | None) -> Iterator[Figure]:
    """Only the search for the best nodes, on very different nodes."""
    random = Random(1)
    times = []
    halves = [1 << place * 2 // nodes for place in range(nodes)] if sockets else None
    for _ in range(100 if budget else 10):
        sizes = sorted(random.sample(range(1, 33), nodes))
        count = random.randrange(1, sum(sizes))
        search = partial(plan_distribution, sizes, count, fewest=-(-count // 32), sockets=halves)
        times.append(best_cpu(search, rounds=3, seconds=0.002))
    name = f"search on {nodes} uneven nodes" + ", by socket" * sockets
    yield from typical_and_worst(name, times, typical=1e-3 if budget else None, worst=budget)


def typical_and_worst(
    name: str, times: Sequence[float], *, typical: float | None, worst: float | None
) -> Iterator[Figure]:
    """Return the median and the worst of many times."""
    yield Figure(f"{name}: median of {len(times)}", median(times), typical)
    yield Figure(f"{name}: worst of {len(times)}", max(times), worst)


def view_of(nodes: int, cpus: int) -> KubeletView:
    """Return a uniform machine."""
    return parse(SHAPES[nodes, cpus]).kubelet_view()


def worn_out(view: KubeletView, seed: int) -> CpuSet:
    """Return two thirds of the CPUs, at random."""
    random = Random(seed)
    return bits.of(cpu.id for cpu in view.cpus if random.random() < 2 / 3)
