"""Nodes of a test server whose kubelets admit pods, and whose observers report what they hold."""

from typing import Any

from alignup.align.workload import Pod
from alignup.testing.api_server import ApiServer
from tests.observe.api_objects import SERVED, STEERING, api_pod, node
from tests.observe.kubelets import ObservedKubelet


class SimulatedNodes:
    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.kubelets: dict[str, ObservedKubelet] = {}
        self._generations: dict[str, int] = {}
        server.serve(SERVED)
        server.serve(STEERING)

    def add(self, name: str, *, observed: bool = True) -> ObservedKubelet:
        """Add an empty node; with *observed*, also its HostState."""
        self.kubelets[name] = kubelet = ObservedKubelet()
        self.server.put(node(name))
        if observed:
            self.report(name)
        return kubelet

    def report(self, name: str, **changes: object) -> None:
        """The observer of a node publishes what its kubelet holds."""
        generation = self._generations[name] = self._generations.get(name, 0) + 1
        state = self.kubelets[name].host_state(name, **changes)
        self.server.put({**state, "generation": generation})

    def create(self, pod: Pod, host: str = "", **options: Any) -> None:
        """The API server has a pod, pending unless it is bound to *host*."""
        self.server.put(api_pod(pod, host, **{"phase": "Running" if host else "Pending"} | options))

    def admit(self, name: str, pod: Pod) -> None:
        """The kubelet of a node admits a pod that is bound to it, and the observer reports it."""
        self.kubelets[name].run(pod)
        self.report(name)

    def reject(self, pod: Pod, host: str, reason: str = "TopologyAffinityError") -> None:
        document = api_pod(pod, host, phase="Failed")
        message = "Pod was rejected: Resources cannot be allocated with Topology locality"
        self.server.put({**document, "status": {**document["status"], "reason": reason, "message": message}})

    def bound(self) -> dict[str, str]:
        """Pod → node."""
        pods = self.server.objects("pods")
        return {pod["metadata"]["name"]: pod["spec"].get("nodeName", "") for pod in pods}
