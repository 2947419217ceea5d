"""What holds of every search for remedies: proposals admit, amounts are the nearest, sets of leaving pods the smallest.

The last two are checked by trying everything, on machines of a few CPUs and a few pages.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations

from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from alignup.align.cpus.options import CpuSettings
from alignup.align.decision import Decision
from alignup.align.explain.amounts import nearest_amounts, requested_amounts
from alignup.align.explain.evictions import smallest_eviction
from alignup.align.explain.remedies import Eviction, Remedies, RequestChange, find_remedies, never
from alignup.align.explain.what_if import WhatIf
from alignup.align.host import Host, Settings
from alignup.align.machine import Device, HugePages, NumaNode
from alignup.align.memory.reserved_memory import ReservedMemory
from alignup.align.quantity import Quantity
from alignup.align.settings import FeatureGates, Policy, Scope, TopologySettings
from alignup.align.synthetic import parse
from alignup.align.workload import Amounts, Container, Pod, Resources
from alignup.align.workload.names import CPU, MEMORY
from alignup.align.workload.validation import accept, validation_problems
from tests.align.hosts import CPU_OPTIONS, GPU, arrivals, hosts
from tests.soundness import check_sound

#: A search is hundreds of decisions, so that fewer are made than of anything else.
SOME, FEW = settings().max_examples // 3, settings().max_examples // 8

PAGE = 4096
HUGE = "hugepages-8Ki"


def settle(host: Host, pod: Pod) -> Decision:
    """Decide, with every plugin answering that it likes the first of its devices best."""
    answers: dict = {}
    while (decision := host.decide(pod, answers)).asks:
        for ask in decision.asks:
            rest = [id_ for id_ in ask.available if id_ not in ask.must_include]
            answers[ask] = (*ask.must_include, *rest)[: ask.size]
    return decision


def after(tries: int) -> Callable[[], bool]:
    """Enough after so many tries."""
    left = iter(range(tries))
    return lambda: next(left, None) is None


@st.composite
def little_hosts(draw: st.DrawFn) -> Host:
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
class Taste:
    """What the pods of a little host ask for."""

    cpus: tuple[str, ...] = ("1", "300m")
    pages: int = 2  #: the most of one container
    huge: int = 0
    gpus: int = 0


#: Something is asked for in plenty, the rest is little, so that one change may be enough.
TASTES = (
    Taste(pages=10),
    Taste(pages=10),
    Taste(cpus=("300m",), pages=14),
    Taste(cpus=("1", "2", "3", "4", "5")),
    Taste(cpus=("300m", "700m", "1500m", "2500m", "3500m")),
    Taste(huge=3),
    Taste(gpus=3),
    Taste(cpus=("1", "2", "3"), pages=6, huge=1, gpus=1),
)
MODEST = Taste(cpus=("1", "1", "2", "300m"), pages=4, huge=1, gpus=1)
SMALL = Taste(cpus=("1",), pages=2, gpus=1)


def resources(taste: Taste) -> st.SearchStrategy[Resources]:
    """What a container asks for, requests and limits alike."""
    optional = {}
    if taste.huge:
        optional[HUGE] = st.integers(1, taste.huge).map(lambda count: Quantity.of(2 * count * PAGE))
    if taste.gpus:
        optional[GPU] = st.integers(1, taste.gpus).map(Quantity.of)
    required = {
        CPU: st.sampled_from(taste.cpus).map(Quantity.parse),
        MEMORY: st.integers(1, taste.pages).map(lambda count: Quantity.of(count * PAGE)),
    }
    return st.fixed_dictionaries(required, optional=optional).map(lambda amounts: Resources(amounts, amounts))


@st.composite
def little_pods(draw: st.DrawFn, uid: str, taste: Taste, *, most: int = 2) -> Pod:
    """A Guaranteed pod of a few containers, some of which run before the others, with resources of its own or not."""
    asks = resources(taste)
    init = tuple(Container(f"init-{n}", draw(asks), draw(st.booleans())) for n in range(draw(st.integers(0, most))))
    main = tuple(Container(f"main-{n}", draw(asks)) for n in range(draw(st.integers(1, most))))
    pod = Pod(name=uid, uid=uid, init=init, containers=main)
    if draw(st.integers(0, 3)) == 0:
        total = draw(resources(Taste(cpus=("2", "3", "4", "5500m"), pages=2 * taste.pages)))
        fuller = replace(pod, resources=total)
        pod = pod if list(validation_problems(fuller)) else fuller
    return accept(pod)


@st.composite
def busy_hosts(draw: st.DrawFn, *, least: int = 0, most: int = 4, taste: Taste = MODEST) -> Host:
    """A little host where some pods came."""
    host = draw(little_hosts())
    for number in range(draw(st.integers(least, most))):
        host.admit(draw(little_pods(f"u{number}", taste, most=1)))
    return host


newcomers = st.sampled_from(TASTES).flatmap(lambda taste: little_pods("new", taste))


@settings(max_examples=SOME)
@given(hosts(), st.data())
def test_every_proposal_admits_the_pod(host, data):
    """On any host: applied to it and the pod, what is proposed has the pod admitted, and nothing given has changed."""
    for number in range(data.draw(st.integers(0, 5))):
        settled = settle(host, data.draw(arrivals(f"u{number}")))
        if settled.admitted:
            host.apply(settled)
    pod = data.draw(arrivals("new"))
    assume(not settle(host, pod).admitted)
    before = host.ledger

    found = find_remedies(host, pod, enough=after(400))

    assert host.ledger is before
    check_proposals(host, pod, found)


@settings(max_examples=SOME)
@given(busy_hosts(), newcomers)
def test_every_proposal_admits_the_pod_on_a_little_host(host, pod):
    assume(not settle(host, pod).admitted)

    check_proposals(host, pod, find_remedies(host, pod))


def check_proposals(host: Host, pod: Pod, found: Remedies) -> None:
    known = set(validation_problems(pod))
    for proposal in found.proposals:
        changed, other = proposal.apply(host, pod)
        for change in proposal.changes:
            event(type(change).__name__)
        decision = settle(changed, other)
        assert decision.admitted, proposal.changes
        assert decision == proposal.decision
        assert known.issuperset(validation_problems(other)), "the API server would refuse the pod"
        assert other.computed_qos is pod.computed_qos
        changed.apply(decision)
        check_sound(changed, str(proposal.changes))
        assert changed.ledger is not host.ledger


@settings(max_examples=SOME)
@given(busy_hosts(most=3), newcomers)
def test_amounts_are_the_nearest_that_are_admitted(host, pod):
    """Of all amounts of a resource for one container: the largest admitted below the request, the smallest above."""
    assume(not settle(host, pod).admitted)

    trials = WhatIf(host, pod, answers={}, enough=never)
    changes = [one.changes[0] for question in requested_amounts(host, pod) for one in nearest_amounts(trials, question)]

    assert not trials.unsearched
    proposed: dict = {}
    for change in changes:
        assert isinstance(change, RequestChange)
        proposed.setdefault((change.container, change.resource), set()).add(change.now)
    for container, resources in parts(pod):
        for resource, amount in resources.limits.items():
            if resource == CPU and not has_own_cpus(host, pod, container):
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
    """Of a share of the other CPUs the most that is admitted, to the thousandth, or nothing at all."""
    was = dict(parts(pod))[container].limits[CPU].milli()
    now = max(proposed, default=0)
    more = now + 1 if (now + 1) % 1000 or host.settings.cpus.policy != "static" else now + 2
    event(f"share: {len(proposed)}")
    assert len(proposed) <= 1
    assert not proposed or admits(host, pod, container, {CPU: Quantity(now, -3)})
    assert more >= was or not admits(host, pod, container, {CPU: Quantity(more, -3)})


def parts(pod: Pod) -> Iterator[tuple[str | None, Resources]]:
    yield from ((one.name, one.resources) for one in pod.everyone)
    yield None, pod.resources


def has_own_cpus(host: Host, pod: Pod, container: str | None) -> bool:
    rules = host.providers[1].rules  # type: ignore[attr-defined]
    one = next((one for one in pod.everyone if one.name == container), None)
    return rules.exclusive_cpus(pod, one) > 0 and (one is not None or host.rules.pod_level)


def range_of(host: Host, resource: str) -> range:
    """All amounts the machine could have, none of a device or a huge page included."""
    if resource == CPU:
        return range(1, host.view.num_cpus + 1)
    if resource == MEMORY:
        return range(PAGE, sum(node.memory or 0 for node in host.view.nodes) + 1, PAGE)
    if resource == HUGE:
        return range(0, sum(node.hugepages[0].bytes for node in host.view.nodes) + 1, 2 * PAGE)
    return range(sum(device.resource == resource for device in host.machine.devices) + 1)


def admits(host: Host, pod: Pod, container: str | None, amounts: Amounts) -> bool:
    """Whether *pod* is admitted when one container, or the pod as a whole, asks for other amounts."""

    def other(resources: Resources) -> Resources:
        together = {**resources.limits, **amounts}
        together = {name: amount for name, amount in together.items() if not amount.is_zero}
        return Resources(together, together)

    if container is None:
        changed = replace(pod, resources=other(pod.resources))
    else:
        init, main = (
            tuple(replace(one, resources=other(one.resources)) if one.name == container else one for one in group)
            for group in (pod.init, pod.containers)
        )
        changed = replace(pod, init=init, containers=main)
    return settle(host, changed).admitted and not list(validation_problems(changed))


@settings(max_examples=SOME)
@given(busy_hosts(least=4, most=8, taste=SMALL), newcomers)
def test_no_smaller_set_of_leaving_pods_would_do(host, pod):
    """Of all sets of running pods, whatever they hold, none that is smaller admits the pod."""
    assume(host.ledger.pods and not settle(host, pod).admitted)

    trials = WhatIf(host, pod, answers={}, enough=never)
    leaving = [one for proposal in smallest_eviction(trials) for one in proposal.changes if isinstance(one, Eviction)]

    size = next((len(uids) for uids in enough_gone(host, pod)), None)
    event(f"{size} pods")
    assert [len(one.pods) for one in leaving] == ([] if size is None else [size])
    for one in leaving:
        for place, others in enumerate(one.instead_of):
            for other in others:
                swapped = (*one.pods[:place], other, *one.pods[place + 1 :])
                assert settle(without(host, swapped), pod).admitted


def enough_gone(host: Host, pod: Pod) -> Iterator[tuple[str, ...]]:
    """The sets of up to three running pods without whom *pod* is admitted, the smallest first."""
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
def test_the_same_question_has_the_same_answer(host, pod):
    again = Host(host.machine, host.settings, ledger=host.ledger)

    assert find_remedies(host, pod) == find_remedies(again, pod)


@settings(max_examples=FEW)
@given(busy_hosts(), newcomers, st.integers(0, 40))
def test_who_has_no_time_is_told_what_was_not_searched(host, pod, tries):
    """With few tries: no more is found than with all of them, and what is missing is spoken of."""
    assume(not settle(host, pod).admitted)

    hurried = find_remedies(host, pod, enough=after(tries))

    everything = find_remedies(host, pod)
    missed = [one.changes for one in everything.proposals if one not in hurried.proposals]
    assert not missed or hurried.unsearched
