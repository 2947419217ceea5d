from hypothesis import given
from hypothesis import strategies as st

from alignup.align.quantity import Quantity
from alignup.align.workload import demand
from alignup.align.workload.validation import accept
from alignup.kubernetes.manifests.pod_decoder import read_pod
from tests.strategies_pods import DEVICES, aligned, amounts, pods, pods_of_one_host


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
