"""GPUs of the running system from NVML (``nvidia-ml-py``), if it is installed.

They become devices as NVIDIA's device plugin announces them, with its UUIDs and the NUMA node of their PCI device.
Recordings leave them out, because UUIDs identify the machine.
"""

from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from types import ModuleType

from alignup.align.machine import Device, Machine

RESOURCE = "nvidia.com/gpu"
NVIDIA = 0x10DE
_DISPLAY = 0x03  #: the PCI base class of GPUs


def add_gpus(machine: Machine) -> Machine:
    """*machine* with its GPUs; a gap if PCI lists GPUs that NVML does not."""
    gpus = [device for device in machine.pci if device.vendor == NVIDIA and (device.kind or 0) >> 16 == _DISPLAY]
    if not gpus:
        return machine
    try:
        nvml = import_module("pynvml")
    except ImportError:
        reason = "nvidia-ml-py is not installed"
    else:
        try:
            return replace(machine, devices=(*machine.devices, *_gpus(nvml, machine))).checked()
        except nvml.NVMLError as error:
            reason = str(error)
    gap = f"{len(gpus)} NVIDIA GPUs are on the PCI bus, but their ids are unknown: {reason}"
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
    """A comparable address: NVML writes the domain with eight digits, the kernel with four."""
    domain, _, rest = address.lower().partition(":")
    return f"{int(domain, 16):x}:{rest}"


def _text(value: str | bytes) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value
