"""The worked examples and verification procedures of the published designs; docs/designs.md lists every item.

Each test names the design and its section.
"""

import runpy
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from alignup.align import bits
from alignup.align.cpus.options import CpuSettings
from alignup.align.decision import shown_hints
from alignup.align.errors import SettingsError
from alignup.align.host import Host, Settings
from alignup.align.machine import Distances
from alignup.align.quantity import Quantity
from alignup.align.settings import FeatureGates, Policy, TopologyOptions, TopologySettings
from alignup.align.workload import Container, Pod, Resources
from alignup.align.workload.validation import accept
from alignup.machines.synthetic import parse

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "announcement.py"))
ALIGNED, GPU, NIC = (EXAMPLE[name] for name in ("ALIGNED", "GPU", "NIC"))
announcement_machine, announcement_host, announcement_pod = (
    EXAMPLE[name] for name in ("announcement_machine", "host", "pod")
)
FOUR = ((10, 11, 12, 12), (11, 10, 12, 12), (12, 12, 10, 11), (12, 12, 11, 10))
EIGHT = tuple(row + (30,) * 4 for row in FOUR) + tuple((30,) * 4 + row for row in FOUR)


def distances(rows):
    return Distances(dict(enumerate(dict(enumerate(row)) for row in rows)))


def average(table, *nodes):
    return table.total(bits.of(nodes)) / len(nodes) ** 2


def pod(name, cpus):
    limits = {"cpu": Quantity.of(cpus), "memory": Quantity.parse("1Gi")}
    return accept(Pod(name=name, uid=name, containers=(Container("app", Resources(limits=limits)),)))


def host(description, *, policy=Policy.BEST_EFFORT, reserved=1, rows=None, closest=False, socket=False):
    machine = parse(description)
    machine = replace(machine, distances=distances(rows)) if rows else machine
    reservation = Quantity.of(reserved)
    settings = Settings(
        topology=TopologySettings(policy=policy, options=TopologyOptions(prefer_closest=closest)),
        cpus=CpuSettings(
            policy="static", options={"align-by-socket": "true"} if socket else {}, reservation=reservation
        ),
        reservation={"cpu": reservation},
        gates=FeatureGates({"CPUManagerPolicyAlphaOptions": True}),
    )
    return Host(machine, settings)


def cpus_of(decision):
    (placement,) = decision.placements
    return placement.cpus


class TestKep3545:
    """Improved multi-NUMA alignment: prefer-closest-numa-nodes."""

    @pytest.mark.parametrize(
        ("nodes", "expected"), [((0, 1), 10.5), ((0, 2), 11), ((0, 3), 11), ((2, 3), 10.5), ((1, 2), 11)]
    )
    def test_the_averages_of_four_nodes(self, nodes, expected):
        """Calculating average distance, the first table."""
        assert average(distances(FOUR), *nodes) == expected

    def test_the_averages_of_eight_nodes(self):
        """Calculating average distance, the second table; the design divides the sum 100 by 6 instead of by 9."""
        assert average(distances(EIGHT), 0, 4) == 20
        assert average(distances(EIGHT), 0, 1, 2) == pytest.approx(100 / 9)

    def test_fewer_nodes_are_preferred_even_if_they_are_far_apart(self):
        """Calculating average distance, the last paragraph: two nodes on two sockets before three nodes on one."""
        placing = host("numa:8 core:4 pu:1", rows=EIGHT, closest=True, reserved=1)
        for name, count in (("a", 3), ("b", 3), ("c", 3), ("d", 3)):
            assert placing.admit(pod(name, count)).admitted  # leaves 0, 1, 1 and 1 CPUs on nodes 0 to 3
        for name in ("e", "f", "g"):
            assert placing.admit(pod(name, 4)).admitted  # nodes 4 to 6 are full

        decision = placing.decide(pod("wide", 5))

        (step,) = decision.steps
        assert bits.show(step.hint.nodes) == "1,7"  # not 1-3 with an average of 11

    def test_the_procedure_to_verify_the_feature(self):
        """How can someone using this feature know that it is working: 8 CPUs on each of 4 nodes, 16 are requested."""
        rows = ((10, 12, 20, 20), (12, 10, 20, 20), (20, 20, 10, 12), (20, 20, 12, 10))
        closest = host("numa:4 core:8 pu:1", rows=rows, closest=True).decide(pod("web", 16))
        without = host("numa:4 core:8 pu:1", rows=rows).decide(pod("web", 16))

        assert bits.show(cpus_of(closest)) == "16-31"  # nodes 2 and 3; one CPU of node 0 is reserved
        assert bits.show(cpus_of(without)) == "8-23"  # nodes 1 and 2

    @pytest.mark.parametrize("policy", [Policy.NONE, Policy.SINGLE_NUMA_NODE])
    def test_it_has_no_effect_under_other_policies(self, policy):
        """Proposed change: refines best-effort and restricted only."""
        for count in (3, 8):
            decisions = [
                host("numa:4 core:8 pu:1", rows=FOUR, closest=closest, policy=policy).decide(pod("web", count))
                for closest in (True, False)
            ]
            assert decisions[0] == decisions[1]

    def test_without_distances_the_kubelet_does_not_start(self):
        """What are other known failure modes: cAdvisor exposes no distances."""
        machine = replace(parse("numa:2 core:4 pu:1"), distances=None)
        topology = TopologySettings(policy=Policy.RESTRICTED, options=TopologyOptions(prefer_closest=True))

        with pytest.raises(SettingsError, match="error getting NUMA distances from cadvisor"):
            Host(machine, Settings(topology=topology))


