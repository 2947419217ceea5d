"""A node of a real cluster with an observer: pods are predicted, sent and checked, one after the other."""

import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from alignup.align import bits
from e2e.api import NODES, PODS, Api, Document, until
from e2e.cluster_guest import ClusterGuest
from e2e.definitions import DEPLOYED
from e2e.guest_kubelet import IMAGE, KUBELET
from e2e.kubelet_view import KubeletView, host_state_differences, topology_differences
from e2e.programs import run_alignup

HOST_STATES = "/apis/alignup.dev/v1alpha1/hoststates"
TOPOLOGIES = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies"
ACCESS = "/etc/observer.kubeconfig"  #: in the guest
ACCOUNT = "alignup-observer"
NO_SCHEDULER = "none"  #: the scheduler of pods that a test binds
OBSERVER = "observer"  #: the name of the process in the guest
PORT = 9184  #: of the observer's metrics
_DEFINITIONS = ("crds/hoststates.yaml", "crds/noderesourcetopologies.yaml", "crds/steeringinstructions.yaml")
_ACCESS = ("namespace.yaml", "observe/access.yaml", "observe/own-node-only.yaml", "steer/access.yaml")


def install_observer(api: Api) -> None:
    """Create what observers need as it is deployed: definitions, and a service account with exactly its permissions."""
    for name in _DEFINITIONS:
        api.define(DEPLOYED / name)
    api.install(*(DEPLOYED / name for name in _ACCESS))


