"""Predictions: one choice of devices is stated only if there is no other."""

from dataclasses import replace
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from alignup.align import prediction
from alignup.align.demanded_policy import DemandedPolicy, unmet_demand
from alignup.align.devices import plugin_rules
from alignup.align.devices.choices import RandomChooser
from alignup.align.devices.plugin_rules import UNKNOWN_LINKS, PluginRule
from alignup.align.devices.provider import CRASHED
from alignup.align.explain import sentences
from alignup.align.host import Host, Settings
from alignup.align.locality import DeviceLink, LinkKind, PciPath
from alignup.align.machine import Cpu, Device, Machine, NumaNode, PciDevice
from alignup.align.quantity import Quantity
from alignup.align.settings import Policy, Scope, TopologySettings
from alignup.align.workload import Container, Pod, Resources

GPU = "nvidia.com/gpu"
KEP_PAIRS = ((0, 3), (1, 2), (4, 7), (5, 6))


def machine(*places: int | None, pairs: tuple[tuple[int, int], ...] = (), links: int = 1) -> Machine:
    """A GPU on each of *places*, of which *pairs* are linked."""
    cpus = tuple(Cpu(number, number, number // 4, number // 4) for number in range(8))
    pci = tuple(
        PciDevice(
            f"0000:{number + 1:02x}:00.0",
            kind=0x030200,
            node=place,
            path=PciPath(f"pci0000:{place}0", (f"0000:{place}0:{number:02x}.0",)),
            uuid=f"gpu-{number}",
        )
        for number, place in enumerate(places)
    )
    return Machine(
        cpus=cpus,
        nodes=(NumaNode(0, 1 << 34), NumaNode(1, 1 << 34)),
        devices=tuple(Device(GPU, f"gpu-{number}", node=place) for number, place in enumerate(places)),
        pci=pci,
        links=tuple(DeviceLink(LinkKind.NVLINK, (pci[a].address, pci[b].address), links) for a, b in pairs),
    )


def host(machine: Machine, policy: str = "none") -> Host:
    return Host(machine, Settings(topology=TopologySettings(Policy(policy)), kubelet_faults=True))


def pod(*counts: int, init: tuple[int, ...] = ()) -> Pod:
    def containers(name: str, numbers: tuple[int, ...]) -> tuple[Container, ...]:
        return tuple(
            Container(f"{name}-{index}", Resources(limits={GPU: Quantity.of(number)}))
            for index, number in enumerate(numbers)
        )

    return Pod(name="train", uid="train", init=containers("init", init), containers=containers("app", counts))


def texts(host: Host, pod: Pod) -> list[str]:
    return [str(placement.choices[GPU]) for placement in host.predict(pod).placements]


EIGHT = machine(0, 0, 0, 0, 1, 1, 1, 1, pairs=KEP_PAIRS)


def test_pairs_of_kep_693_are_the_possible_choices():
    assert texts(host(EIGHT), pod(2)) == ["{gpu-0, gpu-3} or {gpu-1, gpu-2} or {gpu-4, gpu-7} or {gpu-5, gpu-6}"]
    assert texts(host(EIGHT, "best-effort"), pod(2)) == ["{gpu-0, gpu-3} or {gpu-1, gpu-2}"]


def test_only_the_last_free_pair_is_certain():
    kubelet = host(EIGHT, "single-numa-node")
    held = kubelet.ledger.devices.give("other", "app", devices={GPU: ("gpu-0", "gpu-4", "gpu-5", "gpu-7")})
    kubelet.ledger = replace(kubelet.ledger, devices=held)

    (placement,) = kubelet.predict(pod(2)).placements

    assert placement.is_certain
    assert placement.devices == {GPU: ("gpu-1", "gpu-2")}
    assert sentences.describe_allocation(placement) == f"{GPU} gpu-1, gpu-2"


@given(
    st.lists(st.sampled_from((0, 1)), min_size=1, max_size=5),
    st.sampled_from(("none", "best-effort", "restricted", "single-numa-node")),
    st.integers(1, 5),
)
def test_without_a_rule_any_device_of_the_tier_is_possible(places, policy, count):
    """Devices near the chosen NUMA nodes come first; then any."""
    known = machine(*places)
    kubelet = Host(known, Settings(topology=TopologySettings(Policy(policy))))

    decision = kubelet.predict(pod(count))

    if not decision.admitted:
        return
    (placement,) = decision.placements
    nodes = placement.hint.nodes
    near = [device.id for device in known.devices if nodes is None or (device.nodes or 0) & nodes]
    far = [device.id for device in known.devices if device.id not in near]
    possible = (
        set(map(frozenset, combinations(near, count)))
        if count <= len(near)
        else {frozenset((*near, *rest)) for rest in combinations(far, count - len(near))}
    )
    assert set(map(frozenset, placement.choices[GPU].sets())) == possible
    assert frozenset(placement.devices[GPU]) in possible


def test_a_chooser_takes_one_of_the_possible_choices():
    kubelet = host(EIGHT)

    decisions = [kubelet.decide_with(pod(2), RandomChooser(seed)) for seed in range(9)]

    pairs = {decision.placements[0].devices[GPU] for decision in decisions}
    assert 1 < len(pairs) <= len(KEP_PAIRS)
    assert pairs <= {tuple(f"gpu-{number}" for number in pair) for pair in KEP_PAIRS}


def test_a_pod_is_rejected_if_its_plugin_crashes_in_any_case():
    """The two linked GPUs are the best set, but they are too few."""
    decision = host(machine(0, 0, 1, 1, 1, pairs=((0, 1),), links=4)).predict(pod(3))

    assert decision.rejection is not None
    assert f"GetPreferredAllocation rpc failed with err: {CRASHED}" in decision.rejection.message


def test_a_pod_is_admitted_if_its_plugin_may_crash_and_has_too_many_ways_to_choose(monkeypatch):
    pairs = ((0, 2), (0, 3), (1, 5), (1, 6), (2, 4), (2, 5), (2, 6), (3, 5), (4, 5))
    monkeypatch.setattr(plugin_rules, "MAX_OPTIONS", 1)

    decision = host(machine(*[0] * 7, pairs=pairs)).predict(pod(4))

    assert decision.admitted
    (choices,) = decision.placements[0].choices.values()
    assert set(choices.notes) >= {plugin_rules.MAY_CRASH, plugin_rules.TOO_MANY}


def test_a_plugin_with_an_unknown_rule_may_choose_anything():
    known = machine(0, 0, 0, pairs=((0, 1),))
    settings = Settings(plugin_rules={GPU: PluginRule.ANY}, preferred_allocation=frozenset({GPU}), kubelet_faults=True)

    assert texts(Host(known, settings), pod(2)) == ["any 2 of gpu-0…2"]
    assert texts(host(known), pod(2)) == ["gpu-0, gpu-1"]


def test_it_is_said_that_links_are_unknown():
    placements = host(machine(0, 0, 1)).predict(pod(2)).placements

    assert sentences.describe_choices(placements) == (UNKNOWN_LINKS,)


def test_next_container_may_get_what_the_first_leaves():
    assert texts(host(EIGHT, "best-effort"), pod(1, 1)) == ["any 1 of gpu-0…3", "any 1 of gpu-0…3"]


def test_app_container_gets_the_devices_of_the_init_container():
    assert texts(host(EIGHT, "best-effort"), pod(1, init=(1,))) == ["any 1 of gpu-0…3", "any 1 of gpu-0…3"]


def test_pod_may_be_rejected_if_a_choice_leaves_no_place_for_the_next_container():
    """Four of six GPUs on two NUMA nodes: the other two may be on one node, or on both."""
    kubelet = host(machine(0, 0, 0, 1, 1, 1), "restricted")

    decision = kubelet.predict(pod(4, 2))

    assert decision.admitted
    assert decision.may_be_rejected
    assert kubelet.decide(pod(4, 2)).admitted  # with the lowest ids
    assert sentences.verdict(decision) == "Pod default/train may be rejected: TopologyAffinityError"
    assert sentences.describe_possible_rejection(decision) == (
        "the kubelet chooses at random which devices app-0 gets, and some choices leave no place for container app-1"
    )
    assert not kubelet.predict(pod(4)).may_be_rejected
    assert not host(machine(0, 0, 0, 1, 1, 1), "best-effort").predict(pod(4, 2)).may_be_rejected


def test_pod_may_be_rejected_while_a_choice_is_not_tried(monkeypatch):
    kubelet = host(machine(0, 0, 0, 1, 1, 1), "best-effort")
    assert not kubelet.predict(pod(4, 2)).may_be_rejected

    monkeypatch.setattr(prediction, "MAX_DECISIONS", 1)
    decision = kubelet.predict(pod(4, 2))

    assert decision.may_be_rejected
    assert "not all of its choices were tried" in sentences.describe_possible_rejection(decision)
    unmet = unmet_demand(kubelet, pod(4, 2), decision, DemandedPolicy(Policy.RESTRICTED, Scope.CONTAINER))
    assert "too many possible choices of devices" in str(unmet)


def test_pod_may_be_rejected_if_the_plugin_may_crash():
    """A rest of two GPUs with a strong link outscores every set of three."""
    kubelet = host(machine(0, 0, 0, 0, 0, pairs=((0, 1),), links=4))

    decision = kubelet.predict(pod(3))

    assert decision.placements[0].choices[GPU].crashes
    assert decision.possible is not None
    assert decision.possible.rejection is not None
    assert CRASHED in decision.possible.rejection.message
    assert "may crash" in sentences.describe_possible_rejection(decision)


def test_pods_without_devices_have_no_choices():
    decision = host(EIGHT).predict(Pod(name="web", uid="web", containers=(Container("app", Resources()),)))

    assert decision.admitted
    assert decision.possible is None
    assert sentences.describe_possible_rejection(decision) == ""
