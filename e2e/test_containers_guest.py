"""Pods on a machine with four NUMA nodes, cgroup v2, containerd and device plugins: placements match the decisions.

NUMA nodes 1 and 3 have devices, and CPU 0 is reserved. The small pod fits one NUMA node as a whole. The large one needs
a NUMA node for each of its two containers, so the strict policies reject it in pod scope.
"""
# ruff: noqa: S101

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from alignup.align import bits
from e2e import guest
from e2e.guest import Node, Shape
from e2e.guest_containers import PLUGINS

WHY = guest.missing_node()
SHAPE = Shape(
    sockets=2,
    cores=2,
    threads=2,
    nodes=tuple(Node(384, f"{2 * node}-{2 * node + 1}") for node in range(4)),
    distances={(a, b): 12 if a // 2 == b // 2 else 32 for a in range(4) for b in range(4) if a != b},
)
SLACK = 256  #: pages the kernel may have put elsewhere
TAKEN = 12 << 8  #: pages
HOMES = {id_: node for plugin in PLUGINS for id_, node in plugin["devices"].items()}
POLICIES = ("none", "best-effort", "restricted", "single-numa-node")
SCOPES = ("container", "pod")
STRICT = ("restricted", "single-numa-node")  #: reject pods that are not aligned

Observed = dict[str, Any]

pytestmark = pytest.mark.skipif(WHY is not None, reason=str(WHY))


def observe(function: str, *arguments: object, image: Path) -> Observed:
    script = guest.call_script("e2e.guest_containers", function, *arguments)
    found: Observed = guest.result_of(guest.run(SHAPE, script, image=image))
    return found


@pytest.fixture(scope="module", params=product(POLICIES, SCOPES), ids=" by ".join)
def under(request: pytest.FixtureRequest, node_image: Path) -> tuple[str, str, Observed]:
    """A policy, a scope, and the observations under them."""
    policy, scope = request.param
    return policy, scope, observe("under", policy, scope, image=node_image)


@pytest.fixture(scope="module")
def live(node_image: Path) -> Observed:
    return observe("live", image=node_image)


def nodes_of(cpus: str) -> str:
    return bits.show(bits.of(cpu // 2 for cpu in bits.members(bits.parse(cpus))))


def devices(seen: Observed) -> list[str]:
    """The devices a container printed, from its environment and ``/dev``."""
    lines = seen["log"].splitlines()
    named = [id_ for line in lines if "_DEVICES=" in line for id_ in line.partition("=")[2].split(",")]
    assert sorted(named) == sorted(line for line in lines if line in HOMES), seen["log"]
    return sorted(named)


def check_placement(seen: Observed, placement: Observed) -> None:
    """All observations of a container match its placement."""
    cpus = placement["given"]["cpu"]["cpu"]
    assert seen["held"]["cpuset.cpus"] == seen["where"]["cpus"] == cpus
    assert f"Cpus_allowed_list:\t{cpus}" in seen["log"]
    memory = placement["given"]["memory"]["memory"].partition("=")[0]
    assert seen["held"]["cpuset.mems"] == seen["where"]["nodes"] == memory
    pages = {int(node): count for node, count in seen["where"]["pages"].items()}
    assert sum(pages.values()) > TAKEN
    assert sum(count for node, count in pages.items() if not bits.parse(memory) >> node & 1) < SLACK
    given = placement["given"]["device"].values()
    assert devices(seen) == sorted(id_ for ids in given for id_ in ids.split(","))


def used_nodes(seen: Observed) -> set[str]:
    """The NUMA nodes of a container's CPUs, memory and devices."""
    held = seen["held"]
    return {nodes_of(held["cpuset.cpus"]), held["cpuset.mems"], *(str(HOMES[id_]) for id_ in devices(seen))}


def test_a_small_pod_is_placed_as_decided(under: tuple[str, str, Observed]) -> None:
    policy, scope, found = under
    small = found["small"]

    assert small["status"] == "running"
    for name in ("one", "two"):
        check_placement(small["seen"][name], small["placements"][name])
    if policy != "none":
        used = {name: used_nodes(small["seen"][name]) for name in ("one", "two")}
        assert all(len(nodes) == 1 for nodes in used.values())
        assert scope == "container" or used["one"] == used["two"]
    assert found["code"] == 0


def test_a_large_pod_is_on_several_nodes_or_rejected(under: tuple[str, str, Observed]) -> None:
    policy, scope, found = under
    large = found["large"]

    if scope == "pod" and policy in STRICT:
        assert large["status"] == "rejected TopologyAffinityError"
        assert large["seen"] == {}
        return
    assert large["status"] == "running"
    for name in ("one", "two"):
        check_placement(large["seen"][name], large["placements"][name])
    if policy in STRICT:
        assert all(len(used_nodes(large["seen"][name])) == 1 for name in ("one", "two"))


def test_shared_cpus_change_under_running_containers(live: Observed) -> None:
    own = live["beside"]["pinned"]["one"]["held"]["cpuset.cpus"]
    left = bits.show(bits.parse("0-7") & ~bits.parse(own))

    assert bits.parse(own).bit_count() == 2
    for name in ("besteffort", "fraction"):
        for moment, cpus in (("alone", "0-7"), ("beside", left), ("after", "0-7")):
            one = live[moment][name]["one"]
            assert one["held"]["cpuset.cpus"] == one["where"]["cpus"] == cpus, (name, moment)
    assert live["alone"]["besteffort"]["one"]["id"] == live["after"]["besteffort"]["one"]["id"]


def test_audit_finds_and_fixes_a_changed_cgroup(live: Observed) -> None:
    moved = live["moved"]

    assert [moved[moment]["code"] for moment in ("well", "drifted", "fixed", "after")] == [0, 1, 0, 0], moved
    assert "3 containers: no drift" in moved["well"]["output"]
    assert "besteffort" in moved["drifted"]["output"]
    assert moved["cpus"][0] == moved["cpus"][1] == live["beside"]["besteffort"]["one"]["held"]["cpuset.cpus"]


def test_containers_survive_a_kill_of_the_agent(live: Observed) -> None:
    before, after = live["killed"]["before"], live["killed"]["after"]

    assert live["killed"]["code"] == -9
    for name in ("besteffort", "pinned"):
        for what in ("id", "pids", "held", "restarts"):
            assert before[name]["one"][what] == after[name]["one"][what], (name, what)


def test_a_container_killed_meanwhile_restarts(live: Observed) -> None:
    before, after = live["killed"]["before"]["fraction"]["one"], live["killed"]["after"]["fraction"]["one"]

    assert after["restarts"] == before["restarts"] + 1
    for name in ("cpuset.cpus", "cpuset.mems", "cpu.max", "memory.max"):
        assert after["held"][name] == before["held"][name]


def test_a_restarted_runtime_runs_pods_again(live: Observed) -> None:
    assert (
        live["later"]["later"]["one"]["held"]["cpuset.cpus"] == live["beside"]["fraction"]["one"]["held"]["cpuset.cpus"]
    )
    assert live["later"]["pinned"]["one"]["id"] == live["beside"]["pinned"]["one"]["id"]


def test_there_are_no_orphans_and_the_agent_exits_cleanly(live: Observed) -> None:
    assert live["runtime"]["strays"] == []
    assert live["code"] == 0, live["log"]
