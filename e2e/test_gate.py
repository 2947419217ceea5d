"""The gate controller with a real API server and a real scheduler: webhook, certificates, releases and bindings.

The nodes are objects without machines. A simulated kubelet admits what the scheduler binds to its node, and publishes
what it then holds as its observer would. ``ALIGNUP_E2E_NODES`` is the number of nodes of the test of speed.
"""

import asyncio
import base64
import itertools
import json
import os
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml
from starlette.types import Receive, Scope, Send

from alignup.align.reason_codes import GATE_MISSED as MISSED
from alignup.align.workload.names import DEVICES_ANNOTATION
from alignup.kubernetes.api import NODES, PODS, ApiClient, Change, find_access
from alignup.kubernetes.api.errors import ApiError, ForbiddenError, InvalidObjectError
from alignup.kubernetes.api.host_states import HOST_STATES
from alignup.kubernetes.api.known_pods import known_pod
from alignup.kubernetes.api.objects import ApiPod
from alignup.schedule.cluster_facts import GATE
from alignup.schedule.gate.admission import LABEL, answer_review, webhook_app
from alignup.schedule.gate.authority_installation import (
    WARNING_CONFIGURATIONS,
    WEBHOOK_CONFIGURATIONS,
    install_authority,
)
from alignup.schedule.gate.certificates import SECRETS, CertificateKeeper
from alignup.schedule.gate.controller import GateController
from alignup.schedule.gate.release_patch import pinned_nodes
from alignup.schedule.gate.service import WARN_PATH
from alignup.testing.simulated_kubelet import SimulatedKubelet
from alignup.web.asgi_server import kubernetes_limits, serve_app
from alignup.web.log import queued_stderr
from alignup.web.sockets import tcp_socket
from e2e import control_plane
from e2e.api import Document
from e2e.control_plane import ControlPlane, free_ports
from e2e.definitions import DEPLOYED, define_host_states
from e2e.fake_nodes import ALLOCATABLE, FakeNodes
from e2e.marks import needs
from e2e.measure_schedule import cpu_milliseconds, together
from e2e.simulated_cluster import (
    FLAGS,
    NAMESPACES,
    SECONDS,
    create_nodes,
    gate_controller,
    pod,
    poll,
    running,
    running_service,
    until,
    wait_event,
)
from tests.placement.located_hosts import GPU
from tests.schedule.located_kubelets import located_kubelet

pytestmark = [needs(control_plane.missing()), pytest.mark.anyio]

IDLE_SECONDS = 40.0  #: more than servers usually keep an idle connection, and less than clients of Kubernetes do
NODE_COUNT = int(os.environ.get("ALIGNUP_E2E_NODES", "100"))
WEBHOOK = DEPLOYED / "gate" / "webhook.yaml"
CONFIGURATION = WEBHOOK_CONFIGURATIONS.at("alignup-gate")


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("control-plane"), flags=FLAGS, nodes=("none",)) as control:
        control.start_scheduler()
        yield control


@pytest.fixture
async def client(plane: ControlPlane, tmp_path: Path) -> AsyncIterator[ApiClient]:
    async with ApiClient(find_access(plane.kubeconfig(tmp_path / "config"), environ={})) as admin:
        await define_host_states(admin)
        yield admin
        for ref in [PODS.of(left) for left in (await admin.list(PODS)).items]:
            await admin.delete(ref, grace_period=0)
        for node in (await admin.list(NODES)).items:
            await admin.delete(NODES.at(node.metadata.name))
        for state in (await admin.list(HOST_STATES)).items:
            await admin.delete(HOST_STATES.at(state.metadata.name))


@asynccontextmanager
async def controlled(client: ApiClient, nodes: FakeNodes) -> AsyncIterator[GateController]:
    """Run the gate controller, and the kubelets of *nodes*."""
    async with nodes.working(), gate_controller(client) as controller:
        yield controller


async def bound_pods(client: ApiClient) -> dict[str, str]:
    return {bound.metadata.name: bound.spec.node_name for bound in (await client.list(PODS)).items}


