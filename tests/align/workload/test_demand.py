from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align.errors import ProviderError
from alignup.align.quantity import Quantity
from alignup.align.workload import ContainerStatus, Pod, Resources, demand
from alignup.align.workload.demand import FitRequest
from alignup.align.workload.validation import accept
from alignup.kubernetes.manifests.pod_decoder import read_pod
from tests.strategies_pods import DEVICES, aligned, amounts, container, guaranteed, pods, pods_of_one_host

GIB = 1 << 30
NOT_BYTES = r"^\[memorymanager\] failed to represent quantity as int64$"


def cpu(name, amount, *, sidecar=False):
    return container(name, {"cpu": amount}, sidecar=sidecar)


def test_the_example_of_the_design_needs_three_cpus_and_three_gigabytes():
    """KEP-693: containers add up to 3 CPUs and 2G; of the init containers the largest asks for 2 CPUs and 3G."""

    def written(name, cpus, memory):
        return {"name": name, "resources": {"requests": {"cpu": cpus, "memory": memory}}}

    pod = read_pod(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "example"},
            "spec": {
                "containers": [written("appContainer1", 2, "1G"), written("appContainer2", 1, "1G")],
                "initContainers": [written("initContainer1", 2, "1G"), written("initContainer2", 2, "3G")],
            },
        }
    )

    assert demand.requests(pod) == amounts({"cpu": "3", "memory": "3G"})


@pytest.mark.parametrize(
    ("init", "containers", "total"),
    [
        pytest.param([], ["1", "2"], "3", id="containers add up"),
        pytest.param([("2", True), ("3", False)], ["1"], "5", id="an init container runs beside earlier sidecars"),
        pytest.param([("3", False), ("2", True)], ["1"], "3", id="but not beside later ones"),
    ],
)
def test_aggregate(init, containers, total):
    pod = Pod(
        name="p",
        init=tuple(cpu(f"i{n}", amount, sidecar=sidecar) for n, (amount, sidecar) in enumerate(init)),
        containers=tuple(cpu(f"c{n}", amount) for n, amount in enumerate(containers)),
    )

    assert demand.requests(pod) == amounts({"cpu": total})


@given(pods(with_pod_level=False), st.sampled_from(["cpu", "memory", *DEVICES]))
def test_aggregate_is_the_peak_of_the_pods_life(pod, name):
    """Play the pod's life through: the aggregate is the most that ever runs at one time."""

    def asked(containers):
        return sum((c.resources.requests[name] for c in containers if name in c.resources.requests), Quantity.ZERO)

    stages = [
        [init, *(earlier for earlier in pod.init[:turn] if earlier.restartable)] for turn, init in enumerate(pod.init)
    ]
    stages.append([*pod.containers, *(sidecar for sidecar in pod.init if sidecar.restartable)])
    named = any(name in each.resources.requests for each in pod.all_containers)

    total = demand.aggregate(pod, lambda each: each.resources.requests)

    assert total.get(name) == (max(map(asked, stages)) if named else None)


def test_pod_level_resources_replace_the_sum_of_containers():
    pod = Pod(
        name="p",
        containers=(guaranteed("c", {"cpu": "2", "memory": "1Gi", "x.y/gpu": "1"}),),
        resources=Resources(amounts({"cpu": "4", "x.y/gpu": "9"}), amounts({"memory": "8Gi"})),
        overhead=amounts({"memory": "1Gi", "ephemeral-storage": "1"}),
    )

    assert demand.requests(pod, pod_level=False, overhead=False) == amounts(
        {"cpu": "2", "memory": "1Gi", "x.y/gpu": "1"}
    )
    assert demand.requests(pod, overhead=False) == amounts({"cpu": "4", "memory": "1Gi", "x.y/gpu": "1"})
    assert demand.requests(pod) == amounts({"cpu": "4", "memory": "2Gi", "x.y/gpu": "1", "ephemeral-storage": "1"})
    assert demand.limits(pod) == amounts({"cpu": "2", "memory": "9Gi", "x.y/gpu": "1"})


def test_overhead_creates_no_limit():
    pod = Pod(
        name="p", containers=(container("c", limits={"memory": "0"}),), overhead=amounts({"cpu": "1", "memory": "1"})
    )

    assert demand.limits(pod) == amounts({"memory": "0"})


def test_fit_request_rounds_up_and_omits_unknown_resources():
    pod = Pod(
        name="p",
        containers=(
            container("c", {"cpu": "1.0001", "memory": "1500m", "x.y/gpu": "1", "hugepages-2Mi": "2Mi", "pods": "3"}),
            container("d", {"ephemeral-storage": "-1", "kubernetes.io/z": "1"}),
        ),
    )

    assert demand.fit_request(pod) == FitRequest(
        milli_cpu=1001,
        memory=2,
        ephemeral_storage=0,
        scalars={"x.y/gpu": 1, "hugepages-2Mi": 2 << 20, "kubernetes.io/z": 1},
    )


@pytest.mark.parametrize(
    ("statuses", "infeasible", "milli_cpu"),
    [
        pytest.param({"a": ({"cpu": "3"}, {})}, False, 6500, id="allocated more than is asked for"),
        pytest.param({"a": ({}, {"cpu": "4"})}, False, 7500, id="more in force"),
        pytest.param(
            {"a": ({"cpu": "3"}, {"cpu": "1"}), "b": ({"cpu": "1"}, {"cpu": "4"})},
            False,
            6500,
            id="the largest of sums, not the sum of the largest",
        ),
        pytest.param({"side": ({"cpu": "2"}, {})}, False, 5500, id="a sidecar is resized too"),
        pytest.param({"a": ({"cpu": "500m"}, {})}, True, 1000, id="what can never be had does not count"),
        pytest.param({}, True, 500, id="then only overhead is left where no status says anything"),
    ],
)
def test_a_running_pod_uses_the_maximum_of_requested_allocated_and_actual(statuses, infeasible, milli_cpu):
    pod = Pod(
        name="p",
        init=(cpu("side", "1", sidecar=True),),
        containers=(cpu("a", "1"), cpu("b", "2")),
        overhead=amounts({"cpu": "500m"}),
        statuses={name: ContainerStatus(*map(amounts, status)) for name, status in statuses.items()},
        resize_infeasible=infeasible,
    )

    assert demand.fit_used(pod).milli_cpu == milli_cpu
    assert demand.fit_request(pod).milli_cpu == 4500


