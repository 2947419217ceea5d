"""A machine from hwloc's XML, as ``lstopo machine.xml`` writes it (formats 1 and 2).

Every object has its set of CPUs, so nesting matters only for devices: their bridges are around them. hwloc gives
memory-only nodes the CPUs near them and does not mark them: where nodes share CPUs, the smallest node has them, and of
equal ones the first. Links between GPUs are matrices of bandwidth, in which a PCI device is a switch, and a GPU is what
NVML has of it. The report of cAdvisor is inferred for an ordinary kernel.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from xml.parsers import expat

from alignup.align import bits
from alignup.align.bits import CpuSet
from alignup.align.errors import SourceError
from alignup.align.locality import DeviceLink, LinkKind, PciPath
from alignup.align.machine import (
    MAX_CPU_ID,
    MAX_CPUS,
    MAX_NODE_ID,
    MAX_NODES,
    MAX_PCI_DEVICES,
    Cpu,
    Distances,
    HugePages,
    Machine,
    NumaNode,
    PciDevice,
    split_repeated_pci,
)
from alignup.machines import cadvisor
from alignup.machines.link_counts import CPU_END, SWITCH_END, LinkCounts
from alignup.machines.system import MAX_NAMES
from alignup.machines.topology import number_groups

MAX_XML_OBJECTS = 1 << 17
MAX_XML_VALUES = 2 << 20  #: page sizes and distances
MAX_XML_DEPTH = 128

_WORD = re.compile(r"(0x)?[0-9a-fA-F]{0,8}", re.ASCII)
_PCI_TYPE = re.compile(r"([0-9a-f]{4}) \[([0-9a-f]{4}):([0-9a-f]{4})\].*", re.ASCII)
_NO_INDEX = (1 << 32) - 1
_HOST_BRIDGE = re.compile(r"([0-9a-f]{4,8}):\[([0-9a-f]{2})-[0-9a-f]{2}\]", re.ASCII)
_ATTRIBUTES = {
    *("cpuset", "depth", "local_memory", "os_index", "gp_index", "name"),
    *("pci_busid", "pci_type", "bridge_type", "bridge_pci"),
}
_TYPES = {"Package": "package", "Socket": "package", "NUMANode": "numa", "L3Cache": "l3", "PCIDev": "pci"}
_LINKS = {"NVLinkBandwidth": LinkKind.NVLINK, "XGMIBandwidth": LinkKind.XGMI}
_NVLINK_RATES = (25_000, 20_000)  #: MB/s of one link in one direction; the first version was slower


@dataclass(slots=True)
class _Object:
    kind: str
    attributes: dict[str, str]
    parent: "_Object | None"
    pages: list[HugePages] = field(default_factory=list)
    children: list["_Object"] = field(default_factory=list)  #: of a PCI device: what the system has of it
    uuid: str = ""

    @property
    def type(self) -> str:
        if self.kind == "Cache":
            return f"l{self.attributes.get('depth', '')}"
        return _TYPES.get(self.kind, self.kind.lower())

    @property
    def index(self) -> int | None:
        number = _integer(self.attributes.get("os_index"))
        return None if number is None or number == _NO_INDEX else number

    @property
    def cpus(self) -> CpuSet:
        """The set as hwloc writes it: 32-bit words, highest first; an empty word is 0."""
        text = self.attributes.get("cpuset", "")
        words = text.split(",")
        if len(words) * 32 > MAX_CPU_ID or not all(_WORD.fullmatch(word) for word in words):
            raise SourceError(f"{text[:60]!r} is not a finite set of CPUs")
        return int("".join(word.removeprefix("0x").zfill(8) for word in words), 16)


@dataclass(slots=True)
class _DistanceElement:
    """A ``distances`` element: values as written, over nodes by id or, in format 1, in order."""

    name: str = ""
    kind: str = "NUMANode"  #: the type of the objects; empty: the indexes name it
    indexes: list[str] = field(default_factory=list)
    values: list[str] = field(default_factory=list)


def parse(text: str, *, name: str = "the text") -> Machine:
    reader = _Reader(name)
    read_xml(text, name=name, start=reader.start, end=reader.end, characters=reader.add_characters)
    return _machine(reader, name=name)


def read_xml(
    text: str,
    *,
    name: str,
    start: Callable[[str, dict[str, str]], None],
    end: Callable[[str], None],
    characters: Callable[[str], None] | None = None,
) -> None:
    """Call the functions for each part of *text*; entities are rejected, since they can expand without limit."""

    def reject_entity(entity: str, *_: object) -> None:
        raise SourceError(f"{name} is rejected: it declares the entity {entity!r}")

    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = characters
    parser.EntityDeclHandler = reject_entity
    try:
        # The text is encoded here, so the declared encoding no longer applies.
        parser.Parse(re.sub(r"^\s*<\?xml[^>]*\?>", "", text).encode(), True)  # noqa: FBT003 - expat takes no keywords
    except expat.ExpatError as error:
        message = f"not valid XML: {expat.ErrorString(error.code)}"
        raise SourceError(message, file=name, line=error.lineno) from error


class _Reader:
    """Collects the objects of the file in order."""

    def __init__(self, name: str) -> None:
        self.objects: list[_Object] = []
        self.distances: list[_DistanceElement] = []
        self._name = name
        self._open: list[_Object | None] = []
        self._text: list[str] | None = None
        self._values = 0

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        if not self._open and tag != "topology":
            raise SourceError(f"{self._name} is XML, but not from hwloc: expected <topology>, found <{tag[:40]}>")
        if len(self._open) > MAX_XML_DEPTH:
            raise SourceError(f"{self._name} is rejected: its objects are nested more than {MAX_XML_DEPTH} levels deep")
        parent = self._open[-1] if self._open else None
        self._open.append(parent)
        if tag == "object":
            relevant = {name: value for name, value in attributes.items() if name in _ATTRIBUTES}
            self._open[-1] = element = _Object(attributes.get("type", ""), relevant, parent)
            self.objects.append(element)
            if parent and element.kind == "OSDev":
                parent.children.append(element)
            if len(self.objects) > MAX_XML_OBJECTS:
                raise SourceError(f"{self._name} is rejected: it has more than {MAX_XML_OBJECTS} objects")
        elif parent and tag in {"page_type", "info"}:
            self._add_detail(parent, attributes)
        elif tag in {"distances", "distances2", "distances2hetero"}:
            self._count(1)
            kind = "NUMANode" if tag == "distances" else attributes.get("type", "")
            self.distances.append(_DistanceElement(attributes.get("name", ""), kind))
        elif tag == "latency" and self.distances:
            self._count(1)
            self.distances[-1].values.append(attributes.get("value", ""))
        elif tag in {"indexes", "u64values"}:
            self._text = []

    def _add_detail(self, element: _Object, attributes: dict[str, str]) -> None:
        if "size" in attributes:
            size, count = _integer(attributes["size"]), _integer(attributes.get("count"))
            self._count(1)
            element.pages.append(HugePages(size or 0, count or 0))
        elif attributes.get("name") in {"NVIDIAUUID", "AMDUUID"}:
            element.uuid = attributes.get("value", "")

    def add_characters(self, text: str) -> None:
        if self._text is not None:
            self._text.append(text)

    def end(self, tag: str) -> None:
        self._open.pop()
        if self._text is not None and self.distances:
            into = self.distances[-1].indexes if tag == "indexes" else self.distances[-1].values
            numbers = "".join(self._text).split(maxsplit=MAX_XML_VALUES)
            self._count(len(numbers))
            into += numbers
        self._text = None

    def _count(self, values: int) -> None:
        """Count page sizes and distances."""
        self._values += values
        if self._values > MAX_XML_VALUES:
            raise SourceError(f"{self._name} is rejected: it has more than {MAX_XML_VALUES} page sizes and distances")


def _machine(reader: _Reader, *, name: str) -> Machine:
    by_type: dict[str, list[_Object]] = {}
    for object_ in reader.objects:
        by_type.setdefault(object_.type, []).append(object_)
    units = _numbered(by_type.get("pu", ()), "CPUs", most=MAX_CPUS, below=MAX_CPU_ID, name=name)
    nodes = _numbered(by_type.get("numa", ()), "NUMA nodes", most=MAX_NODES, below=MAX_NODE_ID, name=name)
    online = bits.of(unit.index or 0 for unit in units)
    if not online:
        raise SourceError(f"{name} has no CPUs: expected objects of type PU with an os_index")
    node_by_cpu: dict[int, int] = {}
    for node in sorted(nodes, key=lambda node: node.cpus.bit_count()):
        node_by_cpu = dict.fromkeys(bits.members(node.cpus & online), node.index or 0) | node_by_cpu
    sockets = number_groups(
        (object_.index, object_.cpus & online) for object_ in by_type.get("package", ()) if object_.cpus & online
    )
    caches = number_groups((object_.index, object_.cpus & online) for object_ in by_type.get("l3", ()))
    cores: dict[int, int] = {}
    for core in by_type.get("core", ()):
        if threads := core.cpus & online:
            cores |= dict.fromkeys(bits.members(threads), (threads & -threads).bit_length() - 1)
    gaps = ["the report of cAdvisor is inferred for an ordinary kernel"]
    packages = by_type.get("package", [])
    if not (online_packages := sum(bool(package.cpus & online) for package in packages)):
        gaps.append("hwloc reports no sockets")
    elif online_packages < len(packages):
        gaps.append(f"of {len(packages)} sockets, {len(packages) - online_packages} without CPUs left out")
    distances = _distances(reader.distances, nodes)
    if distances is None:
        gaps.append("the distances between NUMA nodes are unknown")
    without_memory = bits.of(node.index or 0 for node in nodes if "local_memory" not in node.attributes)
    if without_memory:
        gaps.append(f"hwloc reports no memory on NUMA nodes {bits.show(without_memory)}, which may mean unknown")
    pci, pci_gaps = split_repeated_pci(_pci_devices(by_type.get("pci", ())[: MAX_PCI_DEVICES + 1], node_by_cpu))
    machine = Machine(
        cpus=tuple(
            Cpu(cpu, cores.get(cpu, cpu), sockets.get(cpu, -1), node_by_cpu.get(cpu), caches.get(cpu))
            for cpu in bits.members(online)
        ),
        nodes=tuple(sorted(map(_node, nodes), key=lambda node: node.id)),
        distances=distances,
        pci=pci,
        gaps=(*gaps, *pci_gaps),
        links=tuple(_links(reader)),
    ).checked()
    return replace(machine, report=cadvisor.infer_report(machine)).checked()


def _numbered(objects: Iterable[_Object], kind: str, *, most: int, below: int, name: str) -> list[_Object]:
    """Return the *objects* with a number."""
    numbered_objects = [object_ for object_ in objects if object_.index is not None and object_.index >= 0]
    if len(numbered_objects) > most:
        raise SourceError(f"{name} has {len(numbered_objects)} {kind}: expected at most {most}")
    if too_large := next((object_.index for object_ in numbered_objects if (object_.index or 0) >= below), None):
        raise SourceError(f"{name} has {kind} with the number {too_large}: expected at most {below - 1}")
    return numbered_objects


def _node(node: _Object) -> NumaNode:
    """Return a node with its huge pages; the smallest listed size is the base page."""
    sizes = sorted((pages for pages in node.pages if pages.size), key=lambda pages: pages.size)
    memory = _integer(node.attributes.get("local_memory"))
    return NumaNode(node.index or 0, memory=memory, hugepages=tuple(sizes[1:]))


def _distances(elements: list[_DistanceElement], nodes: list[_Object]) -> Distances | None:
    for object_ in (element for element in elements if element.kind == "NUMANode"):
        ids = [_integer(index) for index in object_.indexes] or [node.index for node in nodes]
        values = [_integer(value.partition(".")[0]) for value in object_.values]
        node_ids = [node for node in ids if node is not None]
        distances = [value for value in values if value is not None]
        if set(node_ids) == {node.index for node in nodes} and len(distances) == len(node_ids) ** 2 > 0:
            rows = [distances[start : start + len(node_ids)] for start in range(0, len(distances), len(node_ids))]
            return Distances({a: dict(zip(node_ids, row, strict=True)) for a, row in zip(node_ids, rows, strict=True)})
    return None


def _pci_devices(devices: Iterable[_Object], node_by_cpu: dict[int, int]) -> Iterator[PciDevice]:
    """Yield the devices, near the CPUs of their closest ancestor with CPUs; directly below the machine, near none."""
    near: dict[int, tuple[CpuSet, int | None]] = {}  # id of an ancestor → its CPUs and their NUMA node
    for device in devices:
        parent = device.parent
        while parent and "cpuset" not in parent.attributes:
            parent = parent.parent
        cpus, node = None, None
        if parent is not None and parent.kind != "Machine":
            if id(parent) not in near:
                nodes = {node_by_cpu.get(cpu) for cpu in bits.members(parent.cpus)}
                near[id(parent)] = (parent.cpus, nodes.pop() if len(nodes) == 1 else None)
            cpus, node = near[id(parent)]
        kind = _PCI_TYPE.fullmatch(device.attributes.get("pci_type", "").lower())
        vendor, code = (int(kind[2], 16), int(kind[3], 16)) if kind else (0, 0)
        yield PciDevice(
            address=device.attributes.get("pci_busid", ""),
            kind=int(kind[1], 16) << 8 if kind else None,
            vendor=vendor or None,
            device=code or None if vendor else None,
            node=node,
            cpus=cpus,
            names=tuple(filter(None, (child.attributes.get("name") for child in device.children)))[:MAX_NAMES],
            path=_path(device),
            uuid=next((child.uuid for child in device.children if child.uuid), ""),
        )


def _path(device: _Object) -> PciPath | None:
    """Return the bridges around *device*; ``None`` if no host bridge is among them."""
    bridges: list[str] = []
    bridge = device.parent
    while bridge and bridge.kind == "Bridge":
        if bridge.attributes.get("bridge_type", "").startswith("0-"):
            buses = _HOST_BRIDGE.fullmatch(bridge.attributes.get("bridge_pci", ""))
            return PciPath(f"pci{buses[1]}:{buses[2]}", tuple(reversed(bridges))) if buses else None
        bridges.append(bridge.attributes.get("pci_busid", ""))
        bridge = bridge.parent
    return None


def _links(reader: _Reader) -> Iterator[DeviceLink]:
    """Yield the links in matrices of bandwidth; their number follows from the bandwidth of one link."""
    objects = {f"{object_.kind}:{object_.attributes.get('gp_index')}": object_ for object_ in reader.objects}
    for element in reader.distances:
        kind = _LINKS.get(element.name)
        prefix = f"{element.kind}:" if element.kind else ""
        ends = [objects.get(f"{prefix}{index}") for index in element.indexes]
        rates = [_integer(value) or 0 for value in element.values]
        if kind is None or len(rates) != len(ends) ** 2:
            continue
        pairs = {
            (a, b): max(rates[a * len(ends) + b], rates[b * len(ends) + a]) for a in range(len(ends)) for b in range(a)
        }
        between = [rate for rate in pairs.values() if rate > 0]
        usual = _NVLINK_RATES if kind is LinkKind.NVLINK else ()
        rate = next(
            (distance for distance in usual if not any(rate % distance for rate in between)), min(between, default=1)
        )
        counts = LinkCounts(kind)
        for (a, b), between_both in pairs.items():
            first, second = ends[a], ends[b]
            if first and second and between_both > 0:
                counts.add(_link_end(first), _link_end(second), between_both // rate)
        yield from counts.links()


def _link_end(element: _Object) -> str:
    """Return the address of a GPU, which its object below the PCI device stands for, or the kind of another end."""
    if element.kind == "PCIDev":
        return SWITCH_END
    device = element.parent if element.kind == "OSDev" else None
    return device.attributes.get("pci_busid", "") if device else CPU_END


def _integer(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"-?[0-9]{1,18}", text, re.ASCII) else None
