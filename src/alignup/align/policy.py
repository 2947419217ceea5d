"""The topology manager's policies: which hints take part in a merge, and whether its result is good enough."""

from collections.abc import Sequence
from typing import NamedTuple

from alignup.align import bits
from alignup.align.bits import Nodes
from alignup.align.hint import Family, Hint, Listed, Source
from alignup.align.machine import Distances
from alignup.align.merging.merge import WORK_LIMIT, Merged, merge
from alignup.align.settings import Policy


class Verdict(NamedTuple):
    """What a policy says: the hint providers are to follow, whether to go on, and the merge behind it."""

    hint: Hint
    admitted: bool
    merged: Merged | None  #: ``None`` under policy none, which asks nobody


def judge(
    policy: Policy,
    voices: Sequence[Source],
    *,
    nodes: Nodes,
    distances: Distances | None = None,
    work_limit: int = WORK_LIMIT,
) -> Verdict:
    """Merge *voices* on a machine of *nodes* as *policy* wants it; *distances* only with prefer-closest-numa-nodes."""
    if policy is Policy.NONE:
        return Verdict(Hint(None, preferred=False), admitted=True, merged=None)
    if policy is Policy.SINGLE_NUMA_NODE:
        alone = [Source(name, single_node(options)) for name, options in voices]
        # Closeness does not count here: every set has one node.
        merged = merge(alone, nodes=nodes, work_limit=work_limit)
        hint = Hint(None if merged.nodes == nodes else merged.nodes, merged.preferred)
        return Verdict(hint, merged.preferred, merged)
    merged = merge(voices, nodes=nodes, distances=distances, work_limit=work_limit)
    return Verdict(merged.hint, merged.preferred or policy is Policy.BEST_EFFORT, merged)


def single_node(options: Listed | Family) -> Listed:
    """Only the preferred hints of *options* that name one node or none; perhaps no hint at all."""
    if isinstance(options, Listed):
        kept = [mask for mask in options.masks if mask.bit_count() == 1 and mask in options.preferred]
        anywhere = options.anywhere if options.anywhere and options.anywhere.preferred else None
        return Listed(kept, preferred=kept, anywhere=anywhere)
    growing = [1 << node for node in bits.members(options.completing(0))]
    apart = [mask for mask in options.apart if mask.bit_count() == 1]
    kept = [mask for mask in sorted({*growing, *apart}) if options.prefers(mask)]
    return Listed(kept, preferred=kept)
