"""Our own description of a machine, in YAML or JSON: written by ``dump``, read back exactly, and fit to write by hand.

    alignup: machine/v1
    cpus:
      - {socket: 0, node: 0, cores: "0,4 1,5"}     # the threads of each core, cores between blanks
      - {socket: 1, node: 1, cores: "2,6 3,7"}
    nodes:
      - {id: 0, memory: 64Gi, hugepages: {2Mi: 512}}
      - {id: 1, memory: 64Gi}
    distances: [[10, 21], [21, 10]]

A core is numbered after its lowest CPU unless ``numbers`` says otherwise; CPUs and nodes come back in rising order.
What cAdvisor tells is ``report``, in the same words; without it the kubelet is told just what stands here.
"""

import json
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

FORMAT = "machine/v1"
MAX_DEPTH = 32

#: Numbers that YAML may have taken for one where a list was meant.
_List = str | int


class _Node(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    id: int
    memory: int | str | None = None
    hugepages: dict[str | int, int] = {}
    distances: list[int] | None = None  #: in a report only


class _Cpus(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    socket: int
    cores: _List
    node: int | None = None
    cache: int | None = None
    numbers: _List | None = None


class _Device(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    resource: str
    id: str
    nodes: _List | None = None
    healthy: bool = True


class _Pci(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, rename={"kind": "class"}):
    address: str
    kind: str | int | None = None
    vendor: str | int | None = None
    device: str | int | None = None
    node: int | None = None
    cpus: _List | None = None


class _Report(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    num_cpus: int
    num_sockets: int
    cpus: list[_Cpus] = []
    nodes: list[_Node] | None = None


class _Document(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    alignup: str
    cpus: list[_Cpus]
    nodes: list[_Node] = []
    distances: list[list[int]] | None = None
    memory: int | str | None = None
    hugepages: dict[str | int, int] = {}
    offline: _List = ""
    devices: list[_Device] = []
    pci: list[_Pci] = []
    report: _Report | None = None
    gaps: list[str] = []


def dump(machine: Machine) -> str:
    """*machine* in YAML."""
    import yaml  # noqa: PLC0415 - JSON needs none of it

    return yaml.dump(
        _plain(machine),
        Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper),
        sort_keys=False,
        default_flow_style=None,
        width=120,
        allow_unicode=True,
    )


def dump_json(machine: Machine) -> str:
    """*machine* in JSON."""
    return json.dumps(_plain(machine), indent=1)


def parse(text: str, *, name: str = "the text") -> Machine:
    """The machine in *text*, YAML or JSON; *name* is what people call it."""
    import yaml  # noqa: PLC0415 - see dump

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # written in C wherever PyYAML was built with libyaml
    try:
        _bounded(yaml.parse(text, Loader=loader), name)
        found = yaml.load(text, Loader=loader)  # noqa: S506 - both are safe loaders
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SourceError(f"{name} is no YAML: {' '.join(str(error).split())}") from error
    return convert(found, name=name)


def convert(found: object, *, name: str = "the text") -> Machine:
    """The machine in a decoded document."""
    if not isinstance(found, dict) or "alignup" not in found:
        raise SourceError(
            f"{name} describes no machine: expected a document with 'alignup: {FORMAT}', cAdvisor's MachineInfo,"
            " hwloc's XML or a synthetic machine such as 'pack:2 core:8 pu:2'"
        )
    if found["alignup"] != FORMAT:
        raise SourceError(f"{name} is of the format {found['alignup']!r}: expected {FORMAT!r}")
    try:
        document = msgspec.convert(found, _Document)
        return _machine(document).checked()
    except (msgspec.ValidationError, ParseError) as error:
        raise SourceError(f"{name}: {error}") from error


def _bounded(events: Iterable[object], name: str) -> None:
    """Refuse what could grow without end: aliases, and nesting no machine has."""
    import yaml  # noqa: PLC0415 - see dump

    depth = 0
    for event in events:
        if isinstance(event, yaml.AliasEvent):
            raise SourceError(f"{name} is refused: it uses the YAML alias {event.anchor!r}")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise SourceError(f"{name} is refused: it is nested more than {MAX_DEPTH} deep")


def _machine(document: _Document) -> Machine:
    nodes = tuple(sorted((_node(node) for node in document.nodes), key=lambda node: node.id))
    return Machine(
        cpus=_cpus(document.cpus),
        nodes=nodes,
        distances=_distances(document.distances, [node.id for node in nodes]),
        devices=tuple(
            Device(each.resource, each.id, nodes=_set(each.nodes), healthy=each.healthy) for each in document.devices
        ),
        pci=tuple(map(_pci, document.pci)),
        memory=_bytes(document.memory),
        hugepages=_pages(document.hugepages),
        offline=_set(document.offline) or 0,
        report=None if document.report is None else _read_report(document.report),
        gaps=tuple(document.gaps),
    )


def _read_report(report: _Report) -> CadvisorReport:
    return CadvisorReport(
        cpus=_cpus(report.cpus),
        num_cpus=report.num_cpus,
        num_sockets=report.num_sockets,
        nodes=None if report.nodes is None else tuple(map(_told, report.nodes)),
    )


def _cpus(groups: Iterable[_Cpus]) -> tuple[Cpu, ...]:
    cpus = [cpu for group in groups for cpu in _threads(group)]
    return tuple(sorted(cpus, key=lambda cpu: cpu.id))


def _threads(group: _Cpus) -> Iterator[Cpu]:
    cores = str(group.cores).split()
    numbers = None if group.numbers is None else str(group.numbers).split()
    if numbers is not None and len(numbers) != len(cores):
        raise ParseError(f"{len(numbers)} numbers are given for {len(cores)} cores")
    for turn, threads in enumerate(cores):
        members = list(bits.members(bits.parse(threads)))
        number = members[0] if numbers is None else bits.parse_integer(numbers[turn])
        for cpu in members:
            yield Cpu(cpu, core=number, socket=group.socket, node=group.node, cache=group.cache)


def _node(node: _Node) -> NumaNode:
    if node.distances is not None:
        raise ParseError(f"NUMA node {node.id} has distances of its own: expected all of them under 'distances'")
    return NumaNode(node.id, memory=_bytes(node.memory), hugepages=_pages(node.hugepages))


def _told(node: _Node) -> CadvisorNode:
    return CadvisorNode(
        node.id,
        memory=_bytes(node.memory) or 0,
        hugepages=_pages(node.hugepages),
        distances=None if node.distances is None else tuple(node.distances),
    )


def _distances(rows: list[list[int]] | None, nodes: list[int]) -> Distances | None:
    if rows is None:
        return None
    if len(rows) != len(nodes) or any(len(row) != len(nodes) for row in rows):
        raise ParseError(f"distances: expected {len(nodes)} rows of {len(nodes)}, one for each NUMA node, rising")
    return Distances({a: dict(zip(nodes, row, strict=True)) for a, row in zip(nodes, rows, strict=True)})


def _pci(device: _Pci) -> PciDevice:
    return PciDevice(
        device.address,
        kind=_code(device.kind),
        vendor=_code(device.vendor),
        device=_code(device.device),
        node=device.node,
        cpus=_set(device.cpus),
    )


def _code(code: str | int | None) -> int | None:
    if code is None or isinstance(code, int):
        return code
    try:
        return int(code, 16)
    except ValueError:
        raise ParseError(f"{code!r} is no code: expected one such as 0x10de") from None


def _set(listed: _List | None) -> int | None:
    return None if listed is None else bits.parse(str(listed))


def _bytes(amount: int | str | None) -> int | None:
    return Quantity.parse(amount).value() if isinstance(amount, str) else amount


def _pages(pages: dict[str | int, int]) -> tuple[HugePages, ...]:
    return tuple(HugePages(size=Quantity.parse(str(size)).value(), count=count) for size, count in pages.items())


def _plain(machine: Machine) -> dict[str, Any]:
    """*machine* in plain dictionaries and lists; what is as usual is left out."""
    document = _Document(
        alignup=FORMAT,
        cpus=list(_groups(machine.cpus)),
        nodes=[_Node(node.id, node.memory, _counts(node.hugepages)) for node in machine.nodes],
        distances=None if machine.distances is None else [list(row) for row in machine.distances.matrix],
        memory=machine.memory,
        hugepages=_counts(machine.hugepages),
        offline=bits.show(machine.offline),
        devices=[_Device(each.resource, each.id, _shown(each.nodes), each.healthy) for each in machine.devices],
        pci=[
            _Pci(
                each.address,
                _hex(each.kind, 6),
                _hex(each.vendor, 4),
                _hex(each.device, 4),
                each.node,
                _shown(each.cpus),
            )
            for each in machine.pci
        ],
        report=None if machine.report is None else _written_report(machine.report),
        gaps=list(machine.gaps),
    )
    plain: dict[str, Any] = msgspec.to_builtins(document)
    return plain


def _written_report(report: CadvisorReport) -> _Report:
    return _Report(
        num_cpus=report.num_cpus,
        num_sockets=report.num_sockets,
        cpus=list(_groups(report.cpus)),
        nodes=None if report.nodes is None else [_retold(node) for node in report.nodes],
    )


def _groups(cpus: Iterable[Cpu]) -> Iterator[_Cpus]:
    """CPUs of one socket, node and cache together, in the order of their first."""
    groups: dict[tuple[int, int | None, int | None], dict[int, int]] = {}
    for cpu in cpus:
        cores = groups.setdefault((cpu.socket, cpu.node, cpu.cache), {})
        cores[cpu.core] = cores.get(cpu.core, 0) | 1 << cpu.id
    for (socket, node, cache), cores in groups.items():
        usual = all(core == (threads & -threads).bit_length() - 1 for core, threads in cores.items())
        yield _Cpus(
            cores=" ".join(map(bits.show, cores.values())),
            socket=socket,
            node=node,
            cache=cache,
            numbers=None if usual else " ".join(map(str, cores)),
        )


def _retold(node: CadvisorNode) -> _Node:
    distances = None if node.distances is None else list(node.distances)
    return _Node(node.id, node.memory, _counts(node.hugepages), distances)


def _counts(pages: Iterable[HugePages]) -> dict[str | int, int]:
    return {hugepages_resource(each.size).removeprefix("hugepages-"): each.count for each in pages}


def _shown(members: int | None) -> str | None:
    return None if members is None else bits.show(members)


def _hex(code: int | None, digits: int) -> str | None:
    return None if code is None else f"0x{code:0{digits}x}"
