"""Which sets of nodes can be had by taking one hint of every source and intersecting them?

This is asked only when no set is preferred by everybody. Three ways to answer, all exact:

* ``count_reachable_sets`` counts, for every set, the combinations that contain it (superset sums: one addition of big ints a node and
  source) and then how many are exactly it. Its time depends on the number of nodes alone.
* ``intersect_lists`` intersects explicit lists one after the other, keeping each result once.
* ``is_reachable`` decides one given set without any list: the nodes outside it have to be dealt out, each to a source that
  still fits without those it gave up.
"""

from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from math import inf
from operator import add, mul, sub
from struct import pack, unpack

from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.hint import HintFamily, HintList, Hints
from alignup.align.merging.search import WorkBudget


def allowed_sets(options: Hints, nodes: NodeSet) -> set[NodeSet]:
    """Every set of *nodes* that *options* allow; a hint without nodes allows all of them."""
    if isinstance(options, HintList):
        allowed = {mask & nodes for mask in options.masks}
        if options.anywhere is not None:
            allowed.add(nodes)
    else:
        allowed = set(options.fitting_sets())
    allowed.discard(0)
    return allowed


def allowed_nodes(options: Hints, nodes: NodeSet) -> NodeSet:
    """The nodes of *nodes* that occur in any set that *options* allow."""
    if isinstance(options, HintList):
        return nodes if options.anywhere is not None else nodes & bits.union(options.masks)
    return nodes & (options.nodes | bits.union(options.fixed_sets))


def reachable_sets(voices: Sequence[Hints], nodes: NodeSet) -> Collection[NodeSet]:
    """Every set that can be had, the quickest way for that many nodes."""
    if nodes.bit_count() > 3:
        return count_reachable_sets(voices, nodes)
    reached = allowed_sets(voices[0], nodes) if voices else {nodes}
    for options in voices[1:]:
        allowed = allowed_sets(options, nodes)
        reached = {mask & other for mask in reached for other in allowed}
    reached.discard(0)
    return reached


def count_reachable_sets(voices: Sequence[Hints], nodes: NodeSet) -> list[NodeSet]:
    """Every set that can be had, in time that depends on the number of nodes and sources only."""
    tables = [allowed_sets(options, nodes) for options in voices]
    if nodes & nodes + 1 == 0:
        return _reached(tables, nodes.bit_length())
    # Ids with gaps: squeeze them together, and spread the answer out again.
    spread = _spread(nodes)
    squeeze = {mask: place for place, mask in enumerate(spread)}
    squeezed = [{squeeze[mask] for mask in table} for table in tables]
    return [spread[place] for place in _reached(squeezed, nodes.bit_count())]


@lru_cache(maxsize=64)
def _spread(nodes: NodeSet) -> tuple[NodeSet, ...]:
    """Place → set: bit *i* of the place stands for the *i*-th node."""
    spread = [0]
    for node in bits.members(nodes):
        spread += [mask | 1 << node for mask in spread]
    return tuple(spread)


