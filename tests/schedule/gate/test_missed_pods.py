"""Pods that opted in to the gate, and were created without it."""

from contextlib import asynccontextmanager

import pytest

from alignup.align.reason_codes import GATE_MISSED
from alignup.schedule.cluster_facts import GATE
from alignup.schedule.gate.admission import LABEL, OPT_IN, OPT_OUT
from alignup.schedule.gate.metrics import GateMetrics
from alignup.schedule.gate.missed_pods import MESSAGE, MissedPods
from alignup.testing.api_server import ApiFault
from tests.align.hosts import pod
from tests.deadlines import until
from tests.kubernetes.api.conftest import log
from tests.kubernetes.api.tasks import running
from tests.observe.api_objects import api_pod
from tests.schedule.gate.simulated import GatedCluster, settle

__all__ = ["log"]

pytestmark = pytest.mark.anyio


def namespace(name="default", label=OPT_IN):
    metadata = {"name": name, "labels": {LABEL: label} if label else {}}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def new_pod(name="missed", *, namespace="default", label="", owner="", annotations=None, **spec):
    document = api_pod(pod(name), phase="Pending", **spec)
    document["metadata"]["namespace"] = namespace
    document["metadata"] |= {"labels": {LABEL: label}} if label else {}
    document["metadata"] |= {"annotations": annotations} if annotations else {}
    if owner:
        reference = {"apiVersion": "apps/v1", "kind": owner, "name": "o", "uid": "o", "controller": True}
        document["metadata"]["ownerReferences"] = [reference]
    return document


@pytest.fixture
def metrics():
    return GateMetrics()


def count(metrics):
    return metrics.registry.get_sample_value("alignup_gate_missed_pods_total")


@asynccontextmanager
async def notice_missed(client, live, metrics):
    """Notice missed pods, as a leader does."""
    made = MissedPods(client, live, metrics, schedulers=frozenset({"default-scheduler"}))
    async with running() as start:
        start(made.run())
        await until(lambda: made.following)
        yield made


@pytest.fixture
async def follower(server, live, client, metrics):
    """What notices missed pods, in a leader."""
    server.put(namespace())
    async with notice_missed(client, live, metrics) as made:
        yield made


@pytest.fixture
def cluster(server, client):
    """Nodes without a scheduler, so that pods stay as they are created."""
    made = GatedCluster(server, client)
    made.add("a")
    return made


async def test_a_pod_of_a_namespace_that_opted_in_is_noticed(server, cluster, follower, metrics, log):
    assert count(metrics) == 0
    server.put(new_pod())
    await until(cluster.events)

    assert cluster.events() == [("missed", GATE_MISSED, MESSAGE)]
    assert count(metrics) == 1
    assert [entry["pod"] for entry in log if entry["event"] == "pod created without the gate"] == ["default/missed"]


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(new_pod("p", schedulingGates=[{"name": GATE}]), id="it has the gate"),
        pytest.param(new_pod("p", label=OPT_OUT), id="it opted out"),
        pytest.param(new_pod("p", nodeName="a"), id="its node was given"),
        pytest.param(new_pod("p", owner="DaemonSet"), id="it belongs to a DaemonSet"),
        pytest.param(new_pod("p", schedulerName="other"), id="another scheduler places it"),
        pytest.param(new_pod("p", annotations={"alignup.dev/node": "a"}), id="it was released"),
    ],
)
async def test_a_pod_that_the_webhook_leaves_alone_is_not_missed(server, live, metrics, *, follower, document):
    server.put(document)
    await until(lambda: live.find_pod("default", "p"))
    assert count(metrics) == 0


async def test_in_other_namespaces_pods_with_the_label_count(server, cluster, follower, metrics):
    server.put(namespace("other", label=""))
    server.put(new_pod("plain", namespace="other"))
    server.put(new_pod("labeled", namespace="other", label=OPT_IN))
    await until(cluster.events)
    assert cluster.events() == [("labeled", GATE_MISSED, MESSAGE)]
    assert count(metrics) == 1


async def test_pods_of_before_are_not_judged_after_a_restart(server, live, client, metrics, *, follower):
    server.put(new_pod("old"))
    await until(lambda: count(metrics) == 1)
    async with notice_missed(client, live, metrics):
        server.put({**new_pod("old"), "status": {"phase": "Running"}})  # a change is no creation
        await until(lambda: live.find_pod("default", "old").status.phase == "Running")
        await settle()
        assert count(metrics) == 1


async def test_without_the_permission_to_read_namespaces_labels_of_pods_count(server, live, client, metrics):
    server.inject(ApiFault(status=403, times=10_000), resource="namespaces")
    async with notice_missed(client, live, metrics):
        server.put(new_pod("labeled", label=OPT_IN))
        await until(lambda: count(metrics) == 1)
