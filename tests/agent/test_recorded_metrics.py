"""Metrics of recorded runs of a real kubelet, compared with ours."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from alignup.agent.metrics import DURATION, Metrics
from alignup.align import bits
from alignup.align.admit import NO_AFFINITY
from alignup.align.errors import ProviderError
from alignup.web.metrics import metrics_lines
from tests.recorded.replay import Course, Run, load, travel

FAMILIES = (
    "kubelet_topology_manager",
    "kubelet_cpu_manager",
    "kubelet_memory_manager",
    "kubelet_container_aligned",
    "kubelet_admission_rejections",
)
PER_NUMA = "kubelet_cpu_manager_allocation_per_numa"
EXCLUSIVE = "kubelet_cpu_manager_exclusive_cpu_allocation_count"
SHARED = "kubelet_cpu_manager_shared_pool_size_millicores"


class CountedCourse(Course):
    """A host that replays a recording, with its metrics."""

    def start(self, number, step):
        super().start(number, step)
        self.metrics = Metrics(lambda: self.host)
        self.again = 0  #: CPUs allocated again to another container of the same pod, since the start

    def restart(self, number, step):
        compare(self, step["metrics_before"])
        self.metrics = Metrics(lambda: self.host)
        self.again = 0
        super().restart(number, step)

    def admit(self, pods, number, step, **options):
        decisions = super().admit(pods, number, step, **options)
        for name, decision in decisions.items():
            pod = self.pods[name]
            self.metrics.decided(decision, pod=pod, seconds=0.0)
            if not decision.kept:
                sets = list(self.given(decision, pod))
                self.again += sum(map(int.bit_count, sets)) - bits.union(sets).bit_count()
        return decisions

    def given(self, decision, pod):
        """The CPUs each container was given, by a kubelet also those before one that was rejected."""
        rules = self.host.cpus
        ledger = decision.before.cpus
        hints = {step.container: step.hint for step in decision.steps}
        if None in hints and not decision.admitted:  # scope pod: nothing was allocated
            return
        for container in pod.all_containers:
            hint = hints.get(container.name, hints.get(None, NO_AFFINITY))  # None: scope pod
            try:
                ledger = rules.allocate(ledger, pod, container, affinity=hint)
            except ProviderError:
                return
            yield ledger.holds(pod.uid, container.name) or 0


def pytest_generate_tests(metafunc):
    recorded = sorted(metafunc.config.getoption("--recorded").glob("*.json.gz"))
    metafunc.parametrize("recorded", [pytest.param(path, id=path.name.removesuffix(".json.gz")) for path in recorded])


def test_counts_match_the_recorded_kubelet(recorded):
    recording = load(recorded)
    if "metrics" not in recording:
        pytest.skip("no kubelet stayed up to be asked for metrics")
    course = CountedCourse(recording, predict=False)
    failure = travel(course, Run(recorded.name))
    if failure:  # a listed defect of the kubelet, which a host can reproduce
        course = CountedCourse(recording)
        failure = travel(course, Run(recorded.name))

    assert not failure
    compare(course, recording["metrics"])


def compare(course, recorded):
    """Compare names, types, labels and values; allow for the known drift of the kubelet's gauges."""
    ours, theirs = read("".join(metrics_lines(course.metrics.registry))), read("\n".join(recorded) + "\n")
    kinds = {name: kind for name, (kind, _) in theirs.items()} | {PER_NUMA: "gauge"}  # absent before the first use
    assert {name: kind for name, (kind, _) in ours.items()} == kinds
    for name, (_, samples) in theirs.items():
        counted = ours[name][1]
        if name == DURATION:
            assert counted.keys() == samples.keys()
            assert counted[DURATION + "_count", ()] == samples[DURATION + "_count", ()]
        elif name == PER_NUMA:
            # The kubelet never returns to 0, and shows a node only after its first use.
            assert samples.keys() <= counted.keys()
            assert all(value in {0, samples.get(key)} for key, value in counted.items())
        elif name in {EXCLUSIVE, SHARED}:
            # The kubelet counts reused CPUs of init containers twice, and subtracts them once.
            drift = course.again * (1 if name == EXCLUSIVE else -1000)
            assert samples == {key: value + drift for key, value in counted.items()}
        else:
            assert counted == samples, name


def read(text):
    """Family → type, and samples by name and labels."""
    families = {}
    for family in text_string_to_metric_families(text):
        if family.name.startswith(FAMILIES):
            samples = {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in family.samples}
            families[family.name] = family.type, samples
    return families
