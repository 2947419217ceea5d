"""``alignup run`` and ``alignup audit`` on a machine with four NUMA nodes, two sockets and cgroup v2.

The distances are those of KEP-3545: NUMA nodes 0 and 1 are close, and so are 2 and 3. CPU 0 is reserved, so four CPUs
fit NUMA nodes 1 and 2, 1 and 3, or 2 and 3.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from alignup.align import bits
from e2e import disk, guest
from e2e.guest import Node, Shape
from e2e.marks import needs

SHAPE = Shape(
    sockets=2,
    cores=2,
    threads=2,
    nodes=tuple(Node(256, f"{2 * node}-{2 * node + 1}") for node in range(4)),
    distances={
        (a, b): 10 if a == b else 11 if {a, b} in ({0, 1}, {2, 3}) else 12 for a in range(4) for b in range(4) if a != b
    },
)
SOCKETS = {0: bits.parse("0-3"), 1: bits.parse("4-7")}
SLACK = 256  #: pages the kernel may have put elsewhere

Observed = dict[str, Any]

pytestmark = needs(guest.missing())


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Observed:
    scratch = tmp_path_factory.mktemp("guest")
    image = disk.pack(disk.fill(scratch / "root", extras=()), scratch / "root.ext4", size=400)
    script = (Path(__file__).parent / "guest_runs.py").read_text("utf-8")
    printed = guest.run(SHAPE, script, image=image)
    observed: Observed = json.loads(printed.splitlines()[-1])
    return observed


def elsewhere(process: Observed, nodes: str) -> int:
    """Count the pages of a process that are not on *nodes*."""
    return sum(count for node, count in process["pages"].items() if not bits.parse(nodes) >> int(node) & 1)


@pytest.mark.parametrize("policy", ["none", "best-effort", "restricted", "single-numa-node", "affinity"])
def test_cpus_and_memory_match_the_decision(seen: Observed, policy: str) -> None:
    process = seen["under_each_policy"][policy]
    environment = process["environment"]

    assert process["cpus"] == environment["ALIGNUP_CPUS"]
    assert bits.parse(process["cpus"]).bit_count() == 2
    assert environment["ALIGNUP_MEMORY_NODES"]
    assert elsewhere(process, environment["ALIGNUP_MEMORY_NODES"]) < SLACK
    assert sum(process["pages"].values()) > 20 << 8
    if policy != "affinity":
        assert process["nodes"] == environment["ALIGNUP_MEMORY_NODES"]
        assert process["group"].startswith("0::/alignup-")


def test_single_numa_node_uses_one_node(seen: Observed) -> None:
    environment = seen["under_each_policy"]["single-numa-node"]["environment"]

    assert environment["ALIGNUP_NUMA_NODES"] == environment["ALIGNUP_MEMORY_NODES"]
    assert bits.parse(environment["ALIGNUP_NUMA_NODES"]).bit_count() == 1


def test_a_run_that_cannot_be_aligned_is_rejected(seen: Observed) -> None:
    assert seen["rejected"]["code"] == 124
    assert "TopologyAffinityError" in seen["rejected"]["output"]
    assert "What does not fit" in seen["rejected"]["output"]


def test_close_nodes_are_preferred(seen: Observed) -> None:
    assert seen["closest"]["far"]["environment"]["ALIGNUP_NUMA_NODES"] == "1-2"
    assert seen["closest"]["close"]["environment"]["ALIGNUP_NUMA_NODES"] == "2-3"
    assert seen["closest"]["close"]["cpus"] == "4-7"


def test_both_runs_stay_within_a_socket(seen: Observed) -> None:
    cpus = [bits.parse(seen["by_socket"][name]["cpus"]) for name in ("first", "second")]

    assert not cpus[0] & cpus[1]
    for mask in cpus:
        assert mask.bit_count() == 3
        assert any(not mask & ~socket for socket in SOCKETS.values())
    assert [seen["by_socket"][name]["code"] for name in ("first", "second")] == [0, 0]


def test_audit_finds_and_fixes_drift(seen: Observed) -> None:
    drift = seen["drift"]
    kinds = {record["kind"] for record in json.loads(drift["drifted"]["output"])["drift"]}

    assert drift["before"] == {"code": 0, "output": "2 runs: no drift\n"}
    assert drift["drifted"]["code"] == 1
    assert {"group", "cpus", "memory", "pages"} <= kinds
    assert drift["fixed"]["code"] == 0, drift["fixed"]["output"]
    for printed, moved, back in zip(drift["printed"], drift["moved"], drift["back"], strict=True):
        nodes = printed["environment"]["ALIGNUP_MEMORY_NODES"]
        assert elsewhere(moved, nodes) > SLACK
        assert elsewhere(back, nodes) < SLACK
        assert (moved["cpus"], back["cpus"]) == ("0-7", printed["cpus"])
    assert "not in it" in drift["left"]["output"]
    assert [drift[step]["code"] for step in ("left", "rejoined", "after")] == [1, 0, 0]


def test_runs_leave_nothing_behind(seen: Observed) -> None:
    assert seen["drift"]["codes"] == [0, 0]
    assert seen["drift"]["groups"] == []
