"""Steering by the cluster service: instructions to observers before a binding, and every way in which they fail."""

import asyncio
import json
from dataclasses import replace
from functools import partial

import pytest

from alignup.align.workload.names import MARKER, NUMA_ANNOTATION
from alignup.kubernetes.api.objects import ApiPodSpec
from alignup.picture.machine_layout import layout_machine
from alignup.picture.numa_bars import measure_bars
from alignup.placement.scheduling.bindings import NOT_LEADING
from alignup.placement.scheduling.options import ExtenderOptions
from alignup.placement.scheduling.pod_steering import NO_MARKERS, SILENT, WITHDRAWN, Steered
from alignup.placement.steered import STEERED_ANNOTATION
from alignup.placement.verdict import WAITS_FOR_CONFIRMATION
from alignup.schedule.cluster_facts import PLACEMENT_ANNOTATION
from alignup.schedule.cluster_snapshot import free_by_numa_node, present_host, read_cluster
from alignup.schedule.extender.messages import BindingArgs
from alignup.schedule.live_cluster_options import LiveClusterOptions
from alignup.schedule.pod_answers import iterate_answers
from alignup.schedule.service import ScheduleService
from alignup.testing.api_server import ApiFault
from tests.align.hosts import pod
from tests.deadlines import SECONDS, until
from tests.observe.api_objects import ALLOCATABLE, api_pod, node
from tests.schedule.assumptions import assume
from tests.schedule.claim_objects import claim, claiming, device_class, resource_slice, template
from tests.schedule.observers import ScriptedObserver, add_marked_node, marked
from tests.schedule.test_extender import bound, create, filtered

pytestmark = pytest.mark.anyio

SMALL = marked(pod("small", cpu="2", memory="1Gi", annotations={NUMA_ANNOTATION: "1"}))  # the kubelet would take 0
NEXT = marked(pod("next", cpu="2", memory="1Gi"))


@pytest.fixture
async def observer(nodes, client, follow):
    """Observers of the nodes ``a`` and ``b``, which have markers."""
    for name in "ab":
        add_marked_node(nodes, name)
    made = ScriptedObserver(nodes, client)
    follow(made.run())
    return made


def set_patience(service, ready=SECONDS):
    """Let a service wait for observers, and for the API server, as long as a test may take."""
    service.live.scheduling.steering.ready_seconds, service.steering.write_seconds = ready, SECONDS


@pytest.fixture
async def steering(observer, service):
    """The steering of the service, which has read the nodes and their markers."""
    set_patience(service)
    await until(lambda: service.live.steering_instructions.synced)
    await until(lambda: all(len(service.live.cluster.steered(SMALL, name)) == 2 for name in "ab"))
    return service.live.scheduling.steering


def counted(service, outcome):
    return service.metrics.registry.get_sample_value("alignup_steering_pods_total", {"outcome": outcome})


def predictions(service, outcome):
    return service.metrics.predictions.totals[outcome]


def deviations(service):
    """The causes of pods on other NUMA nodes than they were to be steered to, and how many there were."""
    samples = [sample for family in service.metrics.registry.collect() for sample in family.samples]
    name = "alignup_steering_deviations_total"
    return {each.labels["cause"]: each.value for each in samples if each.name == name and each.value}


def annotations(nodes, name):
    (document,) = [each for each in nodes.server.objects("pods") if each["metadata"]["name"] == name]
    return document["metadata"].get("annotations", {})


async def bind(service, asked, node):
    """What a scheduler gets as the answer of a service that has no HTTP endpoint."""
    args = BindingArgs(pod_name=asked.name, pod_namespace="default", pod_uid=asked.uid, node=node)
    return (await service.bind.respond(args)).error


def can_steer(service, asked, node):
    return len(service.live.cluster.steered(asked, node)) == 2


async def confirmed(service, observer, node, uid):
    """The kubelet admits the pod that was bound last, and the service learns that."""
    observer.admit(node)
    await until(lambda: uid in service.live.cluster.record(node).ledger.pods)


