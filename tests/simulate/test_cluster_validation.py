"""Kubelets of a cluster simulation decide as ``simulate.node_simulation`` and as recorded kubelets do."""

import json
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given

from alignup.align import bits
from alignup.align.settings import Policy
from alignup.align.workload.validation import PodSource, accept
from alignup.kubernetes.manifests.pod_decoder import read_pod
from alignup.simulate import node_simulation as simulate
from alignup.simulate.arrivals import PodArrival, PodDeparture, PodSubmission, WorkloadEvent, from_events
from alignup.simulate.cluster_hosts import HOSTNAME_LABEL, HostGroup
from alignup.simulate.cluster_simulation import ClusterSimulation
from alignup.simulate.container_placements import container_placements
from alignup.simulate.generate import Profile, generate_for_cluster
from tests.align.hosts import make_host
from tests.recorded.replay import load
from tests.recorded.setting import machine_of, release_of, settings_of
from tests.simulate.clusters import DirectScheduler, group, of_host
from tests.simulate.workloads import some, workloads

RECORDED = Path(__file__).parents[1] / "recorded" / "kubelet"


@some
@given(workloads(max_pods=8))
def test_one_host_decides_as_a_single_simulation_does(events):
    kubelet = make_host()
    decided = {}
    simulation = ClusterSimulation(
        [of_host("n", kubelet)],
        from_events(events),
        retries=0,
        make=DirectScheduler,
        recorder=lambda _, __, pod, decision: decision and decided.update({pod.uid: decision}),
    )
    simulation.run()

    for outcome in simulate.run(kubelet, events).outcomes:
        decision = decided[outcome.pod.uid]
        assert decision.rejection == outcome.rejection
        if outcome.admitted:
            assert container_placements(kubelet, decision.placements) == outcome.placements


@pytest.mark.parametrize("strategy", ["alignup", "aggregate", "blind-least-allocated"])
def test_the_history_of_each_host_is_that_of_a_single_simulation(strategy):
    """Whatever the scheduler sent there, ``simulate.node_simulation`` admits and places the same pods."""
    groups = [group("n", count=2), group("m", count=2, policy=Policy.BEST_EFFORT)]
    events: dict[str, list[WorkloadEvent]] = defaultdict(list)
    decisions = defaultdict(list)

    def record(_, name, pod, decision):
        time = float(len(events[name]))  # only the order matters
        if decision is None:
            events[name].append(PodDeparture(time, pod.uid))
        else:
            events[name].append(PodArrival(time, pod))
            decisions[name].append(decision)

    pods = generate_for_cluster(Profile.MIXED, groups, seed=5, pods=60, load=2.0)
    simulation = ClusterSimulation(groups, pods, strategy, recorder=record)
    simulation.run()

    assert len(events) == 4
    for simulated in simulation.hosts:
        single = make_host(simulated.group.settings.topology.policy)
        result = simulate.run(single, events[simulated.name])
        expected = [made.rejection for made in decisions[simulated.name]]
        assert [outcome.rejection for outcome in result.outcomes] == expected
        assert single.ledger == simulated.kubelet.ledger


@pytest.mark.parametrize("names", [("align-by-socket-cpu", "prefer-closest-cpu"), ("no-prefer-closest-cpu",)])
def test_recorded_kubelets_decide_the_same(names):
    """Each recording is a host of one cluster; step *i* of each happens at time *i*."""
    groups, submissions, expected, seen = [], [], {}, {}
    for name in names:
        recording = load(RECORDED / f"{name}.json.gz")
        machine = machine_of(recording)
        settings = settings_of(recording["kubelet_config"], machine, release_of(recording))
        groups.append(HostGroup(name=name, machine=machine, settings=settings, names=(name,)))
        ends = {step["name"]: index for index, step in enumerate(recording["steps"]) if step["op"] == "delete"}
        for index, step in enumerate(recording["steps"]):
            if step["op"] == "pod":
                pod = accept(read_pod(step["manifest"]), source=PodSource.STATIC, host="vm")
                duration = float(ends[step["pod"]] - index) if step["pod"] in ends else None
                submissions.append(PodSubmission(float(index), pod, duration, {HOSTNAME_LABEL: (name,)}))
                entries = json.loads(step["cpu_manager_state"]).get("entries", {})
                expected[name, index] = step["verdict"] == "admitted", entries

    def record(time, name, _, decision):
        if decision is not None:
            held = (decision.after or decision.before).cpus.held
            shown = {
                uid: {container: bits.show(cpus) for container, cpus in containers.items()}
                for uid, containers in held.items()
            }
            seen[name, int(time)] = decision.admitted, shown

    ClusterSimulation(groups, submissions, retries=0, make=DirectScheduler, recorder=record).run()

    assert len(expected) >= 5
    assert seen == expected