def test_a_running_pod_uses_its_pod_level_resources():
    pod = Pod(
        name="p",
        containers=(cpu("a", "1"),),
        resources=Resources(amounts({"cpu": "2"})),
        statuses={"a": ContainerStatus(amounts({"cpu": "8", "memory": "1Gi"}))},
    )

    assert demand.fit_used(pod) == FitRequest(milli_cpu=2000, memory=GIB, ephemeral_storage=0, scalars={})


def test_exclusive_cpus_are_whole_and_for_guaranteed_pods():
    half = guaranteed("half", {"cpu": "1500m", "memory": "1Gi"})
    two = guaranteed("two", {"cpu": "2", "memory": "1Gi"})
    pod = Pod(name="p", containers=(half, two), init=(guaranteed("side", {"cpu": "1", "memory": "1Gi"}, sidecar=True),))
    burstable = replace(pod, containers=(*pod.containers, container("idle")))

    assert [demand.exclusive_cpus(pod, each) for each in pod.all_containers] == [1, 0, 2]
    assert demand.exclusive_cpus(pod, None) == 3
    assert [demand.exclusive_cpus(burstable, each) for each in burstable.all_containers] == [0, 0, 0, 0]
    assert demand.exclusive_cpus(burstable, None) == 0


def test_pod_level_resources_are_allocated_as_a_whole():
    requests = amounts({"cpu": "8", "memory": "16Gi", "hugepages-2Mi": "0"})
    exclusive = guaranteed("exclusive", {"cpu": "2", "memory": "4Gi"})
    sharing = container("sharing", {"cpu": "1", "memory": "1Gi"})
    pod = Pod(name="p", containers=(exclusive, sharing), resources=Resources(requests, requests))

    assert demand.exclusive_cpus(pod, None) == 3
    assert demand.exclusive_cpus(pod, None, pod_level_managers=True) == 8
    assert demand.exclusive_cpus(pod, exclusive, pod_level_managers=True) == 2
    assert demand.exclusive_cpus(pod, sharing) == 1
    assert demand.exclusive_cpus(pod, sharing, pod_level_managers=True) == 0
    assert demand.memory(pod, None, pod_level_managers=True) == {"memory": 16 * GIB}
    assert demand.memory(pod, exclusive, pod_level_managers=True) == {"memory": 4 * GIB}
    assert demand.memory(pod, sharing, pod_level_managers=True) == {}


def test_pod_memory_omits_types_of_init_containers_only():
    pod = Pod(
        name="p",
        init=(container("i", {"memory": "3Gi", "hugepages-2Mi": "64Mi"}),),
        containers=(container("c", {"memory": "1Gi", "hugepages-1Gi": "0", "cpu": "1"}),),
    )

    assert demand.memory(pod, pod.init[0]) == {"memory": 3 * GIB, "hugepages-2Mi": 64 << 20}
    assert demand.memory(pod, None) == {"memory": 3 * GIB, "hugepages-1Gi": 0}


@pytest.mark.parametrize("text", ["1.5Gi", "1500m", "1000m"])
def test_memory_must_be_whole_bytes(text):
    pod = Pod(name="p", init=(container("i", {"memory": text}),), containers=(container("c", {"memory": "1Gi"}),))

    with pytest.raises(ProviderError, match=NOT_BYTES):
        demand.memory(pod, pod.init[0])
    with pytest.raises(ProviderError, match=NOT_BYTES):
        demand.memory(pod, None)


def test_devices_are_counted_by_limits():
    pod = Pod(
        name="p",
        init=(container("i", limits={"x.y/gpu": "3"}),),
        containers=(container("c", {"x.y/gpu": "9"}, {"x.y/gpu": "1", "x.y/nic": "0", "x.y/other": "5"}),),
        overhead=amounts({"x.y/gpu": "1"}),
    )

    assert demand.devices(pod, pod.containers[0], {"x.y/gpu", "x.y/nic"}) == {"x.y/gpu": 1, "x.y/nic": 0}
    assert demand.devices(pod, None, {"x.y/gpu", "x.y/nic"}) == {"x.y/gpu": 3, "x.y/nic": 0}


@given(pods_of_one_host(max_size=3, asks=aligned))
def test_no_container_requests_more_than_its_pod(crowd):
    """Of CPUs and devices, in the kubelet's default setting."""
    for pod in map(accept, crowd):
        devices = demand.devices(pod, None, DEVICES)

        assert all(demand.exclusive_cpus(pod, each) <= demand.exclusive_cpus(pod, None) for each in pod.all_containers)
        for each in pod.all_containers:
            assert all(count <= devices[name] for name, count in demand.devices(pod, each, DEVICES).items())


@given(pods())
def test_overhead_is_added_on_top(pod):
    bare, full = demand.requests(pod, overhead=False), demand.requests(pod)

    assert full.keys() == bare.keys() | pod.overhead.keys()
    for name, amount in full.items():
        assert amount == bare.get(name, Quantity.ZERO) + pod.overhead.get(name, Quantity.ZERO)
