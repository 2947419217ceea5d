"""The scheduler that knows totals of NUMA nodes."""

from alignup.align.settings import Policy, Scope
from alignup.align.workload import Container, Pod, Resources
from alignup.align.workload.validation import accept
from alignup.kubernetes.manifests.pod_decoder import read_pod
from alignup.simulate.arrivals import PodSubmission
from alignup.simulate.cluster_simulation import ClusterSimulation
from tests.align.hosts import make_host
from tests.simulate.clusters import group, of_host, submission


def run(groups, *submissions, **options):
    return ClusterSimulation(groups, submissions, "aggregate", **options).run()


def pod(uid, *cpus, init=(), sidecar=False):
    def containers(prefix, sizes, **fields):
        return [
            {"name": f"{prefix}{number}", "resources": {"limits": {"cpu": size, "memory": "64Mi"}}, **fields}
            for number, size in enumerate(sizes)
        ]

    spec = {
        "initContainers": containers("i", init, **({"restartPolicy": "Always"} if sidecar else {})),
        "containers": containers("c", cpus),
    }
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": uid, "uid": uid}, "spec": spec}
    return PodSubmission(0.0, accept(read_pod(manifest)))


def test_pods_go_where_a_numa_node_has_room():
    """As totals, the host has room for the third pod."""
    result = run([group()], *(submission(uid, cpu=cpus) for uid, cpus in (("a", "2"), ("b", "3"), ("c", "2"))))

    assert (result.started, result.pending, result.rejected) == (2, 1, 0)


def test_other_policies_are_not_checked():
    """Node 0 has three CPUs, node 1 four: each alone could run the third pod, if it were idle."""
    pods = [submission(uid, cpu=cpus) for uid, cpus in (("a", "2"), ("b", "3"), ("c", "2"))]
    result = run([group(policy=Policy.RESTRICTED)], *pods, retries=0)

    assert (result.started, result.failed, result.rejected) == (2, 1, 1)


def test_sidecars_are_not_counted():
    """The sidecar takes two CPUs, and the kubelet has none left for the second container."""
    result = run([group()], pod("a", "3", "2", init=("2",), sidecar=True), retries=0)

    assert result.rejected == 1


def test_with_scope_pod_all_containers_count_together():
    groups = [of_host("n", make_host(scope=Scope.POD))]

    assert run(groups, pod("a", "2", "2")).started == 1
    assert run(groups, pod("a", "3", "2")).pending == 1


def test_devices_count_for_burstable_pods():
    gpu = submission("a", 0, None, **{"example.com/gpu": "2"})

    assert run([group()], gpu).pending == 1


def test_fractions_of_cpus_are_compared_with_numa_nodes():
    """A kubelet would run it on shared CPUs."""
    limits = accept(Pod(name="a", uid="a", containers=(Container("c", Resources()),)))
    assert run([group()], PodSubmission(0.0, limits)).started == 1
    assert run([group()], submission("a", cpu="4500m")).pending == 1
