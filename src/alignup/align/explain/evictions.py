"""The smallest set of running pods whose leaving would make room.

Sets of one pod are tried first, then of two, then of three; those whose pods meet on a node before the others. Of pods
that hold the same one stands for all. Where none of those will do the others are tried too, as far as they are not too
many: which of two like CPUs or devices is free may still matter to the containers of a pod that come second.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations, combinations_with_replacement, islice

from alignup.align import bits
from alignup.align.explain.changes import Eviction, Proposal
from alignup.align.explain.eviction_candidates import EvictionCandidate, eviction_candidates
from alignup.align.explain.what_if import SearchTimeoutError, WhatIf

MAX_EVICTED = 3  #: pods in a set
MOST = 2000  #: sets of one size that are tried of pods that hold the same as others
_NAMED = 8  #: pods that are named as doing as well as another

Group = Sequence[EvictionCandidate]  #: pods that hold the same


def smallest_eviction(trials: WhatIf) -> Iterator[Proposal]:
    """A smallest set of running pods without which the pod is admitted, if there is one of at most three."""
    everyone = eviction_candidates(trials)
    if not everyone:
        return
    groups = _groups(everyone)
    # Where all of them leaving is not enough, fewer hardly ever are: admission is not monotone, but nearly so.
    hopeful = _without(trials, everyone) is not None
    for size in range(1, min(MAX_EVICTED, len(everyone)) + 1):
        if not _may_do(trials, everyone, size):
            continue
        sets = _sets(trials, groups, size)
        try:
            tried = sets if hopeful else islice(sets, MOST)
            found = next((one for chosen in tried if (one := _without(trials, chosen))), None)
        except SearchTimeoutError:
            trials.note_unsearched(f"Time was up before all sets of {size} running pods that could leave were tried.")
            return
        if found:
            yield _with_equals(trials, found, groups)
            return
        if not hopeful and next(sets, None):
            trials.note_unsearched(
                "Even with all running pods gone this one is refused, so not all sets of them were tried."
            )
            return
    if len(everyone) > MAX_EVICTED and hopeful:
        trials.note_unsearched(f"Sets of more than {MAX_EVICTED} running pods that could leave were not tried.")


def _groups(everyone: Sequence[EvictionCandidate]) -> list[Group]:
    groups: dict[object, list[EvictionCandidate]] = {}
    for holder in everyone:
        groups.setdefault(holder.holdings, []).append(holder)
    return list(groups.values())


def _sets(trials: WhatIf, groups: Sequence[Group], size: int) -> Iterator[tuple[EvictionCandidate, ...]]:
    """The sets of *size* to try, each once."""
    nodes = bits.union(group[0].nodes for group in groups)
    meeting = [[group for group in groups if group[0].nodes >> node & 1] for node in bits.members(nodes)]
    tried: set[frozenset[EvictionCandidate]] = set()
    for some in (*meeting, groups) if size > 1 else (groups,):
        for chosen in _of_groups(some, size):
            if frozenset(chosen) not in tried:
                tried.add(frozenset(chosen))
                yield chosen
    everyone = [holder for group in groups for holder in group]
    if len(everyone) == len(groups):
        return
    rest = (chosen for chosen in combinations(everyone, size) if frozenset(chosen) not in tried)
    yield from islice(rest, MOST)
    if next(rest, None):
        trials.note_unsearched(
            f"Of running pods that hold the same, not all were tried in sets of {size} that could leave."
        )


def _of_groups(groups: Sequence[Group], size: int) -> Iterator[tuple[EvictionCandidate, ...]]:
    """The sets of *size* that differ in what their pods hold: of each group the first ones."""
    for kinds in combinations_with_replacement(range(len(groups)), size):
        counts = Counter(kinds)
        if all(count <= len(groups[kind]) for kind, count in counts.items()):
            yield tuple(holder for kind, count in counts.items() for holder in groups[kind][:count])


def _may_do(trials: WhatIf, chosen: Sequence[EvictionCandidate], size: int) -> bool:
    """Whether those of *chosen* that use most, *size* of them, use what the host as a whole is short of."""
    for short in trials.misfits:
        most = sum(sorted((holder.uses[short.resource] for holder in chosen), reverse=True)[:size])
        # Of devices there may turn out to be enough, so that only deciding tells.
        if most < short.missing and short.resource not in trials.offered:
            return False
    return True


def _without(trials: WhatIf, chosen: Sequence[EvictionCandidate]) -> Proposal | None:
    """The proposal that *chosen* leave, if that admits the pod."""
    trials.check_time()
    return trials.propose(Eviction(tuple(one.uid for one in chosen))) if _may_do(trials, chosen, len(chosen)) else None


def _with_equals(trials: WhatIf, found: Proposal, groups: Sequence[Group]) -> Proposal:
    """*found*, with those named who could leave in place of one of its pods; each was tried."""
    (change,) = found.changes
    leaving = change.pods if isinstance(change, Eviction) else ()
    equals = {holder.uid: [other.uid for other in group] for group in groups for holder in group}
    instead_of = tuple(
        tuple(
            other
            for other in [uid for uid in equals[gone] if uid not in leaving][:_NAMED]
            if _would_do(trials, Eviction(tuple(other if uid == gone else uid for uid in leaving)))
        )
        for gone in leaving
    )
    return Proposal((Eviction(leaving, instead_of),), found.decision)


def _would_do(trials: WhatIf, change: Eviction) -> bool:
    try:
        return trials.propose(change) is not None
    except SearchTimeoutError:
        return False
