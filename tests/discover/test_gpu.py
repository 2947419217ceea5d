"""GPUs from NVML, with a fake of the library, which needs a GPU."""

import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest

from alignup.align.machine import Device, PciDevice
from alignup.machines import synthetic, system

CARD = PciDevice("0000:9d:00.0", kind=0x030200, vendor=system.NVIDIA, device=0x2335, node=1)
PLAIN = synthetic.parse("numa:2 core:2 pu:1")
WITH_CARD = replace(PLAIN, pci=(CARD, PciDevice("0000:00:02.0", kind=0x030000, vendor=0x1234)))


class NVMLError(Exception):
    pass


def library(*, fails: bool = False) -> ModuleType:
    made = ModuleType("pynvml")

    def init() -> None:
        if fails:
            raise NVMLError("Driver Not Loaded")

    made.__dict__.update(
        NVMLError=NVMLError,
        nvmlInit=init,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUUID=lambda handle: f"GPU-{handle}",
        nvmlDeviceGetPciInfo=lambda handle: SimpleNamespace(
            busId=b"00000000:9D:00.0" if handle == 0 else "00000000:AA:00.0"
        ),
    )
    return made


def test_gpus_have_the_node_of_their_pci_device(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", library())

    found = system.add_gpus(WITH_CARD)

    assert found.devices == (
        Device(system.GPU_RESOURCE, "GPU-0", nodes=0b10),
        Device(system.GPU_RESOURCE, "GPU-1", nodes=None),
    )
    assert [device.names for device in found.pci] == [("GPU 0",), ()]


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        pytest.param(None, "nvidia-ml-py is not installed", id="no library"),
        pytest.param(library(fails=True), "Driver Not Loaded", id="no driver"),
    ],
)
def test_unreadable_gpus_are_a_gap(monkeypatch, found, reason):
    monkeypatch.setitem(sys.modules, "pynvml", found)

    machine = system.add_gpus(WITH_CARD)

    assert machine.devices == ()
    assert machine.gaps == (f"1 NVIDIA GPUs are on the PCI bus, but their ids are unknown: {reason}",)


def test_nvml_is_not_used_without_gpus(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", library(fails=True))

    assert system.add_gpus(PLAIN) is PLAIN
