"""Other amounts of one resource that admit a pod, all else unchanged.

Admission is not monotone: a container rejected with 4 CPUs may be admitted with 3 and with 6, but not with 5. So the
search looks for the largest amount below the request and for the smallest above it. Exclusive CPUs and devices are
tried one by one. A share of the other CPUs only matters to the whole host, where less is always better.

Memory is tried at its *break points*. Every check on the way of a pod compares its memory with what some set of nodes
has: free now, on the idle machine, or on the whole host, adjusted by what the pod's other containers take, lend or add.
So a verdict can change only where the amount crosses a sum of free or allocatable bytes over a set of nodes, plus or
minus amounts of the other containers. With many different nodes there are too many sums; only those of the smaller sets
are used then.

A container with exclusive CPUs keeps some, one without gets none, and CPU and memory requests stay above zero, so that
the QoS class does not change.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from alignup.align.explain.changes import Proposal, RequestChange, Unit, WhatIf, apply_changes
from alignup.align.host import Host
from alignup.align.memory.ledger import EMPTY_TABLE
from alignup.align.workload import Pod, names, validation
from alignup.align.workload.names import CPU, EPHEMERAL_STORAGE, MEMORY

PAGE = 4096  #: bytes; memory is tried in whole pages
MAX_TRIED = 2000  #: amounts of one resource in one direction
MAX_POINTS = 50_000
_MAX_OTHERS = 250  #: sums of the amounts of other containers


def requested_amounts(host: Host, pod: Pod) -> Iterator[RequestChange]:
    """Yield every request that could change, unchanged so far; ephemeral storage never runs short here."""
    containers = [(container.name, container.resources) for container in pod.all_containers]
    for container, resources in (*containers, (None, pod.resources)):
        for name, amount in sorted({**resources.limits, **resources.requests}.items()):
            if amount.is_zero or name == EPHEMERAL_STORAGE:
                continue
            if name == MEMORY or names.is_hugepages(name):
                unit = Unit.BYTES
            elif name != CPU:
                unit = Unit.COUNT
            else:
                unit = Unit.CPUS if _exclusive_cpus(host, pod, container) else Unit.MILLI_CPUS
            number = amount.milli() if unit is Unit.MILLI_CPUS else amount.value()
            yield RequestChange(container, name, number, number, unit)


def nearest_amounts(what_if: WhatIf, request: RequestChange) -> Iterator[Proposal]:
    """Yield the largest admitted amount below the request and the smallest above it, where they exist."""
    if request.unit is Unit.MILLI_CPUS:
        yield from _largest_share(what_if, request)
        return
    beyond = f"Only the {MAX_TRIED} nearest amounts of {request.resource} for {request.subject} were tried."
    for amounts in _bytes(what_if, request) if request.unit is Unit.BYTES else _counts(what_if, request):
        changes = ((replace(request, now=amount),) for amount in amounts)
        yield from what_if.first(changes, limit=MAX_TRIED, beyond=beyond, is_valid=partial(_is_valid, what_if))


def _exclusive_cpus(host: Host, pod: Pod, container: str | None) -> int:
    chosen = next((candidate for candidate in pod.all_containers if candidate.name == container), None)
    if chosen is None and not host.rules.pod_level:
        return 0
    return host.cpus.exclusive_cpus(pod, chosen)


def _counts(what_if: WhatIf, request: RequestChange) -> tuple[Iterable[int], Iterable[int]]:
    """Return the amounts to try below and above the request, nearest first."""
    if request.unit is Unit.CPUS:
        least, most = 1, what_if.host.view.num_cpus
    else:
        room = what_if.host.rules.allocatable
        least, most = 0, {**(room.scalars if room else {}), **what_if.offered}.get(request.resource, 0)
    return range(min(request.was - 1, most), least - 1, -1), range(request.was + 1, most + 1)


def _bytes(what_if: WhatIf, request: RequestChange) -> tuple[Iterable[int], Iterable[int]]:
    page = PAGE if request.resource == MEMORY else names.page_size(request.resource) or PAGE
    least = page if request.resource == MEMORY else 0
    points, complete = find_break_points(what_if.host, what_if.pod, request.container, request.resource)
    if not complete:
        what_if.note_unsearched(
            f"Not all amounts of {request.resource} for {request.subject} were tried: there are too many."
        )
    starts = {point // page * page for point in (*points, least, request.was)}
    around = {size for start in starts for size in (start - page, start, start + page)}
    tried = sorted(size for size in around if size >= least)
    nodes = what_if.host.view.nodes
    if request.resource == MEMORY:
        most = sum(node.memory or 0 for node in nodes)
    else:
        most = sum(pages.bytes for node in nodes for pages in node.hugepages if pages.resource == request.resource)
    below = [size for size in reversed(tried) if size < request.was]
    return below, [size for size in tried if request.was < size <= most]


def _largest_share(what_if: WhatIf, request: RequestChange) -> Iterator[Proposal]:
    """Yield the largest admitted amount below the request; a smaller share always fits better."""
    if not what_if.missing(CPU):
        return
    best: Proposal | None = None
    fits, too_much = 0, request.was
    while too_much - fits > 1:
        middle = amount = (fits + too_much) // 2
        if middle % 1000 == 0:
            _, pod = apply_changes([replace(request, now=middle)], what_if.host, what_if.pod)
            amount -= bool(_exclusive_cpus(what_if.host, pod, request.container))  # whole CPUs would become exclusive
        proposal = what_if.propose(replace(request, now=amount))
        if proposal:
            best, fits = proposal, middle
        else:
            too_much = middle
    if best and _is_valid(what_if, best):
        yield best


def _is_valid(what_if: WhatIf, proposal: Proposal) -> bool:
    """Return whether the API server accepts the changed pod and its QoS class is the same."""
    _, pod = proposal.apply(what_if.host, what_if.pod)
    known = set(validation.validation_problems(what_if.pod))
    return pod.computed_qos is what_if.pod.computed_qos and known.issuperset(validation.validation_problems(pod))


class SubsetSums(NamedTuple):
    """The sums of all subsets, as far as they were computed."""

    totals: set[int]
    complete: bool


def find_break_points(host: Host, pod: Pod, container: str | None, type_: str) -> SubsetSums:
    """Return the bytes of *type_* at which the verdict on another request of one container or the pod may change."""
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
    """Return the pod's other requests of *type_*: containers, pod level, overhead."""
    named = [other.resources.requests.get(type_) for other in pod.all_containers if other.name != container]
    if container is not None:
        named.append(pod.resources.requests.get(type_))
    named.append(pod.overhead.get(type_))
    return [amount.value() for amount in named if amount is not None and not amount.is_zero]


def node_sums(host: Host, type_: str, *, most: int = MAX_POINTS) -> SubsetSums:
    """Return the bytes of *type_* that any set of nodes has free, and has on the idle machine."""
    tables = [node.tables.get(type_, EMPTY_TABLE) for node in host.ledger.memory.nodes.values()]
    free = subset_sums((table.free for table in tables), most=most // 2)
    idle = subset_sums((table.allocatable for table in tables), most=most // 2)
    return SubsetSums(free.totals | idle.totals, free.complete and idle.complete)


def subset_sums(amounts: Iterable[int], *, most: int = MAX_POINTS) -> SubsetSums:
    """Return the sums of all subsets of *amounts*; above about *most*, only those of small subsets."""
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
