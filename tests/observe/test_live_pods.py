"""Pods of the API server as the observer counts them."""

from dataclasses import replace

import pytest

from alignup.documents.codec import encode
from alignup.kubernetes.api.client import _decode
from alignup.kubernetes.api.host_states import shortened
from alignup.kubernetes.api.objects import ApiPod
from alignup.observe.kubelet_sources import api_pod_stage, known_pod
from alignup.observe.observation import AdmittingError, join
from alignup.placement.host_report import PodStage
from alignup.schedule.live_cluster import PodTrimmer
from tests.align.hosts import pod
from tests.observe.kubelets import SimulatedKubelet


def api_pod(*, status=None, policy="Always", own_policy="", **metadata):
    container = {"name": "app", "resources": {"requests": {"cpu": "1"}}, "restartPolicy": own_policy}
    document = {
        "metadata": {"name": "web", "namespace": "default", "uid": "u", **metadata},
        "spec": {"nodeName": "a", "containers": [container], "restartPolicy": policy},
        "status": {"phase": "Running", **(status or {})},
    }
    return _decode(encode(document), ApiPod)


def test_a_static_pod_has_the_uid_that_the_kubelet_uses():
    annotations = {"kubernetes.io/config.mirror": "h", "kubernetes.io/config.hash": "h", "note": "x"}

    found = known_pod(api_pod(annotations=annotations, labels={"a": "b"}))

    assert (found.pod.uid, found.name) == ("h", ("default", "web"))
    assert (found.pod.labels, found.pod.annotations) == ({}, {})
    assert known_pod(api_pod(annotations={"kubernetes.io/config.hash": "h"})).pod.uid == "u"


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
    status = {"containerStatuses": [{"name": str(number), "state": one} for number, one in enumerate(states)]}

    whole = api_pod(status=status, policy=policy)

    assert known_pod(whole).stage is stage
    assert api_pod_stage(PodTrimmer().trim(whole)) is stage
    assert known_pod(api_pod(status=status, policy=policy, own_policy="Always")).stage is PodStage.RUNNING
    if stage is PodStage.TERMINATING:
        assert known_pod(api_pod(status=status, policy=policy, deletionTimestamp="2026-01-01T00:00:00Z")).stage is stage
        assert known_pod(api_pod(status={**status, "phase": "Failed"}, policy=policy)).stage is PodStage.ENDED


def test_the_first_pod_of_a_kubelet_counts_after_its_admission():
    """Before, ``allocated_pods_state`` does not exist, and the kubelet lists the pod with nothing."""
    kubelet = SimulatedKubelet()
    idle = kubelet.files
    kubelet.admit(pod("a", gpu="1"))
    bound = {"a": replace(kubelet.pods["a"], reported=False)}
    nothing = tuple(replace(one, containers={}) for one in kubelet.listed)

    with pytest.raises(AdmittingError, match="pod default/a is being admitted"):
        join(kubelet.sources(files=idle, allocated=None, listed=nothing, pods=bound), settled=False)

    found = join(kubelet.sources(allocated=None, pods=bound), settled=False)
    assert found.host.ledger.devices.held == kubelet.host.ledger.devices.held


def test_a_pod_is_reported_once_its_containers_are():
    waiting = [{"name": "app", "state": {"waiting": {}}}]

    assert not known_pod(api_pod(status={"phase": "Pending"})).reported
    assert known_pod(api_pod(status={"phase": "Pending", "containerStatuses": waiting})).reported
    assert known_pod(api_pod(status={"phase": "Pending", "initContainerStatuses": waiting})).reported
    assert known_pod(api_pod(status={"phase": "Failed"})).reported


def test_an_older_kubelet_without_allocated_pods_counts_the_pods_that_it_lists():
    kubelet = SimulatedKubelet()
    for one in (pod("a", gpu="1"), pod("b", cpu="1")):
        kubelet.admit(one)
    bound = known_pod(api_pod())

    found = join(kubelet.sources(allocated=None, pods={**kubelet.pods, "u": bound}), settled=False)

    assert list(found.host.ledger.pods) == ["a", "b"]
    assert found.host.ledger.used == kubelet.host.ledger.used


def test_a_pod_of_which_only_the_holdings_are_known_counts_with_them():
    kubelet = SimulatedKubelet()
    kubelet.admit(pod("a", gpu="1"))

    found = join(kubelet.sources(allocated=None, pods=None), settled=False)

    assert found.host.ledger.pod_name("a") == "default/a"
    assert found.host.ledger.used == kubelet.host.ledger.used


def test_many_problems_are_shortened():
    assert shortened(["a", "b"]) == ["a", "b"]
    assert shortened([str(number) for number in range(25)])[-2:] == ["19", "and 5 more"]
