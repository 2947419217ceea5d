"""The kubelet's merge, spelled out: every combination of one hint per resource. Slow and simple, for comparison."""

from collections.abc import Sequence
from itertools import product

from alignup.align.bits import NodeSet
from alignup.align.hint import Hint, HintList, MergeInput
from alignup.align.machine import Distances


def merge(inputs: Sequence[MergeInput], *, nodes: NodeSet, distances: Distances | None = None) -> Hint:
    """Return the best of all combinations."""
    lists = [all_hints(merge_input) for merge_input in inputs]
    width = max(
        (min(sizes) for hints in lists if (sizes := [m.bit_count() for m, _ in hints if m is not None])), default=0
    )
    best: Hint | None = None
    for combination in product(*lists):
        candidate = combined(combination, nodes)
        if candidate.nodes:
            best = candidate if best is None else better(best, candidate, width, distances)
    return best or Hint(nodes, preferred=False)


def all_hints(merge_input: MergeInput) -> tuple[Hint, ...]:
    hints = merge_input.hints
    return tuple(hints if isinstance(hints, HintList) else HintList.of_family(hints))


def combined(combination: Sequence[Hint], nodes: NodeSet) -> Hint:
    named = [hint.nodes for hint in combination if hint.nodes is not None]
    common = nodes
    for mask in named:
        common &= mask
    return Hint(common, all(hint.preferred for hint in combination) and len(set(named)) <= 1)


def better(current: Hint, candidate: Hint, width: int, distances: Distances | None) -> Hint:
    if current.preferred != candidate.preferred:
        return current if current.preferred else candidate
    fitter = min(current, candidate, key=lambda hint: rank(hint.nodes or 0, distances))
    if current.preferred:
        return fitter
    now, then = (current.nodes or 0).bit_count(), (candidate.nodes or 0).bit_count()
    if now > width:
        return fitter
    if now == width:
        return fitter if then == width else current
    if then > width:
        return current
    if then == width:
        return candidate
    if now != then:
        return max(current, candidate, key=lambda hint: (hint.nodes or 0).bit_count())
    return fitter


def rank(mask: NodeSet, distances: Distances | None) -> tuple[int, float, int]:
    return mask.bit_count(), distances.total(mask) / mask.bit_count() ** 2 if distances else 0.0, mask