async def until_bound(client: ApiClient, count: int) -> dict[str, str]:
    async def nodes() -> dict[str, str] | None:
        bound = await bound_pods(client)
        return bound if sum(map(bool, bound.values())) >= count else None

    return await poll(nodes)


async def test_a_pod_that_demands_near_devices_waits_for_a_node_that_has_them(client: ApiClient) -> None:
    """The API server accepts a HostState with places of devices, and they decide which node the pod gets."""
    nodes = await create_nodes(client, "far")
    nodes.kubelets["far"] = located_kubelet()
    await nodes.report("far")
    amounts = {GPU: "2"}
    containers = [{"name": "app", "image": "app:1", "resources": {"requests": amounts, "limits": amounts}}]
    metadata = {"name": "near", "annotations": {DEVICES_ANNOTATION: "same-switch"}}
    gated = {"metadata": metadata, "spec": {"containers": containers, "schedulingGates": [{"name": GATE}]}}
    async with controlled(client, nodes) as controller:
        await client.create(PODS, gated, namespace="default")
        await until(lambda: controller.gate.queue.blocked)
        events = await wait_event(client, "nodes will admit")
        await nodes.add("near")
        nodes.kubelets["near"] = located_kubelet(switches=1, gpus=4)
        await nodes.report("near")
        bound = await until_bound(client, 1)

    assert "0/1 nodes will admit the pod: 1 the kubelet may choose devices that are not same-switch." in events
    assert bound == {"near": "near"}
    assert nodes.rejected == []


async def test_gated_pods_are_bound_where_kubelets_admit_them(client: ApiClient) -> None:
    """Two nodes with NUMA nodes of 3 and 4 free CPUs; the scheduler alone has the last of these pods rejected."""
    nodes = await create_nodes(client, "a", "b")
    async with controlled(client, nodes) as controller:
        for number, cpus in enumerate((2, 4, 3, 1, 2)):
            await client.create(PODS, pod(f"p{number}", cpus, gated=True), namespace="default")
            await until_bound(client, number + 1)
        await until(lambda: not len(controller.gate.releases))
        await client.create(PODS, pod("too-much", 4, gated=True), namespace="default")
        await until(lambda: controller.gate.queue.blocked)

    pods = {bound.metadata.name: bound for bound in (await client.list(PODS)).items}
    assert pods["too-much"].spec.scheduling_gates
    del pods["too-much"]
    assert [pinned_nodes(bound) == (bound.spec.node_name,) for bound in pods.values()] == [True] * 5
    assert nodes.rejected == []


async def test_selectors_and_affinity_are_restricted_never_widened(client: ApiClient) -> None:
    nodes = await create_nodes(client, "a", "b", "c")
    required = {
        "nodeSelectorTerms": [
            {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["b"]}]},
            {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["a", "b"]}]},
        ]
    }
    with_terms = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required},
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"a": "b"}}}
            ]
        },
    }
    required["nodeSelectorTerms"][1]["matchFields"][0]["values"] = ["a"]
    async with controlled(client, nodes):
        plain = pod("plain", 4, gated=True, nodeSelector={"kubernetes.io/hostname": "c"})
        for document in (plain, pod("terms", 4, gated=True, affinity=with_terms)):
            await client.create(PODS, document, namespace="default")
        bound = await until_bound(client, 2)
    assert bound == {"plain": "c", "terms": "b"}


async def test_a_released_pod_cannot_be_changed(client: ApiClient) -> None:
    """Why a wrong choice can be repaired only by another pod."""
    await create_nodes(client, "a")
    async with gate_controller(client):
        await client.create(PODS, pod("one", 4, gated=True), namespace="default")
        await until_bound(client, 1)
    with pytest.raises(InvalidObjectError, match="pod updates may not change fields"):
        await client.patch(PODS.at("one", namespace="default"), {"spec": {"affinity": None}})


