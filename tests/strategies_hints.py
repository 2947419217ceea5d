"""Hypothesis strategies for hints: explicit lists, and families like those of CPUs, devices and memory."""

from functools import reduce

from hypothesis import strategies as st

from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.hint import DONT_CARE, IMPOSSIBLE, AmountFamily, Hint, HintFamily, HintList, MergeInput
from alignup.align.machine import Distances


def node_sets(least: int = 1, most: int = 8) -> st.SearchStrategy[NodeSet]:
    """Draw the nodes of a machine: usually 0, 1, 2 …, sometimes with gaps."""
    gapless = st.integers(least, most).map(lambda count: (1 << count) - 1)
    gaps = st.sets(st.integers(0, 70), min_size=least, max_size=most).map(bits.of)
    return gapless | gaps


def subsets_of(nodes: NodeSet, *, least: int = 0) -> st.SearchStrategy[NodeSet]:
    return st.sets(st.sampled_from(sorted(bits.members(nodes))), min_size=least).map(bits.of)


def distances_between(nodes: NodeSet) -> st.SearchStrategy[Distances]:
    """Draw distances, often with few different values, so that ties are common; sometimes asymmetric."""
    ids = sorted(bits.members(nodes))
    values = st.sampled_from([10, 11, 12, 20, 21]) | st.integers(0, 255)
    row = st.fixed_dictionaries(dict.fromkeys(ids, values))
    return st.fixed_dictionaries(dict.fromkeys(ids, row)).map(Distances)


@st.composite
def lists(draw: st.DrawFn, nodes: NodeSet, *, unknown_nodes: bool = False) -> HintList:
    """Draw explicit hints; with *unknown_nodes* they may name nodes that the machine lacks, or no nodes."""
    named = subsets_of(nodes | (1 << 71 if unknown_nodes else 0), least=0 if unknown_nodes else 1)
    masks = st.none() | named if unknown_nodes else named
    hints = draw(st.lists(st.builds(Hint, masks, st.booleans()), max_size=6))
    return HintList.of(hints) if hints else draw(st.sampled_from([DONT_CARE, IMPOSSIBLE]))


@st.composite
def cpu_like(draw: st.DrawFn, nodes: NodeSet) -> AmountFamily:
    """Draw a free amount per node, with reusable CPUs on some nodes or aligned by socket in some examples."""
    ids = sorted(bits.members(nodes))
    free = draw(st.fixed_dictionaries(dict.fromkeys(ids, st.integers(0, 4))))
    must = draw(st.just(0) | st.just(0) | subsets_of(nodes))
    sockets: tuple[NodeSet, ...] = ()
    if draw(st.booleans()):
        half = draw(subsets_of(nodes))
        sockets = tuple(part for part in (half, nodes & ~half) if part)
    return AmountFamily(
        free,
        draw(st.integers(0, 10)),
        required=must,
        preferred_width=draw(st.integers(1, len(ids))),
        sockets=sockets,
        preferred_sockets=draw(st.integers(1, 2)) if sockets else 0,
    )


@st.composite
def device_like(draw: st.DrawFn, nodes: NodeSet) -> AmountFamily:
    """Draw devices on some of the nodes."""
    ids = sorted(bits.members(draw(subsets_of(nodes, least=1))))
    free = draw(st.fixed_dictionaries(dict.fromkeys(ids, st.integers(0, 2))))
    return AmountFamily(free, draw(st.integers(1, 4)), preferred_width=draw(st.integers(1, len(ids))))


@st.composite
def memory_like(draw: st.DrawFn, nodes: NodeSet) -> AmountFamily:
    """Draw unused nodes, which can be combined, and used nodes and groups, which cannot."""
    open_nodes = draw(subsets_of(nodes))
    used = nodes & ~open_nodes
    fixed_sets = draw(st.lists(subsets_of(used, least=1), max_size=3)) if used else []
    if open_nodes and draw(st.booleans()):
        fixed_sets.append(draw(subsets_of(open_nodes, least=1)))  # fits only thanks to reusable memory
    free = draw(st.fixed_dictionaries(dict.fromkeys(sorted(bits.members(open_nodes)), st.integers(0, 4))))
    return AmountFamily(
        free,
        draw(st.integers(1, 8)),
        preferred_width=draw(st.integers(1, nodes.bit_count())),
        fixed_sets=tuple(fixed_sets),
    )


@st.composite
def shared_devices(draw: st.DrawFn, nodes: NodeSet) -> "SharedDevices":
    """Draw devices that belong to several nodes at once."""
    devices = draw(st.lists(subsets_of(nodes, least=1), min_size=1, max_size=4))
    return SharedDevices(tuple(devices), draw(st.integers(1, 3)), draw(st.integers(1, nodes.bit_count())))


class SharedDevices(HintFamily):
    """A minimal family, as a custom provider would write it."""

    def __init__(self, devices: tuple[NodeSet, ...], need: int, preferred_width: int) -> None:
        self.devices, self.need, self.preferred_width = devices, need, preferred_width

    @property
    def nodes(self) -> NodeSet:
        return reduce(int.__or__, self.devices)

    @property
    def min_width(self) -> int:
        return next((mask.bit_count() for mask in bits_by_width(self.nodes) if self.fits(mask)), 0)

    @property
    def preferred_widths(self) -> int:
        return 1 << self.preferred_width

    def fits(self, nodes: NodeSet) -> bool:
        return not nodes & ~self.nodes and sum(1 for device in self.devices if device & nodes) >= self.need

    def prefers(self, nodes: NodeSet) -> bool:
        return nodes.bit_count() == self.preferred_width


def bits_by_width(nodes: NodeSet) -> list[NodeSet]:
    """Return every non-empty subset, small ones first."""
    masks = [mask for mask in range(1, nodes + 1) if not mask & ~nodes] if nodes < 1 << 12 else list(_submasks(nodes))
    return sorted(masks, key=int.bit_count)


def _submasks(nodes: NodeSet) -> set[NodeSet]:
    submasks = {0}
    for node in bits.members(nodes):
        submasks |= {mask | 1 << node for mask in submasks}
    return submasks - {0}


def families(nodes: NodeSet) -> st.SearchStrategy[AmountFamily | SharedDevices]:
    """Draw a family of any kind that fits on at least one set of nodes."""
    shapes = cpu_like(nodes) | device_like(nodes) | memory_like(nodes) | shared_devices(nodes)
    return shapes.filter(lambda family: family.min_width > 0)


def merge_inputs(nodes: NodeSet) -> st.SearchStrategy[MergeInput]:
    return st.builds(MergeInput, st.just("x"), lists(nodes, unknown_nodes=True) | families(nodes))
