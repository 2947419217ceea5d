"""The smallest set of running pods whose eviction admits the pod.

The search tries sets of one pod first, then two, then three; sets whose pods share a node come first. Of equivalent
pods only one is tried. If no set works, the equivalent ones are tried too, up to a limit: which of two similar CPUs or
devices is free may still matter to the later containers of a pod.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations, combinations_with_replacement, islice

from alignup.align import bits
from alignup.align.explain.changes import Eviction, Proposal
from alignup.align.explain.eviction_candidates import EvictionCandidate, eviction_candidates
from alignup.align.explain.what_if import SearchTimeoutError, WhatIf

MAX_EVICTED = 3  #: pods in one set
MAX_EQUIVALENT = 2000  #: sets of one size that contain equivalent pods
_MAX_ALTERNATIVES = 8  #: for each pod

Group = Sequence[EvictionCandidate]  #: equivalent pods


def smallest_eviction(what_if: WhatIf) -> Iterator[Proposal]:
    """A smallest set of at most three pods without which the pod is admitted, if there is one."""
    candidates = eviction_candidates(what_if)
    if not candidates:
        return
    groups = _groups(candidates)
    # If evicting all is not enough, fewer hardly ever are: admission is nearly monotone.
    all_suffice = _propose_without(what_if, candidates) is not None
    for size in range(1, min(MAX_EVICTED, len(candidates)) + 1):
        if not _may_suffice(what_if, candidates, size):
            continue
        sets = _sets(what_if, groups, size)
        try:
            tried = sets if all_suffice else islice(sets, MAX_EQUIVALENT)
            found = next((one for chosen in tried if (one := _propose_without(what_if, chosen))), None)
        except SearchTimeoutError:
            what_if.note_unsearched(f"Time ran out before all evictions of {size} pods were tried.")
            return
        if found:
            yield _with_alternatives(what_if, found, groups)
            return
        if not all_suffice and next(sets, None):
            what_if.note_unsearched(
                "The pod is rejected even without all running pods, so not all evictions were tried."
            )
            return
    if len(candidates) > MAX_EVICTED and all_suffice:
        what_if.note_unsearched(f"Evictions of more than {MAX_EVICTED} pods were not tried.")


def _groups(candidates: Sequence[EvictionCandidate]) -> list[Group]:
    groups: dict[object, list[EvictionCandidate]] = {}
    for holder in candidates:
        groups.setdefault(holder.holdings, []).append(holder)
    return list(groups.values())


def _sets(what_if: WhatIf, groups: Sequence[Group], size: int) -> Iterator[tuple[EvictionCandidate, ...]]:
    """The sets of *size* to try, each once."""
    nodes = bits.union(group[0].nodes for group in groups)
    by_node = [[group for group in groups if group[0].nodes >> node & 1] for node in bits.members(nodes)]
    tried: set[frozenset[EvictionCandidate]] = set()
    for some in (*by_node, groups) if size > 1 else (groups,):
        for chosen in _distinct_sets(some, size):
            if frozenset(chosen) not in tried:
                tried.add(frozenset(chosen))
                yield chosen
    candidates = [holder for group in groups for holder in group]
    if len(candidates) == len(groups):
        return
    rest = (chosen for chosen in combinations(candidates, size) if frozenset(chosen) not in tried)
    yield from islice(rest, MAX_EQUIVALENT)
    if next(rest, None):
        what_if.note_unsearched(f"Not all evictions of {size} equivalent pods were tried.")


def _distinct_sets(groups: Sequence[Group], size: int) -> Iterator[tuple[EvictionCandidate, ...]]:
    """The sets of *size* that differ in what their pods hold; of each group the first pods."""
    for kinds in combinations_with_replacement(range(len(groups)), size):
        counts = Counter(kinds)
        if all(count <= len(groups[kind]) for kind, count in counts.items()):
            yield tuple(holder for kind, count in counts.items() for holder in groups[kind][:count])


def _may_suffice(what_if: WhatIf, chosen: Sequence[EvictionCandidate], size: int) -> bool:
    """Whether the *size* largest users of *chosen* use as much as the whole host lacks."""
    for short in what_if.shortfalls:
        most = sum(sorted((holder.uses[short.resource] for holder in chosen), reverse=True)[:size])
        # For devices only a decision is conclusive.
        if most < short.missing and short.resource not in what_if.offered:
            return False
    return True


def _propose_without(what_if: WhatIf, chosen: Sequence[EvictionCandidate]) -> Proposal | None:
    what_if.check_time()
    return (
        what_if.propose(Eviction(tuple(one.uid for one in chosen)))
        if _may_suffice(what_if, chosen, len(chosen))
        else None
    )


def _with_alternatives(what_if: WhatIf, found: Proposal, groups: Sequence[Group]) -> Proposal:
    """*found*, with the pods that could be evicted instead; each was tried."""
    (change,) = found.changes
    evicted = change.pods if isinstance(change, Eviction) else ()
    equivalents = {holder.uid: [other.uid for other in group] for group in groups for holder in group}
    alternatives = tuple(
        tuple(
            other
            for other in [uid for uid in equivalents[gone] if uid not in evicted][:_MAX_ALTERNATIVES]
            if _suffices(what_if, Eviction(tuple(other if uid == gone else uid for uid in evicted)))
        )
        for gone in evicted
    )
    return Proposal((Eviction(evicted, alternatives),), found.decision)


def _suffices(what_if: WhatIf, change: Eviction) -> bool:
    try:
        return what_if.propose(change) is not None
    except SearchTimeoutError:
        return False
