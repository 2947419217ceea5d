import json

import pytest
import yaml
from hypothesis import given

from alignup.align.errors import PodError
from alignup.kubernetes.manifests.pod import read_pod
from alignup.kubernetes.manifests.workloads import read_paths, read_workloads
from alignup.kubernetes.podspec import PodManifest, pod_spec_of
from tests.kubernetes.manifests.podspec import parse
from tests.kubernetes.manifests.test_pod import written_as
from tests.strategies_pods import pods

POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: web
  uid: u1
  labels: {app: x}
  annotations:
  creationTimestamp: 2026-01-01T00:00:00Z
  lables: {}
spec:
  terminationGracePeriodSeconds: 0x10
  containers:
  - {name: app, image: "alpine:3", command: [echo, "1"], resources: {limits: {cpu: 1.50, memory: 1e3}}}
status: {phase: Running}
"""
DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop, labels: {team: y}}
spec:
  replicas: 2
  template:
    metadata: {labels: {app: x}}
    spec: {containers: [{name: app, image: "alpine:3"}]}
"""


def pods_in(text):
    (workload,) = read_workloads(text, name="some.yaml", keep=True).workloads
    return list(workload.pods())


def test_the_manifest_keeps_the_spelling_of_its_values():
    (pod,) = pods_in(POD)

    assert pod.manifest.text == (
        '{"metadata":{"name":"web","labels":{"app":"x"},"lables":{}},"spec":{"terminationGracePeriodSeconds":16,'
        '"containers":[{"name":"app","image":"alpine:3","command":["echo","1"],'
        '"resources":{"limits":{"cpu":1.5,"memory":1000}}}]}}'
    )


def test_pods_carry_no_manifest_by_default(tmp_path):
    file = tmp_path / "pod.yaml"
    file.write_text(POD)

    assert read_workloads(POD, name="some.yaml").workloads[0].pod.manifest is None
    assert read_paths([file]).workloads[0].pod.manifest is None
    assert read_paths([file], keep=True).workloads[0].pod.manifest == pods_in(POD)[0].manifest


def test_replicas_share_a_manifest_and_run_under_their_own_names():
    first, second = pods_in(DEPLOYMENT)

    assert first.manifest is second.manifest
    assert json.loads(first.manifest.text) == {
        "metadata": {"labels": {"app": "x"}, "name": "web", "namespace": "shop"},
        "spec": {"containers": [{"name": "app", "image": "alpine:3"}]},
    }
    specs = [pod_spec_of(pod).spec for pod in (first, second)]
    assert [(spec.name, spec.namespace, spec.labels) for spec in specs] == [
        ("web-0", "shop", {"app": "x"}),
        ("web-1", "shop", {"app": "x"}),
    ]


def test_a_manifest_is_parsed_once():
    (pod,) = pods_in(POD)
    restored = PodManifest(pod.manifest.text)

    assert pod.manifest.parsed is pod.manifest.parsed
    assert restored == pod.manifest
    assert restored.parsed == pod.manifest.parsed


def test_specs_are_compared_without_metadata():
    (pod,) = pods_in(POD)
    (relabeled,) = pods_in(POD.replace("app: x", "app: z"))
    (changed,) = pods_in(POD.replace("echo", "ls"))

    assert pod.manifest.same_spec(relabeled.manifest)
    assert not pod.manifest.same_spec(changed.manifest)


@pytest.mark.parametrize("number", ["9" * 5000, "1" + "0" * 5000 + ".5"])
def test_a_number_too_long_for_python_becomes_a_string(number):
    text = json.dumps(yaml.safe_load(POD), default=str).replace("1.5", number)

    (pod,) = pods_in(text)

    assert json.loads(pod.manifest.text)["spec"]["containers"][0]["resources"]["limits"]["cpu"] == number


@given(pods())
def test_every_pod_can_be_read_again_from_its_manifest(pod):
    document = {**written_as(pod), "status": {"phase": "Running"}}
    (found,) = pods_in(json.dumps(document))

    manifest = json.loads(found.manifest.text)
    again = read_pod({"apiVersion": "v1", "kind": "Pod", **manifest})
    assert (again.init, again.containers) == (pod.init, pod.containers)
    with pytest.raises(PodError) as rejection:
        parse(manifest)
    assert {problem.what for problem in rejection.value.problems} == {"Required value"}
    for one in manifest["spec"]["containers"] + manifest["spec"]["initContainers"]:
        one["image"] = "alpine:3"
    assert [each.name for each in parse(manifest).spec.containers] == [each.name for each in pod.all_containers]