async def test_a_pod_is_bound_when_its_numa_node_is_the_only_choice(http, nodes, service, steering, observer):
    await create(nodes, service, SMALL)

    assert await bound(http, SMALL, "a") == ""

    assert observer.specs == [("a", "small", "1")]
    instruction, _ = nodes.server.objects("steeringinstructions")
    assert instruction["spec"] == {
        "pod": {"namespace": "default", "name": "small", "uid": "small"},
        "numaNodes": "1",
    }
    assert annotations(nodes, "small")[STEERED_ANNOTATION] == f"steered to NUMA node 1 (annotation {NUMA_ANNOTATION})"
    (placement,) = json.loads(annotations(nodes, "small")[PLACEMENT_ANNOTATION])
    assert placement["given"]["cpu"] == {"cpu": "4-5"}
    await confirmed(service, observer, "a", "small")
    assert observer.numa_nodes("a", "small") == 2
    assert (predictions(service, "as_predicted"), counted(service, "ready")) == (1, 1)
    assert deviations(service) == {}
    assert observer.specs == [("a", "small", "1")]  # nothing is cleared
    assert service.metrics.registry.get_sample_value("alignup_steering_seconds_count") == 1


async def test_pods_without_the_request_and_nodes_without_markers_are_left_alone(
    http, nodes, service, steering, observer
):
    plain = pod("plain", cpu="2", memory="1Gi")
    nodes.add("c")
    await create(nodes, service, plain, SMALL)
    await until(lambda: service.live.cluster.record("c"))

    assert await bound(http, plain, "a") == ""
    assert await bound(http, SMALL, "c") == ""  # its kubelet ignores a resource that it does not know

    assert observer.specs == []
    assert not any("spec" in each for each in nodes.server.objects("steeringinstructions"))


async def test_a_pod_waits_until_the_host_state_shows_the_markers_of_its_node(http, nodes, service, steering, observer):
    """The observer of a node may have read its kubelet before it offered the markers."""
    nodes.add("c")
    nodes.server.put({**node("c"), "status": {"allocatable": {**ALLOCATABLE, MARKER: "16"}}})
    await create(nodes, service, SMALL)
    await until(lambda: service.live.cluster.record("c") and service.live.cluster_facts.has_markers("c"))

    assert [await bound(http, SMALL, "c") for _ in range(2)] == [NO_MARKERS] * 2

    assert service.live.assumed == {}
    assert counted(service, "waiting") == 1
    await until(lambda: [each["reason"] for each in nodes.server.objects("events")] == ["WaitsForSteering"])
    add_marked_node(nodes, "c")
    await until(lambda: can_steer(service, SMALL, "c"))
    assert await bound(http, SMALL, "c") == ""
    assert counted(service, "ready") == 1
    assert STEERED_ANNOTATION in annotations(nodes, "small")


async def test_a_pod_that_has_waited_too_long_for_markers_is_bound_without(http, nodes, service, steering, observer):
    nodes.add("c")
    nodes.server.put({**node("c"), "status": {"allocatable": {**ALLOCATABLE, MARKER: "16"}}})
    await create(nodes, service, SMALL)
    await until(lambda: service.live.cluster.record("c") and service.live.cluster_facts.has_markers("c"))
    assert await bound(http, SMALL, "c") == NO_MARKERS
    steering.wait_seconds = 0.0  # the time has passed

    assert await bound(http, SMALL, "c") == ""

    assert counted(service, "no_markers") == 1
    assert STEERED_ANNOTATION not in annotations(nodes, "small")
    await confirmed(service, observer, "c", "small")
    assert deviations(service) == {"no_markers": 1}
    await until(lambda: "NotSteered" in [each["reason"] for each in nodes.server.objects("events")])


async def test_a_second_pod_waits_until_the_first_is_confirmed(http, nodes, service, steering, observer):
    await create(nodes, service, SMALL, NEXT)

    problems = await asyncio.gather(*(bound(http, each, "a") for each in (SMALL, NEXT)))

    assert problems == ["", f"node a does not admit the pod any more: {WAITS_FOR_CONFIRMATION}"]
    assert observer.specs == [("a", "small", "1")]
    await confirmed(service, observer, "a", "small")
    assert await bound(http, NEXT, "a") == ""


async def test_two_pods_at_once_go_to_two_nodes(http, nodes, service, steering, observer):
    await create(nodes, service, SMALL, NEXT)

    assert await asyncio.gather(*(bound(http, *each) for each in ((SMALL, "a"), (NEXT, "b")))) == ["", ""]

    for name, uid in (("a", "small"), ("b", "next")):
        await confirmed(service, observer, name, uid)
    assert counted(service, "ready") == predictions(service, "as_predicted") == 2


