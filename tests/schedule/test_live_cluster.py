"""The cluster that follows the API server: reports, bindings, ends, and what is unknown meanwhile."""

import random
import time
from dataclasses import replace
from functools import partial

import pytest

from alignup.align.errors import PodError
from alignup.align.release import NEWEST
from alignup.align.workload import Pod
from alignup.documents.codec import convert, decode, encode
from alignup.kubernetes.api import Access, ApiClient, EventType, Timing
from alignup.kubernetes.api.client import WatchEvent
from alignup.kubernetes.api.known_pods import api_pod_stage
from alignup.kubernetes.api.objects import ApiPod
from alignup.kubernetes.manifests.pod_decoder import read_pod
from alignup.placement.gang import GangBinding
from alignup.placement.host_report import Cause
from alignup.placement.verdict import WAITS_FOR_TERMINATION
from alignup.schedule import live_cluster
from alignup.schedule.live_cluster import SILENT_SECONDS
from alignup.schedule.live_cluster_options import LiveClusterOptions
from alignup.schedule.metrics import ScheduleMetrics
from alignup.testing.api_server import ApiFault
from tests.align.hosts import pod
from tests.deadlines import until
from tests.effort import rounds
from tests.kept_texts import kept_texts
from tests.observe.api_objects import api_pod, node, overflowing_pod
from tests.observe.kubelets import ObservedKubelet
from tests.schedule.assumptions import assume, forget
from tests.schedule.claim_objects import claim, resource_slice
from tests.schedule.gate.simulated import settle
from tests.strategies_pods import container, guaranteed

pytestmark = pytest.mark.anyio

WIDE = pod("wide", cpu="4", memory="1Gi")  # all CPUs of NUMA node 1
OTHER = pod("other", cpu="4", memory="1Gi")


def kinds(live, asked=OTHER):
    """Node → kind of verdict."""
    return {name: str(verdict.kind) for name, verdict in live.feasible(asked).items()}


def reasons(live, asked=OTHER):
    return {name: verdict.reason for name, verdict in live.feasible(asked).items()}


async def test_nodes_are_known_once_everything_is_listed(live):
    assert live.problems == ()
    assert kinds(live) == {"a": "admits", "b": "admits"}
    assert [ranked.host for ranked in live.choose(OTHER)] == ["a", "b"]
    assert live.verdict(OTHER, "c").reason == "no such node"


async def test_an_end_frees_resources_and_a_deletion_may_have(live, nodes):
    nodes.create(WIDE, "a")
    nodes.admit("a", WIDE)
    await until(lambda: kinds(live)["a"] == "rejects")

    nodes.create(WIDE, "a", deleting=True)
    await until(lambda: kinds(live)["a"] == "unknown")

    nodes.server.remove("pods", "wide")
    await until(lambda: kinds(live)["a"] == "admits")


async def test_nodes_without_a_usable_host_state_are_unknown(live, nodes):
    nodes.add("new", observed=False)
    nodes.report("b", ledger=None, problems=["the file is damaged"])

    await until(lambda: reasons(live) == {"a": "", "b": "unknown state", "new": "no HostState"})
    assert "the file is damaged" in live.verdict(OTHER, "b").detail

    nodes.server.remove("nodes", "a")
    await until(lambda: live.verdict(OTHER, "a").reason == "no such node")


async def test_a_host_state_that_comes_back_does_not_hide_bound_pods(live, nodes):
    nodes.create(WIDE, "a")
    await until(lambda: kinds(live)["a"] == "rejects")
    nodes.server.remove("hoststates", "a")
    await until(lambda: reasons(live)["a"] == "no HostState")

    nodes.report("a")  # by an observer that has not seen the pod

    await until(lambda: kinds(live)["a"] == "rejects")


def lose_ledger(nodes):
    nodes.report("a", ledger=None, problems=["the kubelet restarts"])