def make_pod(
    name: str, *containers: Mapping[str, Any], init: Iterable[Mapping[str, Any]] = (), **spec: object
) -> Document:
    """Return a pod that only :meth:`ObservedNode.send` schedules."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "containers": list(containers),
            "initContainers": list(init),
            "hostNetwork": True,  # the nodes have no other
            "restartPolicy": "Never",
            "schedulerName": NO_SCHEDULER,
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            **spec,
        },
    }


def make_claim_pod(name: str, template: str, container: Document, **spec: Any) -> Document:  # noqa: ANN401 - of a pod
    """Return a pod for kube-scheduler whose container has a device by a claim of *template*."""
    container["resources"]["claims"] = [{"name": "gpu"}]
    claims = [{"name": "gpu", "resourceClaimTemplateName": template}]
    return make_pod(name, container, schedulerName="default-scheduler", resourceClaims=claims, **spec)


def make_container(name: str = "app", *, requests: Mapping[str, object] | None = None, **limits: object) -> Document:
    """Return a container that sleeps; ``gpu=1`` is a limit of ``example.com/gpu``."""
    named = {_resource(key): str(value) for key, value in limits.items()}
    resources: Document = {"limits": named}
    if requests is not None:
        resources["requests"] = {_resource(key): str(value) for key, value in requests.items()}
    return {"name": name, "image": IMAGE, "imagePullPolicy": "Never", "resources": resources}


def _resource(key: str) -> str:
    return {"gpu": "example.com/gpu", "nic": "example.com/nic", "pages": "hugepages-2Mi"}.get(key, key)


@dataclass
class ObservedNode:
    """A guest with its kubelet and its observer."""

    api: Api
    guest: ClusterGuest
    kubeconfig: Path  #: of the administrator
    timings: dict[str, float] = field(default_factory=dict)  #: step → seconds

    @property
    def name(self) -> str:
        return self.guest.name

    def wait_schedulable(self) -> None:
        """Wait until the kubelet can run pods."""
        self.api.wait_schedulable(self.name, self.logs)
        until("the service account of pods exists", self._service_account_exists)

    def install_observer(self) -> None:
        """Start the observer with a token of its service account, which names the node as that of a pod there does."""
        token = self.api.account_token(ACCOUNT, node=self.name)
        self.guest.ask("write", path=ACCESS, text=self.guest.kubeconfig(token))
        self.start_observer()

    def start_observer(self, *options: str) -> None:
        words = ["observe", "--node", self.name, "--kubeconfig", ACCESS, "--listen", f"127.0.0.1:{PORT}", *options]
        self.guest.ask("start_alignup", name=OBSERVER, words=words)

    def _service_account_exists(self) -> bool:
        return self.api.get("/api/v1/namespaces/default/serviceaccounts/default") is not None

    def logs(self) -> str:
        """Return the ends of all logs, for errors."""
        return "\n".join(f"--- {name}\n{self.guest.ask('log', name=name)[-3000:]}" for name in ("kubelet", OBSERVER))

    def view(self) -> KubeletView:
        return KubeletView(self.guest.ask("snapshot"))

    def kubelet_version(self) -> str:
        """Return the version in the Node object."""
        node = self.api.get(f"{NODES}/{self.name}") or {"status": {}}
        return str(node["status"].get("nodeInfo", {}).get("kubeletVersion", ""))

    def state(self) -> Document:
        return self.api.get(f"{HOST_STATES}/{self.name}") or {}

    def pods(self) -> list[Document]:
        return self.api.items(f"/api/v1/pods?fieldSelector=spec.nodeName%3D{self.name}")

    def differences(self, problem: str = "") -> list[str]:
        """Return how the published objects differ from what the kubelet says; *problem* is expected in a HostState."""
        state = self.state()
        topology = self.api.get(f"{TOPOLOGIES}/{self.name}")
        if not state or topology is None:
            return ["nothing is published"]
        kubelet = self.view()
        expected = [text for text in state.get("problems", ()) if problem and problem in text]
        if problem and not expected:
            return [f"{problem} is not a problem"]
        known = {**state, "problems": [text for text in state.get("problems", ()) if text not in expected]}
        return [
            *host_state_differences(known, kubelet, self.kubelet_version()),
            *topology_differences(topology, kubelet, self.guest.shape, self.pods(), state),
        ]

    def check(self, step: str, *, problem: str = "") -> None:
        """Wait until the published objects equal what the kubelet says, and tell of a *problem*."""
        begun = time.monotonic()
        differences = ["not compared"]

        def same() -> bool:
            if not self.guest.ask("is_running", name=OBSERVER):
                raise RuntimeError(f"the observer exited:\n{self.logs()}")
            differences[:] = self.differences(problem)
            return not differences

        until(f"{step}: published", same, detail=lambda: "\n".join([*differences, self.logs()]))
        self.timings[step] = time.monotonic() - begun

    def predict(self, name: str) -> Document:
        """Return what ``alignup cluster why`` says about this node and a pod of the cluster."""
        answer = self.alignup("why", name, "--search", "0")["answers"][0]
        return next(node for group in answer["groups"] for node in group["nodes"] if node["node"] == self.name)

    def alignup(self, *words: str) -> Document:
        """Return the JSON that a subcommand of ``alignup cluster`` prints."""
        done = run_alignup("cluster", *words, "--kubeconfig", self.kubeconfig, "-o", "json")
        if not done.stdout:
            raise RuntimeError(f"alignup cluster {words}: {done.stderr}")
        document: Document = json.loads(done.stdout)
        return document

    def send(self, document: Document, *, problem: str = "") -> Document:
        """Create a pod, predict, bind it, wait for the verdict of the kubelet, compare, and check; return the pod."""
        name = document["metadata"]["name"]
        self.api.request("POST", PODS, document)
        predicted = self.predict(name)
        self.api.bind(name, self.name)
        pod = self.api.wait_admitted(name, self.logs)
        self.check(f"pod {name}", problem=problem)
        wrong = _misprediction(predicted, pod, self.view())
        if wrong:
            raise AssertionError(f"pod {name}: {wrong}; predicted {predicted}, status {pod['status']}")
        return pod

    def end(self, name: str) -> None:
        """Delete a pod, and check."""
        self.api.delete(name, self.logs)
        self.check(f"end of pod {name}")

    def restart_kubelet(
        self, config: Document, *, remove: Iterable[str] = (), number: int = 15, program: str = os.fspath(KUBELET)
    ) -> None:
        """Restart the kubelet with *config*, perhaps as another *program*, without some of its state files."""
        self.guest.ask("stop_process", name="kubelet", number=number)
        self.guest.ask("remove", names=list(remove))
        times = self.guest.ask("registrations")
        self.guest.ask("start_kubelet", config=config, program=program)
        self.guest.ask("again", times=times)
        heartbeat = self._heartbeat()
        until("the kubelet reports", lambda: self._heartbeat() != heartbeat, detail=self.logs)

    def _heartbeat(self) -> object:
        conditions = (self.api.get(f"{NODES}/{self.name}") or {"status": {}})["status"].get("conditions", ())
        return [condition.get("lastHeartbeatTime") for condition in conditions]


def is_admitted(pod: Document) -> bool:
    """Return whether the kubelet of a pod has admitted it; it may not run yet."""
    status = pod["status"]
    return status["phase"] == "Running" or (status["phase"] == "Pending" and bool(status.get("containerStatuses")))


def _misprediction(predicted: Document, pod: Document, kubelet: KubeletView) -> str:
    """Return what the kubelet did differently; empty if nothing."""
    status = pod["status"]
    rejected = status["phase"] == "Failed" and "rejected" in status.get("message", "")
    if (predicted["kubelet"] == "rejects") is not rejected:
        return f"predicted {predicted['kubelet']}, but the pod is {status['phase']}"
    if rejected or status["phase"] != "Running":
        return ""
    return placement_difference(predicted["placements"], pod, kubelet)


def placement_difference(placements: Iterable[Document], pod: Document, kubelet: KubeletView) -> str:
    """Return how what a pod holds differs from its predicted *placements*; empty if it does not."""
    held = kubelet.stored.get(pod["metadata"]["uid"], {})
    for placement in placements:
        name = placement["container"]
        actual, wanted = _held(held.get(name, {}), kubelet), _given(placement["given"], kubelet)
        if wanted != actual:
            return f"container {name} holds {actual}, predicted {wanted}"
    return ""


def _held(holdings: Document, kubelet: KubeletView) -> Document:
    """Return what a container holds; of devices the NUMA nodes, because the kubelet takes any of several equal ones."""
    return {
        "cpus": list(holdings.get("cpus", ())),
        "memory": {type_: (list(nodes), size) for nodes, type_, size in holdings.get("memory", ())},
        "devices": {
            resource: sorted(kubelet.devices.get((resource, id_), ()) for id_ in ids)
            for resource, ids in holdings.get("devices", {}).items()
        },
    }


def _given(allocations: Document, kubelet: KubeletView) -> Document:
    """Return what a container was predicted to get, as :func:`_held` has it."""
    memory = {type_: text.partition("=") for type_, text in allocations.get("memory", {}).items()}
    devices = {resource: ids.split(",") for resource, ids in allocations.get("device", {}).items()}
    return _held(
        {
            "cpus": _members(allocations["cpu"]["cpu"]) if "cpu" in allocations else [],
            # An init container whose memory others reuse has a block of 0 bytes.
            "memory": [(_members(nodes), type_, int(size)) for type_, (nodes, _, size) in memory.items() if int(size)],
            "devices": devices,
        },
        kubelet,
    )


def _members(text: str) -> list[int]:
    """Return the numbers of a list such as ``1,4-5``."""
    return list(bits.members(bits.parse(text)))
