"""Which GPUs NVIDIA's device plugin prefers: the best-effort policy of go-gpuallocator.

The plugin divides all available GPUs into sets of the requested size, so that the scores of all sets add up to the
most, and returns the best set of that partition. GPUs that are left over form a set with padding, and that set can win:
the plugin then crashes. The order of the GPUs, which the kubelet shuffles, decides between equal partitions and sets.

Partitions are not enumerated: ``_Partitions`` finds the best total of what remains after each set once. GPUs with equal
links to all others are counted, not told apart.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from math import comb, factorial

#: By position in the list of GPUs: the score of a pair; ``None``: the plugin crashes when it computes it.
PairScores = Sequence[Sequence[int | None]]
#: Some GPUs of each class of equal ones: the number, and the positions of the class.
Picks = tuple[tuple[int, tuple[int, ...]], ...]

LINK_SCORES = {"SYS": 10, "NODE": 20, "PHB": 30, "PXB": 40, "PIX": 50, "PSB": 60}
NVLINK_SCORE = 100  #: of each NVLink; links to an NVSwitch are not seen
PARTITIONS_PER_SECOND = 700_000  #: of the plugin, measured on one core
_ALWAYS_COMPARED = 16  #: GPUs
_MAX_FIRST_SETS = 1000  #: of more GPUs, to which the first of them can belong
_NO_PARTITION = -1  #: no partition is allowed
_FIELD = 8  #: bits of the count of one class


class PluginCrashError(Exception):
    """The plugin crashes instead of answering."""


def pair_score(links: Iterable[str]) -> int:
    """Return the score of the links between two GPUs, such as ``PHB`` and ``NV2``; unknown ones count nothing."""
    return sum(
        NVLINK_SCORE * int(link[2:]) if link.startswith("NV") and link[2:].isdecimal() else LINK_SCORES.get(link, 0)
        for link in links
    )


def count_partitions(available: int, size: int) -> int:
    """Return the number of partitions that the plugin compares."""
    rest = available % size
    sets, full = available // size, available - rest
    return comb(available, rest) * factorial(full) // (int(factorial(size) ** sets) * factorial(sets))


def is_comparable(available: int, size: int) -> bool:
    """Return whether all partitions can be compared in a fraction of a second here, whatever the links are."""
    return available <= _ALWAYS_COMPARED or comb(available - 1, size - 1) <= _MAX_FIRST_SETS


def overwritten_sets(available: int, size: int) -> tuple[int, int]:
    """Return which sets of the best partition the plugin overwrites before it reads them, from and to.

    The list of sets grows by doubling, and candidates share it until it grows again. So from 7 sets on, what was kept
    may contain sets of a later candidate. Equal numbers: none.
    """
    sets = -(-available // size)
    first = 1 if sets < 2 else (1 << (sets - 1).bit_length() - 1) + 1
    return (first, sets) if sets - first > 1 else (sets, sets)


def answer(
    scores: PairScores, available: Sequence[int], *, required: Collection[int] = (), size: int
) -> tuple[int | None, ...]:
    """Return the preferred GPUs for this order of *available* ones; empty: none. ``None`` is padding."""
    if not 0 < size <= len(available) or len(required) > size or not set(required).issubset(available):
        return ()
    if size == 1:
        return tuple(required) or (available[0],)
    table = _Table.of(scores, available)
    positions = tuple(available.index(gpu) for gpu in required)
    table.check(positions, size)
    partitions = _Partitions(table.scores, positions, size)
    sets = partitions.first_best()
    candidates = [group for group in sets if set(positions).issubset(group)]
    best = max(candidates, key=partitions.score_of, default=())
    return tuple(None if position is None else available[position] for position in best)


@dataclass(frozen=True, slots=True)
class PossiblePicks:
    """Everything that the plugin can answer, depending on the order of the GPUs."""

    picks: tuple[Picks, ...]  #: positions in the list of GPUs
    crashes: bool = False  #: whether a set with padding can win


def possible_answers(
    scores: PairScores, available: Sequence[int], *, required: Collection[int] = (), size: int
) -> PossiblePicks | None:
    """Return what any order of *available* can give; ``None``: the plugin's defects make that uncountable."""
    available = sorted(available)
    if not 0 < size <= len(available) or len(required) > size or not set(required).issubset(available):
        return PossiblePicks(((),))
    if size == 1:
        return PossiblePicks((((1, tuple(required) or tuple(available)),),))
    start, end = overwritten_sets(len(available), size)
    table = _Table.of(scores, available)
    if start < end or not table.symmetric:
        return None
    partitions = _Partitions(table.scores, tuple(available.index(gpu) for gpu in required), size)
    picks, crashes = [], False
    for state in partitions.top_sets():
        pick = tuple((count, tuple(available[gpu] for gpu in gpus)) for count, gpus in partitions.expand(state))
        crashes |= sum(count for count, _ in pick) < size
        if sum(count for count, _ in pick) == size:
            picks.append(pick)
    return PossiblePicks(tuple(picks), crashes)


