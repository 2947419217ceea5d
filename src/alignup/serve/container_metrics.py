"""Metrics of the containers that the agent runs, read on every scrape."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from alignup.align.workload import Pod
from alignup.schema.run_status import PodRunStatus

RunSource = Callable[[], Iterable[tuple[Pod, PodRunStatus]]]

RESTARTS = "alignup_container_restarts_total"
_STATES = ("waiting", "running", "ended")


def container_families(runs: Iterable[tuple[Pod, PodRunStatus]]) -> Iterator[Metric]:
    restarts = Metric(RESTARTS, "Container restarts.", "counter")
    found = Counter(dict.fromkeys(_STATES, 0))
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
