"""Devices and links from files that describe nothing else: NCCL's and RCCL's XML, and the output of programs.

NCCL writes its XML with ``NCCL_TOPO_DUMP_FILE``; clouds ship such files for their virtual machines. They have one
bridge for each switch and list only the devices of a job. A target of an NVLink may be a switch that no file shows.
``nvidia-smi topo -m`` prints levels without addresses; its GPUs are in the order of their addresses. A listing
(``ls -l /sys/bus/pci/devices``) has the PCIe tree that older recordings lack.

Such a file is added to a machine: it gives links, and where the machine itself has no PCIe tree, paths or levels. On
its own it is a machine without CPUs, which can only be shown.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from alignup.align import bits
from alignup.align.bits import CpuSet
from alignup.align.errors import ParseError, SourceError
from alignup.align.locality import (
    DeviceKind,
    DeviceLink,
    Level,
    LinkKind,
    PciPath,
    StatedLevel,
    components,
    device_kind,
    normal_address,
)
from alignup.align.machine import (
    MAX_CPU_ID,
    MAX_LINKS,
    MAX_NODE_ID,
    MAX_PCI_DEVICES,
    Machine,
    NumaNode,
    PciDevice,
    split_repeated_pci,
)
from alignup.machines import machine_source
from alignup.machines.file_reader import parse_mask
from alignup.machines.hwloc_xml import MAX_XML_DEPTH, MAX_XML_OBJECTS, read_xml
from alignup.machines.link_counts import CPU_END, SWITCH_END, LinkCounts
from alignup.machines.system import MAX_NAMES, NVIDIA, read_path

MAX_MATRIX_DEVICES = 256  #: in the output of nvidia-smi

_HEADER = re.compile(r"\s*(GPU[0-9]{1,4}\b.*)", re.ASCII)
_LISTED = re.compile(
    r"(?:^|\s)([0-9a-f]{4,8}:[0-9a-f:.]{7}) -> \S{0,200}?(/pci[0-9a-f:]{7,11}/\S{7,900})$", re.ASCII | re.MULTILINE
)
_FACT = re.compile(
    r"^([0-9a-f]{4,8}:[0-9a-f:.]{7})((?: (?:class|vendor|device|numa_node|local_cpulist) \S{1,4000})+)$",
    re.ASCII | re.MULTILINE,
)
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_LEGEND = re.compile(r"\s*(NIC[0-9]{1,4}):\s+(\S{1,64})\s*", re.ASCII)
_NVLINKS = re.compile(r"NV([0-9]{1,4})", re.ASCII)
_LEVELS = {level.value: level for level in Level} | {"SOC": Level.SYS, "CPU": Level.NODE}  #: with names of old drivers
_MOST_DIRECT = 18  #: NVLinks of one GPU; more in total are links to switches, counted for every pair
_GPU_CLASS, _NIC_CLASS, _BRIDGE_CLASS = 0x030200, 0x020000, 0x0604
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", re.ASCII)
_SWITCH_CLASS, _CPU_CLASS = 0x068000, 0x068001  #: of the target of a link


def load_links(machine: Machine, file: Path) -> Machine:
    """Return *machine* with the links, levels and paths in *file*."""
    described_machine = machine_source.load(file, devices_only=True)
    if described_machine.cpus:
        raise SourceError(f"{file} describes a whole machine: expected NCCL's XML or the output of nvidia-smi topo -m")
    return add_links(machine, described_machine, name=str(file))


def parse(text: str, *, name: str) -> Machine | None:
    """Return the devices in *text* as a machine without CPUs; ``None`` if it is of another format."""
    start = text.lstrip("\ufeff \t\r\n")
    if start.startswith("<"):
        first = re.search(r"<([A-Za-z]\w*)", re.sub(r"<!--.*?-->", "", start[:100_000], flags=re.DOTALL))
        return _parse_nccl(text, name) if first and first[1] == "system" else None
    if _HEADER.match(_ESCAPE.sub("", start[:1000])):
        return _parse_matrix(text, name)
    return _parse_listing(text, name) if _LISTED.search(start[:10_000]) else None


def add_links(machine: Machine, described_machine: Machine, *, name: str) -> Machine:
    """Return *machine* with what the file *name* describes; ``SourceError`` if it describes another machine."""
    addresses = _match_devices(machine, described_machine, name)
    by_address = {addresses[device.address]: device for device in described_machine.pci if device.address in addresses}
    nodes = {node.id for node in machine.nodes}
    pci = []
    for device in machine.pci:
        described_device = by_address.get(device.address)
        if described_device is not None and not machine.locality.has_tree:
            node = described_device.node if device.node is None and described_device.node in nodes else device.node
            device = replace(device, path=described_device.path or device.path, node=node)  # noqa: PLW2901 - with its path
        pci.append(device)
    count = len(described_machine.pci) - len(by_address)
    gaps = (f"{count} of {len(described_machine.pci)} devices in {name} are not on this machine",) if count else ()
    links = [
        replace(link, devices=tuple(addresses[device] for device in link.devices if device in addresses))
        for link in described_machine.links
        if sum(device in addresses for device in link.devices) >= min(2, len(link.devices))
    ]
    levels = [
        StatedLevel((addresses[a], addresses[b]), level)
        for (a, b), level in ((stated.devices, stated.level) for stated in described_machine.stated_levels)
        if a in addresses and b in addresses
    ]
    return (
        replace(
            machine,
            devices=(),
            pci=tuple(pci),
            links=tuple(links) or machine.links,
            stated_levels=tuple(levels) or machine.stated_levels,
            gaps=(*machine.gaps, *gaps),
        )
        .with_reported(machine.devices)
        .checked()
    )


def _match_devices(machine: Machine, described_machine: Machine, name: str) -> dict[str, str]:
    """Return the address on *machine* of each device in the file *name*, by address, number or name."""
    addresses = {
        device.address: device.address for device in described_machine.pci if device.address in machine.locality.pci
    }
    if all(device.path is None for device in described_machine.pci):
        count = sum(device_kind(device) is DeviceKind.GPU for device in described_machine.pci)
        nvidia = [device for device in machine.pci if device.vendor == NVIDIA and device_kind(device) is DeviceKind.GPU]
        if count != len(nvidia):
            raise SourceError(
                f"{name} has {count} GPUs, but this machine has {len(nvidia)} of NVIDIA: is it another one?"
            )
        ordered_addresses = iter(
            sorted((device.address for device in nvidia), key=lambda address: (len(address), address))
        )
        by_name = {name: device.address for device in machine.pci for name in device.names}
        for device in described_machine.pci:
            is_gpu = device_kind(device) is DeviceKind.GPU
            label = next(iter(device.names), device.address)
            if address := next(ordered_addresses) if is_gpu else by_name.get(label):
                addresses[device.address] = address
    if not addresses:
        raise SourceError(f"{name} has no device of this machine: is it a file of another one?")
    return addresses


# ---- NCCL and RCCL


@dataclass(slots=True)
class _Element:
    """A ``pci`` element."""

    address: str
    attributes: dict[str, str]
    node: int | None
    cpus: CpuSet | None
    bridges: tuple[str, ...]
    is_bridge: bool = False
    kind: int | None = None  #: of what is inside
    names: list[str] = field(default_factory=list)


class _NcclReader:
    def __init__(self, name: str) -> None:
        self.elements: list[_Element] = []
        self.counts = {kind: LinkCounts(kind) for kind in (LinkKind.NVLINK, LinkKind.XGMI, LinkKind.C2C)}
        self._name = name
        self._depth = 0
        self._count = 0
        self._node: int | None = None
        self._cpus: CpuSet | None = None
        self._open: list[_Element] = []

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        self._count += 1
        if self._depth > MAX_XML_DEPTH or self._count > MAX_XML_OBJECTS:
            most = f"{MAX_XML_OBJECTS} elements, or nested more than {MAX_XML_DEPTH} levels deep"
            raise SourceError(f"{self._name} is rejected: it has more than {most}")
        if tag == "cpu":
            self._node = _number(attributes.get("numaid", ""), below=MAX_NODE_ID)
            try:
                self._cpus = parse_mask(attributes.get("affinity", ""))
            except ParseError:
                self._cpus = None
        elif tag == "pci":
            self._start_pci(attributes)
        elif self._open:
            self._add_detail(self._open[-1], tag, attributes)

    def _start_pci(self, attributes: dict[str, str]) -> None:
        address = normal_address(attributes.get("busid", ""))
        if not _ADDRESS.fullmatch(address):
            raise SourceError(
                f"{self._name} has a <pci> with busid {address[:40]!r}: expected an address like 0000:3b:00.0"
            )
        for parent in self._open[-1:]:
            parent.is_bridge = True
        bridges = tuple(parent.address for parent in self._open)
        self._open.append(_Element(address, attributes, self._node, self._cpus, bridges))
        self.elements.append(self._open[-1])

    def _add_detail(self, element: _Element, tag: str, attributes: dict[str, str]) -> None:
        count = _number(attributes.get("count", ""), below=MAX_LINKS) or 0
        if tag == "gpu":
            element.kind = _GPU_CLASS
            element.names.append(f"GPU {attributes.get('dev', '')[:8]}".strip())
        elif tag == "net":
            element.kind = element.kind or _NIC_CLASS
            element.names.append(attributes.get("name", "")[:64])
        elif tag in {"nvlink", "xgmi"}:
            ends = {_SWITCH_CLASS: SWITCH_END, _CPU_CLASS: CPU_END}
            end = ends.get(_code(attributes.get("tclass", "")) or 0, normal_address(attributes.get("target", "")))
            self.counts[LinkKind(tag)].add(element.address, end, count)
        elif tag == "c2c":
            self.counts[LinkKind.C2C].add(element.address, CPU_END, count)

    def end(self, tag: str) -> None:
        self._depth -= 1
        if tag == "pci":
            self._open.pop()


def _parse_nccl(text: str, name: str) -> Machine:
    reader = _NcclReader(name)
    read_xml(text, name=name, start=reader.start, end=reader.end)
    pci_elements = [element for element in reader.elements if not element.is_bridge]
    devices = (_pci_device(element) for element in pci_elements[: MAX_PCI_DEVICES + 1])
    pci, gaps = split_repeated_pci(device for device in devices if (device.kind or 0) >> 8 != _BRIDGE_CLASS)
    addresses = {device.address for device in pci}
    links = [link for counts in reader.counts.values() for link in counts.links() if addresses >= set(link.devices)]
    return _only_devices(pci, links=links, gaps=gaps, name=name)


def _pci_device(element: _Element) -> PciDevice:
    codes = {name: _code(element.attributes.get(name, "")) for name in ("class", "vendor", "device")}
    device = PciDevice(
        element.address,
        kind=codes["class"],
        vendor=codes["vendor"],
        device=codes["device"],
        node=element.node,
        cpus=element.cpus,
        names=tuple(filter(None, element.names))[:MAX_NAMES],
        path=PciPath(None, element.bridges),
    )
    return device if device_kind(device) or not element.kind else replace(device, kind=element.kind)


# ---- output of programs


def _parse_matrix(text: str, name: str) -> Machine:
    lines = _ESCAPE.sub("", text).splitlines()
    first = next(index for index, line in enumerate(lines) if line.strip())
    header, affinity, _ = lines[first].partition("CPU Affinity")
    columns = header.split()
    if len(columns) > MAX_MATRIX_DEVICES or len(set(columns)) < len(columns):
        raise SourceError(f"expected at most {MAX_MATRIX_DEVICES} different devices", file=name, line=first + 1)
    cells: dict[tuple[str, str], str] = {}
    near: dict[str, list[str]] = {}
    legend: dict[str, str] = {}
    for number, line in enumerate(lines[first + 1 :], first + 2):
        row, *texts = line.split() or [""]
        if entry := _LEGEND.fullmatch(line):
            legend[entry[1]] = entry[2]
        elif row in columns and row not in near:
            if len(texts) < len(columns):
                raise SourceError(f"{row} has {len(texts)} levels: expected {len(columns)}", file=name, line=number)
            near[row] = texts[len(columns) :] if affinity else []
            for column, cell in zip(columns, texts, strict=False):
                if cell not in _LEVELS and cell not in {"X", "N/A"} and not _NVLINKS.fullmatch(cell):
                    expectation = f"expected X, NV#, {', '.join(_LEVELS)}"
                    raise SourceError(
                        f"{row} and {column} have level {cell[:20]!r}: {expectation}", file=name, line=number
                    )
                cells.setdefault((min(row, column), max(row, column)), cell)
    stated_levels = [StatedLevel(pair, _LEVELS[cell]) for pair, cell in cells.items() if cell in _LEVELS]
    links_by_pair = {pair: int(links[1]) for pair, cell in cells.items() if (links := _NVLINKS.fullmatch(cell))}
    has_node = "NUMA Affinity" in lines[first]
    pci = [_matrix_device(column, near.get(column, []), legend, has_node=has_node) for column in columns]
    return replace(_only_devices(pci, links=_nvlinks(links_by_pair), name=name), stated_levels=tuple(stated_levels))


def _parse_listing(text: str, name: str) -> Machine:
    """Return the devices of ``ls -l``, and of lines with an address and what sysfs has of the device."""
    facts: dict[str, dict[str, str]] = {}
    for address, line in _FACT.findall(text):
        words = line.split()
        facts.setdefault(address, {}).update(zip(words[::2], words[1::2], strict=True))
    pci = []
    for address, target in _LISTED.findall(text)[: MAX_PCI_DEVICES + 1]:
        fact = facts.get(address, {})
        pci.append(
            PciDevice(
                address,
                kind=_code(fact.get("class", "")),
                vendor=_code(fact.get("vendor", "")),
                device=_code(fact.get("device", "")),
                node=_number(fact.get("numa_node", ""), below=MAX_NODE_ID),
                cpus=_cpus(fact.get("local_cpulist")),
                path=read_path(target),
            )
        )
    devices, gaps = split_repeated_pci(pci)
    return _only_devices(devices, links=(), gaps=gaps, name=name)


def _cpus(text: str | None) -> CpuSet | None:
    try:
        return None if text is None else bits.parse(text, below=MAX_CPU_ID)
    except ParseError:
        return None


def _matrix_device(column: str, near: list[str], legend: dict[str, str], *, has_node: bool) -> PciDevice:
    is_gpu = column.startswith("GPU")
    node = _number(near[1], below=MAX_NODE_ID) if has_node and len(near) > 1 else None
    return PciDevice(
        column,
        kind=_GPU_CLASS if is_gpu else _NIC_CLASS,
        vendor=NVIDIA if is_gpu else None,
        node=node,
        cpus=_cpus(near[0]) if near else None,
        names=(legend[column],) if column in legend else (),
    )


def _nvlinks(counts: dict[tuple[str, str], int]) -> Iterator[DeviceLink]:
    """Yield a fabric for GPUs whose equal counts are too many for links to each other, and other links by pair."""
    gpus = sorted({gpu for pair in counts for gpu in pair})
    for island in components(gpus, counts):
        pairs = {pair: count for pair, count in counts.items() if pair[0] in island}
        (count, *others) = {count for pair, count in pairs.items()}
        is_complete = not others and len(pairs) == len(island) * (len(island) - 1) // 2
        if is_complete and count * (len(island) - 1) > _MOST_DIRECT:
            yield DeviceLink(LinkKind.NVSWITCH, island, count)
        else:
            yield from (DeviceLink(LinkKind.NVLINK, pair, count) for pair, count in pairs.items() if count)


def _only_devices(
    pci: Iterable[PciDevice], *, links: Iterable[DeviceLink], name: str, gaps: tuple[str, ...] = ()
) -> Machine:
    """Return a machine of devices alone, which ``Machine.checked`` would reject for want of CPUs."""
    pci_devices = tuple(pci)
    if not pci_devices or len(pci_devices) > MAX_PCI_DEVICES:
        raise SourceError(f"{name} has {len(pci_devices)} PCI devices: expected 1 to {MAX_PCI_DEVICES}")
    nodes = sorted({device.node for device in pci_devices if device.node is not None})
    return Machine((), tuple(map(NumaNode, nodes)), pci=pci_devices, links=tuple(links), gaps=gaps)


def _number(text: str, *, below: int) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text, re.ASCII) and int(text) < below else None


def _code(text: str) -> int | None:
    return int(text, 16) if re.fullmatch(r"0x[0-9a-fA-F]{1,8}", text, re.ASCII) else None
