"""A machine as a document, which reads back as the same machine and is easy to write by hand.

    alignup: machine/v1
    cpus:
      - {socket: 0, node: 0, cores: "0,4 1,5"}     # the threads of each core; a space separates cores
      - {socket: 1, node: 1, cores: "2,6 3,7"}
    nodes:
      - {id: 0, memory: 64Gi, hugepages: {2Mi: 512}}
      - {id: 1, memory: 64Gi}
    distances: [[10, 21], [21, 10]]
    pci:
      - {address: "0000:3e:00.0", class: 0x030200, node: 0, path: "pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:04.0"}

The id of a core is its lowest CPU unless ``numbers`` lists other ids. ``report`` holds what cAdvisor reports, in the
same form; without it the kubelet sees the hardware as described. The path of a PCI device has its root complex and the
bridges above it; without a root complex each bridge is a whole switch. ``pairs`` are written for other programs only.
"""

from collections.abc import Iterable, Iterator
from itertools import combinations, count
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from alignup.align import bits
from alignup.align.errors import FieldError, ParseError, QuantityError, SourceError
from alignup.align.locality import DeviceKind, DeviceLink, Level, LinkKind, Locality, PciPath, StatedLevel
from alignup.align.machine import (
    MAX_CPU_ID,
    MAX_CPUS,
    MAX_DEVICES,
    MAX_LINKS,
    MAX_NODE_ID,
    MAX_NODES,
    MAX_PCI_DEVICES,
    CadvisorNode,
    CadvisorReport,
    Cpu,
    Device,
    Distances,
    HugePages,
    Machine,
    NumaNode,
    PciDevice,
    split_repeated_pci,
)
from alignup.align.quantity import Quantity
from alignup.documents.codec import Int64, build, convert, show_or_none, to_builtins

FORMAT = "machine/v1"
MAX_PAIRED_DEVICES = 256  #: with more devices, only pairs of GPUs are written

_List = str | Int64  # YAML reads a list of one CPU as a number
_PCI_CODES = {"kind": 6, "vendor": 4, "device": 4}  # name → hexadecimal digits


