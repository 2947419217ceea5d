"""Metrics for Prometheus: the kubelet's, under its names, and the use of each NUMA node.

Counters derive from decisions (``serve.decision_metrics``). Gauges are read from the ledger on every scrape; the
kubelet adds and subtracts some of them, and they drift (``docs/why/differences.md``).
"""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from alignup.align.cpus.options import CpuPolicy
from alignup.align.decision import Decision, Outcome
from alignup.align.host import Host
from alignup.align.workload import Pod
from alignup.schema.run_status import PodRunStatus
from alignup.serve import decision_metrics, ledger_metrics
from alignup.serve.exposition import CallbackCollector, Counters, render

DURATION = "kubelet_topology_manager_admission_duration_ms"
BUCKETS = tuple(0.05 * 2**step for step in range(15))  #: milliseconds; the kubelet's


class Metrics:
    """The metrics of one host; *host* returns its current state, *waiting* the number of waiting pods.

    Other collectors can be added to ``registry``.
    """

    def __init__(self, host: Callable[[], Host], *, waiting: Callable[[], int] = lambda: 0) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._host = host
        self._waiting = waiting
        static = host().settings.cpus.policy == CpuPolicy.STATIC
        self._counters = Counters(decision_metrics.COUNTERS, initial=decision_metrics.initial_series(static=static))
        self.registry.register(self._counters)
        self._durations = Histogram(
            DURATION,
            "Duration in milliseconds to serve a pod admission request.",
            buckets=BUCKETS,
            registry=self.registry,
        )
        self.registry.register(CallbackCollector(self._gauges))

    def decided(self, decision: Decision, *, pod: Pod, seconds: float) -> None:
        """Count a *decision* about *pod* that took *seconds*; not for dry runs."""
        if decision.outcome is Outcome.ASKING:
            return
        self._counters.add(decision_metrics.decision_counts(decision, pod=pod, host=self._host()))
        self._durations.observe(int(seconds * 1000))

    def show_containers(self, runs: Callable[[], Iterable[tuple[Pod, PodRunStatus]]]) -> None:
        self.registry.register(CallbackCollector(lambda: ledger_metrics.container_families(runs())))

    def text(self) -> bytes:
        return render(self.registry)

    def _gauges(self) -> Iterator[Metric]:
        host = self._host()
        yield from ledger_metrics.ledger_families(host)
        pods = GaugeMetricFamily("alignup_pods", "Pods, by state.", labels=["state"])
        pods.add_metric(["admitted"], len(host.ledger.pods))
        pods.add_metric(["waiting"], self._waiting())
        yield pods
