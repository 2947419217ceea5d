"""The comparison of replays with recordings finds differences; it needs no guest."""
# ruff: noqa: S101

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from alignup.align import bits
from e2e import recorded
from tests.recorded.replay import HOST, PREFIX, Run, load

RECORDINGS = Path(__file__).parent.parent / "tests" / "recorded" / "kubelet"

Document = dict[str, Any]


def as_ours(recording: Mapping[str, Any]) -> Document:
    """The results of an agent that behaves exactly as the kubelet."""
    return {"initial": shown(recording["initial"]), "steps": [shown(step) for step in recording["steps"]]}


def shown(step: Mapping[str, Any]) -> Document:
    pods = [{**one, "name": one["name"].removesuffix(f"-{HOST}")} for one in step["pods"]]
    entries = json.loads(step["cpu_manager_state"]).get("entries") or {}
    there = {one["uid"] for one in pods if one["status"]["phase"] == "Running"}
    given = {
        uid: [
            {"container": name, "hint": {"nodes": homes(cpus)}, "given": {"cpu": {"cpu": cpus}}}
            for name, cpus in own.items()
        ]
        for uid, own in entries.items()
        if uid in there
    }
    listed = [
        {**one, "name": one["name"].removesuffix(f"-{HOST}")} for one in step["podresources_list"]["pod_resources"]
    ]
    return copy.deepcopy(
        {
            **{name: step[name] for name in ("verdict", "reason", "qosClass") if name in step},
            "message": (step.get("message") or "").removeprefix(PREFIX) or None,
            "pods": pods,
            "placements": given,
            "cgroups": [{**one, "pod": one["pod"].removesuffix(f"-{HOST}")} for one in step["cgroups"]],
            "podresources_list": {"pod_resources": listed},
            "podresources_allocatable": step["podresources_allocatable"],
        }
    )


def homes(cpus: str) -> str:
    """The NUMA nodes of CPUs; each node has two."""
    return bits.show(bits.of(cpu // 2 for cpu in bits.members(bits.parse(cpus))))


def compared(name: str, ours: Document) -> Run:
    run = Run(name)
    recorded.compare(load(RECORDINGS / f"{name}.json.gz"), ours, run)
    return run


@pytest.mark.parametrize("name", ["policy-restricted-container", "policy-none-container", "sidecar", "hugepages"])
def test_an_agent_like_the_kubelet_has_no_differences(name: str) -> None:
    recording = load(RECORDINGS / f"{name}.json.gz")

    run = compared(name, as_ours(recording))

    assert run.failures == []
    assert run.compared == len(recording["steps"]) + 1


@pytest.mark.parametrize(
    ("number", "before", "after"),
    [
        pytest.param(2, '"verdict": "rejected"', '"verdict": "admitted"', id="a pod admitted"),
        pytest.param(2, '"TopologyAffinityError"', '"OutOfcpu"', id="another reason"),
        pytest.param(2, "Topology locality", "locality", id="another message"),
        pytest.param(0, '"qosClass": "Guaranteed"', '"qosClass": "Burstable"', id="another QoS class"),
        pytest.param(0, '"phase": "Running"', '"phase": "Pending"', id="a pod that does not run"),
        pytest.param(1, '"cpu": "2-3"', '"cpu": "4-5"', id="other CPUs"),
        pytest.param(1, '"cpuset.cpus": "2-3"', '"cpuset.cpus": "2"', id="a cgroup with other CPUs"),
        pytest.param(1, '"cpuset.mems": "1"', '"cpuset.mems": "0"', id="a cgroup with other memory nodes"),
        pytest.param(0, '"cpu.weight": "39"', '"cpu.weight": "100"', id="another weight"),
        pytest.param(0, '"cpu.max": "max 100000"', '"cpu.max": "100000 100000"', id="a quota"),
        pytest.param(0, '"memory.max": "33554432"', '"memory.max": "max"', id="no memory limit"),
        pytest.param(5, '"ID": "3"', '"ID": "1"', id="devices or memory on another node"),
        pytest.param(
            5,
            '["nic-3"], "topology": {"nodes": [{"ID": "3"',
            '["nic-0"], "topology": {"nodes": [{"ID": "0"',
            id="a device on another node",
        ),
        pytest.param(0, '"cpu_ids": ["1"]', '"cpu_ids": []', id="no CPUs listed"),
        pytest.param(0, '"example.com/nic"', '"example.com/wlan"', id="other allocatable devices"),
        pytest.param(0, '"size": "388698112"', '"size": "288698112"', id="much less allocatable memory"),
    ],
)
def test_differences_are_found(number: int, before: str, after: str) -> None:
    ours = as_ours(load(RECORDINGS / "policy-restricted-container.json.gz"))
    text = json.dumps(ours["steps"][number])
    assert before in text
    ours["steps"][number] = json.loads(text.replace(before, after, 1))

    run = compared("policy-restricted-container", ours)

    assert len(run.failures) == 1
    assert run.failures[0].startswith(f"step {number} ")


def test_missing_steps_are_found() -> None:
    ours = as_ours(load(RECORDINGS / "sidecar.json.gz"))
    ours["steps"] = ours["steps"][:2]

    assert compared("sidecar", ours).failures == ["only 2 of 6 steps were replayed"]


def test_following_a_defect_of_the_kubelet_is_a_difference() -> None:
    recording = load(RECORDINGS / "align-by-socket.json.gz")

    run = compared("align-by-socket", as_ours(recording))

    assert run.failures
    assert run.compared + run.apart.total() + len(run.failures) == len(recording["steps"]) + 1


REFUSED: Document = {
    "name": "unknown scope",
    "verdict": "refused",
    "log": ['run.go:72] "command failed" err="error: topologyManagerScope \\"node\\" must be one of: pod, container"'],
}


@pytest.mark.parametrize(
    "location",
    [
        "",
        "--config: ",
        "topologyManagerScope: ",
        "/etc/kubelet.json:3: topologyManagerScope: ",
        "/etc/kubelet.json: memory[0].node: ",
    ],
)
def test_an_error_with_the_words_of_the_kubelet_has_no_differences(location: str) -> None:
    log = f'alignup: {location}topologyManagerScope "node" must be one of: pod, container\nmore'
    assert recorded.configuration(REFUSED, {"verdict": "refused", "exit_code": 2, "log": log}) == []


@pytest.mark.parametrize(
    "ours",
    [
        {"log": "alignup: /etc/kubelet.json:3: topologyManagerScope: unknown scope"},
        {"log": "alignup: /etc/kubelet.json:3: topologyManagerScope: "},
        {"log": ""},
        {"verdict": "started", "exit_code": None},
        {"exit_code": 0},
    ],
)
def test_other_errors_are_differences(ours: Document) -> None:
    same = {"verdict": "refused", "exit_code": 2, "log": 'alignup: topologyManagerScope "node" must be one of: pod'}
    assert recorded.configuration(REFUSED, same) == []
    assert recorded.configuration(REFUSED, {**same, **ours}) != []