def remove_host_state(nodes):
    nodes.server.remove("hoststates", "a")


def upgrade_kubelet(nodes):
    nodes.server.put({**node("a"), "status": {"nodeInfo": {"kubeletVersion": "v1.35.8"}}})


async def be_unknown(live, nodes, lose=lose_ledger):
    """Node ``a`` is unknown for a while."""
    lose(nodes)
    await until(lambda: live.cluster.record("a") is None)
    nodes.report("a")
    await until(lambda: live.cluster.record("a"))


@pytest.mark.parametrize("lose", [lose_ledger, remove_host_state, upgrade_kubelet])
async def test_an_assumed_pod_counts_again_once_its_node_is_known_again(live, nodes, lose):
    assert assume(live, WIDE, "a").admits
    await be_unknown(live, nodes, lose)

    assert kinds(live)["a"] == "rejects"
    forget(live, "wide")
    assert kinds(live)["a"] == "admits"


async def test_an_assumed_pod_counts_on_with_another_host_state_of_the_same_name(live, nodes):
    assert assume(live, WIDE, "a").admits
    nodes.server.hold()
    nodes.server.remove("hoststates", "a")
    nodes.report("a")
    nodes.server.hold(held=False)
    await until(lambda: live.cluster.record("a").report.sequence == 2)

    assert kinds(live)["a"] == "rejects"


async def test_assumed_pods_of_a_gang_do_not_wait_for_each_other_when_their_node_is_known_again(live, nodes):
    first, second = pod("first", cpu="3", memory="1Gi"), pod("second", cpu="3", memory="1Gi")
    assert all(
        verdict.admits
        for verdict in live.scheduling.assumptions.assume_gang([GangBinding(first, "a"), GangBinding(second, "a")])
    )
    await be_unknown(live, nodes)

    assert live.verdict(first, "a").admits
    assert live.verdict(second, "a").admits
    assert kinds(live, pod("third", cpu="3", memory="1Gi"))["a"] == "rejects"


async def test_a_pod_that_is_assumed_on_several_nodes_may_be_on_any_of_them_when_one_is_known_again(live, nodes):
    assert live.scheduling.assumptions.assume_any(WIDE, ("a", "b")) == ("a", "b")
    await be_unknown(live, nodes)
    assert kinds(live) == {"a": "unknown", "b": "unknown"}

    nodes.create(WIDE, "b")

    await until(lambda: kinds(live) == {"a": "admits", "b": "rejects"})


async def test_pods_that_are_no_longer_assumed_on_an_unknown_node_are_forgotten(live, nodes):
    """Given back, bound elsewhere, or deleted."""
    before = remembered(live)
    small = {name: pod(name, cpu="1", memory="1Gi") for name in ("given-back", "bound", "deleted")}
    for each in small.values():
        nodes.create(each)
    await until(lambda: live.find_pod("default", "deleted"))
    assert live.scheduling.assumptions.assume_any(small["bound"], ("a", "b")) == ("a", "b")
    gang = [GangBinding(small[name], "a") for name in ("given-back", "deleted")]
    beside = [GangBinding(small["bound"], "a")]
    assert all(verdict.admits for verdict in live.scheduling.assumptions.assume_gang(gang, beside=beside))
    lose_ledger(nodes)
    await until(lambda: live.cluster.record("a") is None)

    forget(live, "given-back")
    nodes.create(small["bound"], "b")
    nodes.server.remove("pods", "deleted")
    await until(lambda: not live.assumed)
    for name in ("given-back", "bound"):
        nodes.server.remove("pods", name)
    await until(lambda: len(live.pods.objects) == 0)
    assert {name: count for name, count in remembered(live).items() if count > before[name]} == {"_unknown": 1}
    nodes.report("a")

    await until(lambda: kinds(live)["a"] == "admits")
    assert remembered(live) == before


