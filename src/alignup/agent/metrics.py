"""Metrics for Prometheus: the kubelet's, under its names, and the use of each NUMA node.

Counters derive from decisions (``agent.decision_metrics``) and from the calls of device plugins. Gauges are read from
the ledger on every scrape; the kubelet adds and subtracts some of them, and they drift (``docs/why/differences.md``).
CPUs and memory appear only under a static policy: without one, nothing is allocated exclusively.
"""

from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from alignup.agent import decision_metrics
from alignup.align import bits
from alignup.align.cpus.ledger import CpuLedger
from alignup.align.cpus.options import CpuPolicy
from alignup.align.decision import Decision
from alignup.align.devices.ledger import DeviceLedger
from alignup.align.host import Host
from alignup.align.memory.ledger import MemoryLedger
from alignup.align.workload import Pod
from alignup.web.metrics import CallbackCollector, CounterSet

DURATION = "kubelet_topology_manager_admission_duration_ms"
BUCKETS = tuple(0.05 * 2**step for step in range(15))  #: milliseconds; the kubelet's
DROPPED_LINES = "alignup_log_lines_dropped_total"
UNPLACED = "none"  #: the ``numa_node`` label of devices without NUMA affinity

REGISTRATIONS = "kubelet_device_plugin_registration_total"
ALLOCATIONS = "kubelet_device_plugin_alloc_duration_seconds"
ALLOCATION_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  #: seconds
ENDPOINT = "kubelet_pod_resources_endpoint_"
API_VERSION = "v1"
OUTCOMES = "alignup_decisions_total"
MAX_RESOURCES = 1_000  #: distinct resource names; plugins choose them, and series must not grow without limit
OTHER = "other"  #: stands for all further names

_METHODS = {"list": "List", "get_allocatable": "GetAllocatableResources", "get": "Get"}
_VERSION = ("server_api_version",)
_COUNTERS = {
    OUTCOMES: (("outcome",), "Decisions on pods: admitted, rejected, or waiting, which are rejected for now."),
    REGISTRATIONS: (("resource_name",), "Cumulative number of device plugin registrations, including rejected ones."),
    f"{ENDPOINT}requests_total": (_VERSION, "Number of requests to the PodResources endpoint."),
    **{
        f"{ENDPOINT}{kind}_{key}": (_VERSION, f"Number of PodResources {name} requests{which}.")
        for kind, which in (("requests", ""), ("errors", " that failed"))
        for key, name in _METHODS.items()
    },
}


class Metrics:
    """The metrics of the agent; *host* returns its current state, *waiting* the number of waiting pods.

    It also counts the calls of device plugins and of PodResources, for ``kubernetes.plugins``; such a metric appears
    with its first value.
    """

    def __init__(self, host: Callable[[], Host], *, waiting: Callable[[], int] = lambda: 0) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._host = host
        self._waiting = waiting
        self._resources: set[str] = set()
        self._first_host = host()  #: all later hosts have the same providers
        static = self._first_host.settings.cpus.policy == CpuPolicy.STATIC
        self._counters = CounterSet(
            {**decision_metrics.COUNTERS, **_COUNTERS}, initial=decision_metrics.initial_series(static=static)
        )
        self._counters.values.update({(OUTCOMES, outcome): 0 for outcome in ("admitted", "rejected", "waiting")})
        self.registry.register(self._counters)
        text = "Duration in milliseconds to serve a pod admission request."
        self._durations = Histogram(DURATION, text, buckets=BUCKETS, registry=self.registry)
        text, labels = "Duration in seconds of device plugin Allocate calls, including failed ones.", ["resource_name"]
        self._allocations = Histogram(ALLOCATIONS, text, labels, buckets=ALLOCATION_BUCKETS, registry=self.registry)
        self.registry.register(CallbackCollector(self._gauges))

    def decided(self, decision: Decision, *, pod: Pod, seconds: float) -> None:
        """Count a *decision* about *pod* that took *seconds*; not for dry runs."""
        if counts := decision_metrics.decision_counts(decision, pod=pod, host=self._first_host):
            self._counters.values.update(counts)
            self._durations.observe(int(seconds * 1000))

    def count_outcome(self, outcome: str) -> None:
        self._counters.values[OUTCOMES, outcome] += 1

    def count_registration(self, resource: str) -> None:
        self._counters.values[REGISTRATIONS, self._resource_label(resource)] += 1

    def observe_allocation(self, resource: str, seconds: float) -> None:
        self._allocations.labels(self._resource_label(resource)).observe(seconds)

    def count_pod_resources(self, method: str, *, failed: bool) -> None:
        """Count a call of the PodResources endpoint when it begins, and again if it has *failed*."""
        for name in (f"errors_{method}",) if failed else ("requests_total", f"requests_{method}"):
            self._counters.values[f"{ENDPOINT}{name}", API_VERSION] += 1

    def show_dropped_log_lines(self, count: Callable[[], int]) -> None:
        def families() -> Iterator[Metric]:
            family = Metric(DROPPED_LINES, "Log lines dropped because the log was not read fast enough.", "counter")
            family.add_sample(DROPPED_LINES, {}, count())
            yield family

        self.registry.register(CallbackCollector(families))

    def _gauges(self) -> Iterator[Metric]:
        host = self._host()
        yield from _cpus(host.ledger.cpus, managed=host.settings.cpus.policy == CpuPolicy.STATIC)
        yield _memory(host.ledger.memory)
        yield _devices(host.ledger.devices)
        pods = GaugeMetricFamily("alignup_pods", "Pods, by state.", labels=["state"])
        pods.add_metric(["admitted"], len(host.ledger.pods))
        pods.add_metric(["waiting"], self._waiting())
        yield pods

    def _resource_label(self, resource: str) -> str:
        if resource not in self._resources and len(self._resources) >= MAX_RESOURCES:
            return OTHER
        self._resources.add(resource)
        return resource


