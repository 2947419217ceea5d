"""PCI devices, from ``/sys/bus/pci/devices``: class, vendor, and the NUMA node and CPUs they are near.

Firmware often does not say where a device hangs (the kernel shows -1), and sometimes says two different things; both
are kept as they are, and a device without a node stays without one.
"""

import re

from alignup.align.machine import PciDevice
from alignup.discover.file_reader import FileReader

BUS = "sys/bus/pci/devices"

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
_CODE = re.compile(r"0x[0-9a-f]{1,8}", re.ASCII | re.IGNORECASE)


def read_pci_devices(tree: FileReader) -> tuple[PciDevice, ...]:
    """Every PCI device, in the order of the addresses."""
    if not tree.has(BUS):
        tree.gap("no PCI bus is described")
    found = [_device(tree, name) for name in tree.names(BUS) if _ADDRESS.fullmatch(name)]
    known = [device for device in found if device]
    if len(known) < len(found):
        tree.gap(f"{len(found) - len(known)} PCI devices are named, but not described")
    return tuple(sorted(known, key=lambda device: (len(device.address), device.address)))


def _device(tree: FileReader, address: str) -> PciDevice | None:
    here = tree.resolve(f"{BUS}/{address}")
    if here is None or not tree.names(here):
        return None
    node = tree.number(f"{here}/numa_node")
    if node is None:
        tree.gap("some PCI devices do not say which NUMA node they are near")
    return PciDevice(
        address=address,
        kind=_code(tree, f"{here}/class"),
        vendor=_code(tree, f"{here}/vendor"),
        device=_code(tree, f"{here}/device"),
        node=None if node is None or node < 0 else node,
        cpus=tree.cpus(f"{here}/local_cpulist", f"{here}/local_cpus"),
    )


def _code(tree: FileReader, path: str) -> int | None:
    text = tree.text(path)
    return int(text, 16) if text and _CODE.fullmatch(text) else None
