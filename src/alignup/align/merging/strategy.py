"""A preview: ``numa-allocation-strategy`` decides between sets of NUMA nodes that are equally fit (KEP-6007).

Each resource gets a score for a set: the share of it that is allocated there, from 1 to 100. The weighted average of
all resources decides between preferred sets of one width, and with distances of one distance. The lowest node numbers
still decide between equal scores. Verdict, width and distance never change.

Where no set is preferred by all resources, combinations of hints with different scores lead to the same set, and the
first one counts. The kubelet visits the resources of one provider in random order: several sets may win then.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, permutations, product

from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.hint import HintList, Hints, MergeInput
from alignup.align.machine import Distances
from alignup.align.merging.merge import MergeRule, PolicyResult
from alignup.align.merging.search import MAX_RESULTS, BudgetExceededError, WorkBudget, reachable_sets
from alignup.align.settings import AllocationStrategy, TopologyOptions

MAX_NODES = 16  #: above, the strategy is not applied: too many sets would be compared
MAX_STEPS = 100_000  #: to find the sets that may win; above, all equally fit ones may

#: Returns the score of an input, by its number, for a set of nodes; 0: none.
Scores = Callable[[int, NodeSet], int]
_Row = tuple[NodeSet, int, int]  #: a hint: nodes, weighted score, weight


def score_share(allocated_amount: int, allocatable: int) -> int:
    return max(1, allocated_amount * 100 // allocatable) if allocatable else 0


def weigh_scores(scores: Sequence[tuple[str, int]], weights: Mapping[str, int]) -> int:
    """Return the weighted average of the scores of resources, rounded down; 0 if none counts."""
    weighted_scores = [(weights.get(name, 1), score) for name, score in scores if score and weights.get(name, 1)]
    total = sum(weight for weight, _ in weighted_scores)
    return sum(weight * score for weight, score in weighted_scores) // total if total else 0


def apply_strategy(  # noqa: PLR0913 - the inputs of a merge
    result: PolicyResult,
    providers: Sequence[Sequence[MergeInput]],
    scores: Scores,
    *,
    options: TopologyOptions,
    nodes: NodeSet,
    distances: Distances | None,
) -> PolicyResult:
    """Return *result* with the set that the strategy of *options* chooses among equally fit ones.

    *providers* have the inputs of the merge. If several sets may win, the lowest one is returned, with the others.
    """
    merge_result = result.merged
    if not result.admitted or merge_result.nodes == nodes or nodes.bit_count() > MAX_NODES:
        return result
    choice = _Choice(merge_result.nodes, providers, scores, options, nodes, distances)
    if merge_result.rule is MergeRule.PREFERRED:
        best, *others = choice.preferred()
        rule = MergeRule.STRATEGY
        unchanged = not others
        others = others[: MAX_RESULTS - 1]
    else:
        best, *others = choice.not_preferred()
        rule = MergeRule.RANDOM if others else MergeRule.EQUALLY_FIT
        unchanged = not others and best == merge_result.nodes
    return result if unchanged else choose_set(result, best, rule, tuple(others))


def choose_set(result: PolicyResult, nodes: NodeSet, rule: MergeRule, others: tuple[NodeSet, ...]) -> PolicyResult:
    """Return *result* with other nodes."""
    merge_result = result.merged._replace(nodes=nodes, rule=rule, runners_up=others)
    return PolicyResult(result.hint._replace(nodes=nodes), result.admitted, merge_result)


@dataclass(frozen=True, slots=True)
class _Choice:
    """The choice among sets that are as wide and as close as the set that was chosen without a strategy."""

    chosen: NodeSet
    providers: Sequence[Sequence[MergeInput]]
    scores: Scores
    options: TopologyOptions
    nodes: NodeSet
    distances: Distances | None

    @property
    def inputs(self) -> list[MergeInput]:
        return list(chain.from_iterable(self.providers))

    @property
    def sign(self) -> int:
        return -1 if self.options.strategy is AllocationStrategy.MOST_ALLOCATED else 1

    def preferred(self) -> list[NodeSet]:
        """Return the sets that all inputs prefer, the best first; only the chosen one if scores decide nothing."""
        weights, scored_masks = dict(self.options.weights), []
        for members in combinations(bits.members(self.nodes), self.chosen.bit_count()):
            mask = bits.of(members)
            if self._is_fit(mask) and all(_accepts(hints, mask) for _, hints in self.inputs):
                named_sets = [
                    (name, self.scores(number, mask))
                    for number, (name, hints) in enumerate(self.inputs)
                    if _names(hints, mask)
                ]
                scored_masks.append((self.sign * weigh_scores(named_sets, weights), mask))
        if len({score for score, _ in scored_masks}) < 2 or any(not score for score, _ in scored_masks):
            return [self.chosen]
        return [mask for _, mask in sorted(scored_masks)]

    def not_preferred(self) -> list[NodeSet]:
        """Return the sets that win in some order of the resources of each provider, the lowest first."""
        budget = WorkBudget(MAX_STEPS)
        try:
            budget.spend(len(self.inputs) << self.nodes.bit_count())  # about the number of hints
            rows = [list(self._rows(number, *part)) for number, part in enumerate(self.inputs)]
            numbers = iter(range(len(rows)))
            orders = product(*(permutations([next(numbers) for _ in inputs]) for inputs in self.providers))
            ordered_rows = ([rows[number] for number in chain.from_iterable(order)] for order in orders)
            return sorted({self._winner(self._combine(lists, budget)) for lists in ordered_rows})
        except BudgetExceededError:
            every = [hints for _, hints in self.inputs]
            return sorted(mask for mask in reachable_sets(every, self.nodes) if self._is_fit(mask))

    def _rows(self, number: int, name: str, hints: Hints) -> Iterator[_Row]:
        weight = dict(self.options.weights).get(name, 1)
        for mask, _ in hints if isinstance(hints, HintList) else HintList.of_family(hints):
            score = self.scores(number, mask) if mask is not None and weight else 0
            yield self.nodes if mask is None else mask, weight * score, weight if score else 0

    def _combine(
        self, lists: Sequence[Sequence[_Row]], budget: WorkBudget, row: _Row | None = None
    ) -> Iterator[tuple[NodeSet, int]]:
        """Yield the set and the score of each combination of hints in these *lists*, the last one varying fastest."""
        mask, points, weights = row or (self.nodes, 0, 0)
        if not lists:
            if self._is_fit(mask):
                yield mask, points // weights if weights else 0
            return
        for other, more, weight in lists[0]:
            budget.spend()
            if (mask & other).bit_count() >= self.chosen.bit_count():
                yield from self._combine(lists[1:], budget, (mask & other, points + more, weights + weight))

    def _winner(self, candidates: Iterable[tuple[NodeSet, int]]) -> NodeSet:
        best, best_score = 0, 0
        for mask, score in candidates:
            scored = score and best_score and score != best_score
            better = self.sign * score < self.sign * best_score if scored else mask < best
            if not best or (mask != best and better):
                best, best_score = mask, score
        return best

    def _is_fit(self, mask: NodeSet) -> bool:
        same_width, distances = mask.bit_count() == self.chosen.bit_count(), self.distances
        return same_width and (distances is None or distances.total(mask) == distances.total(self.chosen))


def _names(hints: Hints, mask: NodeSet) -> bool:
    """Return whether *hints* have a preferred hint for exactly *mask*."""
    if isinstance(hints, HintList):
        return mask in hints.preferred
    return hints.fits(mask) and hints.prefers(mask)


def _accepts(hints: Hints, mask: NodeSet) -> bool:
    anywhere = hints.anywhere if isinstance(hints, HintList) else None
    return (anywhere is not None and anywhere.preferred) or _names(hints, mask)