@asynccontextmanager
async def webhook(
    client: ApiClient, name: str, calls: list[tuple[str, int]] | None = None
) -> AsyncIterator[CertificateKeeper]:
    """Serve the webhook as a replica does; API servers call it by *name*. *calls* gets their addresses."""
    secret = SECRETS.at("alignup-webhook", namespace="default")
    keeper = CertificateKeeper(client, secret=secret, names=(name,))
    async with AsyncExitStack() as stack:
        listener = stack.enter_context(tcp_socket(0))
        service = {"url": f"https://{name}:{listener.getsockname()[1]}/gate"}
        await client.create(WEBHOOK_CONFIGURATIONS, configuration(service))
        await install_authority(client, secret=secret, configuration=CONFIGURATION, names=(name,))
        await stack.enter_async_context(running(keeper.run()))
        await keeper.ready.wait()
        app = webhook_app({"/gate": answer_review})

        async def noted(scope: Scope, receive: Receive, send: Send) -> None:
            if calls is not None:
                calls.append(scope["client"])
            await app(scope, receive, send)

        await stack.enter_async_context(
            serve_app(noted, listener, stopping=asyncio.Event(), limits=kubernetes_limits(), tls=keeper.context)
        )
        yield keeper
        await client.delete(CONFIGURATION)


def configuration(service: dict[str, Any], failure_policy: str = "Fail") -> dict[str, Any]:
    """Return the configuration that is deployed, for a webhook on this machine.

    With the default policy a test fails if the API server does not trust the certificate.
    """
    documents = {document["kind"]: document for document in yaml.safe_load_all(WEBHOOK.read_text())}
    deployed = documents[CONFIGURATION.resource.kind]
    for hook in deployed["webhooks"]:
        hook["clientConfig"] = service
        hook["failurePolicy"] = failure_policy
    return {"metadata": deployed["metadata"], "webhooks": deployed["webhooks"]}


def labeled(name: str, value: str) -> Document:
    """Return a pod whose label has this value."""
    return {**pod(name, 1), "metadata": {"name": name, "labels": {LABEL: value}}}


async def gates(client: ApiClient, document: dict[str, Any], namespace: str) -> list[str]:
    created = await client.create(PODS, document, namespace=namespace)
    return [gate.name for gate in created.spec.scheduling_gates]


async def until_gated(client: ApiClient, document: dict[str, Any]) -> None:
    """Create a pod once the API server has seen the authority of the webhook."""

    async def is_gated() -> bool:
        try:
            return await gates(client, document, "default") == [GATE]
        except ApiError:
            return False

    await poll(is_gated)


async def test_the_webhook_gates_pods_that_opt_in(client: ApiClient) -> None:
    async with webhook(client, "localhost") as keeper:
        assert keeper.problem == ""
        await until_gated(client, labeled("opted-in", "enabled"))
        assert await gates(client, pod("plain", 1), "default") == []

        await client.create(NAMESPACES, {"metadata": {"name": "aligned", "labels": {LABEL: "enabled"}}})
        assert await gates(client, pod("other", 1), "aligned") == [GATE]
        assert await gates(client, pod("bound", 1, nodeName="a"), "aligned") == []
        assert await gates(client, labeled("out", "disabled"), "aligned") == []
        assert await gates(client, pod("batch", 1, schedulerName="batch"), "aligned") == []
        forged = {"metadata": {"name": "forged", "annotations": {"alignup.dev/node": "a"}}}
        with pytest.raises(ForbiddenError, match="only Alignup writes annotations such as"):
            await gates(client, {**pod("", 1), **forged}, "aligned")


async def test_an_api_server_uses_a_connection_again_that_was_idle_for_long(client: ApiClient) -> None:
    """A review on a connection that the webhook closes at this moment fails, and is not repeated."""
    calls: list[tuple[str, int]] = []
    async with webhook(client, "localhost", calls):
        await until_gated(client, labeled("before", "enabled"))
        await asyncio.sleep(IDLE_SECONDS)  # what is tested
        calls_before = len(calls)
        assert await gates(client, labeled("after", "enabled"), "default") == [GATE]
        assert calls[calls_before:]
        assert set(calls[calls_before:]) <= set(calls[:calls_before])