async def test_a_host_state_that_is_created_again_replaces_the_old_one(live, nodes):
    nodes.kubelets["a"].run(WIDE)
    nodes.create(WIDE, "a")
    for _ in range(5):
        nodes.report("a")
    await until(lambda: kinds(live)["a"] == "rejects")
    nodes.server.hold()
    nodes.server.remove("hoststates", "a")
    nodes.server.remove("pods", "wide")
    nodes.add("a")
    nodes.server.put({**nodes.server.objects("hoststates")[-1], "generation": 1})
    nodes.server.hold(held=False)

    await until(lambda: kinds(live)["a"] == "admits")


async def test_pods_that_ended_while_the_server_was_away_are_gone(live, nodes):
    nodes.create(WIDE, "a")
    nodes.admit("a", WIDE)
    await until(lambda: kinds(live)["a"] == "rejects")
    nodes.server.hold()
    nodes.server.remove("pods", "wide")
    nodes.server.expire(watches=True)
    nodes.server.hold(held=False)

    await until(lambda: kinds(live)["a"] == "admits")


async def test_a_report_during_a_list_of_pods_does_not_end_a_new_pod(live, nodes):
    """The report is newer than the list, and the pod in it was bound after the list was made."""
    for verb in ("watch", "list"):
        nodes.server.inject(ApiFault(status=503, times=None), verb=verb, resource="pods")
    nodes.server.expire(watches=True)
    await until(lambda: live.pods.listing)
    nodes.kubelets["a"].run(WIDE)
    nodes.report("a")  # while the pod is in no list
    await until(lambda: live.host_states.get("a").generation == 2)
    for verb in ("watch", "list"):
        nodes.server.inject(ApiFault(), verb=verb, resource="pods")
    await until(lambda: not live.pods.listing)

    assert reasons(live)["a"] == WAITS_FOR_TERMINATION, "it may also have ended before the list was made"
    nodes.create(WIDE, "a")
    await until(lambda: kinds(live)["a"] == "rejects")


async def test_listeners_are_told_which_nodes_changed(live, nodes):
    told: list[set[str]] = []
    live.on_change(told.append)

    assume(live, WIDE, "a")
    forget(live, "wide")
    nodes.create(OTHER, "b")

    await until(lambda: len(told) > 1)
    assert told == [{"a"}, {"b"}]


def with_containers(name, *requests):
    return Pod(name=name, uid=name, containers=tuple(container(f"c{n}", amounts) for n, amounts in enumerate(requests)))


@pytest.mark.parametrize(
    "asked",
    [
        with_containers("burstable", {"cpu": "1500m", "memory": "1Gi"}),
        with_containers("besteffort", {}),
        replace(WIDE, containers=(*WIDE.containers, guaranteed("sidecar", {"cpu": "250m", "memory": "64Mi"}))),
    ],
    ids=["burstable", "best effort", "with a sidecar of 250m"],
)
async def test_containers_that_hold_nothing_are_never_placed_elsewhere(nodes, start_live, asked, log):
    nodes.kubelets["a"] = ObservedKubelet(memoryManagerPolicy="None", reservedMemory=[])
    nodes.report("a")
    metrics = ScheduleMetrics()
    live = await start_live(metrics=metrics)
    assert assume(live, asked, "a").admits
    nodes.create(asked, "a")
    nodes.admit("a", asked)

    await until(lambda: metrics.predictions.totals)
    assert dict(metrics.predictions.totals) == {"as_predicted": 1}
    assert not [entry for entry in log if entry["event"] == "pod placed elsewhere"]


