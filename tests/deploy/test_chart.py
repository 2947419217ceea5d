"""The chart renders the objects of the kustomizations, and its values change what they say."""

import json
from typing import Any

import jsonschema_rs
import pytest
import yaml

import alignup
from tests.deploy.chart import CHART, default_values, render_chart, render_templates
from tests.deploy.manifests import (
    BASE,
    KUBERNETES,
    NRI_ASSIST,
    NRI_DECIDE,
    SCHEDULE,
    SCHEDULER,
    STEER,
    by_name,
    of_kind,
    read_documents,
    read_kustomization,
)

SCHEMA = json.loads((CHART / "values.schema.json").read_text("utf-8"))

#: Every value, other than its default.
CHANGED: dict[str, Any] = {
    "image": {"repository": "registry.example.com/alignup", "tag": "1", "pullPolicy": "Always"},
    "imagePullSecrets": [{"name": "key"}],
    "priorityClassName": "system-node-critical",
    "observe": {
        "kubeletDir": "/data/kubelet",
        "extraArgs": ["--fingerprint=all", 'a"b'],
        "steer": True,
        "subIds": True,
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
        "nodeSelector": {"numa": "true"},
        "tolerations": [{"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"}],
        "seLinuxOptions": {"type": "spc_t"},
        "ownNodeOnly": False,
    },
    "schedule": {
        "enabled": True,
        "replicas": 3,
        "extraArgs": ["--gate-patience=10"],
        "replaceStuck": True,
        "kueue": True,
        "resources": {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"memory": "2Gi"}},
    },
    "scheduler": {
        "enabled": True,
        "name": "numa",
        "replicas": 1,
        "kubeSchedulerImage": "registry.example.com/kube-scheduler:v1.35.0",
        "extraArgs": ["--offered=4"],
        "resources": {"requests": {"cpu": "2", "memory": "2Gi"}, "limits": {"memory": "2Gi"}},
    },
    "nri": {
        "enabled": True,
        "mode": "decide",
        "extraArgs": ["--policy=restricted"],
        "kubeletDir": "/data/kubelet",
        "socketDir": "/run/other",
        "resources": {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"memory": "2Gi"}},
        "nodeSelector": {"numa": "true"},
        "tolerations": [],
        "seLinuxOptions": {"type": "spc_t"},
    },
    "networkPolicy": {"enabled": True, "apiServerPorts": [8443]},
    "monitoring": {
        "podMonitors": True,
        "rules": True,
        "labels": {"release": "prometheus"},
        "documentation": "https://docs.example.org/alignup",
    },
}
ALL = {"schedule": {"enabled": True}, "scheduler": {"enabled": True}, "nri": {"enabled": True, "mode": "decide"}}


def test_the_defaults_render_the_kustomization_but_for_the_namespace_that_helm_creates():
    base = by_name(read_kustomization(BASE))
    del base["Namespace /alignup"]

    assert by_name(render_chart()) == base


def test_all_programs_render_all_kustomizations():
    directories = (BASE, SCHEDULE, SCHEDULER, NRI_DECIDE)
    expected = by_name(manifest for directory in directories for manifest in read_kustomization(directory))
    del expected["Namespace /alignup"]

    assert by_name(render_chart(ALL)) == expected


def test_only_a_gate_that_replaces_stuck_pods_may_evict_pods():
    (role, binding) = read_kustomization(KUBERNETES / "gate" / "replace-stuck")
    objects = render_chart({"schedule": {"enabled": True, "replaceStuck": True}})
    (deployment,) = (item for item in of_kind(objects, "Deployment") if item["metadata"]["name"] == "alignup-schedule")
    granted = [
        rule["resources"] for item in of_kind(render_chart(ALL), "ClusterRole", "Role") for rule in item["rules"]
    ]

    assert [role, binding] == [item for item in objects if item["metadata"]["name"] == "alignup-gate-replace-stuck"]
    assert "--gate-replace-stuck" in deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    assert ["pods/eviction"] not in granted


def test_only_steering_can_write_to_a_directory_of_the_kubelet():
    objects = render_chart({**ALL, "observe": {"steer": True}})
    daemon_set = by_name(objects)["DaemonSet alignup/alignup-observer"]
    (patch,) = read_documents((STEER / "daemonset.yaml").read_text("utf-8"))
    pod, patched = (item["spec"]["template"]["spec"] for item in (daemon_set, patch))
    writable = [mount for mount in pod["containers"][0]["volumeMounts"] if not mount.get("readOnly")]

    assert pod["containers"][0]["args"] == patched["containers"][0]["args"]
    assert writable == patched["containers"][0]["volumeMounts"]
    assert patched["volumes"][0] in pod["volumes"]
    added = [item for item in objects if item["metadata"]["name"].endswith("-steer")]
    assert by_name(added) == by_name(read_documents((STEER / "access.yaml").read_text("utf-8")))


def test_only_a_controller_of_admission_checks_may_write_workloads_of_kueue():
    kueue = read_kustomization(KUBERNETES / "kueue")
    objects = render_chart({"schedule": {"enabled": True, "kueue": True}})
    (deployment,) = (item for item in of_kind(objects, "Deployment") if item["metadata"]["name"] == "alignup-schedule")
    granted = [
        rule["apiGroups"] for item in of_kind(render_chart(ALL), "ClusterRole", "Role") for rule in item["rules"]
    ]

    assert by_name(kueue).items() <= by_name(objects).items()
    assert "--kueue" in deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    assert ["kueue.x-k8s.io"] not in granted


