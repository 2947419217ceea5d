"""A whole machine from one tree of files: the hardware, cAdvisor's report, and what is unknown.

GPUs of the running system come from ``/proc/driver/nvidia``, or where that lacks a UUID, from NVML (``nvidia-ml-py``).
They become devices as NVIDIA's device plugin announces them, with its UUIDs and the NUMA node of their PCI device. If
that is unknown, it is the only NUMA node, or that of the CPUs near the GPU. The links between several GPUs come from
NVML. Recordings leave GPUs out, because UUIDs identify the machine.
"""

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import NamedTuple, TypeVar

from alignup.align.errors import SourceError
from alignup.align.locality import DeviceLink, LinkKind, PciPath, normal_address
from alignup.align.machine import (
    MAX_BRIDGES,
    MAX_NODE_ID,
    MAX_NODES,
    MAX_PCI_DEVICES,
    CadvisorReport,
    Device,
    Machine,
    PciDevice,
)
from alignup.machines import cadvisor, topology
from alignup.machines.file_reader import FileReader
from alignup.machines.link_counts import CPU_END, SWITCH_END, LinkCounts
from alignup.picture.text_format import format_size

BUS = "sys/bus/pci/devices"
DRIVER = "proc/driver/nvidia/gpus"  #: a directory for each GPU, named by its PCI address
GPU_RESOURCE = "nvidia.com/gpu"
NVIDIA = 0x10DE
_DISPLAY = 0x03  #: the PCI base class of GPUs
_NAMED = ("block", "infiniband", "net", "nvme")  #: directories of a PCI device whose entries are names
MAX_NAMES = 8  #: of one PCI device
MAX_NVLINKS = 36  #: of one GPU, in the newest header of NVML
NUMA_BALANCING = "proc/sys/kernel/numa_balancing"
KUBELET_VERSION = "kubelet-version"  #: a file of recordings, which no system has
_Item = TypeVar("_Item")
_HUGEPAGES = "sys/kernel/mm/hugepages"
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
PCI_ROOT = re.compile(r"/pci[0-9a-f]{4,8}:[0-9a-f]{2}(?=/)", re.ASCII)
_KUBELET_VERSION = re.compile(r"v1\.[0-9]{1,4}[0-9A-Za-z.+-]{0,60}", re.ASCII)
_CODE = re.compile(r"0x[0-9a-f]{1,8}", re.ASCII | re.IGNORECASE)


def read_machine(files: FileReader, *, name: str) -> Machine:
    online, offline = topology.read_online_cpus(files)
    if not online:
        raise SourceError(f"{name} has no online CPU: expected {topology.CPU}/cpu0 and so on")
    ids = files.read_numbered(topology.NODE, "node")
    if len(ids) > MAX_NODES:
        raise SourceError(f"{topology.NODE} has {len(ids)} NUMA nodes: expected at most {MAX_NODES}")
    if not ids:
        files.add_gap("the kernel reports no NUMA nodes")
    cpus = topology.read_cpus(files, online, topology.map_cpus_to_nodes(files, ids, online))
    nodes = topology.read_nodes(files, ids)
    distances = topology.read_distances(files, ids)
    memory = topology.read_memory(files, "proc/meminfo")
    if memory is None:
        files.add_gap("the total memory of the machine is unknown")
    elif nodes and all(node.memory is not None for node in nodes):
        # They are read at different times; a large difference means that memory was added or removed.
        total = sum(node.memory or 0 for node in nodes)
        if abs(memory - total) > memory // 16:
            total_text = f"the NUMA nodes have {format_size(total)} of memory in total"
            files.add_gap(f"{total_text}, but the machine reports {format_size(memory)}")
    if not files.has(_HUGEPAGES):
        files.add_gap("the huge pages of the whole machine are unknown")
    return Machine(
        cpus=cpus,
        nodes=nodes,
        distances=distances,
        pci=read_pci_devices(files),
        memory=memory,
        hugepages=topology.read_hugepages(files, _HUGEPAGES),
        offline=offline,
        report=_read_report(files),
        gaps=files.gaps,
        model=topology.read_model(files),
        caches=topology.read_caches(files, online),
        kubelet_version=_read_kubelet_version(files),
        numa_balancing=files.number(NUMA_BALANCING) if files.has(NUMA_BALANCING) else None,
    ).checked()


def _read_kubelet_version(files: FileReader) -> str:
    """Return the version in the file of a recording, which may be the output of ``kubelet --version``."""
    text = (files.read(KUBELET_VERSION) or "").strip().removeprefix("Kubernetes ")
    return text if _KUBELET_VERSION.fullmatch(text) else ""


