"""A plain client of an API server for tests: JSON in, JSON out, nothing of this project."""

import http
import json
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml

from e2e.control_plane import ADMIN, ControlPlane, program

Document = dict[str, Any]
Result = TypeVar("Result")

PODS = "/api/v1/namespaces/default/pods"
NODES = "/api/v1/nodes"
EVENTS = "/api/v1/namespaces/default/events"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
MERGE = "application/merge-patch+json"
SECONDS = 900.0  #: until something counts as hung; on an idle machine nothing takes a tenth of it
_ENDED = ("Succeeded", "Failed")


class RefusedError(Exception):
    """The API server answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


def until(
    condition: str, happened: Callable[[], Result | None], *, detail: Callable[[], object] = lambda: ""
) -> Result:
    """Wait for a true result of *happened* and return it; *detail* is added to the timeout error."""
    end = time.monotonic() + SECONDS
    while not (result := happened()):
        if time.monotonic() > end:
            raise TimeoutError(f"timed out after {SECONDS:.0f} s: {condition}\n{detail()}")
        time.sleep(0.1)
    return result


@dataclass
class Api:
    """The API server of *plane*, as its administrator unless a request has another token."""

    plane: ControlPlane
    _context: ssl.SSLContext | None = field(default=None, init=False)

    def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | list[Any] | None = None,
        *,
        content: str = "application/json",
        token: str = ADMIN,
    ) -> Document:
        """Send a request; :class:`RefusedError` if it does not succeed."""
        headers = {"Authorization": f"Bearer {token}", "Content-Type": content}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(  # noqa: S310 - https
            f"{self.plane.url}{path}", data=data, headers=headers, method=method
        )
        try:
            with urllib.request.urlopen(request, context=self._trust(), timeout=SECONDS) as answer:  # noqa: S310
                document: Document = json.load(answer)
        except urllib.error.HTTPError as error:
            raise RefusedError(error.code, error.read().decode(errors="replace")[:2000]) from error
        return document

    def _trust(self) -> ssl.SSLContext:
        """Return the authority of the control plane, which exists once that has been started."""
        if self._context is None:
            self._context = ssl.create_default_context(cafile=str(self.plane.certificate))
            self._context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return self._context

    def get(self, path: str) -> Document | None:
        """Return an object; ``None`` if it does not exist."""
        try:
            return self.request("GET", path)
        except RefusedError as error:
            if error.status == http.HTTPStatus.NOT_FOUND:
                return None
            raise

    def items(self, path: str) -> list[Document]:
        objects: list[Document] = self.request("GET", path)["items"]
        return objects

    def merge(self, path: str, patch: Document, *, token: str = ADMIN) -> Document:
        """Change an object by a JSON merge patch."""
        return self.request("PATCH", path, patch, content=MERGE, token=token)

    def create(self, document: Document) -> Document:
        """Create an object that says what it is."""
        return self.request("POST", _collection(document), document)

    def install(self, *manifests: Path) -> None:
        """Create the objects of manifests."""
        for manifest in manifests:
            for document in yaml.safe_load_all(manifest.read_text("utf-8")):
                self.create(document)

    def account_token(self, account: str, *, node: str = "") -> str:
        """Return a token of a service account of the namespace alignup, as a pod has it (on *node*, if given)."""
        request: Document = {"expirationSeconds": 86400}
        if node:
            request["boundObjectRef"] = {"apiVersion": "v1", "kind": "Node", "name": node}
        path = f"/api/v1/namespaces/alignup/serviceaccounts/{account}/token"
        token: str = self.request("POST", path, {"spec": request})["status"]["token"]
        return token

    def allow_stranger(self, name: str, *rules: Document, namespace: str = "") -> None:
        """Give the user :data:`~e2e.control_plane.STRANGER` a role, in a namespace or in all."""
        kind, path = ("Role", f"{RBAC}/namespaces/{namespace}/") if namespace else ("ClusterRole", f"{RBAC}/")
        metadata = {"name": name}
        self.request("POST", f"{path}{kind.lower()}s", {"metadata": metadata, "rules": list(rules)})
        subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "stranger"}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}
        binding = {"metadata": metadata, "subjects": [subject], "roleRef": role}
        self.request("POST", f"{path}{kind.lower()}bindings", binding)

    def kubectl(self, *words: str | Path, text: str = "") -> str:
        """Run kubectl as the administrator, with *text* as its input; return its output."""
        access = self.plane.kubeconfig(self.plane.directory / "kubectl.kubeconfig")
        command = [program("kubectl"), "--kubeconfig", access, *words]
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=SECONDS, check=False)
        if done.returncode or "Warning" in done.stderr:
            raise RuntimeError(f"kubectl {words}: {done.stderr}")
        return done.stdout

    def events(self, pod: str) -> list[Document]:
        """Return the events of a pod."""
        return [event for event in self.items(EVENTS) if event["involvedObject"]["name"] == pod]

    def define(self, definition: Path) -> None:
        """Create the CustomResourceDefinition in a file, and wait until its resource is served."""
        document = yaml.safe_load(definition.read_text("utf-8"))
        self.create(document)
        spec = document["spec"]
        path = f"/apis/{spec['group']}/{spec['versions'][-1]['name']}/{spec['names']['plural']}"
        until(f"{path} is served", lambda: self.get(path) is not None)

    def wait_schedulable(self, node: str, detail: Callable[[], object]) -> Document:
        """Wait until a node is ready and has no taints."""

        def ready() -> Document | None:
            document = self.get(f"{NODES}/{node}")
            if document is None or document["spec"].get("taints"):
                return None
            conditions = document["status"].get("conditions", ())
            statuses = {condition["type"]: condition["status"] for condition in conditions}
            return document if statuses.get("Ready") == "True" else None

        return until(f"node {node} is ready", ready, detail=detail)

    def pod(self, name: str) -> Document | None:
        return self.get(f"{PODS}/{name}")

    def bind(self, name: str, node: str) -> None:
        """Send a pod to a node, as a scheduler does."""
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        self.request("POST", f"{PODS}/{name}/binding", body)

    def wait_phase(self, name: str, *phases: str, detail: Callable[[], object] = lambda: "") -> Document:
        """Wait until a pod is in one of *phases*."""

        def reached() -> Document | None:
            pod = self.pod(name)
            return pod if pod is not None and pod["status"].get("phase") in phases else None

        shown = lambda: f"{json.dumps((self.pod(name) or {}).get('status'))}\n{detail()}"  # noqa: E731
        return until(f"pod {name} is {' or '.join(phases)}", reached, detail=shown)

    def wait_admitted(self, name: str, detail: Callable[[], object]) -> Document:
        """Wait until the kubelet runs a pod, or has rejected it."""
        return self.wait_phase(name, "Running", *_ENDED, detail=detail)

    def delete(self, name: str, detail: Callable[[], object] = lambda: "") -> None:
        """Delete a pod, and wait until it is gone."""
        self.request("DELETE", f"{PODS}/{name}")
        until(f"pod {name} is gone", lambda: self.pod(name) is None, detail=detail)


def _collection(manifest: Document) -> str:
    """Return the path to which an object is sent."""
    version, kind = manifest["apiVersion"], manifest["kind"].lower()
    namespace = manifest["metadata"].get("namespace")
    group = "/api/v1" if version == "v1" else f"/apis/{version}"
    plural = f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}es" if kind.endswith("s") else f"{kind}s"
    return f"{group}/namespaces/{namespace}/{plural}" if namespace else f"{group}/{plural}"
