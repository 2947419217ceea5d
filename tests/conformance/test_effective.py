"""What a pod comes to: QoS class, totals, fit request, and what each provider is asked for."""

from collections.abc import Mapping
from typing import Any

from alignup.align.errors import ProviderError
from alignup.align.workload import Container, Pod, demand
from alignup.kubernetes.manifests.pod_decoder import read_pod
from tests.conformance.harness import Case, run

#: The resources the vectors' host has device plugins for.
DEVICES = frozenset({"example.com/gpu", "vendor.io/nic"})


def test_pods_come_to_what_the_kubelet_says(request):
    run(request, "effective", check)


def check(case: Case) -> None:
    pod = read_pod({"apiVersion": "v1", "kind": "Pod", **case["pod"]})

    assert pod.qos == case["qos"]
    for total in (demand.requests, demand.limits):
        name = total.__name__
        assert printed(total(pod)) == case[name]
        assert printed(total(pod, overhead=False)) == case[f"{name}_without_overhead"]
        assert printed(total(pod, pod_level=False, overhead=False)) == case[f"{name}_containers_only"]
    fit = fit_of(pod)
    assert fit == case["fit_request"]
    if "status" not in case["pod"]:
        assert fit == case["fit_used_when_running"]
    for suffix, gate in (("", False), ("_plrm", True)):
        assert cpus_of(pod, gate) == case[f"cpu_manager{suffix}"]
        assert memory_of(pod, gate) == case[f"memory_manager{suffix}"]
    assert devices_of(pod) == case["device_manager"]


def printed(amounts: Mapping[str, object]) -> dict[str, str]:
    return {name: str(amount) for name, amount in amounts.items()}


def fit_of(pod: Pod) -> dict[str, Any]:
    fit = demand.fit_request(pod)
    return {
        "milli_cpu": fit.milli_cpu,
        "memory": fit.memory,
        "ephemeral_storage": fit.ephemeral_storage,
        "scalar": fit.scalars,
    }


def cpus_of(pod: Pod, gate: bool) -> dict[str, Any]:
    return {
        "pod": demand.exclusive_cpus(pod, None, pod_level_managers=gate),
        "containers": {
            container.name: demand.exclusive_cpus(pod, container, pod_level_managers=gate)
            for container in pod.all_containers
        },
    }


def memory_of(pod: Pod, gate: bool) -> dict[str, Any]:
    def of(container: Container | None = None) -> dict[str, Any]:
        try:
            if container is None:
                return dict(demand.memory(pod, None, pod_level_managers=gate))
            return dict(demand.memory(pod, container, pod_level_managers=gate))
        except ProviderError as error:
            return {"error": str(error)}

    return {"pod": of(), "containers": {each.name: of(each) for each in pod.all_containers}}


def devices_of(pod: Pod) -> dict[str, Any]:
    return {
        "pod": demand.devices(pod, None, DEVICES),
        "containers": {container.name: demand.devices(pod, container, DEVICES) for container in pod.all_containers},
    }
