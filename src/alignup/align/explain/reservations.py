"""Which smaller reservation for system and Kubernetes, or which other place for it, would have a pod admitted?

CPUs are reserved by number or by a list; memory of the static memory manager node by node, with a total that has to
agree. Memory that only lies in the way is moved to another node before less of it is proposed. What running pods hold
they keep; a reservation that would take from them is none.
"""

from collections.abc import Iterable, Iterator
from itertools import combinations_with_replacement, islice, product

from alignup.align import bits
from alignup.align.bits import CpuSet
from alignup.align.cpus.options import CpuPolicy
from alignup.align.explain.break_points import node_sums, other_amounts, subset_sums
from alignup.align.explain.changes import NodeReservationChange, Proposal, ReservationChange
from alignup.align.explain.what_if import WhatIf
from alignup.align.host import Host
from alignup.align.machine import KubeletView
from alignup.align.memory import reserved_memory
from alignup.align.memory.provider import MemoryPolicy
from alignup.align.workload import names
from alignup.align.workload.names import CPU, MEMORY

MOST = 150  #: reservations of one resource that are tried; each takes a host of its own
_MIB = 1 << 20
_WANTED, _FREE = 100, 1000  #: sums of what containers ask for and of what nodes have that are looked at


def reservation_changes(trials: WhatIf) -> Iterator[Proposal]:
    """For CPUs and each type of memory the smallest change that admits the pod, if there is one."""
    ways = [(CPU, _of_cpus(trials))]
    for type_ in _types(trials):
        ways += [(type_, _moved(trials, type_)), (type_, _reduced(trials, type_))]
    served: set[str] = set()
    for resource, reservations in ways:
        found = None if resource in served else _first(trials, resource, reservations)
        if found:
            served.add(resource)
            yield found


def _first(trials: WhatIf, resource: str, reservations: Iterable[ReservationChange]) -> Proposal | None:
    left = iter(reservations)
    for reservation in islice(left, MOST):
        found = trials.propose(reservation)
        if found:
            return found
    if next(left, None):
        trials.note_unsearched(f"Of other reservations of {resource} only the {MOST} smallest changes were tried.")
    return None


def _of_cpus(trials: WhatIf) -> Iterator[ReservationChange]:
    """Fewer CPUs reserved, the least change first."""
    settings = trials.host.settings
    static = settings.cpus.policy == CpuPolicy.STATIC
    amount = settings.cpus.reservation if static else settings.reservation.get(CPU)
    if amount is None:
        return
    was = amount.milli()
    enough = was - trials.missing(CPU)
    if not static:
        yield from (ReservationChange(CPU, was, enough),) if 0 <= enough < was else ()
        return
    for count in range(-(-was // 1000), 0, -1):
        now = min(count * 1000, enough)
        if settings.cpus.explicit and now == count * 1000 < was:
            for kept in _smaller(trials.host.view, settings.cpus.explicit, count):
                yield ReservationChange(CPU, was, now, listed=(settings.cpus.explicit, kept))
        elif not settings.cpus.explicit and (count - 1) * 1000 < now < was:
            yield ReservationChange(CPU, was, now)


def _smaller(view: KubeletView, explicit: CpuSet, count: int) -> Iterator[CpuSet]:
    """The lists of *count* of these CPUs: as many given up on each node as may be, the highest cores of it first."""
    core = {cpu.id: cpu.core for cpu in view.cpus}
    by_node = {
        node: sorted(bits.members(cpus & explicit), key=lambda cpu: (core[cpu], cpu), reverse=True)
        for node, cpus in view.node_cpus.items()
        if cpus & explicit
    }
    for nodes in combinations_with_replacement(by_node, explicit.bit_count() - count):
        given_up = [by_node[node][: nodes.count(node)] for node in by_node]
        if sum(map(len, given_up)) == len(nodes):
            yield explicit & ~bits.union(map(bits.of, given_up))


def _types(trials: WhatIf) -> list[str]:
    """The types of memory the pod asks for."""
    pod = trials.pod
    everyone = (pod.resources, *(one.resources for one in pod.everyone))
    named = {name for resources in everyone for name in resources.requests}
    return sorted(name for name in named if name == MEMORY or names.is_hugepages(name))


def _moved(trials: WhatIf, type_: str) -> Iterator[ReservationChange]:
    """As much kept back in all, but some of it on another node."""
    kept = _kept(trials.host, type_)
    total = sum(kept.values())
    steps = _steps(trials, type_)
    ways = [
        (step, giver, taker)
        for giver, taker in product(kept, kept)
        if giver != taker
        for step in {*steps, kept[giver]}
        if 0 < step <= kept[giver]
    ]
    for step, giver, taker in sorted(ways):
        shares = (
            NodeReservationChange(giver, kept[giver], kept[giver] - step),
            NodeReservationChange(taker, kept[taker], kept[taker] + step),
        )
        yield ReservationChange(type_, total, total, shares=shares)


def _reduced(trials: WhatIf, type_: str) -> Iterator[ReservationChange]:
    """Less kept back: on one node, or of the host as a whole where nodes do not count."""
    kept = _kept(trials.host, type_)
    missing = trials.missing(type_)
    if not kept:
        amount = trials.host.settings.reservation.get(type_)
        if amount is not None and 0 < missing <= amount.value():
            yield ReservationChange(type_, amount.value(), amount.value() - missing)
        return
    total = sum(kept.values())
    steps = {step for step in _steps(trials, type_) if step >= missing}
    ways = [(step, node) for node in kept for step in {*steps, kept[node]} if 0 < step <= kept[node]]
    for step, node in sorted(ways):
        yield ReservationChange(
            type_, total, total - step, shares=(NodeReservationChange(node, kept[node], kept[node] - step),)
        )


def _kept(host: Host, type_: str) -> dict[int, int]:
    """Node → the bytes of *type_* kept back there; empty where memory is not kept back node by node."""
    entries = host.settings.reserved_memory
    if host.settings.memory_policy != MemoryPolicy.STATIC or reserved_memory.reservation_problems(entries):
        return {}
    kept = {node.id: 0 for node in host.view.nodes}
    for entry in entries:
        if type_ in entry.limits:
            kept[entry.node] += entry.limits[type_].value()
    return kept


def _steps(trials: WhatIf, type_: str) -> set[int]:
    """By how much a reservation may have to change: what some containers are short of on some nodes, and the host.

    Rounded up to whole MiB or huge pages.
    """
    unit = _MIB if type_ == MEMORY else names.page_size(type_) or 1
    wanted = subset_sums(other_amounts(trials.pod, "", type_), most=_WANTED)
    free = node_sums(trials.host, type_, most=_FREE)
    if not (wanted.complete and free.complete):
        trials.note_unsearched(f"Not all reservations of {type_} were tried: there are too many to look at.")
    short = {size - left for size, left in product(wanted.totals, free.totals)}
    return {-(-size // unit) * unit for size in {*short, trials.missing(type_)} if size > 0}
