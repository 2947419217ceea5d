"""The state of a cluster from its objects, and what nodes answer to pods."""

import subprocess
import sys
from dataclasses import replace

import pytest

from alignup.align.machine import Device
from alignup.align.workload import Pod
from alignup.documents.codec import convert
from alignup.kubernetes.api import NODES, PODS
from alignup.kubernetes.api.objects import ApiPodSpec
from alignup.schedule.cluster_snapshot import NO_HOST_STATE, build_view, present_host, summarize
from alignup.schedule.pod_answers import NodeAnswerKind, ask_nodes
from tests.align.hosts import GIB, GPU, pod
from tests.observe.api_objects import api_pod, node, overflowing_pod, received
from tests.observe.kubelets import ObservedKubelet

ADMITS, REJECTS, UNKNOWN, NOT_CONSIDERED = NodeAnswerKind
WIDE = pod("wide", cpu="4", memory="1Gi")  # all CPUs of NUMA node 1


def kubelet(*pods: Pod, **changes) -> ObservedKubelet:
    made = ObservedKubelet(**changes)
    for held in pods:
        made.run(held)
    return made


def view(kubelets, *pods, nodes=(), now=0.0, **states):
    """A cluster with a node for every kubelet, and what the API server lists."""
    listed = [node(name) for name in kubelets if name not in {each["metadata"]["name"] for each in nodes}]
    held = [api_pod(each.pod, name) for name, kubelet in kubelets.items() for each in kubelet.pods.values()]
    known = {each["metadata"]["uid"] for each in pods}
    unlisted = [each for each in held if each["metadata"]["uid"] not in known]
    return build_view(
        [convert(each, NODES.type) for each in (*listed, *nodes)],
        [received(each.host_state(name, **states)) for name, each in kubelets.items()],
        [convert(each, PODS.type) for each in (*pods, *unlisted)],
        now=now,
    )


def answers(snapshot, asked=WIDE, spec=None, **options):
    """(kind, reason, NUMA nodes) → nodes."""
    groups = ask_nodes(snapshot, asked, spec or ApiPodSpec(), **options).groups
    return {(group.first.kind, group.first.reason, group.first.numa_nodes): list(group.nodes) for group in groups}


def test_reading_a_cluster_needs_no_grpc():
    probe = "import sys, alignup.schedule.pod_answers; sys.exit('grpc' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", probe], check=False, timeout=60).returncode == 0  # noqa: S603


def test_nodes_that_answer_alike_are_grouped():
    busy = kubelet(pod("a", cpu="2", memory="1Gi"), pod("b", cpu="2", memory="1Gi"))
    snapshot = view({"b": kubelet(), "a": kubelet(), "c": busy, "d": busy})

    assert answers(snapshot) == {
        (ADMITS, "", "NUMA node 1"): ["a", "b"],
        (REJECTS, "not enough cpu on one NUMA node", ""): ["c", "d"],
    }


def test_nodes_of_one_kind_share_their_machine_and_keep_their_own_devices():
    other = (Device(GPU, "gpu-x", nodes=2),)
    reports = view({"a": kubelet(), "b": kubelet(devices=other), "c": kubelet(topologyManagerPolicy="none")}).reports

    assert reports["a"].machine.cpus is reports["b"].machine.cpus
    assert [device.id for device in reports["a"].machine.devices] == ["gpu-0", "gpu-1"]
    assert reports["b"].machine.devices == other
    assert [reports[name].settings.topology.policy for name in "abc"] == [
        "single-numa-node",
        "single-numa-node",
        "none",
    ]


def test_a_node_without_host_state_is_unknown():
    snapshot = view({"a": kubelet()}, nodes=[node("new")])

    assert answers(snapshot)[UNKNOWN, NO_HOST_STATE, ""] == ["new"]
    assert summarize(snapshot, "new").unknown == NO_HOST_STATE
    assert present_host(snapshot.cluster, "new") is None


def test_a_node_whose_ledger_is_unknown_says_why():
    snapshot = view({"a": kubelet()}, ledger=None, problems=["the file is damaged"])

    assert answers(snapshot) == {(UNKNOWN, "what node a holds is unknown: the file is damaged", ""): ["a"]}


def test_a_host_state_without_a_node_is_left_out():
    made = build_view([], [received(kubelet().host_state("gone"))], [])

    assert made.notes == ("HostState gone is left out: there is no such node",)
    assert answers(made) == {}


