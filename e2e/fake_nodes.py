"""Nodes of a real API server without machines: simulated kubelets that admit pods, and observers that report them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from alignup.kubernetes.api import NODES, PODS, ApiClient, Change, EventType, Informer
from alignup.kubernetes.api.host_states import HOST_STATES
from alignup.kubernetes.api.known_pods import known_pod
from alignup.kubernetes.api.objects import ApiPod
from alignup.testing.simulated_kubelet import SimulatedKubelet

ALLOCATABLE = {"cpu": "7", "memory": "31Gi", "pods": "110", "example.com/gpu": "2", "nvidia.com/gpu": "8"}
REJECTED = "Pod was rejected: Resources cannot be allocated with Topology locality"


async def create_node(client: ApiClient, name: str) -> None:
    """Create a node that is ready, and that pods can be scheduled to."""
    ready = [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]
    status = {"allocatable": ALLOCATABLE, "capacity": ALLOCATABLE, "conditions": ready}
    labels = {"kubernetes.io/hostname": name}
    await client.create(NODES, {"metadata": {"name": name, "labels": labels}, "status": status})
    await client.patch(NODES.at(name), {"spec": {"taints": None}})


class FakeNodes:
    """Kubelets that admit the pods bound to their nodes in the order of the watch, and say so at once."""

    def __init__(self, client: ApiClient) -> None:
        self.kubelets: dict[str, SimulatedKubelet] = {}
        self.rejected: list[str] = []  #: names of pods
        self.running: dict[str, str] = {}  #: pod → node
        self._client = client
        self._generations: dict[str, int] = {}
        self._informer: Informer[ApiPod] = Informer(client, PODS)

    async def add(self, name: str) -> None:
        self.kubelets[name] = SimulatedKubelet()
        await create_node(self._client, name)
        await self.report(name)

    async def report(self, name: str) -> None:
        """Publish what a kubelet holds."""
        generation = self._generations[name] = self._generations.get(name, 0) + 1
        await self._client.apply(HOST_STATES.at(name), self.kubelets[name].host_state(name, generation=generation))

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Admit and end pods inside the context."""
        tasks = [asyncio.ensure_future(self._informer.run()), asyncio.ensure_future(self._work())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self) -> None:
        async for change in self._informer.changes():
            await self._handle(change)

    async def _handle(self, change: Change[ApiPod]) -> None:
        pod, host = change.object, change.object.spec.node_name
        kubelet, name = self.kubelets.get(host), pod.metadata.name
        if kubelet is None or change.type is EventType.DELETED or pod.finished:
            return
        if pod.metadata.deletion_timestamp is not None:
            if self.running.pop(name, None):
                kubelet.end(pod.metadata.uid)
                kubelet.remove_ended()
                await self._client.delete(PODS.of(pod), grace_period=0)
                await self.report(host)
        elif name not in self.running and name not in self.rejected:
            await self._admit(kubelet, pod)

    async def _admit(self, kubelet: SimulatedKubelet, pod: ApiPod) -> None:
        conditions = [{"type": kind, "status": "True"} for kind in ("PodScheduled", "Ready")]  # counted by budgets
        read, status = known_pod(pod).pod, dict[str, Any](phase="Running", conditions=conditions)
        if kubelet.admit(read).admitted:
            await self.report(pod.spec.node_name)
            self.running[pod.metadata.name] = pod.spec.node_name
        else:
            self.rejected.append(pod.metadata.name)
            status = {"phase": "Failed", "reason": "TopologyAffinityError", "message": REJECTED}
        await self._client.patch(PODS.of(pod, subresource="status"), {"status": status})
