"""Why a kubelet rejected a pod, told afterwards, when its node is in another state."""

import pytest
from structlog.testing import capture_logs

from alignup.cli.cluster_output import ask_about_pod
from alignup.documents.codec import convert
from alignup.kubernetes.api import PODS
from alignup.placement.host_report import Cause
from alignup.schedule.rejections import ANNOTATION, CAUSES
from alignup.testing.api_server import ApiFault
from tests.align.hosts import pod
from tests.deadlines import until
from tests.observe.api_objects import api_pod
from tests.schedule.test_cluster_snapshot import kubelet, view
from tests.schedule.test_extender import OTHER, bound, create, filtered
from tests.schedule.test_pages import text_of

pytestmark = pytest.mark.anyio

FOREIGN = pod("foreign", cpu="4", memory="1Gi")
REJECTED = "TopologyAffinityError: Pod was rejected: Resources cannot be allocated with Topology locality"
CAUSE = "foreign_pod: another pod came to the node that no scheduler had asked about"


def failed(host="b", cause=""):
    """The pod, as the API server has it after the rejection."""
    document = api_pod(OTHER, host, phase="Failed")
    document["metadata"]["annotations"] = {ANNOTATION: cause} if cause else {}
    reason, _, message = REJECTED.partition(": ")
    document["status"] |= {"reason": reason, "message": message}
    return document


async def reject(http, nodes, service):
    """Bind a pod to a node that admits it, before which another comes to the node; its kubelet rejects the pod."""
    await create(nodes, service, OTHER)
    assert (await filtered(http, OTHER, "b"))["NodeNames"] == ["b"]
    nodes.server.inject(ApiFault(delay=0.1), verb="create", resource="pods")
    nodes.create(FOREIGN, "b")
    assert await bound(http, OTHER, "b") == ""
    await until(lambda: service.live.cluster.record("b").binding("foreign"))
    nodes.reject(OTHER, "b")
    await until(lambda: service.live.find_pod("default", "other").status.phase == "Failed")


def annotation(nodes):
    (stored,) = [stored for stored in nodes.server.objects("pods") if stored["metadata"]["name"] == "other"]
    return stored["metadata"].get("annotations", {}).get(ANNOTATION)


async def test_the_cause_of_a_rejection_is_recorded_and_told_while_the_node_is_unknown(http, nodes, service):
    await reject(http, nodes, service)
    await until(lambda: annotation(nodes) == CAUSE)
    await until(lambda: ANNOTATION in service.live.find_pod("default", "other").metadata.annotations)
    assert not service.live.verdict(OTHER, "b").admits  # it waits for a report about the other pod

    answers = (await http.get("/v1/explain/default/other?node=b")).json()

    text = f"{REJECTED} (cause: {CAUSE})"
    assert answers["rejection"] == {"node": "b", "reason": text}
    (row,) = answers["nodes"]
    assert row["verdict"] == "rejects"
    assert f"The kubelet of node b rejected the pod: {text}" in text_of(await http.get("/pods/default/other"))


async def test_a_cause_that_cannot_be_recorded_is_logged(http, nodes, service):
    nodes.server.inject(ApiFault(status=403, reason="Forbidden", times=None), verb="patch", resource="pods")
    with capture_logs() as log:
        await reject(http, nodes, service)
        await until(lambda: any(entry["event"] == "cannot record a cause" for entry in log))

    (entry,) = [entry for entry in log if entry["event"] == "cannot record a cause"]
    assert (entry["pod"], entry["cause"]) == ("default/other", "foreign_pod")


async def test_a_cause_that_nobody_can_name_ends_nothing(http, nodes, service, monkeypatch):
    monkeypatch.delitem(CAUSES, Cause.FOREIGN_POD)
    count = service.metrics.registry.get_sample_value
    await reject(http, nodes, service)
    await until(lambda: count("alignup_schedule_failed_steps_total", {"step": "report"}))

    assert count("alignup_schedule_failed_steps_total", {"step": "task"}) == 0


async def test_a_rejection_after_the_admission_is_logged_counted_and_has_its_cause(http, nodes, service):
    """The kubelet restarts before the container runs, and its device plugin has not registered (k#125579)."""
    await create(nodes, service, OTHER)
    assert (await filtered(http, OTHER, "b"))["NodeNames"] == ["b"]
    assert await bound(http, OTHER, "b") == ""
    nodes.admit("b", OTHER)
    await until(lambda: service.live.cluster.record("b").ledger.pods.get("other"))

    with capture_logs() as log:
        nodes.reject(OTHER, "b", "UnexpectedAdmissionError")
        await until(lambda: (annotation(nodes) or "").startswith("readmission: the kubelet had admitted the pod"))

    (entry,) = [entry for entry in log if entry["event"] == "pod rejected"]
    assert (entry["pod"], entry["cause"]) == ("default/other", Cause.READMISSION)
    assert 'outcome="rejected"' in (counted := (await http.get("/metrics")).text)
    assert 'cause="readmission"' in counted
    assert "taint the node until its device plugins have registered" in annotation(nodes)


def test_why_names_the_defect_and_the_remedy_where_no_plugin_had_registered():
    document = failed()
    document["status"] |= {
        "reason": "UnexpectedAdmissionError",
        "message": "Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate unhealthy "
        "devices example.com/gpu, which is unexpected",
    }
    asked = ask_about_pod(view({"b": kubelet()}), convert(document, PODS.type), seconds=0)

    (note,) = asked.notes
    assert "(cause: no device plugin had registered; perhaps a defect of the kubelet: when it restarts, " in note
    assert (
        "issues/125579); before a restart or a reboot, taint the node until its device plugins have registered" in note
    )


@pytest.mark.parametrize("cause", ["", CAUSE])
def test_why_tells_the_reason_of_then_for_a_node_whose_state_is_unknown_now(cause):
    snapshot = view({"b": kubelet(FOREIGN), "a": kubelet()}, api_pod(FOREIGN, "b", deleting=True))
    asked = ask_about_pod(snapshot, convert(failed(cause=cause), PODS.type), seconds=0)

    groups = {group.nodes: (str(group.first.kind), group.first.reason) for group in asked.answers.groups}
    text = REJECTED + (f" (cause: {cause})" if cause else "")
    assert groups[("b",)] == ("rejects", f"its kubelet rejected the pod: {text}")
    assert groups[("a",)][0] == "admits"
    assert {group.first.code for group in asked.answers.groups} == {"TopologyAffinityError", ""}
    assert asked.notes == (f"The pod failed on node b: {text}",)


def test_why_tells_the_present_reason_where_the_state_is_known():
    snapshot = view({"b": kubelet(FOREIGN)})

    (group,) = ask_about_pod(snapshot, convert(failed(cause=CAUSE), PODS.type), seconds=0).answers.groups

    assert (str(group.first.kind), group.first.reason) == ("rejects", "not enough cpu on one NUMA node")


def test_every_cause_has_words():
    assert CAUSES.keys() == set(Cause)