class TestKep3327:
    """CPU manager policy option to align by socket."""

    def test_the_procedure_to_verify_the_feature(self):
        """How can someone using this feature know that it is working: two pods, 4 * CPUs per NUMA node - 8 each."""
        placing = host("pack:2 numa:4 core:4 pu:2", socket=True, policy=Policy.RESTRICTED)
        sockets = placing.view.socket_cpus.values()

        for name in ("first", "second"):
            cpus = cpus_of(placing.admit(pod(name, 4 * 8 - 8)))
            assert cpus.bit_count() == 24
            assert len([socket for socket in sockets if socket & cpus]) == 1

    def test_sets_of_nodes_on_one_socket_are_preferred(self):
        """Proposed change: socket-aligned hints are preferred beside those with the fewest nodes."""
        preferred = {}
        for socket in (True, False):
            (step,) = host("pack:2 numa:2 core:4 pu:1", socket=socket).decide(pod("web", 2)).steps
            (cpu,) = [resource for resource in step.resources if resource.resource == "cpu"]
            sets = [bits.of(nodes) for width in (1, 2, 3, 4) for nodes in combinations(range(4), width)]
            preferred[socket] = {bits.show(nodes) for nodes in sets if cpu.hints.prefers(nodes)}

        assert preferred[False] == {"0", "1", "2", "3"}
        assert preferred[True] - preferred[False] == {"0-1", "2-3"}

    def test_cpus_of_the_socket_come_before_those_of_another(self):
        """Proposed change, allocateCPUs: the hint is expanded to whole sockets."""
        placing = host("pack:2 numa:2 core:4 pu:1", socket=True)
        placing.admit(pod("first", 3))  # on node 0, beside the reserved CPU
        placing.admit(pod("second", 3))  # on node 1

        cpus = cpus_of(placing.admit(pod("third", 4)))

        assert cpus & placing.view.socket_cpus[0] in (0, cpus)

    @pytest.mark.parametrize(
        ("description", "policy", "text"),
        [
            ("pack:2 numa:2 core:4 pu:1", Policy.SINGLE_NUMA_NODE, "incompatible with CPUManager align-by-socket"),
            ("numa:1 pack:2 core:4 pu:1", Policy.BEST_EFFORT, "Align by socket is not compatible with hardware"),
        ],
    )
    def test_what_it_is_not_applicable_to_is_an_error(self, description, policy, text):
        """Proposed change, the last paragraphs: single-numa-node, and several sockets per NUMA node."""
        with pytest.raises(SettingsError, match=f"(?i){text}"):
            host(description, policy=policy, socket=True)


class TestAnnouncement:
    """Kubernetes Topology Manager moves to beta."""

    def test_the_pod_gets_one_of_the_aligned_allocations(self):
        """The policies: CPUs, GPU and NIC of one NUMA node."""
        machine = announcement_machine()
        allocations = {
            (bits.of(pair), f"gpu-{node}", f"nic-{node}")
            for node, cpus in machine.kubelet_view().node_cpus.items()
            for pair in combinations(bits.members(cpus), 2)
        }
        (placement,) = announcement_host(Policy.SINGLE_NUMA_NODE).admit(announcement_pod("a", **ALIGNED)).placements

        assert len(allocations) == 12
        assert (placement.cpus, placement.devices[GPU][0], placement.devices[NIC][0]) in allocations

    def test_the_second_container_goes_to_the_other_node(self):
        """HintProviders: what the first container has is taken; the post leaves out hints that are not preferred."""
        placing = announcement_host(Policy.RESTRICTED)
        placing.admit(announcement_pod("first", **ALIGNED))
        (step,) = placing.admit(announcement_pod("second", **ALIGNED)).steps

        devices = [shown_hints(resource).hints for resource in step.resources if resource.resource in (GPU, NIC)]
        assert [[str(hint) for hint in hints if hint.preferred] for hints in devices] == [["{1}"], ["{1}"]]
        assert str(step.hint) == "{1}"

    def test_a_preferred_hint_is_one_that_an_empty_machine_could_satisfy(self):
        """TopologyHints: two CPUs are left on different nodes, so the only hint is not preferred."""
        placing = announcement_host(Policy.RESTRICTED)
        placing.admit(announcement_pod("a", cpu="2", memory="1Gi"))
        placing.admit(announcement_pod("b", cpu="3", memory="1Gi"))
        decision = placing.decide(announcement_pod("late", cpu="2", memory="1Gi"))

        (step,) = decision.steps
        (cpu,) = [resource for resource in step.resources if resource.resource == "cpu"]
        assert [str(hint) for hint in shown_hints(cpu).hints] == ["{0-1} not preferred"]
        assert decision.rejection is not None
        assert decision.rejection.reason == "TopologyAffinityError"

    def test_restricted_admits_what_no_node_alone_could_ever_hold(self):
        """The policies: two devices are requested, and the only two are on different NUMA nodes."""
        outcomes = {
            policy: announcement_host(policy).decide(announcement_pod("a", **{GPU: "2"})).admitted for policy in Policy
        }

        assert outcomes == {
            Policy.NONE: True,
            Policy.BEST_EFFORT: True,
            Policy.RESTRICTED: True,
            Policy.SINGLE_NUMA_NODE: False,
        }
