"""Devices known of a machine and devices in a state file, made one."""

import pytest

from alignup.align.machine import Device
from alignup.state.kubelet.device_file import DeviceEntry, DeviceState
from alignup.state.kubelet.restored_devices import restore_devices

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
            [f"the topology of 2 free devices of {GPU} is not in the state files; give --devices {GPU}=..."],
            id="of those nobody holds nothing but the id is known",
        ),
        pytest.param(
            (),
            (held("a", node=-1),),
            ("a",),
            {"a": (None, True)},
            [],
            id="one that is held and has no topology",
        ),
        pytest.param(
            (Device(GPU, "a", nodes=1), Device(GPU, "b", nodes=2, healthy=False)),
            (held("a"),),
            ("a",),
            {"a": (1, True), "b": (2, False)},
            [],
            id="known by their ids",
        ),
        pytest.param(
            (Device(GPU, "a", nodes=1, healthy=False),),
            (),
            ("a",),
            {"a": (1, True)},
            [],
            id="healthy since it was last looked at",
        ),
        pytest.param(
            (Device(GPU, "a", nodes=2),),
            (held("a"),),
            ("a",),
            {"a": (2, True)},
            [f"device a of {GPU} is on other NUMA nodes in the state files than declared; taken as declared"],
            id="known to be elsewhere",
        ),
        pytest.param(
            DECLARED,
            (held("x", node=1),),
            ("w", "x", "y", "z"),
            {"w": (1, True), "x": (2, True), "y": (1, True), "z": (2, True)},
            [],
            id="declared under made-up ids: one that is held takes a place on its node, the others what is left",
        ),
        pytest.param(
            DECLARED[:2],
            (held("x", "y", node=1),),
            ("x", "y"),
            {"x": (2, True), "y": (2, True), DECLARED[0].id: (1, False), DECLARED[1].id: (1, False)},
            [
                (
                    f"devices x, y of {GPU} are in the state files, but there are not as many declared "
                    "on the same NUMA nodes; added there"
                ),
                (
                    f"devices {DECLARED[0].id}, {DECLARED[1].id} of {GPU} are declared, but not among the healthy ones "
                    "in the state files; taken as not healthy"
                ),
            ],
            id="declared on other nodes than those that are held",
        ),
        pytest.param(
            DECLARED[:1],
            (),
            ("x", "y"),
            {"x": (1, True), "y": (None, True)},
            [f"the topology of a free device of {GPU} is not in the state files; give --devices {GPU}=..."],
            id="declared too few",
        ),
        pytest.param(
            DECLARED[:1], (), None, {DECLARED[0].id: (1, True)}, [], id="declared, and not in the file at all"
        ),
        pytest.param((), (held("x"),), None, {"x": (1, False)}, [], id="held, but its plugin is gone"),
    ],
)
def test_what_is_known_and_what_the_file_says_is_made_one(known, entries, registered, devices, gaps):
    state = DeviceState(entries=entries, registered={} if registered is None else {GPU: registered})

    (found,) = restore_devices(known, state)

    assert {id_: (device.nodes, device.healthy) for id_, device in found.devices.items()} == devices
    assert all(device.id == id_ and device.resource == GPU for id_, device in found.devices.items())
    assert list(found.gaps) == gaps


def test_a_resource_is_gone_when_neither_the_file_nor_the_machine_has_it():
    state = DeviceState(entries=(held("x"),), registered={"vendor.io/nic": None})

    assert [(one.resource, one.present) for one in restore_devices((), state)] == [
        (GPU, False),
        ("vendor.io/nic", True),
    ]
