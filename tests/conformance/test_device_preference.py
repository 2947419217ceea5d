"""Which devices the plugins of NVIDIA and AMD prefer: the answer for a given order, and all answers without it."""

import gzip
import json
from functools import partial
from itertools import combinations, product
from typing import Any

import pytest

from alignup.align.devices import amd_rule, nvidia_rule
from tests.conformance.harness import Case, run_packed

Topologies = dict[str, Any]


def test_nvidia_plugin_is_answered_for(request):
    tables = {name: nvidia_rule.pair_scores(each["links"]) for name, each in topologies(request, "topologies").items()}
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
