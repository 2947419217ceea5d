"""Device lists of plugins, as they arrive."""

import pytest

from alignup.align.errors import PluginError
from alignup.align.machine import MAX_NODE_ID, Device
from alignup.kubernetes.plugins.endpoint import MAX_DEVICES, MAX_NODE_IDS, parse_devices
from alignup.wire import device_plugin_pb2 as wire

GPU = "example.com/gpu"


def listed(*devices):
    response = wire.ListAndWatchResponse(devices=devices)
    return parse_devices(GPU, wire.ListAndWatchResponse.FromString(response.SerializeToString()))


def topology(*nodes):
    return wire.TopologyInfo(nodes=[wire.NUMANode(ID=node) for node in nodes])


def test_devices_are_sorted_by_id():
    assert listed(wire.Device(ID="b", health="Healthy"), wire.Device(ID="a", health="Healthy")) == (
        Device(GPU, "a", None),
        Device(GPU, "b", None),
    )


def test_the_last_entry_of_an_id_wins():
    assert listed(wire.Device(ID="a", health="Healthy"), wire.Device(ID="a", health="Broken")) == (
        Device(GPU, "a", None, healthy=False),
    )


@pytest.mark.parametrize("id_", ["", "a,b", "a\nb", "\0"])
def test_devices_without_a_usable_id_are_ignored(id_):
    assert listed(wire.Device(ID=id_, health="Healthy")) == ()


def test_invalid_numa_nodes_are_ignored():
    (device,) = listed(wire.Device(ID="a", health="Healthy", topology=topology(-1, 1, MAX_NODE_ID, 1 << 40)))

    assert device.nodes == 0b10


def test_a_list_has_a_limited_number_of_devices():
    devices = [wire.Device(ID=str(number)) for number in range(MAX_DEVICES + 1)]

    assert len(listed(*devices[1:])) == MAX_DEVICES
    with pytest.raises(PluginError, match="the list has 10001 devices; the limit is 10000"):
        listed(*devices)


def test_a_list_has_a_limited_number_of_numa_node_ids():
    half = topology(*range(MAX_NODE_ID), *[1] * (MAX_NODE_IDS // 2 - MAX_NODE_ID))
    two = [wire.Device(ID=id_, topology=half) for id_ in "ab"]

    assert {device.nodes for device in listed(*two)} == {(1 << MAX_NODE_ID) - 1}
    with pytest.raises(PluginError, match="the list has 100001 NUMA node ids; the limit is 100000"):
        listed(*two, wire.Device(ID="c", topology=topology(0)))


def test_a_topology_without_nodes_is_not_a_missing_topology():
    assert [device.nodes for device in listed(wire.Device(ID="a", topology=topology()), wire.Device(ID="b"))] == [
        0,
        None,
    ]
