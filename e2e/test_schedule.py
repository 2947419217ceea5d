"""An unmodified kube-scheduler with our extender sends pods only to nodes whose kubelets admit them."""

import asyncio
import json
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from alignup.align import bits
from alignup.kubernetes.api import NODES, PODS, ApiClient, PatchType, Resource, find_access
from alignup.kubernetes.api.connection import Connection
from alignup.kubernetes.api.host_states import HOST_STATES
from alignup.kubernetes.api.objects import PartialObject
from alignup.kubernetes.api.resource import ApiRequest
from alignup.schedule.cluster_facts import PLACEMENT_ANNOTATION
from e2e import control_plane
from e2e.control_plane import ControlPlane, extenders, free_ports
from e2e.definitions import define_host_states
from e2e.fake_nodes import FakeNodes
from e2e.marks import needs
from e2e.schedule_replicas import NAMESPACE, extender_replicas

pytestmark = [needs(control_plane.missing()), pytest.mark.anyio]

SECONDS = 90.0  #: for what takes seconds
PRIORITY_CLASSES = Resource(
    type=PartialObject, group="scheduling.k8s.io", kind="PriorityClass", plural="priorityclasses"
)
NAMESPACES = Resource(type=PartialObject, kind="Namespace", plural="namespaces")


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    flags = ("--disable-admission-plugins=ServiceAccount",)
    with ControlPlane(tmp_path, nodes=("a", "b", "c"), flags=flags) as control:
        yield control


