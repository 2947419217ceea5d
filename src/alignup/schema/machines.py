"""A machine as a document, which reads back as the same machine and is easy to write by hand.

    alignup: machine/v1
    cpus:
      - {socket: 0, node: 0, cores: "0,4 1,5"}     # the threads of each core; a space separates cores
      - {socket: 1, node: 1, cores: "2,6 3,7"}
    nodes:
      - {id: 0, memory: 64Gi, hugepages: {2Mi: 512}}
      - {id: 1, memory: 64Gi}
    distances: [[10, 21], [21, 10]]

The id of a core is its lowest CPU unless ``numbers`` lists other ids. ``report`` holds what cAdvisor reports, in the
same form; without it the kubelet sees the hardware as described.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from alignup.align import bits
from alignup.align.distances import Distances
from alignup.align.errors import ParseError, SourceError
from alignup.align.machine import (
    CadvisorNode,
    CadvisorReport,
    Cpu,
    Device,
    HugePages,
    Machine,
    NumaNode,
    PciDevice,
    hugepages_resource,
)
from alignup.align.quantity import Quantity
from alignup.schema.codec import build, convert, parse_or_none, show_or_none, to_builtins

FORMAT = "machine/v1"

_List = str | int  # YAML reads a list of one CPU as a number


class _Strict(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """People write these documents, so a misspelled field is an error."""


class NodeDocument(_Strict):
    id: int
    memory: int | str | None = None
    hugepages: dict[str | int, int] = {}
    distances: list[int] | None = None  #: only in a report


class CpuGroupDocument(_Strict):
    """The CPUs that share a socket, a NUMA node and a cache."""

    socket: int
    cores: _List
    node: int | None = None
    cache: int | None = None
    numbers: _List | None = None


class DeviceDocument(_Strict):
    resource: str
    id: str
    nodes: _List | None = None
    healthy: bool = True


class PciDeviceDocument(_Strict, rename={"kind": "class"}):
    address: str
    kind: str | int | None = None
    vendor: str | int | None = None
    device: str | int | None = None
    node: int | None = None
    cpus: _List | None = None


class CadvisorReportDocument(_Strict):
    num_cpus: int
    num_sockets: int
    cpus: list[CpuGroupDocument] = []
    nodes: list[NodeDocument] | None = None


class MachineDocument(_Strict):
    alignup: str
    cpus: list[CpuGroupDocument]
    nodes: list[NodeDocument] = []
    distances: list[list[int]] | None = None
    memory: int | str | None = None
    hugepages: dict[str | int, int] = {}
    offline: _List = ""
    devices: list[DeviceDocument] = []
    pci: list[PciDeviceDocument] = []
    report: CadvisorReportDocument | None = None
    gaps: list[str] = []


def machine_to_document(machine: Machine) -> dict[str, Any]:
    """Return *machine* as plain JSON values; fields with default values are left out."""
    plain: dict[str, Any] = to_builtins(
        build(
            MachineDocument,
            machine,
            alignup=FORMAT,
            cpus=list(_cpu_groups(machine.cpus)),
            nodes=[NodeDocument(node.id, node.memory, _page_counts(node.hugepages)) for node in machine.nodes],
            distances=None if machine.distances is None else [list(row) for row in machine.distances.matrix],
            hugepages=_page_counts(machine.hugepages),
            offline=bits.show(machine.offline),
            devices=[build(DeviceDocument, one, nodes=show_or_none(one.nodes)) for one in machine.devices],
            pci=list(map(_pci_document, machine.pci)),
            report=None if machine.report is None else _report_document(machine.report),
            gaps=list(machine.gaps),
        )
    )
    return plain


def machine_from_document(document: object, *, name: str = "the text") -> Machine:
    """Return the machine that decoded YAML or JSON describes; errors refer to it by *name*."""
    if not isinstance(document, dict) or "alignup" not in document:
        raise SourceError(
            f"{name} does not describe a machine: expected a document with 'alignup: {FORMAT}', cAdvisor's MachineInfo,"
            " hwloc XML or a synthetic machine such as 'pack:2 core:8 pu:2'"
        )
    if document["alignup"] != FORMAT:
        raise SourceError(f"{name} has the format {document['alignup']!r}: expected {FORMAT!r}")
    try:
        return _machine(convert(document, MachineDocument)).checked()
    except ParseError as error:
        raise SourceError(f"{name}: {error}") from error


def _machine(document: MachineDocument) -> Machine:
    nodes = tuple(sorted(map(_node, document.nodes), key=lambda node: node.id))
    return Machine(
        cpus=_cpus(document.cpus),
        nodes=nodes,
        distances=_distances(document.distances, [node.id for node in nodes]),
        devices=tuple(Device(one.resource, one.id, _parse_list(one.nodes), one.healthy) for one in document.devices),
        pci=tuple(map(_pci_device, document.pci)),
        memory=_bytes(document.memory),
        hugepages=_pages(document.hugepages),
        offline=_parse_list(document.offline) or 0,
        report=None if document.report is None else _report(document.report),
        gaps=tuple(document.gaps),
    )


def _report(report: CadvisorReportDocument) -> CadvisorReport:
    nodes = None if report.nodes is None else tuple(map(_reported_node, report.nodes))
    return build(CadvisorReport, report, cpus=_cpus(report.cpus), nodes=nodes)


def _report_document(report: CadvisorReport) -> CadvisorReportDocument:
    nodes = None if report.nodes is None else list(map(_reported_node_document, report.nodes))
    return build(CadvisorReportDocument, report, cpus=list(_cpu_groups(report.cpus)), nodes=nodes)


def _cpus(groups: Iterable[CpuGroupDocument]) -> tuple[Cpu, ...]:
    return tuple(sorted((cpu for group in groups for cpu in _threads(group)), key=lambda cpu: cpu.id))


def _threads(group: CpuGroupDocument) -> Iterator[Cpu]:
    cores = str(group.cores).split()
    numbers = None if group.numbers is None else str(group.numbers).split()
    if numbers is not None and len(numbers) != len(cores):
        raise ParseError(f"{len(numbers)} numbers are given for {len(cores)} cores")
    for index, threads in enumerate(cores):
        members = list(bits.members(bits.parse(threads)))
        number = members[0] if numbers is None else bits.parse_integer(numbers[index])
        for cpu in members:
            yield Cpu(cpu, core=number, socket=group.socket, node=group.node, cache=group.cache)


def _cpu_groups(cpus: Iterable[Cpu]) -> Iterator[CpuGroupDocument]:
    groups: dict[tuple[int, int | None, int | None], dict[int, int]] = {}
    for cpu in cpus:
        cores = groups.setdefault((cpu.socket, cpu.node, cpu.cache), {})
        cores[cpu.core] = cores.get(cpu.core, 0) | 1 << cpu.id
    for (socket, node, cache), cores in groups.items():
        default = all(core == (threads & -threads).bit_length() - 1 for core, threads in cores.items())
        yield CpuGroupDocument(
            cores=" ".join(map(bits.show, cores.values())),
            socket=socket,
            node=node,
            cache=cache,
            numbers=None if default else " ".join(map(str, cores)),
        )


def _node(node: NodeDocument) -> NumaNode:
    if node.distances is not None:
        raise ParseError(f"NUMA node {node.id} has its own distances: expected all of them under 'distances'")
    return NumaNode(node.id, memory=_bytes(node.memory), hugepages=_pages(node.hugepages))


def _reported_node(node: NodeDocument) -> CadvisorNode:
    distances = None if node.distances is None else tuple(node.distances)
    return CadvisorNode(node.id, _bytes(node.memory) or 0, _pages(node.hugepages), distances)


def _reported_node_document(node: CadvisorNode) -> NodeDocument:
    distances = None if node.distances is None else list(node.distances)
    return NodeDocument(node.id, node.memory, _page_counts(node.hugepages), distances)


def _distances(rows: list[list[int]] | None, nodes: list[int]) -> Distances | None:
    if rows is None:
        return None
    if len(rows) != len(nodes) or any(len(row) != len(nodes) for row in rows):
        raise ParseError(f"distances: expected {len(nodes)} rows of {len(nodes)}, in rising order of NUMA nodes")
    return Distances({a: dict(zip(nodes, row, strict=True)) for a, row in zip(nodes, rows, strict=True)})


def _pci_device(device: PciDeviceDocument) -> PciDevice:
    codes = {name: _code(getattr(device, name)) for name in ("kind", "vendor", "device")}
    return build(PciDevice, device, **codes, cpus=_parse_list(device.cpus))


def _pci_document(device: PciDevice) -> PciDeviceDocument:
    codes = {name: _hex(getattr(device, name), digits) for name, digits in (("kind", 6), ("vendor", 4), ("device", 4))}
    return build(PciDeviceDocument, device, **codes, cpus=show_or_none(device.cpus))


def _code(code: str | int | None) -> int | None:
    if code is None or isinstance(code, int):
        return code
    try:
        return int(code, 16)
    except ValueError:
        raise ParseError(f"{code!r} is not a hexadecimal code such as 0x10de") from None


def _hex(code: int | None, digits: int) -> str | None:
    return None if code is None else f"0x{code:0{digits}x}"


def _parse_list(listed: _List | None) -> int | None:
    return parse_or_none(None if listed is None else str(listed))


def _bytes(amount: int | str | None) -> int | None:
    return Quantity.parse(amount).value() if isinstance(amount, str) else amount


def _pages(pages: dict[str | int, int]) -> tuple[HugePages, ...]:
    return tuple(HugePages(size=Quantity.parse(str(size)).value(), count=count) for size, count in pages.items())


def _page_counts(pages: Iterable[HugePages]) -> dict[str | int, int]:
    return {hugepages_resource(one.size).removeprefix("hugepages-"): one.count for one in pages}
