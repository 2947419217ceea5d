"""Which pods get requests for markers when they are created."""

import base64
import json

import pytest

from alignup.align.machine import Device
from alignup.align.workload.names import MARKER
from alignup.schedule.gate.marker_admission import (
    NO_MARKERS,
    NOTHING_TO_STEER,
    STEER_LABEL,
    MarkerOutcome,
    MarkerReviews,
)
from alignup.testing.api_server.patches import json_patch
from alignup.testing.simulated_kubelet import DEVICES
from tests.deadlines import until
from tests.observe.kubelets import ObservedKubelet
from tests.schedule.gate.test_admission import owned, review
from tests.schedule.observers import MARKERS, add_marked_node

pytestmark = pytest.mark.anyio

SMALL = {"cpu": "2", "memory": "1Gi"}


def container(name="app", **more):
    return {"name": name, "resources": {"requests": dict(SMALL), "limits": dict(SMALL)}, **more}


def new_pod(*containers, metadata=None, **spec):
    metadata = {"generateName": "web-", "namespace": "default", **(metadata or {})}
    return {"metadata": metadata, "spec": {"containers": list(containers) or [container()], **spec}}


@pytest.fixture
async def ask(cluster, live):
    """Ask about a pod: the result, the pod as the API server would create it, and the warnings."""
    add_marked_node(cluster, "a")
    await until(lambda: MARKER in live.cluster.record("a").ledger.devices.inventories)
    counted: list[str] = []
    reviews = MarkerReviews(live, counted.append)

    def made(obj, **request):
        answered = json.loads(reviews.answer(json.dumps(review(obj, **request)).encode()))
        response = answered["response"]
        assert (response["uid"], response["allowed"]) == ("7", True)
        operations = json.loads(base64.b64decode(response.get("patch", "W10=")))
        return counted.pop(), json_patch(obj or {}, operations), response.get("warnings", [])

    return made


def markers(obj):
    spec = obj["spec"]
    each = [part["resources"] for part in (*spec.get("initContainers", ()), *spec["containers"])]
    return [(part.get("requests", {}).get(MARKER), part.get("limits", {}).get(MARKER)) for part in each]


async def test_every_container_gets_one(ask):
    obj = new_pod(container(), container("b"), initContainers=[container("i")])
    outcome, created, warnings = ask(obj)

    assert (outcome, warnings) == (MarkerOutcome.MARKED, [])
    assert markers(created) == [("1", "1")] * 3
    assert created["spec"]["containers"][0]["resources"]["requests"] == {**SMALL, MARKER: "1"}
    assert ask(created)[0] == MarkerOutcome.ALREADY_MARKED  # the API server asks again


@pytest.mark.parametrize(
    ("obj", "outcome"),
    [
        (new_pod(metadata={"labels": {STEER_LABEL: "false"}}), MarkerOutcome.OPTED_OUT),
        (new_pod(nodeName="a"), MarkerOutcome.NOT_PLACED),
        (new_pod(metadata=owned("DaemonSet", controller=True)), MarkerOutcome.NOT_PLACED),
    ],
)
async def test_pods_that_are_not_steered_stay_as_they_are(ask, obj, outcome):
    assert ask(obj) == (outcome, obj, [])


@pytest.mark.parametrize(
    ("obj", "warning"),
    [
        (new_pod({"name": "app", "resources": {}}), "it is not Guaranteed: requests and limits must be equal"),
        (new_pod(nodeSelector={"disk": "ssd"}), NO_MARKERS),
        (new_pod(nodeSelector={"pool": "b"}), NO_MARKERS),
    ],
)
async def test_a_warning_says_why_a_pod_is_not_steered(ask, obj, warning):
    _, created, warnings = ask(obj)

    assert created == obj
    assert warnings == [f"NotSteered: {STEER_LABEL}: the pod is not steered: {warning}"]


async def test_one_numa_node_must_hold_it_on_all_machines_that_it_may_go_to(ask, cluster, live):
    """Node ``c`` has NUMA nodes of 1 CPU, where a pod of 2 CPUs needs two."""
    cluster.add("c", labels={"size": "tiny"})
    devices = tuple(Device(MARKER, f"n{node}-{number}", nodes=1 << node) for node in range(8) for number in range(8))
    tiny = ObservedKubelet(
        shape="pack:1 numa:8 core:1 pu:1", devices=(*DEVICES, *devices), topologyManagerPolicy="best-effort"
    )
    cluster.kubelets["c"] = tiny
    cluster.report("c")
    await until(lambda: (record := live.cluster.record("c")) and record.ledger.devices.inventories.get(MARKER))

    outcome, created, warnings = ask(new_pod())
    assert (outcome, markers(created)) == (MarkerOutcome.NOT_EVERYWHERE, [(None, None)])
    assert warnings[0].endswith("no NUMA node of node c can hold it")

    cluster.change("c", taints=[{"key": "x", "effect": "NoSchedule"}])
    await until(lambda: live.nodes.get("c").spec.taints)
    assert ask(new_pod())[0] == MarkerOutcome.MARKED


async def test_nothing_is_steered_where_nothing_is_exclusive(ask, cluster, live):
    shared = ObservedKubelet(devices=MARKERS, cpuManagerPolicy="none", memoryManagerPolicy="None", reservedMemory=[])
    cluster.kubelets["a"] = shared
    cluster.report("a")
    await until(lambda: not live.cluster.record("a").model.host.cpus.allocatable)
    assert ask(new_pod())[2][0].endswith(NOTHING_TO_STEER)
