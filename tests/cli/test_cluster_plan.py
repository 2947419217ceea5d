"""``alignup cluster plan``: who is moved in a cluster, and who never is."""

import json
from typing import Any

import pytest

from alignup.documents.codec import convert
from alignup.schedule.cluster_plan import JOBS, VOLUME_CLAIMS, VOLUMES, Job
from alignup.schedule.disruption_budgets import POD_DISRUPTION_BUDGETS
from alignup.schedule.pod_groups import KUBERNETES, RESOURCES
from alignup.testing.api_server import ApiFault, ApiServer
from tests.align.hosts import make_pod
from tests.cli.commands import in_process
from tests.cli.manifests import pod_manifest
from tests.observe.api_objects import SERVED, api_pod, node, running_server, served
from tests.observe.kubelets import ObservedKubelet

REPLICA_SET = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "r", "controller": True}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
GROUPS = RESOURCES[KUBERNETES][0]


class PlannedCluster:
    """Node ``a`` has 3 and 2 CPUs in use, ``b`` 4; ``new`` waits for 4 CPUs on one NUMA node of ``a``."""

    def __init__(self, tmp_path: Any) -> None:
        self.server = ApiServer()
        self.config = tmp_path / "config"
        for resource in (POD_DISRUPTION_BUDGETS, JOBS, VOLUME_CLAIMS, VOLUMES, GROUPS):
            self.server.serve(served(resource))
        self.server.serve(SERVED)
        self.pods: dict[str, dict[str, Any]] = {}
        self.kubelets = {name: ObservedKubelet() for name in "ab"}
        for uid, host, cpu in (("x", "a", "3"), ("y", "a", "2"), ("z", "b", "4")):
            self.run(uid, host, cpu)
        self.wait("new", "4", nodeSelector={"kubernetes.io/hostname": "a"})

    def run(self, uid: str, host: str, cpu: str) -> None:
        pod = make_pod(uid, cpu=cpu, memory="1Gi")
        self.kubelets[host].run(pod)
        self.pods[uid] = api_pod(pod, host)
        self.pods[uid]["metadata"]["ownerReferences"] = [REPLICA_SET]
        self.pods[uid]["metadata"]["labels"] = {"app": uid}

    def wait(self, uid: str, cpu: str, **spec: Any) -> None:
        self.pods[uid] = api_pod(make_pod(uid, cpu=cpu, memory="1Gi"), phase="Pending", **spec)

    def publish(self) -> None:
        """Write the pods, the nodes and their states to the API server."""
        for document in self.pods.values():
            self.server.put(document)
        for name, kubelet in self.kubelets.items():
            self.server.put(node(name, labels={"kubernetes.io/hostname": name}))
            self.server.put(kubelet.host_state(name))

    def ask(self, *arguments: str) -> Any:
        self.publish()
        with running_server(self.server):
            self.server.write_kubeconfig(self.config)
            return in_process("cluster", "plan", *arguments, "--kubeconfig", self.config)

    def plan(self, *arguments: str) -> Any:
        """Return the exit code, the steps in brief, and the document of the plan."""
        run = self.ask(*(arguments or ("new",)), "-o", "json")
        (plan,) = json.loads(run.stdout)["plans"]
        return (
            run.returncode,
            [f"{step['action']} {step['pod']['name']} {step['node']}" for step in plan["steps"]],
            plan,
        )

    def budget(self, allowed: int, *, observed: int = 1, **labels: str) -> None:
        metadata = {"name": f"budget-{allowed}-{'-'.join(labels)}", "namespace": "default"}
        spec = {"selector": {"matchLabels": labels}}
        status = {"disruptionsAllowed": allowed, "observedGeneration": observed}
        kind = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget"}
        self.server.put({**kind, "metadata": metadata, "spec": spec, "status": status})


@pytest.fixture
def cluster(tmp_path):
    return PlannedCluster(tmp_path)


def test_a_move_has_a_new_place(cluster):
    run = cluster.ask("new")

    assert run.returncode == 0
    assert run.stdout.startswith("Pod default/new needs 1 move\nProved minimal: no plan has fewer moves")
    for expected in (
        " 1. evict default/y from a ",
        " 2. the replacement of default/y goes to b, NUMA node 0, decided: app: CPUs 1-2",
        " 3. default/new goes to a, NUMA node 1, decided: app: CPUs 4-7",
    ):
        assert expected in " ".join(run.stdout.split())
    for title in ("a before", "a after", "b before", "b after"):
        assert f"\n{title}\n" in run.stdout


