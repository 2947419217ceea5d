"""Pods of the API server: their uid, their stage, and what the kubelet has reported about them."""

import pytest

from alignup.documents.codec import encode
from alignup.kubernetes.api.client import _decode
from alignup.kubernetes.api.known_pods import api_pod_stage, known_pod, kubelet_uid
from alignup.kubernetes.api.objects import ApiPod
from alignup.placement.host_report import PodStage
from alignup.schedule.pod_trimmer import PodTrimmer

OWNER = {"apiVersion": "v1", "kind": "Node", "name": "a", "uid": "n", "controller": True}


def api_pod(*, status=None, policy="Always", container_policy="", **metadata):
    container = {"name": "app", "resources": {"requests": {"cpu": "1"}}, "restartPolicy": container_policy}
    document = {
        "metadata": {"name": "web", "namespace": "default", "uid": "u", **metadata},
        "spec": {"nodeName": "a", "containers": [container], "restartPolicy": policy},
        "status": {"phase": "Running", **(status or {})},
    }
    return _decode(encode(document), ApiPod)


def test_a_static_pod_has_the_uid_that_the_kubelet_uses():
    annotations = {"kubernetes.io/config.mirror": "h", "kubernetes.io/config.hash": "h", "note": "x"}

    known = known_pod(api_pod(annotations=annotations, labels={"a": "b"}, ownerReferences=[OWNER]))

    assert (known.pod.uid, known.name) == ("h", ("default", "web"))
    assert (known.pod.labels, known.pod.annotations) == ({}, {})
    assert known_pod(api_pod(annotations={"kubernetes.io/config.hash": "h"}, ownerReferences=[OWNER])).pod.uid == "u"


@pytest.mark.parametrize(
    "owners",
    [
        [],
        [{**OWNER, "name": "b"}],
        [{**OWNER, "kind": "ReplicaSet"}],
        [{**OWNER, "apiVersion": "apps/v1"}],
    ],
    ids=["no owner", "another node", "no node", "another group"],
)
def test_a_forged_mirror_pod_has_its_own_uid(owners):
    annotations = {"kubernetes.io/config.mirror": "h", "kubernetes.io/config.hash": "h"}
    assert kubelet_uid(api_pod(annotations=annotations, ownerReferences=owners)) == "u"


def test_a_mirror_pod_cannot_have_the_uid_of_a_pod_of_the_api_server():
    annotations = {"kubernetes.io/config.mirror": "h", "kubernetes.io/config.hash": "h"}
    mirror = api_pod(annotations=annotations, ownerReferences=[OWNER])
    assert (kubelet_uid(mirror, {"u", "x"}), kubelet_uid(mirror, {"u", "h"})) == ("h", "u")


def test_the_stage_follows_from_phase_and_deletion():
    ended = {"containerStatuses": [{"name": "app", "state": {"terminated": {"exitCode": 0}}}]}
    deleting = {"deletionTimestamp": "2026-01-01T00:00:00Z"}

    assert known_pod(api_pod()).stage is PodStage.RUNNING
    assert known_pod(api_pod(status=ended)).stage is PodStage.RUNNING
    assert known_pod(api_pod(**deleting)).stage is PodStage.TERMINATING
    assert known_pod(api_pod(status=ended, **deleting)).stage is PodStage.ENDED
    assert known_pod(api_pod(status={"phase": "Failed"})).finished


@pytest.mark.parametrize(
    ("policy", "codes", "stage"),
    [
        ("Never", [0], PodStage.TERMINATING),
        ("Never", [1, 0], PodStage.TERMINATING),
        ("Never", [None, 0], PodStage.RUNNING),
        ("Never", [], PodStage.RUNNING),
        ("OnFailure", [0, 0], PodStage.TERMINATING),
        ("OnFailure", [0, 1], PodStage.RUNNING),
        ("Always", [0], PodStage.RUNNING),
    ],
)
def test_a_pod_whose_containers_ended_for_good_may_have_released_its_resources(policy, codes, stage):
    """The phase becomes terminal only after the kubelet has freed everything."""
    states = [{} if code is None else {"terminated": {"exitCode": code}} for code in codes]
    status = {"containerStatuses": [{"name": str(number), "state": state} for number, state in enumerate(states)]}

    whole = api_pod(status=status, policy=policy)

    assert known_pod(whole).stage is stage
    assert api_pod_stage(PodTrimmer().trim(whole)) is stage
    assert known_pod(api_pod(status=status, policy=policy, container_policy="Always")).stage is PodStage.RUNNING
    if stage is PodStage.TERMINATING:
        assert known_pod(api_pod(status=status, policy=policy, deletionTimestamp="2026-01-01T00:00:00Z")).stage is stage
        assert known_pod(api_pod(status={**status, "phase": "Failed"}, policy=policy)).stage is PodStage.ENDED


def test_a_pod_is_reported_once_its_containers_are():
    waiting = [{"name": "app", "state": {"waiting": {}}}]

    assert not known_pod(api_pod(status={"phase": "Pending"})).reported
    assert known_pod(api_pod(status={"phase": "Pending", "containerStatuses": waiting})).reported
    assert known_pod(api_pod(status={"phase": "Pending", "initContainerStatuses": waiting})).reported
    assert known_pod(api_pod(status={"phase": "Failed"})).reported