def _reached(tables: list[set[int]], count: int) -> list[int]:
    """The intersections of one member of each table, as numbers below ``2**count``."""
    size = 1 << count
    layout = f"<{size}Q"
    # Counts stay below 2**64 for this many tables at once: each has fewer than 2**count members.
    at_once = max(1, 64 // count) if count else 1
    reached: Iterable[int] = tables[0] if tables else [size - 1]
    rest = tables[1:]
    while rest:
        group = [_supersets(reached, count), *(_supersets(table, count) for table in rest[: at_once - 1])]
        rest = rest[at_once - 1 :]
        containing: Iterable[int] = unpack(layout, group[0])
        for sums in group[1:]:
            containing = map(mul, containing, unpack(layout, sums))
        counts = int.from_bytes(pack(layout, *containing), "little")
        for shift, lacking in _shifts(count):
            counts -= counts >> shift & lacking
        exactly = unpack(layout, counts.to_bytes(8 * size, "little"))
        reached = [place for place in range(1, size) if exactly[place]]
    return list(reached)


def _supersets(table: Iterable[int], count: int) -> bytes:
    """How many members of *table* contain each set: one 64-bit number a set."""
    slots = bytearray(8 << count)
    for place in table:
        slots[place << 3] = 1
    sums = int.from_bytes(slots, "little")
    for shift, lacking in _shifts(count):
        sums += sums >> shift & lacking
    return sums.to_bytes(8 << count, "little")


@lru_cache(maxsize=32)
def _shifts(count: int) -> tuple[tuple[int, int], ...]:
    """For each node, how far apart the slots with and without it are, and all slots without it."""
    slots = range(1 << count)
    return tuple(
        (64 << node, int.from_bytes(b"".join((b"\0" if slot >> node & 1 else b"\xff") * 8 for slot in slots), "little"))
        for node in range(count)
    )


def intersect_lists(voices: Sequence[Hints], nodes: NodeSet, purse: WorkBudget) -> set[NodeSet]:
    """Every set that explicit lists can have in common, as long as *purse* lasts."""
    tables = [allowed_sets(options, nodes) for options in voices]
    tables.sort(key=len)
    reached = tables[0] if tables else {nodes}
    for allowed in tables[1:]:
        purse.spend(len(reached) * len(allowed))
        reached = {mask & other for mask in reached for other in allowed}
        reached.discard(0)
    return reached


def is_reachable(target: NodeSet, voices: Sequence[Hints], *, nodes: NodeSet, purse: WorkBudget) -> bool:
    """Whether *target* is the intersection of one hint of each source."""
    fixed: set[NodeSet] = {nodes}
    families: list[HintFamily] = []
    for options in voices:
        if isinstance(options, HintList):
            purse.spend(len(options.masks))
            exact = {mask & nodes for mask in options.masks if not target & ~mask}
            if options.anywhere is not None:
                exact.add(nodes)
            fixed = _minimal({mask & other for mask in fixed for other in exact})
        else:
            families.append(options)
    return any(_dealt_by(families, mask, target, [], purse) for mask in fixed)


def _minimal(found: set[NodeSet]) -> set[NodeSet]:
    """Only the sets that contain no other one: whatever a larger one leads to, a smaller one does too."""
    return {mask for mask in found if not any(other != mask and other & mask == other for other in found)}


def _dealt_by(
    families: Sequence[HintFamily],
    left: NodeSet,
    target: NodeSet,
    growing: list[tuple[HintFamily, NodeSet]],
    purse: WorkBudget,
) -> bool:
    """Let each of *families* choose a set apart or its growing part, narrowing *left*; then deal out what is left."""
    purse.spend()
    if not families:
        surplus = left & ~target
        return _deal(surplus, growing, purse)
    family, rest = families[0], families[1:]
    for mask in family.fixed_sets:
        if not target & ~mask and _dealt_by(rest, left & mask, target, growing, purse):
            return True
    if target & ~family.nodes or not family.fits(family.nodes):
        return False
    return _dealt_by(rest, left & family.nodes, target, [*growing, (family, family.nodes)], purse)


def _deal(surplus: NodeSet, growing: list[tuple[HintFamily, NodeSet]], purse: WorkBudget) -> bool:
    """Whether every node of *surplus* can be given up by one of *growing* (family, nodes it still keeps)."""
    if not surplus:
        return True
    purse.spend(len(growing))
    if any(family.fits(kept & ~surplus) for family, kept in growing):
        return True
    can_spare = sum(kept.bit_count() - family.min_width for family, kept in growing)
    if can_spare < surplus.bit_count() or len(growing) < 2:
        return False
    rooms = [family.slack for family, _ in growing]
    if all(rooms):
        losses = [[family.amounts_on(node) for family, _ in growing] for node in bits.members(surplus)]
        return _share_out(losses, tuple(room for room in rooms if room), purse)
    node = surplus & -surplus
    for place, (family, kept) in enumerate(growing):
        if family.fits(kept & ~node):
            without = [*growing[:place], (family, kept & ~node), *growing[place + 1 :]]
            if _deal(surplus ^ node, without, purse):
                return True
    return False


Room = tuple[int, ...]  #: what one family can still give up, kind by kind


def _share_out(losses: list[list[Room]], rooms: tuple[Room, ...], purse: WorkBudget) -> bool:
    """Whether each node can be charged to one family (its *losses*, one a family) without overdrawing any of *rooms*.

    The states reached after each node are kept as a set, so nodes that hold the same amounts cost next to nothing.
    """
    purse.spend(len(losses))
    shares = [list(map(_share, loss, rooms)) for loss in losses]
    # Each family can take on a share of 1 in all, so more than that in total is too much, however it is dealt.
    if sum(map(min, shares)) > len(rooms) + 1e-9:
        return False
    order = sorted(range(len(losses)), key=lambda place: min(shares[place]), reverse=True)
    if _evenly([(losses[place], shares[place]) for place in order], rooms):
        return True
    hardest_first = [losses[place] for place in order]
    states = {rooms}
    for loss in hardest_first:
        purse.spend(len(states))
        states = {
            (*state[:place], left, *state[place + 1 :])
            for state in states
            for place, left in enumerate(map(_less, state, loss))
            if min(left) >= 0
        }
        if not states:
            return False
    return True


def _evenly(nodes: list[tuple[list[Room], list[float]]], rooms: tuple[Room, ...]) -> bool:
    """Whether charging each node to the family that is then charged least happens to work out."""
    charged = [0.0] * len(rooms)
    left = list(rooms)
    for losses, shares in nodes:
        after = list(map(add, charged, shares))
        place = after.index(min(after))
        charged[place] = after[place]
        left[place] = _less(left[place], losses[place])
    return all(min(room) >= 0 for room in left)


def _share(loss: Room, room: Room) -> float:
    """The share of *room* that *loss* takes, on average over its kinds; infinite when it takes what is not there."""
    total = 0.0
    for lost, there in zip(loss, room, strict=True):
        if lost > there:
            return inf
        if lost:
            total += lost / there
    return total / len(room)


def _less(room: Room, loss: Room) -> Room:
    return tuple(map(sub, room, loss))
