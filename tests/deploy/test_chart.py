"""The chart renders the objects of the kustomizations, and its values change what they say."""

import json
import os
import subprocess
from pathlib import Path
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
    PLANS,
    SCHEDULE,
    SCHEDULER,
    STEER,
    Manifest,
    by_name,
    find_program,
    of_kind,
    read_documents,
    read_kustomization,
)

KUBECTL = find_program("kubectl")
SCHEMA = json.loads((CHART / "values.schema.json").read_text("utf-8"))

#: Every value, other than its default.
CHANGED: dict[str, Any] = {
    "image": {"repository": "registry.example.com/alignup", "tag": "1", "pullPolicy": "Always"},
    "imagePullSecrets": [{"name": "key"}],
    "priorityClassName": "system-node-critical",
    "pluginRules": {"nvidia.com/gpu": "nvidia", "amd.com/gpu": "amd"},
    "observe": {
        "kubeletDir": "/data/kubelet",
        "extraArgs": ["--fingerprint=all", 'a"b'],
        "steer": True,
        "subIds": True,
        "cdi": True,
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
        "certificates": "cert-manager",
        "failurePolicy": "Fail",
        "warnings": True,
        "kueue": True,
        "kueueCheck": "numa",
        "plans": True,
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

    assert by_name(map(without_hook, render_chart(ALL))) == expected


def without_hook(manifest: Manifest) -> Manifest:
    """Return an object without the annotations by which Helm runs it after an installation, and removes it."""
    metadata = {name: value for name, value in manifest["metadata"].items() if name != "annotations"}
    annotations = manifest["metadata"].get("annotations", {})
    others = {name: value for name, value in annotations.items() if not name.startswith("helm.sh/")}
    return {**manifest, "metadata": {**metadata, **({"annotations": others} if others else {})}}


def test_helm_removes_everything_that_may_write_webhook_configurations_after_the_job():
    hooks = {
        key: manifest["metadata"]["annotations"]
        for key, manifest in by_name(render_chart(ALL)).items()
        if "helm.sh/hook" in manifest["metadata"].get("annotations", {})
    }
    job = hooks.pop(f"Job alignup/alignup-certificates-{alignup.__version__.replace('.', '-')}")

    assert {key.rpartition("/")[2] for key in hooks} == {"alignup-certificates"}
    assert {key.split()[0] for key in hooks} >= {"ServiceAccount", "Role", "ClusterRole", "ClusterRoleBinding"}
    assert {annotations["helm.sh/hook"] for annotations in (job, *hooks.values())} == {"post-install,post-upgrade"}
    assert {annotations["helm.sh/hook-delete-policy"] for annotations in (job, *hooks.values())} == {
        "before-hook-creation,hook-succeeded"
    }
    assert all(int(item["helm.sh/hook-weight"]) < int(job["helm.sh/hook-weight"]) for item in hooks.values())


CERT_MANAGER = {"schedule": {"enabled": True, "certificates": "cert-manager"}}


def test_with_cert_manager_the_service_has_no_right_to_secrets_and_there_is_no_job():
    objects = render_chart(CERT_MANAGER)
    roles = of_kind(objects, "Role", "ClusterRole")
    deployment = by_name(objects)["Deployment alignup/alignup-schedule"]["spec"]["template"]["spec"]
    (container,) = deployment["containers"]
    (patch,) = read_documents((KUBERNETES / "cert-manager" / "deployment.yaml").read_text("utf-8"))
    patched = patch["spec"]["template"]["spec"]
    (annotated,) = read_documents((KUBERNETES / "cert-manager" / "webhook.yaml").read_text("utf-8"))
    (configuration,) = of_kind(objects, "MutatingWebhookConfiguration")
    resources = {resource for role in roles for rule in role["rules"] for resource in rule["resources"]}
    certificates = read_documents((KUBERNETES / "cert-manager" / "certificate.yaml").read_text("utf-8"))

    assert not resources & {"secrets", "mutatingwebhookconfigurations"}
    assert not of_kind(objects, "Job")
    assert {key: container[key] for key in ("args", "volumeMounts")} == {
        key: patched["containers"][0][key] for key in ("args", "volumeMounts")
    }
    assert deployment["volumes"] == patched["volumes"]
    assert configuration["metadata"]["annotations"] == annotated["metadata"]["annotations"]
    assert by_name(of_kind(objects, "Certificate", "Issuer")) == by_name(certificates)


@pytest.mark.skipif(KUBECTL is None, reason="not installed: kubectl")
@pytest.mark.parametrize("warnings", [False, True])
def test_the_component_of_cert_manager_makes_the_objects_of_the_chart(tmp_path, warnings):
    place = Path(os.path.relpath(KUBERNETES, tmp_path))
    resources = [str(place / "schedule"), *([str(place / "warnings")] if warnings else [])]
    kustomization = {"resources": resources, "components": [str(place / "cert-manager")]}
    (tmp_path / "kustomization.yaml").write_text(json.dumps(kustomization))
    words = [KUBECTL or "", "kustomize", tmp_path]
    built = subprocess.run(words, check=True, capture_output=True, text=True).stdout  # noqa: S603
    base = by_name(read_kustomization(BASE))
    values = {"schedule": {**CERT_MANAGER["schedule"], "warnings": warnings}}

    rendered = {key: value for key, value in by_name(render_chart(values)).items() if key not in base}
    assert by_name(read_documents(built)) == rendered


def test_the_failure_policy_of_all_webhooks_is_a_value():
    for policy in ("Ignore", "Fail"):
        objects = render_chart({"schedule": {"enabled": True, "failurePolicy": policy}})
        (configuration,) = of_kind(objects, "MutatingWebhookConfiguration")
        assert {webhook["failurePolicy"] for webhook in configuration["webhooks"]} == {policy}


WARNINGS = KUBERNETES / "warnings"


def test_warnings_at_kubectl_apply_are_off_unless_a_value_turns_them_on():
    objects = render_chart({"schedule": {"enabled": True, "warnings": True}})
    (annotated,) = of_kind(
        render_chart({"schedule": {**CERT_MANAGER["schedule"], "warnings": True}}), "ValidatingWebhookConfiguration"
    )

    assert of_kind(render_chart(ALL), "ValidatingWebhookConfiguration") == []
    assert of_kind(objects, "ValidatingWebhookConfiguration") == read_kustomization(WARNINGS)
    assert annotated["metadata"]["annotations"] == {"cert-manager.io/inject-ca-from": "alignup/alignup-webhook"}


def test_another_name_of_the_admission_check_is_the_one_that_the_service_may_write():
    objects = by_name(render_chart(CHANGED))
    kueue = by_name(read_kustomization(KUBERNETES / "kueue"))
    del kueue["AdmissionCheck /alignup"]

    assert "AdmissionCheck /numa" in objects
    for key, manifest in kueue.items():
        renamed = json.dumps(manifest).replace('\\"alignup\\"', '\\"numa\\"').replace('["alignup"]', '["numa"]')
        assert objects[key] == json.loads(renamed)


@pytest.mark.parametrize(
    ("value", "expected", "rights", "flag"),
    [
        pytest.param(
            "replaceStuck",
            read_kustomization(KUBERNETES / "gate" / "replace-stuck"),
            {"pods/eviction"},
            "--gate-replace-stuck",
            id="evict pods that cannot start",
        ),
        pytest.param(
            "plans",
            read_documents((PLANS / "access.yaml").read_text("utf-8")),
            {"pods/eviction", "plans", "plans/status"},
            "--plans",
            id="evict the pods of plans",
        ),
        pytest.param(
            "kueue",
            read_kustomization(KUBERNETES / "kueue"),
            {"kueue.x-k8s.io"},
            "--kueue",
            id="write workloads of Kueue",
        ),
    ],
)
def test_only_a_service_with_a_value_may_do_something(value, expected, rights, flag):
    objects = by_name(render_chart({"schedule": {"enabled": True, value: True}}))
    without = by_name(render_chart({"schedule": {"enabled": True}}))
    granted = {
        name
        for role in of_kind(render_chart(ALL), "ClusterRole", "Role")
        for rule in role["rules"]
        for name in (*rule["apiGroups"], *rule["resources"])
    }

    assert {key: objects[key] for key in objects.keys() - without.keys()} == by_name(expected)
    (container,) = objects["Deployment alignup/alignup-schedule"]["spec"]["template"]["spec"]["containers"]
    assert flag in container["args"]
    assert not granted & rights


@pytest.mark.skipif(KUBECTL is None, reason="not installed: kubectl")
@pytest.mark.parametrize("certificates", ["job", "cert-manager"])
def test_the_component_of_plans_makes_the_objects_of_the_chart(tmp_path, certificates):
    place = Path(os.path.relpath(KUBERNETES, tmp_path))
    components = ["plans", *(["cert-manager"] if certificates == "cert-manager" else [])]
    kustomization = {
        "resources": [str(place), str(place / "schedule")],
        "components": [str(place / name) for name in reversed(components)],
    }
    (tmp_path / "kustomization.yaml").write_text(json.dumps(kustomization))
    words = [KUBECTL or "", "kustomize", tmp_path]
    built = by_name(read_documents(subprocess.run(words, check=True, capture_output=True, text=True).stdout))  # noqa: S603
    del built["Namespace /alignup"]

    values = {"schedule": {"enabled": True, "plans": True, "certificates": certificates}}
    assert built == by_name(map(without_hook, render_chart(values)))


@pytest.mark.parametrize("values", [{}, ALL, {"schedule": {"enabled": True, "plans": True}}])
def test_the_creator_of_a_plan_is_checked_even_before_plans_are_carried_out(values):
    """A plan could be older than the service."""
    names = {
        item["metadata"]["name"]
        for item in of_kind(render_chart(values), "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    }

    assert "alignup-plans" in names


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
        *("", "/pods", "/plugins", "/device-plugins", "/etc-of-node", "/etc/cdi", "/var/run/cdi")
    }
    writable = [mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")]
    assert writable == ["/data/kubelet/device-plugins"]
    assert pod["volumes"][0]["hostPath"]["path"] == "/data/kubelet"
    assert pod["nodeSelector"] == {"kubernetes.io/os": "linux", "numa": "true"}
    assert pod["tolerations"] == values["tolerations"]
    assert (pod["priorityClassName"], pod["imagePullSecrets"]) == ("system-node-critical", [{"name": "key"}])
    assert not of_kind(objects, "PriorityClass")
    policies = of_kind(objects, "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    assert {policy["metadata"]["name"] for policy in policies} == {
        *("alignup-annotations", "alignup-gate", "alignup-kueue", "alignup-plans")
    }
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
    rules = ["--plugin-rule=amd.com/gpu=amd", "--plugin-rule=nvidia.com/gpu=nvidia"]
    assert gate["args"][-3:-1] == extender["args"][-3:-1] == rules
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
        if isinstance(values, dict) and "properties" in described:
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