async def test_a_pod_that_comes_without_the_gate_is_noticed(plane: ControlPlane, client: ApiClient) -> None:
    """The deployed configuration ignores failures; here the API server cannot reach the webhook at all."""
    served, nobody = free_ports(2)
    deployed = configuration({"url": f"https://localhost:{nobody}/v1/gate"}, failure_policy="Ignore")
    await client.create(WEBHOOK_CONFIGURATIONS, deployed)
    await client.create(NAMESPACES, {"metadata": {"name": "missed", "labels": {LABEL: "enabled"}}})
    numbers = itertools.count()

    async def missed_events() -> list[Document]:
        """Create another pod: those that come before the leader follows namespaces are not judged."""
        assert await gates(client, pod(f"missed-{next(numbers)}", 1), "missed") == []
        await asyncio.sleep(0.5)
        listed = json.loads(await client.get_raw("/api/v1/events"))["items"]
        return [event for event in listed if event["reason"] == MISSED]

    async with running_service(plane, "--gate", "--webhook-listen", f"127.0.0.1:{served}") as service:
        assert await gates(client, pod("plain", 1), "default") == []
        events = await poll(missed_events, plane)
        metrics = service.get("/metrics")
    await client.delete(CONFIGURATION)
    assert {event["involvedObject"]["namespace"] for event in events} == {"missed"}
    (counted,) = [line for line in metrics.splitlines() if line.startswith("alignup_gate_missed_pods_total")]
    assert float(counted.split()[-1]) >= 1


def manifest(kind: str, name: str, cpu: str) -> dict[str, Any]:
    amounts = {"cpu": cpu, "memory": "1Gi"}
    containers = [{"name": "app", "image": "app:1", "resources": {"limits": amounts}}]
    if kind == "Pod":
        return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "spec": {"containers": containers}}
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": containers}}
    selector = {"matchLabels": {"app": name}}
    spec = {"selector": selector, "template": template}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