def test_the_document_has_every_step(cluster):
    code, steps, plan = cluster.plan()

    assert (code, steps) == (0, ["evict y a", "admit y b", "admit new a"])
    assert (plan["provedMinimal"], plan["atLeast"], plan["moves"]) == (True, 1, 1)
    assert plan["steps"][1]["replacement"]
    assert plan["steps"][2]["placements"][0]["nodes"] == "1"


@pytest.mark.parametrize(
    ("metadata", "spec", "reason"),
    [
        pytest.param({"ownerReferences": []}, {}, "1 without a controller", id="no controller"),
        pytest.param(
            {"ownerReferences": [{**REPLICA_SET, "kind": "DaemonSet"}]}, {}, "1 of DaemonSets", id="DaemonSet"
        ),
        pytest.param(
            {},
            {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "near"}}]},
            "with local volumes",
            id="local volume",
        ),
        pytest.param(
            {},
            {"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]},
            "a required spread",
            id="spread",
        ),
        pytest.param(
            {},
            {"affinity": {"podAntiAffinity": {REQUIRED: [{"topologyKey": "x"}]}}},
            "with required affinity to other pods",
            id="anti-affinity",
        ),
        pytest.param({}, {"priority": 2_000_000_000}, "of system priority", id="critical"),
    ],
)
def test_what_protects_a_pod(cluster, metadata, spec, reason):
    """Beside the rules for all pods: ``../kubernetes/manifests/test_disruption.py``."""
    cluster.pods["y"]["metadata"].update(metadata)
    cluster.pods["y"]["spec"].update(spec)
    volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "disk"}}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": {"volumeName": "disk"}}
    cluster.server.put({**volume, "spec": {"local": {"path": "/"}}})
    cluster.server.put({**claim, "metadata": {"name": "near", "namespace": "default"}})

    code, steps, plan = cluster.plan()

    assert (code, steps) == (1, [])
    assert reason in plan["problem"]


def test_local_volumes_can_be_allowed_and_remote_ones_do_not_matter(cluster):
    cluster.pods["y"]["spec"]["volumes"] = [
        {"name": "v", "emptyDir": {}},
        {"name": "w", "persistentVolumeClaim": {"claimName": "far"}},
    ]

    assert cluster.plan("new", "--allow-local-volumes")[0] == 0
    cluster.pods["y"]["spec"]["volumes"].pop(0)
    assert cluster.plan()[0] == 0


@pytest.mark.parametrize(("zone", "code"), [("a", 1), ("b", 0)])
def test_a_pod_moves_only_where_its_volumes_are(cluster, zone, code):
    terms = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [zone]}]}]
    spec = {"csi": {"driver": "x"}, "nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}
    cluster.server.put({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "disk"}, "spec": spec})
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": {"volumeName": "disk"}}
    cluster.server.put({**claim, "metadata": {"name": "data", "namespace": "default"}})
    cluster.pods["x"]["metadata"]["ownerReferences"] = []
    cluster.pods["y"]["spec"]["volumes"] = [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]

    assert cluster.plan()[0] == code


def test_volumes_that_may_not_be_read_protect_their_pods(cluster):
    cluster.pods["y"]["spec"]["volumes"] = [{"name": "w", "persistentVolumeClaim": {"claimName": "far"}}]
    forbidden = ApiFault(status=403, reason="Forbidden", message="persistentvolumes is forbidden", times=None)
    cluster.server.inject(forbidden, verb="list", resource=VOLUMES.plural)

    run = cluster.ask("new")

    assert run.returncode == 1
    assert "with volumes that may be local" in " ".join(run.stdout.split())
    assert "pods that depend on it are not evicted" in run.stderr


@pytest.mark.parametrize(
    ("allowed", "observed", "code"),
    [
        pytest.param(1, 1, 0, id="allowed"),
        pytest.param(0, 1, 1, id="forbidden"),
        pytest.param(1, 0, 1, id="a status that is outdated, as for the API server"),
    ],
)
def test_budgets_allow_or_forbid_an_eviction(cluster, allowed, observed, code):
    cluster.budget(allowed, app="y", observed=observed)

    assert cluster.plan()[0] == code


def test_a_pod_of_two_budgets_cannot_be_evicted(cluster):
    for allowed in (1, 2):
        cluster.budget(allowed, app="y")

    code, _, plan = cluster.plan()

    assert code == 1
    assert "1 covered by several PodDisruptionBudgets" in plan["problem"]


def test_a_namespace_can_be_exempt(cluster):
    code, _, plan = cluster.plan("new", "--exempt", "default")

    assert code == 1
    assert "2 in exempt namespaces" in plan["problem"]


