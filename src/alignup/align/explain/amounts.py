"""Find other amounts of one resource that admit a pod, all else unchanged.

Admission is not monotone: a container rejected with 4 CPUs may be admitted with 3 and with 6, but not with 5. So the
search looks for the largest amount below the request and for the smallest above it. Exclusive CPUs and devices are
tried one by one. A share of the other CPUs only matters to the whole host, where less is always better. For memory see
``break_points``.

A container with exclusive CPUs keeps some, one without gets none, and CPU and memory requests stay above zero, so that
the QoS class does not change.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from alignup.align.explain.break_points import find_break_points, pages_around
from alignup.align.explain.changes import Proposal, RequestChange, Unit, apply_changes
from alignup.align.explain.what_if import WhatIf
from alignup.align.host import Host
from alignup.align.workload import Pod, names, validation
from alignup.align.workload.names import CPU, EPHEMERAL_STORAGE, MEMORY

PAGE = 4096  #: bytes; memory is tried in whole pages
MAX_TRIED = 2000  #: amounts of one resource in one direction


@dataclass(frozen=True, slots=True)
class RequestedAmount:
    """What one container, or the pod, requests of one resource."""

    container: str | None
    resource: str
    amount: int
    unit: Unit

    def __str__(self) -> str:
        subject = "the pod" if self.container is None else f"container {self.container}"
        return f"{self.resource} for {subject}"


def requested_amounts(host: Host, pod: Pod) -> Iterator[RequestedAmount]:
    """Every request that could change; ephemeral storage never runs short here."""
    containers = [(one.name, one.resources) for one in pod.all_containers]
    for container, resources in (*containers, (None, pod.resources)):
        for name, amount in sorted({**resources.limits, **resources.requests}.items()):
            if amount.is_zero or name == EPHEMERAL_STORAGE:
                continue
            unit = _unit(host, pod, container, name)
            yield RequestedAmount(container, name, amount.milli() if unit is Unit.MILLI_CPUS else amount.value(), unit)


def nearest_amounts(what_if: WhatIf, one: RequestedAmount) -> Iterator[Proposal]:
    """The largest admitted amount below the request and the smallest above it, where they exist."""
    if one.unit is Unit.MILLI_CPUS:
        found = _largest_share(what_if, one)
        yield from () if found is None else (found,)
        return
    for amounts in _amounts(what_if, one):
        found = _first_admitted(what_if, one, amounts)
        yield from () if found is None else (found,)


def _unit(host: Host, pod: Pod, container: str | None, name: str) -> Unit:
    if name == MEMORY or names.is_hugepages(name):
        return Unit.BYTES
    if name != CPU:
        return Unit.COUNT
    return Unit.CPUS if _exclusive_cpus(host, pod, container) else Unit.MILLI_CPUS


def _exclusive_cpus(host: Host, pod: Pod, container: str | None) -> int:
    """The number of exclusive CPUs of a container, or of the pod."""
    found = next((one for one in pod.all_containers if one.name == container), None)
    if found is None and not host.rules.pod_level:
        return 0
    return host.cpus.exclusive_cpus(pod, found)


def _amounts(what_if: WhatIf, one: RequestedAmount) -> tuple[Iterable[int], Iterable[int]]:
    """The amounts to try below and above the request, nearest first."""
    if one.unit is Unit.BYTES:
        return _bytes(what_if, one)
    least = 1 if one.unit is Unit.CPUS else 0
    most = what_if.host.view.num_cpus if one.unit is Unit.CPUS else _device_count(what_if, one.resource)
    return range(min(one.amount - 1, most), least - 1, -1), range(one.amount + 1, most + 1)


def _device_count(what_if: WhatIf, resource: str) -> int:
    room = what_if.host.rules.allocatable
    return {**(room.scalars if room else {}), **what_if.offered}.get(resource, 0)


def _bytes(what_if: WhatIf, one: RequestedAmount) -> tuple[Iterable[int], Iterable[int]]:
    page = PAGE if one.resource == MEMORY else names.page_size(one.resource) or PAGE
    least = page if one.resource == MEMORY else 0
    points, complete = find_break_points(what_if.host, what_if.pod, one.container, one.resource)
    if not complete:
        what_if.note_unsearched(f"Not all amounts of {one} were tried: there are too many.")
    tried = sorted({size for size in pages_around([*points, least, one.amount], page=page) if size >= least})
    most = _installed(what_if.host, one.resource)
    below = [size for size in reversed(tried) if size < one.amount]
    return below, [size for size in tried if one.amount < size <= most]


def _installed(host: Host, type_: str) -> int:
    """The machine's memory of *type_*, in bytes."""
    if type_ == MEMORY:
        return sum(node.memory or 0 for node in host.view.nodes)
    return sum(pages.bytes for node in host.view.nodes for pages in node.hugepages if pages.resource == type_)


def _first_admitted(what_if: WhatIf, one: RequestedAmount, amounts: Iterable[int]) -> Proposal | None:
    """The first of *amounts* that is admitted and that the API server accepts."""
    left = iter(amounts)
    for amount in islice(left, MAX_TRIED):
        found = _propose(what_if, one, amount)
        if found and _is_valid(what_if, found):
            return found
    if next(left, None) is not None:
        what_if.note_unsearched(f"Only the {MAX_TRIED} nearest amounts of {one} were tried.")
    return None


def _largest_share(what_if: WhatIf, one: RequestedAmount) -> Proposal | None:
    """The largest admitted amount below the request; a smaller share always fits better."""
    if not what_if.missing(CPU):
        return None
    best: Proposal | None = None
    fits, too_much = 0, one.amount
    while too_much - fits > 1:
        middle = (fits + too_much) // 2
        found = _propose(what_if, one, _keep_shared(what_if, one, middle))
        if found:
            best, fits = found, middle
        else:
            too_much = middle
    return best if best and _is_valid(what_if, best) else None


def _keep_shared(what_if: WhatIf, one: RequestedAmount, amount: int) -> int:
    """*amount*, or one milli-CPU less where it would make the CPUs exclusive."""
    if amount % 1000:
        return amount
    _, pod = apply_changes([RequestChange(one.container, CPU, one.amount, amount, one.unit)], what_if.host, what_if.pod)
    return amount - 1 if _exclusive_cpus(what_if.host, pod, one.container) else amount


def _propose(what_if: WhatIf, one: RequestedAmount, amount: int) -> Proposal | None:
    return what_if.propose(RequestChange(one.container, one.resource, one.amount, amount, one.unit))


def _is_valid(what_if: WhatIf, found: Proposal) -> bool:
    """Whether the API server accepts the changed pod and its QoS class is the same."""
    _, pod = found.apply(what_if.host, what_if.pod)
    known = set(validation.validation_problems(what_if.pod))
    return pod.computed_qos is what_if.pod.computed_qos and known.issuperset(validation.validation_problems(pod))
