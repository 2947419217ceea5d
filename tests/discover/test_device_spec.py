"""Devices declared in a line of text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align import bits
from alignup.align.errors import ParseError
from alignup.align.machine import Device
from alignup.machines.device_spec import EXAMPLE, add_devices, parse
from alignup.machines.synthetic import parse as machine_of

GPU = "example.com/gpu"


def places(devices: tuple[Device, ...]) -> list[tuple[str, str | None]]:
    return [(device.id, None if device.nodes is None else bits.show(device.nodes)) for device in devices]


def test_counts_and_nodes():
    found = parse(["example.com/gpu=2@0,1@2+3,1"])

    assert places(found) == [("gpu-0", "0"), ("gpu-1", "0"), ("gpu-2", "2-3"), ("gpu-3", None)]
    assert {device.resource for device in found} == {GPU}


def test_several_texts_may_declare_one_resource():
    found = parse(["example.com/gpu=1@0", "vendor.io/nic=1@0", "example.com/gpu=1@1"])

    assert places(found) == [("gpu-0", "0"), ("nic-0", "0"), ("gpu-1", "1")]


def test_declared_devices_replace_the_machines_own():
    machine = add_devices(machine_of("numa:4 pu:1"), [EXAMPLE, "vendor.io/nic=1@3"])

    changed = add_devices(machine, ["example.com/gpu=1@0"])

    assert [(one.resource, one.id) for one in changed.devices] == [("vendor.io/nic", "nic-0"), (GPU, "gpu-0")]
    assert changed.checked() is changed


def test_zero_devices_can_be_declared():
    assert parse(["example.com/gpu=0"]) == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("example.com/gpu", "has no number of devices", id="a name alone"),
        pytest.param("gpu=4@0", "is not a valid device resource", id="a name without a domain"),
        pytest.param("kubernetes.io/gpu=4@0", "is not a valid device resource", id="a kubernetes.io name"),
        pytest.param("example.com/gpu=four", "is not a device count", id="a number in words"),
        pytest.param("example.com/gpu=4@", "is not a device count", id="no node after the sign"),
        pytest.param("example.com/gpu=4@0-3", "is not a device count", id="a range of nodes"),
        pytest.param("example.com/gpu=-1@0", "is not a device count", id="a negative number"),
        pytest.param("example.com/gpu=4@0,", "is not a device count", id="a comma at the end"),
        pytest.param("example.com/gpu=999999@0", "more than 100000 devices", id="too many"),
        pytest.param("example.com/gpu=1@999999999", "names NUMA node 999999999", id="a node number that is too large"),
        pytest.param("example.com/gpu=1@7", "this machine has no NUMA node 7, only 0-1", id="an unknown node"),
    ],
)
def test_invalid_specs_are_rejected(text, message):
    with pytest.raises(ParseError, match=message):
        add_devices(machine_of("numa:2 pu:1"), [text])


@given(st.text(max_size=30))
def test_any_text_is_parsed_or_rejected(text):
    try:
        found = parse([f"example.com/gpu={text}"])
    except ParseError:
        return
    assert all(device.resource == GPU for device in found)
