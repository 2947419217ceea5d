"""How the hints of several sources become one set of NUMA nodes, without walking their product.

The kubelet tries every combination of one hint from each source: 255³ of them on eight nodes. Two observations make
that unnecessary (``docs/why/merging.md`` has the proof):

* A combination is preferred only if every source prefers the *same* set. So the preferred winner is the best set in
  the intersection of what they prefer.
* Otherwise all combinations are alike in not being preferred, so the winner is simply the best set, under one total
  order, that can be had by intersecting at all: those as wide as the *target width* first, then narrower ones from
  wide to narrow, then wider ones. The target width is the largest of the sources' min_width hints.

Among sets of one width the closest (where distances count) and then the lowest node numbers win.
"""

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import reduce
from typing import NamedTuple

from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.distances import Distances
from alignup.align.errors import WorkLimitError
from alignup.align.hint import Hint, HintFamily, HintList, MergeInput, preferred_single_nodes
from alignup.align.merging import reachability
from alignup.align.merging.search import MAX_RESULTS, BudgetExceededError, SearchQuery, WorkBudget, find_best

#: Up to this many nodes all sets can be looked at, in time that does not depend on what the hints say.
DENSE_NODES = 8
#: Steps that families are searched there before all sets are counted: far less time than counting takes.
SHORT_SEARCH_STEPS = 100
#: Up to this many nodes they can be looked at when nothing else was fast enough.
MAX_DENSE_NODES = 16
#: Steps a merge may take beyond that before it gives up: some tenths of a second.
WORK_LIMIT = 300_000


class MergeRule(StrEnum):
    """What decided a merge."""

    PREFERRED = "preferred by every resource"
    AT_TARGET = "not preferred by all; as many nodes as the target width"
    NARROWER = "not preferred by all; narrower than the target width, as wide as possible"
    WIDER = "not preferred by all; wider than the target width, as narrow as possible"
    NOTHING = "no combination has a node in common; all nodes"


class MergeResult(NamedTuple):
    """What a merge found, and what it takes to follow it."""

    nodes: NodeSet
    preferred: bool
    width: int  #: the target width; 0 when no hint names nodes
    rule: MergeRule
    runners_up: tuple[NodeSet, ...]  #: sets the same rule allowed but that were less close or higher in number; a few

    @property
    def hint(self) -> Hint:
        """The result as a hint."""
        return Hint(self.nodes, self.preferred)


def merge(
    voices: Sequence[MergeInput],
    *,
    nodes: NodeSet,
    distances: Distances | None = None,
    work_limit: int = WORK_LIMIT,
    dense: int = DENSE_NODES,
) -> MergeResult:
    """The set of *nodes* (all of the machine) that serves all *voices* best; with *distances*, closeness counts.

    Up to *dense* nodes all sets are looked at; above, only those that could win, within *work_limit* steps. Raises
    ``WorkLimitError`` where more than ``MAX_DENSE_NODES`` nodes and contrived hints would take longer.
    """
    listed: list[HintList] = []
    families: list[HintFamily] = []
    width = 0
    for _, options in voices:
        if isinstance(options, HintList):
            listed.append(options)
        else:
            families.append(options)
        min_width = options.min_width
        if min_width and min_width > width:
            width = min_width
    purse = WorkBudget(work_limit)
    try:
        found = _preferred(listed, families, nodes=nodes, distances=distances, purse=purse)
        if found:
            return MergeResult(
                found[0], preferred=True, width=width, rule=MergeRule.PREFERRED, runners_up=tuple(found[1:MAX_RESULTS])
            )
        everybody: list[HintList | HintFamily] = [*listed, *families]
        if nodes.bit_count() <= dense:
            return _common_of_few(everybody, width, nodes=nodes, distances=distances)
        return _common(everybody, width, nodes=nodes, distances=distances, purse=purse)
    except BudgetExceededError:
        hard = [name for name, options in voices if options.min_width]
        raise WorkLimitError(
            f"the hints of {', '.join(hard)} on {nodes.bit_count()} NUMA nodes cannot be merged exactly within "
            f"{work_limit} steps; ask for fewer kinds of resources, or raise the work limit",
            sources=hard,
        ) from None


