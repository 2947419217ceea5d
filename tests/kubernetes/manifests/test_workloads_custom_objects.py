"""Pod templates in objects of custom APIs, found by their shape."""

import json
from pathlib import Path

import pytest
import yaml

from alignup.align.errors import ManifestError
from alignup.kubernetes.manifests.pod_templates import find_templates
from alignup.kubernetes.manifests.workloads import read_paths, read_workloads

OBJECTS = Path(__file__).parent / "custom_objects"


def template(cpu="2"):
    limits = {"cpu": cpu, "memory": "1Gi"}
    return {"spec": {"containers": [{"name": "app", "resources": {"limits": limits}}]}}


TEMPLATE = template()


def load(name):
    return read_paths([OBJECTS / name])


def custom(**spec):
    return {"apiVersion": "example.com/v1", "kind": "Farm", "metadata": {"name": "farm"}, "spec": spec}


def read(value):
    return read_workloads(json.dumps(value), name="some.json")


def paths(value):
    return [template.path for template in find_templates(value)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("jobset.yaml", {"pretrain: driver": 1, "pretrain: workers": 8}),
        ("leaderworkerset.yaml", {"serving: leader": 3, "serving: worker": 9}),
        ("pytorchjob.yaml", {"trainer: Master": 1, "trainer: Worker": 3}),
        ("mpijob.yaml", {"simulation: Launcher": 1, "simulation: Worker": 2}),
        ("trainjob.yaml", {}),
        ("trainingruntime.yaml", {"torch-distributed": 1}),
        ("raycluster.yaml", {"tuning: head": 1, "tuning: gpu": 4, "tuning: cpu": 1}),
        ("volcanojob.yaml", {"render: master": 1, "render: render": 2}),
        ("workflow.yaml", {"nightly: load": 1, "nightly: train": 1}),
        ("knativeservice.yaml", {"hello": 1}),
    ],
)
def test_the_templates_of_known_objects_are_found_with_their_counts(name, expected):
    assert {workload.title: workload.replicas for workload in load(name).workloads} == expected


def test_counts_are_shown_with_the_field_they_come_from():
    (warning,) = load("raycluster.yaml").warnings

    assert warning == (
        f"{OBJECTS}/raycluster.yaml:1: RayCluster tuning has 3 pod templates: head (1 pod: no count found), "
        "gpu (4 pods: spec.workerGroupSpecs[0].replicas * spec.workerGroupSpecs[0].numOfHosts), "
        "cpu (1 pod: spec.workerGroupSpecs[1].minReplicas)"
    )


def test_an_object_without_a_template_is_said_to_have_none():
    (warning,) = read(custom(replicas=1)).warnings

    assert warning.endswith("no pod template found in it")


def test_a_train_job_without_its_runtime_is_said_to_need_it():
    (warning,) = load("trainjob.yaml").warnings

    assert warning.endswith(
        "skipped TrainJob finetune: its pods are described by ClusterTrainingRuntime torch-distributed; "
        "give that object, too"
    )


def runtime(**changes):
    container = {"name": "node", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}
    prepare = {"name": "prepare", "template": {"spec": {"template": {"spec": {"containers": [{"name": "load"}]}}}}}
    trainer = {"name": "node", "template": {"spec": {"template": {"spec": {"containers": [container]}}}}}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": "torch-distributed"},
        "spec": {"mlPolicy": {"numNodes": 2}, "template": {"spec": {"replicatedJobs": [prepare, trainer]}}},
        **changes,
    }


def train_job(**trainer):
    spec = {"runtimeRef": {"name": "torch-distributed"}, "trainer": trainer}
    metadata = {"name": "finetune", "namespace": "ml"}
    return {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "metadata": metadata, "spec": spec}


@pytest.mark.parametrize("order", [1, -1])
def test_a_train_job_has_the_pods_of_its_runtime(order):
    job = train_job(numNodes=4, resourcesPerNode={"limits": {"cpu": "8"}})
    loaded = read({"apiVersion": "v1", "kind": "List", "items": [job, runtime()][::order]})

    assert {workload.title: workload.replicas for workload in loaded.workloads} == {
        "finetune: prepare": 1,
        "finetune: node": 4,
    }
    trainer = loaded.workloads[1].pod
    assert (trainer.namespace, trainer.name) == ("ml", "finetune-node-0")
    assert {name: str(amount) for name, amount in trainer.containers[0].resources.limits.items()} == {"cpu": "8"}


def test_a_train_job_may_change_nothing_of_its_runtime():
    job = train_job()
    job["spec"]["runtimeRef"]["kind"] = "TrainingRuntime"
    metadata = {"name": "torch-distributed", "namespace": "ml"}
    loaded = read(
        {"apiVersion": "v1", "kind": "List", "items": [runtime(kind="TrainingRuntime", metadata=metadata), job]}
    )

    assert [workload.replicas for workload in loaded.workloads] == [1, 2]
    assert loaded.workloads[1].pod.containers[0].resources.limits["cpu"].value() == 1


