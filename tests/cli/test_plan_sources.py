"""``alignup cluster plan`` without an API server: from archives of ``alignup collect``, and in a simulated cluster."""

import json
from typing import Any

import pytest

from tests.cli.commands import in_process
from tests.cli.manifests import pod_manifest
from tests.cli.test_cluster_plan import PlannedCluster
from tests.observe.api_objects import running_server

CLUSTER = """
apiVersion: alignup.dev/v1
kind: Cluster
groups:
- {name: a, machine: "pack:2 numa:1(memory=16GiB) core:4 pu:1", config: kubelet.yaml, labels: {pool: old}}
- {name: b, machine: "pack:2 numa:1(memory=16GiB) core:4 pu:1", config: kubelet.yaml, labels: {pool: new}}
"""
KUBELET = """
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cpuManagerPolicy: static
topologyManagerPolicy: single-numa-node
systemReserved: {cpu: "1", memory: 100Mi}
"""


@pytest.fixture
def cluster(tmp_path):
    return PlannedCluster(tmp_path)


def collect(cluster: PlannedCluster, tmp_path: Any, *hosts: str) -> list[str]:
    """Collect an archive of each of these nodes; return the options that name them."""
    cluster.publish()
    options: list[str] = []
    with running_server(cluster.server):
        cluster.server.write_kubeconfig(cluster.config)
        for name in hosts:
            file = tmp_path / f"{name}.tar.gz"
            access = ("--kubeconfig", str(cluster.config))
            in_process("collect", "new", "--node", name, "--archive", str(file), "-y", *access)
            options += ["--archive", str(file)]
    return options


def steps(run: Any) -> list[str]:
    (plan,) = json.loads(run.stdout)["plans"]
    return [f"{step['action']} {step['pod']['name']} {step['node']}" for step in plan["steps"]]


def test_archives_of_all_nodes_give_the_plan_of_the_cluster(cluster, tmp_path):
    archives = collect(cluster, tmp_path, "a", "b")
    live = cluster.ask("new", "-o", "json")

    run = in_process("cluster", "plan", *archives, "-o", "json")

    assert run.returncode == 0
    assert steps(run) == steps(live) == ["evict y a", "admit y b", "admit new a"]


def test_the_first_line_says_what_archives_do_not_tell(cluster, tmp_path):
    run = in_process("cluster", "plan", "new", *collect(cluster, tmp_path, "a", "b"))

    first = " ".join(run.stdout.partition("\n\n")[0].split())
    assert first.startswith(
        "Pod default/new needs 1 move. Only 2 nodes of archives are known; other nodes, PodDisruptionBudgets, Jobs and "
        "volumes of claims are not."
    )
    assert "\nb after\n" in run.stdout


def test_new_places_are_proved_among_the_nodes_that_are_known(cluster, tmp_path):
    run = in_process("cluster", "plan", *collect(cluster, tmp_path, "a"))

    assert run.returncode == 1
    assert run.stdout.startswith("No plan for pod default/new. Only 1 node of archives is known;")
    assert "the pods fit nowhere else" in " ".join(run.stdout.split())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param({"ownerReferences": []}, "without a controller", id="no controller"),
        pytest.param(
            {"annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}}, "safe-to-evict", id="unsafe"
        ),
    ],
)
def test_archives_say_which_pods_are_never_evicted(cluster, tmp_path, change, reason):
    cluster.pods["y"]["metadata"].update(change)

    run = in_process("cluster", "plan", *collect(cluster, tmp_path, "a", "b"))

    assert run.returncode == 1
    assert reason in run.stdout


def test_archives_say_which_pods_have_local_volumes(cluster, tmp_path):
    cluster.pods["y"]["spec"]["volumes"] = [{"name": "secret-name", "emptyDir": {}}]
    archives = collect(cluster, tmp_path, "a", "b")

    assert "1 with local volumes" in " ".join(in_process("cluster", "plan", *archives).stdout.split())
    assert in_process("cluster", "plan", *archives, "--allow-local-volumes").returncode == 0


