"""At which amounts of memory can a verdict change?

Whatever is asked about memory on the way of a pod is whether some nodes together have so much: free now, or on the idle
machine, or on the host as a whole, less or more by what the pod's other containers take before, lend, or add. So a
verdict can change only where the amount passes a sum of free or allocatable bytes over a set of nodes, with amounts of
the others added or taken away. Between two such *break points* it is the same for all amounts.

On many nodes that all differ there are too many sums; those of fewer nodes are kept then.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from alignup.align.host import Host
from alignup.align.memory.ledger import EMPTY_TABLE, MemoryLedger
from alignup.align.workload import Pod
from alignup.align.workload.names import MEMORY

MOST = 50_000  #: break points of one question
_REST = 250  #: of them, sums of what other containers take


class SubsetSums(NamedTuple):
    """What some amounts add up to in any choice, as far as it was looked at."""

    totals: set[int]
    complete: bool


def find_break_points(host: Host, pod: Pod, container: str | None, type_: str) -> SubsetSums:
    """The bytes of *type_* at which the verdict may change when one container, or the pod, asks for more or less."""
    # Only init containers lend what they have, and only a pod with resources of its own has a budget to stay within.
    both = bool(pod.init) or pod.has_pod_level_resources
    rest, complete = {0}, True
    for amount in other_amounts(pod, container, type_):
        more = {total + step for total in rest for step in ((-amount, 0, amount) if both else (-amount, 0))}
        complete = complete and len(more) <= _REST
        rest = more if len(more) <= _REST else rest
    held = node_sums(host, type_, most=MOST // (2 * len(rest)))
    amounts = held.totals | {_free_in_all(host, type_)}
    points = {total + step for total in rest for size in amounts for step in ((size, -size) if both else (size,))}
    return SubsetSums(points, complete and held.complete)


def pages_around(points: Iterable[int], *, page: int) -> Iterator[int]:
    """The whole pages, in bytes, just below, at and above each of *points*."""
    for point in points:
        start = point // page * page
        yield from (start - page, start, start + page)


def other_amounts(pod: Pod, container: str | None, type_: str) -> list[int]:
    """What else the pod names of *type_*: its other containers, the pod as a whole, overhead."""
    named = [one.resources.requests.get(type_) for one in pod.everyone if one.name != container]
    if container is not None:
        named.append(pod.resources.requests.get(type_))
    named.append(pod.overhead.get(type_))
    return [amount.value() for amount in named if amount is not None and not amount.is_zero]


def node_sums(host: Host, type_: str, *, most: int = MOST) -> SubsetSums:
    """The bytes of *type_* that any set of nodes has free, and those it has on the idle machine."""
    tables = [
        node.tables.get(type_, EMPTY_TABLE)
        for book in host.ledger.books.values()
        if isinstance(book, MemoryLedger)
        for node in book.nodes.values()
    ]
    free = subset_sums((table.free for table in tables), most=most // 2)
    idle = subset_sums((table.allocatable for table in tables), most=most // 2)
    return SubsetSums(free.totals | idle.totals, free.complete and idle.complete)


def subset_sums(amounts: Iterable[int], *, most: int = MOST) -> SubsetSums:
    """What any of *amounts*, each taken once, add up to; at most about *most*, of few amounts rather than of many."""
    by_count: list[set[int]] = [{0}]
    complete = True
    for amount in amounts:
        if complete:
            by_count.append(set())
        for fewer, more in reversed(list(pairwise(by_count))):
            more.update([total + amount for total in fewer])
        while sum(map(len, by_count)) > most and len(by_count) > 2:
            by_count.pop()
            complete = False
    return SubsetSums(set().union(*by_count), complete)


def _free_in_all(host: Host, type_: str) -> int:
    """The bytes the host as a whole has free."""
    room, used = host.rules.allocatable, host.ledger.used
    if room is None:
        return 0
    if type_ == MEMORY:
        return room.memory - used.memory
    return room.scalars.get(type_, 0) - used.scalars.get(type_, 0)
