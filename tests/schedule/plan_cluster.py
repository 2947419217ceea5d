"""A cluster in which plans are carried out: kubelets, a controller that replaces pods, and two kinds of schedulers."""

import asyncio
import json
from contextlib import suppress
from typing import Any

from alignup.align.workload import Pod
from alignup.documents.codec import convert
from alignup.documents.plans import Plan
from alignup.kubernetes.api import ApiClient
from alignup.kubernetes.api.errors import ApiError
from alignup.kubernetes.api.plan_resource import PLANS
from alignup.kubernetes.manifests.pod_decoder import read_pod
from alignup.schedule.cluster_facts import GATE
from alignup.schedule.service import ScheduleService
from alignup.testing.api_server import ApiServer
from alignup.web.responses import NotReadyError, ProblemError
from tests.align.hosts import pod
from tests.observe.api_objects import api_pod, served
from tests.schedule.gate.simulated import GatedCluster

Document = dict[str, Any]


def make_step(action: str, name: str, node: str, *, replacement: bool = False) -> Document:
    planned = {"namespace": "default", "name": name, "uid": name}
    return {"action": action, "pod": planned, "node": node, "replacement": replacement}


#: ``y`` leaves ``a``, and its replacement goes to ``b``; then ``new`` gets a whole NUMA node of ``a``.
STEPS = [make_step("Evict", "y", "a"), make_step("Admit", "y", "b", replacement=True), make_step("Admit", "new", "a")]


class PlanCluster(GatedCluster):
    """Every pod belongs to a ReplicaSet, which creates another one when it terminates; then its kubelet ends it."""

    def __init__(self, server: ApiServer, client: ApiClient, *, gated: bool) -> None:
        super().__init__(server, client)
        server.serve(served(PLANS, status=True))
        self.gated = gated
        self.lingering: set[str] = set()  #: pods that terminate, and do not end
        self.replaced: set[str] = set()
        self.copies = True  #: whether other pods replace those that terminate
        self.add("a")
        self.add("b")
        for name, node, cpu in (("x", "a", "3"), ("y", "a", "2"), ("z", "b", "4")):
            self.start(pod(name, cpu=cpu), node)
        self.wait_for_node(pod("new", cpu="4"))

    def put_pod(self, document: Document, owner: str) -> None:
        reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner, "uid": f"owner-{owner}"}
        metadata = {"ownerReferences": [{**reference, "controller": True}], "creationTimestamp": "2026-11-16T00:00:00Z"}
        document["metadata"] |= metadata
        document["spec"] |= {"schedulerName": "default-scheduler"}
        self.server.put(document)

    def start(self, made: Pod, node: str) -> None:
        """A pod runs on a node."""
        self.put_pod(api_pod(made, node), made.name)
        self.admit(node, made)

    def wait_for_node(self, made: Pod, owner: str = "") -> None:
        """A pod has no node."""
        gates: dict[str, Any] = {"schedulingGates": [{"name": GATE}]} if self.gated else {}
        self.put_pod(api_pod(made, phase="Pending", **gates), owner or made.name)

    def create_plan(self, name: str = "room", *, steps: list[Document] | None = None, **spec: Any) -> None:
        document = {"metadata": {"name": name, "uid": f"uid-{name}"}, "spec": {"steps": steps or STEPS, **spec}}
        self.server.put({"apiVersion": PLANS.api_version, "kind": PLANS.kind, **document})

    def change_plan(self, name: str = "room", **spec: Any) -> None:
        document = next(plan for plan in self.server.objects("plans") if plan["metadata"]["name"] == name)
        self.server.put({**document, "spec": {**document["spec"], **spec}})

    def plan(self, name: str = "room") -> Plan:
        document = next(plan for plan in self.server.objects("plans") if plan["metadata"]["name"] == name)
        return convert(document, Plan)

    def phases(self, name: str = "room") -> list[str]:
        return [str(step.phase) for step in self.plan(name).status.steps]

    def evictions(self) -> list[str]:
        """The names of pods in requests to evict, in order."""
        requests = [request for request in self.server.requests if request.path.endswith("/eviction")]
        return [json.loads(request.body or b"{}")["metadata"]["name"] for request in requests]

    def terminating(self) -> list[str]:
        documents = [each for each in self.server.objects("pods") if each["metadata"].get("deletionTimestamp")]
        return [each["metadata"]["name"] for each in documents]

    async def replace_pods(self) -> None:
        """Create a pod for each that terminates, and let that end, until cancelled."""
        while True:
            changed = self.server.store.changed
            for name in self.terminating():
                document = self.document(name)
                if name not in self.replaced and self.copies:
                    self.replaced.add(name)
                    owner = document["metadata"]["ownerReferences"][0]["name"]
                    copy = read_pod({**document, "metadata": {"name": f"{name}-2", "uid": f"{name}-2"}})
                    self.wait_for_node(copy, owner)
                if name not in self.lingering:
                    self.finish(name)
            if changed is self.server.store.changed:
                await changed.wait()


class AskingScheduler:
    """kube-scheduler with the extender: it asks about pods without gates again and again."""

    def __init__(self, cluster: PlanCluster, service: ScheduleService) -> None:
        self._cluster = cluster
        self._service = service
        self.ignored: set[str] = set()  #: names of pods that it does not schedule

    async def run(self) -> None:
        while True:
            for document in self._cluster.server.objects("pods"):
                spec, name = document["spec"], document["metadata"]["name"]
                waits = not spec.get("nodeName") and not spec.get("schedulingGates")
                if waits and name not in self.ignored and not document["metadata"].get("deletionTimestamp"):
                    with suppress(NotReadyError, ProblemError, ApiError):  # it does not lead
                        await self._schedule(document)
            await asyncio.sleep(0.01)

    async def _schedule(self, document: Document) -> None:
        names = sorted(self._cluster.kubelets)
        asked = json.dumps({"Pod": document, "NodeNames": names}).encode()
        answer = json.loads(await self._service.respond("filter", asked))
        if not answer["NodeNames"]:
            self._cluster._unschedulable(document)  # noqa: SLF001 - what schedulers say
            return
        metadata, node = document["metadata"], answer["NodeNames"][0]
        names_of = {"PodName": metadata["name"], "PodNamespace": metadata["namespace"], "PodUID": metadata["uid"]}
        answer = json.loads(await self._service.respond("bind", json.dumps({**names_of, "Node": node}).encode()))
        if not answer["Error"]:
            self._cluster._admit(read_pod(document), node)  # noqa: SLF001 - what kubelets do
