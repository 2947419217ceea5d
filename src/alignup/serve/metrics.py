"""Metrics for Prometheus: what the kubelet counts under the kubelet's names, and who holds how much of each NUMA node.

Counters are made from decisions, one place for all of them (``serve.decision_metrics``); gauges are read from the ledger when
somebody looks. The kubelet keeps some gauges by adding and subtracting, and they drift; read from the ledger they
cannot (``docs/why/differences.md``).
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from alignup.align.cpus.options import CpuPolicy
from alignup.align.decision import Decision, Outcome
from alignup.align.host import Host
from alignup.align.workload import Pod
from alignup.serve import container_metrics, decision_metrics, ledger_metrics
from alignup.serve.container_metrics import RunSource
from alignup.serve.decision_metrics import SeriesKey

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

DURATION = "kubelet_topology_manager_admission_duration_ms"
#: Milliseconds; the kubelet's: each twice the one before.
BUCKETS = tuple(0.05 * 2**step for step in range(15))

#: Every counter: its labels, and what it says.
COUNTERS: Mapping[str, tuple[tuple[str, ...], str]] = MappingProxyType(
    {
        decision_metrics.REQUESTS: ((), "Pods decided on."),
        decision_metrics.ERRORS: ((), "Pods refused because their resources could not be aligned or given out."),
        decision_metrics.ALIGNED: (("scope", "boundary"), "Allocations that stayed inside a boundary."),
        decision_metrics.UNALIGNED: (
            ("scope", "boundary"),
            "Allocations refused because they would not stay inside one.",
        ),
        decision_metrics.CPU_REQUESTS: ((), "Containers that asked for CPUs of their own."),
        decision_metrics.CPU_ERRORS: ((), "Containers that could not be given CPUs of their own."),
        decision_metrics.MEMORY_REQUESTS: ((), "Containers that asked for memory on NUMA nodes of their own."),
        decision_metrics.MEMORY_ERRORS: ((), "Containers that could not be given memory on NUMA nodes of their own."),
        decision_metrics.REJECTIONS: (("reason",), "Pods refused, by reason."),
    }
)
#: Series that are there from the start under a static CPU policy, as in the kubelet.
_FROM_THE_START: tuple[SeriesKey, ...] = (
    (decision_metrics.ALIGNED, "container", decision_metrics.PHYSICAL_CPU),
    (decision_metrics.ALIGNED, "container", decision_metrics.UNCORE_CACHE),
    (decision_metrics.UNALIGNED, "container", decision_metrics.PHYSICAL_CPU),
)


class Metrics:
    """All metrics of one host; *host* tells it as it is now, *waiting* how many pods wait.

    Others may register collectors of their own with ``registry``.
    """

    def __init__(self, host: Callable[[], Host], *, waiting: Callable[[], int] = lambda: 0) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._host = host
        self._waiting = waiting
        self._counted: Counter[SeriesKey] = Counter()
        self._times = [0] * (len(BUCKETS) + 1)  #: admissions by bucket, each in one only; the last is beyond them all
        self._total_ms = 0
        plain = [(name,) for name, (labels, _) in COUNTERS.items() if not labels]
        static = host().settings.cpus.policy == CpuPolicy.STATIC
        self._counted.update(dict.fromkeys([*plain, *(_FROM_THE_START if static else ())], 0))
        self.registry.register(_Collected(self._families))

    def decided(self, decision: Decision, *, pod: Pod, seconds: float) -> None:
        """Count a *decision* about *pod* that took *seconds*; one that was only tried out is not to be handed in."""
        if decision.outcome is Outcome.ASKING:
            return
        self._counted.update(decision_metrics.decision_counts(decision, pod=pod, host=self._host()))
        milliseconds = int(seconds * 1000)
        self._times[bisect_left(BUCKETS, milliseconds)] += 1
        self._total_ms += milliseconds

    def join(self, families: Callable[[], Iterable[Any]]) -> None:
        """Show what others count too; *families* have the fields of the library's, whoever made them."""
        self.registry.register(_Collected(lambda: iter(families())))

    def show_containers(self, runs: RunSource) -> None:
        """Show the containers of the pods that a runtime runs, which *runs* tells of as they are now."""
        self.registry.register(_Collected(lambda: container_metrics.container_families(runs())))

    def text(self) -> bytes:
        """Everything in the text format of Prometheus, as ``CONTENT_TYPE`` says."""
        return "".join(_lines(self.registry)).encode()

    def _families(self) -> Iterator[Metric]:
        for name, (labels, says) in COUNTERS.items():
            family = Metric(name, says, "counter")
            for series, value in sorted(self._counted.items()):
                if series[0] == name:
                    family.add_sample(name, dict(zip(labels, series[1:], strict=True)), value)
            yield family
        yield self._durations()
        yield from ledger_metrics.ledger_families(self._host())
        pods = GaugeMetricFamily("alignup_pods", "Pods that are known, by how they stand.", labels=["state"])
        pods.add_metric(["admitted"], len(self._host().ledger.pods))
        pods.add_metric(["waiting"], self._waiting())
        yield pods

    def _durations(self) -> Metric:
        so_far, buckets = 0, []
        for bound, count in zip((*BUCKETS, float("inf")), self._times, strict=True):
            so_far += count
            buckets.append((_number(bound), float(so_far)))
        says = "How long deciding took, in whole milliseconds."
        return HistogramMetricFamily(DURATION, says, buckets=buckets, sum_value=self._total_ms)


class _Collected(Collector):
    """What the registry asks for metrics."""

    def __init__(self, families: Callable[[], Iterator[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """Every metric, as it is now."""
        return self._families()


def _lines(registry: CollectorRegistry) -> Iterator[str]:
    """The text format, written here because the library's own would have every counter end in ``_total``."""
    for family in registry.collect():
        if not family.samples:
            continue
        name = family.samples[0].name if family.type == "counter" else family.name
        kind = "untyped" if family.type == "unknown" else family.type
        says = family.documentation.replace("\\", r"\\").replace("\n", r"\n")
        yield f"# HELP {name} {says}\n# TYPE {name} {kind}\n"
        for sample in family.samples:
            labels = ",".join(f'{key}="{_escape(value)}"' for key, value in sorted(sample.labels.items()))
            yield f"{sample.name}{f'{{{labels}}}' if labels else ''} {_number(sample.value)}\n"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    return str(int(value)) if value == int(value) else repr(value)
