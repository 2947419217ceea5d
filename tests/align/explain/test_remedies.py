"""What would admit a refused pod, on hosts small enough to see it."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from alignup.align import bits
from alignup.align.cpus.options import CpuSettings
from alignup.align.errors import ProviderError, StateError, WorkLimitError
from alignup.align.explain.migrate import migrate_host
from alignup.align.explain.remedies import (
    Change,
    Eviction,
    NodeReservationChange,
    Remedies,
    RequestChange,
    ReservationChange,
    SettingChange,
    Unit,
    find_remedies,
)
from alignup.align.host import Host
from alignup.align.machine import Device, HugePages, NumaNode
from alignup.align.memory.reserved_memory import ReservedMemory
from alignup.align.provider import Provider
from alignup.align.quantity import Quantity
from alignup.align.settings import FeatureGates, Policy, Scope
from alignup.align.workload import Pod, Resources
from alignup.align.workload.demand import container_devices
from alignup.align.workload.validation import accept
from tests.align.hosts import GIB, GPU, NIC, admit, host, pod
from tests.strategies_pods import amounts, container, guaranteed

MIB = 1 << 20
SMT = "pack:2 numa:1 core:4 pu:2"
FULL_CORES = CpuSettings(policy="static", options={"full-pcpus-only": "true"}, reservation=Quantity.parse("2"))

POLICY = "topologyManagerPolicy"
FULL = "cpuManagerPolicyOptions.full-pcpus-only"


def proposed(found: Remedies) -> list[tuple[Change, ...]]:
    return [proposal.changes for proposal in found.proposals]


def crowded(one: Host, *pods: Pod) -> Host:
    """*one*, when all *pods* have come."""
    for each in pods:
        assert admit(one, accept(each)).admitted
    return one


def asking(asked: dict[str, str], uid: str = "new") -> Pod:
    """A pod that asks for resources whose names are no Python names."""
    return pod(uid, None, **asked)


def cpus(now: int, was: int) -> tuple[RequestChange]:
    return (RequestChange("app", "cpu", was, now, Unit.CPUS),)


def memory(now: int, was: int) -> tuple[RequestChange]:
    return (RequestChange("app", "memory", was, now, Unit.BYTES),)


def policy(now: Policy, was: Policy = Policy.SINGLE_NUMA_NODE) -> SettingChange:
    return SettingChange(POLICY, was, now)


SEAT = "example.com/seat"


class Seats(Provider[Mapping[str, int]]):
    """Three seats on a host, wherever; the ledger says how many each pod has."""

    name = "seat"

    def idle(self) -> Mapping[str, int]:
        return {}

    def hints(self, book, pod, container):
        return None

    def allocate(self, book, pod, container, *, affinity):
        count = 0 if container is None else container_devices(container, [SEAT]).get(SEAT, 0)
        if sum(book.values()) + count > 3:
            raise ProviderError(f"{count} seats are too many")
        return {**book, pod.uid: book.get(pod.uid, 0) + count}

    def release(self, book, uid):
        return {pod: count for pod, count in book.items() if pod != uid}

    def offered(self, book, uid):
        return {SEAT: 3}

    def given(self, book, uid, container):
        return {SEAT: str(book[uid])} if book.get(uid) else {}


class HardSeats(Seats):
    """To give three of them takes too much work."""

    def allocate(self, book, pod, container, *, affinity):
        if container_devices(container, [SEAT]) == {SEAT: 3}:
            raise WorkLimitError("three seats are hard", sources=[self.name])
        return super().allocate(book, pod, container, affinity=affinity)


def test_nothing_is_proposed_for_a_pod_that_is_admitted():
    assert find_remedies(host(), accept(pod())) == Remedies()


def test_nothing_is_proposed_for_a_pod_of_another_system():
    foreign = replace(pod(), os="windows")

    assert not host().decide(foreign).admitted
    assert find_remedies(host(), foreign) == Remedies()


@pytest.mark.parametrize(
    ("one", "wanted", "expected"),
    [
        pytest.param(
            host(memory=False),
            pod(cpu="6"),
            [cpus(4, was=6), (policy(Policy.RESTRICTED),)],
            id="more CPUs than a node has: what a node has, or a policy that lets it have two",
        ),
        pytest.param(
            host(shape=SMT, cpus=FULL_CORES),
            pod(cpu="3"),
            [cpus(2, was=3), cpus(4, was=3), (SettingChange(FULL, "true", "false"),)],
            id="half a core: one less, one more, or single threads allowed",
        ),
        pytest.param(
            host(shape=SMT, cpus=FULL_CORES, memory=False),
            pod(cpu="9"),
            [cpus(8, was=9), (policy(Policy.RESTRICTED), SettingChange(FULL, "true", "false"))],
            id="half a core too much for a node: two settings where none does alone",
        ),
        pytest.param(
            host(),
            pod(gpu="2"),
            [(RequestChange("app", GPU, 2, 1, Unit.PIECES),), (policy(Policy.BEST_EFFORT),)],
            id="two GPUs of which each node has one: the strictest policy that takes both",
        ),
        pytest.param(
            host(),
            asking({"cpu": "1", NIC: "3"}),
            [(RequestChange("app", NIC, 3, 1, Unit.PIECES),)],
            id="more devices than there are: settings do not help",
        ),
        pytest.param(
            host(),
            asking({"hugepages-2Mi": "2Mi"}),
            [(RequestChange("app", "hugepages-2Mi", 2 * MIB, 0, Unit.BYTES),)],
            id="huge pages on a machine without: none of them",
        ),
        pytest.param(
            host(Policy.BEST_EFFORT, memory=False),
            Pod(name="b", uid="b", containers=(container("app", {"cpu": "7500m"}),)),
            [(RequestChange("app", "cpu", 7500, 7000, Unit.MILLI_CPUS),), (ReservationChange("cpu", 1000, 500),)],
            id="a share of the CPUs, and a little too much: less of it, or less for the system",
        ),
        pytest.param(
            host(Policy.BEST_EFFORT, memory=False, cpus=CpuSettings()),
            Pod(name="b", uid="b", containers=(container("app", {"cpu": "7500m"}),)),
            [(RequestChange("app", "cpu", 7500, 7000, Unit.MILLI_CPUS),), (ReservationChange("cpu", 1000, 500),)],
            id="the same where nobody has CPUs of its own",
        ),
        pytest.param(
            host(Policy.NONE, memory=False),
            pod(cpu="500m", memory="32Gi"),
            [memory(32 * GIB - 64 * MIB, was=32 * GIB), (ReservationChange("memory", 64 * MIB, 0),)],
            id="all memory there is, where no node counts: a little less, or nothing for the system",
        ),
        pytest.param(
            host(Policy.NONE, memory=False, max_pods=0), pod(), [], id="no pods at all on this host: nothing helps"
        ),
    ],
)
def test_what_is_proposed_on_an_empty_host(one, wanted, expected):
    found = find_remedies(one, accept(wanted))

    assert proposed(found) == expected
    assert found.unsearched == ()


def test_memory_in_the_way_is_moved_before_less_is_kept_back():
    """64 MiB for the system make node 0 too small, and node 1 is taken."""
    one = crowded(host(), pod("a", cpu="4"))

    found = find_remedies(one, accept(pod("b", cpu="1", memory="16Gi")))

    assert proposed(found) == [
        memory(16 * GIB - 64 * MIB, was=16 * GIB),
        (Eviction(("a",), ((),)),),
        (
            ReservationChange(
                "memory",
                64 * MIB,
                64 * MIB,
                shares=(NodeReservationChange(0, 64 * MIB, 0), NodeReservationChange(1, 0, 64 * MIB)),
            ),
        ),
    ]
    changed, other = found.proposals[-1].apply(one, accept(pod("b", cpu="1", memory="16Gi")))
    assert changed.settings.reserved_memory == (ReservedMemory(1, {"memory": Quantity.parse("64Mi")}),)
    assert changed.admit(other).placements[0].given["memory"] == {"memory": f"0={16 * GIB}"}
    assert changed.ledger.books["memory"].blocks("a", "app") == one.ledger.books["memory"].blocks("a", "app")


def test_less_is_kept_back_where_moving_does_not_help():
    """Node 1 is full, so what is kept back on node 0 cannot go there."""
    reservation = amounts({"cpu": "1", "memory": "2Gi"})
    entries = (ReservedMemory(0, amounts({"memory": "1Gi"})), ReservedMemory(1, amounts({"memory": "1Gi"})))
    one = host(reservation=reservation, reserved_memory=entries)
    crowded(one, pod("a", cpu="1", memory="14Gi"), pod("b", cpu="1", memory="15Gi"))

    found = find_remedies(one, accept(pod("c", cpu="1", memory="1536Mi")))

    (change,) = proposed(found)[-1]
    assert change == ReservationChange(
        "memory", 2 * GIB, 2 * GIB - 512 * MIB, shares=(NodeReservationChange(0, GIB, 512 * MIB),)
    )


def test_nothing_is_moved_to_a_node_without_memory():
    plain = host()
    machine = replace(plain.machine, nodes=(NumaNode(0, 16 * GIB), NumaNode(1, 0)))
    one = Host(machine, plain.settings)

    found = find_remedies(one, accept(pod("b", cpu="1", memory="16Gi")))

    assert proposed(found) == [memory(16 * GIB - 64 * MIB, was=16 * GIB)]


def test_fewer_cpus_are_reserved_by_number():
    reserved = Quantity.parse("3")
    one = host(
        cpus=CpuSettings(policy="static", reservation=reserved),
        reservation={**amounts({"memory": "64Mi"}), "cpu": reserved},
    )
    crowded(one, pod("a", cpu="3"))

    found = find_remedies(one, accept(pod("b", cpu="2")))

    assert (ReservationChange("cpu", 3000, 2000),) in proposed(found)


def test_fewer_cpus_are_reserved_by_a_list_that_says_which():
    """Another pod has a CPU of node 0, so four are only to be had on node 1."""
    listed = bits.of([0, 4, 5])
    reserved = Quantity.parse("3")
    one = host(
        cpus=CpuSettings(policy="static", reservation=reserved, explicit=listed),
        reservation={**amounts({"memory": "64Mi"}), "cpu": reserved},
    )
    crowded(one, pod("a", cpu="1"))
    wanted = accept(pod("b", cpu="4"))

    found = find_remedies(one, wanted)

    change = ReservationChange("cpu", 3000, 1000, listed=(listed, bits.of([0])))
    assert proposed(found)[-1] == (change,)
    changed, _ = found.proposals[-1].apply(one, wanted)
    assert changed.settings.cpus.explicit == bits.of([0])


def test_of_pods_that_hold_the_same_one_is_proposed_and_the_others_named():
    one = crowded(host(memory=False), *(pod(uid, cpu="2") for uid in "abc"))

    found = find_remedies(one, accept(pod("new", cpu="2")))

    leaving = next(change for (change,) in proposed(found) if isinstance(change, Eviction))
    assert leaving == Eviction(("c",), (("b",),))


def test_the_least_important_pod_is_the_one_to_leave():
    important = replace(pod("a", cpu="2"), priority=1000)
    one = crowded(host(memory=False, max_pods=2), pod("b", cpu="2"), important)

    found = find_remedies(one, accept(pod("new", cpu="1")))

    assert proposed(found) == [(Eviction(("b",), ((),)),)]


def test_pods_leave_in_pairs_only_where_one_is_not_enough():
    one = crowded(host(), *(pod(uid, cpu="1", memory="7Gi") for uid in "abcd"))

    found = find_remedies(one, accept(pod("new", cpu="1", memory="15Gi")))

    (leaving,) = [change for (change,) in proposed(found) if isinstance(change, Eviction)]
    held = one.ledger.books["memory"]
    assert len(leaving.pods) == 2
    assert len({held.blocks(uid, "app")[0].nodes for uid in leaving.pods}) == 1


def test_a_pod_that_chooses_for_itself_is_proposed_another_choice():
    one = host(Policy.RESTRICTED, own_policy=True, memory=False)
    wanted = accept(pod(cpu="6", annotations={"topology.alignup.dev/policy": "single-numa-node"}))

    found = find_remedies(one, wanted)

    field = "metadata.annotations[topology.alignup.dev/policy]"
    assert (SettingChange(field, "single-numa-node", "restricted"),) in proposed(found)
    assert not any(change.field == POLICY for (change,) in proposed(found) if isinstance(change, SettingChange))


def test_the_other_scope_is_proposed():
    """One by one they leave a CPU on node 0 and two on node 1 for the last; as a whole they need both nodes anyway."""
    one = host(Policy.RESTRICTED, memory=False)
    sizes = {"first": "2", "second": "2", "third": "3"}
    three = tuple(guaranteed(name, {"cpu": count, "memory": "1Gi"}) for name, count in sizes.items())

    found = find_remedies(one, accept(Pod(name="b", uid="b", containers=three)))

    assert (SettingChange("topologyManagerScope", "container", "pod"),) in proposed(found)


def test_the_resources_of_the_pod_as_a_whole_are_asked_for_in_another_amount():
    """Its containers need one CPU of the six: it can do with four, not with less than they ask for."""
    gates = FeatureGates({"PodLevelResourceManagers": True})
    own = amounts({"cpu": "6", "memory": "2Gi"})
    whole = Pod(
        name="b",
        uid="b",
        containers=(guaranteed("app", {"cpu": "1", "memory": "1Gi"}), container("share")),
        resources=Resources(own, own),
    )

    found = find_remedies(host(scope=Scope.POD, gates=gates), accept(whole))

    assert proposed(found)[0] == (RequestChange(None, "cpu", 6, 4, Unit.CPUS),)


def test_a_plugin_that_wants_to_be_asked_is_taken_to_prefer_the_lowest():
    """Of three GPUs on each node it is asked which two to take."""
    plain = host(preferred_allocation=frozenset({GPU}))
    devices = tuple(Device(GPU, f"gpu-{number}", nodes=1 << number % 2) for number in range(6))
    one = Host(replace(plain.machine, devices=devices), plain.settings)
    wanted = accept(pod("b", cpu="5", gpu="2"))

    found = find_remedies(one, wanted)

    assert proposed(found)[0] == cpus(4, was=5)
    assert found.proposals[0].decision.placements[0].given["device"] == {GPU: "gpu-1,gpu-3"}
    assert one.decide(accept(pod("b", cpu="4", gpu="2"))).asks


def test_answers_of_plugins_are_heeded():
    plain = host(preferred_allocation=frozenset({GPU}))
    devices = tuple(Device(GPU, f"gpu-{number}", nodes=1 << number % 2) for number in range(6))
    one = Host(replace(plain.machine, devices=devices), plain.settings)
    (ask,) = one.decide(accept(pod("b", cpu="4", gpu="2"))).asks

    found = find_remedies(one, accept(pod("b", cpu="5", gpu="2")), answers={ask: ("gpu-3", "gpu-5")})

    assert found.proposals[0].decision.placements[0].given["device"] == {GPU: "gpu-3,gpu-5"}


def test_huge_pages_are_counted_in_their_own_size():
    shape = "pack:2 numa:1 core:4 pu:1"
    idle = host(shape=shape)
    pages = (HugePages(2 * MIB, 8),)
    machine = replace(idle.machine, nodes=tuple(NumaNode(node.id, 16 * GIB, pages) for node in idle.machine.nodes))
    one = Host(machine, idle.settings)

    found = find_remedies(one, accept(asking({"hugepages-2Mi": "18Mi"})))

    assert proposed(found)[0] == (RequestChange("app", "hugepages-2Mi", 18 * MIB, 16 * MIB, Unit.BYTES),)


def test_a_request_below_its_limit_moves_alone():
    burstable = Pod(name="b", uid="b", containers=(container("app", {"cpu": "8"}, {"cpu": "9"}),))
    one = host(Policy.NONE, memory=False)

    proposal = find_remedies(one, accept(burstable)).proposals[0]

    _, other = proposal.apply(one, accept(burstable))
    assert {name: str(amount) for name, amount in other.containers[0].resources.requests.items()} == {"cpu": "7"}
    assert {name: str(amount) for name, amount in other.containers[0].resources.limits.items()} == {"cpu": "9"}


def test_who_has_no_time_at_all_is_told_everything_that_was_not_searched():
    one = crowded(host(), pod("a", cpu="3"))

    found = find_remedies(one, accept(pod("b", cpu="4", memory="16Gi", gpu="2")), enough=lambda: True)

    assert found.proposals == ()
    assert found.unsearched == (
        "Time was up before all other amounts of cpu for container app were tried.",
        "Time was up before all other amounts of example.com/gpu for container app were tried.",
        "Time was up before all other amounts of memory for container app were tried.",
        "Time was up before all other settings were tried.",
        "Time was up before all other reservations were tried.",
        "Time was up before all running pods that could leave were tried.",
    )


def test_who_has_too_many_nodes_that_differ_is_told_so():
    """Sixteen nodes have 65,536 sums of what is free: those of fewer nodes are looked at, which is enough here."""
    idle = host(Policy.NONE, shape="pack:16 numa:1 core:1 pu:1")
    sizes = {node.id: GIB + (MIB << node.id) for node in idle.machine.nodes}
    machine = replace(idle.machine, nodes=tuple(NumaNode(node, size) for node, size in sizes.items()))
    one = Host(machine, idle.settings)
    asked = 100 * GIB

    found = find_remedies(one, accept(pod(cpu="500m", memory="100Gi")))

    assert found.unsearched == (
        "Not all amounts of memory for container app were tried: there are too many to look at.",
        "Not all reservations of memory were tried: there are too many to look at.",
    )
    assert proposed(found) == [memory(sum(sizes.values()) - 64 * MIB, was=asked)]


def test_what_cannot_be_decided_is_left_out():
    plain = host()
    one = Host(plain.machine, plain.settings, others=[HardSeats()])

    found = find_remedies(one, accept(asking({"cpu": "2", SEAT: "4"})))

    assert proposed(found) == [(RequestChange("app", SEAT, 4, 2, Unit.PIECES),)]
    assert found.unsearched == ("A change that could not be decided exactly within the limit of work was left out.",)


def test_a_limit_without_a_request_moves_alone():
    limited = Pod(name="b", uid="b", containers=(container("app", limits={GPU: "3"}),))
    one = host(Policy.NONE, memory=False)

    proposal = find_remedies(one, limited).proposals[0]

    _, other = proposal.apply(one, limited)
    assert other.containers[0].resources.requests == {}
    assert other.containers[0].resources.limits == amounts({GPU: "2"})


def test_more_pods_than_three_are_not_sent_away():
    one = crowded(host(memory=False), *(pod(f"u{number}", cpu="1") for number in range(7)))

    found = find_remedies(one, accept(pod("new", cpu="4")))

    assert not any(isinstance(change, Eviction) for (change,) in proposed(found))
    assert "Sets of more than 3 running pods that could leave were not tried." in found.unsearched


def test_where_all_pods_gone_would_not_do_not_all_sets_are_tried():
    """There is no such device, whoever leaves."""
    one = host(shape="pack:2 numa:1 core:40 pu:1")
    crowded(one, *(pod(f"u{number}", cpu="1", memory=f"{1 + number}Mi") for number in range(70)))

    found = find_remedies(one, accept(asking({"cpu": "1", NIC: "3"})))

    assert not any(isinstance(change, Eviction) for (change,) in proposed(found))
    assert found.unsearched == (
        "Even with all running pods gone this one is refused, so not all sets of them were tried.",
    )


def test_of_many_pods_that_hold_the_same_not_all_sets_are_tried():
    one = host(shape="pack:2 numa:1 core:40 pu:1", memory=False, fit_check=False)
    crowded(one, *(pod(f"u{number}", cpu="1") for number in range(75)))

    found = find_remedies(one, accept(pod("new", cpu="20")))

    sentence = "Of running pods that hold the same, not all were tried in sets of {} that could leave."
    assert [sentence.format(size) in found.unsearched for size in (1, 2, 3)] == [False, True, True]


def test_a_reservation_that_pods_stand_against_is_none():
    """The CPUs to be reserved are owned, and the memory is held."""
    one = crowded(host(), pod("a", cpu="3", memory="15Gi"), pod("b", cpu="4"))
    cpus = CpuSettings(policy="static", reservation=Quantity.parse("2"))
    entries = (ReservedMemory(0, amounts({"memory": "2Gi"})),)
    reservation = amounts({"cpu": "1", "memory": "2Gi"})

    for settings in (
        replace(one.settings, cpus=cpus),
        replace(one.settings, reservation=reservation, reserved_memory=entries),
    ):
        with pytest.raises(StateError):
            migrate_host(one, settings)


def test_a_provider_from_outside_has_its_say():
    plain = host()
    one = Host(plain.machine, plain.settings, others=[Seats()])
    crowded(one, pod("a", cpu="1"), asking({"cpu": "1", SEAT: "2"}, "b"))
    wanted = accept(asking({"cpu": "2", SEAT: "2"}))

    found = find_remedies(one, wanted)

    assert proposed(found) == [(RequestChange("app", SEAT, 2, 1, Unit.PIECES),), (Eviction(("b",), ((),)),)]
    changed, other = found.proposals[0].apply(one, wanted)
    assert changed.admit(other).placements[0].given["seat"] == {SEAT: "1"}