async def test_foreign_pods_that_a_kubelet_rejects_are_logged_and_counted(nodes, start_live, log):
    metrics = ScheduleMetrics()
    live = await start_live(metrics=metrics)
    nodes.create(pod("foreign", cpu="2", memory="1Gi"), "a")
    await until(lambda: reasons(live)["a"])  # predictions count on it
    nodes.reject(pod("foreign", cpu="2", memory="1Gi"), "a")
    await until(lambda: metrics.registry.get_sample_value("alignup_schedule_foreign_rejections_total"))

    (entry,) = [entry for entry in log if entry["event"] == "pod of others rejected that predictions counted on"]
    assert (entry["pod"], entry["node"]) == ("default/foreign", "a")
    assert metrics.registry.get_sample_value("alignup_schedule_foreign_rejections_total") == 1
    assert not metrics.predictions.totals


async def test_pods_that_a_kubelet_preempted_are_a_cause_of_their_own(live, nodes):
    """A kubelet ends pods to admit a critical one."""
    nodes.create(WIDE, "a")
    nodes.admit("a", WIDE)
    await until(lambda: kinds(live)["a"] == "rejects")
    assert assume(live, pod("small", cpu="1"), "a").admits

    ended = api_pod(WIDE, "a", phase="Failed")
    nodes.server.put({**ended, "status": {**ended["status"], "reason": "Preempting"}})
    await until(lambda: live.cluster.record("a").binding("small").causes == {Cause.PREEMPTION})


async def test_containers_of_a_force_deleted_pod_may_still_run(nodes, client, start_live):
    nodes.create(WIDE, "a")
    nodes.kubelets["a"].run(WIDE)
    nodes.report("a")
    live = await start_live(options=LiveClusterOptions(force_deleted_may_run=True))

    await client.get_raw("/version")
    document = next(stored for stored in nodes.server.objects("pods"))
    document["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0}
    nodes.server.put(document)
    nodes.server.remove("pods", "wide")

    await until(lambda: live.find_pod("default", "wide") is None)
    assert kinds(live)["a"] == "unknown"


async def test_a_recording_that_ends_is_counted_and_the_cluster_is_followed(nodes, start_live, tmp_path):
    live = await start_live(options=LiveClusterOptions(record=tmp_path / "missing"))

    assert live.metrics.registry.get_sample_value("alignup_schedule_recording_failures_total") == 1
    assert kinds(live) == {"a": "admits", "b": "admits"}


async def test_a_cluster_without_host_states_is_ready(server, start_live):
    server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}})

    live = await start_live()

    assert live.problems == ()
    assert reasons(live) == {"a": "no HostState"}


async def test_a_server_that_is_away_is_a_problem(live, nodes):
    nodes.server.inject(ApiFault(status=503, times=None), verb="watch")
    nodes.server.inject(ApiFault(status=503, times=None), verb="list")
    nodes.server.disconnect()

    await until(lambda: len(live.problems) == 3)
    assert live.problems[0].startswith("nodes are not followed: ")


async def test_a_host_state_can_be_there_before_its_node(live, nodes):
    nodes.kubelets["late"] = nodes.kubelets["a"]
    nodes.report("late")
    nodes.create(WIDE, "a")
    await until(lambda: live.host_states.get("late") and kinds(live)["a"] == "rejects")
    assert live.verdict(OTHER, "late").reason == "no such node"

    nodes.server.put(node("late"))

    await until(lambda: live.verdict(OTHER, "late").admits)


async def test_a_host_whose_observer_has_stopped_is_unknown(nodes, server, start_live):
    now = [0.0]
    async with ApiClient(Access(server=server.url), timing=Timing(clock=lambda: now[0])) as client:
        nodes.report("a", observed_at="2026-01-01T00:00:00Z")  # b is of an observer that does not renew it
        live = await start_live(client)
        now[0] = SILENT_SECONDS + 1
        live.check_observers()
        assert reasons(live) == {"a": "observer has stopped", "b": ""}

        nodes.report("a", observed_at="2026-01-01T00:20:00Z")
        await until(lambda: reasons(live) == {"a": "", "b": ""})