def test_a_pod_of_lower_priority_ends_without_a_new_place_if_that_is_allowed(cluster):
    cluster.run("full", "b", "3")
    assert "the pods fit nowhere else" in cluster.plan()[2]["problem"]

    cluster.pods["new"]["spec"]["priority"] = 10
    assert cluster.plan("new", "--allow-preemption")[1] == ["evict y a", "admit new a"]
    for uid in ("x", "y", "z", "full"):
        cluster.pods[uid]["spec"]["priority"] = 10
    assert cluster.plan("new", "--allow-preemption")[0] == 1


def test_a_group_that_is_disrupted_as_a_whole_moves_whole(cluster):
    kind = {"apiVersion": GROUPS.api_version, "kind": "PodGroup", "metadata": {"name": "g", "namespace": "default"}}
    cluster.run("w", "b", "1")
    for uid in ("y", "w"):
        cluster.pods[uid]["spec"]["schedulingGroup"] = {"podGroupName": "g"}
    cluster.server.put({**kind, "spec": {"disruptionMode": {"all": {}}}})

    code, steps, plan = cluster.plan()
    assert (code, plan["moves"]) == (0, 2)
    assert {step for step in steps if step.startswith("evict")} == {"evict y a", "evict w b"}

    cluster.server.put({**kind, "spec": {"disruptionMode": {"single": {}}}})
    assert cluster.plan()[2]["moves"] == 1


def test_waiting_pods_of_one_group_are_planned_together(cluster):
    cluster.wait("new-1", "1")
    for uid in ("new", "new-1"):
        cluster.pods[uid]["spec"]["schedulingGroup"] = {"podGroupName": "gang"}

    code, steps, plan = cluster.plan()

    assert (code, plan["pods"]) == (0, 2)
    assert {step.split()[1] for step in steps if step.startswith("admit")} == {"new", "new-1", "y"}


def test_a_manifest_is_planned_with_all_its_replicas(cluster, tmp_path):
    manifest = tmp_path / "job.yaml"
    limits = "{cpu: '4', memory: 1Gi}"
    manifest.write_text(
        "apiVersion: batch/v1\nkind: Job\nmetadata: {name: train}\nspec:\n  parallelism: 2\n  template:\n    spec:\n"
        f"      containers: [{{name: app, image: x, resources: {{limits: {limits}}}}}]\n      restartPolicy: Never\n"
    )

    code, _, plan = cluster.plan("-f", str(manifest))

    assert (plan["name"], plan["pods"]) == ("Job default/train", 2)
    assert code == 1


@pytest.fixture
def shape(tmp_path):
    manifest = tmp_path / "shape.yaml"
    manifest.write_text(pod_manifest("big", cpu="4", memory="1Gi"))
    return str(manifest)


def test_defragmentation_lists_what_each_move_brings(cluster, shape):
    run = cluster.ask("--defragment", "--shape", shape)

    assert run.returncode == 0
    assert run.stdout.startswith("0 pods like default/big fit now, and 1 more after 1 move\n")
    assert "  1. evict default/y from a\n" in run.stdout

    document = json.loads(cluster.ask("--defragment", "--shape", shape, "-o", "json").stdout)
    assert (document["fitting"], document["gains"]) == (0, [{"moves": 1, "gained": 1}])


def test_where_no_move_helps_it_says_so(cluster, shape):
    run = cluster.ask("--defragment", "--shape", shape, "--exempt", "default")

    assert run.stdout == "0 pods like default/big fit now, and no move was found that lets more fit\n"


@pytest.mark.parametrize("arguments", [("--defragment",), ("new", "--shape", "x"), ("new", "-f", "x"), ()])
def test_one_question_at_a_time(cluster, arguments):
    run = cluster.ask(*arguments)

    assert run.returncode == 2
    assert "Give " in run.stderr


def test_a_pod_that_runs_needs_no_plan(cluster):
    run = cluster.ask("x")

    assert run.returncode == 2
    assert "pod default/x is bound to node a already" in run.stderr


@pytest.mark.parametrize(
    ("rules", "ignores"),
    [
        pytest.param([{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}], True, id="ignored"),
        pytest.param([{"action": "Count", "onPodConditions": [{"type": "DisruptionTarget"}]}], False, id="counted"),
        pytest.param(
            [
                {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [143]}},
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
            ],
            False,
            id="an exit code may decide first",
        ),
        pytest.param([], False, id="no rules"),
    ],
)
def test_jobs_that_ignore_evictions(rules, ignores):
    assert convert({"spec": {"podFailurePolicy": {"rules": rules}}}, Job).ignores_evictions is ignores
