"""The PCI addresses of devices whose ids device plugins make up: GPU UUIDs, and names in CDI files.

NVIDIA's driver lists the UUID and the address of each GPU. CDI files (Container Device Interface) name a device and its
device nodes, ``/dev/nvidia0`` or ``/dev/dri/renderD128``, which lead to the address. A name whose device nodes lead to
several PCI devices, such as ``all``, and one that two files describe differently say nothing certain.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from alignup.align.devices.plugin_rules import MIG, REPLICA
from alignup.align.errors import SourceError
from alignup.align.locality import normal_address
from alignup.machines.file_reader import DirectoryFiles, FileReader
from alignup.machines.machine_file import load_yaml
from alignup.machines.system import is_address, read_driver_gpus

CDI_DIRECTORIES = ("etc/cdi", "var/run/cdi")
MAX_CDI_FILES = 64  #: in one directory
_GPU_IDS = ("GPU-", MIG)  #: how UUIDs of NVIDIA begin, which are unique


def read_addresses(root: Path) -> tuple[Mapping[str, str], tuple[str, ...]]:
    """Return the addresses of devices on the system below *root*, and what could not be read.

    Keys are UUIDs, and the names of other devices as CDI writes them: ``vendor.com/class=name``.
    """
    files = FileReader(DirectoryFiles(str(root).rstrip("/")))
    gpus = read_driver_gpus(files)
    addresses = {gpu.uuid: {normal_address(gpu.address)} for gpu in gpus if "?" not in gpu.uuid}
    minors = {gpu.minor: normal_address(gpu.address) for gpu in gpus if gpu.minor}
    for name, device_nodes in _cdi_devices(files).items():
        entries = addresses.setdefault(name, set())
        entries.update(address for node in device_nodes if (address := _node_address(files, node, minors)))
    certain = {name: min(entries) for name, entries in addresses.items() if len(entries) == 1}
    return certain, files.gaps


def address_of(addresses: Mapping[str, str], resource: str, device_id: str) -> str:
    """Return the address of a device of a plugin; empty: it is not certain."""
    id_ = device_id.partition(REPLICA)[0]
    if id_.startswith(_GPU_IDS):
        return addresses.get(id_, "")
    own_address = normal_address(id_)
    return own_address if is_address(own_address) else addresses.get(f"{resource}={id_}", "")


def _cdi_devices(files: FileReader) -> dict[str, set[str]]:
    """Return the device nodes of each CDI device."""
    devices: dict[str, set[str]] = {}
    for directory in CDI_DIRECTORIES:
        here = files.resolve(directory)
        names = [name for name in files.names(here) if name.endswith((".json", ".yaml"))] if here else []
        for name in names[:MAX_CDI_FILES]:
            text = files.read(f"{here}/{name}")
            try:
                document = load_yaml(text, name=f"{directory}/{name}") if text else None
            except SourceError as error:
                files.add_gap(str(error))
                continue
            for device, nodes in _named_devices(document):
                devices.setdefault(device, set()).update(nodes)
    return devices


def _named_devices(document: object) -> Iterator[tuple[str, set[str]]]:
    """Yield each device of a CDI file with its device nodes; parts of another form are ignored."""
    specification = document if isinstance(document, dict) else {}
    for device in _dicts(specification.get("devices")):
        edits = device.get("containerEdits")
        nodes = _dicts(edits.get("deviceNodes")) if isinstance(edits, dict) else []
        paths = {str(node.get("hostPath") or node.get("path")) for node in nodes}
        name = str(device.get("name"))
        yield name if name.startswith(_GPU_IDS) else f"{specification.get('kind')}={name}", paths


def _dicts(value: object) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _node_address(files: FileReader, node: str, minors: Mapping[str, str]) -> str | None:
    """Return the address of the PCI device that a device node belongs to; ``None`` if there is no single one."""
    name = node.rpartition("/")[2]
    if node == f"/dev/{name}":
        return minors.get(name.removeprefix("nvidia"))
    target = files.resolve(f"sys/class/drm/{name}/device") if node == f"/dev/dri/{name}" else None
    address = (target or "").rpartition("/")[2]
    return address if is_address(address) else None
