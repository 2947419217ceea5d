"""All inputs, answered by 1.38: what differs from 1.37, counted by the rule that changes it.

Nothing here is an answer of a kubelet 1.38. When there is one, ``make check-release ANSWERS=DIR`` compares with it.
"""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from alignup.align import bits
from alignup.align.cpus.provider import create_selection
from alignup.align.errors import ProviderError, SettingsError
from alignup.align.release import Release, find_release
from tests.conformance import (
    test_checkpoints,
    test_configuration,
    test_cpu_hints,
    test_cpu_manager,
    test_cpu_reserved,
    test_cpu_take,
    test_cpu_take_hangs,
    test_cpu_trace,
    test_device_alloc,
    test_device_hints,
    test_e2e,
    test_memory_hints,
    test_memory_trace,
    test_quantity,
)
from tests.conformance.cpu_cases import options_of, seen_pod
from tests.conformance.harness import OWN_VECTORS, TALLIES, Case, Check, Tally, cases, plain_cases
from tests.vector_types import view_of

R37, R38 = find_release("1.37"), find_release("1.38")
RULES = {
    "takes_groups_by_size": "whole cores and sockets",
    "copies_combinations": "copied combinations",
    "distributes_in_groups": "whole groups of the remainder",
    "keeps_hint_width": "the width of the hint",
    "goes_round_cores": "rounds over cores",
    "restores_pods": "restarts of pods with pod-level resources",
    "exact_quantities": "amounts beyond 64 bits",
}


#: 1.37 with one rule of 1.38.
ALONE: dict[str, Release] = {flag: replace(R37, **dict[str, Any]({flag: True})) for flag in RULES}


def follow_e2e(case: Case) -> None:
    try:
        host = test_e2e.host_of(case)
    except SettingsError as error:
        assert f"{error.manager} manager: {error}" == case.get("init_error")
        return
    test_e2e.Trace(host, case).replay()


def follow_cpus(case: Case) -> None:
    """A trace with the defects of the kubelet only."""
    try:
        provider = test_cpu_trace.create(case, case["options"])
    except SettingsError as error:
        assert str(error) == case["create_error"]
        return
    assert bits.show(provider.reserved) == case["reserved"]
    pods = {pod["uid"]: seen_pod(case, pod) for pod in case["pods"]}
    events = [(event, test_cpu_trace.expected(event)) for event in case["events"]]
    test_cpu_trace.follow(test_cpu_trace.Trace(case, replace(provider, kubelet_faults=True), pods), events)


CHECKS: dict[str, Check] = {
    "configuration": test_configuration.check_case,
    "cpu_hints": test_cpu_hints.check,
    "cpu_manager": test_cpu_manager.check,
    "cpu_reserved": test_cpu_reserved.check,
    "cpu_take": test_cpu_take.check_with_defects,
    "cpu_take_hangs": test_cpu_take_hangs.check_hang,
    "cpu_trace": follow_cpus,
    "device_alloc": test_device_alloc.check,
    "device_hints": test_device_hints.check,
    "e2e": follow_e2e,
    "memory_hints": test_memory_hints.check,
    "memory_trace": test_memory_trace.check,
    "quantity": test_quantity.check,
}


def holds(check: Check, case: Case, release: Release) -> bool:
    try:
        check({**case, "release": release})
    except (AssertionError, ProviderError, pytest.fail.Exception):
        return False
    return True


def changing_rules(check: Check, case: Case) -> str:
    """The rules of 1.38 that change an answer of 1.37, each alone; empty if the answers are equal."""
    if holds(check, case, R38):
        return ""
    if holds(check, case, replace(R38, minor=R37.minor)):
        return "feature gates"
    if "kind" in case and "topology" not in case:  # an amount
        return RULES["exact_quantities"]
    alone = [text for flag, text in RULES.items() if not holds(check, case, ALONE[flag])]
    return " and ".join(alone) or "several rules together"


@pytest.mark.parametrize("file", CHECKS)
def test_differences_from_1_37_are_counted_by_rule(request, file):
    path = request.config.getoption("--vectors") / f"{file}.jsonl.gz"
    if not path.exists():
        pytest.skip(f"this set of vectors has no {path.name}")
    tally = Tally(f"under 1.38: {file}")
    request.config.stash[TALLIES].append(tally)
    for _, case in cases(path):
        rules = changing_rules(CHECKS[file], case)
        tally.apart[rules] += bool(rules)
        tally.passed += not rules
    tally.apart += Counter()  # without zeros

    assert "several rules together" not in tally.apart
    if path.parent == OWN_VECTORS:
        assert dict(tally.apart) == EXPECTED.get(file, {})


_RESTARTS = RULES["restores_pods"]
#: What was counted with our own set.
EXPECTED: dict[str, dict[str, int]] = {
    "configuration": {"feature gates": 9},
    "cpu_reserved": {"rounds over cores": 1},
    "cpu_take": {
        "copied combinations": 37,
        "rounds over cores": 71,
        "whole cores and sockets": 55,
        "whole cores and sockets and copied combinations": 1,
    },
    "cpu_take_hangs": {"whole groups of the remainder": 4},
    "cpu_trace": {
        "rounds over cores": 24,
        "the width of the hint": 29,
        "whole cores and sockets": 19,
        _RESTARTS: 16,
        f"rounds over cores and {_RESTARTS}": 1,
        f"the width of the hint and {_RESTARTS}": 4,
        f"whole cores and sockets and {_RESTARTS}": 1,
    },
    "e2e": {"rounds over cores": 26, "the width of the hint": 4},
    "memory_trace": {_RESTARTS: 36},
    "quantity": {"amounts beyond 64 bits": 1108},
}


