"""``alignup cluster plan --apply``: which Plan object is created, and when none is."""

import json

import pytest

from alignup.documents.codec import convert
from alignup.documents.plans import DEADLINE_SECONDS, Plan
from alignup.kubernetes.api.plan_resource import PLANS
from alignup.testing.api_server import ApiFault
from tests.cli.manifests import pod_manifest
from tests.cli.test_cluster_plan import REPLICA_SET, PlannedCluster
from tests.observe.api_objects import served

DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: trainer}
spec:
  replicas: 2
  selector: {matchLabels: {app: trainer}}
  template:
    metadata: {labels: {app: trainer}}
    spec:
      containers: [{name: app, image: x, resources: {limits: {cpu: '1', memory: 1Gi}}}]
"""


@pytest.fixture
def cluster(tmp_path):
    cluster = PlannedCluster(tmp_path)
    cluster.server.serve(served(PLANS, status=True))
    return cluster


def created(cluster: PlannedCluster) -> list[Plan]:
    return [convert(document, Plan) for document in cluster.server.objects(PLANS.plural)]


def steps(plan: Plan) -> list[str]:
    return [f"{step.action} {step.pod.name} {step.node} {step.numa_nodes}".strip() for step in plan.spec.steps]


def test_nothing_is_created_unless_asked_for(cluster):
    assert cluster.ask("new").returncode == 0
    assert created(cluster) == []
    assert not [request for request in cluster.server.requests if request.method != "GET"]


def test_a_plan_has_every_step_of_the_answer(cluster):
    run = cluster.ask("new", "--apply", "--allow-local-volumes", "--exempt", "kube-system", "--deadline", "60")

    (plan,) = created(cluster)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("Pod default/new needs 1 move\n")
    assert steps(plan) == ["Evict y a", "Admit y b 0", "Admit new a 1"]
    assert [step.replacement for step in plan.spec.steps] == [False, True, False]
    assert [(step.pod.namespace, step.pod.uid) for step in plan.spec.steps[:2]] == [("default", "y")] * 2
    assert plan.metadata.name.startswith("new-")
    assert plan.spec.replace(steps=()) == convert(
        {"deadlineSeconds": 60, "allowLocalVolumes": True, "exempt": ["kube-system"]}, type(plan.spec)
    )


def test_it_says_how_to_follow_and_to_cancel_the_plan(cluster):
    lines = cluster.ask("new", "--apply", "--name", "room").stdout.splitlines()

    assert sum(line.startswith("plan.alignup.dev/room created: ") for line in lines[-5:]) == 1
    assert [line.split(":", 1)[1].strip() for line in lines[-3:]] == [
        "kubectl get plan.alignup.dev/room",
        f"kubectl wait --for=condition=Complete plan.alignup.dev/room --timeout={DEADLINE_SECONDS}s",
        "kubectl delete plan.alignup.dev/room",
    ]


def test_the_document_has_the_object(cluster):
    document = json.loads(cluster.ask("new", "--apply", "-o", "json").stdout)

    (stored,) = cluster.server.objects(PLANS.plural)
    assert (document["object"]["apiVersion"], document["object"]["kind"]) == ("alignup.dev/v1alpha1", "Plan")
    assert document["object"]["metadata"]["uid"] == stored["metadata"]["uid"]
    assert document["object"]["spec"] == stored["spec"]
    assert document["plans"][0]["moves"] == 1


def test_without_a_plan_nothing_is_created(cluster):
    run = cluster.ask("new", "--apply", "--exempt", "default")

    assert (run.returncode, created(cluster)) == (1, [])
    assert "No plan for pod default/new" in run.stdout
    document = json.loads(cluster.ask("new", "--apply", "--exempt", "default", "-o", "json").stdout)
    assert document["object"] is None


def test_without_a_move_there_is_nothing_to_carry_out(cluster):
    cluster.wait("small", "1")

    run = cluster.ask("small", "--apply")

    assert (run.returncode, created(cluster)) == (0, [])
    assert "No Plan is created: there is nothing to evict." in run.stdout


def test_pods_that_are_named_get_one_plan(cluster):
    cluster.wait("other", "1")

    run = cluster.ask("new", "other", "--apply")

    (plan,) = created(cluster)
    assert run.stdout.startswith("Pod default/new and 1 more (2 pods) needs 1 move\n"), run.stdout
    assert {"new", "other"} <= {step.pod.name for step in plan.spec.steps if not step.replacement}


@pytest.fixture
def manifest(tmp_path):
    path = tmp_path / "trainer.yaml"
    path.write_text(DEPLOYMENT)
    return str(path)


def wait_for(cluster: PlannedCluster, *names: str) -> None:
    """Add pods of the Deployment that only node ``a`` can hold, where they need the room of ``y``."""
    for name in names:
        cluster.wait(name, "2", nodeSelector={"kubernetes.io/hostname": "a"})
        cluster.pods[name]["metadata"]["ownerReferences"] = [{**REPLICA_SET, "name": "trainer-5d8b"}]
        cluster.pods[name]["metadata"]["labels"] = {"app": "trainer", "pod-template-hash": "5d8b"}


def test_the_pods_of_a_manifest_must_exist(cluster, manifest):
    for count, names in (("2 pods of Deployment default/trainer do not", ()), ("1 pod of Deployment", ("one",))):
        wait_for(cluster, *names)
        run = cluster.ask("-f", manifest, "--apply")

        assert (run.returncode, created(cluster)) == (2, [])
        assert count in run.stderr
        assert "Apply the manifest first" in run.stderr


def test_a_plan_for_a_manifest_is_for_the_pods_that_exist(cluster, manifest):
    wait_for(cluster, "one", "two")
    cluster.wait("stranger", "4")

    run = cluster.ask("-f", manifest, "--apply")

    (plan,) = created(cluster)
    assert run.stdout.startswith("Deployment default/trainer (2 pods) needs 1 move\n"), run.stdout + run.stderr
    admitted = {step.pod.uid for step in plan.spec.steps if step.action == "Admit" and not step.replacement}
    assert admitted == {"one", "two"}
    assert plan.metadata.name.startswith("trainer-")


def test_a_pod_of_a_manifest_is_found_by_name(cluster, tmp_path):
    path = tmp_path / "pod.yaml"
    for name, code in (("missing", 2), ("new", 0), ("x", 2)):
        path.write_text(pod_manifest(name, cpu="4", memory="1Gi"))
        run = cluster.ask("-f", str(path), "--apply")
        assert run.returncode == code, run.stderr
    assert "pod default/x is bound to node a already" in run.stderr
    assert len(created(cluster)) == 1


def test_more_room_for_pods_of_a_shape_can_be_made(cluster, tmp_path):
    path = tmp_path / "shape.yaml"
    path.write_text(pod_manifest("big", cpu="4", memory="1Gi"))

    run = cluster.ask("--defragment", "--shape", str(path), "--apply")
    nothing = cluster.ask("--defragment", "--shape", str(path), "--exempt", "default", "--apply")

    (plan,) = created(cluster)
    assert (run.returncode, nothing.returncode) == (0, 1)
    assert steps(plan) == ["Evict y a", "Admit y b 0"]
    assert plan.metadata.name.startswith("defragment-")


@pytest.mark.parametrize(
    ("status", "reason", "message", "expected"),
    [
        pytest.param(404, "NotFound", "", "the cluster has no resource plans.alignup.dev", id="no definition"),
        pytest.param(403, "Forbidden", "plans is forbidden", "plans is forbidden", id="no permission"),
        pytest.param(
            403,
            "Forbidden",
            "policy 'alignup-plans' denied request: no permission to create pods/eviction for default/y",
            "no permission to create pods/eviction for default/y",
            id="not allowed to evict",
        ),
        pytest.param(409, "AlreadyExists", "", "Plan room exists already", id="a name that exists"),
        pytest.param(500, "InternalError", "no leader", "no leader", id="a failure"),
    ],
)
def test_a_refusal_is_explained(cluster, status, reason, message, expected):
    fault = ApiFault(status=status, reason=reason, message=message, times=None)
    cluster.server.inject(fault, verb="create", resource=PLANS.plural)

    run = cluster.ask("new", "--apply", "--name", "room")

    assert (run.returncode, created(cluster)) == (1, [])
    assert expected in " ".join(run.stderr.split())
    assert "Traceback" not in run.stderr


def test_a_name_that_kubernetes_refuses_is_invalid_input(cluster):
    message = 'Plan.alignup.dev "Room" is invalid: metadata.name: Invalid value'
    fault = ApiFault(status=422, reason="Invalid", message=message, times=None)
    cluster.server.inject(fault, verb="create", resource=PLANS.plural)

    run = cluster.ask("new", "--apply", "--name", "Room")

    assert run.returncode == 2
    assert f"--name: {message}" in " ".join(run.stderr.split())


@pytest.mark.parametrize(
    "arguments",
    [("new", "--deadline", "5"), ("new", "--name", "x"), ("new", "--apply", "--deadline", "86401")],
)
def test_options_that_do_not_fit_are_refused(cluster, arguments):
    assert cluster.ask(*arguments).returncode == 2
