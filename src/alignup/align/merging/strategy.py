"""A preview: ``numa-allocation-strategy`` decides between sets of NUMA nodes that are equally fit (KEP-6007).

Each resource gets a score for a set: the share of it that is allocated there, from 1 to 100. The weighted average of
all resources decides between preferred sets of one width, and with distances of one distance. The lowest node numbers
still decide between equal scores. Verdict, width and distance never change. Where no set is preferred by all resources,
combinations of hints with different scores lead to the same set, and the kubelet meets them in random order: such sets
are left as they are.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations

from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.hint import HintList, Hints, MergeInput
from alignup.align.machine import Distances
from alignup.align.merging.merge import MergeResult, MergeRule, PolicyResult
from alignup.align.merging.search import MAX_RESULTS
from alignup.align.settings import AllocationStrategy, TopologyOptions

MAX_NODES = 16  #: above, the strategy is not applied: too many sets would be compared

#: Returns the score of an input, by its number, for a set of nodes; 0: none.
Scores = Callable[[int, NodeSet], int]


def score_share(allocated: int, allocatable: int) -> int:
    return max(1, allocated * 100 // allocatable) if allocatable else 0


def weigh_scores(scores: Sequence[tuple[str, int]], weights: Mapping[str, int]) -> int:
    """Return the weighted average of the scores of resources, rounded down; 0 if none counts."""
    counted = [(weights.get(name, 1), score) for name, score in scores if score and weights.get(name, 1)]
    total = sum(weight for weight, _ in counted)
    return sum(weight * score for weight, score in counted) // total if total else 0


def apply_strategy(  # noqa: PLR0913 - the inputs of a merge
    result: PolicyResult,
    inputs: Sequence[MergeInput],
    scores: Scores,
    *,
    options: TopologyOptions,
    nodes: NodeSet,
    distances: Distances | None,
) -> PolicyResult:
    """Return *result* with the set that the strategy of *options* chooses among equally fit ones."""
    merged = result.merged
    if merged.rule is not MergeRule.PREFERRED or merged.nodes == nodes or nodes.bit_count() > MAX_NODES:
        return result
    weights, sign = dict(options.weights), -1 if options.strategy is AllocationStrategy.MOST_ALLOCATED else 1
    ranked = []
    for mask in _equally_fit(merged, inputs, nodes=nodes, distances=distances):
        named = [(name, scores(number, mask)) for number, (name, hints) in enumerate(inputs) if _names(hints, mask)]
        ranked.append((sign * weigh_scores([(name or "", score) for name, score in named], weights), mask))
    if len({score for score, _ in ranked}) < 2 or any(not score for score, _ in ranked):
        return result
    best, *others = [mask for _, mask in sorted(ranked)]
    chosen = merged._replace(nodes=best, rule=MergeRule.STRATEGY, runners_up=tuple(others[: MAX_RESULTS - 1]))
    return PolicyResult(result.hint._replace(nodes=best), result.admitted, chosen)


def _equally_fit(
    merged: MergeResult, inputs: Sequence[MergeInput], *, nodes: NodeSet, distances: Distances | None
) -> Iterator[NodeSet]:
    """Yield the sets that all inputs prefer, as wide and as close as the one that was chosen."""
    for members in combinations(bits.members(nodes), merged.nodes.bit_count()):
        mask = bits.of(members)
        close = distances is None or distances.total(mask) == distances.total(merged.nodes)
        if close and all(_accepts(hints, mask) for _, hints in inputs):
            yield mask


def _names(hints: Hints, mask: NodeSet) -> bool:
    """Return whether *hints* have a preferred hint for exactly *mask*."""
    if isinstance(hints, HintList):
        return mask in hints.preferred
    return hints.fits(mask) and hints.prefers(mask)


def _accepts(hints: Hints, mask: NodeSet) -> bool:
    anywhere = hints.anywhere if isinstance(hints, HintList) else None
    return (anywhere is not None and anywhere.preferred) or _names(hints, mask)
