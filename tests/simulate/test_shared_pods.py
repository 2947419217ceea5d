import pytest

from alignup.align.cpus.options import CpuSettings
from alignup.align.quantity import Quantity
from alignup.align.settings import Policy
from alignup.align.workload import Container, Pod, Resources
from alignup.simulate import node_simulation
from alignup.simulate.arrivals import PodArrival, PodDeparture
from tests.align.hosts import make_host, make_pod
from tests.cli.commands import in_process

NODE = ("--machine", "examples/node/machine.yaml", "--config", "examples/node/kubelet.yaml")


def shared(uid, cpu="1", memory=None):
    limits = {} if memory is None else {"memory": Quantity.parse(memory)}
    resources = Resources(requests={"cpu": Quantity.parse(cpu)}, limits=limits)
    return Pod(name=uid, uid=uid, containers=(Container("app", resources),))


def simulate(*events, shape="pack:2 numa:1 core:4 pu:1"):
    return node_simulation.run(make_host(shape=shape), events, shared_pool=True).shared


def test_the_kubelet_spreads_a_pod_over_all_numa_nodes_and_the_plugin_does_not():
    result = simulate(PodArrival(0, shared("a")), PodDeparture(10, "a"))

    assert (result.kubelet.nodes, result.kubelet.on_one, result.kubelet.locality) == (2, 0, 0.5)
    assert (result.assist.nodes, result.assist.on_one, result.assist.locality) == (1, 1, 1)
    assert (result.kubelet.load, result.assist.load) == (1 / 8, 1 / 4)
    assert (result.pods, result.moves) == (1, 0)


def test_means_are_over_the_time_of_pods():
    """A pod that needs both NUMA nodes runs for 30 s, one that does not for 10 s."""
    result = simulate(
        PodArrival(0, shared("wide", "6")),
        PodDeparture(30, "wide"),
        PodArrival(30, shared("narrow")),
        PodDeparture(40, "narrow"),
    )

    assert result.assist.nodes == pytest.approx((30 * 2 + 10) / 40)
    assert result.assist.on_one == pytest.approx(10 / 40)


def test_pods_with_exclusive_cpus_shrink_the_pool_and_are_not_counted():
    result = simulate(PodArrival(0, make_pod("exclusive", cpu="4")), PodArrival(0, shared("a")), PodDeparture(10, "a"))

    assert result.pods == 1
    assert (result.kubelet.nodes, result.kubelet.locality) == (1, 1)


def test_a_pod_that_makes_way_has_moved():
    result = simulate(
        PodArrival(0, shared("a")),
        PodArrival(0, shared("b")),
        PodArrival(5, make_pod("exclusive", cpu="4")),
        PodDeparture(10, "a"),
    )

    assert result.moves == 1


def test_without_a_cpu_manager_all_cpus_are_shared():
    host = make_host(Policy.NONE, cpus=CpuSettings())
    events = (PodArrival(0, make_pod("a", cpu="4")), PodDeparture(10, "a"))
    result = node_simulation.run(host, events, shared_pool=True).shared

    assert result is not None
    assert (result.pods, result.kubelet.nodes, result.assist.nodes) == (1, 2, 1)


def test_without_pods_in_the_pool_there_is_nothing_to_measure():
    result = simulate(PodArrival(0, make_pod("exclusive")))

    assert (result.pods, result.kubelet.nodes, result.assist.load) == (0, 0, 0)
    assert simulate().pods == 0


def test_the_command_shows_it_for_one_node_only():
    words = ("simulate", "--generate", "inference", "--count", "20", *NODE, "--shared-pool")
    done = in_process(*words)
    assert "NUMA nodes that a pod may use" in done.stdout
    assert '"sharedPool"' in in_process(*words, "-o", "json").stdout
    assert "--shared-pool" in in_process(*words, "--nodes", "2").stderr
    assert in_process(*words, "--compare", "policy").returncode == 2
