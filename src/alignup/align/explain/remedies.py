"""Changes that admit a rejected pod, each proved by a new decision.

    remedies = find_remedies(host, pod)
    for proposal in remedies.proposals:
        changed_host, changed_pod = proposal.apply(host, pod)      # copies: the originals stay as they are
        assert changed_host.decide(changed_pod).admitted

The search covers other amounts of one resource (``nearest_amounts``), other settings of the host (``setting_changes``),
other reservations (``reservation_changes``), and evictions (``smallest_eviction``). It runs until *should_stop* returns
true; ``unsearched`` then lists what was not tried.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache, partial
from itertools import combinations, combinations_with_replacement, pairwise, product
from typing import NamedTuple

from alignup.align import bits
from alignup.align.admit import effective_policy
from alignup.align.bits import CpuSet
from alignup.align.cpus.options import OPTION_STAGES, CpuPolicy
from alignup.align.devices.provider import PreferenceAnswers
from alignup.align.eviction_search import EvictionSearch, EvictionUnit, SearchTimeoutError, find_units
from alignup.align.explain import changes
from alignup.align.explain.changes import (
    Eviction,
    NodeReservationChange,
    Proposal,
    RequestChange,
    ReservationChange,
    SettingChange,
    Unit,
    WhatIf,
    apply_changes,
)
from alignup.align.host import Host
from alignup.align.machine import KubeletView
from alignup.align.memory import reserved_memory
from alignup.align.memory.ledger import EMPTY_TABLE
from alignup.align.memory.provider import MemoryPolicy
from alignup.align.settings import TOPOLOGY_OPTIONS, TOPOLOGY_SWITCHES, Policy, Scope, parse_bool
from alignup.align.workload import Pod, names, validation
from alignup.align.workload.names import CPU, EPHEMERAL_STORAGE, MEMORY

_ORDER = (RequestChange, SettingChange, Eviction, ReservationChange)  #: least disruptive first
PAGE = 4096  #: bytes; memory is tried in whole pages
MAX_TRIED = 2000  #: amounts of one resource in one direction
MAX_POINTS = 50_000
_MAX_OTHERS = 250  #: sums of the amounts of other containers
MAX_RESERVATIONS = 150  #: reservations of one resource; each builds another host
_MIB = 1 << 20
_MAX_REQUEST_SUMS, _MAX_NODE_SUMS = 100, 1000
MAX_EVICTED = 3  #: pods in one set
MAX_EQUIVALENT = 2000  #: sets of one size that contain equivalent pods
_MAX_ALTERNATIVES = 8  #: for each pod


class Remedies(NamedTuple):
    """The proposals, most useful first, and sentences about what was not searched."""

    proposals: tuple[Proposal, ...] = ()
    unsearched: tuple[str, ...] = ()


def find_remedies(
    host: Host, pod: Pod, *, answers: PreferenceAnswers | None = None, should_stop: Callable[[], bool] = lambda: False
) -> Remedies:
    """Return proposals that admit *pod* on *host*; none if the pod is not rejected.

    *answers* are the preferred allocations that device plugins returned. *should_stop* is called before each decision.
    """
    what_if = WhatIf(host, pod, answers=answers or {}, should_stop=should_stop)
    rejection = what_if.decision.rejection
    if rejection is None or (rejection.provider == "host" and not rejection.shortfalls):
        return Remedies()  # admitted, or made for another operating system
    # The likely and quick searches come first. The sort is stable: requests for what fell short, then the others.
    short = {shortfall.resource for shortfall in rejection.shortfalls}
    requests = sorted(requested_amounts(host, pod), key=lambda request: request.resource not in short)
    amounts = [
        (f"other amounts of {request.resource} for {request.subject}", nearest_amounts(what_if, request))
        for request in requests
    ]
    likely = len([request for request in requests if request.resource in short])
    sections = [
        *amounts[:likely],
        ("other settings", setting_changes(what_if)),
        *amounts[likely:],
        ("other reservations", reservation_changes(what_if)),
        ("evictions", smallest_eviction(what_if)),  # the only slow one
    ]
    proposals: list[Proposal] = []
    for section, candidates in sections:
        try:
            proposals.extend(candidates)  # keeps what was found before a timeout
        except SearchTimeoutError:
            what_if.note_unsearched(f"Time ran out before all {section} were tried.")
    if host.settings.kubelet_faults:  # a kubelet decides, so devices are chosen at random
        proposals = [certain for proposal in proposals if (certain := _predicted(proposal, host, pod))]
    return Remedies(tuple(sorted(proposals, key=_usefulness)), tuple(what_if.unsearched))


def _predicted(proposal: Proposal, host: Host, pod: Pod) -> Proposal | None:
    """Return *proposal* with all choices of devices; ``None`` if the pod is rejected with some choices."""
    changed_host, changed_pod = proposal.apply(host, pod)
    decision = changed_host.predict(changed_pod)
    return proposal._replace(decision=decision) if decision.admitted and not decision.may_be_rejected else None


def _usefulness(proposal: Proposal) -> tuple[int, Fraction]:
    """Return the sort key: the kind of change, then how far a request is from the original."""
    change = proposal.changes[0]
    away = Fraction(abs(change.now - change.was), change.was) if isinstance(change, RequestChange) else Fraction(0)
    return _ORDER.index(type(change)), away


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
    """Yield the largest admitted amount below the request and the smallest above it, where they exist.

    Admission is not monotone: a container rejected with 4 CPUs may be admitted with 3 and with 6, but not with 5.
    Exclusive CPUs and devices are tried one by one. A share of the other CPUs only matters to the whole host, where
    less is always better. Memory is tried at its break points (``find_break_points``). A container with exclusive CPUs
    keeps some, one without gets none, and CPU and memory requests stay above zero, so that the QoS class does not
    change.
    """
    what_if.check_time()  # a pod may have thousands of containers
    if request.unit is Unit.MILLI_CPUS:
        yield from _largest_share(what_if, request)
        return
    beyond = f"Only the {MAX_TRIED} nearest amounts of {request.resource} for {request.subject} were tried."
    for amounts in _bytes(what_if, request) if request.unit is Unit.BYTES else _counts(what_if, request):
        changes = ((replace(request, now=amount),) for amount in amounts)
        yield from what_if.first(changes, limit=MAX_TRIED, beyond=beyond, is_valid=partial(_is_valid, what_if))


def _exclusive_cpus(host: Host, pod: Pod, container: str | None) -> int:
    subject = next((candidate for candidate in pod.all_containers if candidate.name == container), None)
    if subject is None and not host.rules.pod_level:
        return 0
    return host.cpus.exclusive_cpus(pod, subject)


def _counts(what_if: WhatIf, request: RequestChange) -> tuple[Iterable[int], Iterable[int]]:
    """Return the amounts to try below and above the request, nearest first."""
    if request.unit is Unit.CPUS:
        least, most = 1, what_if.host.view.num_cpus
    else:
        room = what_if.host.rules.allocatable
        least, most = 0, {**(room.scalars if room else {}), **what_if.shortage.offered}.get(request.resource, 0)
    if request.resource == names.MARKER:  # more of them than one NUMA node has would tie the pod to several
        most = min(most, request.was)
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
    tried_sizes = sorted(size for size in around if size >= least)
    nodes = what_if.host.view.nodes
    if request.resource == MEMORY:
        most = sum(node.memory or 0 for node in nodes)
    else:
        most = sum(pages.bytes for node in nodes for pages in node.hugepages if pages.resource == request.resource)
    below = [size for size in reversed(tried_sizes) if size < request.was]
    return below, [size for size in tried_sizes if request.was < size <= most]


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
    _, pod = apply_changes(proposal.changes, what_if.host, what_if.pod)
    problems_before = set(validation.validation_problems(what_if.pod))
    return pod.computed_qos is what_if.pod.computed_qos and problems_before.issuperset(
        validation.validation_problems(pod)
    )


class SubsetSums(NamedTuple):
    """The sums of all subsets, as far as they were computed."""

    totals: set[int]
    complete: bool


def find_break_points(host: Host, pod: Pod, container: str | None, type_: str) -> SubsetSums:
    """Return the bytes of *type_* at which the verdict on another request of one container or the pod may change.

    Every check on the way of a pod compares its memory with what some set of nodes has: free now, on the idle machine,
    or on the whole host, adjusted by what the pod's other containers take, lend or add. So a verdict can change only
    where the amount crosses a sum of free or allocatable bytes over a set of nodes, plus or minus amounts of the other
    containers. With many different nodes there are too many sums; only those of the smaller sets are used then.
    """
    # Only init containers lend memory, and only pod-level resources set a budget for the containers.
    both = bool(pod.init) or pod.has_pod_level_resources
    others, complete = _sums_of_others(other_amounts(pod, container, type_), both=both)
    sums = node_sums(host, type_, most=MAX_POINTS // (2 * len(others)))
    room, usage = host.rules.allocatable, host.ledger.used
    if room is None:
        free = 0
    elif type_ == MEMORY:
        free = room.memory - usage.memory
    else:
        free = room.scalars.get(type_, 0) - usage.scalars.get(type_, 0)
    amounts = sums.totals | {free}
    points = {total + step for total in others for size in amounts for step in ((size, -size) if both else (size,))}
    return SubsetSums(points, complete and sums.complete)


@lru_cache(maxsize=32)  # equal containers of a pod have the same others
def _sums_of_others(amounts: tuple[int, ...], *, both: bool) -> SubsetSums:
    """Return what others may add or take; with *both*, either."""
    totals, complete = {0}, True
    for amount in amounts:
        more = {total + step for total in totals for step in ((-amount, 0, amount) if both else (-amount, 0))}
        complete = complete and len(more) <= _MAX_OTHERS
        totals = more if len(more) <= _MAX_OTHERS else totals
    return SubsetSums(totals, complete)


def other_amounts(pod: Pod, container: str | None, type_: str) -> tuple[int, ...]:
    """Return the pod's other requests of *type_*: containers, pod level, overhead."""
    amounts = [other.resources.requests.get(type_) for other in pod.all_containers if other.name != container]
    if container is not None:
        amounts.append(pod.resources.requests.get(type_))
    amounts.append(pod.overhead.get(type_))
    return tuple(amount.value() for amount in amounts if amount is not None and not amount.is_zero)


