"""The merge of the hints of all resources into one set of NUMA nodes, without their product (``docs/why/merging.md``).

* A combination is preferred only if every resource prefers the *same* set. So the preferred winner is the best set in
  the intersection of the preferred sets.
* Otherwise the winner is the best set, under one total order, that is the intersection of some combination: sets as
  wide as the *target width* (the largest of the resources' smallest hints) first, then narrower ones from wide to
  narrow, then wider ones. Among sets of one width, the closest (with distances) and then the lowest node numbers win.

``apply_policy`` starts here: the policy decides which hints take part, and whether the result is acceptable.
"""

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import partial, reduce
from typing import NamedTuple

from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.errors import WorkLimitError
from alignup.align.hint import Hint, HintFamily, HintList, Hints, MergeInput, preferred_single_nodes
from alignup.align.machine import Distances
from alignup.align.merging import search
from alignup.align.merging.search import MAX_RESULTS, BudgetExceededError, SearchQuery, WorkBudget, find_best
from alignup.align.settings import Policy

DENSE_NODES = 8  #: up to this many nodes, all sets are counted, in time independent of the hints
SHORT_SEARCH_STEPS = 100  #: steps to search families before that, far less than counting takes
MAX_DENSE_NODES = 16  #: up to this many nodes, all sets are counted if nothing else is fast enough
WORK_LIMIT = 300_000  #: steps of a merge above that: some tenths of a second


class MergeRule(StrEnum):
    PREFERRED = "preferred by every resource"
    STRATEGY = "preferred by every resource; chosen by numa-allocation-strategy"
    AT_TARGET = "not preferred by all; as many nodes as the target width"
    NARROWER = "not preferred by all; narrower than the target width, as wide as possible"
    WIDER = "not preferred by all; wider than the target width, as narrow as possible"
    EQUALLY_FIT = "not preferred by all; chosen by numa-allocation-strategy among equally fit sets"
    RANDOM = "not preferred by all; numa-allocation-strategy chooses one of several equally fit sets at random"
    NOTHING = "no combination has a node in common; all nodes"


class MergeResult(NamedTuple):
    nodes: NodeSet
    preferred: bool
    width: int  #: the target width; 0 if no hint has nodes
    rule: MergeRule
    runners_up: tuple[NodeSet, ...]  #: a few sets with the same rule that are less close or have higher numbers


class PolicyResult(NamedTuple):
    hint: Hint  #: the affinity for the providers
    admitted: bool
    merged: MergeResult  #: under policy none, which merges nothing, as if nothing was found


def apply_policy(
    policy: Policy | str,
    inputs: Sequence[MergeInput],
    *,
    nodes: NodeSet,
    distances: Distances | None = None,
    work_limit: int = WORK_LIMIT,
) -> PolicyResult:
    """Merge *inputs* under *policy* on a machine of *nodes*; *distances* only with prefer-closest-numa-nodes."""
    if policy is Policy.NONE:
        merge_result = MergeResult(nodes, preferred=False, width=0, rule=MergeRule.NOTHING, runners_up=())
        return PolicyResult(Hint(None, preferred=False), admitted=True, merged=merge_result)
    if policy is Policy.SINGLE_NUMA_NODE:
        merge_result = merge_single_numa_node(inputs, nodes)
        hint = Hint(None if merge_result.nodes == nodes else merge_result.nodes, merge_result.preferred)
        return PolicyResult(hint, merge_result.preferred, merge_result)
    if not isinstance(policy, Policy):
        return apply_policy(Policy(policy), inputs, nodes=nodes, distances=distances, work_limit=work_limit)
    merge_result = merge(inputs, nodes=nodes, distances=distances, work_limit=work_limit)
    is_admitted = merge_result.preferred or policy is Policy.BEST_EFFORT
    return PolicyResult(Hint(merge_result.nodes, merge_result.preferred), is_admitted, merge_result)


def merge_single_numa_node(inputs: Sequence[MergeInput], nodes: NodeSet) -> MergeResult:
    """Merge only preferred hints with one node or none: all inputs must share a node, and the lowest shared node wins.

    An input that prefers "anywhere" accepts every node; if all of them do, a node that one of them names still beats
    none. Distances do not matter: every set has one node.
    """
    shared_nodes, named_nodes, is_restricted = -1, 0, False
    for _, hints in inputs:
        singles, anywhere = preferred_single_nodes(hints)
        named_nodes |= singles
        if not anywhere:
            shared_nodes &= singles
            is_restricted = True
    candidates = nodes & (shared_nodes if is_restricted else named_nodes)
    width = 1 if named_nodes else 0
    if candidates:
        best = candidates & -candidates
        runners_up = tuple(bits.split(candidates ^ best, most=MAX_RESULTS - 1))
        return MergeResult(best, preferred=True, width=width, rule=MergeRule.PREFERRED, runners_up=runners_up)
    rule = MergeRule.NOTHING if is_restricted else MergeRule.PREFERRED
    return MergeResult(nodes, preferred=not is_restricted, width=width, rule=rule, runners_up=())