def test_a_pod_that_is_no_longer_listed_has_ended():
    busy = kubelet(pod("a", cpu="4", memory="1Gi"))
    states = [received(busy.host_state("a"))]

    snapshot = build_view([convert(node("a"), NODES.type)], states, [])

    assert answers(snapshot) == {(ADMITS, "", "NUMA node 1"): ["a"]}


def test_a_terminating_pod_may_or_may_not_hold_its_resources():
    held = pod("a", cpu="4", memory="1Gi")
    snapshot = view({"a": kubelet(held)}, api_pod(held, "a", deleting=True))

    assert answers(snapshot) == {(UNKNOWN, "waits for the end of terminating pods", ""): ["a"]}
    assert summarize(snapshot, "a").free[1]["cpu"] == 0


def test_a_bound_pod_counts_before_its_kubelet_has_admitted_it():
    snapshot = view({"a": kubelet()}, api_pod(pod("new", cpu="4", memory="1Gi"), "a", phase="Pending"))

    assert answers(snapshot) == {(REJECTS, "not enough cpu on one NUMA node", ""): ["a"]}
    assert summarize(snapshot, "a").pods == 1


def test_the_asked_pod_keeps_its_place_where_it_runs():
    snapshot = view({"a": kubelet(WIDE), "b": kubelet()})

    placements = {
        answer.node: (answer.kind, [placement.cpus for placement in answer.verdict.placements])
        for group in ask_nodes(snapshot, WIDE, ApiPodSpec()).groups
        for answer in group.answers
    }
    assert placements == {"a": (ADMITS, [0b11110000]), "b": (ADMITS, [0b11110000])}