@dataclass(frozen=True, slots=True)
class _Table:
    """The scores of available GPUs by position in their order."""

    scores: list[list[int]]
    symmetric: bool
    broken: tuple[tuple[int, int], ...]  #: pairs whose score makes the plugin crash

    @classmethod
    def of(cls, scores: PairScores, available: Sequence[int]) -> "_Table":
        table = [[0] * len(available) for _ in available]
        broken_pairs, symmetric = [], True
        for (i, a), (j, b) in combinations(enumerate(available), 2):
            score = scores[a][b]
            symmetric &= score is not None and score == scores[b][a]
            if score is None:
                broken_pairs.append((i, j))
            table[i][j] = table[j][i] = score or 0
        return cls(table, symmetric, tuple(broken_pairs))

    def check(self, required: Collection[int], size: int) -> None:
        """Raise if the plugin computes the score of a broken pair in any partition."""
        others = len(self.scores) - size  # outside of the set with the required GPUs
        pairs_outside = others >= size or others > 1
        for pair in self.broken:
            inside = len({*required, *pair}) <= size
            if inside or (pairs_outside and not set(required).intersection(pair)):
                raise PluginCrashError("all links between two GPUs have to be bidirectional")


@dataclass(eq=False)
class _Partitions:
    """The partitions of GPUs into sets of one size, of which one may have padding.

    A *state* holds the number of remaining GPUs of each class, in a field of bits each; so does a set. The first set
    has a GPU of the first class. Required GPUs are in one set without padding, so there is always a partition.
    """

    scores: list[list[int]]
    required: tuple[int, ...]
    size: int
    _best: dict[int, int] = field(default_factory=dict)
    _set_scores: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rest = len(self.scores) % self.size  #: GPUs in the set with padding
        self.classes = self._equal_gpus()
        self.units = [0] * len(self.scores)  #: by position
        for number, positions in enumerate(self.classes):
            for position in positions:
                self.units[position] = 1 << _FIELD * number
        self.must = sum(self.units[position] for position in self.required)
        required_units = {self.units[position] for position in self.required}
        self.must_fields = sum((1 << _FIELD) - 1 << unit.bit_length() - 1 for unit in required_units)

    def _equal_gpus(self) -> list[list[int]]:
        """Return classes of GPUs that can be swapped without a change of any score."""
        scores = self.scores
        classes: list[list[int]] = []
        for gpu, row in enumerate(scores):
            for members in classes:
                other = members[0]
                if (gpu in self.required) == (other in self.required) and all(
                    score == scores[other][peer] for peer, score in enumerate(row) if peer not in (gpu, other)
                ):
                    members.append(gpu)
                    break
            else:
                classes.append([gpu])
        return classes

    def expand(self, state: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield the number of GPUs of each class in a set, and the positions of the class."""
        for positions in self.classes:
            count = state & (1 << _FIELD) - 1
            if count:
                yield count, tuple(positions)
            state >>= _FIELD

    def _members(self, state: int) -> list[int]:
        """Return the units of a state, each as often as it has GPUs of the class."""
        members: list[int] = []
        unit = 1
        while state:
            members += [unit] * (state & (1 << _FIELD) - 1)
            state >>= _FIELD
            unit <<= _FIELD
        return members

    def set_score(self, state: int) -> int:
        score = self._set_scores.get(state)
        if score is None:
            positions: list[int] = []
            rest = state
            for members in self.classes:
                positions += members[: rest & (1 << _FIELD) - 1]
                rest >>= _FIELD
            rows = self.scores
            score = sum([rows[a][b] for a, b in combinations(positions, 2)])
            self._set_scores[state] = score
        return score

    def score_of(self, gpus: Iterable[int | None]) -> int:
        return self.set_score(sum(self.units[gpu] for gpu in gpus if gpu is not None))

    def _sets(self, members: Sequence[int]) -> Iterator[int]:
        """Yield the sets that can come first among remaining *members*."""
        sizes = {self.size, self.rest} if len(members) % self.size else {self.size}
        first, others = members[0], members[1:]
        for size in sizes:
            for rest in set(map(sum, combinations(others, size - 1))):
                yield first + rest

    def _allows(self, group: int, *, full: bool) -> bool:
        part = group & self.must_fields
        return not part or (full and part == self.must)

    def best(self, state: int) -> int:
        """Return the largest total of the partitions of a state; ``_NO_PARTITION``: none is allowed."""
        total = self._best.get(state)
        if total is not None:
            return total
        members = self._members(state)
        if len(members) <= self.size:
            total = self.set_score(state) if self._allows(state, full=len(members) == self.size) else _NO_PARTITION
            self._best[state] = total
            return total
        total = _NO_PARTITION
        cache, scores = self._best, self._set_scores
        for group in self._sets(members):
            if self.must and not self._is_allowed(group):
                continue
            rest = cache.get(state - group)
            if rest is None:
                rest = self.best(state - group)
            if rest == _NO_PARTITION:
                continue
            score = scores.get(group)
            if score is None:
                score = self.set_score(group)
            if score + rest > total:  # noqa: PLR1730 - max() is slower, and this is called often
                total = score + rest
        self._best[state] = total
        return total

    def _is_allowed(self, group: int) -> bool:
        return self._allows(group, full=len(self._members(group)) == self.size)

    def _best_sets(self, state: int) -> Iterator[int]:
        """Yield the sets that can come first in a best partition of a state."""
        members, total = self._members(state), self.best(state)
        if len(members) <= self.size:
            yield state
            return
        for group in self._sets(members):
            if (not self.must or self._is_allowed(group)) and self._total(state, group) == total:
                yield group

    @cached_property
    def whole(self) -> int:
        return sum(self.units)

    def top_sets(self) -> set[int]:
        """Return the sets that are the best of a best partition, or that contain the required GPUs in one.

        A set is the best one if the others on some path to it, and on some path after it, score no more: it suffices
        to know the least maximum of each.
        """
        paths: dict[int, int] = {self.whole: 0}
        steps: list[tuple[int, int]] = []
        level = [self.whole]
        while level:
            next_sets: dict[int, None] = {}
            for state in level:
                for group in self._best_sets(state):
                    steps.append((state, group))
                    most = max(paths[state], self.set_score(group))
                    if rest := state - group:
                        paths[rest] = min(paths.get(rest, most), most)
                        next_sets[rest] = None
            level = list(next_sets)
        if self.must:
            return {group for _, group in steps if group & self.must_fields}
        next_paths: dict[int, int] = {0: 0}
        for state, group in reversed(steps):
            most = max(next_paths[state - group], self.set_score(group))
            next_paths[state] = min(next_paths.get(state, most), most)
        return {
            group
            for state, group in steps
            if self.set_score(group) >= paths[state] and self.set_score(group) >= next_paths[state - group]
        }

    def first_best(self) -> list[tuple[int | None, ...]]:
        """Return the best partition that the plugin finds first, with what it overwrites; positions, ``None`` last."""
        count, size = len(self.scores), self.size
        padding = [None] * (-count % size)
        free_gpus: list[int | None] = [*range(count), *padding]
        sets: list[tuple[int | None, ...]] = []
        start, _ = overwritten_sets(count, size)
        while free_gpus:
            # of the last candidate that begins with the same sets
            last = (free_gpus[0], *free_gpus[len(free_gpus) - size + 1 :])
            group = self._first_best_set(free_gpus) if len(sets) < start else last
            sets.append(group)
            free_gpus = [gpu for gpu in free_gpus if gpu not in group]
        return sets

    def _first_best_set(self, free_gpus: list[int | None]) -> tuple[int | None, ...]:
        state = sum(self.units[gpu] for gpu in free_gpus if gpu is not None)
        total, padding = self.best(state), free_gpus.count(None)
        wrong: set[int] = set()
        for others in combinations(free_gpus[1:], self.size - 1):
            missing_count = others.count(None)
            if missing_count not in (0, padding):
                continue
            group = self.units[free_gpus[0] or 0] + sum([self.units[gpu] for gpu in others if gpu is not None])
            if group in wrong:
                continue
            if self._allows(group, full=not missing_count) and self._total(state, group) == total:
                return (free_gpus[0], *others)
            wrong.add(group)
        raise AssertionError("a state with a best total has a best set")

    def _total(self, state: int, group: int) -> int:
        """Return the best total of the partitions of *state* with this set."""
        if state == group:
            return self.set_score(group)
        rest = self.best(state - group)
        return _NO_PARTITION if rest == _NO_PARTITION else self.set_score(group) + rest
