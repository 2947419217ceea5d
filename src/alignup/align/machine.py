"""A machine: sockets, NUMA nodes, cores, CPUs, caches, memory, huge pages, distances, devices.

Two readings of one machine live here. A :class:`Machine` is the hardware as its source described it; node ids are
any numbers ≥ 0, nodes may have no CPUs or no memory, may span sockets, and sockets may span nodes: nothing contains
anything by assumption. ``Machine.kubelet_view()`` is the same machine as the kubelet numbers it (cores named after
their lowest CPU, caches as cAdvisor reports them, totals as reported), and that is what the providers consume, so
that their answers are the kubelet's answers.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from alignup.align import bits
from alignup.align.bits import Cpus, Nodes
from alignup.align.errors import MachineError


@dataclass(frozen=True, slots=True)
class Cpu:
    """One hardware thread and where it sits."""

    id: int
    core: int  #: the same for all threads of one physical core, unique on the machine
    socket: int  #: as the kernel numbers it, so gaps and -1 (unknown) occur
    node: int | None  #: ``None`` when no NUMA node claims it
    cache: int | None = None  #: the last-level cache it shares; ``None`` when the machine does not say


@dataclass(frozen=True, slots=True)
class HugePages:
    """The huge pages of one size on one node."""

    size: int  #: bytes of one page
    count: int

    @property
    def bytes(self) -> int:
        """What all of them hold."""
        return self.size * self.count


@dataclass(frozen=True, slots=True)
class NumaNode:
    """One NUMA node; which CPUs it has is said by the CPUs."""

    id: int
    memory: int | None = None  #: bytes, huge pages included; ``None`` when the machine does not say
    hugepages: tuple[HugePages, ...] = ()


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a resource, as a device plugin would announce it."""

    resource: str
    id: str
    nodes: Nodes | None  #: ``None``: no topology at all; an empty set: topology without nodes
    healthy: bool = True


