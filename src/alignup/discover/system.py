"""A whole machine from one tree of files: the hardware, what the kubelet would be told of it, and what is missing."""

from alignup.align.errors import SourceError
from alignup.align.machine import CadvisorReport, Machine
from alignup.discover import cadvisor_view, cpu_topology, numa, pci
from alignup.discover.file_reader import FileReader

_HUGEPAGES = "sys/kernel/mm/hugepages"


def read_machine(tree: FileReader, *, name: str) -> Machine:
    """The machine *tree* describes; *name* is what people call it."""
    switched = cpu_topology.read_online_cpus(tree)
    if not switched.online:
        raise SourceError(f"{name} describes no CPU that is on: expected {cpu_topology.CPU}/cpu0 and so on in it")
    ids = numa.read_node_ids(tree)
    cpus = cpu_topology.read_cpus(tree, switched.online, numa.map_cpus_to_nodes(tree, ids, switched.online))
    nodes = numa.read_nodes(tree, ids)
    distances = numa.read_distances(tree, ids)
    memory = numa.read_memory(tree, "proc/meminfo")
    if memory is None:
        tree.gap("the memory of the machine as a whole is not known")
    elif nodes and all(node.memory is not None for node in nodes):
        _compared(tree, memory, sum(node.memory or 0 for node in nodes))
    if not tree.has(_HUGEPAGES):
        tree.gap("the huge pages of the machine as a whole are not known")
    devices = pci.read_pci_devices(tree)
    report = _report(tree)
    return Machine(
        cpus=cpus,
        nodes=nodes,
        distances=distances,
        pci=devices,
        memory=memory,
        hugepages=numa.read_hugepages(tree, _HUGEPAGES),
        offline=switched.offline,
        report=report,
        gaps=tree.gaps,
    ).checked()


def _compared(tree: FileReader, whole: int, parts: int) -> None:
    """Nodes and machine count memory at different times; what was added or switched off since shows."""
    if abs(whole - parts) > whole // 16:
        tree.gap(f"the NUMA nodes tell of {parts} bytes of memory in all, the machine as a whole of {whole}")


def _report(tree: FileReader) -> CadvisorReport:
    try:
        seen = cadvisor_view.read_topology(tree)
    except cadvisor_view.CadvisorError as why:
        tree.gap(f"cAdvisor would give up on this machine, and the kubelet be told of no CPUs: {why}")
        return CadvisorReport(cpus=(), num_cpus=0, num_sockets=cadvisor_view.count_sockets(tree), nodes=())
    if any(node.told.id < 0 for node in seen.nodes):
        tree.gap("the kubelet takes a socket without a number for NUMA node -1, which no set of nodes can hold")
    return seen.report()
