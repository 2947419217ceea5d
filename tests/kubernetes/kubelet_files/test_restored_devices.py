"""Devices that are known about a machine are matched with those in a state file."""

import pytest

from alignup.align.machine import Device
from alignup.kubernetes.kubelet_files.ledger import GapKind, restore_devices
from alignup.kubernetes.kubelet_files.state_files import DeviceEntry, DeviceState

GPU = "example.com/gpu"
DECLARED = tuple(Device(GPU, f"{GPU}-{number}", nodes=1 << number // 2) for number in range(4))


def held(*ids: str, node: int = 0) -> DeviceEntry:
    return DeviceEntry(uid="u", container="c", resource=GPU, devices={node: ids})


@pytest.mark.parametrize(
    ("known", "entries", "registered", "devices", "gaps"),
    [
        pytest.param(
            (),
            (held("a", node=1),),
            ("a", "b", "c"),
            {"a": (2, True), "b": (None, True), "c": (None, True)},
            [f"the state files do not contain the topology of 2 free devices of {GPU}"],
            id="only the ids of free devices are known",
        ),
        pytest.param(
            (),
            (held("a", node=-1),),
            ("a",),
            {"a": (None, True)},
            [],
            id="a held device without topology",
        ),
        pytest.param(
            (Device(GPU, "a", nodes=1), Device(GPU, "b", nodes=2, healthy=False)),
            (held("a"),),
            ("a",),
            {"a": (1, True), "b": (2, False)},
            [],
            id="matched by id",
        ),
        pytest.param(
            (Device(GPU, "a", nodes=1, healthy=False),),
            (),
            ("a",),
            {"a": (1, True)},
            [],
            id="became healthy",
        ),
        pytest.param(
            (Device(GPU, "a", nodes=2),),
            (held("a"),),
            ("a",),
            {"a": (2, True)},
            [f"device a of {GPU} is declared on other NUMA nodes than in the state files; using the declared nodes"],
            id="known on another node",
        ),
        pytest.param(
            DECLARED,
            (held("x", node=1),),
            ("w", "x", "y", "z"),
            {"w": (1, True), "x": (2, True), "y": (1, True), "z": (2, True)},
            [],
            id="made-up ids are matched by node, the rest in order",
        ),
        pytest.param(
            DECLARED[:2],
            (held("x", "y", node=1),),
            ("x", "y"),
            {"x": (2, True), "y": (2, True), DECLARED[0].id: (1, False), DECLARED[1].id: (1, False)},
            [
                (
                    f"devices x, y of {GPU} are in the state files, but too few are declared on the same NUMA nodes; "
                    "added there"
                ),
                (
                    f"devices {DECLARED[0].id}, {DECLARED[1].id} of {GPU} are declared but not healthy "
                    "in the state files; treated as unhealthy"
                ),
            ],
            id="declared on other nodes than held",
        ),
        pytest.param(
            DECLARED[:1],
            (),
            ("x", "y"),
            {"x": (1, True), "y": (None, True)},
            [f"the state files do not contain the topology of a free device of {GPU}"],
            id="too few declared",
        ),
        pytest.param(DECLARED[:1], (), None, {DECLARED[0].id: (1, True)}, [], id="declared, but not in the file"),
        pytest.param((), (held("x"),), None, {"x": (1, False)}, [], id="held, but its plugin is gone"),
    ],
)
def test_known_devices_are_matched_with_the_file(known, entries, registered, devices, gaps):
    state = DeviceState(entries=entries, registered={} if registered is None else {GPU: registered})

    (found,) = restore_devices(known, state)

    assert {id_: (device.nodes, device.healthy) for id_, device in found.devices.items()} == devices
    assert all(device.id == id_ and device.resource == GPU for id_, device in found.devices.items())
    assert [gap.text for gap in found.gaps] == gaps
    assert [gap.resource for gap in found.gaps if gap.kind is GapKind.DEVICE_TOPOLOGY] == [
        GPU for gap in gaps if gap.startswith("the state files do not contain the topology")
    ]


def test_a_resource_is_absent_if_neither_the_file_nor_the_machine_lists_it():
    state = DeviceState(entries=(held("x"),), registered={"vendor.io/nic": None})

    assert [(one.resource, one.present) for one in restore_devices((), state)] == [
        (GPU, False),
        ("vendor.io/nic", True),
    ]