@contextmanager
def service(plane: ControlPlane, port: int, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``alignup schedule``, with *more* options."""
    config = plane.kubeconfig(plane.directory / "alignup.json")
    options = ("--kubeconfig", str(config), "--listen", f"127.0.0.1:{port}", "--no-leader-elect", *more)
    with (plane.directory / "alignup.log").open("ab") as log:
        process = subprocess.Popen([sys.executable, "-m", "alignup", "schedule", *options], stderr=log)
        try:
            yield process
        finally:
            process.terminate()
            process.wait()


async def until(condition: Callable[[], object], plane: ControlPlane) -> None:
    try:
        async with asyncio.timeout(SECONDS):
            while not condition():  # noqa: ASYNC110 - a condition without an event
                await asyncio.sleep(0.05)
    except TimeoutError:
        scheduler = plane.log("kube-scheduler") if (plane.directory / "kube-scheduler.log").exists() else ""
        raise AssertionError(plane.log("alignup", 6000) + scheduler) from None


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - http
        content: bytes = answer.read()
        return content


def is_ready(port: int) -> bool:
    try:
        return bool(get(f"http://127.0.0.1:{port}/readyz"))
    except OSError:
        return False


def pod(name: str, cpus: int, *, node: str = "") -> dict[str, Any]:
    """Return a Guaranteed pod; for *node* only, if given."""
    limits = {"cpu": str(cpus), "memory": "1Gi"}
    container = {"name": "app", "image": "none", "resources": {"limits": limits}}
    spec: dict[str, Any] = {"containers": [container], "terminationGracePeriodSeconds": 1}
    if node:
        field = {"key": "metadata.name", "operator": "In", "values": [node]}
        required = {"nodeSelectorTerms": [{"matchFields": [field]}]}
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    return {"metadata": {"name": name}, "spec": spec}


@asynccontextmanager
async def working_nodes(plane: ControlPlane) -> AsyncIterator[tuple[ApiClient, FakeNodes]]:
    """Yield three fake nodes."""
    async with ApiClient(find_access(plane.kubeconfig(plane.directory / "admin.json"))) as client:
        await define_host_states(client)
        nodes = FakeNodes(client)
        for name in ("a", "b", "c"):
            await nodes.add(name)
        async with nodes.working():
            yield client, nodes


@asynccontextmanager
async def scheduled_cluster(plane: ControlPlane) -> AsyncIterator[tuple[ApiClient, FakeNodes, int]]:
    """Yield three fake nodes, the service, and a scheduler that asks it."""
    (port,) = free_ports(1)
    async with working_nodes(plane) as (client, nodes):
        with service(plane, port):
            await until(lambda: is_ready(port), plane)
            plane.start_scheduler(extenders(port))
            yield client, nodes, port


async def messages(client: ApiClient) -> str:
    return (await client.get_raw("/api/v1/namespaces/default/events")).decode()


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
        events = ""
        async with asyncio.timeout(SECONDS):
            while "nodes are available" not in events:
                events = await messages(client)
        assert "Insufficient cpu" in events  # the scheduler's own check

        await client.delete(PODS.at("pod-0", namespace="default"))
        await until(lambda: "seventh" in nodes.running, plane)
        assert nodes.rejected == []


async def test_a_scheduler_sends_the_token_of_its_url(plane: ControlPlane) -> None:
    (port,) = free_ports(1)
    token = plane.directory / "token"
    token.write_text("c2VjcmV0+/==")
    token.chmod(0o600)
    async with working_nodes(plane) as (client, nodes):
        with service(plane, port, "--token-file", str(token)):
            await until(lambda: is_ready(port), plane)
            await client.create(PODS, pod("pod", 4), namespace="default")
            plane.start_scheduler(extenders(port))
            await until(lambda: "401" in plane.log_lines("kube-scheduler", "extender"), plane)
            assert not nodes.running
            plane.start_scheduler(extenders(port, token="c2VjcmV0%2B%2F%3D%3D"))  # noqa: S106 - made up
            await until(lambda: "pod" in nodes.running, plane)


def _is_missing(name: str, names: Collection[str]) -> bool:
    return name not in names


async def test_a_large_pod_is_not_overtaken_for_ever(plane: ControlPlane) -> None:
    """Small pods come as fast as others end, so that no node ever has room for a large one."""
    (port,) = free_ports(1)
    async with working_nodes(plane) as (client, nodes):
        with service(plane, port, "--patience", "2"):
            await until(lambda: is_ready(port), plane)
            plane.start_scheduler(extenders(port))
            for number in range(9):
                await client.create(PODS, pod(f"small-{number}", 2), namespace="default")
            await until(lambda: len(nodes.running) == 9, plane)
            await client.create(PODS, pod("large", 4), namespace="default")
            number = 8
            async with asyncio.timeout(SECONDS):
                while "large" not in nodes.running:
                    oldest = min((name for name in nodes.running), key=lambda name: int(name.partition("-")[2]))
                    number += 1
                    await client.create(PODS, pod(f"small-{number}", 2), namespace="default")
                    await client.delete(PODS.at(oldest, namespace="default"))
                    await until(partial(_is_missing, oldest, nodes.running), plane)
                    await asyncio.sleep(0.5)  # for the scheduler to try the pods that wait

            assert nodes.rejected == []
            assert "node kept" in plane.log("alignup", 1_000_000)


async def test_reasons_are_grouped_and_room_in_a_report_wakes_a_pod(plane: ControlPlane) -> None:
    """The nodes have room in total, but not on one NUMA node."""
    async with scheduled_cluster(plane) as (client, nodes, port):
        for number, node in enumerate("abcabc"):  # 3 CPUs are left on each node, at most 2 of them on one NUMA node
            await client.create(PODS, pod(f"pod-{number}", 2, node=node), namespace="default")
        await until(lambda: len(nodes.running) == 6, plane)
        await client.create(PODS, pod("wide", 3), namespace="default")
        events = ""
        async with asyncio.timeout(SECONDS):
            while "not enough cpu on one NUMA node" not in events:
                events = await messages(client)

        assert "0/3 nodes are available: 3 not enough cpu on one NUMA node. " in events
        assert "expected at least one victim" not in events
        explained = await asyncio.to_thread(get, f"http://127.0.0.1:{port}/v1/explain/default/wide")
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
        events = ""
        async with asyncio.timeout(SECONDS):
            while "connection refused" not in events:
                events = await messages(client)
        assert "waiting" not in nodes.running
        with service(plane, port):
            await until(lambda: "waiting" in nodes.running, plane)
        bound = await client.get(PODS.at("waiting", namespace="default"))
        assert PLACEMENT_ANNOTATION in bound.metadata.annotations


async def test_a_standby_takes_over_and_no_kubelet_rejects_a_pod(plane: ControlPlane) -> None:
    """The first leader is killed right after it bound pods, so that the next one has to know of them."""
    async with working_nodes(plane) as (client, nodes), AsyncExitStack() as stack:
        await client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        replicas = extender_replicas(plane, count=2)
        service = await asyncio.to_thread(replicas.__enter__)
        stack.push_async_callback(asyncio.to_thread, replicas.__exit__, None, None, None)
        for number in range(3):
            await client.create(PODS, pod(f"first-{number}", 4), namespace="default")
        await until(lambda: len(nodes.running) + len(nodes.rejected) == 3, plane)
        await asyncio.to_thread(service.kill_leader)
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

        urgent = pod("urgent", 4)
        urgent["spec"]["priorityClassName"] = "urgent"
        await client.create(PODS, urgent, namespace="default")
        await until(lambda: "urgent" in nodes.running, plane)

        evicted = {f"pod-{number}-{cpus}" for number in range(3) for cpus in (4, 3)} - nodes.running.keys()
        assert [name[-1] for name in evicted] == ["4"]
        assert nodes.rejected == []
        entries = [json.loads(line) for line in plane.log_lines("alignup", "preempt").splitlines()]
        assert ("preempt", "default/urgent") in [(entry["event"], entry.get("pod")) for entry in entries]


async def test_objects_that_cannot_be_read_stop_nothing(plane: ControlPlane) -> None:
    """A pod whose amounts overflow, a forged mirror pod, and a HostState that is nested too deeply."""
    ports = free_ports(2)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            ApiClient(find_access(plane.kubeconfig(plane.directory / "admin.json")))
        )
        connection = Connection(client.access, client.timing)
        stack.push_async_callback(connection.close)
        await define_host_states(client)
        nodes = FakeNodes(client)
        for name in ("a", "b", "c"):
            await nodes.add(name)
        with service(plane, ports[0]):
            await until(lambda: is_ready(ports[0]), plane)
            huge = pod("huge", 1)
            huge["spec"] |= {"nodeName": "a"}
            limits = {"cpu": "1e20000"}
            huge["spec"]["containers"].append({"name": "huge", "image": "none", "resources": {"limits": limits}})
            await client.create(PODS, huge, namespace="default")
            victim, forged = pod("victim", 4), pod("forged", 1)
            victim["spec"]["nodeName"] = forged["spec"]["nodeName"] = "b"
            uid = (await client.create(PODS, victim, namespace="default")).metadata.uid
            owner = {
                "apiVersion": "v1",
                "kind": "Node",
                "name": "b",
                "uid": (await client.get(NODES.at("b"))).metadata.uid,
            }
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
                await until(lambda: verdicts(ports[0])["c"] == "unknown", plane)
            assert verdicts(ports[0]) == {"a": "unknown", "b": "rejects", "c": "unknown"}
            text = get(f"http://127.0.0.1:{ports[0]}/readyz").decode()
            assert text.startswith("ok\n2 objects cannot be read: ")
            assert "default/huge" in text
            assert "HostState c" in text
        with service(plane, ports[1]):  # it starts again with all of them in place
            await until(lambda: is_ready(ports[1]), plane)
            assert verdicts(ports[1]) == {"a": "unknown", "b": "rejects", "c": "unknown"}


def verdicts(port: int) -> dict[str, str]:
    """Return what each node would decide about the pod ``asked``."""
    answer = json.loads(get(f"http://127.0.0.1:{port}/v1/explain/default/asked"))
    return {row["node"]: row["verdict"] for row in answer["nodes"]}
