"""Other settings or reservations of the host that admit a pod.

Candidates are a more permissive policy, the other scope, and options of the topology and CPU managers: each alone, and
in pairs only if none suffices alone. Of the policies the strictest that admits is proposed. The CPU and memory
managers' policies stay, since changing them requires draining the node. If pods choose their policy by annotation, the
pod's annotation changes instead of the host's setting.

CPUs are reserved by count or by list. Memory is reserved per NUMA node under the static memory manager, with a total
that has to match. Reserved memory is moved to another node, where that helps, before less of it is proposed. Running
pods keep what they hold; a reservation that takes from them is not proposed.
"""

from collections.abc import Iterable, Iterator
from itertools import combinations, combinations_with_replacement, product

from alignup.align import bits
from alignup.align.admit import effective_policy
from alignup.align.bits import CpuSet
from alignup.align.cpus.options import OPTION_STAGES, CpuPolicy
from alignup.align.explain import changes
from alignup.align.explain.amounts import node_sums, other_amounts, subset_sums
from alignup.align.explain.changes import NodeReservationChange, Proposal, ReservationChange, SettingChange, WhatIf
from alignup.align.host import Host
from alignup.align.machine import KubeletView
from alignup.align.memory import reserved_memory
from alignup.align.memory.provider import MemoryPolicy
from alignup.align.settings import TOPOLOGY_OPTIONS, TOPOLOGY_SWITCHES, Policy, Scope, parse_bool
from alignup.align.workload import names
from alignup.align.workload.names import CPU, MEMORY

MAX_TRIED = 150  #: reservations of one resource; each builds another host
_MIB = 1 << 20
_MAX_REQUEST_SUMS, _MAX_NODE_SUMS = 100, 1000


def setting_changes(what_if: WhatIf) -> Iterator[Proposal]:
    """Yield proposals of one setting each; if there are none, one proposal of two."""
    candidates = _candidates(what_if)
    found_single = False
    for alternatives in candidates:
        proposals = what_if.first((setting,) for setting in alternatives)
        found_single = found_single or bool(proposals)
        yield from proposals
    if not found_single:
        yield from what_if.first(
            pair for first, second in combinations(candidates, 2) for pair in product(first, second)
        )


def _candidates(what_if: WhatIf) -> list[list[SettingChange]]:
    """Return the alternatives for each field, smallest change first."""
    settings = what_if.host.settings
    policy, scope = effective_policy(what_if.pod, what_if.host.rules)
    if settings.pod_policy_annotations:
        policy_field, scope_field = changes.OWN_POLICY, changes.OWN_SCOPE
    else:
        policy_field, scope_field = changes.POLICY, changes.SCOPE
    laxer = list(Policy)[: list(Policy).index(policy)]
    options = {
        changes.TOPOLOGY_OPTION + name: getattr(settings.topology.options, TOPOLOGY_OPTIONS[name].field)
        for name in TOPOLOGY_SWITCHES
    }
    if settings.cpus.policy == CpuPolicy.STATIC:
        options |= {
            changes.CPU_OPTION + name: parse_bool(name, settings.cpus.options.get(name, "false"))
            for name in OPTION_STAGES
            if name != "strict-cpu-reservation"  # it affects the shared pool only
        }
    return [
        [SettingChange(policy_field, str(policy), str(other)) for other in reversed(laxer)],
        [SettingChange(scope_field, str(scope), str(other)) for other in Scope if other is not scope],
        *([SettingChange(name, str(on).lower(), str(not on).lower())] for name, on in options.items()),
    ]


def reservation_changes(what_if: WhatIf) -> Iterator[Proposal]:
    """Yield the smallest change for CPUs and for each type of memory that admits the pod, where there is one."""
    yield from _first(what_if, CPU, _fewer_cpus(what_if))
    pod = what_if.pod
    all_resources = (pod.resources, *(container.resources for container in pod.all_containers))
    requested = {name for resources in all_resources for name in resources.requests}
    for type_ in sorted(name for name in requested if name == MEMORY or names.is_hugepages(name)):
        yield from _first(what_if, type_, _moved(what_if, type_)) or _first(what_if, type_, _reduced(what_if, type_))


def _first(what_if: WhatIf, resource: str, reservations: Iterable[ReservationChange]) -> tuple[Proposal, ...]:
    beyond = f"Only the {MAX_TRIED} smallest changes of the {resource} reservation were tried."
    return what_if.first(((reservation,) for reservation in reservations), limit=MAX_TRIED, beyond=beyond)