class Distances:
    """How far each NUMA node is from each other one, looked up by node id.

    Rows may differ from columns (real matrices are sometimes asymmetric).
    """

    __slots__ = ("_both", "_ids", "_matrix")

    def __init__(self, matrix: Mapping[int, Mapping[int, int]]) -> None:
        self._ids = tuple(sorted(matrix))
        self._matrix = tuple(tuple(matrix[a][b] for b in self._ids) for a in self._ids)
        #: node → node → both ways added, the diagonal once: what one more node adds to the sum over all pairs
        self._both = {
            a: {b: matrix[a][b] + (matrix[b][a] if a != b else 0) for b in self._ids} for a in self._ids
        }

    @classmethod
    def of_rows(cls, rows: Mapping[int, Sequence[int]]) -> "Distances":
        """Distances from one row a node, in either form they are found in.

        A row longer than the largest node id has a column for every id; a row with one entry a node has a column for
        every node there is, in rising order (the kernel's form; the kubelet reads a wrong column there).
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
                problems.append(f"NUMA node {node} has {len(row)} distances on a machine of {len(ids)} NUMA nodes")
        if problems:
            raise MachineError(problems)
        return cls(matrix)

    @property
    def ids(self) -> tuple[int, ...]:
        """The nodes known here, rising."""
        return self._ids

    @property
    def matrix(self) -> tuple[tuple[int, ...], ...]:
        """Rows and columns in the order of ``ids``."""
        return self._matrix

    def between(self, a: int, b: int) -> int:
        """The distance from *a* to *b*."""
        return self._matrix[self._ids.index(a)][self._ids.index(b)]

    def both_ways(self, node: int) -> Mapping[int, int]:
        """What *node* and each other node add to a sum over all ordered pairs; for *node* itself, its own distance."""
        return self._both[node]

    def total(self, nodes: Nodes) -> int:
        """The sum over all ordered pairs of *nodes*, each node with itself included."""
        chosen = list(bits.members(nodes))
        return sum(self._both[a][b] for i, a in enumerate(chosen) for b in chosen[: i + 1])

    def average(self, nodes: Nodes) -> float:
        """``total`` over the number of pairs; the empty set has 0."""
        return self.total(nodes) / nodes.bit_count() ** 2 if nodes else 0.0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Distances) and (self._ids, self._matrix) == (other._ids, other._matrix)

    def __hash__(self) -> int:
        return hash((self._ids, self._matrix))

    def __repr__(self) -> str:
        return f"Distances({dict(zip(self._ids, self._matrix, strict=True))})"


@dataclass(frozen=True, slots=True)
class Report:
    """What cAdvisor hands to the kubelet, where that is not simply the hardware.

    ``cpus`` are those the kubelet sees, with ``cache`` holding the uncore cache id it is told (``None``: none is
    reported); ``num_cpus`` and ``num_sockets`` are totals counted elsewhere, which the kubelet trusts.
    """

    cpus: tuple[Cpu, ...]
    num_cpus: int
    num_sockets: int


@dataclass(frozen=True)
class KubeletView:
    """The machine as the kubelet numbers it; all the providers know of the hardware.

    Every CPU has a node and a cache here; a core is named after its lowest CPU. Totals are the reported ones, and
    the quotients made from them are plain averages that may equal no real group on uneven machines.
    """

    cpus: tuple[Cpu, ...]
    num_cpus: int
    num_cores: int
    num_sockets: int
    nodes: tuple[NumaNode, ...]  #: all of them, rising, also those without CPUs
    distances: Distances | None = None

    @cached_property
    def all_nodes(self) -> Nodes:
        """Every NUMA node: the mask a decision falls back to."""
        return bits.of(node.id for node in self.nodes)

    @cached_property
    def all_cpus(self) -> Cpus:
        """Every CPU the kubelet sees."""
        return bits.of(cpu.id for cpu in self.cpus)

    @cached_property
    def node_cpus(self) -> dict[int, Cpus]:
        """NUMA node → its CPUs, rising; nodes without CPUs are left out."""
        return _grouped((cpu.node, cpu.id) for cpu in self.cpus if cpu.node is not None)

    @cached_property
    def socket_cpus(self) -> dict[int, Cpus]:
        """Socket → its CPUs, rising."""
        return _grouped((cpu.socket, cpu.id) for cpu in self.cpus)

    @cached_property
    def core_cpus(self) -> dict[int, Cpus]:
        """Core → its CPUs, rising."""
        return _grouped((cpu.core, cpu.id) for cpu in self.cpus)

    @cached_property
    def cache_cpus(self) -> dict[int, Cpus]:
        """Uncore cache → its CPUs, rising."""
        return _grouped((cpu.cache, cpu.id) for cpu in self.cpus if cpu.cache is not None)

    @property
    def num_nodes(self) -> int:
        """NUMA nodes with CPUs: what the CPU provider counts as nodes."""
        return len(self.node_cpus)

    @property
    def num_caches(self) -> int:
        """Uncore caches with CPUs."""
        return len(self.cache_cpus)

    @property
    def cpus_per_core(self) -> int:
        """The average, rounded down."""
        return self.num_cpus // self.num_cores if self.num_cores else 0

    @property
    def cpus_per_socket(self) -> int:
        """The average, rounded down."""
        return self.num_cpus // self.num_sockets if self.num_sockets else 0

    @property
    def cpus_per_cache(self) -> int:
        """The average, rounded down."""
        return self.num_cpus // self.num_caches if self.num_caches else 0


@dataclass(frozen=True, slots=True)
class Machine:
    """The hardware, as its source described it."""

    cpus: tuple[Cpu, ...]
    nodes: tuple[NumaNode, ...]
    distances: Distances | None = None
    devices: tuple[Device, ...] = ()
    report: Report | None = None  #: ``None``: the kubelet is told just what stands here
    gaps: tuple[str, ...] = field(default=())  #: what the source did not say, one sentence each

    def kubelet_view(self) -> KubeletView:
        """This machine as the kubelet numbers it."""
        seen = self.report.cpus if self.report else tuple(cpu for cpu in self.cpus if cpu.node is not None)
        lowest: dict[int, int] = {}
        for cpu in seen:
            lowest[cpu.core] = min(cpu.id, lowest.get(cpu.core, cpu.id))
        numbered = tuple(
            Cpu(
                id=cpu.id,
                core=lowest[cpu.core],
                socket=cpu.socket,
                node=cpu.node,
                cache=cpu.socket if cpu.cache is None else cpu.cache,
            )
            for cpu in sorted(seen, key=lambda cpu: cpu.id)
        )
        return KubeletView(
            cpus=numbered,
            num_cpus=self.report.num_cpus if self.report else len(numbered),
            num_cores=len(lowest),
            num_sockets=self.report.num_sockets if self.report else len({cpu.socket for cpu in numbered}),
            nodes=tuple(sorted(self.nodes, key=lambda node: node.id)),
            distances=self.distances,
        )


def _grouped(pairs: Iterable[tuple[int, int]]) -> dict[int, Cpus]:
    """Key → set of CPUs, keys rising."""
    groups: dict[int, Cpus] = {}
    for key, cpu in pairs:
        groups[key] = groups.get(key, 0) | 1 << cpu
    return dict(sorted(groups.items()))
