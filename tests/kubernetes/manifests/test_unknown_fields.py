"""Fields that no release of Kubernetes has: a problem with a proposal, as for ``kubectl apply``."""

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from alignup.align.errors import ManifestError, ProblemKind
from alignup.kubernetes.manifests.workloads import read_workloads
from tools import manifest_fields

TABLE = json.loads(manifest_fields.TABLE.read_text("utf-8"))


def pod(**container):
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web"},
        "spec": {"containers": [{"name": "app", **container}]},
    }


def deployment(**fields):
    template = {"metadata": {"labels": {"a": "b"}}, "spec": pod()["spec"]}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template, **fields}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec}


def problems_of(document):
    with pytest.raises(ManifestError) as rejection:
        read_workloads(yaml.safe_dump(document, sort_keys=False), name="a.yaml")
    assert {located.problem.kind for located in rejection.value.problems} == {ProblemKind.UNKNOWN_FIELD}
    return [str(located.problem) for located in rejection.value.problems]


@pytest.mark.parametrize(
    ("written", "field", "proposal"),
    [
        pytest.param(
            pod(resource={"limits": {"cpu": "1"}}), "spec.containers[0].resource", "resources", id="misspelled"
        ),
        pytest.param(
            pod(resources={"limit": {"cpu": "1"}}), "spec.containers[0].resources.limit", "limits", id="singular"
        ),
        pytest.param(pod(limits={"cpu": "1"}), "spec.containers[0].limits", "resources.limits", id="too far out"),
        pytest.param(pod(resources={"cpu": "1"}), "spec.containers[0].resources.cpu", "limits.cpu", id="a resource"),
        pytest.param(
            pod(resources={"example.com/gpu": "1"}),
            "spec.containers[0].resources[example.com/gpu]",
            "limits[example.com/gpu]",
            id="a device",
        ),
        pytest.param(pod(nodeName="a"), "spec.containers[0].nodeName", "spec.nodeName", id="too far in"),
        pytest.param(
            deployment(nodeselector={"a": "b"}),
            "spec.nodeselector",
            "template.spec.nodeSelector",
            id="of a template, and in another case",
        ),
        pytest.param(deployment(Replicas=3), "spec.Replicas", "replicas", id="another case"),
        pytest.param(pod() | {"spce": {}}, "spce", "spec", id="at the top"),
        pytest.param(pod(**{"a b": 1}), "spec.containers[0][a b]", "", id="not a name"),
    ],
)
def test_an_unknown_field_is_a_problem_with_a_proposal(written, field, proposal):
    assert problems_of(written) == [f"{field}: unknown field" + (f"; did you mean {proposal}?" if proposal else "")]


def test_the_line_is_that_of_the_field():
    text = yaml.safe_dump_all([pod(), pod(image="x", resource={"limits": {"cpu": "1"}})], sort_keys=False)

    with pytest.raises(ManifestError) as rejection:
        read_workloads(text, name="a.yaml")

    line = text.splitlines().index("    resource:") + 1
    assert str(rejection.value).startswith(f"a.yaml:{line}: spec.containers[0].resource: ")


def test_fields_with_arbitrary_keys_and_statuses_are_not_checked():
    written = pod(resources={"limits": {"example.com/gpu": 1}})
    written["metadata"] |= {"labels": {"any": "label"}, "annotations": {"any": "note"}}
    written["spec"]["nodeSelector"] = {"any": "label"}

    assert read_workloads(json.dumps({**written, "status": {"any": "thing"}}), name="a.json").warnings == ()


def test_unknown_fields_can_be_ignored_with_a_warning():
    loaded = read_workloads(yaml.safe_dump(pod(resource={})), name="a.yaml", ignore_unknown_fields=True)

    assert len(loaded.workloads) == 1
    (warning,) = loaded.warnings
    assert warning.endswith("ignored spec.containers[0].resource: unknown field; did you mean resources? (Pod web)")


def test_an_object_that_an_api_server_stored_may_have_newer_fields():
    written = pod(newField=1)
    written["metadata"]["uid"] = "1"

    loaded = read_workloads(json.dumps(written), name="a.json")

    assert loaded.warnings == ("a.json:1: ignored spec.containers[0].newField: unknown field (Pod web)",)


def test_pod_templates_of_custom_objects_may_have_fields_of_their_own():
    template = {"spec": {"containers": [{"name": "app", "resource": {}}], "pause": True}}
    written = {"apiVersion": "example.com/v1", "kind": "Farm", "metadata": {"name": "farm"}, "spec": {"pod": template}}

    loaded = read_workloads(yaml.safe_dump(written, sort_keys=False), name="a.yaml")

    assert [warning.partition(": ")[2] for warning in loaded.warnings[:2]] == [
        "ignored spec.pod.spec.containers[0].resource: unknown field; did you mean resources? (Farm farm)",
        "ignored spec.pod.spec.pause: unknown field (Farm farm)",
    ]


def test_steps_of_workflows_have_fields_of_their_own():
    step = {"name": "train", "script": {"image": "python", "source": "print()"}}
    written = {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {"name": "w"},
        "spec": {"templates": [step]},
    }

    assert not [
        warning for warning in read_workloads(json.dumps(written), name="a.json").warnings if "source" in warning
    ]


@given(st.data())
def test_every_field_of_the_table_is_known(data):
    """Build an object along the table, which must be free of problems at any depth."""

    def build(type_, depth):
        names = data.draw(st.lists(st.sampled_from(sorted(TABLE[type_])), max_size=3, unique=True))
        inner = {name: TABLE[type_][name] for name in names}
        return {name: build(below, depth - 1) if below and depth else None for name, below in inner.items()}

    spec = {**build("PodSpec", 6), "containers": [{**build("Container", 4), "name": "app"}]}
    try:
        read_workloads(json.dumps({**pod(), "spec": spec}), name="a.json")
    except ManifestError as error:
        assert not [problem for problem in error.problems if problem.problem.kind is ProblemKind.UNKNOWN_FIELD]


def test_the_table_has_every_type_that_it_names():
    named = {inner for fields in TABLE.values() for inner in fields.values() if inner}

    assert named <= TABLE.keys()


def test_the_table_is_read_from_openapi_documents():
    schemas = {
        "io.k8s.api.core.v1.Pod": {
            "properties": {
                "spec": {"allOf": [{"$ref": "#/components/schemas/io.k8s.api.core.v1.PodSpec"}]},
                "status": {"allOf": [{"$ref": "#/components/schemas/io.k8s.api.core.v1.PodStatus"}]},
            }
        },
        "io.k8s.api.core.v1.PodSpec": {
            "properties": {
                "containers": {"items": {"$ref": "#/components/schemas/io.k8s.api.core.v1.Container"}},
                "overhead": {"additionalProperties": {"$ref": "#/components/schemas/Quantity"}},
                "wait": {"$ref": "#/components/schemas/Quantity"},
            }
        },
        "io.k8s.api.core.v1.Container": {"properties": {"name": {"type": "string"}}},
        "Quantity": {"type": "string"},
    }

    assert manifest_fields.read_types({"components": {"schemas": schemas}}, ["core.v1.Pod"]) == {
        "Pod": {"spec": "PodSpec", "status": ""},
        "PodSpec": {"containers": "Container", "overhead": "", "wait": ""},
        "Container": {"name": ""},
    }
