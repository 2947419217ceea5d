"""The rules of device plugins on machines: what is known of links, replicas, partitions and cards."""

from dataclasses import replace
from itertools import combinations, product

import pytest

from alignup.align.devices import amd_rule, plugin_rules
from alignup.align.devices.plugin_rules import (
    NO_NVSWITCH,
    OVERWRITTEN,
    TOO_MANY,
    UNKNOWN_LINKS,
    PluginRule,
    PluginRules,
    PreferredSets,
)
from alignup.align.errors import SettingsError
from alignup.align.locality import DeviceLink, LinkKind, PciPath
from alignup.align.machine import Cpu, Machine, NumaNode, PciDevice


def machine(count: int, *links: DeviceLink) -> Machine:
    """GPUs 0, 1, … on two NUMA nodes, each with a root port of its own."""
    cpus = tuple(Cpu(number, number, number, number) for number in range(2))
    pci = tuple(
        PciDevice(
            address(number),
            kind=0x030200,
            node=number * 2 // count,
            path=PciPath(f"pci0000:{number * 2 // count}0", (f"0000:00:{number:02x}.0",)),
        )
        for number in range(count)
    )
    return Machine(cpus=cpus, nodes=(NumaNode(0), NumaNode(1)), pci=pci, links=links)


def address(number: int) -> str:
    return f"0000:{number + 1:02x}:00.0"


def nvlink(a: int, b: int, count: int = 1) -> DeviceLink:
    return DeviceLink(LinkKind.NVLINK, (address(a), address(b)), count)


def ids(count: int) -> tuple[str, ...]:
    return tuple(map(address, range(count)))


def ask(
    rules: PluginRules, rule: PluginRule, every: tuple[str, ...], size: int, *, available: tuple[str, ...] = ()
) -> PreferredSets:
    answer = rules.preferred(rule, every=every, available=available or every, required=(), size=size)
    assert answer is not None
    return answer


def sets(answer: PreferredSets) -> set[frozenset[str]]:
    return {
        frozenset(id_ for part in parts for id_ in part)
        for option in answer.options
        for parts in product(*(combinations(pool.ids, pool.take) for pool in option))
    }


def test_rules_are_known_by_name_or_by_the_configuration():
    rules = PluginRules({"nvidia.com/gpu": PluginRule.ANY})

    assert rules.rule("nvidia.com/gpu") is PluginRule.ANY
    assert rules.rule("nvidia.com/gpu.shared") is PluginRule.NVIDIA
    assert rules.rule("nvidia.com/mig-1g.10gb") is PluginRule.NVIDIA
    assert rules.rule("amd.com/gpu") is PluginRule.AMD
    assert rules.rule("gpu.intel.com/i915") is PluginRule.INTEL
    assert rules.rule("intel.com/sriov_net") is PluginRule.ANY
    assert PluginRules(by_name=False).rule("amd.com/gpu") is PluginRule.ANY
    with pytest.raises(SettingsError, match="known rules: any, nvidia"):
        PluginRule("best")


def test_nvidia_prefers_linked_gpus():
    rules = PluginRules(machine=machine(4, nvlink(0, 3), nvlink(1, 2)))

    answer = ask(rules, PluginRule.NVIDIA, ids(4), 2)

    assert sets(answer) == {frozenset({address(0), address(3)}), frozenset({address(1), address(2)})}
    assert answer.notes == ()


def test_nvidia_does_not_see_nvswitch():
    fabric = DeviceLink(LinkKind.NVSWITCH, ids(4), 18)

    answer = ask(PluginRules(machine=machine(4, fabric)), PluginRule.NVIDIA, ids(4), 2)

    assert answer.notes == (NO_NVSWITCH,)
    assert sets(answer) == {frozenset(ids(4)[:2]), frozenset(ids(4)[2:])}


@pytest.mark.parametrize("known", [None, machine(4)])
def test_nothing_is_stated_without_links(known):
    answer = ask(PluginRules(machine=known), PluginRule.NVIDIA, ids(4), 2)

    assert (answer.options, answer.notes) == ((), (UNKNOWN_LINKS,))


def test_nvidia_is_slow_and_wrong_with_many_gpus():
    rules = PluginRules(machine=machine(16, nvlink(0, 1)))

    assert ask(rules, PluginRule.NVIDIA, ids(16), 2).notes == (
        "NVIDIA's device plugin needs about 3 s for this choice",
        OVERWRITTEN,
    )
    assert ask(rules, PluginRule.NVIDIA, ids(16), 3).notes == (
        "NVIDIA's device plugin needs about 32 s for this choice",
    )


@pytest.mark.parametrize(("count", "size"), [(32, 20), (32, 31), (24, 8), (20, 19)])
def test_very_many_gpus_are_not_compared(count, size):
    """Comparing the ways to divide them would take years; here the test would not end."""
    links = [nvlink(number, number + 1, number + 1) for number in range(count - 1)]
    answer = ask(PluginRules(machine=machine(count, *links)), PluginRule.NVIDIA, ids(count), size)

    compared = size >= count - 1
    assert (bool(answer.options), TOO_MANY in answer.notes) == (compared, not compared)


