"""cAdvisor's view of a machine, which the kubelet uses: as types, and as the report of a :class:`Machine`.

``MachineInfo`` has fewer facts than the kernel: no CPUs outside nodes and no locality of devices. A machine
read from it has gaps, but its report is exact.
"""

from collections import Counter
from dataclasses import dataclass, replace

from alignup.align import bits
from alignup.align.distances import Distances
from alignup.align.errors import MachineError
from alignup.align.machine import CadvisorNode, CadvisorReport, Cpu, HugePages, Machine, NumaNode


@dataclass(frozen=True, slots=True)
class CadvisorCore:
    """A physical core; ``core_id`` is the kernel's and may repeat."""

    core_id: int
    socket: int
    threads: tuple[int, ...]
    uncore: tuple[int, ...] = ()  #: caches above L2 that are not shared by the whole node


@dataclass(frozen=True, slots=True)
class CadvisorNodeTopology:
    reported: CadvisorNode
    cores: tuple[CadvisorCore, ...] = ()
    caches: tuple[int, ...] = ()  #: L3 caches of the whole node


@dataclass(frozen=True, slots=True)
class CadvisorTopology:
    nodes: tuple[CadvisorNodeTopology, ...]
    num_cpus: int
    num_sockets: int

    def report(self) -> CadvisorReport:
        """This as the report of a :class:`Machine`; for a CPU reported twice the last one counts."""
        cpus = {
            thread: Cpu(thread, min(core.threads), core.socket, node.reported.id, next(iter(core.uncore), None))
            for node in self.nodes
            for core in node.cores
            for thread in core.threads
        }
        return CadvisorReport(
            cpus=tuple(sorted(cpus.values(), key=lambda cpu: cpu.id)),
            num_cpus=self.num_cpus,
            num_sockets=self.num_sockets,
            nodes=tuple(node.reported for node in self.nodes),
        )


def to_machine(
    topology: CadvisorTopology, *, memory: int | None = None, hugepages: tuple[HugePages, ...] = ()
) -> Machine:
    """The hardware that *topology* implies; what cAdvisor does not report is a gap."""
    gaps = ["cAdvisor does not report CPUs outside of NUMA nodes, offline CPUs or PCI devices"]
    report = topology.report()
    nodes = [node.reported for node in topology.nodes if node.reported.id >= 0]
    if len(nodes) < len(topology.nodes):
        gaps.append("a socket without a number was reported as a NUMA node; it is not counted as a node")
    caches = {node.reported.id: node.caches[0] for node in topology.nodes if len(node.caches) == 1}
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
    if without_memory := bits.of(node.id for node in nodes if not node.memory):
        gaps.append(f"cAdvisor reports no memory on NUMA nodes {bits.show(without_memory)}, which may mean unknown")
    far = {node.id: node.distances for node in nodes if node.distances}
    distances, reason = None, "some are missing" if nodes else "the machine has no NUMA nodes"
    if nodes and len(far) == len(nodes):
        try:
            distances = Distances.of_rows(far)
        except MachineError as error:
            reason = str(error)
    if distances is None:
        gaps.append(f"the distances between NUMA nodes are unknown: {reason}")
    numa_nodes = (NumaNode(node.id, memory=node.memory, hugepages=node.hugepages) for node in nodes)
    return Machine(
        cpus=cpus,
        nodes=tuple(sorted(numa_nodes, key=lambda node: node.id)),
        distances=distances,
        memory=memory,
        hugepages=hugepages,
        report=report,
        gaps=tuple(gaps),
    ).checked()


def infer_report(machine: Machine) -> CadvisorReport:
    """What cAdvisor reports for *machine* if its kernel describes it completely."""
    sharing = Counter(cpu.cache for cpu in machine.cpus)
    reported = [cpu for cpu in machine.cpus if cpu.node is not None]
    cores = Counter((cpu.node, cpu.core) for cpu in reported)
    per_node = Counter(node for node, _ in cores)
    # A cache that all threads of the node share is the node's; cAdvisor assumes that all its cores are equal.
    cpus = (
        replace(cpu, cache=None) if sharing[cpu.cache] == per_node[cpu.node] * cores[cpu.node, cpu.core] else cpu
        for cpu in reported
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
        num_cpus=len(reported),
        num_sockets=len({cpu.socket for cpu in machine.cpus}),
        nodes=tuple(nodes),
    )