class _Strict(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """People write these documents, so a misspelled field is an error."""


def _doc(text: str) -> Meta:
    return Meta(description=text)


class NodeDocument(_Strict):
    id: Annotated[Int64, _doc("Number of the NUMA node.")]
    memory: Annotated[Int64 | str | None, _doc("Memory, such as 64Gi.")] = None
    hugepages: Annotated[dict[str | Int64, Int64], _doc("Number of huge pages by size: {2Mi: 512}.")] = {}
    #: only in a report
    distances: Annotated[list[Int64] | None, _doc("Only in a report: the distances that cAdvisor has.")] = None


class CpuGroupDocument(_Strict):
    """The CPUs that share a socket, a NUMA node and a cache."""

    socket: Annotated[Int64, _doc("Number of the socket.")]
    cores: Annotated[_List, _doc('The CPUs of each core; a space separates cores: "0,4 1,5".')]
    node: Annotated[Int64 | None, _doc("Number of the NUMA node.")] = None
    cache: Annotated[Int64 | None, _doc("Number of the last-level cache that these CPUs share.")] = None
    numbers: Annotated[_List | None, _doc("Numbers of the cores, if they are not the lowest CPUs.")] = None


class DeviceDocument(_Strict):
    resource: Annotated[str, _doc("Name of the resource, such as example.com/gpu.")]
    id: Annotated[str, _doc("Id of the device.")]
    nodes: Annotated[_List | None, _doc("NUMA nodes of the device; without them it is near all.")] = None
    healthy: Annotated[bool, _doc("Whether the device plugin reports it as healthy.")] = True


class PciDeviceDocument(_Strict, rename={"kind": "class"}):
    address: Annotated[str, _doc("Address, such as 0000:3b:00.0.")]
    kind: Annotated[str | Int64 | None, _doc("Class code, such as 0x030200.")] = None
    vendor: Annotated[str | Int64 | None, _doc("Vendor code, such as 0x10de.")] = None
    device: Annotated[str | Int64 | None, _doc("Device code.")] = None
    node: Annotated[Int64 | None, _doc("Number of the NUMA node.")] = None
    cpus: Annotated[_List | None, _doc("CPUs near the device.")] = None
    names: Annotated[list[str], _doc("Names that Linux gives the device, such as eth0 or nvme0n1.")] = []
    path: Annotated[
        str | None, _doc("Root complex and bridges above the device, such as pci0000:3a/0000:3a:00.0, as in sysfs.")
    ] = None
    rail: Annotated[Int64 | None, _doc("Number of the network that a network interface is on.")] = None
    uuid: Annotated[str, _doc("UUID of a GPU.")] = ""


class DeviceLinkDocument(_Strict):
    """Links beside PCIe."""

    kind: Annotated[LinkKind, _doc("Kind of the links.")]
    devices: Annotated[
        list[str], _doc("Addresses of two devices, of all on one NVSwitch fabric, or of one that is linked to its CPU.")
    ]
    count: Annotated[Int64, _doc("Number of links between every two of the devices.")] = 1


class StatedLevelDocument(_Strict):
    """How near two devices are, as nvidia-smi states it."""

    devices: Annotated[tuple[str, str], _doc("Addresses of two PCI devices.")]
    level: Annotated[Level, _doc("Level, such as PIX.")]


class PairDocument(_Strict):
    """What is computed for two devices."""

    devices: Annotated[tuple[str, str], _doc("Addresses of two PCI devices.")]
    pcie: Annotated[str | None, _doc("Level by the PCIe tree, such as PIX; null: the machine cannot say.")]
    link: Annotated[str | None, _doc("Links beside PCIe, such as NV12; null: none.")]


class CadvisorReportDocument(_Strict):
    num_cpus: Annotated[Int64, _doc("Number of CPUs.")]
    num_sockets: Annotated[Int64, _doc("Number of sockets.")]
    cpus: Annotated[list[CpuGroupDocument], _doc("As in the machine.")] = []
    nodes: Annotated[list[NodeDocument] | None, _doc("As in the machine, each with its distances.")] = None


class MachineDocument(_Strict):
    alignup: Annotated[str, _doc("The format: machine/v1.")]
    cpus: Annotated[list[CpuGroupDocument], _doc("Groups of CPUs.")]
    nodes: Annotated[list[NodeDocument], _doc("NUMA nodes.")] = []
    distances: Annotated[list[list[Int64]] | None, _doc("Distances, a row for each NUMA node in rising order.")] = None
    memory: Annotated[Int64 | str | None, _doc("Memory of the machine, if it is not that of its NUMA nodes.")] = None
    hugepages: Annotated[dict[str | Int64, Int64], _doc("Huge pages of the machine by size.")] = {}
    offline: Annotated[_List, _doc("CPUs that are offline.")] = ""
    devices: Annotated[list[DeviceDocument], _doc("Devices of device plugins.")] = []
    pci: Annotated[list[PciDeviceDocument], _doc("PCI devices.")] = []
    report: Annotated[
        CadvisorReportDocument | None, _doc("What cAdvisor reports to the kubelet, if it differs from the hardware.")
    ] = None
    gaps: Annotated[list[str], _doc("What could not be read, for people.")] = []
    model: Annotated[str, _doc("Model of the CPUs, for pictures.")] = ""
    caches: Annotated[dict[str, Int64], _doc("Caches of a CPU in bytes, for pictures: {L1d: 49152, L2: 2097152}.")] = {}
    links: Annotated[list[DeviceLinkDocument], _doc("Links between PCI devices beside PCIe.")] = []
    stated_levels: Annotated[list[StatedLevelDocument], _doc("Levels of PCI devices without a path.")] = []
    pcie: Annotated[str, _doc("Why the level of pairs is unknown. Ignored when read.")] = ""
    pairs: Annotated[
        list[PairDocument], _doc("Computed for pairs of GPUs, NICs and NVMe drives. Ignored when read.")
    ] = []


def machine_to_document(machine: Machine, *, pairs: bool = False) -> dict[str, Any]:
    """Return *machine* as plain JSON values; fields with default values are left out.

    With *pairs*, it has levels and links between GPUs, network interfaces and NVMe drives; if they are many, between
    GPUs.
    """
    locality = machine.locality if pairs else None
    report = None
    if (cadvisor_report := machine.report) is not None:
        nodes = None if cadvisor_report.nodes is None else list(map(_node_document, cadvisor_report.nodes))
        report = build(
            CadvisorReportDocument, cadvisor_report, cpus=list(_cpu_groups(cadvisor_report.cpus)), nodes=nodes
        )
    return to_builtins(
        build(
            MachineDocument,
            machine,
            alignup=FORMAT,
            cpus=list(_cpu_groups(machine.cpus)),
            nodes=list(map(_node_document, machine.nodes)),
            distances=None if machine.distances is None else [list(row) for row in machine.distances.matrix],
            hugepages=_page_counts(machine.hugepages),
            offline=bits.show(machine.offline),
            devices=[build(DeviceDocument, device, nodes=show_or_none(device.nodes)) for device in machine.devices],
            pci=list(map(_pci_document, machine.pci)),
            report=report,
            gaps=list(machine.gaps),
            caches=dict(machine.caches),
            links=[build(DeviceLinkDocument, link, devices=list(link.devices)) for link in machine.links],
            stated_levels=[build(StatedLevelDocument, stated_level) for stated_level in machine.stated_levels],
            pcie=locality.note if locality else "",
            pairs=_pairs(locality) if locality else [],
        )
    )


def machine_from_document(document: object, *, name: str = "the text") -> Machine:
    """Return the machine that decoded YAML or JSON describes; errors refer to it by *name*."""
    if not isinstance(document, dict) or "alignup" not in document:
        raise SourceError(
            f"{name} does not describe a machine: expected a document with 'alignup: {FORMAT}', cAdvisor's MachineInfo,"
            " hwloc XML or a synthetic machine such as 'pack:2 core:8 pu:2'"
        )
    if (format_ := document["alignup"]) != FORMAT:
        other = f"the format {format_[:40]!r}" if isinstance(format_, str) else "another format"
        raise SourceError(f"{other} is unknown: expected {FORMAT!r}", file=name, field="alignup")
    try:
        return _machine(convert(document, MachineDocument)).checked()
    except FieldError as error:
        raise SourceError(error.message, file=name, field=error.field) from error
    except ParseError as error:
        raise SourceError(str(error), file=name) from error


def _machine(document: MachineDocument) -> Machine:
    for field, entries, most in (
        ("nodes", len(document.nodes), MAX_NODES),
        ("devices", len(document.devices), MAX_DEVICES),
        ("pci", len(document.pci), MAX_PCI_DEVICES),
        ("links", len(document.links), MAX_LINKS),
    ):
        if entries > most:
            raise FieldError(f"{entries} entries: expected at most {most}", field=field)
    for index, node in enumerate(document.nodes):
        if node.distances is not None:
            message = f"NUMA node {node.id} has its own distances: expected all of them under 'distances'"
            raise FieldError(message, field=f"nodes[{index}].distances")
    report = None
    if (cadvisor_report := document.report) is not None:
        nodes = None if cadvisor_report.nodes is None else tuple(map(_cadvisor_node, count(), cadvisor_report.nodes))
        report = build(
            CadvisorReport, cadvisor_report, cpus=_cpus(cadvisor_report.cpus, field="report.cpus"), nodes=nodes
        )
    pci, pci_gaps = split_repeated_pci(map(_pci_device, count(), document.pci))
    numa_nodes = [
        NumaNode(
            node.id,
            memory=_bytes(node.memory, field=f"nodes[{index}].memory"),
            hugepages=_pages(node.hugepages, field=f"nodes[{index}].hugepages"),
        )
        for index, node in enumerate(document.nodes)
    ]
    devices = [
        Device(
            device.resource,
            device.id,
            _parse_list(device.nodes, field=f"devices[{index}].nodes", below=MAX_NODE_ID),
            device.healthy,
        )
        for index, device in enumerate(document.devices)
    ]
    return Machine(
        cpus=_cpus(document.cpus, field="cpus"),
        nodes=tuple(sorted(numa_nodes, key=lambda node: node.id)),
        distances=_distances(document.distances, sorted(node.id for node in document.nodes)),
        pci=pci,
        memory=_bytes(document.memory, field="memory"),
        hugepages=_pages(document.hugepages, field="hugepages"),
        offline=_parse_list(document.offline, field="offline") or 0,
        report=report,
        gaps=(*document.gaps, *pci_gaps),
        model=document.model,
        caches=tuple((name, size) for name, size in document.caches.items() if size > 0),
        links=tuple(DeviceLink(link.kind, tuple(link.devices), link.count) for link in document.links),
        stated_levels=tuple(build(StatedLevel, stated_level) for stated_level in document.stated_levels),
    ).with_reported(devices)


def _cpus(groups: Iterable[CpuGroupDocument], *, field: str) -> tuple[Cpu, ...]:
    cpus: list[Cpu] = []
    for index, group in enumerate(groups):
        cores = str(group.cores).split()
        numbers = None if group.numbers is None else str(group.numbers).split()
        if numbers is not None and len(numbers) != len(cores):
            message = f"expected as many as cores, {len(cores)}, not {len(numbers)}"
            raise FieldError(message, field=f"{field}[{index}].numbers")
        for position, threads in enumerate(cores):
            mask = _parse_list(threads, field=f"{field}[{index}].cores") or 0
            members = list(bits.members(mask))
            try:
                core = members[0] if numbers is None else bits.parse_integer(numbers[position])
            except ParseError as error:
                raise FieldError(str(error), field=f"{field}[{index}]") from error
            cpus += [Cpu(id_, core, group.socket, group.node, group.cache) for id_ in members]
            if len(cpus) > MAX_CPUS:
                raise FieldError(f"expected at most {MAX_CPUS}", field=field)
    return tuple(sorted(cpus, key=lambda cpu: cpu.id))


def _cpu_groups(cpus: Iterable[Cpu]) -> Iterator[CpuGroupDocument]:
    groups: dict[tuple[int, int | None, int | None], dict[int, int]] = {}
    for cpu in cpus:
        cores = groups.setdefault((cpu.socket, cpu.node, cpu.cache), {})
        cores[cpu.core] = cores.get(cpu.core, 0) | 1 << cpu.id
    for (socket, node, cache), cores in groups.items():
        default = all(core == (threads & -threads).bit_length() - 1 for core, threads in cores.items())
        numbers = None if default else " ".join(map(str, cores))
        yield CpuGroupDocument(socket, " ".join(map(bits.show, cores.values())), node, cache, numbers)


def _node_document(node: NumaNode | CadvisorNode) -> NodeDocument:
    distances = node.distances if isinstance(node, CadvisorNode) else None
    row = None if distances is None else list(distances)
    return NodeDocument(node.id, node.memory, _page_counts(node.hugepages), row)


def _cadvisor_node(index: int, node: NodeDocument) -> CadvisorNode:
    field = f"report.nodes[{index}]"
    memory = _bytes(node.memory, field=f"{field}.memory") or 0
    distances = None if node.distances is None else tuple(node.distances)
    return CadvisorNode(node.id, memory, _pages(node.hugepages, field=f"{field}.hugepages"), distances)


def _distances(rows: list[list[int]] | None, nodes: list[int]) -> Distances | None:
    if rows is None:
        return None
    if len(rows) != len(nodes) or any(len(row) != len(nodes) for row in rows):
        message = f"expected a row of {len(nodes)} for each NUMA node, in rising order of NUMA nodes"
        raise FieldError(message, field="distances")
    return Distances({a: dict(zip(nodes, row, strict=True)) for a, row in zip(nodes, rows, strict=True)})


def _pci_device(index: int, device: PciDeviceDocument) -> PciDevice:
    codes = {name: getattr(device, name) for name in _PCI_CODES}
    for name, code in codes.items():
        try:
            codes[name] = int(code, 16) if isinstance(code, str) else code
        except ValueError:
            message = f"{code!r} is not a hexadecimal code such as 0x10de"
            field = "class" if name == "kind" else name
            raise FieldError(message, field=f"pci[{index}].{field}") from None
    cpus = _parse_list(device.cpus, field=f"pci[{index}].cpus")
    path = None if device.path is None else parse_path(device.path)
    return build(PciDevice, device, **codes, cpus=cpus, names=tuple(device.names), path=path)


def parse_path(text: str) -> PciPath:
    first, *others = text.split("/")
    is_root = first.startswith("pci")
    return PciPath(first if is_root else None, tuple(filter(None, others if is_root else (first, *others))))


def show_path(path: PciPath) -> str:
    return "/".join(filter(None, (path.root, *path.bridges)))


def _pci_document(device: PciDevice) -> PciDeviceDocument:
    codes = {name: getattr(device, name) for name in _PCI_CODES}
    texts = {name: None if code is None else f"0x{code:0{_PCI_CODES[name]}x}" for name, code in codes.items()}
    path = None if device.path is None else show_path(device.path)
    cpus = show_or_none(device.cpus)
    return build(PciDeviceDocument, device, **texts, cpus=cpus, names=list(device.names), path=path)


def _pairs(locality: Locality) -> list[PairDocument]:
    devices = list(locality.devices)
    if len(devices) > MAX_PAIRED_DEVICES:  # virtual functions of network interfaces
        devices = [device for device in devices if locality.devices[device] is DeviceKind.GPU][:MAX_PAIRED_DEVICES]
    levels_and_links = ((pair, locality.level(*pair), locality.link(*pair)) for pair in combinations(devices, 2))
    return [PairDocument(pair, level, None if link is None else str(link)) for pair, level, link in levels_and_links]


def _parse_list(value: _List | None, *, field: str, below: int = MAX_CPU_ID) -> int | None:
    try:
        return None if value is None else bits.parse(str(value), below=below)
    except ParseError as error:
        raise FieldError(f"{str(value)[:60]!r} is not a list such as 0-3,8: {error}", field=field) from error


def _bytes(amount: int | str | None, *, field: str) -> int | None:
    if not isinstance(amount, str):
        return amount
    try:
        return Quantity.parse(amount).value()
    except QuantityError as error:
        raise FieldError(f"{amount[:60]!r} is not a quantity such as 64Gi: {error.message}", field=field) from error


def _pages(pages: dict[str | int, int], *, field: str) -> tuple[HugePages, ...]:
    return tuple(
        HugePages(size=_bytes(str(size), field=f"{field}[{size}]") or 0, count=number) for size, number in pages.items()
    )


def _page_counts(pages: Iterable[HugePages]) -> dict[str | int, int]:
    return {page.resource.removeprefix("hugepages-"): page.count for page in pages}
