"""GPUs of the running system, asked through NVML (``nvidia-ml-py``) where it is installed; never required.

They become devices as NVIDIA's device plugin announces them, under the UUIDs it uses, with the NUMA node of their PCI
device. The UUIDs are the machine's own, so recordings do not hold them.
"""

from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from types import ModuleType

from alignup.align.machine import Device, Machine

RESOURCE = "nvidia.com/gpu"
NVIDIA = 0x10DE
_DISPLAY = 0x03  #: the class of GPUs, with or without a screen


def add_gpus(machine: Machine) -> Machine:
    """*machine* with the GPUs NVML finds; where it finds none, but PCI shows some, a gap says so."""
    shown = [device for device in machine.pci if device.vendor == NVIDIA and (device.kind or 0) >> 16 == _DISPLAY]
    if not shown:
        return machine
    try:
        nvml = import_module("pynvml")
    except ImportError:
        why = "nvidia-ml-py is not installed"
    else:
        try:
            return replace(machine, devices=(*machine.devices, *_gpus(nvml, machine))).checked()
        except nvml.NVMLError as error:
            why = str(error)
    gap = f"{len(shown)} NVIDIA GPUs are on the PCI bus, but their ids are not known: {why}"
    return replace(machine, gaps=(*machine.gaps, gap))


def _gpus(nvml: ModuleType, machine: Machine) -> Iterator[Device]:
    nodes = {_bus(device.address): device.node for device in machine.pci}
    nvml.nvmlInit()
    try:
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            node = nodes.get(_bus(_text(nvml.nvmlDeviceGetPciInfo(handle).busId)))
            uuid = _text(nvml.nvmlDeviceGetUUID(handle))
            yield Device(RESOURCE, uuid, nodes=None if node is None else 1 << node)
    finally:
        nvml.nvmlShutdown()


def _bus(address: str) -> str:
    """An address as both name it: NVML writes the domain with eight digits, the kernel with four."""
    domain, _, rest = address.lower().partition(":")
    return f"{int(domain, 16):x}:{rest}"


def _text(value: str | bytes) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value
