"""Objects of the API server for simulated nodes: nodes, pods, and the HostState of their observers."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from alignup.align.workload import Pod
from alignup.documents.codec import decode, encode
from alignup.documents.host_state import HostStateObject
from alignup.kubernetes.api import Resource
from alignup.kubernetes.api.host_states import HOST_STATES
from alignup.kubernetes.api.steering_instructions import STEERING_INSTRUCTIONS
from alignup.kubernetes.manifests.pod_decoder import pod_to_dict
from alignup.testing.api_server import ApiServer, ServedResource


def served(resource: Resource[Any], *, status: bool = False) -> ServedResource:
    """Describe a resource to a test server; with *status* as a subresource."""
    return ServedResource(
        kind=resource.kind,
        plural=resource.plural,
        group=resource.group,
        version=resource.version,
        namespaced=resource.namespaced,
        status=status,
    )


ALLOCATABLE = {"cpu": "1000", "memory": "1000Gi", "pods": "110", "example.com/gpu": "8", "example.com/nic": "8"}
SERVED = served(HOST_STATES)
STEERING = served(STEERING_INSTRUCTIONS, status=True)
SLICES = ServedResource(kind="ResourceSlice", plural="resourceslices", group="resource.k8s.io", namespaced=False)


def resource_slice(name: str = "slice", host: str = "host-a", *, node: int = 0, devices: int = 1) -> dict[str, Any]:
    """Describe a slice of a host, with devices on a NUMA node."""
    attributes = {"resource.kubernetes.io/numaNode": {"int": node}}
    spec = {
        "driver": "gpu.example.com",
        "nodeName": host,
        "pool": {"name": host, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": f"gpu-{number}", "attributes": attributes} for number in range(devices)],
    }
    metadata = {"name": name, "uid": name}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}


def node(name: str, *, labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """A Node object; by it, enough of everything is left that the simulated kubelets know."""
    metadata, status = {"name": name, "labels": labels or {}}, {"allocatable": ALLOCATABLE}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec, "status": status}


def api_pod(pod: Pod, host: str = "", *, phase: str = "Running", deleting: bool = False, **spec: Any) -> dict[str, Any]:
    document = pod_to_dict(pod)
    if deleting:
        document["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {**document, "spec": {**document["spec"], "nodeName": host, **spec}, "status": {"phase": phase}}


def overflowing_pod(name: str, host: str = "", **spec: Any) -> dict[str, Any]:
    """A pod with an amount that the API server accepts, and that cannot be added to others."""
    containers = [
        {"name": container, "resources": {"requests": {"cpu": cpu}, "limits": {"cpu": cpu}}}
        for container, cpu in (("first", "100e19998"), ("second", "1"))
    ]
    metadata = {"name": name, "namespace": "default", "uid": name}
    phase = "Running" if host else "Pending"
    spec |= {"containers": containers, "nodeName": host}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": phase}}


def received(state: dict[str, Any]) -> HostStateObject:
    """Return a HostState as a program receives it."""
    return decode(encode(state), HostStateObject)


@contextmanager
def running_server(server: ApiServer) -> Iterator[ApiServer]:
    """Run *server* in another thread, for programs that have an event loop of their own."""
    ready, loop = threading.Event(), asyncio.new_event_loop()
    done = asyncio.Event()

    async def serve() -> None:
        async with server:
            ready.set()
            await done.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    ready.wait()
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join()
        loop.close()
