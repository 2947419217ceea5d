"""The ledger of devices: what is announced, given and taken back, and that all of it adds up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align import bits
from alignup.align.devices.hints import DeviceInventory, natural_sort_key
from alignup.align.devices.ledger import DeviceLedger
from alignup.align.devices.provider import DeviceProvider
from alignup.align.errors import StateError
from alignup.align.machine import Device
from tests.align.devices.plain import GPU, NIC, gpus, ledger_of

IDLE = ledger_of([*gpus([0], [1], [2], [3]), Device(NIC, "nic-0", None)])


def free(ledger: DeviceLedger, resource: str = GPU) -> list[str]:
    return list(ledger.inventories[resource].names(ledger.free[resource]))


@pytest.mark.parametrize(
    ("ids", "ordered"),
    [
        pytest.param(["gpu-10", "gpu-9", "gpu-1"], ["gpu-1", "gpu-9", "gpu-10"], id="numbers count as numbers"),
        pytest.param(["b1", "a2", "a10", "a"], ["a", "a2", "a10", "b1"], id="texts come first"),
        pytest.param(["7", "07", "x", ""], ["", "07", "7", "x"], id="leading zeros only break ties"),
        pytest.param(
            ["0000:a0:00.0", "0000:1f:00.0", "0000:0a:00.0", "0000:10:00.0", "0000:02:00.0", "0001:01:00.0"],
            ["0000:02:00.0", "0000:0a:00.0", "0000:10:00.0", "0000:1f:00.0", "0000:a0:00.0", "0001:01:00.0"],
            id="PCI addresses are hexadecimal",
        ),
        pytest.param(
            ["gpu-0000:1f:00.1", "gpu-0000:0a:00.0", "gpu-0000:1f:00.0", "gpu-12"],
            ["gpu-12", "gpu-0000:0a:00.0", "gpu-0000:1f:00.0", "gpu-0000:1f:00.1"],
            id="PCI addresses in names",
        ),
        pytest.param(["9" * 5000, "8" * 5001], ["9" * 5000, "8" * 5001], id="numbers of any length"),
    ],
)
def test_ids_are_in_natural_order(ids, ordered):
    assert sorted(ids, key=natural_sort_key) == ordered


@given(
    st.lists(st.text("01a-", max_size=5) | st.from_regex(r"[0a]{1,5}:[0a]{2}:0[01]\.[01]", fullmatch=True), unique=True)
)
def test_no_two_ids_are_alike(ids):
    assert len({natural_sort_key(id_) for id_ in ids}) == len(ids)


def test_an_inventory_knows_its_devices():
    devices = [*gpus([0, 1], [9], [], None, ill=[1]), Device(GPU, "gpu-0", bits.of([1]))]

    inventory = DeviceInventory.of(devices, machine=0b11)

    assert inventory.devices[0].nodes == bits.of([1]), "the later of two with the same id counts"
    assert inventory.names(inventory.healthy) == ("gpu-0", "gpu-2", "gpu-3")
    assert inventory.names(inventory.with_topology) == ("gpu-0", "gpu-1", "gpu-2")
    assert inventory.names(inventory.placed) == ("gpu-0", "gpu-1")
    assert inventory.names(inventory.near(0b10)) == ("gpu-0",)
    assert inventory.nodes == 0b10
    assert inventory.find(["gpu-3", "gone"]) == 0b1000


def test_devices_elsewhere_can_be_left_out():
    inventory = DeviceInventory.of(gpus([0], [1], None), machine=0b11)

    assert inventory.only_on(0b10).names(inventory.only_on(0b10).healthy) == ("gpu-1",)
    assert inventory.only_on(0b10) is inventory.only_on(0b10), "kept for the next pod"


def test_given_devices_are_not_free_until_released():
    after = IDLE.give("pod", "app", devices={GPU: ["gpu-3", "gpu-0"]})

    assert after.holds("pod", "app") == {GPU: ("gpu-0", "gpu-3")}
    assert free(after) == ["gpu-1", "gpu-2"]
    assert after.free_on(GPU) == {0: 0, 1: 1, 2: 1, 3: 0}
    assert after.take_back("pod") == IDLE


def test_the_allocated_share_of_a_resource_counts_healthy_devices():
    held = IDLE.give("pod", "app", devices={GPU: ["gpu-0"]})

    assert DeviceProvider(0b1111).allocated_share(held, GPU, 0b11) == (1, 2)
    assert DeviceProvider(0b1111).allocated_share(held, "unknown", 0b11) == (0, 0)


def test_two_pods_never_hold_the_same_device():
    held = IDLE.give("pod", "app", devices={GPU: ["gpu-0"]})

    with pytest.raises(StateError, match=r"example\.com/gpu gpu-0: held by another pod"):
        held.give("other", "app", devices={GPU: ["gpu-0", "gpu-1"]})


def test_a_container_is_given_devices_of_a_resource_once():
    held = IDLE.give("pod", "app", devices={GPU: ["gpu-0"]})

    with pytest.raises(StateError, match="pod pod container app already holds some"):
        held.give("pod", "app", devices={GPU: ["gpu-1"]})


def test_giving_nothing_changes_nothing():
    assert IDLE.give("pod", "app", devices={}) is IDLE
    assert IDLE.give("pod", "app", devices={GPU: (), NIC: []}) is IDLE
    assert IDLE.take_back("unknown") is IDLE


def test_a_report_replaces_the_previous_one():
    held = IDLE.give("pod", "app", devices={GPU: ["gpu-0", "gpu-1"]})

    fewer = held.announce(GPU, gpus([0], ill=[0]), preferred_allocation=True)

    assert free(fewer) == []
    assert fewer.holds("pod", "app") == {GPU: ("gpu-0", "gpu-1")}
    assert fewer.inventories[GPU].preferred_allocation
    assert fewer.take_back("pod").in_use == {}
    assert free(fewer.take_back("pod")) == [], "it is still ill"
    again = fewer.announce(GPU, IDLE.inventories[GPU].devices)
    assert again == held, "a device that comes back is still held"


def test_a_stopped_plugin_leaves_its_devices_unhealthy():
    stopped = IDLE.stop(GPU)

    assert free(stopped) == []
    assert len(stopped.inventories[GPU].devices) == 4
    assert GPU in stopped.handled
    assert stopped.allocatable() == {GPU: 0, NIC: 1}


def test_a_removed_resource_is_managed_while_a_pod_holds_some():
    given_up = IDLE.give("pod", "app", devices={GPU: ["gpu-0"]}).give_up(GPU)

    assert given_up.handled == {GPU, NIC}
    assert given_up.allocatable() == {NIC: 1}
    assert given_up.take_back("pod").handled == {NIC}
    assert given_up.announce(GPU, gpus([0])).take_back("pod").handled == {GPU, NIC}


def test_a_pod_releases_devices_of_a_resource_that_no_plugin_reported_yet():
    restored = DeviceLedger(nodes=0b11).give("pod", "app", devices={GPU: ["gpu-0"]})

    assert restored.handled == {GPU}
    assert restored.take_back("pod") == DeviceLedger(nodes=0b11)


def test_the_capacity_for_a_holder_includes_devices_in_use():
    """So that it is not rejected again over a device that fell ill, or a plugin that is gone, while it ran."""
    held = IDLE.give("pod", "app", devices={GPU: ["gpu-0", "gpu-1"]}).stop(GPU)

    assert held.allocatable("pod") == {GPU: 2, NIC: 1}
    assert held.allocatable("newcomer") == {GPU: 0, NIC: 1}
    assert held.give_up(GPU).allocatable("pod") == {GPU: 2, NIC: 1}


def test_only_the_last_pod_handled_has_reusable_devices():
    first = IDLE.with_reusable("one", {GPU: frozenset({"gpu-0"})})

    second = first.with_reusable("two", {})

    assert first.reusable_by("one") == {GPU: {"gpu-0"}}
    assert first.reusable_by("two") == {}
    assert second.reusable is None
    assert first.take_back("one") == IDLE
    assert first.take_back("two") is first
