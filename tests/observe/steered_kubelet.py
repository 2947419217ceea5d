"""A kubelet on real sockets for tests of steering: it registers plugins, and admits pods as their devices allow."""

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from alignup.align import bits
from alignup.align.workload import Pod
from alignup.documents.steering import MARKER_RESOURCE
from alignup.kubernetes.api import ApiClient
from alignup.kubernetes.api.known_pods import KnownPod
from alignup.kubernetes.api.steering_instructions import STEERING_INSTRUCTIONS
from alignup.kubernetes.kubelet_files.state_files import PLUGINS_DIR
from alignup.kubernetes.plugins.manager import DevicePluginManager
from alignup.kubernetes.plugins.pod_resources import RateLimiter, pod_resources_client, serve_pod_resources
from alignup.observe.marker_steering import (
    MarkerHoldings,
    Markers,
    Steering,
    SteeringMetrics,
    SteeringTiming,
    make_markers,
)
from alignup.placement.host_report import PodStage
from alignup.testing.api_server import ApiServer
from tests.deadlines import until
from tests.observe.api_objects import STEERING
from tests.observe.kubelets import ObservedKubelet
from tests.strategies_pods import guaranteed

HOST = "host-a"
#: Nothing expires in the course of a test.
PATIENT = SteeringTiming(confirm=60.0, hold=60.0, write=60.0, retry=0.01, poll=0.005)


class SteeredKubelet(ObservedKubelet):
    """Two NUMA nodes with four CPUs each; device plugins and PodResources clients connect as to a real kubelet."""

    def __init__(self, directory: Path, **changes: Any) -> None:
        super().__init__(devices=(), **changes)
        self.directory = directory
        self.rejected: list[str] = []  #: reasons
        self._manager: DevicePluginManager | None = None
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        limiter = RateLimiter(rate=1e6, burst=1e6)
        socket = self.directory / "pod-resources" / "kubelet.sock"
        await self._stack.enter_async_context(serve_pod_resources(socket, lambda: self.host, limiter=limiter))
        manager = DevicePluginManager(self.directory / PLUGINS_DIR, self._devices_listed, self._plugin_stopped)
        self._manager = await self._stack.enter_async_context(manager)
        self.write(self.directory)

    async def stop(self) -> None:
        await self._stack.aclose()
        self._manager = None

    async def restart(self) -> None:
        """Start again: no plugin is registered, and pods keep what they hold."""
        await self.stop()
        if MARKER_RESOURCE in self.host.ledger.devices.inventories:
            await self._plugin_stopped(MARKER_RESOURCE)
        await self.start()

    @property
    def healthy(self) -> dict[int, int]:
        """How many healthy markers each NUMA node has, for the kubelet."""
        inventory = self.host.ledger.devices.inventories.get(MARKER_RESOURCE)
        counts: dict[int, int] = {}
        for device in inventory.devices if inventory else ():
            (node,) = bits.members(device.nodes or 0)
            counts[node] = counts.get(node, 0) + device.healthy
        return counts

    @property
    def at_rest(self) -> bool:
        return self.healthy == {0: 110, 1: 110}

    async def admit_pod(self, pod: Pod) -> int | None:
        """Admit a bound pod, with calls of Allocate; return its NUMA node, or ``None`` for a pod that is rejected."""
        self.bound(pod)
        decision = self.admit(pod)
        if decision.rejection:
            self.rejected.append(decision.rejection.reason)
            self.pods[pod.uid] = replace(self.pods[pod.uid], finished=True)
            return None
        for container in pod.all_containers:
            ids = self.host.ledger.devices.holds(pod.uid, container.name).get(MARKER_RESOURCE)
            if ids and self._manager:
                await self._manager.allocate(MARKER_RESOURCE, sorted(ids))
        self.pods[pod.uid] = replace(self.pods[pod.uid], reported=True)
        self.write(self.directory)
        if not self.host.ledger.cpus.holds(pod.uid, "app"):
            return None
        (node,) = bits.members(self.numa_nodes(pod.uid))
        return node

    def bound(self, pod: Pod) -> None:
        """Note a pod that the kubelet has not seen yet."""
        self.pods.setdefault(pod.uid, KnownPod(pod=pod, stage=PodStage.RUNNING, finished=False, reported=False))

    async def _devices_listed(self, resource: str, devices: Any, **_: Any) -> None:
        self.host.update_devices(resource, devices)
        self.write(self.directory)

    async def _plugin_stopped(self, resource: str, **_: Any) -> None:
        ledger = self.host.ledger
        self.host.ledger = replace(ledger, devices=ledger.devices.stop(resource))
        self.write(self.directory)


def marker_pod(uid: str, *, cpu: str = "1", containers: int = 1) -> Pod:
    amounts = {"cpu": cpu, "memory": "64Mi", MARKER_RESOURCE: "1"}
    names = ["app", *(f"app-{number}" for number in range(1, containers))]
    return Pod(name=uid, uid=uid, containers=tuple(guaranteed(name, amounts) for name in names))


class ClusterService:
    """The other side: writes instructions, and reads their status."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        server.serve(STEERING)

    def instruct(self, pod: Pod | None, nodes: str = "", *, containers: int = 1) -> int:
        """Write an instruction, and return its generation."""
        spec: dict[str, Any] = {}
        if pod is not None:
            reference = {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid}
            spec = {"pod": reference, "numaNodes": nodes, "containers": containers}
        kind = {"apiVersion": STEERING_INSTRUCTIONS.api_version, "kind": STEERING_INSTRUCTIONS.kind}
        status = self.object["status"] if self.object and "status" in self.object else {}
        stored = self.server.put({**kind, "metadata": {"name": HOST}, "spec": spec, "status": status})
        return int(stored["metadata"]["generation"])

    @property
    def object(self) -> dict[str, Any]:
        return next(iter(self.server.objects(STEERING_INSTRUCTIONS.plural)), {})

    def phase(self, generation: int) -> str:
        status = self.object.get("status", {})
        return str(status.get("phase", "")) if status.get("observedGeneration") == generation else ""

    async def reached(self, generation: int, *phases: str) -> None:
        """Wait until an instruction has one of *phases*."""
        await until(lambda: self.phase(generation) in phases)

    @property
    def message(self) -> str:
        return str(self.object["status"].get("message", ""))


@asynccontextmanager
async def steering_observer(
    kubelet: SteeredKubelet, client: ApiClient, timing: SteeringTiming, *, registry: CollectorRegistry | None = None
):
    """Run steering as the observer does; yield it."""
    metrics = SteeringMetrics(registry or CollectorRegistry())

    def markers():
        return make_markers(kubelet.machine, kubelet.configuration)

    async with pod_resources_client(kubelet.directory / "pod-resources" / "kubelet.sock") as pod_resources:
        steering = Steering(
            host=HOST,
            client=client,
            markers=Markers(kubelet.directory / PLUGINS_DIR, make=markers, metrics=metrics, retry=0.01),
            pod_resources=pod_resources,
            holdings=MarkerHoldings(kubelet.directory),
            pods=lambda: kubelet.pods,
            metrics=metrics,
            timing=timing,
        )
        async with steering.running():
            yield steering