def test_shared_gpus_are_taken_from_those_least_in_use():
    every = tuple(f"GPU-{gpu}::{replica}" for gpu in range(3) for replica in range(2))
    available = tuple(id_ for id_ in every if id_ != "GPU-0::0")

    spread = ask(PluginRules(), PluginRule.NVIDIA, every, 2, available=available)
    packed = ask(PluginRules(), PluginRule.NVIDIA_PACKED, every, 1, available=available)

    assert sets(spread) == {frozenset({f"GPU-1::{a}", f"GPU-2::{b}"}) for a in range(2) for b in range(2)}
    assert sets(packed) == {frozenset({"GPU-0::1"})}


def test_any_partition_of_a_gpu_is_possible():
    every = tuple(f"MIG-{number}" for number in range(3))

    assert sets(ask(PluginRules(), PluginRule.NVIDIA, every, 2)) == set(map(frozenset, combinations(every, 2)))


def test_amd_prefers_xgmi():
    links = [DeviceLink(LinkKind.XGMI, (address(a), address(b))) for a, b in ((0, 2), (2, 3), (0, 3))]

    answer = ask(PluginRules(machine=machine(4, *links)), PluginRule.AMD, ids(4), 3)

    assert sets(answer) == {frozenset({address(0), address(2), address(3)})}
    assert ask(PluginRules(), PluginRule.AMD, ids(4), 3).notes == (UNKNOWN_LINKS,)


def test_links_to_other_devices_do_not_count():
    gpu = amd_rule.AmdDevice("a", number=1, numa_node=0, gpu="a")

    assert amd_rule.pair_weights([gpu], {frozenset({1, 2}): 11, frozenset({1}): 11}) == {}


def test_amd_leaves_out_a_gpu_whose_link_to_a_required_one_is_heavy():
    """Together with ``a`` alone, ``d`` weighs more than any set without it."""
    gpus = [amd_rule.AmdDevice(id_, number, numa_node=0, gpu=id_) for number, id_ in enumerate("abcd")]
    weights = amd_rule.pair_weights(gpus, {frozenset({0, 3}): amd_rule.PCIE})

    assert weights == {frozenset({0, 3}): 70}
    assert set(amd_rule.answer(gpus, weights, "abcd", required="a", size=3)) == {"a", "b", "c"}


def test_intel_takes_different_cards_first():
    every = tuple(f"card{card}-{share}" for card in range(2) for share in range(2))

    assert sets(ask(PluginRules(), PluginRule.INTEL, every, 2)) == {
        frozenset({f"card0-{a}", f"card1-{b}"}) for a in range(2) for b in range(2)
    }
    assert sets(ask(PluginRules(), PluginRule.INTEL, every, 3)) == set(map(frozenset, combinations(every, 3)))
    assert sets(ask(PluginRules(), PluginRule.INTEL_BALANCED, (*every[:2], "card1-1"), 2)) == {
        frozenset({"card0-0", "card0-1"})
    }
    assert sets(ask(PluginRules(), PluginRule.INTEL_PACKED, every, 3)) == {frozenset(every[:3])}


def test_a_plugin_without_a_known_rule_may_answer_anything():
    assert PluginRules().preferred(PluginRule.ANY, every=ids(2), available=ids(2), required=(), size=1) is None


def test_the_rest_is_taken_whole():
    assert sets(ask(PluginRules(), PluginRule.AMD, ids(4), 4)) == {frozenset(ids(4))}
    assert sets(ask(PluginRules(), PluginRule.INTEL, ("card0-0", "card1-0"), 1)) == {
        frozenset({"card0-0"}),
        frozenset({"card1-0"}),
    }


def test_devices_without_a_known_place_have_unknown_links():
    known = machine(4, nvlink(0, 3))
    unplaced = replace(known, pci=tuple(replace(gpu, node=None) for gpu in known.pci))
    rootless = replace(known, pci=tuple(replace(gpu, path=PciPath(None, (gpu.address,))) for gpu in known.pci))

    assert ask(PluginRules(machine=unplaced), PluginRule.AMD, ids(4), 2).notes == (UNKNOWN_LINKS,)
    assert ask(PluginRules(machine=rootless), PluginRule.NVIDIA, ids(4), 2).notes == (UNKNOWN_LINKS,)


def test_too_many_possible_answers_are_not_listed(monkeypatch):
    monkeypatch.setattr(plugin_rules, "MAX_OPTIONS", 1)
    rules = PluginRules(machine=machine(4, nvlink(0, 3), nvlink(1, 2)))
    replicas = tuple(f"GPU-{gpu}::{replica}" for gpu in range(4) for replica in range(2))

    assert ask(rules, PluginRule.NVIDIA, ids(4), 2).notes == (TOO_MANY,)
    assert ask(rules, PluginRule.NVIDIA, replicas, 2).notes == (TOO_MANY,)


def test_old_answers_are_forgotten(monkeypatch):
    monkeypatch.setattr(plugin_rules, "_MAX_ANSWERS", 1)
    rules = PluginRules()

    for size in (1, 2, 1):
        assert sets(ask(rules, PluginRule.INTEL_PACKED, ("card0-0", "card0-1"), size)) == {
            frozenset(f"card0-{number}" for number in range(size))
        }