def _preferred(
    listed: Sequence[HintList],
    families: Sequence[HintFamily],
    *,
    nodes: NodeSet,
    distances: Distances | None,
    purse: WorkBudget,
) -> list[NodeSet]:
    """The sets everybody prefers, of the fewest nodes among them, best first; perhaps not all of them."""
    bound = [options.preferred for options in listed if options.anywhere is None or not options.anywhere.preferred]
    if bound:
        agreed: Collection[NodeSet] = frozenset.intersection(*bound)
        if agreed and families:
            agreed = [mask for mask in agreed if all(family.fits(mask) and family.prefers(mask) for family in families)]
        return _ranked({mask & nodes for mask in agreed}, distances) if agreed else []
    if not families:
        # Nobody insists on anything: each may still name a set while all others say "anywhere".
        return _ranked({nodes}.union(*({mask & nodes for mask in options.preferred} for options in listed)), distances)
    # One node, the usual case, needs no search: everybody names theirs.
    alone = reduce(int.__and__, (preferred_single_nodes(family)[0] for family in families), nodes)
    if alone:
        return _in_order((1 << node for node in bits.members(alone)), distances)
    return _preferred_by_families(families, nodes=nodes, distances=distances, purse=purse)


def _preferred_by_families(
    families: Sequence[HintFamily], *, nodes: NodeSet, distances: Distances | None, purse: WorkBudget
) -> list[NodeSet]:
    """The same for families alone, of two nodes or more."""
    widths = reduce(int.__and__, (family.preferred_widths for family in families))
    at_least = max(family.min_width for family in families)
    among = reduce(int.__and__, (family.nodes for family in families), nodes)
    fixed_sets = {
        mask
        for some in families
        for mask in some.fixed_sets
        if mask & mask - 1 and all(family.fits(mask) and family.prefers(mask) for family in families)
    }

    def completing_nodes(beginning: NodeSet) -> NodeSet:
        ends = among
        for family in families:
            ends &= family.completing_nodes(beginning)
            if not ends:
                break
        return ends

    def promising(beginning: NodeSet, more: int, below: NodeSet) -> bool:
        return all(family.may_complete(beginning, more=more, among=below) for family in families)

    def accept(mask: NodeSet) -> bool:
        return all(family.prefers(mask) for family in families)

    for width in range(max(at_least, 2), widths.bit_length()):
        if widths >> width & 1:
            query = SearchQuery(width, among, completing_nodes, accept, promising, purse)
            found = set(find_best(query, distances))
            found.update(mask for mask in fixed_sets if mask.bit_count() == width)
            if found:
                return _ranked(found, distances)
    return []


def _ranked(masks: set[NodeSet], distances: Distances | None) -> list[NodeSet]:
    """Those of *masks* with the fewest nodes, at least one, best first."""
    masks.discard(0)
    if not masks:
        return []
    fewest = min(map(int.bit_count, masks))
    return _in_order([mask for mask in masks if mask.bit_count() == fewest], distances)


def _in_order(masks: Iterable[NodeSet], distances: Distances | None) -> list[NodeSet]:
    """Sets of one width, best first."""
    if distances is None:
        return sorted(masks)
    return sorted(masks, key=lambda mask: (distances.total(mask), mask))


def _common_of_few(
    voices: Sequence[HintList | HintFamily], width: int, *, nodes: NodeSet, distances: Distances | None
) -> MergeResult:
    """The best set that can be had on few nodes: after a short look in the likeliest places all sets are counted."""
    if voices and not isinstance(voices[-1], HintList):  # families come last
        with suppress(BudgetExceededError):
            return _searched(voices, width, nodes=nodes, distances=distances, purse=WorkBudget(SHORT_SEARCH_STEPS))
    return _best_of(reachability.reachable_sets(voices, nodes), width, nodes=nodes, distances=distances)


