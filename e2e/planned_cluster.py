"""Two fragmented nodes, workloads that fit only after moves, and Plan objects that make room for them.

Both nodes have two NUMA nodes with 3 and 4 free CPUs, as wide guests and simulated kubelets have. What was evicted is
known from the audit log of the API server.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alignup.schedule.pod_groups import COSCHEDULING, SIZE_ANNOTATION
from e2e.api import PODS, Api, Document, until
from e2e.definitions import DEPLOYED
from e2e.observed_node import is_admitted
from e2e.programs import run_alignup

PLANS = "/apis/alignup.dev/v1alpha1/plans"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
GATE = "alignup.dev/placement"
FRAGMENTED, OTHER = "a", "b"  #: the nodes
_AUDITED = {"level": "Metadata", "resources": [{"group": "", "resources": ["pods/eviction", "pods"]}]}
_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{**_AUDITED, "verbs": ["create", "delete", "deletecollection"]}, {"level": "None"}],
}

Template = Callable[..., Document]  #: makes the pod spec of a name with so many CPUs; more fields by name


def audit_flags(directory: Path) -> tuple[str, ...]:
    """Return the flags of an API server that logs evictions and deletions of pods."""
    policy = directory / "audit-policy.json"
    policy.write_text(json.dumps(_AUDIT_POLICY))
    return f"--audit-policy-file={policy}", f"--audit-log-path={directory / 'audit.log'}"


def install_plans(api: Api) -> None:
    """Create the definition of Plans, and the policy about who creates them."""
    api.define(DEPLOYED / "crds" / "plans.yaml")
    api.install(DEPLOYED / "plans" / "creator-may-evict.yaml")


@dataclass
class PlannedCluster:
    """The API server of a cluster whose audit log is in *directory*; *template* makes pods that its nodes can run."""

    api: Api
    directory: Path
    template: Template
    gated: bool = False  #: whether new pods have the scheduling gate

    # Workloads

    def deploy(self, name: str, cpus: int, *, replicas: int = 1, node: str = "") -> None:
        """Create a Deployment; its first pods are bound to *node*, if that is given, and later ones go anywhere."""
        labels = {"app": name}
        spec = self.template(name, cpus, restartPolicy="Always")
        if self.gated:
            spec["schedulingGates"] = [{"name": GATE}]
        template = {"metadata": {"labels": labels}, "spec": spec}
        document = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name},
            "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template},
        }
        self.api.request("POST", DEPLOYMENTS, document)
        until(f"the pods of {name} exist", lambda: len(self.pods_of(name)) == replicas)
        if node:
            for pod in self.pods_of(name):
                self._bind(pod["metadata"]["name"], node)

    def run(self, name: str, cpus: int, node: str) -> None:
        """Run a pod without a controller, which is never evicted."""
        spec = self.template(name, cpus)
        self.api.request("POST", PODS, {"metadata": {"name": name}, "spec": spec})
        self._bind(name, node)

    def wait_as_gang(self, name: str, cpus: int, *, size: int) -> None:
        """Create the pods of a gang."""
        for number in range(size):
            metadata = {
                "name": f"{name}-{number}",
                "labels": {COSCHEDULING: name, "app": name},
                "annotations": {SIZE_ANNOTATION: str(size)},
            }
            spec = self.template(name, cpus)
            if self.gated:
                spec["schedulingGates"] = [{"name": GATE}]
            self.api.request("POST", PODS, {"metadata": metadata, "spec": spec})

    def _bind(self, name: str, node: str) -> None:
        """Send a pod to a node, and wait until it runs there."""
        if self.gated:
            self.api.merge(f"{PODS}/{name}", {"spec": {"schedulingGates": None}})
        self.api.bind(name, node)
        until(f"{name} runs", lambda: is_admitted(self.api.pod(name) or {"status": {"phase": ""}}))

    def pods_of(self, name: str) -> list[Document]:
        """Return the pods of a Deployment or a gang that are not being deleted."""
        pods = self.api.items(f"{PODS}?labelSelector=app%3D{name}")
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    def count_running(self, name: str) -> int:
        return sum(map(is_admitted, self.pods_of(name)))

    def fragment(self) -> None:
        """Leave 2 CPUs on one NUMA node of the first node, and 3 on the other one of the second node.

        The pods of ``first`` and ``second`` can move, and then a pod with 4 CPUs fits where they were.
        """
        self.run("fixed-a", 3, FRAGMENTED)
        self.deploy("first", 1, node=FRAGMENTED)
        self.deploy("second", 1, node=FRAGMENTED)
        self.run("fixed-b", 4, OTHER)

    def forbid(self, name: str) -> None:
        """Forbid evictions of the pods of a Deployment, and wait until the API server knows."""
        spec = {"maxUnavailable": 0, "selector": {"matchLabels": {"app": name}}}
        self.api.request("POST", BUDGETS, {"metadata": {"name": name}, "spec": spec})
        until("the budget is computed", lambda: self._budget(name).get("observedGeneration"))

    def permit(self, name: str) -> None:
        path = f"{BUDGETS}/{name}"
        generation = self.api.merge(path, {"spec": {"maxUnavailable": 1}})["metadata"]
        current = generation["generation"]
        until("the budget is computed", lambda: self._budget(name).get("observedGeneration") == current)

    def _budget(self, name: str) -> Document:
        status: Document = (self.api.get(f"{BUDGETS}/{name}") or {}).get("status", {})
        return status

    # Plans

    def plan(self, *words: str, code: int = 0) -> str:
        """Return what ``alignup cluster plan --apply`` prints."""
        access = self.api.plane.kubeconfig(self.directory / "plan.kubeconfig")
        run = run_alignup("cluster", "plan", *words, "--apply", "--kubeconfig", access)
        if run.returncode != code:
            raise AssertionError(f"exit code {run.returncode}: {run.stdout}\n{run.stderr}")
        return run.stdout

    def find(self, name: str) -> Document:
        return self.api.request("GET", f"{PLANS}/{name}")

    def status(self, name: str) -> Document:
        status: Document = self.find(name).get("status", {})
        return status

    def wait_plan(self, name: str, condition: str, holds: Callable[[Document], object]) -> Document:
        """Wait until the status of a plan is so, and return it."""
        until(f"plan {name}: {condition}", lambda: holds(self.status(name)), detail=lambda: self.detail(name))
        return self.status(name)

    def wait_final(self, name: str, phase: str) -> Document:
        final = self.wait_plan(name, "it has ended", lambda status: status.get("phase") in ("Succeeded", "Failed"))
        if final["phase"] != phase:
            raise AssertionError(f"{final}\n{self.detail(name)}")
        return final

    def detail(self, name: str) -> str:
        pods = [
            f"{pod['metadata']['name']} {pod['spec'].get('nodeName')} {pod['status'].get('phase')}"
            for pod in self.api.items(PODS)
        ]
        log = self.api.plane.log("alignup-schedule", 6000)
        return f"{json.dumps(self.api.get(f'{PLANS}/{name}'), indent=1)}\n{pods}\n{log}"

    # What happened

    def planned_evictions(self, name: str) -> Counter[str]:
        steps = self.find(name)["spec"]["steps"]
        return Counter(step["pod"]["name"] for step in steps if step["action"] == "Evict")

    def eviction_order(self, name: str) -> list[str]:
        """Return the Deployments whose pods a plan evicts, in this order."""
        steps = self.find(name)["spec"]["steps"]
        return [step["pod"]["name"].partition("-")[0] for step in steps if step["action"] == "Evict"]

    def evictions(self) -> Counter[str]:
        """Return the pods that were evicted, and how often."""
        return Counter(event["objectRef"]["name"] for event in self._audited(eviction=True) if _status(event) < 300)

    def refused_evictions(self) -> Counter[str]:
        """Return the pods whose eviction a budget prevented, and how often."""
        return Counter(event["objectRef"]["name"] for event in self._audited(eviction=True) if _status(event) == 429)

    def deletions(self) -> list[str]:
        """Return the pods that anything but a kubelet or a test has deleted otherwise."""
        return [
            event["objectRef"].get("name", "all")
            for event in self._audited(eviction=False)
            if not event["user"]["username"].startswith("system:node:") and event["user"]["username"] != "admin"
        ]

    def _audited(self, *, eviction: bool) -> list[Mapping[str, Any]]:
        lines = (self.directory / "audit.log").read_text().splitlines()
        events = [json.loads(line) for line in lines if line.endswith("}")]
        return [
            event
            for event in events
            if (event["objectRef"].get("subresource") == "eviction") is eviction
            and (eviction or event["verb"].startswith("delete"))
        ]


def _status(event: Mapping[str, Any]) -> int:
    code: int = event["responseStatus"]["code"]
    return code
