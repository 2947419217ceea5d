"""What cAdvisor tells the kubelet of a machine: its topology as types, as the ``CadvisorReport`` of a machine, and from JSON.

The JSON is cAdvisor's ``MachineInfo``, as its API and the kubelet's ``/spec/`` serve it. It tells less than the kernel
does (no CPUs outside nodes, no locality of devices), so a machine read from it has gaps, but its report is exact.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from alignup.align import bits
from alignup.align.distances import Distances
from alignup.align.errors import MachineError
from alignup.align.machine import CadvisorNode, CadvisorReport, Cpu, HugePages, Machine, NumaNode


@dataclass(frozen=True, slots=True)
class CadvisorCore:
    """One physical core; ``core_id`` is the kernel's, so it repeats."""

    core_id: int
    socket: int
    threads: tuple[int, ...]
    uncore: tuple[int, ...] = ()  #: the caches above L2 that are no cache of the whole node


@dataclass(frozen=True, slots=True)
class CadvisorNodeTopology:
    """One NUMA node, with the cores cAdvisor found in it."""

    told: CadvisorNode
    cores: tuple[CadvisorCore, ...] = ()
    caches: tuple[int, ...] = ()  #: the L3 caches of the whole node


@dataclass(frozen=True, slots=True)
class CadvisorTopology:
    """A machine as cAdvisor sees it."""

    nodes: tuple[CadvisorNodeTopology, ...]
    num_cpus: int
    num_sockets: int

    def report(self) -> CadvisorReport:
        """This as a part of a :class:`Machine`; a CPU told of twice is where it was told of last."""
        cpus = {cpu.id: cpu for node in self.nodes for cpu in _threads(node)}
        return CadvisorReport(
            cpus=tuple(sorted(cpus.values(), key=lambda cpu: cpu.id)),
            num_cpus=self.num_cpus,
            num_sockets=self.num_sockets,
            nodes=tuple(node.told for node in self.nodes),
        )


def to_machine(seen: CadvisorTopology, *, memory: int | None = None, hugepages: tuple[HugePages, ...] = ()) -> Machine:
    """The hardware that *seen* implies: what cAdvisor cannot say is a gap."""
    gaps = ["cAdvisor does not tell of CPUs outside NUMA nodes, of CPUs that are off, or of PCI devices"]
    report = seen.report()
    nodes = [node.told for node in seen.nodes if node.told.id >= 0]
    if len(nodes) < len(seen.nodes):
        gaps.append("a socket without a number was told as a NUMA node; it is no node here")
    caches = {node.told.id: node.caches[0] for node in seen.nodes if len(node.caches) == 1}
    cpus = tuple(
        Cpu(
            id=cpu.id,
            core=cpu.core,
            socket=max(cpu.socket, -1),
            node=cpu.node if cpu.node is not None and cpu.node >= 0 else None,
            cache=caches.get(cpu.node or 0) if cpu.cache is None else cpu.cache,
        )
        for cpu in report.cpus
    )
    silent = [node.id for node in nodes if not node.memory]
    if silent:
        gaps.append(f"cAdvisor tells of no memory on NUMA nodes {bits.show(bits.of(silent))}, which may mean unknown")
    far = {node.id: node.distances for node in nodes if node.distances}
    distances, why = _distances(far) if len(far) == len(nodes) else (None, "some are missing")
    if why:
        gaps.append(f"the distances between NUMA nodes are not known: {why}")
    return Machine(
        cpus=cpus,
        nodes=tuple(
            NumaNode(node.id, memory=node.memory, hugepages=node.hugepages)
            for node in sorted(nodes, key=lambda node: node.id)
        ),
        distances=distances,
        memory=memory,
        hugepages=hugepages,
        report=report,
        gaps=tuple(gaps),
    ).checked()


def infer_report(machine: Machine) -> CadvisorReport:
    """What cAdvisor would tell of *machine* if its kernel describes it in full."""
    sharing = Counter(cpu.cache for cpu in machine.cpus)
    told = [cpu for cpu in machine.cpus if cpu.node is not None]
    cores = Counter((cpu.node, cpu.core) for cpu in told)
    per_node = Counter(node for node, _ in cores)
    # A cache of just the node's threads is the node's own; cAdvisor takes all cores of the node for ones like this.
    cpus = (
        replace(cpu, cache=None) if sharing[cpu.cache] == per_node[cpu.node] * cores[cpu.node, cpu.core] else cpu
        for cpu in told
    )
    far = machine.distances
    nodes = (
        CadvisorNode(
            node.id,
            memory=node.memory or 0,
            hugepages=tuple(sorted(node.hugepages, key=lambda pages: str(pages.size // 1024))),
            distances=far.matrix[far.ids.index(node.id)] if far else None,
        )
        for node in sorted(machine.nodes, key=lambda node: str(node.id))
    )
    return CadvisorReport(
        cpus=tuple(cpus),
        num_cpus=len(told),
        num_sockets=len({cpu.socket for cpu in machine.cpus}),
        nodes=tuple(nodes),
    )


def _threads(node: CadvisorNodeTopology) -> Iterator[Cpu]:
    for core in node.cores:
        uncore = core.uncore[0] if core.uncore else None
        for thread in core.threads:
            yield Cpu(id=thread, core=min(core.threads), socket=core.socket, node=node.told.id, cache=uncore)


def _distances(rows: dict[int, tuple[int, ...]]) -> tuple[Distances | None, str]:
    try:
        return Distances.of_rows(rows) if rows else None, "" if rows else "there are no NUMA nodes"
    except MachineError as error:
        return None, str(error)
