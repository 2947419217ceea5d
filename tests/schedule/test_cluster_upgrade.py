"""Kubelets of another release on the nodes of a cluster."""

import pytest

from alignup.align.release import find_release
from alignup.documents.codec import convert
from alignup.kubernetes.api.objects import ApiNode, ApiPod
from alignup.schedule.cluster_upgrade import check_nodes
from tests.align.hosts import pod
from tests.observe.api_objects import api_pod, node, overflowing_pod, received
from tests.observe.kubelets import ObservedKubelet

PODS = [pod("young", cpu="2", memory="1Gi"), pod("old", cpu="4", memory="1Gi")]


def check(version: str, changes=None, *, present="v1.37.0"):
    """What kubelets of *version* make of a full node ``a`` and of ``b`` without observer."""
    kubelet = ObservedKubelet()
    documents = []
    for day, held in enumerate(PODS):
        kubelet.run(held)
        document = api_pod(held, "a")
        document["metadata"]["creationTimestamp"] = f"2026-01-0{9 - day}T00:00:00Z"
        documents.append(convert(document, ApiPod))
    state = kubelet.host_state("a")
    state["configuration"] = {**state["configuration"], **(changes or {})}
    nodes = [{**node(name), "status": {"nodeInfo": {"kubeletVersion": present}}} for name in ("b", "a")]
    states = [received(state)]
    return list(check_nodes([convert(each, ApiNode) for each in nodes], states, documents, find_release(version)))


def test_nothing_breaks_where_both_releases_decide_alike():
    (a, b) = check("1.36")

    assert (a.node, a.version, a.safe, a.checked) == ("a", "v1.37.0", True, 2)
    assert (b.node, b.safe, b.unknown) == ("b", False, "no HostState")


def test_pods_that_new_kubelets_reject_are_named_oldest_first():
    """Up to 1.36, a restarted kubelet checks under full-pcpus-only whether the container would fit once more."""
    options = {"cpuManagerPolicyOptions": {"full-pcpus-only": "true"}}

    (a, _) = check("1.36", options)

    assert [change.pod for change in a.pods] == ["default/old", "default/young"]
    assert a.pods[0].reason == "SMTAlignmentError"
    assert not a.pods[0].also_now
    (again, _) = check("1.35", options, present="v1.36.4")
    assert again.pods[0].also_now


def test_a_configuration_that_new_kubelets_refuse_is_named():
    gates = {"featureGates": {"PodLevelResourceManagers": True}}

    (a, _) = check("1.35", gates)

    assert "unrecognized feature gate: PodLevelResourceManagers" in a.refused[0]
    assert a.to_document()["safe"] is False


@pytest.mark.parametrize("present", ["v1.36.4", "v1.36.0"])
def test_patch_releases_are_the_same_release(present):
    (a, _) = check("1.36", present=present)

    assert a.safe


def test_a_node_with_a_pod_that_cannot_be_read_cannot_be_checked():
    nodes = [convert(node("a"), ApiNode)]
    states = [received(ObservedKubelet().host_state("a"))]
    pods = [convert(overflowing_pod("large", "a"), ApiPod)]

    (a,) = check_nodes(nodes, states, pods, find_release("1.36"))

    assert not a.safe
    assert a.unknown.startswith("pod default/large cannot be read: ")


def test_all_gates_that_are_set_are_checked():
    gates = {"featureGates": {"KubeletTracing": True, "JobManagedBy": True, "PodLevelResources": True}}

    (a, _) = check("1.38", gates)

    assert a.refused == ("featureGates[KubeletTracing]: unrecognized feature gate: KubeletTracing",)
    assert [warning.partition(" ")[0] for warning in a.warnings] == ["JobManagedBy"]
    assert not a.safe
    assert "a kubelet 1.38 does not start" in a.items(find_release("1.38"))[0].text


def test_a_gate_that_we_do_not_know_is_no_reason_not_to_answer():
    (a, _) = check("1.38", {"featureGates": {"GateOfADistribution": True}})

    assert a.unknown == ""
    assert "unrecognized feature gate: GateOfADistribution" in a.refused[0]


def test_gates_that_are_due_are_a_warning():
    (a, _) = check("1.38", {"featureGates": {"JobManagedBy": True}})

    assert a.safe
    assert a.warnings


def test_sub_ids_of_a_node_are_checked():
    kubelet = ObservedKubelet()
    nodes = [convert({**node("a"), "status": {"nodeInfo": {"kubeletVersion": "v1.37.0"}}}, ApiNode)]
    states = [received({**kubelet.host_state("a"), "subIds": {"subgid": "65536:4294901760"}})]

    (a,) = check_nodes(nodes, states, [], find_release("1.38"))

    assert a.refused == ("/etc/subgid: kubelet:65536:4294901760 ends at 4294967295, which is out of range",)


def test_pods_that_wait_and_get_another_answer_are_named():
    """1.38 takes a CPU of each core in turn."""
    kubelet = ObservedKubelet(
        shape="pack:1 numa:1 core:4 pu:2",
        cpuManagerPolicyOptions={"distribute-cpus-across-cores": "true"},
        featureGates={"CPUManagerPolicyAlphaOptions": True},
    )
    nodes = [convert({**node("a"), "status": {"nodeInfo": {"kubeletVersion": "v1.37.0"}}}, ApiNode)]
    waiting = [api_pod(pod(name, cpu="3", memory="1Gi"), "") for name in ("one", "two")]

    (a,) = check_nodes(
        nodes, [received(kubelet.host_state("a"))], [convert(each, ApiPod) for each in waiting], find_release("1.38")
    )

    (change,) = a.pods  # both have the same requests
    assert (change.waits, change.reason, change.message) == (True, "", "would get other resources from a kubelet 1.38")
    assert a.safe