def node_sums(host: Host, type_: str, *, most: int = MAX_POINTS) -> SubsetSums:
    """Return the bytes of *type_* that any set of nodes has free, and has on the idle machine."""
    tables = [node.tables.get(type_, EMPTY_TABLE) for node in host.ledger.memory.nodes.values()]
    free = subset_sums((table.free for table in tables), most=most // 2)
    idle = subset_sums((table.allocatable for table in tables), most=most // 2)
    return SubsetSums(free.totals | idle.totals, free.complete and idle.complete)


def subset_sums(amounts: Iterable[int], *, most: int = MAX_POINTS) -> SubsetSums:
    """Return the sums of all subsets of *amounts*; above about *most* sums, only the sums of small subsets."""
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


def setting_changes(what_if: WhatIf) -> Iterator[Proposal]:
    """Yield proposals of one setting each; if there are none, one proposal of two.

    Candidates are a more permissive policy (the strictest that admits), the other scope, and options of the topology
    and CPU managers. The CPU and memory managers' policies stay, since changing them requires draining the node. If
    pods choose their policy by annotation, the pod's annotation changes instead of the host's setting.
    """
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
    """Yield the smallest change for CPUs and for each type of memory that admits the pod, where there is one.

    CPUs are reserved by count or by list. Memory is reserved per NUMA node under the static memory manager, with a
    total that has to match. Reserved memory is moved to another node, where that helps, before less of it is proposed.
    Running pods keep what they hold; a reservation that takes from them is not proposed.
    """
    pod = what_if.pod
    all_resources = (pod.resources, *(container.resources for container in pod.all_containers))
    resource_names = {name for resources in all_resources for name in resources.requests}
    types = sorted(name for name in resource_names if name == MEMORY or names.is_hugepages(name))
    searches = [(CPU, [_fewer_cpus(what_if)])]
    searches += [(type_, [_moved(what_if, type_), _reduced(what_if, type_)]) for type_ in types]
    for resource, alternatives in searches:
        beyond = f"Only the {MAX_RESERVATIONS} smallest changes of the {resource} reservation were tried."
        for reservations in alternatives:
            changes_to_try = ((reservation,) for reservation in reservations)
            if proposals := what_if.first(changes_to_try, limit=MAX_RESERVATIONS, beyond=beyond):
                yield from proposals
                break


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
            for cpu_ids in _shorter_lists(what_if.host.view, settings.cpus.explicit, count):
                yield ReservationChange(CPU, was, now, listed=(settings.cpus.explicit, cpu_ids))
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
        cpus_by_node = [by_node[node][: nodes.count(node)] for node in by_node]
        if sum(map(len, cpus_by_node)) == len(nodes):
            yield explicit & ~bits.union(map(bits.of, cpus_by_node))


def _moved(what_if: WhatIf, type_: str) -> Iterator[ReservationChange]:
    """Yield changes with the same total and some of it on another node."""
    sizes = _reserved_by_node(what_if.host, type_)
    total = sum(sizes.values())
    steps = _steps(what_if, type_)
    candidates = [
        (step, source, target)
        for source, target in product(sizes, sizes)
        if source != target
        for step in {*steps, sizes[source]}
        if 0 < step <= sizes[source]
    ]
    for step, source, target in sorted(candidates):
        shares = (
            NodeReservationChange(source, sizes[source], sizes[source] - step),
            NodeReservationChange(target, sizes[target], sizes[target] + step),
        )
        yield ReservationChange(type_, total, total, shares=shares)


def _reduced(what_if: WhatIf, type_: str) -> Iterator[ReservationChange]:
    """Yield changes to a smaller total: less on one node, or on the whole host if memory is not reserved per node."""
    sizes = _reserved_by_node(what_if.host, type_)
    missing_size = what_if.missing(type_)
    if not sizes:
        amount = what_if.host.settings.reservation.get(type_)
        if amount is not None and 0 < missing_size <= amount.value():
            yield ReservationChange(type_, amount.value(), amount.value() - missing_size)
        return
    total = sum(sizes.values())
    steps = {step for step in _steps(what_if, type_) if step >= missing_size}
    candidates = [(step, node) for node in sizes for step in {*steps, sizes[node]} if 0 < step <= sizes[node]]
    for step, node in sorted(candidates):
        share = NodeReservationChange(node, sizes[node], sizes[node] - step)
        yield ReservationChange(type_, total, total - step, shares=(share,))


def _reserved_by_node(host: Host, type_: str) -> dict[int, int]:
    """Return node → reserved bytes of *type_*; empty where memory is not reserved per node."""
    entries = host.settings.reserved_memory
    if host.settings.memory_policy != MemoryPolicy.STATIC or any(reserved_memory.reservation_problems(entries)):
        return {}
    sizes = {node.id: 0 for node in host.view.nodes}
    for entry in entries:
        if type_ in entry.limits:
            sizes[entry.node] += entry.limits[type_].value()
    return sizes


def _steps(what_if: WhatIf, type_: str) -> set[int]:
    """Return the amounts by which a reservation may have to change, rounded up to whole MiB or huge pages.

    They are what some containers lack on some nodes, and what the whole host lacks.
    """
    unit = _MIB if type_ == MEMORY else names.page_size(type_) or 1
    request_sums = subset_sums(other_amounts(what_if.pod, "", type_), most=_MAX_REQUEST_SUMS)
    free = node_sums(what_if.host, type_, most=_MAX_NODE_SUMS)
    if not (request_sums.complete and free.complete):
        what_if.note_unsearched(f"Not all reservations of {type_} were tried: there are too many.")
    short = {size - free_amount for size, free_amount in product(request_sums.totals, free.totals)}
    return {-(-size // unit) * unit for size in {*short, what_if.missing(type_)} if size > 0}


def smallest_eviction(what_if: WhatIf) -> Iterator[Proposal]:
    """Yield a smallest set of at most three pods without which the pod is admitted, if there is one.

    Sets of one pod are tried first, then two, then three (``align.eviction_search``).
    """
    units = find_units(what_if.host, what_if.pod, what_if.shortage)
    if not units:
        return
    search = EvictionSearch(
        units, lambda uids: what_if.propose(Eviction(uids)), what_if.shortage, max_equivalent=MAX_EQUIVALENT
    )
    # If evicting all is not enough, fewer hardly ever are: admission is nearly monotone.
    all_suffice = search.prove(units) is not None
    tries = None if all_suffice else MAX_EQUIVALENT
    smallest = search.smallest(min(MAX_EVICTED, len(units)), most=1, tries=tries)
    size = smallest.size
    for limited_resource in sorted(search.limited):
        what_if.note_unsearched(f"Not all evictions of {limited_resource} equivalent pods were tried.")
    if smallest.timed_out:
        what_if.note_unsearched(f"Time ran out before all evictions of {size} pod{'s' * (size > 1)} were tried.")
    elif smallest.left_out:
        what_if.note_unsearched("The pod is rejected even without all running pods, so not all evictions were tried.")
    for _, proposal in smallest.sufficient:
        yield _with_alternatives(what_if, proposal, search.groups)
    if len(units) > MAX_EVICTED and all_suffice and not (smallest.timed_out or smallest.sufficient):
        what_if.note_unsearched(f"Evictions of more than {MAX_EVICTED} pods were not tried.")


def _with_alternatives(what_if: WhatIf, proposal: Proposal, groups: Iterable[Sequence[EvictionUnit]]) -> Proposal:
    """Return *proposal* with the pods that could be evicted instead; each was tried."""
    (change,) = proposal.changes
    evicted_uids = change.pods if isinstance(change, Eviction) else ()
    equivalents = {unit.pods[0]: [other.pods[0] for other in group] for group in groups for unit in group}
    alternatives = tuple(
        tuple(
            other
            for other in [uid for uid in equivalents[gone_uid] if uid not in evicted_uids][:_MAX_ALTERNATIVES]
            if _suffices(what_if, Eviction(tuple(other if uid == gone_uid else uid for uid in evicted_uids)))
        )
        for gone_uid in evicted_uids
    )
    return Proposal((Eviction(evicted_uids, alternatives),), proposal.decision)


def _suffices(what_if: WhatIf, change: Eviction) -> bool:
    try:
        return what_if.propose(change) is not None
    except SearchTimeoutError:
        return False