@pytest.mark.parametrize(
    "broken",
    [
        {"spec": None},
        {"spec": {"template": {"spec": {"replicatedJobs": "x"}}}},
        {"spec": {"template": {"spec": {"replicatedJobs": ["x", {"name": "node"}]}}}},
        {
            "spec": {
                "template": {"spec": {"replicatedJobs": [{"name": "node", "template": {"spec": {"template": "x"}}}]}}
            }
        },
    ],
)
def test_a_broken_runtime_has_no_pods(broken):
    job = train_job(numNodes=4, resourcesPerNode={"limits": {"cpu": "8"}})
    loaded = read({"apiVersion": "v1", "kind": "List", "items": [runtime(**broken), job]})

    assert loaded.workloads == ()
    assert loaded.warnings[-1].endswith("no pod template found in it")


def test_pods_are_named_after_object_and_template():
    _, worker = load("pytorchjob.yaml").workloads

    assert [pod.name for pod in worker.pods()] == ["trainer-worker-0", "trainer-worker-1", "trainer-worker-2"]
    assert len({pod.uid for pod in worker.pods()}) == 3
    assert worker.source.line == 20


def test_the_main_container_of_a_workflow_step_comes_with_its_sidecars():
    _, train = load("workflow.yaml").workloads

    assert [container.name for container in train.pod.containers] == ["main", "metrics"]


def test_metadata_of_the_template_is_kept():
    _, workers = load("jobset.yaml").workloads

    assert workers.pod.labels == {"role": "worker"}


@pytest.mark.parametrize(
    "containers",
    [
        pytest.param([], id="empty"),
        pytest.param("app", id="not a list"),
        pytest.param([{"image": "x"}], id="without a name"),
        pytest.param([{"name": "*"}], id="a pattern, as policies have"),
        pytest.param([{"name": "app"}, "x"], id="not all objects"),
    ],
)
def test_other_shapes_are_no_templates(containers):
    assert paths(custom(template={"spec": {"containers": containers}})) == []


def test_the_status_of_an_object_is_not_searched():
    assert paths({**custom(template=TEMPLATE), "status": {"applied": TEMPLATE}}) == ["spec.template"]


def test_templates_with_the_same_name_are_numbered():
    templates = find_templates(custom(blue={"template": TEMPLATE}, green={"blue": {"template": TEMPLATE}}))

    assert [(template.label, template.suffix) for template in templates] == [("blue", "-blue"), ("blue-2", "-blue-2")]


def test_items_without_a_name_are_named_by_their_list():
    templates = find_templates(custom(pools=[{"template": TEMPLATE}, {"template": TEMPLATE}]))

    assert [(template.path, template.label) for template in templates] == [
        ("spec.pools[0].template", "pools-0"),
        ("spec.pools[1].template", "pools-1"),
    ]


def test_problems_have_the_path_in_the_object():
    spec = {"gpu-pool": {"template": template(cpu="many")}}

    with pytest.raises(ManifestError) as raised:
        read_workloads(yaml.safe_dump(custom(**spec), sort_keys=False), name="some.yaml")

    (line,) = raised.value.lines()
    assert line.startswith("some.yaml:13: spec[gpu-pool].template.spec.containers[0].resources")
    assert '(got "many")' in line


def test_templates_with_placeholders_are_skipped():
    loaded = read(custom(one={"template": TEMPLATE}, two={"template": template(cpu="{{inputs.cpu}}")}))

    assert [workload.title for workload in loaded.workloads] == ["farm: one"]
    assert "some.json: skipped Farm farm: spec.two.template has placeholders" in loaded.warnings


def test_too_many_pods_are_refused():
    with pytest.raises(ManifestError, match="100000000 pods are too many"):
        read(custom(replicas=10_000, pool={"replicas": 10_000, "template": TEMPLATE}))


def test_negative_and_wrong_counts_are_ignored():
    (workload,) = read(custom(replicas=-1, pool={"replicas": "two", "template": TEMPLATE})).workloads

    assert workload.replicas == 1


def test_objects_whose_pods_are_listed_are_skipped_with_all_templates():
    job = yaml.safe_load((OBJECTS / "pytorchjob.yaml").read_text())
    owner = {"kind": "PyTorchJob", "name": "trainer", "apiVersion": "kubeflow.org/v1"}
    metadata = {"name": "trainer-worker-0", "namespace": "ml", "ownerReferences": [owner]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, **TEMPLATE}

    loaded = read({"apiVersion": "v1", "kind": "List", "items": [job, pod]})

    assert [workload.kind for workload in loaded.workloads] == ["Pod"]