@pytest.mark.parametrize("withdrawn", [0, 2])
async def test_a_late_observer_delays_nothing_further(http, nodes, service, steering, observer, *, withdrawn):
    """Whether the kubelet has all markers or those of one NUMA node by now, it is as predicted."""
    observer.answer = ""
    steering.ready_seconds = 0.05
    steering.silent_seconds = steering.wait_seconds = 0.0
    await create(nodes, service, SMALL)

    assert await bound(http, SMALL, "a") == ""

    assert counted(service, "silent") == 1
    assert not {PLACEMENT_ANNOTATION, STEERED_ANNOTATION} & annotations(nodes, "small").keys()
    await until(lambda: observer.specs == [("a", "small", "1"), ("a", "", "")])
    assert service.live.verdict(pod("other"), "a").reason == WAITS_FOR_CONFIRMATION
    observer.withdrawn["a"] = withdrawn
    await confirmed(service, observer, "a", "small")
    assert predictions(service, "as_predicted") == 1
    assert deviations(service) == ({} if withdrawn else {"silent": 1})


async def test_a_silent_observer_may_be_gone_with_its_markers(http, nodes, service, steering, observer):
    """The status of the node tells so within seconds; until then, the kubelet might reject the pod."""
    observer.answer = ""
    steering.ready_seconds = 0.05
    await create(nodes, service, SMALL)

    assert await bound(http, SMALL, "a") == SILENT
    assert service.live.assumed == {}

    steering.silent_seconds = steering.wait_seconds = 0.0  # the time has passed
    nodes.server.put({**node("a"), "status": {"allocatable": {MARKER: "0"}}})
    await until(lambda: service.live.nodes.get("a").status.allocatable)
    assert await bound(http, SMALL, "a") == SILENT
    nodes.server.put({**node("a"), "status": {"allocatable": {MARKER: "16"}}})
    await until(lambda: service.live.nodes.get("a").status.allocatable == {MARKER: "16"})
    assert await bound(http, SMALL, "a") == ""


@pytest.mark.parametrize("phase", ["Failed", "Expired"])
async def test_an_observer_that_cannot_says_so(http, nodes, service, steering, observer, *, phase):
    observer.answer = phase
    await create(nodes, service, SMALL)

    assert await bound(http, SMALL, "a") == ""

    assert counted(service, "failed") == 1
    assert observer.specs == [("a", "small", "1")]
    await confirmed(service, observer, "a", "small")
    assert observer.numa_nodes("a", "small") == 1
    assert predictions(service, "as_predicted") == 1
    assert deviations(service) == {"failed": 1}


@pytest.mark.parametrize(
    ("fault", "outcome"), [(ApiFault(status=403, times=9), "not_written"), (ApiFault(status=500, times=9), "late")]
)
async def test_an_instruction_that_cannot_be_written_stops_no_pod(
    http, nodes, service, steering, observer, *, fault, outcome
):
    nodes.server.inject(fault, verb="patch", resource="steeringinstructions")
    await create(nodes, service, SMALL)

    assert await bound(http, SMALL, "a") == ""

    assert counted(service, outcome) == 1
    await confirmed(service, observer, "a", "small")
    assert predictions(service, "as_predicted") == 1
    assert deviations(service) == {outcome: 1}


async def test_the_service_creates_no_instruction_where_the_observer_has_not(http, nodes, service, steering, observer):
    """It has no right to: the observer of the node creates the object."""
    nodes.server.remove("steeringinstructions", "a", namespace="")
    await create(nodes, service, SMALL)

    assert await bound(http, SMALL, "a") == ""

    assert counted(service, "not_written") == 1
    assert [each["metadata"]["name"] for each in nodes.server.objects("steeringinstructions")] == ["b"]


async def test_an_instruction_that_disappears_counts_as_a_silent_observer(http, nodes, service, steering, observer):
    observer.answer = ""
    steering.ready_seconds = 0.3
    steering.silent_seconds = steering.wait_seconds = 0.0
    await create(nodes, service, SMALL)
    binding = asyncio.create_task(bound(http, SMALL, "a"))
    await until(lambda: observer.specs)
    nodes.server.remove("steeringinstructions", "a", namespace="")
    assert await binding == ""
    assert counted(service, "silent") == 1