async def test_a_pod_is_decoded_once_for_each_version(live, monkeypatch):
    monkeypatch.setattr(live_cluster, "MAX_DECODED", 2)
    documents = [api_pod(pod(f"pod-{number}", cpu=str(1 + number), memory="1Gi")) for number in range(5)]
    for document in documents:
        document["metadata"]["resourceVersion"] = "7"
        changed = {**document, "metadata": {**document["metadata"], "resourceVersion": "8", "name": "renamed"}}
        first = live.read(convert(document, ApiPod))
        assert first == read_pod(document)
        assert live.read(convert(document, ApiPod)) is first
        assert live.read(convert(changed, ApiPod)).name == "renamed"


async def test_a_node_is_predicted_with_the_release_of_its_kubelet(live, nodes):
    def upgrade(version: str) -> None:
        nodes.server.put({**node("b"), "status": {"nodeInfo": {"kubeletVersion": version}}})

    assert live.cluster.record("b").report.settings.release is NEWEST

    upgrade("v1.35.8")
    await until(lambda: live.cluster.record("b") is None)
    assert live.verdict(OTHER, "b").reason == "new kubelet"
    assert live.verdict(OTHER, "b").detail == "it is v1.35.8 now; its next report counts"

    nodes.report("b")
    await until(lambda: live.cluster.record("b"))
    assert live.cluster.record("b").report.settings.release.version == "1.35"

    upgrade("v1.35.9")
    nodes.report("b")
    await until(lambda: live.cluster.record("b").report.sequence == 3)
    assert live.cluster.record("b").report.settings.release.version == "1.35"


async def test_a_bound_pod_whose_amounts_overflow_makes_its_own_node_unknown(live, nodes, start_live):
    nodes.server.put(overflowing_pod("huge", "a"))

    await until(lambda: kinds(live) == {"a": "unknown", "b": "admits"})
    assert live.verdict(OTHER, "a").reason == "a pod that is bound there cannot be read"
    assert "default/huge" in live.verdict(OTHER, "a").detail
    assert live.problems == ()  # anyone who may create pods could stop the service otherwise
    (warning,) = live.warnings
    assert warning.startswith("1 object cannot be read: Pod default/huge: ")
    assert "amounts 19998 digits apart cannot be added" in warning

    again = await start_live()  # a new process starts with the pod in place
    assert kinds(again) == {"a": "unknown", "b": "admits"}
    assert list(again.unreadable) == ["Pod default/huge"]

    nodes.admit("a", pod("huge", cpu="1"))  # the kubelet has admitted it, and reports what it holds
    await until(lambda: kinds(live)["a"] == "admits")
    nodes.server.remove("pods", "huge")
    await until(lambda: live.warnings == ())
    assert live.unreadable == {}


async def test_a_pending_pod_whose_amounts_overflow_is_named_until_it_is_gone(live, nodes):
    nodes.server.put(overflowing_pod("huge"))
    await until(lambda: live.find_pod("default", "huge"))
    for _ in range(2):
        with pytest.raises(PodError, match="cannot add up the amounts"):
            live.read(live.find_pod("default", "huge"))
    assert list(live.unreadable) == ["Pod default/huge"]

    changed = overflowing_pod("huge")
    changed["metadata"]["labels"] = {"still": "huge"}
    nodes.server.put(changed)
    await until(lambda: live.find_pod("default", "huge").metadata.labels)
    assert list(live.unreadable) == ["Pod default/huge"]
    nodes.server.remove("pods", "huge")
    await until(lambda: live.unreadable == {})
    assert kinds(live) == {"a": "admits", "b": "admits"}