def merge(
    inputs: Sequence[MergeInput],
    *,
    nodes: NodeSet,
    distances: Distances | None = None,
    work_limit: int = WORK_LIMIT,
    dense: int = DENSE_NODES,
) -> MergeResult:
    """Return the set of *nodes* (all of the machine) that is best for all *inputs*; with *distances*, closeness counts.

    Up to *dense* nodes all sets are counted; above, only possible winners are searched, within *work_limit* steps.
    Raises ``WorkLimitError`` if contrived hints on more than ``MAX_DENSE_NODES`` nodes take longer.
    """
    lists: list[HintList] = []
    families: list[HintFamily] = []
    width = 0
    for _, hints in inputs:
        if isinstance(hints, HintList):
            lists.append(hints)
        else:
            families.append(hints)
        min_width = hints.min_width
        if min_width and min_width > width:
            width = min_width
    budget = WorkBudget(work_limit)
    try:
        preferred_result = _preferred(lists, families, nodes=nodes, distances=distances, budget=budget)
        if preferred_result:
            runners_up = tuple(preferred_result[1:MAX_RESULTS])
            return MergeResult(
                preferred_result[0], preferred=True, width=width, rule=MergeRule.PREFERRED, runners_up=runners_up
            )
        every: list[Hints] = [*lists, *families]
        if nodes.bit_count() <= dense:
            # A short search, if there are families, which come last in the list.
            if families:
                with suppress(BudgetExceededError):
                    short = WorkBudget(SHORT_SEARCH_STEPS)
                    return _search(every, width, nodes=nodes, distances=distances, budget=short)
            return _best_of(search.reachable_sets(every, nodes), width, nodes=nodes, distances=distances)
        return _best_not_preferred(every, width, nodes=nodes, distances=distances, budget=budget)
    except BudgetExceededError:
        hard = [name for name, hints in inputs if hints.min_width]
        raise WorkLimitError(
            f"the hints of {', '.join(hard)} on {nodes.bit_count()} NUMA nodes cannot be merged exactly within "
            f"{work_limit} steps; request fewer kinds of resources, or raise the work limit",
            sources=hard,
        ) from None


def _preferred(
    lists: Sequence[HintList],
    families: Sequence[HintFamily],
    *,
    nodes: NodeSet,
    distances: Distances | None,
    budget: WorkBudget,
) -> list[NodeSet]:
    """Return the sets that all inputs prefer, with the fewest nodes, best first; the list may be incomplete."""
    preferred_families = [hints.preferred for hints in lists if hints.anywhere is None or not hints.anywhere.preferred]
    if preferred_families:
        common: Collection[NodeSet] = frozenset.intersection(*preferred_families)
        if common and families:
            common = [mask for mask in common if all(family.fits(mask) and family.prefers(mask) for family in families)]
        return _narrowest({mask & nodes for mask in common}, distances) if common else []
    if not families:
        # No input restricts the others: each may name a set while all others take "anywhere".
        sets = {nodes}.union(*({mask & nodes for mask in hints.preferred} for hints in lists))
        return _narrowest(sets, distances)
    # One node, the usual case, needs no search.
    single = nodes
    for family in families:
        single &= preferred_single_nodes(family)[0]
    if single:
        singles = bits.split(single)
        return singles if distances is None else _in_order(singles, distances)
    return _preferred_by_families(families, nodes=nodes, distances=distances, budget=budget)


def _preferred_by_families(
    families: Sequence[HintFamily], *, nodes: NodeSet, distances: Distances | None, budget: WorkBudget
) -> list[NodeSet]:
    """Return what ``_preferred`` returns, for families alone and sets of two nodes or more."""
    widths = reduce(int.__and__, (family.preferred_widths for family in families))
    at_least = max(family.min_width for family in families)
    among = reduce(int.__and__, (family.nodes for family in families), nodes)
    fixed_sets = {
        mask
        for some in families
        for mask in some.fixed_sets
        if mask & mask - 1 and all(family.fits(mask) and family.prefers(mask) for family in families)
    }

    def completing_nodes(chosen_nodes: NodeSet) -> NodeSet:
        ends = among
        for family in families:
            ends &= family.completing_nodes(chosen_nodes)
            if not ends:
                break
        return ends

    def promising(chosen_nodes: NodeSet, more: int, below: NodeSet) -> bool:
        return all(family.may_complete(chosen_nodes, more=more, among=below) for family in families)

    def accept(mask: NodeSet) -> bool:
        return all(family.prefers(mask) for family in families)

    for width in range(max(at_least, 2), widths.bit_length()):
        if widths >> width & 1:
            query = SearchQuery(width, among, completing_nodes, accept, promising, budget)
            results = set(find_best(query, distances))
            results.update(mask for mask in fixed_sets if mask.bit_count() == width)
            if results:
                return _narrowest(results, distances)
    return []


