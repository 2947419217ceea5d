"""An API server for tests whose node runs the reader: its script is executed here."""

import json
import subprocess
import threading
from pathlib import Path
from typing import Any

from alignup.collect.reader_pod import ETC_MOUNT, MOUNT, PREFIX
from alignup.testing.api_server import ApiServer
from tests.align.hosts import pod
from tests.observe.api_objects import SERVED, api_pod, node
from tests.observe.kubelets import ObservedKubelet

NODE = "host-a"
SECRET = "hunter2"  # noqa: S105 - which must not be in an archive


class NodeServer(ApiServer):
    """Runs readers on its node, with *state* as the kubelet's directory; ``None``: they never start."""

    def __init__(self, state: Path | None, kubelet: ObservedKubelet) -> None:
        super().__init__()
        self.state, self.kubelet = state, kubelet
        self.waiting: dict[str, str] | None = None  #: why readers do not start
        self.log: bytes | None = None  #: instead of the script's output
        self.readers: list[dict[str, Any]] = []
        self.created = threading.Event()
        self.serve(SERVED)

    def _perform(self, call):
        code, body = super()._perform(call)
        if call.verb == "create" and call.resource.plural == "pods":
            self._run(json.loads(body))
        return code, body

    def _run(self, document):
        metadata, (container,) = document["metadata"], document["spec"]["containers"]
        assert metadata["name"].startswith(PREFIX)
        self.readers.append(document)
        self.created.set()
        status: dict[str, Any] = {"phase": "Pending"}
        if self.waiting:
            status["containerStatuses"] = [{"name": "reader", "state": {"waiting": self.waiting}}]
        elif self.state is not None:
            shell, flag, script = container["command"]
            script = script.replace(f"{MOUNT}/", f"{self.state}/").replace(f"{ETC_MOUNT}/", f"{self.state}/etc/")
            command = [shell, flag, script]
            log = subprocess.run(command, capture_output=True, check=True).stdout if self.log is None else self.log  # noqa: S603
            path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/log"
            self.respond(path, log)
            status["phase"] = "Succeeded"
        self.put({**document, "status": status})


def rejected_pod(name: str = "web", **spec: Any) -> dict[str, Any]:
    """A pod that the kubelet has rejected, full of secrets."""
    document = api_pod(pod(name, cpu="4", memory="1Gi"), NODE, phase="Failed", **spec)
    document["status"] |= {
        "reason": "TopologyAffinityError",
        "message": "Pod was rejected: Resources cannot be allocated",
    }
    document["metadata"]["annotations"] = {
        "kubectl.kubernetes.io/last-applied-configuration": SECRET,
        "example.com/token": SECRET,
        "topology.alignup.dev/claims": "prefer",
    }
    document["metadata"]["labels"] = {"app": "web", "token": SECRET}
    for container in document["spec"]["containers"]:
        container |= {"image": f"{SECRET}:1", "command": [SECRET], "env": [{"name": "PASSWORD", "value": SECRET}]}
    document["spec"]["volumes"] = [{"name": SECRET, "secret": {"secretName": SECRET}}]
    return document


def put_node(server: ApiServer, kubelet: ObservedKubelet, *, version: str = "v1.36.4") -> None:
    """Put the node of *kubelet*, its pods and its configuration."""
    server.put({**node(NODE), "status": {"nodeInfo": {"kubeletVersion": version}}})
    for known in kubelet.pods.values():
        server.put(api_pod(known.pod, NODE))
    configuration = {**json.loads(kubelet.text), "staticPodURLHeader": {"Authorization": [SECRET]}}
    body = json.dumps({"kubeletconfig": configuration}).encode()
    server.respond(f"/api/v1/nodes/{NODE}/proxy/configz", body)


def busy_kubelet() -> ObservedKubelet:
    """A kubelet whose NUMA nodes have two CPUs left each at most."""
    kubelet = ObservedKubelet()
    for name in ("x", "y"):
        kubelet.run(pod(name, cpu="2", memory="1Gi"))
    return kubelet
