"""Which containers get exclusive CPUs, and how many."""

from dataclasses import replace

from alignup.align.workload.demand import exclusive_cpus
from tests.conformance.harness import Case, run
from tests.vector_types import pod_of


def test_exclusive_cpus_are_counted_as_the_kubelet_does(request):
    run(request, "cpu_qos", check)


def check(case: Case) -> None:
    pod = replace(pod_of(case["pod"]), recorded_qos=None)
    gate = "PodLevelResourceManagers" in case["gates"]

    counts = {each.name: exclusive_cpus(pod, each, pod_level_managers=gate) for each in pod.all_containers}

    assert pod.qos == case["pod"]["qos"]
    assert counts == case["container_cpus"]
    assert exclusive_cpus(pod, None, pod_level_managers=gate) == case["pod_cpus"]
