"""Pods of the API server as the observer counts them."""

from alignup.cluster.host_states import shortened
from alignup.cluster.join import join
from alignup.cluster.sources import known_pod
from alignup.kubeapi.client import _decode
from alignup.kubeapi.objects import ApiPod
from alignup.placement.report import PodStage
from alignup.schema.codec import encode
from tests.align.hosts import pod
from tests.cluster.kubelets import SimulatedKubelet


def api_pod(*, status=None, **metadata):
    document = {
        "metadata": {"name": "web", "namespace": "default", "uid": "u", **metadata},
        "spec": {"containers": [{"name": "app", "resources": {"requests": {"cpu": "1"}}}]},
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