def test_the_newest_archive_of_a_node_counts(cluster, tmp_path):
    older = collect(cluster, tmp_path, "a")
    (tmp_path / "a.tar.gz").rename(tmp_path / "older.tar.gz")
    archives = collect(cluster, tmp_path, "a", "b")

    run = in_process("cluster", "plan", *archives, "--archive", tmp_path / "older.tar.gz", "-o", "json")

    assert older
    assert steps(run) == ["evict y a", "admit y b", "admit new a"]
    assert "counts instead" in run.stderr


# Simulated clusters


@pytest.fixture
def simulated(tmp_path):
    """Each NUMA node has a pod with 2 CPUs, and one or two CPUs left; ``late`` needs 4 on one."""
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "kubelet.yaml").write_text(KUBELET)
    sizes = {f"cpu-{cpu}": {"pod": json.loads(pod_manifest("x", cpu=cpu, memory="1Gi"))} for cpu in ("2", "4")}
    lines: list[dict[str, Any]] = [{"apiVersion": "alignup.dev/v1", "kind": "Trace", "templates": sizes}]
    lines += [
        {"at": at, "arrive": name, "template": f"cpu-{cpu}"}
        for at, (name, cpu) in enumerate((("w", "2"), ("x", "2"), ("y", "2"), ("z", "2"), ("late", "4")))
    ]
    (tmp_path / "trace.jsonl").write_text("\n".join(map(json.dumps, lines)))
    files = ("--cluster", tmp_path / "cluster.yaml", "--trace", tmp_path / "trace.jsonl")
    return (*files, "--strategy", "alignup-least-allocated")


def test_a_pod_that_waits_in_a_simulated_cluster_has_a_plan(simulated):
    run = in_process("cluster", "plan", "late", *simulated)

    assert run.returncode == 0, run.stdout + run.stderr
    text = " ".join(run.stdout.split())
    assert text.startswith("Pod default/late needs 1 move. This is a simulated cluster at peak demand")
    assert "default/late goes to" in text


def test_a_manifest_is_planned_in_a_simulated_cluster(simulated, tmp_path):
    manifest = tmp_path / "pod.yaml"
    new = json.loads(pod_manifest("new", cpu="4", memory="1Gi"))
    new["spec"]["nodeSelector"] = {"pool": "old"}
    manifest.write_text(json.dumps(new))

    planned = in_process("cluster", "plan", "-f", manifest, *simulated, "-o", "json")
    exempt = in_process("cluster", "plan", "-f", manifest, *simulated, "--exempt", "default")

    (plan,) = json.loads(planned.stdout)["plans"]
    assert [step["node"] for step in plan["steps"] if step["action"] == "evict"] == ["a-0"]
    assert [step["node"] for step in plan["steps"] if step["pod"]["name"] == "new"] == ["a-0"]
    assert (planned.returncode, exempt.returncode) == (0, 1)
    assert "in exempt namespaces" in " ".join(exempt.stdout.split())


def test_a_simulated_cluster_is_defragmented(simulated, tmp_path):
    manifest = tmp_path / "pod.yaml"
    manifest.write_text(pod_manifest("new", cpu="4", memory="1Gi"))

    run = in_process("cluster", "plan", "--defragment", "--shape", manifest, *simulated, "-o", "json")

    document = json.loads(run.stdout)
    assert document["limits"].startswith("This is a simulated cluster")
    assert document["gains"] == [{"moves": 1, "gained": 1}]


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (("new", "--cluster", "c.yaml"), "--cluster FILE and --trace FILE together"),
        (("--archive", "a.tar.gz", "-l", "app=x"), "-A and -l select pods of a live cluster"),
        (("--archive", "a.tar.gz", "--cluster", "c", "--trace", "t"), "either --archive or --cluster"),
        (("--archive", "missing.tar.gz"), "missing.tar.gz"),
    ],
)
def test_unusable_sources_are_refused(arguments, advice, tmp_path):
    run = in_process("cluster", "plan", *arguments, cwd=tmp_path)

    assert run.returncode == 2
    assert advice in " ".join(run.stderr.split())


def test_a_pod_that_does_not_wait_is_named(simulated):
    run = in_process("cluster", "plan", "x", *simulated)

    assert run.returncode == 2
    assert "pod x does not wait at peak demand" in run.stderr