async def test_a_binding_that_fails_takes_the_instruction_back(http, nodes, service, steering, observer):
    await create(nodes, service, SMALL)
    nodes.server.inject(ApiFault(status=409), verb="create", resource="pods")

    assert await bound(http, SMALL, "a") != ""

    await until(lambda: observer.specs[-1] == ("a", "", ""))
    assert service.live.assumed == {}
    assert await bound(http, SMALL, "a") == ""  # the same instruction again is a new one, once markers are back
    await confirmed(service, observer, "a", "small")
    assert predictions(service, "as_predicted") == 1


async def test_a_pod_whose_binding_is_unknown_is_not_steered_again(http, nodes, service, steering, observer):
    await create(nodes, service, SMALL)
    nodes.server.inject(ApiFault(status=500), verb="create", resource="pods")
    assert "it is unknown whether the pod was bound" in await bound(http, SMALL, "a")

    assert await bound(http, SMALL, "a") == ""

    assert observer.specs == [("a", "small", "1")]
    await confirmed(service, observer, "a", "small")
    assert predictions(service, "as_predicted") == 1


async def test_a_node_that_changes_meanwhile_is_checked_again(http, nodes, service, steering, observer):
    """A foreign pod takes the CPUs between the instruction and the binding."""
    observer.answer = ""
    foreign = replace(pod("foreign", cpu="4", memory="1Gi"))
    await create(nodes, service, SMALL)
    binding = asyncio.create_task(bound(http, SMALL, "a"))
    await until(lambda: observer.specs)
    nodes.create(foreign, "a")
    nodes.admit("a", foreign)
    await until(lambda: "foreign" in service.live.cluster.record("a").ledger.pods)
    observer.withdrawn["a"] = 2
    observer.report("a", "Ready")

    assert "the node has changed" in await binding

    assert nodes.bound()["small"] == ""
    await until(lambda: observer.specs[-1] == ("a", "", ""))
    assert service.live.assumed == {}


async def test_a_new_leader_clears_the_instruction_of_the_last_one(nodes, client, follow, observer, start_service):
    observer.answer = ""
    leader = ScheduleService(client)
    set_patience(leader)
    first = follow(leader.run())
    await until(lambda: leader.leading and leader.live.steering_instructions.synced)
    await until(lambda: len(leader.live.cluster.steered(SMALL, "a")) == 2)
    await create(nodes, leader, SMALL)
    begun = asyncio.create_task(bind(leader, SMALL, "a"))
    await until(lambda: observer.specs == [("a", "small", "1")])
    first.cancel()
    assert await begun == NOT_LEADING

    observer.answer = "Ready"
    second = await start_service()
    await until(lambda: observer.specs == [("a", "small", "1"), ("a", "", "")])
    await create(nodes, second, SMALL, NEXT)
    set_patience(second)
    assert await bind(second, NEXT, "a") == ""
    assert nodes.bound() == {"small": "", "next": "a"}
    await confirmed(second, observer, "a", "next")
    assert predictions(second, "as_predicted") == 1


async def test_observers_that_may_hold_markers_for_longer_get_more_time(nodes, client, follow, start_service):
    add_marked_node(nodes, "a")
    observer = ScriptedObserver(nodes, client)
    observer.answer = ""
    follow(observer.run())
    patient = await start_service(extender=ExtenderOptions(steer_hold=20.0))
    await until(lambda: patient.live.steering_instructions.synced)
    await until(lambda: len(patient.live.cluster.steered(SMALL, "a")) == 2)
    await create(nodes, patient, SMALL)
    follow(bind(patient, SMALL, "a"))
    await until(lambda: observer.specs == [("a", "small", "1")])
    await until(lambda: patient.live.scheduling.steering.withdrawals["a"].generation)

    left = patient.live.scheduling.steering.withdrawals["a"].until - client.timing.clock()

    assert 8.0 < left <= 32.0  # it would be 8 with the usual 5 seconds
    assert patient.live.scheduling.steering.ready_seconds == 6.0


