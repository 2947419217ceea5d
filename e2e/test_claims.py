"""Pods with ResourceClaims beside others, with a real API server, scheduler and claim controller.

The nodes are objects without machines; simulated kubelets admit what is bound to them. Their devices are ResourceSlices
that no driver stands behind: the scheduler allocates them all the same.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from alignup.align.workload.names import CLAIMS_ANNOTATION, DEVICE_CLASS_PREFIX
from alignup.kubernetes.api import PODS, ApiClient, find_access
from alignup.kubernetes.api.claim_resources import (
    DEVICE_CLASSES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from alignup.placement.scheduling.options import GateOptions
from alignup.schedule.cluster_facts import GATE
from alignup.schedule.gate.controller import GateController
from alignup.schedule.gate.release_patch import NODE_ANNOTATION
from alignup.schedule.live_cluster import LiveCluster
from e2e import control_plane
from e2e.control_plane import ControlPlane, extenders, free_ports
from e2e.definitions import define_host_states
from e2e.fake_nodes import FakeNodes
from e2e.marks import needs
from e2e.test_schedule import get, is_ready, messages, service, until
from tests.schedule.claim_objects import ENDLESS_SELECTOR, device_class, resource_slice, template

pytestmark = [needs(control_plane.missing()), pytest.mark.anyio]

NODES = ("a", "b", "c")


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    flags = ("--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",)
    with ControlPlane(tmp_path, nodes=NODES, flags=flags) as control:
        control.start_controllers("resourceclaim-controller")
        yield control


def pod(name: str, cpus: int, *, claims: bool = True, resource: str = "", **changes: Any) -> dict[str, Any]:  # noqa: ANN401 - of a pod
    """Return a Guaranteed pod; with a claim of a template, or an extended *resource*."""
    limits = {"cpu": str(cpus), "memory": "1Gi"} | ({resource: "1"} if resource else {})
    resources: dict[str, Any] = {"limits": limits}
    spec: dict[str, Any] = {"terminationGracePeriodSeconds": 1, **changes.get("spec", {})}
    if claims and not resource:
        resources["claims"] = [{"name": "gpu"}]
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": changes.get("template", "gpus")}]
    spec["containers"] = [{"name": "app", "image": "none", "resources": resources}]
    return {"metadata": {"name": name, "annotations": changes.get("annotations", {})}, "spec": spec}


@asynccontextmanager
async def claimed_nodes(
    plane: ControlPlane, **numa_nodes: tuple[int, ...]
) -> AsyncIterator[tuple[ApiClient, FakeNodes]]:
    """Yield nodes, some with devices on these NUMA nodes."""
    async with ApiClient(find_access(plane.kubeconfig(plane.directory / "admin.json"))) as client:
        await define_host_states(client)
        nodes = FakeNodes(client)
        for name in NODES:
            await nodes.add(name)
        await client.create(DEVICE_CLASSES, device_class())
        await client.create(RESOURCE_CLAIM_TEMPLATES, template(), namespace="default")
        for name, places in numa_nodes.items():
            await client.create(RESOURCE_SLICES, resource_slice(name, places))
        async with nodes.working():
            yield client, nodes


async def allocated(client: ApiClient) -> dict[str, list[str]]:
    """Return the devices of each claim."""
    claims = (await client.list(RESOURCE_CLAIMS)).items
    return {
        claim.metadata.name: [f"{result.pool}/{result.device}" for result in claim.status.allocation.devices.results]
        for claim in claims
        if claim.status.allocation is not None
    }


def running(nodes: FakeNodes, *names: str) -> Callable[[], bool]:
    return lambda: all(name in nodes.running or name in nodes.rejected for name in names)


async def test_claim_pods_and_others_are_bound_by_a_scheduler_with_the_extender(plane: ControlPlane) -> None:
    """Four devices and six places for four or three CPUs."""
    (port,) = free_ports(1)
    async with claimed_nodes(plane, a=(0, 1), b=(0, 1)) as (client, nodes):
        with service(plane, port):
            await until(lambda: is_ready(port), plane)
            plane.start_scheduler(extenders(port))
            names = []
            for number in range(3):
                for made in (pod(f"claiming-{number}", 2), pod(f"plain-{number}", 2, claims=False)):
                    await client.create(PODS, made, namespace="default")
                    names.append(made["metadata"]["name"])
            extended = pod("extended", 1, resource=f"{DEVICE_CLASS_PREFIX}gpu")
            await client.create(PODS, extended, namespace="default")
            await until(running(nodes, *names, "extended"), plane)

            assert nodes.rejected == []
            devices = [device for given in (await allocated(client)).values() for device in given]
            assert sorted(devices) == ["a/gpu-0", "a/gpu-1", "b/gpu-0", "b/gpu-1"]
            assert {nodes.running[name] for name in names if name.startswith("claiming")} <= {"a", "b"}
            metrics = get(f"http://127.0.0.1:{port}/metrics").decode()
            counted = [
                float(line.split()[-1])
                for line in metrics.splitlines()
                if line.startswith("alignup_claimed_pods_total")
            ]
            assert sum(counted) == 4


async def test_a_pod_that_requires_alignment_is_not_bound_beside_another_device(plane: ControlPlane) -> None:
    """The scheduler takes the first device, which is on NUMA node 0; four CPUs fit on NUMA node 1 only."""
    (port,) = free_ports(1)
    require = {CLAIMS_ANNOTATION: "require"}
    async with claimed_nodes(plane, a=(0, 1)) as (client, nodes):
        with service(plane, port):
            await until(lambda: is_ready(port), plane)
            plane.start_scheduler(extenders(port))
            await client.create(PODS, pod("strict", 4, annotations=require), namespace="default")
            async with asyncio.timeout(60):
                while "ClaimsNotAligned" not in await messages(client):  # noqa: ASYNC110 - polls the server
                    await asyncio.sleep(0.1)
            events = json.loads(await messages(client))["items"]
            (refused, *_) = [event for event in events if event["reason"] == "ClaimsNotAligned"]
            assert "device gpu-0 is on NUMA node 0, the CPUs and memory will be on NUMA node 1" in refused["message"]
            assert refused["involvedObject"]["name"] == "strict"
            # Another pod takes this device, and the scheduler has to allocate the other one.
            await client.create(PODS, pod("easy", 2, annotations=require), namespace="default")
            await until(running(nodes, "easy", "strict"), plane)
            assert nodes.rejected == []
            assert nodes.running == {"easy": "a", "strict": "a"}
            devices = [device for given in (await allocated(client)).values() for device in given]
            assert sorted(devices) == ["a/gpu-0", "a/gpu-1"]


async def test_gated_claim_pods_and_others_are_bound_and_none_is_stuck(plane: ControlPlane) -> None:
    async with claimed_nodes(plane, a=(0, 1), b=(1,)) as (client, nodes):
        plane.start_scheduler()
        live = LiveCluster(client)
        controller = GateController(client, live, options=GateOptions())
        tasks = [asyncio.ensure_future(live.run()), asyncio.ensure_future(controller.run())]
        try:
            await live.ready.wait()
            gates = {"schedulingGates": [{"name": GATE}]}
            names = []
            for number in range(2):
                for made in (
                    pod(f"claiming-{number}", 2, spec=gates),
                    pod(f"plain-{number}", 2, claims=False, spec=gates),
                ):
                    await client.create(PODS, made, namespace="default")
                    names.append(made["metadata"]["name"])
            extended = pod("extended", 1, resource=f"{DEVICE_CLASS_PREFIX}gpu", spec=gates)
            await client.create(PODS, extended, namespace="default")
            await until(running(nodes, *names, "extended"), plane)
            await client.create(PODS, pod("waiting", 1, spec=gates), namespace="default")
            await until(lambda: controller.gate.queue.blocked, plane)
            assert nodes.rejected == []
            devices = [device for given in (await allocated(client)).values() for device in given]
            assert sorted(devices) == ["a/gpu-0", "a/gpu-1", "b/gpu-0"]
            pods = {each.metadata.name: each for each in (await client.list(PODS)).items}
            assert pods["waiting"].spec.scheduling_gates
            released = [pods[name].metadata.annotations[NODE_ANNOTATION].split(",") for name in names]
            assert max(map(len, released)) > 1
            assert not len(controller.gate.releases)

            await client.delete(PODS.of(pods["claiming-0"]))
            await until(running(nodes, "waiting"), plane)
            assert nodes.rejected == []
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def explained(port: int, name: str) -> bytes:
    """Return the explanation of a pod; an empty one until the service has seen it."""
    with suppress(OSError):
        return get(f"http://127.0.0.1:{port}/v1/explain/default/{name}")
    return b""


async def test_a_selector_that_only_the_scheduler_evaluates_ends_nothing(plane: ControlPlane) -> None:
    """The API server accepts it, and the scheduler evaluates it: the pods run as all others."""
    (port,) = free_ports(1)
    gates = {"schedulingGates": [{"name": GATE}]}
    endless = template("endless", selector=ENDLESS_SELECTOR)
    async with claimed_nodes(plane, a=(0, 1), b=(0, 1), c=(0, 1)) as (client, nodes):
        await client.create(RESOURCE_CLAIM_TEMPLATES, endless, namespace="default")
        with service(plane, port, "--gate") as process:
            await until(lambda: is_ready(port), plane)
            names = []
            for kind, spec in (("gated", gates), ("asked", {})):
                for made in (
                    pod(f"{kind}-endless", 1, spec=spec, template="endless"),
                    pod(f"{kind}-claiming", 2, spec=spec),
                    pod(f"{kind}-plain", 2, claims=False, spec=spec),
                ):
                    await client.create(PODS, made, namespace="default")
                    names.append(made["metadata"]["name"])
            await until(lambda: b"takes more than 10,000 steps" in explained(port, "asked-endless"), plane)

            plane.start_scheduler(extenders(port))
            await until(running(nodes, *names), plane)
            assert nodes.rejected == []
            assert process.poll() is None