@pytest.mark.parametrize("depth", [600, 5_000])
async def test_a_host_state_that_is_nested_too_deeply_makes_its_own_node_unknown(live, nodes, depth):
    nested = b"[" * depth + b"]" * depth
    nodes.server.hold()
    nodes.report("a")
    stored = nodes.server.store.find(nodes.server.resources.named("hoststates"), ("", "a"))
    vars(stored)["text"] = stored.text.replace(b'"machine":{', b'"machine":{"deep":%b,' % nested)
    nodes.server.hold(held=False)

    await until(lambda: kinds(live) == {"a": "unknown", "b": "admits"})
    assert live.verdict(OTHER, "a").reason == "unknown state"
    assert "nested" in live.verdict(OTHER, "a").detail
    assert list(live.unreadable) == ["HostState a"]

    nodes.report("a")
    await until(lambda: kinds(live)["a"] == "admits")
    assert live.unreadable == {}


async def test_a_defect_about_one_host_state_makes_its_own_node_unknown(live, nodes, monkeypatch):
    confirm = live.cluster.confirm

    def fail(report):
        if report.host == "a":
            raise ZeroDivisionError("a defect")
        return confirm(report)

    monkeypatch.setattr(live.cluster, "confirm", fail)
    nodes.report("a")
    nodes.report("b")

    await until(lambda: kinds(live)["a"] == "unknown")
    assert live.host_states.failures == 1
    assert live.unreadable == {"HostState a": "ZeroDivisionError: a defect"}
    monkeypatch.undo()
    nodes.report("a")
    await until(lambda: kinds(live) == {"a": "admits", "b": "admits"})


async def test_a_defect_about_one_pod_of_a_list_hides_no_other(live, nodes, monkeypatch):
    nodes.create(pod("bad"), "a")
    nodes.create(WIDE, "b")
    await until(lambda: kinds(live)["b"] == "rejects")
    original = api_pod_stage

    def fail(asked):
        if asked.metadata.name == "bad":
            raise ZeroDivisionError("a defect")
        return original(asked)

    monkeypatch.setattr(live_cluster, "api_pod_stage", fail)
    nodes.server.expire(watches=True)
    await until(lambda: live.pods.failures)

    assert live.unreadable == {"Pod default/bad": "ZeroDivisionError: a defect"}
    assert kinds(live)["b"] == "rejects"


def mirror_of(uid, host="a", *, name="forged", owner=True):
    """A pod with the annotations of a mirror pod, as anyone who may create pods can write it."""
    document = api_pod(pod(name, cpu="1"), host)
    document["metadata"]["annotations"] = {"kubernetes.io/config.mirror": uid, "kubernetes.io/config.hash": uid}
    if owner:
        owner_of_mirror = {"apiVersion": "v1", "kind": "Node", "name": host, "uid": f"node-{host}"}
        document["metadata"]["ownerReferences"] = [owner_of_mirror]
    return document


@pytest.mark.parametrize("owner", [False, True], ids=["without owner", "with the owner of a mirror pod"])
async def test_the_end_of_a_forged_mirror_pod_frees_nothing(live, nodes, owner):
    nodes.create(WIDE, "a")
    nodes.admit("a", WIDE)
    await until(lambda: kinds(live)["a"] == "rejects")

    nodes.server.put(mirror_of("wide", owner=owner))
    await until(lambda: live.find_pod("default", "forged"))
    nodes.server.put({**mirror_of("wide", owner=owner), "status": {"phase": "Failed"}})
    nodes.server.remove("pods", "forged")
    nodes.create(pod("marker"), "b")
    await until(lambda: live.find_pod("default", "marker"))
    assert kinds(live)["a"] == "rejects"

    nodes.server.put(mirror_of("wide", owner=owner))  # and when all pods are listed again
    nodes.server.expire(watches=True)
    await until(lambda: live.find_pod("default", "forged"))
    nodes.server.remove("pods", "forged")
    nodes.create(pod("second"), "b")
    await until(lambda: live.find_pod("default", "second"))
    assert kinds(live)["a"] == "rejects"

    nodes.server.remove("pods", "wide")
    await until(lambda: kinds(live)["a"] == "admits")


