"""A machine: sockets, NUMA nodes, cores, CPUs, caches, memory, huge pages, distances, devices.

A :class:`Machine` is the hardware as its source describes it: nodes may have no CPUs or memory, and span sockets; CPUs
may be in no node. ``Machine.kubelet_view()`` is the same machine as the kubelet numbers it, which the
providers use. A source of machines ends with ``Machine(...).checked()``, which rejects contradictory facts.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import KW_ONLY, InitVar, dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Self, TypeVar

from alignup.align import bits
from alignup.align.bits import CpuSet, NodeSet
from alignup.align.display import Pictured, Row
from alignup.align.errors import MachineError
from alignup.align.locality import DeviceLink, LinkKind, Locality, PciPath, StatedLevel

#: The largest machine that is read, whatever its source: above every machine that exists. The limits bound the memory
#: that a short description can take, since a set takes as many bits as its largest member, and distances take the
#: square of the number of NUMA nodes.
MAX_CPUS = 1 << 16  #: eight times what Linux supports
MAX_CPU_ID = 1 << 16  #: exclusive
MAX_NODES = 1 << 10  #: what Linux supports
MAX_NODE_ID = 1 << 12  #: exclusive
MAX_DEVICES = 100_000
MAX_PCI_DEVICES = 1 << 14
MAX_BRIDGES = 32  #: above one PCI device
MAX_LINKS = 1 << 14  #: between devices, and stated levels; of devices in one link, too
MAX_DISTANCE = 1 << 31  #: exclusive; keeps sums exact in a double
MAX_NUMBER = 1 << 63  #: exclusive: bytes of memory, counts, and the numbers of cores, sockets and caches

_Value = TypeVar("_Value", int, str, tuple[str, str])


@dataclass(frozen=True, slots=True)
class Cpu:
    id: int
    core: int  #: the same for all threads of a core, unique on the machine
    socket: int  #: the kernel's number; gaps and -1 (unknown) occur
    node: int | None  #: ``None`` if it belongs to no NUMA node
    cache: int | None = None  #: the last-level cache; ``None`` if unknown


@dataclass(frozen=True, slots=True)
class HugePages:
    size: int  #: bytes of one page
    count: int

    @property
    def bytes(self) -> int:
        """The size of all pages together."""
        return self.size * self.count

    @property
    def resource(self) -> str:
        """The name of the resource, such as ``hugepages-2Mi``."""
        return hugepages_resource(self.size)


def hugepages_resource(size: int) -> str:
    """Return the resource name of huge pages of *size* bytes, with the largest possible unit: ``hugepages-2Mi``."""
    units = iter(("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))
    unit = next(units)
    while size and size % 1024 == 0 and (larger := next(units, "")):
        size, unit = size // 1024, larger
    return f"hugepages-{size}{unit}"


@dataclass(frozen=True, slots=True)
class NumaNode:
    id: int
    memory: int | None = None  #: bytes, including huge pages; ``None`` if unknown
    hugepages: tuple[HugePages, ...] = ()


@dataclass(frozen=True, slots=True)
class Device:
    """A device of a resource; ``Device(…, node=0)`` is on one NUMA node."""

    resource: str
    id: str
    nodes: NodeSet | None = None  #: ``None``: no topology; an empty set: topology without nodes
    healthy: bool = True
    _: KW_ONLY
    node: InitVar[int | None] = None
    address: str = ""  #: of its PCI device, where an observer is certain; empty: unknown

    def __post_init__(self, node: int | None) -> None:
        nodes: object = self.nodes
        if not isinstance(nodes, int | None):
            advice = "use node=0, or bits.of([0, 1])"
            raise TypeError(f"Device.nodes needs a set of NUMA nodes as an int, not {type(nodes).__name__}; {advice}")
        if node is None:
            return
        if not isinstance(node, int):
            raise TypeError(f"Device needs the number of a NUMA node, not {type(node).__name__}")
        if self.nodes is not None or node < 0:
            raise ValueError("give a device either a node, 0 or higher, or a set of nodes")
        object.__setattr__(self, "nodes", 1 << node)


@dataclass(frozen=True, slots=True)
class PciDevice:
    """One PCI function; ``None`` means unknown. A device without locality (the kernel's -1) is not on node 0."""

    address: str  #: domain:bus:device.function, with a domain of four digits or more
    kind: int | None = None  #: class, subclass and interface in 24 bits
    vendor: int | None = None
    device: int | None = None
    node: int | None = None
    cpus: CpuSet | None = None  #: the local CPUs, which may contradict the node
    names: tuple[str, ...] = field(default=(), compare=False)  #: of the system for it: eth0, mlx5_0, nvme0, GPU 0
    path: PciPath | None = None  #: the bridges above it
    rail: int | None = None  #: of the network that a network interface is on, as the user states it
    uuid: str = field(default="", compare=False)  #: of a GPU, which is its id for device plugins


@dataclass(frozen=True, slots=True)
class CadvisorNode:
    """A node as cAdvisor reports it; unreadable values are 0 or empty, and -1 is the id of a made-up node."""

    id: int
    memory: int = 0
    hugepages: tuple[HugePages, ...] = ()
    distances: tuple[int, ...] | None = None  #: the kernel's row, with a column for each of the kernel's nodes


@dataclass(frozen=True, slots=True)
class CadvisorReport:
    """The report of cAdvisor to the kubelet, if it differs from the hardware.

    The ``cache`` of ``cpus`` is the reported uncore cache id (``None``: none is reported). ``num_cpus`` and
    ``num_sockets`` are totals counted elsewhere, which the kubelet trusts. ``nodes`` are in cAdvisor's order, sorted by
    name as text; ``None``: the machine's own.
    """

    cpus: tuple[Cpu, ...]
    num_cpus: int
    num_sockets: int
    nodes: tuple[CadvisorNode, ...] | None = None


@dataclass(frozen=True, slots=True, init=False)
class Distances:
    """A matrix of distances by node id; it may be asymmetric, as on some real machines."""

    ids: tuple[int, ...]
    matrix: tuple[tuple[int, ...], ...]
    #: node → node → the sum of both directions, the diagonal once: what a node adds to the sum over all pairs
    _both: Mapping[int, Mapping[int, int]] = field(compare=False, repr=False)

    def __init__(self, matrix: Mapping[int, Mapping[int, int]]) -> None:
        ids = tuple(sorted(matrix))
        problems = []
        for a, b in product(ids, ids):
            if b not in matrix[a]:
                problems.append(f"NUMA node {a} has no distance to NUMA node {b}")
            elif not 0 <= (distance := matrix[a][b]) < MAX_DISTANCE:
                expectation = f"a number from 0 to {MAX_DISTANCE - 1}"
                problems.append(f"NUMA node {a} has distance {distance} to NUMA node {b}, not {expectation}")
        if problems:
            raise MachineError(problems)
        both = {a: {b: matrix[a][b] + (matrix[b][a] if a != b else 0) for b in ids} for a in ids}
        object.__setattr__(self, "ids", ids)
        object.__setattr__(self, "matrix", tuple(tuple(matrix[a][b] for b in ids) for a in ids))
        object.__setattr__(self, "_both", both)

    @classmethod
    def of_rows(cls, rows: Mapping[int, Sequence[int]]) -> "Distances":
        """Return distances from one row per node, in either of two forms.

        A row longer than the largest node id has a column for every id. A row with one entry per node has a column for
        every existing node, ascending (the kernel's form, of which the kubelet reads a wrong column).
        """
        ids = sorted(rows)
        problems = [f"NUMA node {node} has no distances" for node in ids if not rows[node]]
        matrix = {}
        for node in ids:
            row = rows[node]
            if len(row) > ids[-1]:
                matrix[node] = {other: row[other] for other in ids}
            elif len(row) == len(ids):
                matrix[node] = dict(zip(ids, row, strict=True))
            elif row:
                count = "1 distance" if len(row) == 1 else f"{len(row)} distances"
                problems.append(f"NUMA node {node} has {count} on a machine of {len(ids)} NUMA nodes")
        if problems:
            raise MachineError(problems)
        return cls(matrix)

    def between(self, a: int, b: int) -> int:
        """Return the distance from NUMA node *a* to *b*."""
        return self.matrix[self.ids.index(a)][self.ids.index(b)]

    def both_ways(self, node: int) -> Mapping[int, int]:
        """Return what *node* adds to a sum over all ordered pairs with each other node; its own distance once."""
        return self._both[node]

    def total(self, nodes: NodeSet) -> int:
        """Return the sum over all ordered pairs of *nodes*, including each node with itself."""
        members = list(bits.members(nodes))
        return sum(self._both[a][b] for i, a in enumerate(members) for b in members[: i + 1])


@dataclass(frozen=True)
class KubeletView:
    """The machine as the kubelet numbers it; the providers use nothing else of the hardware.

    Every CPU has a node and a cache here; a core is named after its lowest CPU. Totals are the reported ones, and the
    averages computed from them may match no real group on uneven machines.
    """

    cpus: tuple[Cpu, ...]
    num_cpus: int
    num_cores: int
    num_sockets: int
    nodes: tuple[NumaNode, ...]  #: ascending, including nodes without CPUs
    distances: Distances | None = None
    all_nodes: NodeSet = field(init=False, compare=False, repr=False)  #: what a merge without result falls back to
    all_cpus: CpuSet = field(init=False, compare=False, repr=False)
    #: NUMA node → its CPUs, ascending, without nodes without CPUs; the same by socket, core and cache
    node_cpus: dict[int, CpuSet] = field(init=False, compare=False, repr=False)
    socket_cpus: dict[int, CpuSet] = field(init=False, compare=False, repr=False)
    core_cpus: dict[int, CpuSet] = field(init=False, compare=False, repr=False)
    cache_cpus: dict[int, CpuSet] = field(init=False, compare=False, repr=False)
    num_nodes: int = field(init=False, compare=False, repr=False)  #: with CPUs, which is all the CPU manager counts
    num_caches: int = field(init=False, compare=False, repr=False)
    cpus_per_core: int = field(init=False, compare=False, repr=False)  #: the average, rounded down; 0 without cores
    cpus_per_socket: int = field(init=False, compare=False, repr=False)
    cpus_per_cache: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        node_cpus = _grouped((cpu.node, cpu.id) for cpu in self.cpus if cpu.node is not None)
        cache_cpus = _grouped((cpu.cache, cpu.id) for cpu in self.cpus if cpu.cache is not None)
        facts = {
            "all_nodes": bits.of(node.id for node in self.nodes if node.id >= 0),
            "all_cpus": bits.of(cpu.id for cpu in self.cpus),
            "node_cpus": node_cpus,
            "socket_cpus": _grouped((cpu.socket, cpu.id) for cpu in self.cpus),
            "core_cpus": _grouped((cpu.core, cpu.id) for cpu in self.cpus),
            "cache_cpus": cache_cpus,
            "num_nodes": len(node_cpus),
            "num_caches": len(cache_cpus),
            "cpus_per_core": self.num_cpus // self.num_cores if self.num_cores else 0,
            "cpus_per_socket": self.num_cpus // self.num_sockets if self.num_sockets else 0,
            "cpus_per_cache": self.num_cpus // len(cache_cpus) if cache_cpus else 0,
        }
        for name, fact in facts.items():
            object.__setattr__(self, name, fact)

    @property
    def discovery_error(self) -> str | None:
        """The kubelet's error if its CPU manager cannot start on this machine; ``None`` if it can."""
        if self.num_cpus == 0:
            return "could not detect number of cpus"
        if any(times > 1 for times in Counter((cpu.core, cpu.id) for cpu in self.cpus).values()):
            return "cpus provided are not unique"
        return None


@dataclass(frozen=True)
class Machine(Pictured):
    """The hardware; ``MachineError`` for devices on a NUMA node that it lacks."""

    cpus: tuple[Cpu, ...]
    nodes: tuple[NumaNode, ...]
    distances: Distances | None = None
    devices: tuple[Device, ...] = ()
    pci: tuple[PciDevice, ...] = ()
    memory: int | None = None  #: total bytes, which may differ from the sum of the nodes; ``None``: unknown
    hugepages: tuple[HugePages, ...] = ()  #: of all nodes together
    offline: CpuSet = 0  #: CPUs that exist but are offline
    report: CadvisorReport | None = None  #: ``None``: the kubelet sees these facts
    gaps: tuple[str, ...] = field(default=())  #: what the source does not contain, one sentence each
    model: str = field(default="", compare=False)  #: of the CPUs, for people; empty: unknown
    caches: tuple[tuple[str, int], ...] = field(default=(), compare=False)  #: L1d, L1i, L2 … of a CPU, and their bytes
    kubelet_version: str = field(default="", compare=False)  #: of the kubelet that a recording names; empty: none
    numa_balancing: int | None = field(default=None, compare=False)  #: the kernel's setting, 0: off; ``None``: unknown
    links: tuple[DeviceLink, ...] = ()  #: between PCI devices, beside PCIe
    stated_levels: tuple[StatedLevel, ...] = ()  #: of PCI devices, where there is no tree of bridges

    def __post_init__(self) -> None:
        if problems := tuple(_missing_nodes(self.devices, {node.id for node in self.nodes})):
            raise MachineError(problems)

    def __repr__(self) -> str:
        counts = {"NUMA nodes": len(self.nodes), "CPUs": len(self.cpus), **_count_devices(self.devices)}
        return f"<Machine: {', '.join(f'{count} {name}' for name, count in counts.items())}>"

    def to_rows(self) -> list[Row]:
        """Return one row per NUMA node: its CPUs, memory, huge pages, and the devices on it alone."""
        node_cpus = _grouped((cpu.node, cpu.id) for cpu in self.cpus if cpu.node is not None)
        return [
            {
                "node": node.id,
                "cpus": bits.show(node_cpus.get(node.id, 0)),
                "memory": node.memory,
                **{pages.resource: pages.bytes for pages in node.hugepages},
                **_count_devices(device for device in self.devices if device.nodes == 1 << node.id),
            }
            for node in self.nodes
        ]

    def kubelet_view(self) -> KubeletView:
        """Return the machine as the kubelet numbers it."""
        return self._view

    @cached_property
    def locality(self) -> Locality:
        """The PCIe tree and the links between devices."""
        return Locality(self)

    def without_cpus(self, cpus: CpuSet) -> Self:
        """Return this machine with *cpus* offline, for the hardware and for what cAdvisor reports."""
        removed_cpus = cpus & bits.of(cpu.id for cpu in self.cpus)
        if not removed_cpus:
            return self

        def online(all_cpus: Iterable[Cpu]) -> tuple[Cpu, ...]:
            return tuple(cpu for cpu in all_cpus if not removed_cpus >> cpu.id & 1)

        report = self.report
        if report is not None:
            online_cpus = online(report.cpus)
            report = replace(report, cpus=online_cpus, num_cpus=report.num_cpus - len(report.cpus) + len(online_cpus))
        machine = replace(self, cpus=online(self.cpus), offline=self.offline | removed_cpus, report=report, devices=())
        return machine.with_reported(self.devices)

    def with_reported(self, devices: Iterable[Device]) -> Self:
        """Return this machine with the devices that the system or a kubelet reports.

        They may be on NUMA nodes that the machine lacks: firmware names offline nodes. A kubelet ignores such nodes.
        """
        machine = copy(self)
        object.__setattr__(machine, "devices", tuple(devices))
        return machine

    @cached_property
    def _view(self) -> KubeletView:
        cpus = self.report.cpus if self.report else tuple(cpu for cpu in self.cpus if cpu.node is not None)
        nodes, distances = self.nodes, self.distances
        if self.report and self.report.nodes is not None:
            reported_nodes = self.report.nodes
            nodes = tuple(NumaNode(node.id, memory=node.memory, hugepages=node.hugepages) for node in reported_nodes)
            # The true distances if the kubelet has any; it would read wrong columns for sparse nodes.
            node_ids = {node.id for node in reported_nodes if node.distances}
            distances = distances if distances and node_ids == set(distances.ids) else None
        # CAdvisor looks for a core inside one node and one socket.
        lowest: dict[tuple[int | None, int, int], int] = {}
        new_cpus = []
        for cpu in sorted(cpus, key=lambda cpu: cpu.id):
            core = lowest.setdefault((cpu.node, cpu.socket, cpu.core), cpu.id)
            cache = cpu.socket if cpu.cache is None else cpu.cache
            new_cpus.append(Cpu(cpu.id, core=core, socket=cpu.socket, node=cpu.node, cache=cache))
        return KubeletView(
            cpus=tuple(new_cpus),
            num_cpus=self.report.num_cpus if self.report else len(new_cpus),
            num_cores=len(lowest),
            num_sockets=self.report.num_sockets if self.report else len({cpu.socket for cpu in new_cpus}),
            nodes=tuple(sorted(nodes, key=lambda node: node.id)),
            distances=distances,
        )

    def checked(self) -> Self:
        """Return this machine; ``MachineError`` with every problem if it contradicts itself."""
        if problems := tuple(_machine_problems(self)):
            raise MachineError(problems)
        return self


def split_repeated_pci(devices: Iterable[PciDevice]) -> tuple[tuple[PciDevice, ...], tuple[str, ...]]:
    """Return the first device at each address, and a sentence about each address with several."""
    first: dict[str, PciDevice] = {}
    times: Counter[str] = Counter()
    for device in devices:
        first.setdefault(device.address, device)
        times[device.address] += 1
    gaps = (
        f"PCI device {address} is listed {count} times; the first is used"
        for address, count in times.items()
        if count > 1
    )
    return tuple(first.values()), tuple(gaps)


def _count_devices(devices: Iterable[Device]) -> Counter[str]:
    return Counter(device.resource for device in devices)


def _grouped(pairs: Iterable[tuple[int, int]]) -> dict[int, CpuSet]:
    """Return key → set of CPUs, keys ascending."""
    groups: dict[int, CpuSet] = {}
    for key, cpu in pairs:
        groups[key] = groups.get(key, 0) | 1 << cpu
    return dict(sorted(groups.items()))


def _known(cpus: Iterable[Cpu]) -> Iterator[int]:
    return (cpu.id for cpu in cpus if 0 <= cpu.id < MAX_CPU_ID)


def _id_problems(kind: str, ids: Iterable[int], *, below: int) -> Iterator[str]:
    for number, times in sorted(Counter(ids).items()):
        if not 0 <= number < below:
            yield f"{kind} {number} is not a number from 0 to {below - 1}"
        if times > 1:
            yield f"{kind} {number} is listed {times} times"


def _repeated(values: Iterable[_Value]) -> Iterator[tuple[_Value, int]]:
    """Yield each of *values* that occurs more than once, and how often; ascending."""
    return ((value, times) for value, times in sorted(Counter(values).items()) if times > 1)


def _machine_problems(machine: Machine) -> Iterator[str]:
    """Yield every contradiction, except devices on missing nodes: see ``Machine.with_reported``."""
    report = machine.report
    counts = (
        ("CPUs", len(machine.cpus), MAX_CPUS),
        ("CPUs as reported", len(report.cpus) if report else 0, MAX_CPUS),
        ("NUMA nodes", len(machine.nodes), MAX_NODES),
        ("NUMA nodes as reported", len(report.nodes or ()) if report else 0, MAX_NODES),
        ("devices", len(machine.devices), MAX_DEVICES),
        ("PCI devices", len(machine.pci), MAX_PCI_DEVICES),
        ("links between devices", sum(len(link.devices) for link in machine.links), MAX_LINKS),
        ("stated levels", len(machine.stated_levels), MAX_LINKS),
        ("bridges above a device", max((len(d.path.bridges) for d in machine.pci if d.path), default=0), MAX_BRIDGES),
    )
    if any(count > most for _, count, most in counts):
        for kind, count, most in counts:
            if count > most:
                yield f"the machine has {count} {kind}: expected at most {most}"
        return
    nodes = {node.id for node in machine.nodes}
    node_ids = nodes if machine.distances is None else set(machine.distances.ids)
    yield from _cpu_problems(machine.cpus, nodes)
    yield from _node_problems(machine.nodes)
    for node in sorted(nodes - node_ids):
        yield f"NUMA node {node} has no distances"
    for node in sorted(node_ids - nodes):
        yield f"NUMA node {node} has distances, but the machine has no such node"
    yield from _device_problems(machine.devices)
    for address, times in _repeated(device.address for device in machine.pci):
        yield f"PCI device {address} is listed {times} times"
    yield from _link_problems(machine.links)
    yield from _memory_problems(machine)
    if machine.offline >> MAX_CPU_ID:
        yield f"CPU {machine.offline.bit_length() - 1} is not a number from 0 to {MAX_CPU_ID - 1}"
    if report is not None:
        yield from _report_problems(report, bits.of(_known(machine.cpus)) | machine.offline, nodes)


def _cpu_problems(cpus: Sequence[Cpu], nodes: set[int]) -> Iterator[str]:
    if not cpus:
        yield "the machine has no CPUs"
    yield from _id_problems("CPU", (cpu.id for cpu in cpus), below=MAX_CPU_ID)
    valid_cpus = [cpu for cpu in cpus if 0 <= cpu.id < MAX_CPU_ID]
    unknown_nodes = _grouped((cpu.node, cpu.id) for cpu in valid_cpus if cpu.node is not None and cpu.node not in nodes)
    for node, cpus_on_node in unknown_nodes.items():
        yield f"NUMA node {node} has CPUs {bits.show(cpus_on_node)}, but the machine has no such node"
    sockets: dict[int, set[int]] = {}
    for cpu in valid_cpus:
        if cpu.core < 0:
            yield f"CPU {cpu.id} is on core {cpu.core}, but cores are numbered from 0"
        if cpu.socket < -1:
            yield f"CPU {cpu.id} is on socket {cpu.socket}, but sockets are numbered from 0, or -1 when unknown"
        if cpu.cache is not None and cpu.cache < 0:
            yield f"CPU {cpu.id} is on cache {cpu.cache}, but caches are numbered from 0"
        if max(cpu.core, cpu.socket, cpu.cache or 0) >= MAX_NUMBER:
            yield f"CPU {cpu.id} has a core, socket or cache number above {MAX_NUMBER - 1}"
        sockets.setdefault(cpu.core, set()).add(cpu.socket)
    for core, ids in sorted(sockets.items()):
        if len(ids - {-1}) > 1:
            yield f"core {core} is on sockets {', '.join(map(str, sorted(ids - {-1})))}, but a core has one socket"


def _memory_problems(machine: Machine) -> Iterator[str]:
    if machine.memory is not None and not 0 <= machine.memory < MAX_NUMBER:
        yield f"the machine has {machine.memory} bytes of memory"
    for size, times in Counter(pages.size for pages in machine.hugepages).items():
        if size <= 0 or times > 1:
            yield f"the machine lists huge pages of {size} bytes {times} times"
    for pages in machine.hugepages:
        if max(pages.count, pages.bytes) >= MAX_NUMBER:
            yield f"the machine has {pages.count} huge pages of {pages.size} bytes"


def _node_problems(nodes: Sequence[NumaNode]) -> Iterator[str]:
    yield from _id_problems("NUMA node", (node.id for node in nodes), below=MAX_NODE_ID)
    for node in nodes:
        if node.memory is not None and not 0 <= node.memory < MAX_NUMBER:
            yield f"NUMA node {node.id} has {node.memory} bytes of memory"
        for size, times in _repeated(pages.size for pages in node.hugepages):
            yield f"NUMA node {node.id} lists huge pages of {size} bytes {times} times"
        for pages in node.hugepages:
            if pages.size <= 0:
                yield f"NUMA node {node.id} has huge pages of {pages.size} bytes"
            if pages.count < 0 or max(pages.count, pages.bytes) >= MAX_NUMBER:
                yield f"NUMA node {node.id} has {pages.count} huge pages of {pages.size} bytes"
        huge = sum(pages.bytes for pages in node.hugepages)
        if node.memory is not None and huge > max(node.memory, 0):
            yield f"NUMA node {node.id} has {huge} bytes in huge pages, but only {node.memory} bytes of memory"


def _missing_nodes(devices: Iterable[Device], nodes: set[int]) -> Iterator[str]:
    for device in devices:
        for node in bits.members(device.nodes) if device.nodes and device.nodes > 0 else ():
            if node not in nodes:
                title = f"device {device.id} of {device.resource}"
                yield f"{title} is on NUMA node {node}, but the machine has no such node"


def _device_problems(devices: Sequence[Device]) -> Iterator[str]:
    device_names = [(device.resource, device.id) for device in devices]
    for resource, name in sorted(set(device_names)):
        if not resource or not name:
            yield f"device {name!r} of resource {resource!r} has an empty name"
    for (resource, name), times in _repeated(device_names):
        yield f"device {name} of {resource} is listed {times} times"
    for device in devices:
        if device.nodes is not None and device.nodes < 0:
            yield f"device {device.id} of {device.resource} is on {device.nodes}, which is not a set of NUMA nodes"
        elif device.nodes is not None and device.nodes >> MAX_NODE_ID:
            highest, most = device.nodes.bit_length() - 1, MAX_NODE_ID - 1
            yield f"device {device.id} of {device.resource} is on NUMA node {highest}, above {most}"


def _link_problems(links: Iterable[DeviceLink]) -> Iterator[str]:
    for link in links:
        distinct, most = len(set(link.devices)), MAX_LINKS if link.kind is LinkKind.NVSWITCH else 2
        if not 0 < link.count < MAX_LINKS or not 0 < distinct == len(link.devices) <= most:
            yield f"{link.count} links of kind {link.kind} connect {', '.join(link.devices[:4]) or 'no devices'}"


def _report_problems(report: CadvisorReport, cpus: CpuSet, nodes: set[int]) -> Iterator[str]:
    node_ids = nodes if report.nodes is None else {node.id for node in report.nodes}
    for problem in _cpu_problems(report.cpus, node_ids) if report.cpus else ():
        yield f"as reported, {problem}"
    for node, times in _repeated(node.id for node in report.nodes or ()):
        yield f"as reported, NUMA node {node} is listed {times} times"
    for node in sorted(node_ids):
        if node >= MAX_NODE_ID:
            yield f"as reported, NUMA node {node} is not a number from 0 to {MAX_NODE_ID - 1}"
    for cpu_id in bits.members(bits.of(_known(report.cpus)) & ~cpus):
        yield f"CPU {cpu_id} is reported, but the machine has no such CPU"
    for cpu in report.cpus:
        if cpu.node is None:
            yield f"CPU {cpu.id} is reported without a NUMA node"
    if not 0 <= report.num_cpus < MAX_NUMBER or not 0 <= report.num_sockets < MAX_NUMBER:
        yield f"the reported totals are {report.num_cpus} CPUs and {report.num_sockets} sockets"