def test_the_namespace_is_that_of_the_release():
    objects = render_chart(ALL, namespace="numa")

    def namespaces(value):
        if isinstance(value, dict):
            named = [inner for name, inner in value.items() if name in {"namespace", "resourceNamespace"}]
            return {*named, *(namespace for inner in value.values() for namespace in namespaces(inner))}
        return {namespace for inner in value for namespace in namespaces(inner)} if isinstance(value, list) else set()

    (configuration,) = of_kind(objects, "ConfigMap")
    used = {
        name for manifest in objects if manifest["kind"] != "CustomResourceDefinition" for name in namespaces(manifest)
    }
    assert used | namespaces(yaml.safe_load(configuration["data"]["scheduler.yaml"])) == {"numa", "kube-system"}
    policy = by_name(objects)["ValidatingAdmissionPolicy /alignup-annotations"]
    assert "system:serviceaccount:numa:alignup-schedule" in policy["spec"]["matchConditions"][0]["expression"]


def test_the_chart_has_the_version_of_its_programs():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))

    assert chart["appVersion"] == alignup.__version__
    assert chart["version"] == alignup.__version__.replace(".dev", "-dev.")  # a semantic version


def test_values_change_the_observer():
    objects = render_chart(CHANGED)
    daemon_set = by_name(objects)["DaemonSet alignup/alignup-observer"]
    pod = daemon_set["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    values = CHANGED["observe"]

    assert container["image"] == "registry.example.com/alignup:1"
    assert container["imagePullPolicy"] == "Always"
    words = ["observe", "--listen=:9184", "--kubelet-dir=/data/kubelet", "--steer", "--etc=/etc-of-node"]
    assert container["args"] == [*words, *values["extraArgs"]]
    assert container["resources"] == values["resources"]
    assert container["securityContext"]["seLinuxOptions"] == {"type": "spc_t"}
    assert {mount["mountPath"].removeprefix("/data/kubelet") for mount in container["volumeMounts"]} == {
        *("", "/pods", "/plugins", "/device-plugins", "/etc-of-node")
    }
    assert pod["volumes"][0]["hostPath"]["path"] == "/data/kubelet"
    assert pod["nodeSelector"] == {"kubernetes.io/os": "linux", "numa": "true"}
    assert pod["tolerations"] == values["tolerations"]
    assert (pod["priorityClassName"], pod["imagePullSecrets"]) == ("system-node-critical", [{"name": "key"}])
    assert not of_kind(objects, "PriorityClass")
    policies = of_kind(objects, "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    assert {policy["metadata"]["name"] for policy in policies} == {"alignup-annotations", "alignup-gate"}
    ports = [
        [port["port"] for port in policy["spec"]["egress"][0]["ports"]] for policy in of_kind(objects, "NetworkPolicy")
    ]
    assert sorted(ports) == [[8443], [8443], [8443, 10250], [8443, 10250]]
    assert not of_kind(render_chart({**ALL, "networkPolicy": {"enabled": False}}), "NetworkPolicy")


def test_values_change_the_other_programs():
    objects = by_name(render_chart(CHANGED))
    schedule = objects["Deployment alignup/alignup-schedule"]["spec"]
    scheduler = objects["Deployment alignup/alignup-scheduler"]["spec"]
    (gate,) = schedule["template"]["spec"]["containers"]
    kube_scheduler, extender = scheduler["template"]["spec"]["containers"]

    assert (schedule["replicas"], scheduler["replicas"]) == (3, 1)
    assert (gate["args"][-1], extender["args"][-1]) == ("--gate-patience=10", "--offered=4")
    assert gate["resources"] == CHANGED["schedule"]["resources"]
    assert extender["resources"] == CHANGED["scheduler"]["resources"]
    assert kube_scheduler["image"] == "registry.example.com/kube-scheduler:v1.35.0"
    assert "- schedulerName: numa\n" in objects["ConfigMap alignup/alignup-scheduler"]["data"]["scheduler.yaml"]


def test_assist_mode_renders_its_kustomization():
    objects = by_name(render_chart({"nri": {"enabled": True}}))

    assert by_name(read_kustomization(NRI_ASSIST)).items() <= objects.items()


def test_values_change_the_nri_plugin():
    pod = by_name(render_chart(CHANGED))["DaemonSet alignup/alignup-nri"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    values = CHANGED["nri"]

    assert container["args"][-1] == "--policy=restricted"
    assert "--kubelet-dir=/data/kubelet" in container["args"]
    assert [volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume] == [
        "/run/other",
        "/var/lib/alignup-nri",
        "/data/kubelet",
    ]
    assert pod["nodeSelector"] == {"alignup.dev/nri": "decide", "kubernetes.io/os": "linux", "numa": "true"}
    assert "tolerations" not in pod
    assert container["resources"] == values["resources"]
    assert container["securityContext"]["seLinuxOptions"] == {"type": "spc_t"}


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
