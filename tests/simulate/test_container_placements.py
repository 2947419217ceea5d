import pytest

from alignup.align import bits
from alignup.align.host import Host
from alignup.align.machine import Device
from alignup.align.memory.ledger import Block
from alignup.align.settings import Policy
from alignup.align.workload import Pod
from alignup.simulate.container_placements import admit, common_nodes, container_placements, on_one_node
from tests.align.hosts import GIB, GPU, NIC, make_host, make_pod
from tests.strategies_pods import container, guaranteed

NODE_0, NODE_1, BOTH = 1, 2, 3


@pytest.mark.parametrize(
    ("sites", "on_one", "nodes"),
    [
        pytest.param([], None, 0, id="no sites"),
        pytest.param([NODE_1], True, NODE_1, id="one site"),
        pytest.param([BOTH], True, BOTH, id="a device on two nodes"),
        pytest.param([NODE_0, BOTH], True, NODE_0, id="a device on two nodes and a resource on one of them"),
        pytest.param([NODE_0, NODE_1], False, BOTH, id="resources on two nodes"),
        pytest.param([NODE_0, NODE_1, BOTH], False, BOTH, id="resources on two nodes and a device on both"),
    ],
)
def test_common_nodes(sites, on_one, nodes):
    assert on_one_node(sites) is on_one
    assert common_nodes(sites) == nodes


def placement_of(kubelet: Host, wanted: Pod):
    decision = admit(kubelet, wanted)
    assert decision.admitted
    (placement,) = container_placements(kubelet, decision.placements)
    return placement


def test_cpus_memory_and_devices_on_one_node():
    placement = placement_of(make_host(), make_pod("a", cpu="2", memory="1Gi", gpu="1"))

    assert bits.show(placement.cpus) == "1-2"
    assert placement.memory == (Block(NODE_0, "memory", GIB),)
    assert placement.devices == {GPU: ("gpu-0",)}
    assert (placement.on_one, placement.nodes) == (True, NODE_0)


def test_cpus_on_two_nodes():
    placement = placement_of(make_host(Policy.BEST_EFFORT, memory=False), make_pod("a", cpu="5"))

    assert (placement.on_one, placement.nodes) == (False, BOTH)


def test_memory_on_two_nodes():
    placement = placement_of(make_host(Policy.BEST_EFFORT), make_pod("a", cpu="1", memory="20Gi"))

    assert (placement.on_one, placement.nodes) == (False, BOTH)


def test_a_container_on_shared_cpus_has_no_nodes():
    kubelet = make_host(memory=False)
    shared = Pod(name="s", uid="s", containers=(container("app", {"cpu": "500m"}),))

    assert placement_of(kubelet, shared).on_one is None


@pytest.mark.parametrize(
    ("nodes", "on_one"),
    [
        pytest.param(None, None, id="no topology"),
        pytest.param(0, None, id="no nodes"),
        pytest.param(1 << 9, None, id="an unknown node"),
        pytest.param(BOTH, True, id="two nodes"),
    ],
)
def test_devices_with_unusual_topology(nodes, on_one):
    machine = make_host().machine.with_reported([Device(NIC, "x", nodes=nodes)])
    lenient = Host(machine, make_host(Policy.BEST_EFFORT, memory=False).settings)

    placement = placement_of(lenient, Pod(name="d", uid="d", containers=(container("app", {}, {NIC: "1"}),)))

    assert placement.on_one is on_one


def test_every_container_has_a_placement():
    wanted = Pod(
        name="two",
        uid="two",
        init=(guaranteed("init", {"cpu": "1", "memory": "1Mi"}),),
        containers=(guaranteed("app", {"cpu": "3", "memory": "1Mi"}),),
    )
    kubelet = make_host()
    placements = container_placements(kubelet, admit(kubelet, wanted).placements)

    assert [placement.container for placement in placements] == ["init", "app"]
    assert [placement.cpus.bit_count() for placement in placements] == [1, 3]
