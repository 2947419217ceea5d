"""The use of each NUMA node, and the containers that the agent runs, read on every scrape.

CPUs and memory appear only under a static policy: without one, nothing is allocated exclusively.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from alignup.align import bits
from alignup.align.cpus.ledger import CpuLedger
from alignup.align.cpus.options import CpuPolicy
from alignup.align.devices import DeviceLedger
from alignup.align.host import Host
from alignup.align.memory.ledger import MemoryLedger
from alignup.align.workload import Pod
from alignup.schema.run_status import PodRunStatus

RESTARTS = "alignup_container_restarts_total"
UNPLACED = "none"  #: the ``node`` label of devices without NUMA affinity


def ledger_families(host: Host) -> Iterator[Metric]:
    ledger = host.ledger
    managed = host.settings.cpus.policy == CpuPolicy.STATIC
    yield from _cpus(ledger.cpus, managed=managed)
    yield _memory(ledger.memory)
    yield _devices(ledger.devices)


def _cpus(ledger: CpuLedger, *, managed: bool) -> Iterator[Metric]:
    held = bits.union(map(ledger.owned, {*ledger.held, *ledger.pod_held}))
    yield GaugeMetricFamily(
        "kubelet_cpu_manager_shared_pool_size_millicores",
        "Size of the shared CPU pool in millicores.",
        value=1000 * ledger.available.bit_count(),
    )
    yield GaugeMetricFamily(
        "kubelet_cpu_manager_exclusive_cpu_allocation_count",
        "Exclusively allocated CPUs.",
        value=held.bit_count(),
    )
    numa = GaugeMetricFamily(
        "kubelet_cpu_manager_allocation_per_numa",
        "Exclusively allocated CPUs of a NUMA node.",
        labels=["numa_node"],
    )
    states = GaugeMetricFamily(
        "alignup_numa_cpus", "CPUs of a NUMA node: free, held or reserved.", labels=["node", "state"]
    )
    for node, cpus in ledger.node_cpus.items() if managed else ():
        numa.add_metric([str(node)], (held & cpus).bit_count())
        parts = {"free": ledger.available & cpus, "held": held & cpus, "reserved": ledger.reserved & cpus}
        for state, part in parts.items():
            states.add_metric([str(node), state], part.bit_count())
    yield numa
    yield states


def _memory(ledger: MemoryLedger) -> Metric:
    family = GaugeMetricFamily(
        "alignup_numa_memory_bytes",
        "Memory and huge pages of a NUMA node: free, held by containers, or reserved for the system.",
        labels=["node", "type", "state"],
    )
    for node, memory in ledger.nodes.items():
        for type_, table in sorted(memory.tables.items()):
            family.add_metric([str(node), type_, "free"], table.free)
            family.add_metric([str(node), type_, "held"], table.reserved)
            family.add_metric([str(node), type_, "reserved"], table.system_reserved)
    return family


def _devices(ledger: DeviceLedger) -> Metric:
    """Count a device near several nodes once: ``node="0-1"``."""
    family = GaugeMetricFamily(
        "alignup_numa_devices",
        "Devices near a NUMA node (or a list of nodes): free, held, or unhealthy and not held.",
        labels=["node", "resource", "state"],
    )
    for resource, inventory in sorted(ledger.inventories.items()):
        in_use = ledger.in_use.get(resource, frozenset())
        found: Counter[tuple[str, str]] = Counter()
        for device in inventory.devices:
            node = bits.show(device.nodes) if device.nodes else UNPLACED
            state = "held" if device.id in in_use else "free" if device.healthy else "unhealthy"
            found.update({(node, one): int(one == state) for one in ("free", "held", "unhealthy")})
        for (node, state), count in sorted(found.items()):
            family.add_metric([node, resource, state], count)
    return family


def container_families(runs: Iterable[tuple[Pod, PodRunStatus]]) -> Iterator[Metric]:
    restarts = Metric(RESTARTS, "Container restarts.", "counter")
    found = Counter({"waiting": 0, "running": 0, "ended": 0})
    for pod, run in runs:
        for one in run.containers:
            found[one.state] += 1
            labels = {"namespace": pod.namespace, "pod": pod.name, "container": one.name}
            restarts.add_sample(RESTARTS, labels, one.restarts)
    states = GaugeMetricFamily("alignup_containers", "Containers, by state.", labels=["state"])
    for state, count in found.items():
        states.add_metric([state], count)
    yield states
    yield restarts
