"""``alignup run`` and ``alignup audit`` where there is something to align: four NUMA nodes, two sockets, cgroup v2.

The distances are those of KEP-3545: nodes 0 and 1 are close, nodes 2 and 3 are. CPU 0 is kept back, so that four CPUs
are to be had on nodes 1 and 2, 1 and 3, or 2 and 3.
"""
# ruff: noqa: S101 - a test, as those in tests/

import json
from pathlib import Path
from typing import Any

import pytest

from alignup.align import bits
from e2e import disk, guest
from e2e.guest import Node, Shape

WHY = guest.missing()
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

Seen = dict[str, Any]

pytestmark = pytest.mark.skipif(WHY is not None, reason=str(WHY))


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    scratch = tmp_path_factory.mktemp("guest")
    image = disk.pack(disk.fill(scratch / "root", extras=()), scratch / "root.ext4", size=400)
    script = (Path(__file__).parent / "guest_runs.py").read_text("utf-8")
    printed = guest.run(SHAPE, script, image=image, seconds=230)
    found: Seen = json.loads(printed.splitlines()[-1])
    return found


def elsewhere(process: Seen, nodes: str) -> int:
    """Pages of a process that are not on *nodes*."""
    return sum(count for node, count in process["pages"].items() if not bits.parse(nodes) >> int(node) & 1)


@pytest.mark.parametrize("policy", ["none", "best-effort", "restricted", "single-numa-node", "affinity"])
def test_cpus_and_memory_are_where_it_was_decided(seen: Seen, policy: str) -> None:
    one = seen["under_each_policy"][policy]
    told = one["told"]

    assert one["cpus"] == told["ALIGNUP_CPUS"]
    assert bits.parse(one["cpus"]).bit_count() == 2
    assert told["ALIGNUP_MEMORY_NODES"]
    assert elsewhere(one, told["ALIGNUP_MEMORY_NODES"]) < SLACK
    assert sum(one["pages"].values()) > 20 << 8
    if policy != "affinity":
        assert one["nodes"] == told["ALIGNUP_MEMORY_NODES"]
        assert one["group"].startswith("0::/alignup-")


def test_one_node_is_one_node(seen: Seen) -> None:
    told = seen["under_each_policy"]["single-numa-node"]["told"]

    assert told["ALIGNUP_NUMA_NODES"] == told["ALIGNUP_MEMORY_NODES"]
    assert bits.parse(told["ALIGNUP_NUMA_NODES"]).bit_count() == 1


def test_what_cannot_be_aligned_is_refused(seen: Seen) -> None:
    assert seen["refused"]["code"] == 124
    assert "TopologyAffinityError" in seen["refused"]["said"]
    assert "What did not fit" in seen["refused"]["said"]


def test_close_nodes_are_preferred(seen: Seen) -> None:
    assert seen["closest"]["far"]["told"]["ALIGNUP_NUMA_NODES"] == "1-2"
    assert seen["closest"]["close"]["told"]["ALIGNUP_NUMA_NODES"] == "2-3"
    assert seen["closest"]["close"]["cpus"] == "4-7"


def test_both_stay_inside_a_socket(seen: Seen) -> None:
    cpus = [bits.parse(seen["by_socket"][name]["cpus"]) for name in ("first", "second")]

    assert not cpus[0] & cpus[1]
    for own in cpus:
        assert own.bit_count() == 3
        assert any(not own & ~socket for socket in SOCKETS.values())
    assert [seen["by_socket"][name]["code"] for name in ("first", "second")] == [0, 0]


def test_drift_is_found_and_put_back(seen: Seen) -> None:
    drift = seen["drift"]
    kinds = {one["kind"] for one in json.loads(drift["drifted"]["said"])["drift"]}

    assert drift["before"] == {"code": 0, "said": "2 runs: no drift\n"}
    assert drift["drifted"]["code"] == 1
    assert {"group", "cpus", "memory", "pages"} <= kinds
    assert drift["fixed"]["code"] == 0, drift["fixed"]["said"]
    for told, moved, back in zip(drift["told"], drift["moved"], drift["back"], strict=True):
        nodes = told["told"]["ALIGNUP_MEMORY_NODES"]
        assert elsewhere(moved, nodes) > SLACK
        assert elsewhere(back, nodes) < SLACK
        assert (moved["cpus"], back["cpus"]) == ("0-7", told["cpus"])
    assert "not in it" in drift["left"]["said"]
    assert [drift[step]["code"] for step in ("left", "rejoined", "after")] == [1, 0, 0]


def test_nothing_is_left_behind(seen: Seen) -> None:
    assert seen["drift"]["codes"] == [0, 0]
    assert seen["drift"]["groups"] == []
