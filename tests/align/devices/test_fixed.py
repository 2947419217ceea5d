from dataclasses import replace
from pathlib import Path

import pytest

from alignup.align.devices.fixed import FixedDeviceProvider, unmet_demand, with_fixed_devices
from alignup.align.errors import StateError
from alignup.align.host import Host
from alignup.align.machine import Device
from alignup.align.quantity import Quantity
from alignup.align.settings import Policy, Scope
from alignup.align.workload import Container, Pod, PodClaim, Resources
from alignup.align.workload.names import DEVICES_ANNOTATION
from alignup.machines import load_machine
from tests.align.hosts import make_host, make_pod

EXAMPLE = load_machine(Path(__file__).parents[3] / "examples" / "locality" / "machine.yaml")


def make(policy=Policy.SINGLE_NUMA_NODE, scope=Scope.CONTAINER):
    host = make_host(policy, scope)
    machine = replace(host.machine, devices=())
    return Host(machine, host.settings, others=[FixedDeviceProvider(machine.kubelet_view().all_nodes)])


def decide(host, pod, *nodes, container="app"):
    devices = tuple(Device("gpu", f"gpu-{number}", nodes=mask) for number, mask in enumerate(nodes))
    host.ledger = with_fixed_devices(host.ledger, pod.uid, {container: {"gpu": devices}})
    return host.decide(pod)


@pytest.mark.parametrize("node", [0, 1])
@pytest.mark.parametrize("scope", list(Scope))
def test_cpus_and_memory_are_beside_the_device(node, scope):
    host = make(scope=scope)
    (placement,) = decide(host, make_pod(), 1 << node).placements

    assert placement.cpus & ~host.view.node_cpus[node] == 0
    assert [block.nodes for block in placement.memory] == [1 << node]
    assert placement.others == {"fixed-device": {"gpu": "gpu-0"}}


@pytest.mark.parametrize(
    ("policy", "admitted"),
    [(Policy.SINGLE_NUMA_NODE, False), (Policy.RESTRICTED, False), (Policy.BEST_EFFORT, True), (Policy.NONE, True)],
)
def test_devices_on_two_numa_nodes_are_too_far_apart_for_strict_policies(policy, admitted):
    assert decide(make(policy), make_pod(), 1, 2).admitted is admitted


@pytest.mark.parametrize("nodes", [None, 0, 1 << 9])
def test_a_device_near_no_numa_node_of_the_machine_restricts_nothing(nodes):
    assert decide(make(), make_pod(cpu="4"), nodes).admitted  # which only node 1 has


def test_a_device_that_is_near_both_numa_nodes_can_be_on_either():
    (placement,) = decide(make(), make_pod(cpu="4"), 3).placements

    assert placement.hint.nodes == 2


def test_devices_leave_with_their_pod_and_survive_storing():
    host = make()
    pod = make_pod()
    host.apply(decide(host, pod, 2))
    provider = host.others[0]
    fixed = host.ledger.others[provider.name]

    assert provider.from_json(provider.to_json(fixed)) == fixed
    with pytest.raises(StateError, match="the stored devices of pods are invalid"):
        provider.from_json([1])
    host.release(pod.uid)
    assert host.ledger.others[provider.name] == {}


def test_a_demand_is_compared_with_the_devices_of_all_pods():
    gpu, nic = Device("gpu", "0000:11:00.0", 1), Device("claim default/nic", "driver/pool/nic", None)
    devices = {
        "a": {"app": {"gpu": (gpu,), "claim default/nic": (nic,)}},
        "b": {"app": {"gpu": (replace(gpu, id="0000:14:00.0"),)}},
    }
    container = Container("app", Resources(limits={"gpu": Quantity(1)}))
    asking = Pod(name="a", uid="a", containers=(container,), claims=(PodClaim("fast", claim="nic"),))

    def unmet(demand, address=None):
        pod = replace(asking, annotations={DEVICES_ANNOTATION: demand} if demand else {})
        return unmet_demand(devices, pod, EXAMPLE.locality, {nic.id: address} if address else {})

    assert unmet("") == ""
    assert unmet("same-switch=gpu,fast", "0000:1f:00.0") == ""
    assert unmet("same-switch=gpu,fast").endswith(
        "same-switch=gpu,fast: the PCI address of driver/pool/nic (fast) is not "
        "known; name the resources that the demand is about"
    )
    shared = "0000:11:00.0 shares its root complex with 0000:14:00.0 of another pod"
    assert unmet("spread=gpu") == f"container app: the devices do not satisfy spread=gpu: {shared}"