async def test_markers_withdrawn_for_another_pod_do_not_reject_one(http, nodes, service, steering, observer):
    """The last leader steers to NUMA node 0, which has no room for a pod of 4 CPUs."""
    wide = marked(pod("wide", cpu="4", memory="1Gi"))
    steering.ready_seconds = 0.05
    spec = {"pod": {"namespace": "default", "name": "other", "uid": "other"}, "numaNodes": "0", "containers": 1}
    kind = {"apiVersion": "alignup.dev/v1alpha1", "kind": "SteeringInstruction"}
    nodes.server.put({**kind, "metadata": {"name": "a"}, "spec": spec})
    await until(lambda: "a" in steering.withdrawals)
    await create(nodes, service, wide, NEXT)

    assert await bound(http, wide, "a") == WITHDRAWN
    assert await bound(http, NEXT, "a") == ""  # which is admitted on either NUMA node

    assert counted(service, "withdrawn") == 2


async def test_a_full_numa_node_is_not_steered_to(http, nodes, service, steering, observer):
    """Where the pod ends is counted."""
    first = pod("first", cpu="3", memory="1Gi")
    nodes.create(first, "a")
    nodes.admit("a", first)  # on NUMA node 0
    wrong = replace(SMALL, annotations={NUMA_ANNOTATION: "0"})
    await create(nodes, service, wrong)
    await until(lambda: "first" in service.live.cluster.record("a").ledger.pods)

    assert await bound(http, wrong, "a") == ""

    assert (counted(service, "no_choice"), observer.specs) == (1, [])
    await confirmed(service, observer, "a", "small")

    assert observer.numa_nodes("a", "small") == 2
    assert deviations(service) == {"no_choice": 1}


@pytest.mark.parametrize(
    ("phase", "cause"), [("Expired", "expired"), ("Failed", "restored"), ("Ready", "unexplained"), ("", "replaced")]
)
async def test_a_steered_pod_that_ends_elsewhere_is_counted_by_what_became_of_the_instruction(
    http, nodes, service, steering, observer, *, phase, cause
):
    await create(nodes, service, SMALL)
    assert await bound(http, SMALL, "a") == ""
    del observer.withdrawn["a"]  # all markers are back
    if phase:
        observer.report("a", phase)
        await until(lambda: service.live.steering_instructions.get("a").status.phase == phase)
    else:
        nodes.server.remove("steeringinstructions", "a", namespace="")
        await until(lambda: service.live.steering_instructions.get("a") is None)

    await confirmed(service, observer, "a", "small")

    assert observer.numa_nodes("a", "small") == 1
    labels = {"verdict": "admits", "outcome": "placed_elsewhere", "cause": "steering"}
    assert service.metrics.registry.get_sample_value("alignup_prediction_total", labels) == 1
    assert deviations(service) == {cause: 1}
    text = (await http.get("/metrics")).text
    assert f'alignup_steering_deviations_total{{cause="{cause}"}} 1\n' in text


async def test_a_steered_pod_that_another_overtakes_is_counted_as_overtaken(http, nodes, service, steering, observer):
    """A pod of others comes to the kubelet first, and all markers are back although no phase says so."""
    await create(nodes, service, SMALL)
    assert await bound(http, SMALL, "a") == ""
    del observer.withdrawn["a"]
    nodes.kubelets["a"].run(pod("foreign", cpu="1", memory="1Gi"))

    await confirmed(service, observer, "a", "small")

    assert observer.numa_nodes("a", "small") == 1
    assert deviations(service) == {"overtaken": 1}


async def test_a_pod_that_names_a_numa_node_before_instructions_are_read_is_counted(nodes, client, follow, observer):
    made = ScheduleService(client)
    for verb in ("list", "watch"):
        nodes.server.inject(ApiFault(status=500, times=10_000), verb=verb, resource="steeringinstructions")
    follow(made.run())
    await until(lambda: made.leading and can_steer(made, SMALL, "a"))
    await create(nodes, made, SMALL)
    assert await bind(made, SMALL, "a") == ""

    await confirmed(made, observer, "a", "small")

    assert deviations(made) == {"no_instructions": 1}


async def test_an_unknown_annotation_is_reported(http, nodes, service, steering, observer):
    wrong = replace(SMALL, annotations={NUMA_ANNOTATION: "best"})
    await create(nodes, service, wrong)
    assert await bound(http, wrong, "a") == ""
    await until(lambda: nodes.server.objects("events"))
    (event,) = nodes.server.objects("events")
    assert event["reason"] == "UnknownNumaPreference"


