"""Containers of the pods that a runtime runs, counted at the moment somebody looks."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from alignup.align.workload import Pod
from alignup.schema.api import PodRunStatus

RunSource = Callable[[], Iterable[tuple[Pod, PodRunStatus]]]  #: each pod that is run, and how it is

RESTARTS = "alignup_container_restarts_total"
_STATES = ("waiting", "running", "ended")


def container_families(runs: Iterable[tuple[Pod, PodRunStatus]]) -> Iterator[Metric]:
    """How many containers there are in each state, and how often each was started again."""
    restarts = Metric(RESTARTS, "How often a container was started again.", "counter")
    found = Counter(dict.fromkeys(_STATES, 0))
    for pod, run in runs:
        for one in run.containers:
            found[one.state] += 1
            labels = {"namespace": pod.namespace, "pod": pod.name, "container": one.name}
            restarts.add_sample(RESTARTS, labels, one.restarts)
    states = GaugeMetricFamily("alignup_containers", "Containers, by how far they are.", labels=["state"])
    for state, count in found.items():
        states.add_metric([state], count)
    yield states
    yield restarts