async def test_a_static_pod_counts_by_the_uid_that_the_kubelet_reports(live, nodes):
    nodes.server.put(mirror_of("static", name="kube-proxy"))
    nodes.admit("a", pod("static", cpu="4", memory="1Gi"))
    await until(lambda: kinds(live)["a"] == "rejects")
    nodes.server.expire(watches=True)  # the trimmed pods of a new list tell the same
    nodes.create(pod("marker"), "b")
    await until(lambda: live.find_pod("default", "marker"))
    assert reasons(live)["a"] == "not enough cpu on one NUMA node"

    nodes.server.remove("pods", "kube-proxy")
    await until(lambda: kinds(live)["a"] == "admits")


async def test_nodes_that_come_and_go_leave_nothing_behind(live, nodes, client):
    """A node flaps under its name, and others come under new names, each with a pod and a HostState."""
    before = remembered(live)
    for number in range(60):
        name = "flapping" if number % 2 else f"node-{number}"
        nodes.add(name)
        held = pod(f"p{number}", cpu="4", memory="1Gi")
        nodes.create(held, name)
        nodes.admit(name, held)
        if number % 3:
            await until(partial(rejects, live, name))
        for plural, gone in random.Random(number).sample(
            [("nodes", name), ("hoststates", name), ("pods", f"p{number}")], 3
        ):
            nodes.server.remove(plural, gone)
        if number % 5 == 0:
            nodes.server.disconnect()
    nodes.add("flapping")
    await until(lambda: live.verdict(OTHER, "flapping").admits)
    nodes.server.remove("hoststates", "flapping")
    nodes.server.remove("nodes", "flapping")
    await until(lambda: len(live.nodes.objects) == 2 and len(live.host_states.objects) == 2)

    assert kinds(live) == {"a": "admits", "b": "admits"}
    assert remembered(live) == before
    assert (live.unreadable, live.problems) == ({}, ())


GONE = rounds(300, soak=3_000)  #: nodes that come and go


class Watched:
    """Events of the API server, given to the informers of a cluster."""

    def __init__(self, live):
        self.informers = {
            "Node": live.nodes,
            "HostState": live.host_states,
            "Pod": live.pods,
            "ResourceSlice": live.claims._slices,  # noqa: SLF001
            "ResourceClaim": live.claims._claims,  # noqa: SLF001
        }
        self.version = 1_000_000

    def happen(self, type_, document):
        """Let the cluster observe a change at once."""
        self.version += 1
        informer = self.informers[document["kind"]]
        metadata = {**document["metadata"], "resourceVersion": str(self.version)}
        obj = decode(encode({**document, "metadata": metadata}), informer.resource.type)
        key = (metadata.get("namespace", ""), metadata["name"])
        informer._apply(WatchEvent(type_, obj, *key, str(self.version)))  # noqa: SLF001


def objects_of_node(number, state):
    """A node with a pod and a device that the pod has claimed."""
    name = f"gone-{number}"
    held = pod(f"gone-pod-{number}", cpu="1", memory="1Gi")
    ledger = state["ledger"] | {"pods": [{**state["ledger"]["pods"][0], "uid": held.uid, "name": held.name}]}
    return (
        node(name),
        {**state, "metadata": {"name": name, "uid": f"{name}-state"}, "ledger": ledger},
        api_pod(held, name),
        resource_slice(name),
        claim(f"gone-claim-{number}", ["gpu-0"], name, uid=held.uid),
    )