def test_a_pod_that_cannot_be_read_is_named_and_does_not_seem_to_have_ended():
    held = pod("a", cpu="4", memory="1Gi")
    broken = api_pod(held, "a")
    broken["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "many"
    unreported = {**broken, "metadata": {**broken["metadata"], "name": "b", "uid": "b"}}
    snapshot = view({"a": kubelet(held)}, broken, unreported)

    assert answers(snapshot) == {(UNKNOWN, "a pod that is bound there cannot be read", ""): ["a"]}
    (note,) = snapshot.notes  # what the kubelet reports need not be read
    assert "the requests of pod default/b cannot be read" in note

    snapshot = view({"a": kubelet(held, pod("b", cpu="1"))}, broken, unreported)  # the kubelet has admitted it
    assert answers(snapshot) == {(REJECTS, "not enough cpu on one NUMA node", ""): ["a"]}
    assert snapshot.notes == ()


def test_a_pod_whose_amounts_overflow_does_not_hide_the_cluster():
    snapshot = view({"a": kubelet(), "b": kubelet()}, overflowing_pod("huge", "a"))

    assert answers(snapshot) == {
        (ADMITS, "", "NUMA node 1"): ["b"],
        (UNKNOWN, "a pod that is bound there cannot be read", ""): ["a"],
    }
    assert [note for note in snapshot.notes if "default/huge" in note]
    assert summarize(snapshot, "a").unknown == "a pod that is bound there cannot be read"


@pytest.mark.parametrize(
    ("observed_at", "stale"),
    [
        ("2027-01-15T07:00:00Z", "its observer last reported 60 minutes ago; see the log of its pod"),
        ("2027-01-14T08:00:00Z", "its observer last reported 24 hours ago; see the log of its pod"),
        ("2027-01-15T07:45:01Z", ""),
        ("2027-01-15T09:00:00Z", ""),
        ("", ""),
        ("yesterday", "observedAt: 'yesterday' is not a time"),
    ],
    ids=["an hour ago", "a day ago", "ten minutes ago", "by a clock that is ahead", "by an older observer", "no time"],
)
def test_a_host_state_whose_observer_is_silent_is_named(observed_at, stale):
    snapshot = view({"a": kubelet()}, now=1_800_000_000.0, observed_at=observed_at)  # 08:00

    assert summarize(snapshot, "a").stale == stale
    assert dict(snapshot.stale) == ({"a": stale} if stale else {})


def test_excluded_nodes_are_not_considered_whatever_their_kubelets_would_do():
    tainted = node("a", taints=[{"key": "x", "effect": "NoSchedule"}])
    snapshot = view({"a": kubelet()}, nodes=[tainted])

    assert answers(snapshot) == {(NOT_CONSIDERED, "taint x:NoSchedule", "NUMA node 1"): ["a"]}
    assert summarize(snapshot, "a").restrictions == ("x:NoSchedule",)


def test_a_node_without_the_devices_is_not_considered():
    asked = pod("gpu", gpu="1", cpu="1", memory="1Gi")
    bare = {**node("a"), "status": {"allocatable": {"cpu": "8"}}}
    snapshot = view({"a": kubelet(devices=()), "b": kubelet()}, nodes=[bare, node("b")])

    assert answers(snapshot, asked) == {
        (ADMITS, "", "NUMA node 0"): ["b"],
        (NOT_CONSIDERED, f"no device plugin provides {GPU}", "NUMA node 0"): ["a"],
    }


def test_an_administrator_may_have_added_the_resource_to_the_node():
    made = {**node("a"), "status": {"allocatable": {GPU: "4"}}}
    snapshot = view({"a": kubelet(devices=())}, nodes=[made])

    assert list(answers(snapshot, pod("gpu", gpu="1", cpu="1", memory="1Gi"))) == [(ADMITS, "", "NUMA node 0")]


def test_what_would_admit_a_rejected_pod_is_tried_on_the_first_node_of_a_group():
    busy = kubelet(pod("a", cpu="2", memory="1Gi"), pod("b", cpu="2", memory="1Gi"))
    snapshot = view({"c": busy, "d": busy})

    (group,) = ask_nodes(snapshot, WIDE, ApiPodSpec(), seconds=60).groups

    assert group.misfits
    assert group.host is not None
    sentences = [proposal.describe(group.host.ledger) for proposal in group.remedies.proposals]
    assert "evict default/b" in " ".join(sentences)
    for proposal in group.remedies.proposals:
        changed, asked = proposal.apply(group.host, WIDE)
        assert changed.decide(asked).admitted


def test_the_search_says_when_time_ran_out():
    busy = kubelet(pod("a", cpu="2", memory="1Gi"), pod("b", cpu="2", memory="1Gi"))
    time = iter(range(100_000))

    (group,) = ask_nodes(view({"a": busy}), WIDE, ApiPodSpec(), seconds=0, clock=lambda: next(time)).groups

    assert group.misfits
    assert group.remedies.unsearched


def test_a_summary_has_what_is_free_and_what_still_fits():
    summary = summarize(view({"a": kubelet(pod("a", cpu="2", memory="4Gi", gpu="1"))}), "a")

    reserved = 64 << 20
    assert summary.free == {
        0: {"cpu": 1, "memory": 12 * GIB - reserved, GPU: 0},
        1: {"cpu": 4, "memory": 16 * GIB, GPU: 1},
    }
    assert summary.largest == {"cpu": 4, "memory": 16 * GIB, GPU: 1}
    assert summary.settings is not None
    assert (summary.settings.topology.policy, summary.pods) == ("single-numa-node", 1)


def test_a_kubelet_that_manages_nothing_offers_nothing_aligned():
    plain = kubelet(
        devices=(), topologyManagerPolicy="none", cpuManagerPolicy="none", memoryManagerPolicy="None", reservedMemory=[]
    )

    summary = summarize(view({"a": plain}), "a")

    assert (summary.free, summary.largest) == ({0: {}, 1: {}}, {})


@pytest.mark.parametrize("deleting", [False, True])
def test_pods_are_bound_in_the_order_in_which_they_were_scheduled(deleting):
    first, second = (replace(pod(uid, cpu="3", memory="1Gi"), name=name) for uid, name in (("1", "z"), ("2", "a")))
    conditions = [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": f"2026-01-01T00:00:0{second}Z"}
        for second in (1, 2)
    ]
    documents = [api_pod(bound, "a", phase="Pending", deleting=deleting) for bound in (first, second)]
    for document, condition in zip(documents, conditions, strict=True):
        document["status"]["conditions"] = [condition]

    record = view({"a": kubelet()}, *reversed(documents)).cluster.record("a")

    assert record is not None
    assert [bound.uid for bound in record.bindings] == ["1", "2"]


@pytest.mark.parametrize(("asked", "used"), [("", "1.37"), ("v1.34.2", "1.34")])
def test_kubelets_can_decide_as_those_of_another_release(asked, used):
    states = [received(kubelet().host_state("a"))]

    snapshot = build_view([convert(node("a"), NODES.type)], states, [], kubelet_version=asked)

    assert snapshot.reports["a"].settings.release.version == used