def _cpus(ledger: CpuLedger, *, managed: bool) -> Iterator[Metric]:
    exclusive_cpus = bits.union(map(ledger.owned, {*ledger.held, *ledger.pod_held}))
    yield GaugeMetricFamily(
        "kubelet_cpu_manager_shared_pool_size_millicores",
        "Size of the shared CPU pool in millicores.",
        value=1000 * ledger.available.bit_count(),
    )
    yield GaugeMetricFamily(
        "kubelet_cpu_manager_exclusive_cpu_allocation_count",
        "Exclusively allocated CPUs.",
        value=exclusive_cpus.bit_count(),
    )
    numa = GaugeMetricFamily(
        "kubelet_cpu_manager_allocation_per_numa", "Exclusively allocated CPUs of a NUMA node.", labels=["numa_node"]
    )
    states = GaugeMetricFamily(
        "alignup_numa_cpus", "CPUs of a NUMA node: free, held or reserved.", labels=["numa_node", "state"]
    )
    for node, cpus in ledger.node_cpus.items() if managed else ():
        numa.add_metric([str(node)], (exclusive_cpus & cpus).bit_count())
        parts = {"free": ledger.available & cpus, "held": exclusive_cpus & cpus, "reserved": ledger.reserved & cpus}
        for state, part in parts.items():
            states.add_metric([str(node), state], part.bit_count())
    yield numa
    yield states


def _memory(ledger: MemoryLedger) -> Metric:
    family = GaugeMetricFamily(
        "alignup_numa_memory_bytes",
        "Memory and huge pages of a NUMA node: free, held by containers, or reserved for the system.",
        labels=["numa_node", "type", "state"],
    )
    for node, memory in ledger.nodes.items():
        for type_, table in sorted(memory.tables.items()):
            family.add_metric([str(node), type_, "free"], table.free)
            family.add_metric([str(node), type_, "held"], table.reserved)
            family.add_metric([str(node), type_, "reserved"], table.system_reserved)
    return family


def _devices(ledger: DeviceLedger) -> Metric:
    """Count a device near several nodes once: ``numa_node="0-1"``."""
    family = GaugeMetricFamily(
        "alignup_numa_devices",
        "Devices near a NUMA node (or a list of nodes): free, held, or unhealthy and not held.",
        labels=["numa_node", "resource", "state"],
    )
    for resource, inventory in sorted(ledger.inventories.items()):
        in_use = ledger.in_use.get(resource, frozenset())
        counts: Counter[tuple[str, str]] = Counter()
        for device in inventory.devices:
            node = bits.show(device.nodes) if device.nodes else UNPLACED
            state = "held" if device.id in in_use else "free" if device.healthy else "unhealthy"
            counts.update({(node, name): int(name == state) for name in ("free", "held", "unhealthy")})
        for (node, state), count in sorted(counts.items()):
            family.add_metric([node, resource, state], count)
    return family
