"""``deploy/kubernetes`` and the chart on a real API server: every object is accepted, and the permissions suffice."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from alignup.kubernetes.api import NODE_RESOURCE_TOPOLOGIES, NODES, PODS, Access, ApiClient, find_access
from alignup.kubernetes.api.errors import ForbiddenError
from alignup.kubernetes.api.host_states import HOST_STATES
from alignup.kubernetes.api.objects import ApiPod
from alignup.observe.service import observe
from alignup.schedule.cluster_facts import GATE
from alignup.schedule.gate.authority_installation import WEBHOOK_CONFIGURATIONS, install_authority
from alignup.schedule.gate.certificates import SECRETS, CertificateKeeper
from alignup.schedule.gate.release_patch import pinned_nodes, write_release
from alignup.schedule.gate.service import GateServiceOptions, WebhookOptions, add_gate
from alignup.schedule.service import LeaseOptions, ScheduleService
from e2e import control_plane
from e2e.api import Api, until
from e2e.control_plane import ADMIN
from e2e.marks import needs
from tests.deploy.chart import render_chart
from tests.deploy.manifests import BASE, SCHEDULE, SCHEDULER, of_kind, read_kustomization
from tests.deploy.test_chart import without_hook
from tests.observe.observed_machine import observe_once

pytestmark = [needs(control_plane.missing() or control_plane.missing_kubectl()), pytest.mark.anyio]

SECONDS = 60.0  #: for what takes milliseconds


@pytest.fixture(scope="module")
def api(api: Api) -> Api:
    """An API server on which everything was installed."""
    for directory in (BASE, SCHEDULE, SCHEDULER):
        api.kubectl("apply", "--validate=strict", "-k", directory)
    return api


@pytest.fixture(scope="module")
def kubeconfig(api: Api) -> Path:
    return api.plane.kubeconfig(api.plane.directory / "config")


@pytest.fixture
async def admin(kubeconfig: Path) -> AsyncIterator[ApiClient]:
    async with ApiClient(find_access(kubeconfig)) as client:
        yield client


def _account(kubeconfig: Path, name: str) -> Access:
    """Return the access of a pod with this service account."""
    headers = (
        ("Impersonate-User", f"system:serviceaccount:alignup:{name}"),
        ("Impersonate-Group", "system:serviceaccounts"),
        ("Impersonate-Group", "system:authenticated"),
    )
    return replace(find_access(kubeconfig), headers=headers)


def _observer(kubeconfig: Path, node: str) -> Access:
    """Return the access of an observer pod on *node*."""
    access = _account(kubeconfig, "alignup-observer")
    where = ("Impersonate-Extra-authentication.kubernetes.io%2Fnode-name", node)
    return replace(access, headers=(*access.headers, where))


def test_the_chart_makes_the_objects_that_kustomize_has_made(api: Api) -> None:
    rendered = render_chart({name: {"enabled": True} for name in ("schedule", "scheduler")})
    text = yaml.safe_dump_all(map(without_hook, rendered))

    assert api.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", text=text)
    assert api.kubectl("diff", "-f", "-", text=text) == ""


async def test_the_permissions_suffice_for_an_observer(admin: ApiClient, kubeconfig: Path, tmp_path: Path) -> None:
    await admin.create(NODES, {"metadata": {"name": "host-a"}})
    problems = await observe(_observer(kubeconfig, "host-a"), observe_once(tmp_path / "kubelet"))

    assert problems == ()
    assert (await admin.get(HOST_STATES.at("host-a"))).generation == 1
    topology = await admin.get(NODE_RESOURCE_TOPOLOGIES.at("host-a"))
    assert topology.metadata.owner_references[0].kind == "Node"


async def test_an_observer_cannot_write_the_objects_of_another_node(kubeconfig: Path) -> None:
    refused = "the observer of node host-a must not write the objects of node host-b"
    async with ApiClient(_observer(kubeconfig, "host-a")) as client, asyncio.timeout(SECONDS):
        with pytest.raises(ForbiddenError, match=refused):
            await _again_and_again(lambda: client.apply(HOST_STATES.at("host-b"), {"problems": ["a lie"]}))

    async with ApiClient(_observer(kubeconfig, "host-b")) as client:
        await client.apply(HOST_STATES.at("host-b"), {"problems": ["true"]})
        await client.apply(NODE_RESOURCE_TOPOLOGIES.at("host-b"), {"zones": []})

    async with ApiClient(_account(kubeconfig, "alignup-observer")) as client:
        with pytest.raises(ForbiddenError, match="the token of the observer does not name a node"):
            await client.apply(HOST_STATES.at("host-b"), {"problems": ["a lie"]})


def test_an_observer_can_do_nothing_else(api: Api) -> None:
    account = "system:serviceaccount:alignup:alignup-observer"
    can = api.kubectl("auth", "can-i", "--list", f"--as={account}", "--no-headers")
    granted = {line.split()[0] for line in can.splitlines() if not line.startswith((" ", "self", "["))}
    granted.discard("clustertrustbundles.certificates.k8s.io")  # which all service accounts may read

    assert granted == {
        *("nodes", "nodes/configz", "pods", "hoststates.alignup.dev", "resourceslices.resource.k8s.io"),
        "noderesourcetopologies.topology.node.k8s.io",
    }


async def test_the_permissions_suffice_for_the_gate_controller_and_its_installation(kubeconfig: Path) -> None:
    """The Job makes the authority, with its account; the service elects a leader, and renews the certificate."""
    lease = LeaseOptions(namespace="alignup", identity="one")
    options = GateServiceOptions(webhook=WebhookOptions(listen=("127.0.0.1", 0), namespace="alignup"))
    secret, configuration = (
        SECRETS.at("alignup-webhook", namespace="alignup"),
        WEBHOOK_CONFIGURATIONS.at("alignup-gate"),
    )
    async with ApiClient(_account(kubeconfig, "alignup-certificates")) as job:
        for _ in range(2):
            made = await install_authority(job, secret=secret, configuration=configuration, names=("other.svc",))
    async with ApiClient(_account(kubeconfig, "alignup-schedule")) as client, asyncio.timeout(SECONDS):
        service = ScheduleService(client, lease=lease)
        with add_gate(service, options) as webhook:
            assert webhook is not None
            assert isinstance(webhook.certificate, CertificateKeeper)
            running = asyncio.ensure_future(service.run())
            while not service.leading or not webhook.certificate.ready.is_set():
                assert not running.done(), running.exception()
                await asyncio.sleep(0.1)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            renewed = webhook.certificate.current
    assert renewed is not None
    assert renewed.authorities == made.authorities
    assert renewed.serving != made.serving  # it had another name


OURS = {"metadata": {"annotations": {"alignup.dev/node": "host-a"}}}  #: the patch of an annotation that is ours
#: Those that the API server gives every pod, and one more.
TOLERATIONS = [
    *(
        {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
        for key in ("not-ready", "unreachable")
    ),
    {"operator": "Exists"},
]
#: What the API server would let anyone with permission to patch pods change; JSON merge patches.
OTHER_CHANGES = {
    "image": ({"spec": {"containers": [{"name": "main", "image": "other"}]}}, "must not change images"),
    "toleration": ({"spec": {"tolerations": TOLERATIONS}}, "may change the required node affinity only"),
    "node selector": ({"spec": {"nodeSelector": {"disk": "ssd"}}}, "may change the required node affinity only"),
    "deadline": ({"spec": {"activeDeadlineSeconds": 1}}, "may change the required node affinity only"),
    "label": ({"metadata": {"labels": {"app": "other"}}}, "must not change labels, finalizers or owners"),
    "finalizer": ({"metadata": {"finalizers": ["example.com/stop"]}}, "must not change labels, finalizers or owners"),
    "annotation": ({"metadata": {"annotations": {"example.com/note": "x"}}}, "must not change annotations of others"),
    "removed annotation": ({"metadata": {"annotations": {"example.com/kept": None}}}, "annotations of others"),
    "other gate": ({"spec": {"schedulingGates": [{"name": GATE}]}}, "must not remove other scheduling gates"),
}


async def test_the_gate_controller_can_only_release_gated_pods(admin: ApiClient, kubeconfig: Path) -> None:
    gates = [{"name": GATE}, {"name": "example.com/other"}]
    async with ApiClient(_account(kubeconfig, "alignup-schedule")) as client, asyncio.timeout(SECONDS):
        both = await _create_pod(admin, "both", gates)
        gated = await _create_pod(admin, "gated", gates[:1])
        plain = await _create_pod(admin, "plain", [])
        with pytest.raises(ForbiddenError, match="must not change pods without its scheduling gate"):
            await _again_and_again(lambda: client.patch(PODS.of(plain), OURS))
        for name, (patch, refusal) in OTHER_CHANGES.items():
            with pytest.raises(ForbiddenError) as caught:
                await client.patch(PODS.of(both), patch)
            assert refusal in str(caught.value), name
        with pytest.raises(ForbiddenError, match="pods/eviction"):
            await client.evict(PODS.of(gated))

        written = await write_release(client, gated, {"host-a": "host-a"})
        released = await admin.get(PODS.of(gated))

    assert written.failure is None, written.error
    assert released.spec.scheduling_gates == ()
    assert pinned_nodes(released) == ("host-a",)


async def test_only_alignup_writes_its_annotations(admin: ApiClient, kubeconfig: Path) -> None:
    """Not even an administrator, and not a service account of the same name in another namespace."""
    headers = (
        ("Impersonate-User", "system:serviceaccount:default:alignup-schedule"),
        ("Impersonate-Group", "system:masters"),
    )
    async with ApiClient(_account(kubeconfig, "alignup-schedule")) as gate, asyncio.timeout(SECONDS):
        gated = await _create_pod(admin, "annotated", [{"name": GATE}])
        with pytest.raises(ForbiddenError, match="only Alignup writes annotations"):
            await _again_and_again(lambda: admin.patch(PODS.of(gated), OURS))
        with pytest.raises(ForbiddenError, match="only Alignup writes annotations"):
            await admin.patch(replace(PODS.of(gated), subresource="status"), OURS)
        async with ApiClient(replace(find_access(kubeconfig), headers=headers)) as impostor:
            with pytest.raises(ForbiddenError, match="only Alignup writes annotations"):
                await impostor.patch(PODS.of(gated), OURS)
        with pytest.raises(ForbiddenError, match="create the pod without them"):
            await _create_pod(admin, "forged", [], {"alignup.dev/node": "host-a"})
        await _create_pod(admin, "by-its-author", [], {"topology.alignup.dev/policy": "restricted"})

        gated = await admin.get(PODS.of(gated))
        written = await write_release(gate, gated, {"host-a": "host-a"})
        assert written.failure is None, written.error
        await admin.patch(PODS.of(gated), {"metadata": {"labels": {"app": "other"}}})  # what is there may stay
        with pytest.raises(ForbiddenError, match="only Alignup writes annotations"):
            await admin.patch(PODS.of(gated), {"metadata": {"annotations": {"alignup.dev/node": None}}})


async def _create_pod(
    admin: ApiClient, name: str, gates: list[dict[str, str]], annotations: dict[str, str] | None = None
) -> ApiPod:
    metadata = {"name": name, "annotations": {"example.com/kept": "y", **(annotations or {})}, "labels": {"app": name}}
    spec = {"containers": [{"name": "main", "image": "none"}], "schedulingGates": gates}
    return await admin.create(PODS, {"metadata": metadata, "spec": spec}, namespace="default")


async def _again_and_again(write: Callable[[], Awaitable[object]]) -> None:
    while True:  # the API server takes a moment to learn of a new policy
        await write()
        await asyncio.sleep(0.1)


@needs(control_plane.missing(("kube-scheduler",)))
def test_a_second_scheduler_leads_with_its_configuration_and_permissions(api: Api, tmp_path: Path) -> None:
    user = {"token": ADMIN, "as": "system:serviceaccount:alignup:alignup-scheduler"}
    access = api.plane.kubeconfig(tmp_path / "kubeconfig", user)
    (configuration,) = of_kind(read_kustomization(SCHEDULER), "ConfigMap")
    settings = yaml.safe_load(configuration["data"]["scheduler.yaml"])
    settings["clientConnection"]["kubeconfig"] = str(access)
    (tmp_path / "scheduler.yaml").write_text(yaml.safe_dump(settings), "utf-8")

    log = tmp_path / "log"
    command = [
        str(control_plane.program("kube-scheduler")),
        f"--config={tmp_path / 'scheduler.yaml'}",
        "--secure-port=0",
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)

    def leads() -> bool:
        assert process.poll() is None, log.read_text("utf-8")[-2000:]
        return "Successfully acquired lease" in log.read_text("utf-8")

    try:
        until("it leads", leads, detail=lambda: log.read_text("utf-8")[-2000:])
    finally:
        process.kill()
        process.wait()

    lease = api.kubectl("get", "lease", "-n", "alignup", "alignup-scheduler", "-o=jsonpath={.spec}")
    assert "holderIdentity" in lease
    assert "forbidden" not in log.read_text("utf-8")
