"""The replay of vectors itself: it follows traces that our own set does not have, and takes other sets."""

import copy
import gzip
import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from alignup.align import bits
from alignup.align.release import NEWEST, find_release
from tests.conformance import test_cpu_trace as cpu_traces
from tests.conformance import test_e2e as admissions
from tests.conformance.cpu_cases import seen_pod
from tests.conformance.harness import OWN_VECTORS, Case, cases
from tests.console_runner import ROOT


def test_a_pod_that_a_restart_rejected_can_be_started_later():
    (trace,) = (case for _, case in cases(OWN_VECTORS / "releases/v1.36.4/e2e.jsonl.gz") if case["id"] == "t-00009")
    trace = copy.deepcopy(trace) | {"release": find_release("1.36")}
    restart = next(index for index, event in enumerate(trace["events"]) if event["op"] == "restart")
    event = trace["events"][restart]
    admitted = [readmission["admitted"] for readmission in event["expect"]["readmit"]]
    pods = [event["pod"]["metadata"]["uid"] for event in trace["events"][:restart] if event["op"] == "add"]
    rejected = pods[admitted.index(False)]
    start = {"op": "start", "uid": rejected, "expect": {"state": event["expect"]["state"]}}
    trace["events"] = [*trace["events"][: restart + 1], start]

    admissions.check(trace)


def hybrid_case(**fields) -> Case:
    """Two NUMA nodes, each with a core of two CPUs and two cores of one."""
    cores = [(0, 0, 0), (1, 0, 0), (2, 2, 0), (3, 3, 0), (4, 4, 1), (5, 4, 1), (6, 6, 1), (7, 7, 1)]
    topology = {
        "shape": "hybrid",
        "num_sockets": 1,
        "num_cores": 6,
        "num_numa": 2,
        "num_uncore": 1,
        "cpus": [[cpu, core, 0, node, 0] for cpu, core, node in cores],
    }
    return pod_level_case(topology, **fields)


