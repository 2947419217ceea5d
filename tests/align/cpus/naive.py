"""Spreading CPUs over NUMA nodes the long way: every combination, every way to deal, as the kubelet goes through them.

The kubelet keeps its best combination in an array that later ones overwrite; *overwritten* models that too.
"""

from collections.abc import Sequence
from itertools import combinations
from math import floor, inf, sqrt

from alignup.align.bits import CpuSet
from alignup.align.cpus.selection import PackedSelection
from alignup.align.machine import KubeletView


def plan(sizes: Sequence[int], count: int, *, group=1, fewest=1, sockets=None, overwritten=False):
    """The combination, its share and who deals, as places in *sizes*; ``None`` if no number of nodes will do."""
    for width in range(fewest, min(count // group, len(sizes)) + 1):
        best = Best(overwritten)
        for chosen in combinations(range(len(sizes)), width):
            best.walked_over(chosen)
            if best.score == 0 and (sockets is None or best.one_socket):
                break
            if sum(sizes[place] // group for place in chosen) * group < count:
                continue
            share = even_share(sizes, chosen, count=count, group=group, sockets=sockets)
            if min(sizes[place] for place in chosen) < share:
                continue
            left = [size - share * (place in chosen) for place, size in enumerate(sizes)]
            score, dealers = deal(left, chosen, count - share * width, group=group, overwritten=overwritten)
            one_socket = sockets is not None and one(sockets, chosen)
            better = score < best.score if one_socket == best.one_socket else one_socket
            if better:
                best.remember(chosen, score=score, dealers=dealers, one_socket=one_socket)
        if best.chosen:
            chosen = tuple(best.chosen)
            share = count // width // group * group
            return chosen, min(share, *(sizes[place] // group * group for place in chosen)), tuple(best.dealers)
    return None


class Best:
    """The best combination so far, in an array that later combinations may overwrite."""

    def __init__(self, overwritten: bool) -> None:
        self.overwritten = overwritten
        self.score = inf
        self.chosen: list[int] = []
        self.dealers: tuple[int, ...] = ()
        self.one_socket = False

    def remember(self, chosen, *, score, dealers, one_socket=False) -> None:
        self.score, self.chosen, self.dealers, self.one_socket = score, list(chosen), dealers, one_socket

    def walked_over(self, chosen) -> None:
        """What the kubelet's array holds once it has gone on to *chosen*."""
        fresh = max((size for size in (1, 2, 3, 5, 9) if size <= len(chosen)), default=0)
        if self.overwritten and len(self.chosen) == len(chosen) and self.chosen[:fresh] == list(chosen[:fresh]):
            self.chosen = list(chosen)


def even_share(sizes, chosen, *, count, group, sockets):
    share = count // len(chosen) // group * group
    return share if sockets is None else min(share, *(sizes[place] // group * group for place in chosen))


def one(sockets, chosen) -> bool:
    touched = 0
    for place in chosen:
        touched |= sockets[place]
    return touched.bit_count() == 1


def deal(left: Sequence[int], chosen: Sequence[int], rest: int, *, group: int, overwritten: bool):
    """The smallest deviation after dealing *rest* to some of *chosen*, and the nodes chosen."""
    if rest == 0:
        return deviation(left), ()
    able = [place for place in chosen if left[place] >= group]
    overall = Best(overwritten=False)
    for number in range(len(able), 0, -1):
        best = Best(overwritten)
        best.score = overall.score
        for some in combinations(able, number):
            best.walked_over(some)
            after = dealt(left, some, rest, group=group)
            if after is not None and deviation(after) < best.score:
                best.remember(some, score=deviation(after), dealers=())
        if best.chosen:
            overall.remember(best.chosen, score=best.score, dealers=())
    return overall.score, tuple(overall.chosen)


def dealt(left: Sequence[int], some: Sequence[int], rest: int, *, group: int) -> list[int] | None:
    after = list(left)
    while rest:
        able = [place for place in some if after[place] >= group]
        if not able:
            return None
        for place in able[: rest // group]:
            after[place] -= group
            rest -= group
    return after


def deviation(values: Sequence[int]) -> float:
    mean = thousandths(sum(values) / len(values))
    return thousandths(sqrt(sum((value - mean) ** 2 for value in values) / len(values)))


def thousandths(number: float) -> float:
    return floor(number * 1000 + 0.5) / 1000


class Distributed:
    """Distributed selection by the plan above; chooses as the kubelet does, its overwritten arrays included."""

    def __init__(self, view: KubeletView, *, group: int = 1, by_socket: bool = False) -> None:
        self.view, self.group, self.by_socket, self.packed = view, group, by_socket, PackedSelection(view)

    def take(self, free: CpuSet, count: int) -> CpuSet:
        if count <= 0 or count % self.group or count > free.bit_count():
            return self.packed.take(free, count)
        order = self.packed.nodes(free)
        sockets = [self.touched(node) for node in order] if self.by_socket else None
        per_node = ((self.view.num_cpus - 1) // self.group) // self.view.num_nodes + 1
        sizes = [(node & free).bit_count() for node in order]
        fewest = (count // self.group - 1) // per_node + 1
        chosen_plan = plan(sizes, count, group=self.group, fewest=fewest, sockets=sockets, overwritten=True)
        return (
            self.carried_out(chosen_plan, [node & free for node in order], count)
            if chosen_plan
            else self.packed.take(free, count)
        )

    def touched(self, node: CpuSet) -> int:
        return sum(1 << place for place, cpus in enumerate(self.view.socket_cpus.values()) if cpus & node)

    def carried_out(self, plan, nodes, count: int) -> CpuSet:
        chosen, share, dealers = plan
        taken = 0
        for place in chosen:
            taken |= self.packed.take(nodes[place], share)
        while taken.bit_count() < count:
            for place in dealers:
                left = nodes[place] & ~taken
                if left.bit_count() >= self.group and taken.bit_count() < count:
                    taken |= self.packed.take(left, self.group)
        return taken