def _narrowest(masks: set[NodeSet], distances: Distances | None) -> list[NodeSet]:
    """Return the non-empty ones of *masks* with the fewest nodes, best first."""
    masks.discard(0)
    if not masks:
        return []
    fewest = min(map(int.bit_count, masks))
    return _in_order([mask for mask in masks if mask.bit_count() == fewest], distances)


def _in_order(masks: Iterable[NodeSet], distances: Distances | None) -> list[NodeSet]:
    if distances is None:
        return sorted(masks)
    return sorted(masks, key=lambda mask: (distances.total(mask), mask))


def _best_not_preferred(
    inputs: Sequence[Hints], width: int, *, nodes: NodeSet, distances: Distances | None, budget: WorkBudget
) -> MergeResult:
    try:
        if all(isinstance(hints, HintList) for hints in inputs):
            reachable: Collection[NodeSet] = search.intersect_lists(inputs, nodes, budget)
        else:
            return _search(inputs, width, nodes=nodes, distances=distances, budget=budget)
    except BudgetExceededError:
        if nodes.bit_count() > MAX_DENSE_NODES:
            raise
        reachable = search.count_reachable_sets(inputs, nodes)
    return _best_of(reachable, width, nodes=nodes, distances=distances)


def _best_of(reachable: Collection[NodeSet], width: int, *, nodes: NodeSet, distances: Distances | None) -> MergeResult:
    rule = MergeRule.AT_TARGET
    best = [mask for mask in reachable if mask.bit_count() == width]
    if not best:
        for candidate, rule in _widths(width, nodes.bit_count()):  # noqa: B007 - the last rule is used below
            best = [mask for mask in reachable if mask.bit_count() == candidate]
            if best:
                break
        else:
            return _nothing(nodes, width)
    best = _in_order(best, distances)
    return MergeResult(best[0], preferred=False, width=width, rule=rule, runners_up=tuple(best[1:MAX_RESULTS]))


def _search(
    inputs: Sequence[Hints], width: int, *, nodes: NodeSet, distances: Distances | None, budget: WorkBudget
) -> MergeResult:
    """Return the best reachable set, testing sets from the best downwards."""
    among = reduce(int.__and__, (search.allowed_nodes(hints, nodes) for hints in inputs), nodes)

    def promising(chosen_nodes: NodeSet, more: int, below: NodeSet) -> bool:
        if single:
            return single.may_complete(chosen_nodes, more=more, among=below)
        return all(_allows(hints, chosen_nodes) for hints in inputs)

    # A single family can direct the search; several have to be tested together.
    first = inputs[0]
    single = None if len(inputs) > 1 or isinstance(first, HintList) or first.fixed_sets else first
    completing_nodes = single.completing_nodes if single else lambda _: among
    accept = partial(search.is_reachable, inputs=inputs, nodes=nodes, budget=budget)
    for candidate, rule in _widths(width, among.bit_count()):
        best = find_best(SearchQuery(candidate, among, completing_nodes, accept, promising, budget), distances)
        if best:
            return MergeResult(best[0], preferred=False, width=width, rule=rule, runners_up=tuple(best[1:]))
    return _nothing(nodes, width)


def _allows(hints: Hints, nodes: NodeSet) -> bool:
    """Return whether any set of *hints* contains *nodes*."""
    if isinstance(hints, HintList):
        return hints.anywhere is not None or any(not nodes & ~mask for mask in hints.masks)
    return not nodes & ~hints.nodes or any(not nodes & ~mask for mask in hints.fixed_sets)


def _widths(target: int, most: int) -> Iterable[tuple[int, MergeRule]]:
    if 0 < target <= most:
        yield target, MergeRule.AT_TARGET
    for width in range(min(target - 1, most), 0, -1):
        yield width, MergeRule.NARROWER
    for width in range(target + 1, most + 1):
        yield width, MergeRule.WIDER


def _nothing(nodes: NodeSet, width: int) -> MergeResult:
    return MergeResult(nodes, preferred=False, width=width, rule=MergeRule.NOTHING, runners_up=())
