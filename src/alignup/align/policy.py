"""The topology manager's policies: which hints take part in a merge, and whether its result is good enough."""

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.distances import Distances
from alignup.align.hint import Hint, HintFamily, HintList, MergeInput, preferred_single_nodes
from alignup.align.merging.merge import WORK_LIMIT, MergeResult, MergeRule, merge
from alignup.align.merging.search import MAX_RESULTS
from alignup.align.settings import Policy


class PolicyResult(NamedTuple):
    """What a policy says: the hint providers are to follow, whether to go on, and the merge behind it."""

    hint: Hint
    admitted: bool
    merged: MergeResult | None  #: ``None`` under policy none, which asks nobody


def apply_policy(
    policy: Policy,
    voices: Sequence[MergeInput],
    *,
    nodes: NodeSet,
    distances: Distances | None = None,
    work_limit: int = WORK_LIMIT,
) -> PolicyResult:
    """Merge *voices* on a machine of *nodes* as *policy* wants it; *distances* only with prefer-closest-numa-nodes."""
    if policy is Policy.NONE:
        return PolicyResult(Hint(None, preferred=False), admitted=True, merged=None)
    if policy is Policy.SINGLE_NUMA_NODE:
        merged = merge_single_numa_node([options for _, options in voices], nodes)
        hint = Hint(None if merged.nodes == nodes else merged.nodes, merged.preferred)
        return PolicyResult(hint, merged.preferred, merged)
    merged = merge(voices, nodes=nodes, distances=distances, work_limit=work_limit)
    return PolicyResult(merged.hint, merged.preferred or policy is Policy.BEST_EFFORT, merged)


def merge_single_numa_node(voices: Sequence[HintList | HintFamily], nodes: NodeSet) -> MergeResult:
    """Merge only preferred hints that name one node or none: all must agree on one node, of which the lowest wins.

    Who prefers "anywhere" agrees to every node; where nobody insists, a node that somebody names still beats none.
    Closeness does not count: every set has one node.
    """
    agreed, named, insisted = -1, 0, False
    for options in voices:
        singles, anywhere = preferred_single_nodes(options)
        named |= singles
        if not anywhere:
            agreed &= singles
            insisted = True
    found = nodes & (agreed if insisted else named)
    width = 1 if named else 0
    if found:
        best, *others = islice(bits.members(found), MAX_RESULTS)
        runners_up = tuple(1 << node for node in others)
        return MergeResult(1 << best, preferred=True, width=width, rule=MergeRule.PREFERRED, runners_up=runners_up)
    if insisted:
        return MergeResult(nodes, preferred=False, width=width, rule=MergeRule.NOTHING, runners_up=())
    return MergeResult(nodes, preferred=True, width=width, rule=MergeRule.PREFERRED, runners_up=())
