"""A whole machine from one tree of files: the hardware, cAdvisor's report, and what is unknown."""

from alignup.align.errors import SourceError
from alignup.align.machine import CadvisorReport, Machine
from alignup.discover import cadvisor_view, cpu_topology, numa, pci
from alignup.discover.file_reader import FileReader

_HUGEPAGES = "sys/kernel/mm/hugepages"


def read_machine(files: FileReader, *, name: str) -> Machine:
    """The machine that *files* describe; errors refer to it by *name*."""
    online_cpus = cpu_topology.read_online_cpus(files)
    if not online_cpus.online:
        raise SourceError(f"{name} has no online CPU: expected {cpu_topology.CPU}/cpu0 and so on")
    ids = numa.read_node_ids(files)
    cpus = cpu_topology.read_cpus(files, online_cpus.online, numa.map_cpus_to_nodes(files, ids, online_cpus.online))
    nodes = numa.read_nodes(files, ids)
    distances = numa.read_distances(files, ids)
    memory = numa.read_memory(files, "proc/meminfo")
    if memory is None:
        files.add_gap("the total memory of the machine is unknown")
    elif nodes and all(node.memory is not None for node in nodes):
        _compare_memory(files, memory, sum(node.memory or 0 for node in nodes))
    if not files.has(_HUGEPAGES):
        files.add_gap("the huge pages of the whole machine are unknown")
    devices = pci.read_pci_devices(files)
    report = _read_report(files)
    return Machine(
        cpus=cpus,
        nodes=nodes,
        distances=distances,
        pci=devices,
        memory=memory,
        hugepages=numa.read_hugepages(files, _HUGEPAGES),
        offline=online_cpus.offline,
        report=report,
        gaps=files.gaps,
    ).checked()


def _compare_memory(files: FileReader, whole: int, parts: int) -> None:
    """Nodes and machine are read at different times; a large difference means that memory was added or removed."""
    if abs(whole - parts) > whole // 16:
        files.add_gap(f"the NUMA nodes have {parts} bytes of memory in total, but the machine reports {whole}")


def _read_report(files: FileReader) -> CadvisorReport:
    try:
        topology = cadvisor_view.read_topology(files)
    except cadvisor_view.CadvisorError as error:
        files.add_gap(f"cAdvisor gives up on this machine, so the kubelet gets no CPUs: {error}")
        return CadvisorReport(cpus=(), num_cpus=0, num_sockets=cadvisor_view.count_sockets(files), nodes=())
    if any(node.reported.id < 0 for node in topology.nodes):
        files.add_gap("the kubelet treats a socket without a number as NUMA node -1, which no set of nodes can contain")
    return topology.report()