def _fewer_cpus(what_if: WhatIf) -> Iterator[ReservationChange]:
    settings = what_if.host.settings
    static = settings.cpus.policy == CpuPolicy.STATIC
    amount = settings.cpus.reservation if static else settings.reservation.get(CPU)
    if amount is None:
        return
    was = amount.milli()
    sufficient = was - what_if.missing(CPU)
    if not static:
        yield from (ReservationChange(CPU, was, sufficient),) if 0 <= sufficient < was else ()
        return
    for count in range(-(-was // 1000), 0, -1):
        now = min(count * 1000, sufficient)
        if settings.cpus.explicit and now == count * 1000 < was:
            for reserved in _shorter_lists(what_if.host.view, settings.cpus.explicit, count):
                yield ReservationChange(CPU, was, now, listed=(settings.cpus.explicit, reserved))
        elif not settings.cpus.explicit and (count - 1) * 1000 < now < was:
            yield ReservationChange(CPU, was, now)


def _shorter_lists(view: KubeletView, explicit: CpuSet, count: int) -> Iterator[CpuSet]:
    """Yield the lists of *count* of these CPUs; on each node the highest cores are released first."""
    core = {cpu.id: cpu.core for cpu in view.cpus}
    by_node = {
        node: sorted(bits.members(cpus & explicit), key=lambda cpu: (core[cpu], cpu), reverse=True)
        for node, cpus in view.node_cpus.items()
        if cpus & explicit
    }
    for nodes in combinations_with_replacement(by_node, explicit.bit_count() - count):
        released = [by_node[node][: nodes.count(node)] for node in by_node]
        if sum(map(len, released)) == len(nodes):
            yield explicit & ~bits.union(map(bits.of, released))


def _moved(what_if: WhatIf, type_: str) -> Iterator[ReservationChange]:
    """Yield changes with the same total and some of it on another node."""
    reserved = _reserved_by_node(what_if.host, type_)
    total = sum(reserved.values())
    steps = _steps(what_if, type_)
    candidates = [
        (step, source, target)
        for source, target in product(reserved, reserved)
        if source != target
        for step in {*steps, reserved[source]}
        if 0 < step <= reserved[source]
    ]
    for step, source, target in sorted(candidates):
        shares = (
            NodeReservationChange(source, reserved[source], reserved[source] - step),
            NodeReservationChange(target, reserved[target], reserved[target] + step),
        )
        yield ReservationChange(type_, total, total, shares=shares)


def _reduced(what_if: WhatIf, type_: str) -> Iterator[ReservationChange]:
    """Yield changes to a smaller total: less on one node, or on the whole host if memory is not reserved per node."""
    reserved = _reserved_by_node(what_if.host, type_)
    missing = what_if.missing(type_)
    if not reserved:
        amount = what_if.host.settings.reservation.get(type_)
        if amount is not None and 0 < missing <= amount.value():
            yield ReservationChange(type_, amount.value(), amount.value() - missing)
        return
    total = sum(reserved.values())
    steps = {step for step in _steps(what_if, type_) if step >= missing}
    candidates = [(step, node) for node in reserved for step in {*steps, reserved[node]} if 0 < step <= reserved[node]]
    for step, node in sorted(candidates):
        share = NodeReservationChange(node, reserved[node], reserved[node] - step)
        yield ReservationChange(type_, total, total - step, shares=(share,))


def _reserved_by_node(host: Host, type_: str) -> dict[int, int]:
    """Return node → reserved bytes of *type_*; empty where memory is not reserved per node."""
    entries = host.settings.reserved_memory
    if host.settings.memory_policy != MemoryPolicy.STATIC or any(reserved_memory.reservation_problems(entries)):
        return {}
    reserved = {node.id: 0 for node in host.view.nodes}
    for entry in entries:
        if type_ in entry.limits:
            reserved[entry.node] += entry.limits[type_].value()
    return reserved


def _steps(what_if: WhatIf, type_: str) -> set[int]:
    """Return the amounts by which a reservation may have to change, rounded up to whole MiB or huge pages.

    They are what some containers lack on some nodes, and what the whole host lacks.
    """
    unit = _MIB if type_ == MEMORY else names.page_size(type_) or 1
    requested = subset_sums(other_amounts(what_if.pod, "", type_), most=_MAX_REQUEST_SUMS)
    free = node_sums(what_if.host, type_, most=_MAX_NODE_SUMS)
    if not (requested.complete and free.complete):
        what_if.note_unsearched(f"Not all reservations of {type_} were tried: there are too many.")
    short = {size - left for size, left in product(requested.totals, free.totals)}
    return {-(-size // unit) * unit for size in {*short, what_if.missing(type_)} if size > 0}
