"""The checks of ``e2e.cluster_load`` can fail; no program of Kubernetes is needed, only the simulated API server."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from alignup.kubernetes.api import NODES, PODS, Access
from alignup.schedule.cluster_facts import PLACEMENT_ANNOTATION
from alignup.testing.api_server import ApiServer
from e2e import cluster_load
from e2e.cluster_load import ClusterLoad, LoadedNodes, PersistentClient, check_load, check_memory, replace_nodes
from e2e.definitions import define_host_states
from e2e.simulated_cluster import pod
from tests.deadlines import until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def client() -> AsyncIterator[PersistentClient]:
    async with ApiServer() as server, PersistentClient(Access(server=server.url, source="the test")) as made:
        await define_host_states(made)
        yield made


@pytest.fixture
async def load(client: PersistentClient) -> AsyncIterator[ClusterLoad]:
    """One node, and no pods yet."""
    nodes = LoadedNodes(client, random.Random(1))
    await nodes.add("node-0")
    async with nodes.working():
        yield ClusterLoad(client, nodes, rate=10.0, gated=0.0, seed=1)


async def come(load: ClusterLoad, client: PersistentClient, name: str, cpus: int, promised: str = "") -> None:
    """Bind a pod, and wait until its kubelet has decided on it."""
    document: dict[str, Any] = pod(name, cpus)
    for container in document["spec"]["containers"]:  # an API server adds them
        container["resources"]["requests"] = container["resources"]["limits"]
    if promised:
        placement = [{"container": "app", "given": {"cpu": {"cpu": promised}}}]
        document["metadata"]["annotations"] = {PLACEMENT_ANNOTATION: json.dumps(placement)}
    await client.create(PODS, document, namespace="default")
    load.created += 1
    await client.bind(PODS.at(name, namespace="default"), "node-0")
    await until(lambda: name in load.nodes.running or name in load.nodes.rejected)


async def test_pods_as_promised_pass(
    load: ClusterLoad, client: PersistentClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_load, "LIFE", (0.0, 0.1))
    await come(load, client, "first", 2, "1-2")
    await load.finish(str)
    check_load(load, "test")
    assert load.nodes.deviations == 0


async def test_a_rejected_pod_fails(load: ClusterLoad, client: PersistentClient) -> None:
    await come(load, client, "first", 4)
    await come(load, client, "second", 4)
    with pytest.raises(AssertionError, match=r"rejected: \['second'\]"):
        check_load(load, "test")


async def test_cpus_that_are_promised_twice_fail(load: ClusterLoad, client: PersistentClient) -> None:
    await come(load, client, "first", 2, "1-2")
    await come(load, client, "second", 1, "2")
    await until(lambda: load.nodes.deviations == 1)
    with pytest.raises(AssertionError, match=r"promised twice: \['second on node-0'\]"):
        check_load(load, "test")


async def test_a_pod_that_never_comes_fails(
    load: ClusterLoad, client: PersistentClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_load, "PATIENCE", 0.2)
    await client.create(PODS, pod("lost", 1), namespace="default")
    load.created += 1
    with pytest.raises(AssertionError, match="0 of 1 pods came"):
        check_load(load, "test")
    with pytest.raises(AssertionError, match="only 0 of 1 pods came"):
        await load.admitted(1, str)
    with pytest.raises(AssertionError, match="0 of 1 pods ended"):
        await load.finish(str)


@pytest.mark.parametrize(("seconds", "end", "fails"), [(1200, 104.0, False), (1200, 106.0, True), (60, 106.0, False)])
def test_memory_that_grows_in_a_long_run_fails(*, seconds: float, end: float, fails: bool) -> None:
    memory = [(seconds * part / 100, 50.0 if part < 20 else 100.0 if part < 80 else end) for part in range(101)]
    if fails:
        with pytest.raises(AssertionError, match="memory has grown"):
            check_memory(memory, seconds)
    else:
        check_memory(memory, seconds)


async def test_a_node_is_removed_although_the_replacement_stops(load: ClusterLoad, client: PersistentClient) -> None:
    """A node that stays cordoned keeps the pods that are released to it from ever being bound."""
    document: dict[str, Any] = pod("released", 1)
    document["metadata"]["annotations"] = {"alignup.dev/node": "node-0"}
    await client.create(PODS, document, namespace="default")
    await until(lambda: load.nodes.waiting == 1)
    replacing = asyncio.create_task(replace_nodes(load.nodes, 1))
    await until(lambda: "node-1" in load.nodes.kubelets)
    async with asyncio.timeout(30):
        while not (await client.get(NODES.at("node-0"))).spec.unschedulable:
            pass

    replacing.cancel()
    await asyncio.gather(replacing, return_exceptions=True)
    await client.delete(PODS.at("released", namespace="default"), grace_period=0)

    await until(lambda: list(load.nodes.kubelets) == ["node-1"])