def test_the_subset_of_the_published_figures_differs_as_they_say():
    """Without uncore options, up to 160 CPUs and, if CPUs are distributed, 6 NUMA nodes."""
    differing: Counter[str] = Counter()
    for _, case in cases(OWN_VECTORS / "cpu_take.jsonl.gz"):
        options = options_of(case["options"])
        distributed = options.distribute_cpus_across_numa
        too_large = len(case["topology"]["cpus"]) > 160 or (distributed and case["topology"]["num_numa"] > 6)
        if options.prefer_align_cpus_by_uncorecache or too_large or case["error"] is not None:
            continue
        available = bits.parse(case["available"])
        taken = create_selection(view_of(case["topology"]), options, R38, kubelet_faults=True).take(
            available, case["count"]
        )
        assert not taken & ~available
        spread = "spread" if options.distribute_cpus_across_cores else "packed"
        differing["distributed" if distributed else spread] += bits.show(taken) != case["result"]

    assert differing == {"spread": 73, "packed": 23, "distributed": 21}


def test_copied_combinations_are_those_of_the_vectors():
    answers = {}
    for _, case in cases(OWN_VECTORS / "cpu_take.jsonl.gz"):
        if "result_if_combinations_copied" in case:
            selection = create_selection(
                view_of(case["topology"]), options_of(case["options"]), R38, kubelet_faults=True
            )
            taken = bits.show(selection.take(bits.parse(case["available"]), case["count"]))
            answers[case["id"]] = (taken, case["result_if_combinations_copied"])

    assert len(answers) == 37
    assert all(taken == copied for taken, copied in answers.values())


def test_selections_that_hung_return():
    taken = {}
    for _, case in cases(OWN_VECTORS / "cpu_take_hangs.jsonl.gz"):
        selection = create_selection(view_of(case["topology"]), options_of(case["options"]), R38, kubelet_faults=True)
        taken[case["id"]] = bits.show(selection.take(bits.parse(case["available"]), case["count"]))

    assert taken == {
        443: "8-12,16-20,24-26,40-44,48-52,56-58",
        820: "13-19,21-27,29-35,37-43,45-48,56,61-67,69-75,77-83,85-91,93-95",
        2083: "1-2,4-5,9,11,14-18,21-25,28-31,33,35,38-39,48-53,56-57,59-62",
        3323: "13-17,21-25,29-31,45-49,53-57,61-63",
    }


def test_pods_placed_as_a_whole_are_treated_as_by_ourselves():
    """CPUs of pods with pod-level resources, event by event, with and without the defects of the kubelet."""
    compared = 0
    for _, case in cases(OWN_VECTORS / "cpu_trace.jsonl.gz"):
        if "create_error" in case or "PodLevelResourceManagers" not in case["gates"]:
            continue
        provider = test_cpu_trace.create({**case, "release": R38}, case["options"])
        pods = {pod["uid"]: seen_pod({**case, "release": R38}, pod) for pod in case["pods"]}
        traces = [
            test_cpu_trace.Trace({**case, "release": R38}, replace(provider, kubelet_faults=faults), pods)
            for faults in (True, False)
        ]
        for event in case["events"]:
            kubelet, ours = (trace.play(event) for trace in traces)
            if event["op"] == "restart" and kubelet != ours:
                assert kubelet["error"]["raw"] == "default cpuset cannot be empty"
                break
            assert kubelet == ours, (case["id"], event)
            compared += event["op"] == "allocate_pod"

    assert compared > 100


def test_memory_of_pods_placed_as_a_whole_is_kept():
    """A second allocation of a pod changes nothing, and its hints are the NUMA nodes of its memory."""
    compared = 0
    for _, case in cases(OWN_VECTORS / "memory_trace.jsonl.gz"):
        if "PodLevelResourceManagers" not in case.get("gates", ()):
            continue
        placed = {event["pod"] for event in case["events"] if event["op"] == "allocate_pod" and "error" not in event}
        replay = test_memory_trace.Replay(
            {**case, "release": R38},
            {pod["uid"]: seen_pod({**case, "release": R38}, pod) for pod in case["pods"]},
            kubelet_faults=True,
        )
        for event in case["events"]:
            before = replay.ledger
            again = event["op"] == "allocate_pod" and event["pod"] in before.pod_held
            try:
                replay.step(event, test_memory_trace.state_after(event))
            except AssertionError:
                if not again:
                    break  # the answers differ since an earlier event
            if again:
                assert event["pod"] in placed
                assert replay.ledger == before, (case["id"], event)
                compared += 1

    assert compared


@pytest.mark.parametrize("name", ["cpu", "memory"])
def test_state_files_are_read_as_by_1_37(name):
    folder = OWN_VECTORS / "checkpoints"
    check = {"cpu": test_checkpoints.check_cpu, "memory": test_checkpoints.check_memory}[name]
    for _, case in plain_cases(folder / f"index-{name}.jsonl"):
        check({**case, "release": R38}, folder)
