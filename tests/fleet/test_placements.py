"""Where a pod's resources are."""

from dataclasses import replace

import pytest

from alignup.align import bits
from alignup.align.host import Host
from alignup.align.machine import Device
from alignup.align.memory.ledger import Block
from alignup.align.settings import Policy
from alignup.align.workload import Pod
from alignup.fleet.admission import admit
from alignup.fleet.placements import common_nodes, container_placements, on_one_node
from tests.align.hosts import GIB, GPU, NIC, host, pod
from tests.strategies_pods import container, guaranteed

NODE_0, NODE_1, BOTH = 1, 2, 3


@pytest.mark.parametrize(
    ("sites", "one", "nodes"),
    [
        pytest.param([], None, 0, id="nothing has a place"),
        pytest.param([NODE_1], True, NODE_1, id="one thing on one node"),
        pytest.param([BOTH], True, BOTH, id="a device on two nodes is on either"),
        pytest.param([NODE_0, BOTH], True, NODE_0, id="and goes with what is on one of them"),
        pytest.param([NODE_0, NODE_1], False, BOTH, id="things on two nodes"),
        pytest.param([NODE_0, NODE_1, BOTH], False, BOTH, id="and nothing mends that"),
    ],
)
def test_where_all_of_it_is(sites, one, nodes):
    assert on_one_node(sites) is one
    assert common_nodes(sites) == nodes


def place_of(one: Host, wanted: Pod):
    assert admit(one, wanted).admitted
    (place,) = container_placements(one, wanted)
    return place


def test_cpus_memory_and_devices_of_one_node():
    place = place_of(host(), pod("a", cpu="2", memory="1Gi", gpu="1"))

    assert bits.show(place.cpus) == "1-2"
    assert place.memory == (Block(NODE_0, "memory", GIB),)
    assert place.devices == {GPU: ("gpu-0",)}
    assert (place.on_one, place.nodes) == (True, NODE_0)


def test_cpus_of_two_nodes_are_not_on_one():
    place = place_of(host(Policy.BEST_EFFORT, memory=False), pod("a", cpu="5"))

    assert (place.on_one, place.nodes) == (False, BOTH)


def test_memory_of_two_nodes_is_not_on_one():
    place = place_of(host(Policy.BEST_EFFORT), pod("a", cpu="1", memory="20Gi"))

    assert (place.on_one, place.nodes) == (False, BOTH)


def test_a_container_on_the_shared_cpus_has_no_place():
    one = host(memory=False)
    shared = Pod(name="s", uid="s", containers=(container("app", {"cpu": "500m"}),))

    assert place_of(one, shared).on_one is None


@pytest.mark.parametrize(
    ("nodes", "one"),
    [
        pytest.param(None, None, id="tells nothing"),
        pytest.param(0, None, id="tells no node"),
        pytest.param(1 << 9, None, id="tells a node there is not"),
        pytest.param(BOTH, True, id="tells two"),
    ],
)
def test_a_device_that(nodes, one):
    machine = replace(host().machine, devices=(Device(NIC, "x", nodes=nodes),))
    lenient = Host(machine, host(Policy.BEST_EFFORT, memory=False).settings)

    place = place_of(lenient, Pod(name="d", uid="d", containers=(container("app", {}, {NIC: "1"}),)))

    assert place.on_one is one


def test_every_container_has_its_own_place():
    wanted = Pod(
        name="two",
        uid="two",
        init=(guaranteed("init", {"cpu": "1", "memory": "1Mi"}),),
        containers=(guaranteed("app", {"cpu": "3", "memory": "1Mi"}),),
    )
    one = host()
    admit(one, wanted)

    assert [place.container for place in container_placements(one, wanted)] == ["init", "app"]
    assert [place.cpus.bit_count() for place in container_placements(one, wanted)] == [1, 3]
