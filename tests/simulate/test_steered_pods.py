"""Simulated clusters whose pods are steered to a NUMA node."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alignup.align.settings import Policy
from alignup.align.workload.names import MARKER
from alignup.simulate.arrivals import GANG_LABEL
from alignup.simulate.cluster_simulation import ClusterSimulation
from alignup.simulate.generate import Profile, generate_for_cluster
from alignup.simulate.schedulers import STEERING
from tests.align.hosts import make_host
from tests.effort import examples
from tests.simulate.clusters import group, of_host, submission
from tests.simulate.test_simulated_claims import TestClusters as Claims
from tests.simulate.test_simulated_claims import pod as claiming_pod


def run(groups, submissions, strategy="alignup-pack", **options):
    simulation = ClusterSimulation(groups, submissions, strategy, **options)
    return simulation, simulation.run()


def large_host():
    """A host with two NUMA nodes, of 7 and 8 CPUs, without devices."""
    made = of_host("n", make_host(shape="pack:2 numa:1 core:8 pu:1"))
    return replace(made, machine=replace(made.machine, devices=()))


def test_packing_leaves_a_numa_node_for_a_large_pod():
    """A pod ends on NUMA node 0, and one of 2 CPUs comes: the kubelet takes node 0, although node 1 has the gap."""
    workload = [
        submission("a", 0, 5, cpu="7"),
        submission("b", 1, cpu="6"),
        submission("c", 6, cpu="2"),
        submission("d", 7, cpu="7"),
    ]
    assert run([large_host()], workload, "alignup")[1].started == 3
    assert run([large_host()], workload, "alignup-pack")[1].started == 4


def test_spreading_takes_the_emptiest():
    workload = [submission("a", 0, cpu="2"), submission("b", 1, cpu="2"), submission("c", 2, cpu="7")]
    started = {strategy: run([large_host()], workload, strategy)[1].started for strategy in STEERING}
    assert started == {"alignup-pack": 3, "alignup-spread": 2}


def test_markers_are_in_no_figure_and_in_no_pod():
    simulation, result = run([group()], [submission("a", 0, cpu="2", gpu="1")])
    assert MARKER not in {*result.use, *result.stranded.devices, *result.stranded.free_devices}
    assert MARKER not in simulation.runs[0].submission.pod.containers[0].resources.limits
    assert result.mispredictions == 0


def test_a_pod_that_is_wide_on_one_of_the_machines_is_not_steered():
    wide = [submission("w", 0, cpu="5", memory="17Gi")]
    groups = [group("small", policy=Policy.RESTRICTED), of_host("large", make_host(shape="pack:2 numa:1 core:8 pu:1"))]
    simulation, result = run(groups, wide)
    assert (result.started, simulation.runs[0].host) == (1, "small-0")


@pytest.mark.parametrize("strategy", sorted(STEERING))
def test_claims_have_the_cpus_beside_their_devices(strategy):
    """Without steering, the CPUs of all pods are on NUMA node 0 first; the devices are on both."""
    aligned = {}
    for name in ("alignup", strategy):
        claims = Claims()
        claims.run(*(claiming_pod(f"p{number}", template="one") for number in range(4)), strategy=name, duration=99)
        assert claims.result.started == 4
        aligned[name] = claims.result.claims.aligned
    assert aligned[strategy] == 4
    assert aligned["alignup"] < 4


@given(st.integers(0, 99), st.sampled_from(sorted(STEERING)), st.sampled_from([*Policy][1:]))
@settings(max_examples=examples(40))
def test_every_pod_goes_where_it_was_steered(seed, strategy, policy):
    """No kubelet rejects one, and no prediction fails, gangs included."""
    groups = [group("n", count=3, policy=policy), group("m", count=2)]
    pods = [
        replace(each, pod=replace(each.pod, labels={GANG_LABEL: "g"})) if number % 10 < 3 and seed % 2 else each
        for number, each in enumerate(generate_for_cluster(Profile.TRAINING, groups, pods=30, load=1.2, seed=seed))
    ]
    _, result = run(groups, pods, strategy)
    assert (result.rejected, result.failed, result.mispredictions) == (0, 0, 0)
