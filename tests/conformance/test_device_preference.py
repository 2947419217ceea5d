"""Which devices the plugins of NVIDIA and AMD prefer: the answer for a given order, and all answers without it.

Our own choice is compared with NVIDIA's, too.
"""

import gzip
import json
from functools import partial
from itertools import combinations, product
from typing import Any

import pytest

from alignup.align.devices import amd_rule, nvidia_rule
from alignup.align.devices.near_choice import NearRequest, preferred_devices
from alignup.align.locality import DeviceLink, Level, LinkKind, StatedLevel
from alignup.align.machine import Machine, PciDevice
from tests.align.devices.test_near_choice import rate
from tests.align.devices.test_nvidia_rule import pair_scores
from tests.conformance.harness import Case, run_packed

Topologies = dict[str, Any]


def test_nvidia_plugin_is_answered_for(request):
    tables = {name: pair_scores(each["links"]) for name, each in topologies(request, "topologies").items()}
    run_packed(request, "device_preference/best_effort", partial(check_nvidia, tables))


def test_amd_plugin_is_answered_for(request):
    run_packed(request, "device_preference/amd_best_effort", partial(check_amd, topologies(request, "amd_topologies")))


def topologies(request: pytest.FixtureRequest, name: str) -> Topologies:
    path = request.config.getoption("--vectors") / f"device_preference/{name}.json.gz"
    if not path.exists():
        pytest.skip(f"this set of vectors has no device_preference/{name}.json.gz")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return {each["name"]: each for each in json.load(file)}


def check_nvidia(tables: dict[str, nvidia_rule.PairScores], case: Case) -> str | None:
    scores, given = tables[case["topology"]], case["best_effort"]
    asked = {"required": case["required"], "size": case["size"]}
    try:
        answer: Any = list(nvidia_rule.answer(scores, case["available"], **asked))
    except nvidia_rule.PluginCrashError:
        answer = "panic"
    assert answer == (given if isinstance(given, list) else "panic")

    possible = nvidia_rule.possible_answers(scores, case["available"], **asked)
    if "possible" not in case:
        return "no set of answers"
    assert possible is not None, "uncountable"
    every = {
        tuple(sorted(gpu for part in parts for gpu in part))
        for picks in possible.picks
        for parts in product(*(combinations(gpus, count) for count, gpus in picks))
    }
    assert every == {tuple(each) for each in case["possible"] if None not in each}
    assert possible.crashes == any(None in each for each in case["possible"])
    return None


def check_amd(tables: Topologies, case: Case) -> str | None:
    table = tables[case["topology"]]
    devices = [amd_rule.AmdDevice(each["id"], each["node"], each["numa"], each["gpu"]) for each in table["devices"]]
    weights = amd_rule.pair_weights(devices, {frozenset(pair): kind for *pair, kind in table["links"]})
    try:
        answer = amd_rule.answer(devices, weights, case["available"], required=case["required"], size=case["size"])
    except ValueError as error:
        assert str(error) == case.get("error")
        return None
    assert "error" not in case, f"no error: {case['error']}"
    assert list(answer) == case["best_effort"]
    return None


def test_our_own_choice_is_never_worse_than_that_of_the_plugin(request):
    tables = {name: stated_machine(each) for name, each in topologies(request, "topologies").items()}
    run_packed(request, "device_preference/best_effort", partial(compare_with_nvidia, tables))


def stated_machine(table: dict[str, Any]) -> Machine:
    """Return a machine whose GPUs have the links and levels of a table."""
    gpus = [PciDevice(f"0000:{number:02}:00.0", kind=0x030200) for number in range(table["n"])]
    links, levels = [], []
    for (i, a), (j, b) in combinations(enumerate(gpus), 2):
        for text in table["links"][i][j]:
            if text.startswith("NV"):
                links.append(DeviceLink(LinkKind.NVLINK, (a.address, b.address), int(text[2:])))
            else:
                levels.append(StatedLevel((a.address, b.address), Level(text)))
    return Machine((), (), pci=tuple(gpus), links=tuple(links), stated_levels=tuple(levels))


def compare_with_nvidia(machines: dict[str, Machine], case: Case) -> str | None:
    if case["kind"].startswith("broken") or not isinstance(case["best_effort"], list):
        return "the two directions of a link differ"
    if not case["best_effort"] or None in case["best_effort"]:
        return "no answer"
    machine = machines[case["topology"]]
    better = compare(machine, case)
    assert better is not None, "worse"
    return None


def compare(machine: Machine, case: Case) -> int | None:
    """Return which of our criteria decides for our choice, -1 if it is the same; ``None`` if it is worse."""
    every = [device.address for device in machine.pci]
    available = [every[index] for index in case["available"]]
    required = [every[index] for index in case["required"]]
    chosen = preferred_devices(machine, available, required=required, size=case["size"], devices=every)
    assert len(set(chosen)) == case["size"]
    assert set(required) <= set(chosen) <= set(available)
    asked = NearRequest("", (), tuple(every), available)
    answer = tuple(sorted(every[index] for index in case["best_effort"]))
    ours, theirs = (rate(machine.locality, [asked], [ids]) for ids in (chosen, answer))
    differing = next((number for number, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1]), -1)
    return differing if ours <= theirs else None