async def test_with_several_unconfirmed_pods_none_comes_while_another_is_steered(nodes, observer, start_service):
    made = await start_service(live=LiveClusterOptions(max_unconfirmed=3))
    set_patience(made, 0.05)
    await until(lambda: made.live.steering_instructions.synced)
    await until(partial(can_steer, made, SMALL, "a"))
    observer.answer = ""
    await create(nodes, made, SMALL, NEXT)
    assert all(assume(made.live, each, "a").admits for each in (SMALL, NEXT))

    steered: list[Steered] = []
    for each in (SMALL, NEXT):
        known = made.live.find_pod("default", each.name)
        assert known is not None
        made.live.scheduling.steering.begin(made.live.facts(known), "a", steered.append)

    # Both were assumed before, so neither can be steered: the other one may come first.
    assert [each.text for each in steered] == ["", ""]
    assert observer.specs == []


@pytest.fixture
async def claims(server, service):
    for document in (device_class(), template(), resource_slice("a", (0, 1))):
        server.put(document)
    known = service.live.claims
    await until(lambda: known.devices == 2 and known.objects.templates and known.objects.classes)


@pytest.mark.parametrize(("device", "numa_node"), [("gpu-0", 1), ("gpu-1", 2)])
@pytest.mark.parametrize("preference", ["prefer", "require"])
async def test_cpus_and_memory_come_beside_the_devices_of_claims(
    http, nodes, service, steering, observer, *, claims, device, numa_node, preference
):
    asked = claiming(marked(pod("asked", cpu="2", memory="1Gi")), preference=preference)
    document = api_pod(asked, phase="Pending")
    document["status"]["resourceClaimStatuses"] = [{"name": "gpu", "resourceClaimName": "asked-gpu"}]
    nodes.server.put(document)
    nodes.server.put(claim("asked-gpu", [device], "a"))
    await until(lambda: service.live.find_pod("default", "asked"))
    assert (await filtered(http, asked, names=["a"]))["NodeNames"] == ["a"]

    assert await bound(http, asked, "a") == ""

    assert annotations(nodes, "asked")[STEERED_ANNOTATION].endswith("because of claim gpu")
    observer.admit("a")
    assert observer.numa_nodes("a", "asked") == numa_node
    name = "alignup_claimed_pods_total"
    assert service.metrics.registry.get_sample_value(name, {"alignment": "aligned"}) == 1


async def test_explanations_say_where_a_pod_is_steered_to_and_why(http, nodes, service, steering, observer):
    await create(nodes, service, SMALL)

    rows = (await http.get("/v1/explain/default/small")).json()["nodes"]
    assert [row["steering"] for row in rows] == [f"steered to NUMA node 1 (annotation {NUMA_ANNOTATION})"] * 2
    assert rows[0]["placements"][0]["given"]["cpu"] == {"cpu": "4-5"}

    await bound(http, SMALL, "a")
    await confirmed(service, observer, "a", "small")
    await until(lambda: service.live.find_pod("default", "small").spec.node_name)
    (row,) = (await http.get("/v1/explain/default/small?node=a")).json()["nodes"]
    assert row["steering"] == f"steered to NUMA node 1 (annotation {NUMA_ANNOTATION})"
    assert row["placements"][0]["given"]["cpu"] == {"cpu": "4-5"}


async def test_answers_of_nodes_name_the_claim_that_a_pod_is_steered_by(client, nodes, observer, server):
    asked = claiming(marked(pod("asked", cpu="2", memory="1Gi")), claim="asked-gpu")
    for document in (device_class(), resource_slice("a", (0, 1)), claim("asked-gpu", ["gpu-1"], "a")):
        server.put(document)
    view = await read_cluster(client, with_claims=True)

    answers = {answer.node: answer for answer in iterate_answers(view, asked, ApiPodSpec())}

    assert answers["a"].numa_nodes == "steered to NUMA node 1 because of claim gpu"
    assert [claim.aligned for claim in answers["a"].claims] == [True]
    assert answers["b"].excluded


async def test_markers_are_in_no_table_and_no_picture(client, observer):
    view = await read_cluster(client)
    host = present_host(view.cluster, "a")
    assert host is not None
    assert all(MARKER not in free for free in free_by_numa_node(host).values())
    assert all(bar.resource != MARKER for node in measure_bars(host) for bar in node.bars)
    assert MARKER not in str(layout_machine(host.machine, host.ledger).frames)