def _read_report(files: FileReader) -> CadvisorReport:
    try:
        info = cadvisor.read_machine_info(files)
    except cadvisor.CadvisorError as error:
        files.add_gap(f"cAdvisor gives up on this machine, so the kubelet gets no CPUs: {error}")
        return CadvisorReport(cpus=(), num_cpus=0, num_sockets=cadvisor.count_sockets(files), nodes=())
    if any(node.node_id < 0 for node in info.topology or ()):
        files.add_gap("the kubelet treats a socket without a number as NUMA node -1, which no set of nodes can contain")
    return info.report()


def read_pci_devices(files: FileReader) -> tuple[PciDevice, ...]:
    """Return every PCI device, ordered by address.

    Firmware often omits the location of a device (the kernel shows -1), and sometimes contradicts itself. Both are kept
    as they are, and a device without a node stays without one.
    """
    if not files.has(BUS):
        files.add_gap("the PCI bus is missing")
    addresses = [name for name in files.names(BUS) if _ADDRESS.fullmatch(name)]
    if len(addresses) > MAX_PCI_DEVICES:
        raise SourceError(f"{BUS} has {len(addresses)} PCI devices: expected at most {MAX_PCI_DEVICES}")
    devices = [device for address in addresses if (device := _device(files, address))]
    if undescribed_count := len(addresses) - len(devices):
        files.add_gap(f"{undescribed_count} PCI devices are listed, but not described")
    return tuple(sorted(devices, key=lambda device: (len(device.address), device.address)))


def is_address(text: str) -> bool:
    return _ADDRESS.fullmatch(text) is not None


def _device(files: FileReader, address: str) -> PciDevice | None:
    here = files.resolve(f"{BUS}/{address}")
    if here is None or not files.names(here):
        return None
    node = files.number(f"{here}/numa_node")
    if node is None:
        files.add_gap("some PCI devices do not report a NUMA node")
    elif node >= MAX_NODE_ID:
        files.add_unusable(f"{here}/numa_node", f"is not a number below {MAX_NODE_ID}")
        node = None
    return PciDevice(
        address=address,
        kind=_code(files, f"{here}/class"),
        vendor=_code(files, f"{here}/vendor"),
        device=_code(files, f"{here}/device"),
        node=None if node is None or node < 0 else node,
        cpus=files.cpus(f"{here}/local_cpulist", f"{here}/local_cpus"),
        names=_names(files, here),
        path=read_path(here),
    )


def read_path(directory: str) -> PciPath | None:
    """Return the bridges above the device in *directory*; ``None`` if it is not below its root complex.

    A root complex below another one is that of a volume management device, whose NVMe drives are in another domain.
    """
    root = PCI_ROOT.search(directory)
    if root is None:
        return None
    parts = directory[root.start() + 1 :].split("/")
    return PciPath(parts[0], tuple(part for part in parts[1:-1] if _ADDRESS.fullmatch(part))[:MAX_BRIDGES])


def _names(files: FileReader, device: str) -> tuple[str, ...]:
    """Return the names of a device: network interfaces, RDMA devices, NVMe controllers."""
    virtual = [f"{device}/{name}" for name in files.names(device) if name.startswith("virtio")]
    folders = [f"{directory}/{kind}" for directory in (device, *virtual) for kind in _NAMED]
    names = [name for folder in folders if files.has(folder) for name in files.names(folder)]
    return tuple(sorted(names)[:MAX_NAMES])


def _code(files: FileReader, path: str) -> int | None:
    text = files.text(path)
    return int(text, 16) if text and _CODE.fullmatch(text) else None


class Gpu(NamedTuple):
    address: str
    uuid: str
    model: str = ""
    minor: str = ""  #: of its device node, /dev/nvidia0


