"""Changes that admit a rejected pod, on small hosts."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from alignup.align import bits
from alignup.align.cpus.options import CpuSettings
from alignup.align.errors import ProviderError, StateError, WorkLimitError
from alignup.align.explain import remedies as remedies_module
from alignup.align.explain.changes import (
    Change,
    Eviction,
    NodeReservationChange,
    RequestChange,
    ReservationChange,
    SettingChange,
    Unit,
    WhatIf,
    migrate_host,
)
from alignup.align.explain.remedies import Remedies, find_remedies
from alignup.align.hint import Provider
from alignup.align.host import Host
from alignup.align.machine import Device, HugePages, NumaNode
from alignup.align.memory.reserved_memory import ReservedMemory
from alignup.align.quantity import Quantity
from alignup.align.settings import FeatureGates, Policy, Scope
from alignup.align.workload import Pod, Resources, demand
from alignup.align.workload.names import MARKER
from alignup.align.workload.validation import accept
from tests.align.hosts import GIB, GPU, NIC, admit, after, make_host, make_pod
from tests.strategies_pods import amounts, container, guaranteed

MIB = 1 << 20
SMT = "pack:2 numa:1 core:4 pu:2"
FULL_CORES = CpuSettings(policy="static", options={"full-pcpus-only": "true"}, reservation=Quantity.parse("2"))

POLICY = "topologyManagerPolicy"
FULL = "cpuManagerPolicyOptions.full-pcpus-only"


def proposed(remedies: Remedies) -> list[tuple[Change, ...]]:
    return [proposal.changes for proposal in remedies.proposals]


def crowded(host: Host, *pods: Pod) -> Host:
    """*host* with *pods* admitted."""
    for each in pods:
        assert admit(host, accept(each)).admitted
    return host


def asking(asked: dict[str, str], uid: str = "new") -> Pod:
    """A pod that requests resources whose names are not Python names."""
    return make_pod(uid, None, **asked)


def cpus(now: int, was: int) -> tuple[RequestChange]:
    return (RequestChange("app", "cpu", was, now, Unit.CPUS),)


def cpu_share(now: int, was: int) -> tuple[RequestChange]:
    return (RequestChange("app", "cpu", was, now, Unit.MILLI_CPUS),)


def memory(now: int, was: int) -> tuple[RequestChange]:
    return (RequestChange("app", "memory", was, now, Unit.BYTES),)


def policy(now: Policy, was: Policy = Policy.SINGLE_NUMA_NODE) -> SettingChange:
    return SettingChange(POLICY, was, now)


SEAT = "example.com/seat"


class Seats(Provider[Mapping[str, int]]):
    """Three seats per host, on no NUMA node; the ledger counts the seats of each pod."""

    name = "seat"

    def initial_ledger(self) -> Mapping[str, int]:
        return {}

    def hints(self, ledger, pod, container):
        return None

    def allocate(self, ledger, pod, container, *, affinity):
        count = 0 if container is None else demand.devices(pod, container, [SEAT]).get(SEAT, 0)
        if sum(ledger.values()) + count > 3:
            raise ProviderError(f"{count} seats are too many")
        return {**ledger, pod.uid: ledger.get(pod.uid, 0) + count}

    def release(self, ledger, uid):
        return {pod: count for pod, count in ledger.items() if pod != uid}

    def capacity(self, ledger, uid):
        return {SEAT: 3}

    def describe(self, ledger, uid, container):
        return {SEAT: str(ledger[uid])} if ledger.get(uid) else {}


class HardSeats(Seats):
    """Allocating three seats exceeds the work limit."""

    def allocate(self, ledger, pod, container, *, affinity):
        if demand.devices(pod, container, [SEAT]) == {SEAT: 3}:
            raise WorkLimitError("three seats are hard", sources=[self.name])
        return super().allocate(ledger, pod, container, affinity=affinity)


def test_nothing_is_proposed_for_a_pod_that_is_admitted():
    assert find_remedies(make_host(), accept(make_pod())) == Remedies()


def test_nothing_is_proposed_for_a_pod_of_another_operating_system():
    foreign = replace(make_pod(), os="windows")

    assert not make_host().decide(foreign).admitted
    assert find_remedies(make_host(), foreign) == Remedies()


@pytest.mark.parametrize(
    ("host", "wanted", "expected"),
    [
        pytest.param(
            make_host(memory=False),
            make_pod(cpu="6"),
            [cpus(4, was=6), (policy(Policy.RESTRICTED),)],
            id="more CPUs than a node has: fewer CPUs, or a policy that allows two nodes",
        ),
        pytest.param(
            make_host(shape=SMT, cpus=FULL_CORES),
            make_pod(cpu="3"),
            [cpus(2, was=3), cpus(4, was=3), (SettingChange(FULL, "true", "false"),)],
            id="half a core: one CPU less, one more, or single threads",
        ),
        pytest.param(
            make_host(shape=SMT, cpus=FULL_CORES, memory=False),
            make_pod(cpu="9"),
            [cpus(8, was=9), (policy(Policy.RESTRICTED), SettingChange(FULL, "true", "false"))],
            id="half a core too much for a node: two settings together",
        ),
        pytest.param(
            make_host(),
            make_pod(gpu="2"),
            [(RequestChange("app", GPU, 2, 1, Unit.COUNT),), (policy(Policy.BEST_EFFORT),)],
            id="two GPUs on two nodes: the strictest policy that admits both",
        ),
        pytest.param(
            make_host(),
            asking({"cpu": "1", NIC: "3"}),
            [(RequestChange("app", NIC, 3, 1, Unit.COUNT),)],
            id="more devices than the machine has: settings do not help",
        ),
        pytest.param(
            make_host(),
            asking({"hugepages-2Mi": "2Mi"}),
            [(RequestChange("app", "hugepages-2Mi", 2 * MIB, 0, Unit.BYTES),)],
            id="huge pages on a machine without: no huge pages",
        ),
        pytest.param(
            make_host(Policy.BEST_EFFORT, memory=False),
            Pod(name="b", uid="b", containers=(container("app", {"cpu": "7500m"}),)),
            [(RequestChange("app", "cpu", 7500, 7000, Unit.MILLI_CPUS),), (ReservationChange("cpu", 1000, 500),)],
            id="slightly too many shared CPUs: fewer, or a smaller reservation",
        ),
        pytest.param(
            make_host(Policy.BEST_EFFORT, memory=False, cpus=CpuSettings()),
            Pod(name="b", uid="b", containers=(container("app", {"cpu": "7500m"}),)),
            [(RequestChange("app", "cpu", 7500, 7000, Unit.MILLI_CPUS),), (ReservationChange("cpu", 1000, 500),)],
            id="the same without exclusive CPUs",
        ),
        pytest.param(
            make_host(Policy.NONE, memory=False),
            make_pod(cpu="500m", memory="32Gi"),
            [memory(32 * GIB - 64 * MIB, was=32 * GIB), (ReservationChange("memory", 64 * MIB, 0),)],
            id="all memory of the host: a little less, or no reservation",
        ),
        pytest.param(
            make_host(Policy.NONE, memory=False, max_pods=0),
            make_pod(),
            [],
            id="a host without room for pods: nothing helps",
        ),
    ],
)
def test_proposals_on_an_empty_host(host, wanted, expected):
    remedies = find_remedies(host, accept(wanted))

    assert proposed(remedies) == expected
    assert remedies.unsearched == ()


def test_reserved_memory_moves_before_it_shrinks():
    """The 64 MiB reserved make node 0 too small, and node 1 is taken."""
    host = crowded(make_host(), make_pod("a", cpu="4"))

    remedies = find_remedies(host, accept(make_pod("b", cpu="1", memory="16Gi")))

    assert proposed(remedies) == [
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
    changed, other = remedies.proposals[-1].apply(host, accept(make_pod("b", cpu="1", memory="16Gi")))
    assert changed.settings.reserved_memory == (ReservedMemory(1, {"memory": Quantity.parse("64Mi")}),)
    assert changed.admit(other).placements[0].as_text()["memory"] == {"memory": f"0={16 * GIB}"}
    assert changed.ledger.memory.blocks("a", "app") == host.ledger.memory.blocks("a", "app")


def test_reserved_memory_shrinks_if_moving_does_not_help():
    """Node 1 is full, so the memory reserved on node 0 cannot move there."""
    reservation = amounts({"cpu": "1", "memory": "2Gi"})
    entries = (ReservedMemory(0, amounts({"memory": "1Gi"})), ReservedMemory(1, amounts({"memory": "1Gi"})))
    host = make_host(reservation=reservation, reserved_memory=entries)
    crowded(host, make_pod("a", cpu="1", memory="14Gi"), make_pod("b", cpu="1", memory="15Gi"))

    remedies = find_remedies(host, accept(make_pod("c", cpu="1", memory="1536Mi")))

    (change,) = proposed(remedies)[-1]
    assert change == ReservationChange(
        "memory", 2 * GIB, 2 * GIB - 512 * MIB, shares=(NodeReservationChange(0, GIB, 512 * MIB),)
    )


def test_no_reservation_moves_to_a_node_without_memory():
    plain = make_host()
    machine = replace(plain.machine, nodes=(NumaNode(0, 16 * GIB), NumaNode(1, 0)))
    host = Host(machine, plain.settings)

    remedies = find_remedies(host, accept(make_pod("b", cpu="1", memory="16Gi")))

    assert proposed(remedies) == [memory(16 * GIB - 64 * MIB, was=16 * GIB)]


def test_the_reserved_cpu_count_shrinks():
    reserved = Quantity.parse("3")
    host = make_host(
        cpus=CpuSettings(policy="static", reservation=reserved),
        reservation={**amounts({"memory": "64Mi"}), "cpu": reserved},
    )
    crowded(host, make_pod("a", cpu="3"))

    remedies = find_remedies(host, accept(make_pod("b", cpu="2")))

    assert (ReservationChange("cpu", 3000, 2000),) in proposed(remedies)


def test_the_reserved_cpu_list_shrinks():
    """Another pod has a CPU of node 0, so only node 1 has four."""
    listed = bits.of([0, 4, 5])
    reserved = Quantity.parse("3")
    host = make_host(
        cpus=CpuSettings(policy="static", reservation=reserved, explicit=listed),
        reservation={**amounts({"memory": "64Mi"}), "cpu": reserved},
    )
    crowded(host, make_pod("a", cpu="1"))
    wanted = accept(make_pod("b", cpu="4"))

    remedies = find_remedies(host, wanted)

    change = ReservationChange("cpu", 3000, 1000, listed=(listed, bits.of([0])))
    assert proposed(remedies)[-1] == (change,)
    changed, _ = remedies.proposals[-1].apply(host, wanted)
    assert changed.settings.cpus.explicit == bits.of([0])


def test_of_equivalent_pods_one_is_proposed_and_the_others_are_alternatives():
    host = crowded(make_host(memory=False), *(make_pod(uid, cpu="2") for uid in "abc"))

    remedies = find_remedies(host, accept(make_pod("new", cpu="2")))

    eviction = next(change for (change,) in proposed(remedies) if isinstance(change, Eviction))
    assert eviction == Eviction(("c",), (("b",),))


def test_the_least_important_pod_is_evicted():
    important = replace(make_pod("a", cpu="2"), priority=1000)
    host = crowded(make_host(memory=False, max_pods=2), make_pod("b", cpu="2"), important)

    remedies = find_remedies(host, accept(make_pod("new", cpu="1")))

    assert proposed(remedies) == [(Eviction(("b",), ((),)),)]


def test_two_pods_are_evicted_only_if_one_is_not_enough():
    host = crowded(make_host(), *(make_pod(uid, cpu="1", memory="7Gi") for uid in "abcd"))

    remedies = find_remedies(host, accept(make_pod("new", cpu="1", memory="15Gi")))

    (eviction,) = [change for (change,) in proposed(remedies) if isinstance(change, Eviction)]
    held = host.ledger.memory
    assert len(eviction.pods) == 2
    assert len({(held.blocks(uid, "app") or ())[0].nodes for uid in eviction.pods}) == 1


def test_a_pod_with_a_policy_annotation_is_proposed_another_value():
    host = make_host(Policy.RESTRICTED, pod_policy_annotations=True, memory=False)
    wanted = accept(make_pod(cpu="6", annotations={"topology.alignup.dev/policy": "single-numa-node"}))

    remedies = find_remedies(host, wanted)

    field = "metadata.annotations[topology.alignup.dev/policy]"
    assert (SettingChange(field, "single-numa-node", "restricted"),) in proposed(remedies)
    assert not any(change.field == POLICY for (change,) in proposed(remedies) if isinstance(change, SettingChange))


def test_the_other_scope_is_proposed():
    """Container by container, the last finds one CPU on node 0 and two on node 1; the pod needs both nodes anyway."""
    host = make_host(Policy.RESTRICTED, memory=False)
    sizes = {"first": "2", "second": "2", "third": "3"}
    three = tuple(guaranteed(name, {"cpu": count, "memory": "1Gi"}) for name, count in sizes.items())

    remedies = find_remedies(host, accept(Pod(name="b", uid="b", containers=three)))

    assert (SettingChange("topologyManagerScope", "container", "pod"),) in proposed(remedies)


def test_pod_level_resources_change_too():
    """Its containers need one of the six CPUs; four are enough for the pod."""
    gates = FeatureGates({"PodLevelResourceManagers": True})
    requests = amounts({"cpu": "6", "memory": "2Gi"})
    whole = Pod(
        name="b",
        uid="b",
        containers=(guaranteed("app", {"cpu": "1", "memory": "1Gi"}), container("share")),
        resources=Resources(requests, requests),
    )

    remedies = find_remedies(make_host(scope=Scope.POD, gates=gates), accept(whole))

    assert proposed(remedies)[0] == (RequestChange(None, "cpu", 6, 4, Unit.CPUS),)


def host_that_asks() -> Host:
    """The plugin chooses among the three GPUs of each node."""
    devices = [Device(GPU, f"gpu-{number}", nodes=1 << number % 2) for number in range(6)]
    return make_host(devices=devices, preferred_allocation=frozenset({GPU}))


def test_a_missing_preferred_allocation_is_the_lowest_devices():
    host = host_that_asks()
    wanted = accept(make_pod("b", cpu="5", gpu="2"))

    remedies = find_remedies(host, wanted)

    assert proposed(remedies)[0] == cpus(4, was=5)
    assert remedies.proposals[0].decision.placements[0].as_text()["device"] == {GPU: "gpu-1,gpu-3"}
    assert host.decide(accept(make_pod("b", cpu="4", gpu="2"))).preference_requests


def test_known_preferred_allocations_are_used():
    host = host_that_asks()
    (ask,) = host.decide(accept(make_pod("b", cpu="4", gpu="2"))).preference_requests

    remedies = find_remedies(host, accept(make_pod("b", cpu="5", gpu="2")), answers={ask: ("gpu-3", "gpu-5")})

    assert remedies.proposals[0].decision.placements[0].as_text()["device"] == {GPU: "gpu-3,gpu-5"}


def test_what_a_kubelet_would_do_is_proposed_with_all_choices_of_devices():
    host = make_host(memory=False, kubelet_faults=True, devices=[Device(GPU, f"gpu-{n}", node=0) for n in range(3)])

    remedies = find_remedies(host, accept(make_pod(cpu="6", gpu="1")))

    assert str(remedies.proposals[0].decision.placements[0].choices[GPU]) == "any 1 of gpu-0…2"


def test_huge_pages_change_in_whole_pages():
    shape = "pack:2 numa:1 core:4 pu:1"
    idle = make_host(shape=shape)
    pages = (HugePages(2 * MIB, 8),)
    machine = replace(idle.machine, nodes=tuple(NumaNode(node.id, 16 * GIB, pages) for node in idle.machine.nodes))
    host = Host(machine, idle.settings)

    remedies = find_remedies(host, accept(asking({"hugepages-2Mi": "18Mi"})))

    assert proposed(remedies)[0] == (RequestChange("app", "hugepages-2Mi", 18 * MIB, 16 * MIB, Unit.BYTES),)


def test_a_request_below_its_limit_changes_alone():
    burstable = Pod(name="b", uid="b", containers=(container("app", {"cpu": "8"}, {"cpu": "9"}),))
    host = make_host(Policy.NONE, memory=False)

    proposal = find_remedies(host, accept(burstable)).proposals[0]

    _, other = proposal.apply(host, accept(burstable))
    assert {name: str(amount) for name, amount in other.containers[0].resources.requests.items()} == {"cpu": "7"}
    assert {name: str(amount) for name, amount in other.containers[0].resources.limits.items()} == {"cpu": "9"}


def test_without_any_time_everything_is_listed_as_not_searched():
    host = crowded(make_host(), make_pod("a", cpu="3"))

    remedies = find_remedies(host, accept(make_pod("b", cpu="4", memory="16Gi", gpu="2")), should_stop=lambda: True)

    assert remedies.proposals == ()
    assert remedies.unsearched == (
        "Time ran out before all other amounts of cpu for container app were tried.",
        "Time ran out before all other amounts of example.com/gpu for container app were tried.",
        "Time ran out before all other amounts of memory for container app were tried.",
        "Time ran out before all other settings were tried.",
        "Time ran out before all other reservations were tried.",
        "Time ran out before all evictions were tried.",
    )


def test_a_search_can_stop_at_any_time():
    """It keeps the proposals found so far, and notes what it did not try."""
    host = crowded(make_host(memory=False, fit_check=False), *(make_pod(uid, cpu="1") for uid in "abcdefg"))
    wanted = accept(make_pod("new", cpu="2"))
    everything = find_remedies(host, wanted)
    kinds = {type(change) for change, *_ in proposed(everything)}
    notes: set[str] = set()
    short, tries = Remedies(), 0

    while short != everything:
        short = find_remedies(host, wanted, should_stop=after(tries))
        assert {type(change) for change, *_ in proposed(short)} <= kinds
        notes.update(short.unsearched)
        tries += 1

    assert any(isinstance(change, Eviction) for (change,) in proposed(everything))
    assert "Time ran out before all evictions of 1 pod were tried." in notes


def test_without_reserved_cpus_no_reservation_shrinks():
    host = make_host(Policy.NONE, memory=False, cpus=CpuSettings(), reservation={})

    assert proposed(find_remedies(host, accept(make_pod(cpu="9")))) == [cpu_share(8000, was=9000)]


def test_candidates_beyond_the_limit_are_noted():
    what_if = WhatIf(make_host(), accept(make_pod(cpu="9")), answers={}, should_stop=lambda: False)
    candidates = [(policy(other),) for other in (Policy.RESTRICTED, Policy.BEST_EFFORT)]

    assert what_if.first(candidates, limit=1, beyond="Only one was tried.") == ()
    assert what_if.unsearched == ["Only one was tried."]


def test_too_many_different_nodes_are_noted():
    """Sixteen nodes have 65,536 sums of free memory; those of smaller sets suffice here."""
    idle = make_host(Policy.NONE, shape="pack:16 numa:1 core:1 pu:1")
    sizes = {node.id: GIB + (MIB << node.id) for node in idle.machine.nodes}
    machine = replace(idle.machine, nodes=tuple(NumaNode(node, size) for node, size in sizes.items()))
    host = Host(machine, idle.settings)
    asked = 100 * GIB

    remedies = find_remedies(host, accept(make_pod(cpu="500m", memory="100Gi")))

    assert remedies.unsearched == (
        "Not all amounts of memory for container app were tried: there are too many.",
        "Not all reservations of memory were tried: there are too many.",
    )
    assert proposed(remedies) == [memory(sum(sizes.values()) - 64 * MIB, was=asked)]


def test_a_change_beyond_the_work_limit_is_skipped():
    plain = make_host()
    host = Host(plain.machine, plain.settings, others=[HardSeats()])

    remedies = find_remedies(host, accept(asking({"cpu": "2", SEAT: "4"})))

    assert proposed(remedies) == [(RequestChange("app", SEAT, 4, 2, Unit.COUNT),)]
    assert remedies.unsearched == ("A change that exceeds the work limit was not tried.",)


def test_a_limit_without_a_request_changes_alone():
    limited = Pod(name="b", uid="b", containers=(container("app", limits={GPU: "3"}),))
    host = make_host(Policy.NONE, memory=False)

    proposal = find_remedies(host, limited).proposals[0]

    _, other = proposal.apply(host, limited)
    assert other.containers[0].resources.requests == {}
    assert other.containers[0].resources.limits == amounts({GPU: "2"})


def test_at_most_three_pods_are_evicted():
    host = crowded(make_host(memory=False), *(make_pod(f"u{number}", cpu="1") for number in range(7)))

    remedies = find_remedies(host, accept(make_pod("new", cpu="4")))

    assert not any(isinstance(change, Eviction) for (change,) in proposed(remedies))
    assert "Evictions of more than 3 pods were not tried." in remedies.unsearched


def test_hopeless_evictions_are_not_all_tried(monkeypatch):
    """The host has no such device."""
    monkeypatch.setattr(remedies_module, "MAX_EQUIVALENT", 20)
    host = crowded(make_host(), *(make_pod(f"u{number}", cpu="1", memory=f"{1 + number}Mi") for number in range(7)))

    remedies = find_remedies(host, accept(asking({"cpu": "1", NIC: "3"})))

    assert not any(isinstance(change, Eviction) for (change,) in proposed(remedies))
    assert remedies.unsearched == (
        "The pod is rejected even without all running pods, so not all evictions were tried.",
    )


def test_sets_of_equivalent_pods_are_limited(monkeypatch):
    monkeypatch.setattr(remedies_module, "MAX_EQUIVALENT", 10)
    host = make_host(shape="pack:2 numa:1 core:6 pu:1", memory=False, fit_check=False)
    crowded(host, *(make_pod(f"u{number}", cpu="1") for number in range(10)))

    remedies = find_remedies(host, accept(make_pod("new", cpu="6")))

    sentence = "Not all evictions of {} equivalent pods were tried."
    assert [sentence.format(size) in remedies.unsearched for size in (1, 2, 3)] == [False, True, True]


def test_a_reservation_may_not_take_what_pods_hold():
    """Pods hold the CPUs and the memory to reserve."""
    host = crowded(make_host(), make_pod("a", cpu="3", memory="15Gi"), make_pod("b", cpu="4"))
    cpus = CpuSettings(policy="static", reservation=Quantity.parse("2"))
    entries = (ReservedMemory(0, amounts({"memory": "2Gi"})),)
    reservation = amounts({"cpu": "1", "memory": "2Gi"})

    for settings in (
        replace(host.settings, cpus=cpus),
        replace(host.settings, reservation=reservation, reserved_memory=entries),
    ):
        with pytest.raises(StateError):
            migrate_host(host, settings)


def test_a_provider_from_outside_has_its_say():
    plain = make_host()
    host = Host(plain.machine, plain.settings, others=[Seats()])
    crowded(host, make_pod("a", cpu="1"), asking({"cpu": "1", SEAT: "2"}, "b"))
    wanted = accept(asking({"cpu": "2", SEAT: "2"}))

    remedies = find_remedies(host, wanted)

    assert proposed(remedies) == [(RequestChange("app", SEAT, 2, 1, Unit.COUNT),), (Eviction(("b",), ((),)),)]
    changed, other = remedies.proposals[0].apply(host, wanted)
    assert changed.admit(other).placements[0].as_text()["seat"] == {SEAT: "1"}


def test_a_pod_that_needs_two_numa_nodes_is_not_told_to_request_more_markers():
    """So many that one NUMA node does not have them would admit it, and take them from all others."""
    devices = [Device(MARKER, f"{node}-{number}", nodes=1 << node) for node in (0, 1) for number in range(3)]
    host = make_host(Policy.RESTRICTED, devices=devices)

    remedies = proposed(find_remedies(host, asking({"cpu": "5", "memory": "20Gi", MARKER: "1"})))

    changes = [change for each in remedies for change in each if isinstance(change, RequestChange)]
    assert RequestChange("app", MARKER, 1, 0, Unit.COUNT) in changes
    assert all(change.now < change.was for change in changes)


def test_amounts_of_memory_are_not_computed_when_time_has_run_out(monkeypatch):
    """A pod may have thousands of containers, and its time limit holds for all of them."""
    monkeypatch.setattr(remedies_module, "find_break_points", lambda *_: pytest.fail("computed"))

    remedies = find_remedies(make_host(), accept(make_pod(cpu="4", memory="64Gi")), should_stop=lambda: True)

    assert any("other amounts of memory" in sentence for sentence in remedies.unsearched)
