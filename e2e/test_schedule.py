"""An unmodified kube-scheduler with our extender sends pods only to nodes whose kubelets admit them."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count

import pytest

from alignup.align import bits
from alignup.kubernetes.api import NODES, PODS, ApiClient, PatchType, Resource
from alignup.kubernetes.api.connection import Connection
from alignup.kubernetes.api.host_states import HOST_STATES
from alignup.kubernetes.api.objects import PartialObject
from alignup.kubernetes.api.resource import ApiRequest
from alignup.schedule.cluster_facts import PLACEMENT_ANNOTATION
from e2e import control_plane
from e2e.control_plane import ControlPlane, extenders, free_ports
from e2e.fake_nodes import FakeNodes
from e2e.marks import needs
from e2e.schedule_replicas import NAMESPACE, Replica, extender_replicas
from e2e.simulated_cluster import (
    NAMESPACES,
    idle_nodes,
    in_thread,
    pod,
    poll,
    running_service,
    until,
    wait_event,
    working_nodes,
)

pytestmark = [needs(control_plane.missing()), pytest.mark.anyio]

LOG = "alignup-schedule"
PRIORITY_CLASSES = Resource(
    type=PartialObject, group="scheduling.k8s.io", kind="PriorityClass", plural="priorityclasses"
)


@asynccontextmanager
async def scheduled_cluster(plane: ControlPlane, *options: str) -> AsyncIterator[tuple[ApiClient, FakeNodes, Replica]]:
    """Yield three nodes, the service with *options*, and a scheduler that asks it."""
    async with working_nodes(plane) as (client, nodes), running_service(plane, *options) as service:
        plane.start_scheduler(extenders(service.port))
        yield client, nodes, service


async def test_no_kubelet_rejects_a_pod_and_a_waiting_pod_is_woken(plane: ControlPlane) -> None:
    """Two NUMA nodes with 3 and 4 CPUs on each of three nodes: six pods fill them exactly, a seventh waits."""
    async with scheduled_cluster(plane) as (client, nodes, _):
        for number, cpus in enumerate((4, 4, 4, 3, 3, 3)):
            await client.create(PODS, pod(f"pod-{number}", cpus), namespace="default")
            if number == 2:
                await until(lambda: len(nodes.running) + len(nodes.rejected) == 3, plane)
        await until(lambda: len(nodes.running) + len(nodes.rejected) == 6, plane)

        assert nodes.rejected == []
        assert sorted(nodes.running.values()) == ["a", "a", "b", "b", "c", "c"]
        first = await client.get(PODS.at("pod-0", namespace="default"))
        predicted = json.loads(first.metadata.annotations[PLACEMENT_ANNOTATION])
        held = nodes.kubelets[first.spec.node_name].host.ledger.cpus.holds(first.metadata.uid, "app")
        assert predicted[0]["given"]["cpu"] == {"cpu": bits.show(held or 0)} == {"cpu": "4-7"}

        await client.create(PODS, pod("seventh", 4), namespace="default")
        events = await wait_event(client, "nodes are available", plane)
        assert "Insufficient cpu" in events  # the scheduler's own check

        await client.delete(PODS.at("pod-0", namespace="default"))
        await until(lambda: "seventh" in nodes.running, plane)
        assert nodes.rejected == []


async def test_a_scheduler_sends_the_token_of_its_url(plane: ControlPlane) -> None:
    token = plane.directory / "token"
    token.write_text("c2VjcmV0+/==")
    token.chmod(0o600)
    async with scheduled_cluster(plane, "--token-file", str(token)) as (client, nodes, service):
        await client.create(PODS, pod("pod", 4), namespace="default")
        await until(lambda: "401" in plane.log_lines("kube-scheduler", "extender"), plane)
        assert not nodes.running
        plane.start_scheduler(extenders(service.port, token="c2VjcmV0%2B%2F%3D%3D"))  # noqa: S106 - made up
        await until(lambda: "pod" in nodes.running, plane)


async def test_a_large_pod_is_not_overtaken_for_ever(plane: ControlPlane) -> None:
    """Small pods come as fast as others end, so that no node ever has room for a large one."""
    async with scheduled_cluster(plane, "--patience", "2") as (client, nodes, _):
        for number in range(9):
            await client.create(PODS, pod(f"small-{number}", 2), namespace="default")
        await until(lambda: len(nodes.running) == 9, plane)
        await client.create(PODS, pod("large", 4), namespace="default")
        numbers = count(9)

        async def replace_oldest() -> bool:
            oldest = min((name for name in nodes.running), key=lambda name: int(name.partition("-")[2]))
            await client.create(PODS, pod(f"small-{next(numbers)}", 2), namespace="default")
            await client.delete(PODS.at(oldest, namespace="default"))
            await until(lambda: oldest not in nodes.running, plane)
            await asyncio.sleep(0.5)  # for the scheduler to try the pods that wait
            return "large" in nodes.running

        await poll(replace_oldest, plane)
        assert nodes.rejected == []
        assert "node kept" in plane.log(LOG, 1_000_000)


async def test_reasons_are_grouped_and_room_in_a_report_wakes_a_pod(plane: ControlPlane) -> None:
    """The nodes have room in total, but not on one NUMA node."""
    async with scheduled_cluster(plane) as (client, nodes, service):
        for number, node in enumerate("abcabc"):  # 3 CPUs are left on each node, at most 2 of them on one NUMA node
            field = {"key": "metadata.name", "operator": "In", "values": [node]}
            required = {"nodeSelectorTerms": [{"matchFields": [field]}]}
            affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
            await client.create(PODS, pod(f"pod-{number}", 2, affinity=affinity), namespace="default")
        await until(lambda: len(nodes.running) == 6, plane)
        await client.create(PODS, pod("wide", 3), namespace="default")
        events = await wait_event(client, "not enough cpu on one NUMA node", plane)

        assert "0/3 nodes are available: 3 not enough cpu on one NUMA node. " in events
        assert "expected at least one victim" not in events
        explained = await asyncio.to_thread(service.get, "/v1/explain/default/wide")
        assert json.loads(explained)["counts"] == {"admits": 0, "rejects": 3, "unknown": 0}

        await client.delete(PODS.at("pod-0", namespace="default"))
        await until(lambda: "wide" in nodes.running, plane)
        assert nodes.rejected == []


async def test_while_the_service_is_down_pods_wait_or_are_scheduled_without_it(plane: ControlPlane) -> None:
    """``ignorable`` in the configuration of the scheduler says which."""
    (port,) = free_ports(1)
    async with working_nodes(plane) as (client, nodes):
        plane.start_scheduler(extenders(port, ignorable=True))
        await client.create(PODS, pod("ignoring", 2), namespace="default")
        await until(lambda: "ignoring" in nodes.running, plane)
        bound = await client.get(PODS.at("ignoring", namespace="default"))
        assert PLACEMENT_ANNOTATION not in bound.metadata.annotations

        plane.start_scheduler(extenders(port))
        await client.create(PODS, pod("waiting", 2), namespace="default")
        await wait_event(client, "connection refused", plane)
        assert "waiting" not in nodes.running
        async with running_service(plane, port=port):
            await until(lambda: "waiting" in nodes.running, plane)
        bound = await client.get(PODS.at("waiting", namespace="default"))
        assert PLACEMENT_ANNOTATION in bound.metadata.annotations


async def test_a_standby_takes_over_and_no_kubelet_rejects_a_pod(plane: ControlPlane) -> None:
    """The first leader is killed right after it bound pods, so that the next one has to know of them."""
    async with working_nodes(plane) as (client, nodes):
        await client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        async with in_thread(extender_replicas(plane, count=2)) as replicas:
            for number in range(3):
                await client.create(PODS, pod(f"first-{number}", 4), namespace="default")
            await until(lambda: len(nodes.running) + len(nodes.rejected) == 3, plane)
            await asyncio.to_thread(replicas.kill_leader)
            for number, cpus in enumerate((4, 3, 3, 3)):  # the first one fits nowhere any more
                await client.create(PODS, pod(f"second-{number}", cpus), namespace="default")

            await until(lambda: len(nodes.running) + len(nodes.rejected) == 6, plane)
            assert nodes.rejected == []
            assert "second-0" not in nodes.running


async def test_an_urgent_pod_takes_the_place_of_one_whose_end_admits_it(plane: ControlPlane) -> None:
    """The nodes are full, so kube-scheduler asks which pods to evict."""
    async with scheduled_cluster(plane) as (client, nodes, _):
        await client.create(PRIORITY_CLASSES, {"metadata": {"name": "urgent"}, "value": 1000})
        for cpus in (4, 3):
            for number in range(3):
                await client.create(PODS, pod(f"pod-{number}-{cpus}", cpus), namespace="default")
            await until(lambda: len(nodes.running) >= (3 if cpus == 4 else 6), plane)  # noqa: B023 - called at once

        await client.create(PODS, pod("urgent", 4, priorityClassName="urgent"), namespace="default")
        await until(lambda: "urgent" in nodes.running, plane)

        evicted = {f"pod-{number}-{cpus}" for number in range(3) for cpus in (4, 3)} - nodes.running.keys()
        assert [name[-1] for name in evicted] == ["4"]
        assert nodes.rejected == []
        entries = [json.loads(line) for line in plane.log_lines(LOG, "preempt").splitlines()]
        assert ("preempt", "default/urgent") in [(entry["event"], entry.get("pod")) for entry in entries]


async def test_objects_that_cannot_be_read_stop_nothing(plane: ControlPlane) -> None:
    """A pod whose amounts overflow, a forged mirror pod, and a HostState that is nested too deeply."""
    async with idle_nodes(plane) as (client, _), AsyncExitStack() as stack:
        connection = Connection(client.access, client.timing)
        stack.push_async_callback(connection.close)
        async with running_service(plane) as service:
            huge = pod("huge", 1, nodeName="a")
            limits = {"cpu": "1e20000"}
            huge["spec"]["containers"].append({"name": "huge", "image": "none", "resources": {"limits": limits}})
            await client.create(PODS, huge, namespace="default")
            victim, forged = (pod(name, cpus, nodeName="b") for name, cpus in (("victim", 4), ("forged", 1)))
            uid = (await client.create(PODS, victim, namespace="default")).metadata.uid
            node = await client.get(NODES.at("b"))
            owner = {"apiVersion": "v1", "kind": "Node", "name": "b", "uid": node.metadata.uid}
            annotations = {"kubernetes.io/config.mirror": uid, "kubernetes.io/config.hash": uid}
            forged["metadata"] |= {"annotations": annotations, "ownerReferences": [owner]}
            await client.create(PODS, forged, namespace="default")
            await client.delete(PODS.at("forged", namespace="default"), grace_period=0)
            await client.create(PODS, pod("asked", 4), namespace="default")
            for depth in (600, 3_000):
                nested = b'{"generation":%d,"machine":{"deep":%b%b}}' % (depth, b"[" * depth, b"]" * depth)
                path = HOST_STATES.at("c").path
                request = ApiRequest(
                    description="nest", path=path, method="PATCH", body=nested, content_type=PatchType.MERGE
                )
                await connection.send(request)
                await until(lambda: verdicts(service)["c"] == "unknown", plane)
            assert verdicts(service) == {"a": "unknown", "b": "rejects", "c": "unknown"}
            text = service.get("/readyz")
            assert text.startswith("ok\n2 objects cannot be read: ")
            assert "default/huge" in text
            assert "HostState c" in text
        async with running_service(plane) as service:  # it starts again with all of them in place
            assert verdicts(service) == {"a": "unknown", "b": "rejects", "c": "unknown"}


def verdicts(service: Replica) -> dict[str, str]:
    """Return what each node would decide about the pod ``asked``."""
    answer = json.loads(service.get("/v1/explain/default/asked"))
    return {row["node"]: row["verdict"] for row in answer["nodes"]}