def add_gpus(machine: Machine, files: FileReader) -> Machine:
    """Return *machine*, the running system, with its GPUs; a gap if PCI lists GPUs whose ids are unknown."""
    nvidia_devices = [
        device for device in machine.pci if device.vendor == NVIDIA and (device.kind or 0) >> 16 == _DISPLAY
    ]
    if not nvidia_devices:
        return machine
    gpus, reason = read_driver_gpus(files), "the driver does not list them"
    if not gpus or any("?" in gpu.uuid for gpu in gpus):  # the driver shows question marks until a GPU is first used
        gpus, reason = _read_nvml(_nvml_gpus, missing="run nvidia-smi once, or install the extra gpu (nvidia-ml-py)")
    if not gpus:
        gpu_count = "1 NVIDIA GPU is" if len(nvidia_devices) == 1 else f"{len(nvidia_devices)} NVIDIA GPUs are"
        gap = f"{gpu_count} on the PCI bus, but the ids are unknown: {reason}"
        return replace(machine, gaps=(*machine.gaps, gap))
    gpus_by_address = {normal_address(gpu.address): (index, gpu) for index, gpu in enumerate(gpus)}
    pci, nodes = [], {}
    for device in machine.pci:
        index, gpu = gpus_by_address.get(normal_address(device.address), (0, None))
        if gpu is not None:
            names = tuple(filter(None, (f"GPU {index}", gpu.model)))
            node = _nearest_node(device, machine)
            device = replace(device, names=names, node=node, uuid=gpu.uuid)  # noqa: PLW2901 - with its names
            nodes[normal_address(device.address)] = device.node
        pci.append(device)
    gpu_nodes = [(gpu.uuid, nodes.get(normal_address(gpu.address))) for gpu in gpus]
    devices = [Device(GPU_RESOURCE, uuid, nodes=None if node is None else 1 << node) for uuid, node in gpu_nodes]
    links: tuple[DeviceLink, ...] = ()
    gaps = machine.gaps
    if len(nvidia_devices) > 1:
        links, reason = _read_nvml(_nvml_links, missing="install the extra gpu (nvidia-ml-py)")
        gaps = (*gaps, f"the links between {len(nvidia_devices)} NVIDIA GPUs are unknown: {reason}") if reason else gaps
    machine_with_links = replace(machine, pci=tuple(pci), links=links, gaps=gaps)
    return machine_with_links.with_reported((*machine.devices, *devices)).checked()


def read_driver_gpus(files: FileReader) -> tuple[Gpu, ...]:
    """Return the GPUs that NVIDIA's driver lists, by address, as the driver numbers them."""
    gpus = []
    for address in files.names(DRIVER) if files.has(DRIVER) else ():
        lines = (files.read(f"{DRIVER}/{address}/information") or "").splitlines()
        values = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if is_address(address) and values.get("GPU UUID"):
            gpus.append(Gpu(address, values["GPU UUID"], values.get("Model", ""), values.get("Device Minor", "")))
    return tuple(gpus)


def _nearest_node(device: PciDevice, machine: Machine) -> int | None:
    """Return the NUMA node of *device*; if it reports none, the only node, or the node of the CPUs near it."""
    if device.node is not None:
        return device.node
    near = {cpu.node for cpu in machine.cpus if (device.cpus or 0) >> cpu.id & 1}
    ids = {node.id for node in machine.nodes} if len(machine.nodes) == 1 else near
    return next(iter(ids)) if len(ids) == 1 else None


def _read_nvml(read: Callable[[ModuleType], Iterator[_Item]], *, missing: str) -> tuple[tuple[_Item, ...], str]:
    """Return what *read* gets from NVML, and why it gets nothing: *missing* without the library."""
    try:
        nvml = import_module("pynvml")
    except ImportError:
        return (), missing
    try:
        nvml.nvmlInit()
        try:
            return tuple(read(nvml)), ""
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        return (), str(error)


def _nvml_gpus(nvml: ModuleType) -> Iterator[Gpu]:
    """Yield the GPUs in NVML's order."""
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        info = nvml.nvmlDeviceGetPciInfo(handle)
        yield Gpu(*map(_text, (info.busId, nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle))))


def _nvml_links(nvml: ModuleType) -> Iterator[DeviceLink]:
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    gpus = {normal_address(_text(nvml.nvmlDeviceGetPciInfo(handle).busId)): handle for handle in handles}
    counts = LinkCounts(LinkKind.NVLINK)
    for gpu, handle in gpus.items():
        for link in range(MAX_NVLINKS):
            try:
                if nvml.nvmlDeviceGetNvLinkState(handle, link):
                    counts.add(gpu, _nvml_link_end(nvml, handle, link=link, gpus=gpus))
            except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
                break  # the GPU has no such link
    return counts.links()


def _nvml_link_end(nvml: ModuleType, handle: object, *, link: int, gpus: Collection[str]) -> str:
    """Return where a link leads. A switch is often invisible, so its address is not asked for."""
    kind = nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link)
    if kind == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
        return SWITCH_END
    if kind == nvml.NVML_NVLINK_DEVICE_TYPE_IBMNPU:
        return CPU_END
    address = normal_address(_text(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId))
    return address if address in gpus or kind == nvml.NVML_NVLINK_DEVICE_TYPE_GPU else SWITCH_END


def _text(value: str | bytes) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value