def _common(
    voices: Sequence[HintList | HintFamily],
    width: int,
    *,
    nodes: NodeSet,
    distances: Distances | None,
    purse: WorkBudget,
) -> MergeResult:
    """The best set that can be had by intersecting one hint of each, none of them preferred by all."""
    try:
        if all(isinstance(options, HintList) for options in voices):
            reached: Collection[NodeSet] = reachability.intersect_lists(voices, nodes, purse)
        else:
            return _searched(voices, width, nodes=nodes, distances=distances, purse=purse)
    except BudgetExceededError:
        if nodes.bit_count() > MAX_DENSE_NODES:
            raise
        reached = reachability.count_reachable_sets(voices, nodes)
    return _best_of(reached, width, nodes=nodes, distances=distances)


def _best_of(reached: Collection[NodeSet], width: int, *, nodes: NodeSet, distances: Distances | None) -> MergeResult:
    """The best of all sets that can be had."""
    rule = MergeRule.AT_TARGET
    found = [mask for mask in reached if mask.bit_count() == width]
    if not found:
        for candidate, rule in _widths(width, nodes.bit_count()):  # noqa: B007 - the rule that found some is kept
            found = [mask for mask in reached if mask.bit_count() == candidate]
            if found:
                break
        else:
            return _nothing(nodes, width)
    found = _in_order(found, distances)
    return MergeResult(found[0], preferred=False, width=width, rule=rule, runners_up=tuple(found[1:MAX_RESULTS]))


def _searched(
    voices: Sequence[HintList | HintFamily],
    width: int,
    *,
    nodes: NodeSet,
    distances: Distances | None,
    purse: WorkBudget,
) -> MergeResult:
    """The best set that can be had, trying sets from the best downwards."""
    among = reduce(int.__and__, (reachability.allowed_nodes(options, nodes) for options in voices), nodes)

    def completing_nodes(beginning: NodeSet) -> NodeSet:
        return alone.completing_nodes(beginning) if alone else among

    def promising(beginning: NodeSet, more: int, below: NodeSet) -> bool:
        if alone:
            return alone.may_complete(beginning, more=more, among=below)
        return all(_allows(options, beginning) for options in voices)

    def accept(mask: NodeSet) -> bool:
        return reachability.is_reachable(mask, voices, nodes=nodes, purse=purse)

    # One family alone can be asked where to look; several have to be tried together.
    first = voices[0]
    alone = None if len(voices) > 1 or isinstance(first, HintList) or first.fixed_sets else first
    for candidate, rule in _widths(width, among.bit_count()):
        found = find_best(SearchQuery(candidate, among, completing_nodes, accept, promising, purse), distances)
        if found:
            return MergeResult(found[0], preferred=False, width=width, rule=rule, runners_up=tuple(found[1:]))
    return _nothing(nodes, width)


def _allows(options: HintList | HintFamily, beginning: NodeSet) -> bool:
    """Whether any set that *options* allow contains *beginning*."""
    if isinstance(options, HintList):
        return options.anywhere is not None or any(not beginning & ~mask for mask in options.masks)
    return not beginning & ~options.nodes or any(not beginning & ~mask for mask in options.fixed_sets)


def _widths(target: int, most: int) -> Iterable[tuple[int, MergeRule]]:
    """Widths in the order they are looked at, and the rule each would win by."""
    if 0 < target <= most:
        yield target, MergeRule.AT_TARGET
    for width in range(min(target - 1, most), 0, -1):
        yield width, MergeRule.NARROWER
    for width in range(target + 1, most + 1):
        yield width, MergeRule.WIDER


def _nothing(nodes: NodeSet, width: int) -> MergeResult:
    return MergeResult(nodes, preferred=False, width=width, rule=MergeRule.NOTHING, runners_up=())
