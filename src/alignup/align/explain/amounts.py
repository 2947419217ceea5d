"""Which other amount of one resource would have a pod admitted, all others unchanged?

Admission is not monotone: a container refused with 4 CPUs may be admitted with 3 as well as with 6, and with 5 not. So
the largest amount below the request is looked for as well as the nearest above it. CPUs of one's own and devices are
tried one by one; a share of the other CPUs matters to the host as a whole only, where less always does; for memory see
``breaks``.

An amount stays in its kind: who has CPUs of its own keeps some, who shares goes on sharing, and of CPU and memory
something remains, so that the QoS class stays.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from alignup.align.explain.break_points import find_break_points, pages_around
from alignup.align.explain.changes import Proposal, RequestChange, Unit, apply_changes
from alignup.align.explain.what_if import WhatIf
from alignup.align.host import Host
from alignup.align.providers import CpuHintProvider
from alignup.align.workload import Pod, names, validation
from alignup.align.workload.names import CPU, EPHEMERAL_STORAGE, MEMORY

PAGE = 4096  #: bytes; memory is looked for in whole pages
MOST = 2000  #: amounts of one resource that are tried in one direction


@dataclass(frozen=True, slots=True)
class RequestedAmount:
    """What one container, or the pod as a whole, asks for of one resource."""

    container: str | None
    resource: str
    amount: int
    unit: Unit

    def __str__(self) -> str:
        who = "the pod as a whole" if self.container is None else f"container {self.container}"
        return f"{self.resource} for {who}"


def requested_amounts(host: Host, pod: Pod) -> Iterator[RequestedAmount]:
    """Everything that could be asked for in another amount; of disk space a host is never short here."""
    everyone = [(one.name, one.resources) for one in pod.everyone]
    for container, resources in (*everyone, (None, pod.resources)):
        for name, amount in sorted({**resources.limits, **resources.requests}.items()):
            if amount.is_zero or name == EPHEMERAL_STORAGE:
                continue
            unit = _unit(host, pod, container, name)
            yield RequestedAmount(container, name, amount.milli() if unit is Unit.MILLI_CPUS else amount.value(), unit)


def nearest_amounts(trials: WhatIf, one: RequestedAmount) -> Iterator[Proposal]:
    """The largest admitted amount below what is asked for, and the smallest above, where there are such."""
    if one.unit is Unit.MILLI_CPUS:
        found = _share(trials, one)
        yield from () if found is None else (found,)
        return
    for amounts in _amounts(trials, one):
        found = _first(trials, one, amounts)
        yield from () if found is None else (found,)


def _unit(host: Host, pod: Pod, container: str | None, name: str) -> Unit:
    if name == MEMORY or names.is_hugepages(name):
        return Unit.BYTES
    if name != CPU:
        return Unit.PIECES
    return Unit.CPUS if _own_cpus(host, pod, container) else Unit.MILLI_CPUS


def _own_cpus(host: Host, pod: Pod, container: str | None) -> int:
    """How many CPUs a container, or the pod as a whole, is to have for itself."""
    meant = next((one for one in pod.everyone if one.name == container), None)
    if meant is None and not host.rules.pod_level:
        return 0
    return sum(one.rules.exclusive_cpus(pod, meant) for one in host.providers if isinstance(one, CpuHintProvider))


def _amounts(trials: WhatIf, one: RequestedAmount) -> tuple[Iterable[int], Iterable[int]]:
    """What is to be tried below and above, the nearest first."""
    if one.unit is Unit.BYTES:
        return _bytes(trials, one)
    least = 1 if one.unit is Unit.CPUS else 0
    most = trials.host.view.num_cpus if one.unit is Unit.CPUS else _pieces(trials, one.resource)
    return range(min(one.amount - 1, most), least - 1, -1), range(one.amount + 1, most + 1)


def _pieces(trials: WhatIf, resource: str) -> int:
    """How many of *resource* the host has."""
    room = trials.host.rules.allocatable
    return {**(room.scalars if room else {}), **trials.offered}.get(resource, 0)


def _bytes(trials: WhatIf, one: RequestedAmount) -> tuple[Iterable[int], Iterable[int]]:
    page = PAGE if one.resource == MEMORY else names.page_size(one.resource) or PAGE
    least = page if one.resource == MEMORY else 0
    points, complete = find_break_points(trials.host, trials.pod, one.container, one.resource)
    if not complete:
        trials.note_unsearched(f"Not all amounts of {one} were tried: there are too many to look at.")
    tried = sorted({size for size in pages_around([*points, least, one.amount], page=page) if size >= least})
    most = _installed(trials.host, one.resource)
    below = [size for size in reversed(tried) if size < one.amount]
    return below, [size for size in tried if one.amount < size <= most]


def _installed(host: Host, type_: str) -> int:
    """The bytes of *type_* the machine has."""
    if type_ == MEMORY:
        return sum(node.memory or 0 for node in host.view.nodes)
    return sum(pages.bytes for node in host.view.nodes for pages in node.hugepages if pages.resource == type_)


def _first(trials: WhatIf, one: RequestedAmount, amounts: Iterable[int]) -> Proposal | None:
    """The first of *amounts* that is admitted, and that the API server would take."""
    left = iter(amounts)
    for amount in islice(left, MOST):
        found = _tried(trials, one, amount)
        if found and _legal(trials, found):
            return found
    if next(left, None) is not None:
        trials.note_unsearched(f"Of other amounts of {one} only the {MOST} nearest were tried.")
    return None


def _share(trials: WhatIf, one: RequestedAmount) -> Proposal | None:
    """The largest share of the other CPUs below what is asked for; less always fits the better."""
    if not trials.missing(CPU):
        return None
    best: Proposal | None = None
    fits, too_much = 0, one.amount
    while too_much - fits > 1:
        middle = (fits + too_much) // 2
        found = _tried(trials, one, _shared(trials, one, middle))
        if found:
            best, fits = found, middle
        else:
            too_much = middle
    return best if best and _legal(trials, best) else None


def _shared(trials: WhatIf, one: RequestedAmount, amount: int) -> int:
    """*amount*, or just less where so much would make the CPUs the container's own."""
    if amount % 1000:
        return amount
    _, pod = apply_changes([RequestChange(one.container, CPU, one.amount, amount, one.unit)], trials.host, trials.pod)
    return amount - 1 if _own_cpus(trials.host, pod, one.container) else amount


def _tried(trials: WhatIf, one: RequestedAmount, amount: int) -> Proposal | None:
    return trials.propose(RequestChange(one.container, one.resource, one.amount, amount, one.unit))


def _legal(trials: WhatIf, found: Proposal) -> bool:
    """Whether the API server would take the pod as changed, and its QoS class is the same."""
    _, pod = found.apply(trials.host, trials.pod)
    known = set(validation.validation_problems(trials.pod))
    return pod.computed_qos is trials.pod.computed_qos and known.issuperset(validation.validation_problems(pod))
