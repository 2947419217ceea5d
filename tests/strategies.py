"""Hypothesis strategies for machines and node sets: everything hardware can look like, not only the usual shapes."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from hypothesis import strategies as st

from alignup.align import bits
from alignup.align.machine import Cpu, Distances, HugePages, Machine, NumaNode

MIB = 1 << 20
GIB = 1 << 30

#: The highest node id of the kubelet's masks; machines can have higher ones.
MAX_NODE_ID = 63

#: Memory of a node, and its huge pages.
_MEMORIES = (
    (16 * GIB, ()),
    (4 * GIB, (HugePages(2 * MIB, 64),)),
    (16 * GIB, (HugePages(2 * MIB, 128), HugePages(GIB, 2))),
    (64 * GIB, (HugePages(2 * MIB, 0), HugePages(GIB, 8))),
    (GIB, (HugePages(2 * MIB, 512),)),
    (0, ()),
    (0, (HugePages(2 * MIB, 0),)),
)


def cpu_sets(max_cpu: int = 255) -> st.SearchStrategy[bits.CpuSet]:
    """Draw sets of CPUs: sparse sets and sets with long runs."""
    scattered = st.frozensets(st.integers(0, max_cpu)).map(bits.of)
    solid = st.lists(st.tuples(st.integers(0, max_cpu), st.integers(0, max_cpu)), max_size=4).map(
        lambda runs: bits.of(cpu for run in runs for cpu in range(min(run), max(run) + 1))
    )
    return scattered | solid


def node_ids(*, max_nodes: int = 8, max_id: int = MAX_NODE_ID) -> st.SearchStrategy[tuple[int, ...]]:
    """Draw ascending node ids: mostly 0, 1, 2, …; sometimes with gaps, or not starting at 0."""
    counted = st.integers(1, max_nodes).map(lambda count: tuple(range(count)))
    gaps = st.frozensets(st.integers(0, max_id), min_size=1, max_size=max_nodes).map(lambda ids: tuple(sorted(ids)))
    return counted | counted | gaps


def node_sets(ids: Sequence[int], *, min_size: int = 0) -> st.SearchStrategy[bits.NodeSet]:
    """Draw subsets of *ids*."""
    return st.frozensets(st.sampled_from(ids), min_size=min_size).map(bits.of)


@st.composite
def distances(draw: st.DrawFn, ids: Sequence[int]) -> Distances:
    """Draw distances between *ids*: common or arbitrary values, symmetric or not."""
    far = draw(st.sampled_from((st.just(20), st.sampled_from((11, 16, 20, 21, 32)), st.integers(0, 255))))
    out = {(a, b): draw(far) for a in ids for b in ids if a < b}
    back = {(b, a): draw(far) for a, b in out} if draw(st.booleans()) else {(b, a): out[a, b] for a, b in out}
    pairs = out | back | {(a, a): 10 for a in ids}
    return Distances({a: {b: pairs[a, b] for b in ids} for a in ids})


@st.composite
def machines(draw: st.DrawFn, *, max_nodes: int = 8, max_id: int = MAX_NODE_ID, max_cores: int = 4) -> Machine:
    """Draw a consistent machine with at least one CPU.

    Nodes may have no CPUs or no memory, span sockets, share a socket, or differ in size. Cores have 1, 2 or 4 threads,
    or a mix of 1 and 2. CPU numbering follows one of the usual schemes or none, sometimes with gaps. *max_cores* is per
    node.
    """
    ids = draw(node_ids(max_nodes=max_nodes, max_id=max_id))
    cores = draw(_cores(ids, max_cores))
    cpus = draw(_numbered(cores))
    return Machine(
        cpus=tuple(sorted(cpus, key=lambda cpu: cpu.id)),
        nodes=tuple(NumaNode(node, *draw(st.sampled_from(_MEMORIES))) for node in ids),
        distances=draw(st.none() | distances(ids)),
    )


@dataclass(frozen=True)
class _Core:
    """One core before its CPUs are numbered."""

    node: int
    socket: int
    cache: int | None
    threads: int


@st.composite
def _cores(draw: st.DrawFn, ids: Sequence[int], max_cores: int) -> list[_Core]:
    usual = draw(st.integers(1, max_cores))
    sizes = st.just(usual) | st.just(usual) | st.integers(0, max_cores)
    home = draw(st.sampled_from(ids))
    counts = {node: max(draw(sizes), node == home) for node in ids}
    threads = draw(st.sampled_from(((1,), (2,), (2,), (4,), (2, 1))))
    nodes_a_socket = draw(st.sampled_from((1, 1, 2, 4, len(ids))))
    sockets_a_node = draw(st.sampled_from((1, 1, 1, 2)))
    caches_a_node = draw(st.sampled_from((0, 1, 2)))
    return [
        _Core(
            node=node,
            socket=place // nodes_a_socket * sockets_a_node + core % sockets_a_node,
            cache=place * caches_a_node + core % caches_a_node if caches_a_node else None,
            threads=threads[core % len(threads)],
        )
        for place, node in enumerate(ids)
        for core in range(counts[node])
    ]


@st.composite
def _numbered(draw: st.DrawFn, cores: Sequence[_Core]) -> list[Cpu]:
    """Draw the CPUs of *cores*, numbered in one of the ways of real machines."""
    slots = [(core, thread) for core, described in enumerate(cores) for thread in range(described.threads)]
    order = draw(st.sampled_from(("adjacent", "split", "interleaved", "shuffled")))
    seed = draw(st.integers(0, 255))  # drawing a permutation takes a hundred choices, most of the time of a test
    within = {core: sum(described.node == cores[core].node for described in cores[:core]) for core, _ in slots}
    if order == "split":
        slots.sort(key=lambda slot: slot[1])
    elif order == "interleaved":
        slots.sort(key=lambda slot: (slot[1], within[slot[0]]))
    elif order == "shuffled":
        Random(seed).shuffle(slots)
    stride = draw(st.sampled_from((1, 1, 1, 8)))
    return [
        Cpu(id=place * stride, core=core, socket=cores[core].socket, node=cores[core].node, cache=cores[core].cache)
        for place, (core, _) in enumerate(slots)
    ]
