"""The amounts of memory at which a verdict can change.

Every check on the way of a pod compares its memory with what some set of nodes has: free now, on the idle machine, or
on the whole host, adjusted by what the pod's other containers take, lend or add. So a verdict can change only where
the amount crosses a sum of free or allocatable bytes over a set of nodes, plus or minus amounts of the other
containers. Between two such *break points* it is the same.

With many different nodes there are too many sums; only those of the smaller sets are used then.
"""

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from alignup.align.host import Host
from alignup.align.memory.ledger import EMPTY_TABLE
from alignup.align.workload import Pod
from alignup.align.workload.names import MEMORY

MAX_POINTS = 50_000
_MAX_OTHERS = 250  #: sums of the amounts of other containers


class SubsetSums(NamedTuple):
    """The sums of all subsets, as far as they were computed."""

    totals: set[int]
    complete: bool


def find_break_points(host: Host, pod: Pod, container: str | None, type_: str) -> SubsetSums:
    """The bytes of *type_* at which the verdict may change when one container, or the pod, requests another amount."""
    # Only init containers lend memory, and only pod-level resources set a budget for the containers.
    both = bool(pod.init) or pod.has_pod_level_resources
    others, complete = {0}, True
    for amount in other_amounts(pod, container, type_):
        more = {total + step for total in others for step in ((-amount, 0, amount) if both else (-amount, 0))}
        complete = complete and len(more) <= _MAX_OTHERS
        others = more if len(more) <= _MAX_OTHERS else others
    held = node_sums(host, type_, most=MAX_POINTS // (2 * len(others)))
    room, used = host.rules.allocatable, host.ledger.used
    if room is None:
        free = 0
    elif type_ == MEMORY:
        free = room.memory - used.memory
    else:
        free = room.scalars.get(type_, 0) - used.scalars.get(type_, 0)
    amounts = held.totals | {free}
    points = {total + step for total in others for size in amounts for step in ((size, -size) if both else (size,))}
    return SubsetSums(points, complete and held.complete)


def other_amounts(pod: Pod, container: str | None, type_: str) -> list[int]:
    """The pod's other requests of *type_*: containers, pod level, overhead."""
    named = [one.resources.requests.get(type_) for one in pod.all_containers if one.name != container]
    if container is not None:
        named.append(pod.resources.requests.get(type_))
    named.append(pod.overhead.get(type_))
    return [amount.value() for amount in named if amount is not None and not amount.is_zero]


def node_sums(host: Host, type_: str, *, most: int = MAX_POINTS) -> SubsetSums:
    """The bytes of *type_* that any set of nodes has free, and has on the idle machine."""
    tables = [node.tables.get(type_, EMPTY_TABLE) for node in host.ledger.memory.nodes.values()]
    free = subset_sums((table.free for table in tables), most=most // 2)
    idle = subset_sums((table.allocatable for table in tables), most=most // 2)
    return SubsetSums(free.totals | idle.totals, free.complete and idle.complete)


def subset_sums(amounts: Iterable[int], *, most: int = MAX_POINTS) -> SubsetSums:
    """The sums of all subsets of *amounts*; above about *most*, only those of small subsets."""
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
