"""Pods with ResourceClaims beside others, with a real API server, scheduler and claim controller.

The nodes are objects without machines; simulated kubelets admit what is bound to them. Their devices are ResourceSlices
that no driver stands behind: the scheduler allocates them all the same.
"""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from alignup.align.workload.names import CLAIMS_ANNOTATION
from alignup.kubernetes.api import PODS, ApiClient
from alignup.kubernetes.api.claim_resources import (
    DEVICE_CLASSES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from alignup.schedule.gate.release_patch import NODE_ANNOTATION
from e2e import control_plane
from e2e.api import Document
from e2e.control_plane import ControlPlane, extenders
from e2e.fake_nodes import FakeNodes
from e2e.marks import needs
from e2e.schedule_replicas import Replica
from e2e.simulated_cluster import (
    claim_pod,
    extended_pod,
    gate_controller,
    pod,
    running_service,
    until,
    wait_event,
    working_nodes,
)
from tests.schedule.claim_objects import ENDLESS_SELECTOR, device_class, resource_slice, template

pytestmark = [needs(control_plane.missing()), pytest.mark.anyio]


@pytest.fixture
def plane(plane: ControlPlane) -> ControlPlane:
    plane.start_controllers("resourceclaim-controller")
    return plane


@asynccontextmanager
async def claimed_nodes(
    plane: ControlPlane, **numa_nodes: tuple[int, ...]
) -> AsyncIterator[tuple[ApiClient, FakeNodes]]:
    """Yield nodes, some with devices on these NUMA nodes."""
    async with working_nodes(plane) as (client, nodes):
        await client.create(DEVICE_CLASSES, device_class())
        await client.create(RESOURCE_CLAIM_TEMPLATES, template(), namespace="default")
        for name, places in numa_nodes.items():
            await client.create(RESOURCE_SLICES, resource_slice(name, places))
        yield client, nodes


async def create_all(client: ApiClient, *pods: Document) -> list[str]:
    """Create pods; return their names."""
    for document in pods:
        await client.create(PODS, document, namespace="default")
    return [document["metadata"]["name"] for document in pods]


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
    async with (
        claimed_nodes(plane, a=(0, 1), b=(0, 1)) as (client, nodes),
        running_service(plane) as service,
    ):
        plane.start_scheduler(extenders(service.port))
        names = []
        for number in range(3):
            names += await create_all(client, claim_pod(f"claiming-{number}", 2), pod(f"plain-{number}", 2))
        await create_all(client, extended_pod("extended"))
        await until(running(nodes, *names, "extended"), plane)

        assert nodes.rejected == []
        devices = [device for given in (await allocated(client)).values() for device in given]
        assert sorted(devices) == ["a/gpu-0", "a/gpu-1", "b/gpu-0", "b/gpu-1"]
        assert {nodes.running[name] for name in names if name.startswith("claiming")} <= {"a", "b"}
        lines = service.get("/metrics").splitlines()
        counted = [float(line.split()[-1]) for line in lines if line.startswith("alignup_claimed_pods_total")]
        assert sum(counted) == 4


async def test_a_pod_that_requires_alignment_is_not_bound_beside_another_device(plane: ControlPlane) -> None:
    """The scheduler takes the first device, which is on NUMA node 0; four CPUs fit on NUMA node 1 only."""
    require = {CLAIMS_ANNOTATION: "require"}
    async with claimed_nodes(plane, a=(0, 1)) as (client, nodes), running_service(plane) as service:
        plane.start_scheduler(extenders(service.port))
        await create_all(client, claim_pod("strict", 4, annotations=require))
        events = json.loads(await wait_event(client, "ClaimsNotAligned", plane))["items"]
        (refused, *_) = [event for event in events if event["reason"] == "ClaimsNotAligned"]
        assert "device gpu-0 is on NUMA node 0, the CPUs and memory will be on NUMA node 1" in refused["message"]
        assert refused["involvedObject"]["name"] == "strict"
        # Another pod takes this device, and the scheduler has to allocate the other one.
        await create_all(client, claim_pod("easy", 2, annotations=require))
        await until(running(nodes, "easy", "strict"), plane)
        assert nodes.rejected == []
        assert nodes.running == {"easy": "a", "strict": "a"}
        devices = [device for given in (await allocated(client)).values() for device in given]
        assert sorted(devices) == ["a/gpu-0", "a/gpu-1"]


async def test_gated_claim_pods_and_others_are_bound_and_none_is_stuck(plane: ControlPlane) -> None:
    async with claimed_nodes(plane, a=(0, 1), b=(1,)) as (client, nodes), gate_controller(client) as controller:
        plane.start_scheduler()
        names = []
        for number in range(2):
            claiming = claim_pod(f"claiming-{number}", 2, gated=True)
            names += await create_all(client, claiming, pod(f"plain-{number}", 2, gated=True))
        await create_all(client, extended_pod("extended", gated=True))
        await until(running(nodes, *names, "extended"), plane)
        await create_all(client, claim_pod("waiting", 1, gated=True))
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


def explained(service: Replica, name: str) -> str:
    """Return the explanation of a pod; an empty one until the service has seen it."""
    with suppress(OSError):
        return service.get(f"/v1/explain/default/{name}")
    return ""


async def test_a_selector_that_only_the_scheduler_evaluates_ends_nothing(plane: ControlPlane) -> None:
    """The API server accepts it, and the scheduler evaluates it: the pods run as all others."""
    endless = template("endless", selector=ENDLESS_SELECTOR)
    async with claimed_nodes(plane, a=(0, 1), b=(0, 1), c=(0, 1)) as (client, nodes):
        await client.create(RESOURCE_CLAIM_TEMPLATES, endless, namespace="default")
        async with running_service(plane, "--gate") as service:
            names = []
            for kind, gated in (("gated", True), ("asked", False)):
                names += await create_all(
                    client,
                    claim_pod(f"{kind}-endless", 1, gated=gated, template="endless"),
                    claim_pod(f"{kind}-claiming", 2, gated=gated),
                    pod(f"{kind}-plain", 2, gated=gated),
                )
            await until(lambda: "takes more than 10,000 steps" in explained(service, "asked-endless"), plane)

            plane.start_scheduler(extenders(service.port))
            await until(running(nodes, *names), plane)
            assert nodes.rejected == []
            assert service.process.poll() is None