@pytest.mark.soak
async def test_names_of_nodes_and_pods_that_are_gone_are_forgotten(live, nodes):
    """Apart from bounded memories: of ended pods, which a report may contain or a scheduler ask about, and of parts."""
    kubelet = ObservedKubelet()
    kubelet.run(pod("any", cpu="1", memory="1Gi"))
    state, watched = kubelet.host_state("any"), Watched(live)
    for number in range(GONE):
        for document in objects_of_node(number, state):
            watched.happen(EventType.ADDED, document)
    unreported = pod("gone-early", cpu="1")
    for document in (node("gone-unreported"), api_pod(unreported, "gone-unreported")):
        watched.happen(EventType.ADDED, document)
    asked = [pod("gone-asked", cpu=cpu, memory="1Gi") for cpu in "12"]
    assert len(live.cluster.hosts) == GONE + 2
    assert all(live.feasible(wanted)["gone-7"].admits for wanted in asked)
    assert live.claim_fit(asked[0], "gone-7")
    assert assume(live, asked[0], "gone-7").admits
    assert live.scheduling.assumptions.assume_any(asked[1], ["gone-8", "gone-9"])

    for wanted in asked:
        forget(live, wanted.uid)
    for document in (api_pod(unreported, "gone-unreported"), node("gone-unreported")):
        watched.happen(EventType.DELETED, document)
    for number in range(GONE):
        order = random.Random(number).sample(objects_of_node(number, state), 5)
        for document in order:
            watched.happen(EventType.DELETED, document)
    await settle()
    assert not live.claim_fit(asked[0], "gone-7").reason
    assert live.verdict(asked[0], "gone-7").reason == "no such node"

    bounded = [live.cluster._stages, live.cluster._ended, live._decoded, live.pods._trim.__self__]  # noqa: SLF001
    bounded.append(live.scheduling.gangs._gone)  # noqa: SLF001
    assert live.cluster.hosts == ("a", "b")
    assert [way for way, text in kept_texts(live, without=bounded) if "gone-" in text] == []


def rejects(live, name):
    return live.verdict(OTHER, name).kind == "rejects"


def was_observed_at(live, observed_at):
    return live.host_states.get("a").observed_at == observed_at


def remembered(live):
    """How many entries the tables of a cluster have that are about nodes and pods."""
    tables = {**vars(live), **{f"cluster.{name}": table for name, table in vars(live.cluster).items()}}
    tables |= {f"reader.{name}": table for name, table in vars(tables["_reader"]).items()}
    short_lived = {"_changed", "_decoded", "cluster._stages", "reader._parts"}  # of the last moment, or with a limit
    return {
        name: len(table)
        for name, table in tables.items()
        if isinstance(table, dict | set | list) and name not in short_lived
    }


@pytest.mark.parametrize(
    "times", [("1970-01-01T00:00:00Z", "2999-12-31T23:59:59Z", "not a time", "0001-01-01T00:00:00")]
)
async def test_jumps_of_the_clock_of_an_observer_do_not_matter(nodes, server, start_live, times):
    """Only the time between writes counts, by our own clock that never jumps: times of day are not compared."""
    now, day = [0.0], [1_800_000_000.0]
    timing = Timing(clock=lambda: now[0], time_of_day=lambda: day[0])
    async with ApiClient(Access(server=server.url), timing=timing) as client:
        nodes.report("b", observed_at=times[0])
        live = await start_live(client)
        for observed_at, step in zip(times, (-1e9, 2e9, -3e9, 4e9), strict=True):
            now[0] += SILENT_SECONDS - 1
            day[0] += step
            nodes.report("a", observed_at=observed_at)
            await until(partial(was_observed_at, live, observed_at))
            live.check_observers()
            assert reasons(live)["a"] == ""
            assert live.verdict(OTHER, "a").admits
        assert reasons(live)["b"] == "observer has stopped"


def test_waits_are_measured_with_a_clock_that_never_jumps():
    assert Timing().clock is time.monotonic


async def test_a_decision_that_fails_is_logged_and_makes_one_verdict_unknown(live, log, monkeypatch):
    def fail(self):
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(type(live.cluster.record("a")), "states", fail)
    assert reasons(live) == dict.fromkeys("ab", "the decision failed")
    assert [entry["node"] for entry in log if entry["event"] == "decision failed"] == ["a", "b"]
    assert live.failed_decisions.count == 2
