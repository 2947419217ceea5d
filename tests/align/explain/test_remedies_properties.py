"""Properties of every search for remedies: proposals admit, amounts are the nearest, evictions the smallest.

The last two are checked exhaustively, on machines with a few CPUs and a few pages.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations

from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from alignup.align.cpus.options import CpuSettings
from alignup.align.decision import Decision
from alignup.align.explain.changes import Eviction, RequestChange, WhatIf
from alignup.align.explain.remedies import (
    Remedies,
    find_remedies,
    nearest_amounts,
    requested_amounts,
    smallest_eviction,
)
from alignup.align.host import Host, Settings
from alignup.align.machine import Device, HugePages, NumaNode
from alignup.align.memory.reserved_memory import ReservedMemory
from alignup.align.quantity import Quantity
from alignup.align.settings import FeatureGates, Policy, Scope, TopologySettings
from alignup.align.workload import Amounts, Container, Pod, Resources
from alignup.align.workload.names import CPU, MEMORY
from alignup.align.workload.validation import accept, validation_problems
from alignup.machines.synthetic import parse
from tests.align.hosts import CPU_OPTIONS, GPU, after, arrivals, hosts
from tests.effort import examples
from tests.soundness import check_sound

#: A search makes hundreds of decisions, so these tests use fewer examples.
SOME, FEW = examples(33), examples(12)

PAGE = 4096
HUGE = "hugepages-8Ki"


def settle(host: Host, pod: Pod) -> Decision:
    """Decide, with every device plugin preferring its lowest devices."""
    answers: dict = {}
    while (decision := host.decide(pod, answers)).preference_requests:
        for ask in decision.preference_requests:
            rest = [id_ for id_ in ask.available if id_ not in ask.must_include]
            answers[ask] = (*ask.must_include, *rest)[: ask.size]
    return decision


@st.composite
def small_hosts(draw: st.DrawFn) -> Host:
    """Two or three nodes of a few CPUs, pages and devices, under any policy, scope and options."""
    shape = draw(
        st.sampled_from(["pack:2 numa:1 core:3 pu:1", "pack:3 numa:1 core:2 pu:1", "pack:2 numa:1 core:3 pu:2"])
    )
    machine = parse(shape)
    nodes = []
    for node in machine.nodes:
        pages, huge = draw(st.integers(2, 9)), draw(st.integers(0, 2))
        nodes.append(NumaNode(node.id, (pages + 2 * huge) * PAGE, (HugePages(2 * PAGE, huge),)))
    places = draw(st.lists(st.sampled_from([*(1 << node.id for node in nodes), None]), max_size=4))
    machine = replace(
        machine, nodes=tuple(nodes), devices=tuple(Device(GPU, f"gpu-{n}", nodes=p) for n, p in enumerate(places))
    )
    kept = draw(st.sampled_from([node.id for node in nodes]))
    reservation = {CPU: Quantity.parse("1"), MEMORY: Quantity.of(PAGE)}
    return Host(
        machine,
        Settings(
            topology=TopologySettings(
                policy=draw(st.sampled_from((*Policy, Policy.SINGLE_NUMA_NODE, Policy.RESTRICTED))),
                scope=draw(st.sampled_from(Scope)),
            ),
            cpus=CpuSettings(
                policy="static",
                options=dict.fromkeys(draw(st.sampled_from(CPU_OPTIONS[:-2])), "true"),
                reservation=reservation[CPU],
            ),
            memory_policy=draw(st.sampled_from(("Static", "Static", "Static", "None"))),
            reserved_memory=(ReservedMemory(kept, {MEMORY: reservation[MEMORY]}),),
            reservation=reservation,
            gates=FeatureGates({"PodLevelResourceManagers": draw(st.booleans())}),
            fit_check=draw(st.booleans()),
        ),
    )


@dataclass(frozen=True)
class RequestProfile:
    """What the pods of a small host request."""

    cpus: tuple[str, ...] = ("1", "300m")
    pages: int = 2  #: the most of one container
    huge: int = 0
    gpus: int = 0


#: One resource is requested in large amounts, the others in small ones, so that one change may suffice.
PROFILES = (
    RequestProfile(pages=10),
    RequestProfile(pages=10),
    RequestProfile(cpus=("300m",), pages=14),
    RequestProfile(cpus=("1", "2", "3", "4", "5")),
    RequestProfile(cpus=("300m", "700m", "1500m", "2500m", "3500m")),
    RequestProfile(huge=3),
    RequestProfile(gpus=3),
    RequestProfile(cpus=("1", "2", "3"), pages=6, huge=1, gpus=1),
)
MODEST = RequestProfile(cpus=("1", "1", "2", "300m"), pages=4, huge=1, gpus=1)
SMALL = RequestProfile(cpus=("1",), pages=2, gpus=1)


def resources(profile: RequestProfile) -> st.SearchStrategy[Resources]:
    """The requests of a container, equal to its limits."""
    optional = {}
    if profile.huge:
        optional[HUGE] = st.integers(1, profile.huge).map(lambda count: Quantity.of(2 * count * PAGE))
    if profile.gpus:
        optional[GPU] = st.integers(1, profile.gpus).map(Quantity.of)
    required = {
        CPU: st.sampled_from(profile.cpus).map(Quantity.parse),
        MEMORY: st.integers(1, profile.pages).map(lambda count: Quantity.of(count * PAGE)),
    }
    return st.fixed_dictionaries(required, optional=optional).map(lambda amounts: Resources(amounts, amounts))


@st.composite
def small_pods(draw: st.DrawFn, uid: str, profile: RequestProfile, *, most: int = 2) -> Pod:
    """A Guaranteed pod with a few containers and init containers, with or without pod-level resources."""
    asks = resources(profile)
    init = tuple(Container(f"init-{n}", draw(asks), draw(st.booleans())) for n in range(draw(st.integers(0, most))))
    main = tuple(Container(f"main-{n}", draw(asks)) for n in range(draw(st.integers(1, most))))
    pod = Pod(name=uid, uid=uid, init=init, containers=main)
    if draw(st.integers(0, 3)) == 0:
        total = draw(resources(RequestProfile(cpus=("2", "3", "4", "5500m"), pages=2 * profile.pages)))
        fuller = replace(pod, resources=total)
        pod = pod if list(validation_problems(fuller)) else fuller
    return accept(pod)


@st.composite
def busy_hosts(draw: st.DrawFn, *, least: int = 0, most: int = 4, profile: RequestProfile = MODEST) -> Host:
    """A small host with some pods admitted."""
    host = draw(small_hosts())
    for number in range(draw(st.integers(least, most))):
        host.admit(draw(small_pods(f"u{number}", profile, most=1)))
    return host


newcomers = st.sampled_from(PROFILES).flatmap(lambda profile: small_pods("new", profile))


@settings(max_examples=SOME)
@given(hosts(), st.data())
def test_every_proposal_admits_the_pod(host, data):
    """On any host the applied proposal admits the pod, and the original host stays as it was."""
    for number in range(data.draw(st.integers(0, 5))):
        settled = settle(host, data.draw(arrivals(f"u{number}")))
        if settled.admitted:
            host.apply(settled)
    pod = data.draw(arrivals("new"))
    assume(not settle(host, pod).admitted)
    before = host.ledger

    remedies = find_remedies(host, pod, should_stop=after(400))

    assert host.ledger is before
    check_proposals(host, pod, remedies)


@settings(max_examples=SOME)
@given(busy_hosts(), newcomers)
def test_every_proposal_admits_the_pod_on_a_small_host(host, pod):
    assume(not settle(host, pod).admitted)

    check_proposals(host, pod, find_remedies(host, pod))


def check_proposals(host: Host, pod: Pod, remedies: Remedies) -> None:
    known = set(validation_problems(pod))
    for proposal in remedies.proposals:
        changed, other = proposal.apply(host, pod)
        for change in proposal.changes:
            event(type(change).__name__)
        decision = settle(changed, other)
        assert decision.admitted, proposal.changes
        assert decision == proposal.decision
        assert known.issuperset(validation_problems(other)), "the API server would reject the pod"
        assert other.computed_qos is pod.computed_qos
        changed.apply(decision)
        check_sound(changed, str(proposal.changes))
        assert changed.ledger is not host.ledger


@settings(max_examples=SOME)
@given(busy_hosts(most=3), newcomers)
def test_amounts_are_the_nearest_that_are_admitted(host, pod):
    """Of all amounts of a resource for one container: the largest admitted below the request, the smallest above."""
    assume(not settle(host, pod).admitted)

    what_if = WhatIf(host, pod, answers={}, should_stop=lambda: False)
    changes = [
        proposal.changes[0]
        for question in requested_amounts(host, pod)
        for proposal in nearest_amounts(what_if, question)
    ]

    assert not what_if.unsearched
    proposed: dict = {}
    for change in changes:
        assert isinstance(change, RequestChange)
        proposed.setdefault((change.container, change.resource), set()).add(change.now)
    for container, resources in parts(pod):
        for resource, amount in resources.limits.items():
            if resource == CPU and not has_exclusive_cpus(host, pod, container):
                check_share(host, pod, container, proposed.get((container, CPU), set()))
                continue
            admitted = [
                now for now in range_of(host, resource) if admits(host, pod, container, {resource: Quantity.of(now)})
            ]
            below = max((now for now in admitted if now < amount.value()), default=None)
            above = min((now for now in admitted if now > amount.value()), default=None)
            expected = {below, above} - {None}
            event(f"{resource}: {len(expected)}")
            assert proposed.get((container, resource), set()) == expected, (container, resource)


def check_share(host: Host, pod: Pod, container: str | None, proposed: set[int]) -> None:
    """The largest admitted share of the shared CPUs, to the milli-CPU, or nothing."""
    was = dict(parts(pod))[container].limits[CPU].milli()
    now = max(proposed, default=0)
    more = now + 1 if (now + 1) % 1000 or host.settings.cpus.policy != "static" else now + 2
    event(f"share: {len(proposed)}")
    assert len(proposed) <= 1
    assert not proposed or admits(host, pod, container, {CPU: Quantity(now, -3)})
    assert more >= was or not admits(host, pod, container, {CPU: Quantity(more, -3)})


def parts(pod: Pod) -> Iterator[tuple[str | None, Resources]]:
    yield from ((container.name, container.resources) for container in pod.all_containers)
    yield None, pod.resources


def has_exclusive_cpus(host: Host, pod: Pod, container: str | None) -> bool:
    rules = host.cpus
    chosen = next((chosen for chosen in pod.all_containers if chosen.name == container), None)
    return rules.exclusive_cpus(pod, chosen) > 0 and (chosen is not None or host.rules.pod_level)


def range_of(host: Host, resource: str) -> range:
    """All possible amounts; 0 only for devices and huge pages."""
    if resource == CPU:
        return range(1, host.view.num_cpus + 1)
    if resource == MEMORY:
        return range(PAGE, sum(node.memory or 0 for node in host.view.nodes) + 1, PAGE)
    if resource == HUGE:
        return range(0, sum(node.hugepages[0].bytes for node in host.view.nodes) + 1, 2 * PAGE)
    return range(sum(device.resource == resource for device in host.machine.devices) + 1)


def admits(host: Host, pod: Pod, container: str | None, amounts: Amounts) -> bool:
    """Whether *pod* is admitted when one container, or the pod, requests other amounts."""

    def other(resources: Resources) -> Resources:
        together = {**resources.limits, **amounts}
        together = {name: amount for name, amount in together.items() if not amount.is_zero}
        return Resources(together, together)

    if container is None:
        changed = replace(pod, resources=other(pod.resources))
    else:
        init, main = (
            tuple(
                replace(candidate, resources=other(candidate.resources)) if candidate.name == container else candidate
                for candidate in group
            )
            for group in (pod.init, pod.containers)
        )
        changed = replace(pod, init=init, containers=main)
    return settle(host, changed).admitted and not list(validation_problems(changed))


@settings(max_examples=SOME)
@given(busy_hosts(least=4, most=8, profile=SMALL), newcomers)
def test_no_smaller_eviction_suffices(host, pod):
    """No smaller set of running pods admits the pod by evictions."""
    assume(host.ledger.pods and not settle(host, pod).admitted)

    what_if = WhatIf(host, pod, answers={}, should_stop=lambda: False)
    evictions = [
        eviction
        for proposal in smallest_eviction(what_if)
        for eviction in proposal.changes
        if isinstance(eviction, Eviction)
    ]

    size = next((len(uids) for uids in sufficient_sets(host, pod)), None)
    event(f"{size} pods")
    assert [len(eviction.pods) for eviction in evictions] == ([] if size is None else [size])
    for eviction in evictions:
        for place, others in enumerate(eviction.alternatives):
            for other in others:
                swapped = (*eviction.pods[:place], other, *eviction.pods[place + 1 :])
                assert settle(without(host, swapped), pod).admitted


def sufficient_sets(host: Host, pod: Pod) -> Iterator[tuple[str, ...]]:
    """The sets of up to three running pods without which *pod* is admitted, smallest first."""
    for size in (1, 2, 3):
        for uids in combinations(host.ledger.pods, size):
            if settle(without(host, uids), pod).admitted:
                yield uids


def without(host: Host, uids: tuple[str, ...]) -> Host:
    rest = Host(host.machine, host.settings, ledger=host.ledger)
    for uid in uids:
        rest.release(uid)
    return rest


@settings(max_examples=FEW)
@given(busy_hosts(), newcomers)
def test_a_search_is_deterministic(host, pod):
    again = Host(host.machine, host.settings, ledger=host.ledger)

    assert find_remedies(host, pod) == find_remedies(again, pod)


@settings(max_examples=FEW)
@given(busy_hosts(), newcomers, st.integers(0, 40))
def test_a_short_search_lists_what_it_skipped(host, pod, tries):
    """With few tries it finds no more than a full search, and notes what it missed."""
    assume(not settle(host, pod).admitted)

    short = find_remedies(host, pod, should_stop=after(tries))

    everything = find_remedies(host, pod)
    missed = [proposal.changes for proposal in everything.proposals if proposal not in short.proposals]
    assert not missed or short.unsearched