@needs(control_plane.missing_kubectl())
async def test_kubectl_apply_prints_warnings_and_creates_everything(
    plane: ControlPlane, client: ApiClient, tmp_path: Path
) -> None:
    """Two nodes with NUMA nodes of 3 and 4 CPUs; then no replica answers any more."""
    kubeconfig = plane.kubeconfig(tmp_path / "kubectl")
    (served,) = free_ports(1)
    authority = trustme.CA()
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    issued = authority.issue_cert("localhost")
    issued.cert_chain_pems[0].write_to_path(certificate)
    issued.private_key_pem.write_to_path(key)
    key.chmod(0o600)
    (deployed,) = yaml.safe_load_all((DEPLOYED / "warnings" / "webhook.yaml").read_text())
    bundle = base64.b64encode(authority.cert_pem.bytes()).decode()
    deployed["webhooks"][0]["clientConfig"] = {"url": f"https://localhost:{served}{WARN_PATH}", "caBundle": bundle}

    async def apply(*manifests: dict[str, Any]) -> tuple[list[str], list[str]]:
        """Return what kubectl prints about the objects, and its warnings."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests})
        words = [str(control_plane.program("kubectl")), "--kubeconfig", str(kubeconfig), "apply", "-f", "-"]
        run = await asyncio.to_thread(
            subprocess.run, words, input=text, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        assert run.returncode == 0, run.stderr
        return run.stdout.splitlines(), [line for line in run.stderr.splitlines() if line.startswith("Warning: ")]

    await create_nodes(client, "a", "b")
    numbers = itertools.count()

    async def warning_with(text: str) -> str:
        """Create another Deployment; return the only warning if it has *text*."""
        name = f"wide-{next(numbers)}"
        created, warnings = await apply(manifest("Deployment", name, "5"))
        assert created == [f"deployment.apps/{name} created"]
        (warning,) = warnings or [""]
        return warning if text in warning else ""

    files = ("--webhook-cert-file", str(certificate), "--webhook-private-key-file", str(key))
    async with running_service(plane, "--gate", "--webhook-listen", f"127.0.0.1:{served}", *files):
        await client.create(WARNING_CONFIGURATIONS, {name: deployed[name] for name in ("metadata", "webhooks")})
        await poll(lambda: warning_with("TopologyAffinityError"))  # once the API server has seen the configuration
        warning = await poll(lambda: warning_with("; "))  # once the smallest change is found
        created, others = await apply(manifest("Pod", "shared", "1500m"), manifest("Pod", "right", "2"))
    assert warning.startswith("Warning: TopologyAffinityError: no node of this cluster would ever admit it: ")
    assert "4" in warning.rpartition("; ")[2]
    assert created == ["pod/shared created", "pod/right created"]
    assert [warning.partition(": ")[2].partition(":")[0] for warning in others] == ["FractionalCPUs"]

    assert await apply(manifest("Deployment", "unanswered", "5")) == (["deployment.apps/unanswered created"], [])
    await client.delete(WARNING_CONFIGURATIONS.at("alignup-warnings"))


async def cpu_time(programs: Sequence[int], work: Awaitable[object]) -> float:
    """Return the CPU time in milliseconds that processes use during *work*."""
    before = sum(map(cpu_milliseconds, programs))
    await work
    return sum(map(cpu_milliseconds, programs)) - before


@pytest.mark.parametrize("residents", [0, 60])
async def test_speed(plane: ControlPlane, client: ApiClient, residents: int) -> None:
    """Pods per second from the gate to the binding, on many nodes, and the CPU time of alignup for one of them.

    Each node has so many pods already that share its CPUs.
    """
    status = {"allocatable": ALLOCATABLE, "capacity": ALLOCATABLE}

    async def add(name: str) -> None:
        await client.create(NODES, {"metadata": {"name": name}, "status": status})
        kubelet = SimulatedKubelet(devices=())
        for number in range(residents):
            containers = [{"name": "app", "image": "app:1", "resources": {"requests": {"cpu": "10m"}}}]
            spec = {"containers": containers, "nodeName": name}
            resident = {"metadata": {"name": f"{name}-{number}"}, "spec": spec}
            kubelet.run(known_pod(await client.create(PODS, resident, namespace="default")).pod)
        await client.create(HOST_STATES, kubelet.host_state(name))

    await together(add(f"n{number:04}") for number in range(NODE_COUNT))
    count = min(NODE_COUNT, 1500)
    pods = (pod(f"p{number:04}", 4, gated=True) for number in range(count))
    await together(client.create(PODS, document, namespace="default") for document in pods)
    programs = [plane.process(name) for name in ("kube-apiserver", "kube-scheduler", "etcd")]
    async with asyncio.timeout(SECONDS):  # until they are done with what was created
        while await cpu_time(programs, asyncio.sleep(1)) > 100:
            pass
    bound, all_bound = set[str](), asyncio.Event()

    def note(change: Change[ApiPod]) -> None:
        if change.object.spec.node_name and change.object.metadata.name.startswith("p"):
            bound.add(change.object.metadata.name)
            if len(bound) == count:
                all_bound.set()

    with queued_stderr():  # as the program logs
        async with gate_controller(client) as controller, asyncio.timeout(SECONDS):
            controller._live.pods.subscribe(note)  # noqa: SLF001 - the pods as the controller sees them
            await controller._live.ready.wait()  # noqa: SLF001 - what follows are decisions
            started, used = time.monotonic(), time.process_time()
            others = await cpu_time(programs, all_bound.wait()) / count
            rate = count / (time.monotonic() - started)
            alignup = 1000 * (time.process_time() - used) / count
    each = f"CPU time of each: alignup {alignup:.1f} ms, Kubernetes {others:.1f} ms"
    beside = f" with {residents} pods each" if residents else ""
    print(f"gate: {count} pods on {NODE_COUNT} nodes{beside}, {rate:.0f} pods/s; {each}")
    placed = {node for name, node in (await bound_pods(client)).items() if name.startswith("p")}
    assert len(placed) == count