def many_nodes_case(**fields) -> Case:
    """Eight NUMA nodes of two CPUs."""
    topology = {
        "shape": "eight nodes",
        "num_sockets": 1,
        "num_cores": 16,
        "num_numa": 8,
        "num_uncore": 1,
        "cpus": [[cpu, cpu, 0, cpu // 2, 0] for cpu in range(16)],
    }
    return pod_level_case(topology, **fields)


def pod_level_case(topology: Case, *, options: list[str], cpus: list[int], pod_cpus: str) -> Case:
    """A pod whose containers request so many *cpus*; the kubelet gives it *pod_cpus* as a whole."""

    def amounts(count: int) -> Case:
        return {kind: {"cpu": str(count), "memory": "1Mi"} for kind in ("requests", "limits")}

    containers = [{"name": f"c{index}", **amounts(count)} for index, count in enumerate(cpus)]
    pod = {"uid": "p", "qos": "Guaranteed", "init": [], "containers": containers, "pod_resources": amounts(sum(cpus))}
    return {
        "topology": topology,
        "options": options,
        "gates": ["PodLevelResourceManagers"],
        "release": NEWEST,
        "num_reserved": 1,
        "reserved_cpus_flag": "",
        "pods": [pod],
        "pod_cpus": pod_cpus,
    }


def follow(case: Case, expected: dict[str, str], *, kubelet_faults: bool = False) -> str | None:
    """Follow the allocation of the one pod; its containers get the *expected* CPUs."""
    provider = replace(cpu_traces.create(case, case["options"]), kubelet_faults=kubelet_faults)
    pods = {"p": seen_pod(case, case["pods"][0])}
    given = bits.parse(case["pod_cpus"])
    idle = {"op": "start", "default": bits.show(provider.view.all_cpus), "assignments": {}}
    allocation = {
        "op": "allocate_pod",
        "pod": "p",
        "affinity_none": True,
        "default": bits.show(provider.view.all_cpus & ~given),
        "assignments": {"p": expected},
        "pod_assignments": {"p": bits.show(given)},
    }
    events = [(event, cpu_traces.expected(event)) for event in (idle, allocation)]
    return cpu_traces.follow(cpu_traces.Trace(case, provider, pods), events)


@pytest.mark.parametrize(
    ("case", "expected", "fault"),
    [
        pytest.param(
            many_nodes_case(options=["distribute-cpus-across-numa"], cpus=[4, 4], pod_cpus="2-7,14-15"),
            {"c0": "2-5", "c1": "6-7,14-15"},
            "overwritten combinations",
            id="combinations overwritten",
        ),
        pytest.param(
            hybrid_case(options=[], cpus=[2, 2, 3], pod_cpus="0-1,3-7"),
            {"c0": "3,6", "c1": "0,7", "c2": "0-1,4"},
            "CPUs given that were not available",
            id="a CPU of another container",
        ),
        pytest.param(
            hybrid_case(options=["distribute-cpus-across-numa"], cpus=[3, 4], pod_cpus="0-1,3-7"),
            {"c0": "4,6-7", "c1": "0,3-5"},
            "CPUs given that were not available",
            id="a CPU of another container, distributed",
        ),
    ],
)
def test_faults_inside_a_pod_level_allocation_are_predicted(case, expected, fault):
    assert follow(case, expected, kubelet_faults=True) is None
    assert follow(case, expected) == fault


def test_traces_of_pods_placed_as_a_whole_are_predicted():
    """Answers of the kubelet's own code (1.37.0-rc.1) on uneven machines and with five NUMA nodes or more."""
    faults: Counter[str | None] = Counter()
    for _, case in cases(Path(__file__).parent / "pod_level" / "cpu_trace.jsonl.gz"):
        faults[cpu_traces.compare({**case, "release": NEWEST})] += 1

    assert faults == {
        "overwritten combinations": 20,
        "CPUs given that were not available": 3,
        "a rejected pod keeping CPUs": 3,
    }


def test_an_answer_that_no_known_fault_explains_is_a_failure():
    case = many_nodes_case(options=["distribute-cpus-across-numa"], cpus=[4, 4], pod_cpus="2-7,14-15")

    with pytest.raises(AssertionError, match="event 1"):
        follow(case, {"c0": "2-5", "c1": "6-8,14"})


def run_tests(file: str, vectors: Path) -> subprocess.CompletedProcess[str]:
    """Run the tests of one *file*, never of this one."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file, "--vectors", str(vectors)]
    return subprocess.run(  # noqa: S603 - our own tests
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )


def test_a_set_can_have_only_the_answers_of_other_releases(tmp_path):
    (tmp_path / "releases").mkdir()
    (tmp_path / "releases/v1.36.4").symlink_to(OWN_VECTORS / "releases/v1.36.4")
    run = run_tests("tests/conformance/test_checkpoints.py", tmp_path)

    assert run.returncode == 0, run.stdout + run.stderr
    assert "2 passed, 2 skipped" in run.stdout


@pytest.mark.parametrize(("result", "code"), [("2-3,16-27", 0), ("0-1,16-27", 1)])
def test_answers_of_a_new_kubelet_are_compared(tmp_path, result, code):
    """An i7-14700 whose CPU 0 is reserved."""
    cores = [[cpu, cpu - cpu % 2 if cpu < 16 else cpu, 0, 0, 0] for cpu in range(28)]
    topology = {"shape": "i7-14700", "num_sockets": 1, "num_cores": 20, "num_numa": 1, "num_uncore": 1, "cpus": cores}
    case = {"id": 1, "topology": topology, "options": [], "available": "1-27", "count": 14, "result": result}
    folder = tmp_path / "releases" / "v1.38.0"
    folder.mkdir(parents=True)
    with gzip.open(folder / "cpu_take.jsonl.gz", "wt") as file:
        file.write(json.dumps({"kubernetes": "v1.38.0"}) + "\n" + json.dumps({**case, "error": None}) + "\n")

    run = run_tests("tests/conformance/test_cpu_take.py", tmp_path)

    assert run.returncode == code, run.stdout + run.stderr
    assert "releases/v1.38.0/cpu_take" in run.stdout


def test_make_takes_the_directory_of_such_answers():
    """It leaves out the tests of this file, which start others."""
    command = ["make", "--dry-run", "-o", ".venv/.ready", "check-release", "ANSWERS=/answers"]

    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)  # noqa: S603

    words = run.stdout.replace("\\\n", "").split()
    assert words[words.index("--vectors") + 1].strip('"') == "/answers"
    assert "tests/conformance/test_harness.py" in words[words.index("--ignore") + 1 :]
