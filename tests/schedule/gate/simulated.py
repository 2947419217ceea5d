"""A cluster for tests of the gate controller: nodes with kubelets, a scheduler, and pods behind the gate.

The scheduler binds a pod to a node that its selectors allow and that has room by its Node object, like kube-scheduler:
it knows nothing of NUMA nodes. Kubelets then admit or reject.
"""

import asyncio
from contextlib import suppress
from typing import Any

from alignup.align.workload import Pod
from alignup.documents.codec import convert
from alignup.kubernetes.api import NODES, PODS, ApiClient
from alignup.kubernetes.api.errors import ConflictError, NotFoundError
from alignup.kubernetes.api.objects import ApiPod
from alignup.kubernetes.manifests.pod_decoder import pod_from, read_pod
from alignup.schedule.cluster_facts import GATE
from alignup.schedule.node_selection import exclusions
from alignup.schedule.schedulable_nodes import NodeCapacity
from alignup.testing.api_server import ApiServer
from tests.observe.api_objects import api_pod, node
from tests.observe.kubelets import ObservedKubelet
from tests.schedule.claim_objects import DraPlugin
from tests.schedule.nodes import SimulatedNodes

ALLOCATABLE = {"cpu": "7", "memory": "31Gi", "pods": "110", "example.com/gpu": "2"}


class GatedCluster(SimulatedNodes):
    """Nodes whose kubelets admit what is bound to them; their observers report it at once, unless they are late."""

    def __init__(self, server: ApiServer, client: ApiClient) -> None:
        super().__init__(server)
        self.client, self.dra = client, DraPlugin(server)
        self.late = False  #: whether observers report nothing until :meth:`catch_up`
        self._unreported: set[str] = set()
        self.paused: set[str] = set()  #: pods that the scheduler does not schedule
        self.rejected: list[str] = []  #: pods that kubelets rejected
        self._read: dict[str, Pod] = {}

    def add(self, name: str, *, observed: bool = True, **changes: Any) -> ObservedKubelet:
        made = super().add(name, observed=observed)
        self.change(name, **changes)
        return made

    def report(self, name: str, **changes: object) -> None:
        if self.late:
            self._unreported.add(name)
        else:
            super().report(name, **changes)

    def catch_up(self) -> None:
        self.late = False
        unreported, self._unreported = self._unreported, set()
        for name in unreported:
            self.report(name)

    def change(self, name: str, *, allocatable: dict[str, str] | None = None, **spec: Any) -> None:
        """Change a Node object: its labels, its spec, or what is allocatable."""
        labels = spec.pop("labels", None)
        status = {"allocatable": ALLOCATABLE | (allocatable or {})}
        self.server.put({**node(name, labels=labels, **spec), "status": status})

    def gate(self, pod: Pod, *gates: str, created: str = "2026-11-16T00:00:00Z", **spec: Any) -> None:
        """Create a pod that the webhook has gated, with other *gates* before ours."""
        document = api_pod(pod, phase="Pending", schedulingGates=[{"name": gate} for gate in (*gates, GATE)], **spec)
        document["metadata"] |= {"creationTimestamp": created}
        self.server.put(document)

    def document(self, name: str) -> dict[str, Any]:
        return next(pod for pod in self.server.objects("pods") if pod["metadata"]["name"] == name)

    def gates(self) -> dict[str, list[str]]:
        """Pod → its gates, for those that have some."""
        pods = self.server.objects("pods")
        by_pod = {pod["metadata"]["name"]: pod["spec"].get("schedulingGates") or [] for pod in pods}
        return {name: [gate["name"] for gate in gates] for name, gates in by_pod.items() if gates}

    def events(self) -> list[tuple[str, str, str]]:
        """(pod, reason, message) of every event."""
        events = self.server.objects("events")
        return [(event["involvedObject"]["name"], event["reason"], event["message"]) for event in events]

    def finish(self, name: str) -> None:
        """A pod ends, its object goes, and its kubelet, if it has admitted it, no longer holds anything for it."""
        document = self.document(name)
        host, uid = document["spec"].get("nodeName"), document["metadata"]["uid"]
        self.server.remove("pods", name, namespace=document["metadata"].get("namespace", "default"))
        for claim in self.server.objects("resourceclaims"):
            if claim["metadata"]["name"].startswith(f"{name}-"):
                self.server.remove("resourceclaims", claim["metadata"]["name"])
        if host and uid in self.kubelets[host].pods:
            self.kubelets[host].end(uid)
            self.kubelets[host].remove_ended()
            self.report(host)

    # The scheduler and the kubelets

    async def schedule(self) -> None:
        """Bind pods that have no gates until cancelled."""
        while True:
            changed = self.server.store.changed
            for document in self.server.objects("pods"):
                name = document["metadata"]["name"]
                spec = document["spec"]
                if not spec.get("nodeName") and not spec.get("schedulingGates") and name not in self.paused:
                    await self._schedule_one(convert(document, ApiPod), document)
            if changed is self.server.store.changed:
                await changed.wait()

    async def _schedule_one(self, pod: ApiPod, document: dict[str, Any]) -> None:
        read = read_pod(document)
        bound: dict[str, dict[str, ApiPod]] = {}
        for other in self.server.objects("pods"):
            host = other["spec"].get("nodeName")
            if host and other["status"].get("phase") not in {"Succeeded", "Failed"}:
                bound.setdefault(host, {})[other["metadata"]["uid"]] = convert(other, ApiPod)
        nodes: Any = {node["metadata"]["name"]: convert(node, NODES.type) for node in self.server.objects("nodes")}
        capacity = NodeCapacity(nodes, lambda name: bound.get(name, {}), pod_from)
        fitting = [
            node
            for name, node in nodes.items()
            if not exclusions(node, pod.spec) and not capacity.insufficient(name, read)
        ]
        claims = self.dra.claims(document)
        served = {node.metadata.name: self.dra.allocations(claims, node.metadata.name) for node in fitting if claims}
        if claims is None or claims:
            fitting = [node for node in fitting if served.get(node.metadata.name) is not None]
        if fitting:
            chosen = fitting[0].metadata.name
            self.dra.write(served.get(chosen) or {}, read.uid)
            with suppress(ConflictError, NotFoundError):  # it was deleted
                await self.client.bind(PODS.of(pod), chosen)
                if read.name in self.bound():  # it was not deleted before its kubelet knew of it
                    self._admit(read, chosen)
        else:
            self._unschedulable(document)

    def _unschedulable(self, document: dict[str, Any]) -> None:
        document = self.document(document["metadata"]["name"])
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes fit."}
        status = document.get("status", {})
        if condition not in status.get("conditions", []):
            self.server.put({**document, "status": {**status, "conditions": [condition]}})

    def _admit(self, pod: Pod, host: str) -> None:
        if self.kubelets[host].admit(pod).admitted:
            self.report(host)
        else:
            self.rejected.append(pod.name)
            document = self.document(pod.name)
            status = {"phase": "Failed", "reason": "TopologyAffinityError", "message": "Pod was rejected: no"}
            self.server.put({**document, "status": status})


async def settle() -> None:
    """Let every task run that can."""
    for _ in range(50):
        await asyncio.sleep(0)
