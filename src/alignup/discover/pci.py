"""PCI devices, from ``/sys/bus/pci/devices``: class, vendor, and the nearest NUMA node and CPUs.

Firmware often omits the location of a device (the kernel shows -1), and sometimes contradicts itself. Both are kept as
they are, and a device without a node stays without one.
"""

import re

from alignup.align.machine import PciDevice
from alignup.discover.file_reader import FileReader

BUS = "sys/bus/pci/devices"

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
_CODE = re.compile(r"0x[0-9a-f]{1,8}", re.ASCII | re.IGNORECASE)


def read_pci_devices(files: FileReader) -> tuple[PciDevice, ...]:
    """Every PCI device, ordered by address."""
    if not files.has(BUS):
        files.add_gap("the PCI bus is missing")
    found = [_device(files, name) for name in files.names(BUS) if _ADDRESS.fullmatch(name)]
    known = [device for device in found if device]
    if len(known) < len(found):
        files.add_gap(f"{len(found) - len(known)} PCI devices are listed, but not described")
    return tuple(sorted(known, key=lambda device: (len(device.address), device.address)))


def _device(files: FileReader, address: str) -> PciDevice | None:
    here = files.resolve(f"{BUS}/{address}")
    if here is None or not files.names(here):
        return None
    node = files.number(f"{here}/numa_node")
    if node is None:
        files.add_gap("some PCI devices do not report a NUMA node")
    return PciDevice(
        address=address,
        kind=_code(files, f"{here}/class"),
        vendor=_code(files, f"{here}/vendor"),
        device=_code(files, f"{here}/device"),
        node=None if node is None or node < 0 else node,
        cpus=files.cpus(f"{here}/local_cpulist", f"{here}/local_cpus"),
    )


def _code(files: FileReader, path: str) -> int | None:
    text = files.text(path)
    return int(text, 16) if text and _CODE.fullmatch(text) else None
