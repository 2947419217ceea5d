"""The chart renders the objects of the kustomizations, and its values change what they say."""

import json
import subprocess
from typing import Any

import jsonschema_rs
import pytest
import yaml

import alignup
from tests.deploy.chart import CHART, default_values, render, render_chart, render_templates
from tests.deploy.manifests import BASE, by_name, find_program, of_kind, read_documents, read_kustomization

HELM = find_program("helm")
SCHEMA = json.loads((CHART / "values.schema.json").read_text("utf-8"))

#: Every value, other than its default.
CHANGED: dict[str, Any] = {
    "image": {"repository": "registry.example.com/alignup", "tag": "1", "pullPolicy": "Always"},
    "imagePullSecrets": [{"name": "key"}],
    "observe": {
        "kubeletDir": "/data/kubelet",
        "extraArgs": ["--fingerprint=all", 'a"b'],
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
        "nodeSelector": {"numa": "true"},
        "tolerations": [{"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"}],
        "priorityClassName": "system-node-critical",
        "seLinuxOptions": {"type": "spc_t"},
        "ownNodeOnly": False,
    },
    "networkPolicy": {"enabled": True, "apiServerPorts": [8443]},
}


def test_the_defaults_render_the_kustomization_but_for_the_namespace_that_helm_creates():
    base = by_name(read_kustomization(BASE))
    del base["Namespace /alignup"]

    assert by_name(render_chart()) == base


def test_the_namespace_is_that_of_the_release():
    objects = render_chart(namespace="numa")

    assert {one["metadata"]["namespace"] for one in objects if "namespace" in one["metadata"]} == {"numa"}
    assert [one["subjects"][0]["namespace"] for one in of_kind(objects, "ClusterRoleBinding")] == ["numa"]


def test_the_chart_has_the_version_of_its_programs():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))

    assert chart["appVersion"] == alignup.__version__
    assert chart["version"] == alignup.__version__.replace(".dev", "-dev.")  # a semantic version


def test_values_change_the_observer():
    objects = render_chart(CHANGED)
    (daemon_set,) = of_kind(objects, "DaemonSet")
    pod = daemon_set["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    values = CHANGED["observe"]

    assert container["image"] == "registry.example.com/alignup:1"
    assert container["imagePullPolicy"] == "Always"
    assert container["args"] == ["observe", "--listen=:9184", "--kubelet-dir=/data/kubelet", *values["extraArgs"]]
    assert container["resources"] == values["resources"]
    assert container["securityContext"]["seLinuxOptions"] == {"type": "spc_t"}
    assert {one["mountPath"].removeprefix("/data/kubelet") for one in container["volumeMounts"]} == {
        *("", "/pods", "/plugins")
    }
    assert pod["volumes"][0]["hostPath"]["path"] == "/data/kubelet"
    assert pod["nodeSelector"] == {"kubernetes.io/os": "linux", "numa": "true"}
    assert pod["tolerations"] == values["tolerations"]
    assert (pod["priorityClassName"], pod["imagePullSecrets"]) == ("system-node-critical", [{"name": "key"}])
    kinds = {one["kind"] for one in objects}
    assert not kinds & {"PriorityClass", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
    (policy,) = of_kind(objects, "NetworkPolicy")
    assert [one["port"] for one in policy["spec"]["egress"][0]["ports"]] == [8443, 10250]
    assert not of_kind(render_chart({"networkPolicy": {"enabled": False}}), "NetworkPolicy")


def test_the_schema_accepts_the_defaults_and_every_other_value():
    for values in (default_values(), CHANGED):
        jsonschema_rs.validate(SCHEMA, values)

    for group, values in default_values().items():
        described = SCHEMA["properties"][group]
        if isinstance(values, dict):
            assert values.keys() == described["properties"].keys() == CHANGED[group].keys()


@pytest.mark.parametrize(
    "values",
    [
        {"observer": {}},
        {"image": {"repository": "a", "tag": 1, "pullPolicy": "Always"}},
        {"observe": {"kubeletDir": "var/lib/kubelet", "resources": {}}},
        {"networkPolicy": {"enabled": True, "apiServerPorts": ["https"]}},
    ],
    ids=["an unknown name", "a number as a tag", "a relative directory", "a port by name"],
)
def test_the_schema_refuses_mistakes(values):
    with pytest.raises(jsonschema_rs.ValidationError):
        jsonschema_rs.validate(SCHEMA, values)


def test_the_notes_name_the_namespace():
    assert "--namespace numa rollout status" in render_templates(namespace="numa")["NOTES.txt"]


def test_constructs_that_are_not_known_are_errors():
    for template in ("{{ lookup 1 }}", '{{ printf "%s" 1 }}', "{{ if .a }}"):
        with pytest.raises((AssertionError, KeyError, ValueError)):
            render(template, {"a": 1})


@pytest.mark.skipif(HELM is None, reason="not installed: helm")
@pytest.mark.parametrize("values", [{}, CHANGED], ids=["defaults", "changed"])
def test_helm_renders_the_same(values, tmp_path):
    (tmp_path / "values.yaml").write_text(json.dumps(values))
    words = ["template", "alignup", CHART, "--namespace", "numa", "--include-crds", "-f", tmp_path / "values.yaml"]
    done = subprocess.run([HELM or "", *words], check=True, capture_output=True, text=True)  # noqa: S603

    assert by_name(read_documents(done.stdout)) == by_name(render_chart(values, namespace="numa"))
