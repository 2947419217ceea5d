"""What an extender sees of claims in a real scheduler, and what becomes of them if it refuses; without kubelets."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from alignup.testing import DraDriver
from e2e import control_plane
from e2e.api import NODES, PODS, Api, Document, until
from e2e.control_plane import ControlPlane
from e2e.marks import needs
from e2e.simulated_cluster import FLAGS, claim_pod, extended_pod
from tests.schedule.claim_objects import DRIVER, device_class, template

pytestmark = needs(control_plane.missing(("kube-apiserver", "kube-scheduler", "kube-controller-manager")))

HOSTS = ("node-a", "node-b")
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
REFUSED = "the CPUs cannot be beside the GPU"


@dataclass
class Extender:
    """An extender that records what it sees of the only pod, and refuses as told."""

    api: Api
    bind_refusals: int = 0  #: so many bindings fail
    refuse_allocated: bool = False  #: the filter refuses the node of a claim that is allocated, from then on
    calls: list[tuple[str, tuple[str, ...], bool, bool]] = field(default_factory=list)  #: see :meth:`record`
    avoided: set[str] = field(default_factory=set)

    def record(self, verb: str, nodes: list[str]) -> bool:
        """Record the nodes, and whether the pod's claim is allocated and reserved; return whether it is allocated."""
        statuses = [claim.get("status", {}) for claim in self.api.items(CLAIMS)]
        allocated, reserved = (any(key in status for status in statuses) for key in ("allocation", "reservedFor"))
        self.calls.append((verb, tuple(sorted(nodes)), allocated, reserved))
        return allocated

    def filter(self, request: Document) -> Document:
        nodes = request["NodeNames"]
        if self.record("filter", nodes) and self.refuse_allocated:
            self.avoided.update(nodes)
        refused = {node: "the GPU is far from free CPUs" for node in nodes if node in self.avoided}
        return {"NodeNames": [node for node in nodes if node not in refused], "FailedNodes": refused}

    def bind(self, request: Document) -> Document:
        self.record("bind", [request["Node"]])
        if self.bind_refusals:
            self.bind_refusals -= 1
            return {"Error": REFUSED}
        self.api.bind(request["PodName"], request["Node"])
        return {}

    @contextmanager
    def serve(self) -> Iterator[Document]:
        """Yield the part of a scheduler's configuration that names this extender."""
        extender = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                verb = extender.filter if self.path.endswith("/filter") else extender.bind
                answer = json.dumps(verb(request)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            Thread(target=server.serve_forever, daemon=True).start()
            url = f"http://127.0.0.1:{server.server_port}"
            verbs = {"filterVerb": "filter", "bindVerb": "bind", "nodeCacheCapable": True}
            yield {"extenders": [{"urlPrefix": url, **verbs}]}
            server.shutdown()


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Two nodes with two GPUs each."""
    with ControlPlane(tmp_path_factory.mktemp("control-plane"), flags=FLAGS, nodes=("none",)) as control:
        api = Api(control)
        control.start_controllers()
        for name in HOSTS:
            amounts = {"cpu": "7", "memory": "31Gi", "pods": "110"}
            metadata = {"name": name, "labels": {"kubernetes.io/hostname": name}}
            api.request("POST", NODES, {"metadata": metadata, "status": {"allocatable": amounts, "capacity": amounts}})
            for document in DraDriver(DRIVER, "1@0,1@1", directory=Path("unused"), node=name).slices():
                api.create(document)
        api.create(device_class())
        api.create(template())
        yield control


@pytest.fixture
def extender(plane: ControlPlane) -> Iterator[Extender]:
    """An extender, and a scheduler that asks it; pods and claims are gone afterwards."""
    made = Extender(Api(plane))
    with made.serve() as configuration:
        plane.start_scheduler(configuration)
        yield made
        for pod in made.api.items(PODS):
            made.api.request("DELETE", f"{PODS}/{pod['metadata']['name']}?gracePeriodSeconds=0")
        until("the claims are gone", lambda: not made.api.items(CLAIMS))


def wait_bound(api: Api) -> Document:
    def bound() -> Document | None:
        pod = api.pod("app")
        return pod if pod is not None and pod["spec"].get("nodeName") else None

    return until("the pod is bound", bound)


@pytest.mark.parametrize("pod", [claim_pod("app", 1), extended_pod("app")], ids=["claim", "extended resource"])
def test_claims_are_allocated_before_the_extender_binds(extender: Extender, pod: Document) -> None:
    extender.api.request("POST", PODS, pod)
    node = wait_bound(extender.api)["spec"]["nodeName"]

    assert extender.calls == [("filter", HOSTS, False, False), ("bind", (node,), True, True)]


def test_a_claim_stays_allocated_if_the_extender_does_not_bind(extender: Extender) -> None:
    extender.bind_refusals = 2
    extender.api.request("POST", PODS, claim_pod("app", 1))
    node = wait_bound(extender.api)["spec"]["nodeName"]

    again = [("filter", (node,), True, False), ("bind", (node,), True, True)]
    assert extender.calls == [("filter", HOSTS, False, False), ("bind", (node,), True, True), *again, *again]


def test_a_claim_is_allocated_elsewhere_if_the_filter_refuses_its_node(extender: Extender) -> None:
    extender.bind_refusals, extender.refuse_allocated = 1, True
    extender.api.request("POST", PODS, claim_pod("app", 1))
    node = wait_bound(extender.api)["spec"]["nodeName"]

    (refused,) = extender.avoided
    assert {node, refused} == set(HOSTS)
    assert extender.calls == [
        ("filter", HOSTS, False, False),
        ("bind", (refused,), True, True),
        ("filter", (refused,), True, False),
        ("filter", HOSTS, False, False),  # the scheduler has deallocated the claim
        ("bind", (node,), True, True),
    ]


def test_the_claim_of_an_extended_resource_is_made_anew_if_the_extender_does_not_bind(extender: Extender) -> None:
    extender.bind_refusals = 1
    extender.api.request("POST", PODS, extended_pod("app"))
    wait_bound(extender.api)

    allocated = [call[:1] + call[2:] for call in extender.calls]
    assert allocated == [("filter", False, False), ("bind", True, True)] * 2
    assert [call[1] for call in extender.calls if call[0] == "filter"] == [HOSTS, HOSTS]


def test_a_gated_pod_has_its_claim_which_is_not_allocated(extender: Extender) -> None:
    extender.api.request("POST", PODS, claim_pod("app", 1, gated=True))

    status = until("the claim is named", lambda: (extender.api.pod("app") or {})["status"].get("resourceClaimStatuses"))

    (claim,) = extender.api.items(CLAIMS)
    assert status == [{"name": "gpu", "resourceClaimName": claim["metadata"]["name"]}]
    assert "allocation" not in claim.get("status", {})
    assert extender.calls == []
