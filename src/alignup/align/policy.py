"""The policies of the topology manager: which hints take part in a merge, and whether its result is acceptable."""

from collections.abc import Sequence
from typing import NamedTuple

from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.distances import Distances
from alignup.align.hint import Hint, MergeInput, preferred_single_nodes
from alignup.align.merging.merge import WORK_LIMIT, MergeResult, MergeRule, merge
from alignup.align.merging.search import MAX_RESULTS
from alignup.align.settings import Policy


class PolicyResult(NamedTuple):
    hint: Hint  #: the affinity for the providers
    admitted: bool
    merged: MergeResult  #: under policy none, which merges nothing, as if nothing was found


def apply_policy(
    policy: Policy,
    inputs: Sequence[MergeInput],
    *,
    nodes: NodeSet,
    distances: Distances | None = None,
    work_limit: int = WORK_LIMIT,
) -> PolicyResult:
    """Merge *inputs* under *policy* on a machine of *nodes*; *distances* only with prefer-closest-numa-nodes."""
    if policy is Policy.NONE:
        merged = MergeResult(nodes, preferred=False, width=0, rule=MergeRule.NOTHING, runners_up=())
        return PolicyResult(Hint(None, preferred=False), admitted=True, merged=merged)
    if policy is Policy.SINGLE_NUMA_NODE:
        merged = merge_single_numa_node(inputs, nodes)
        hint = Hint(None if merged.nodes == nodes else merged.nodes, merged.preferred)
        return PolicyResult(hint, merged.preferred, merged)
    merged = merge(inputs, nodes=nodes, distances=distances, work_limit=work_limit)
    return PolicyResult(merged.hint, merged.preferred or policy is Policy.BEST_EFFORT, merged)


def merge_single_numa_node(inputs: Sequence[MergeInput], nodes: NodeSet) -> MergeResult:
    """Merge only preferred hints with one node or none: all inputs must share a node, and the lowest shared node wins.

    An input that prefers "anywhere" accepts every node; if all of them do, a node that one of them names still beats
    none. Distances do not matter: every set has one node.
    """
    shared, named, restricted = -1, 0, False
    for _, hints in inputs:
        singles, anywhere = preferred_single_nodes(hints)
        named |= singles
        if not anywhere:
            shared &= singles
            restricted = True
    candidates = nodes & (shared if restricted else named)
    width = 1 if named else 0
    if candidates:
        best = candidates & -candidates
        runners_up = tuple(bits.split(candidates ^ best, most=MAX_RESULTS - 1))
        return MergeResult(best, True, width, MergeRule.PREFERRED, runners_up)  # noqa: FBT003 - keywords are slow
    rule = MergeRule.NOTHING if restricted else MergeRule.PREFERRED
    return MergeResult(nodes, preferred=not restricted, width=width, rule=rule, runners_up=())
