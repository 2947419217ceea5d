"""The whole observer, with the API server for tests, the /configz of a kubelet and files on disk."""

import asyncio
import json
import ssl
from dataclasses import replace

import pytest
import trustme
from structlog.testing import capture_logs

from alignup.align.errors import StateError
from alignup.documents.codec import decode
from alignup.documents.host_state.schema import HostLedgerDocument
from alignup.kubernetes.api import Access
from alignup.kubernetes.api.credentials import UserCredentials
from alignup.kubernetes.api.host_states import HOST_STATES, host_state_reader
from alignup.kubernetes.api.node_tables import PodTable, SliceTable
from alignup.machines import machine_source
from alignup.observe.service import observe
from alignup.testing.api_server import ApiFault, ApiServer, ServedResource
from tests.kubernetes.api.objects import node
from tests.observe import api_objects
from tests.observe.api_objects import SLICES, resource_slice
from tests.observe.observed_machine import observe_once

pytestmark = pytest.mark.anyio


@pytest.fixture
def options(tmp_path):
    return observe_once(tmp_path / "kubelet")


async def test_the_host_is_published_once(server, client, options):
    server.serve(ServedResource(kind="HostState", plural="hoststates", group="alignup.dev", version="v1alpha1"))
    server.put(node(uid="node-uid"))
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "uid": "u"}, "status": {"phase": "Running"}}
    server.put({**pod, "spec": {"nodeName": "host-a", "containers": [{"name": "app"}]}})

    problems = await observe(Access(server=server.url), replace(options, listen=("127.0.0.1", 0)))

    assert problems == ()
    report = host_state_reader().read(await client.get(HOST_STATES.at("host-a")))
    published, here = report.machine.kubelet_view(), machine_source.discover().kubelet_view()
    assert published.cpus == here.cpus
    # The memory of a virtual machine can change between two looks at it.
    assert [node.id for node in published.nodes] == [node.id for node in here.nodes]
    assert all(bool(node.memory) == bool(other.memory) for node, other in zip(published.nodes, here.nodes, strict=True))
    (state,) = server.objects("hoststates")
    assert state["metadata"]["ownerReferences"][0]["uid"] == "node-uid"
    assert json.dumps(state["configuration"]).count("none") == 0


async def test_the_observer_refuses_the_node_object_of_another_machine(server, options):
    document = node()
    document["status"] = {"nodeInfo": {"bootID": "boot-2"}}
    server.put(document)

    with pytest.raises(StateError, match="node host-a is another machine, or its kubelet has not started since"):
        await observe(Access(server=server.url), options)


TOKEN = "token-of-the-observer"  # noqa: S105 - for a test
LIVE = {"kubeletconfig": {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration", "maxPods": 77}}


@pytest.fixture(scope="module")
def cluster_authority():
    return trustme.CA()


@pytest.fixture(scope="module")
def own_authority():
    """That of a kubelet which signs its certificate itself."""
    return trustme.CA()


@pytest.fixture
def served(server):
    server.serve(api_objects.SERVED)
    server.put(api_objects.node("host-a"))
    return server


@pytest.fixture
def observe_kubelet(served, client, cluster_authority, tmp_path):
    """Run the observer beside a kubelet with *certificate*, which has *kept* in its files."""

    async def run(certificate, *, kept=b"", fault=None):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate.configure_cert(context)
        async with ApiServer(tls=context) as kubelet:
            kubelet.respond("/configz", json.dumps(LIVE).encode())
            if fault:
                kubelet.inject(fault)
            address = kubelet.url.removeprefix("https://")
            options = observe_once(tmp_path / "kubelet", configz=True, kubelet_address=address)
            if kept:
                (tmp_path / "kubelet" / "pki").mkdir()
                (tmp_path / "kubelet" / "pki" / "kubelet.crt").write_bytes(kept)
            authority, credentials = cluster_authority.cert_pem.bytes(), UserCredentials(token=TOKEN)
            await observe(Access(server=served.url, authority=authority, credentials=credentials), options)
        state = await client.get(HOST_STATES.at("host-a"))
        return json.loads(bytes(state.configuration)).get("maxPods"), state.problems, kubelet.requests

    return run


async def test_a_kubelet_with_a_certificate_of_the_cluster_is_asked_with_the_token(observe_kubelet, cluster_authority):
    pods, problems, (request,) = await observe_kubelet(cluster_authority.issue_cert("127.0.0.1"))

    assert pods == 77
    assert not any("configuration" in problem for problem in problems)
    assert (request.path, request.headers["authorization"]) == ("/configz", f"Bearer {TOKEN}")


@pytest.mark.parametrize("in_use", [True, False], ids=["that it uses", "that it no longer uses"])
async def test_a_certificate_that_the_kubelet_has_signed_itself_does_no_harm(
    observe_kubelet, cluster_authority, own_authority, in_use
):
    signed = own_authority.issue_cert("host-a")
    certificate = signed if in_use else cluster_authority.issue_cert("host-a")
    pods, _, _ = await observe_kubelet(certificate, kept=chain(signed, own_authority))

    assert pods == 77


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        pytest.param("127.0.0.1", False, id="of an unknown authority"),
        pytest.param("host-b", True, id="for another node"),
    ],
)
async def test_a_certificate_that_cannot_be_verified_gets_no_token(observe_kubelet, own_authority, name, kept):
    certificate = own_authority.issue_cert(name)
    pods, problems, requests = await observe_kubelet(
        certificate, kept=chain(certificate, own_authority) if kept else b""
    )

    assert pods is None
    assert requests == []
    (problem,) = [text for text in problems if "live configuration" in text]
    assert "certificate verify failed" in problem
    assert "config.yaml, without the flags of the kubelet" in problem


async def test_without_the_permission_the_file_is_read(observe_kubelet, cluster_authority):
    forbidden = ApiFault(status=403, reason="Forbidden", message="user=observer, resource=nodes", times=None)
    pods, problems, _ = await observe_kubelet(cluster_authority.issue_cert("127.0.0.1"), fault=forbidden)

    assert pods is None
    assert "user=observer, resource=nodes" in next(text for text in problems if "live configuration" in text)


def chain(certificate, authority):
    """The content of ``kubelet.crt``."""
    return certificate.cert_chain_pems[0].bytes() + authority.cert_pem.bytes()


async def test_only_changes_of_pods_that_matter_are_noticed(server, client):
    def put(phase: str, **metadata: str) -> None:
        document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "uid": "u", **metadata}}
        spec = {"nodeName": "host-a", "containers": [{"name": "app"}]}
        server.put({**document, "spec": spec, "status": {"phase": phase, "message": metadata.get("message", "")}})

    notices: asyncio.Queue[str] = asyncio.Queue()
    pods = PodTable(client, "host-a")
    async with pods.following(lambda: notices.put_nowait("change")):
        put("Pending")
        await notices.get()
        put("Pending", message="ContainersNotReady")  # only text
        put("Succeeded")
        await notices.get()

        assert notices.empty()
        assert [known.finished for known in (pods.known() or {}).values()] == [True]


async def test_devices_for_claims_are_published_with_their_numa_nodes(served, client, options):
    served.serve(SLICES)
    served.put(resource_slice())
    served.put(resource_slice("other", "host-b"))

    await observe(Access(server=served.url), options)

    ledger = decode(bytes((await client.get(HOST_STATES.at("host-a"))).ledger), HostLedgerDocument)
    (group,) = ledger.claim_devices
    assert (group.driver, group.pool, group.devices, group.nodes) == ("gpu.example.com", "host-a", ["gpu-0"], "0")


async def test_a_node_without_the_right_to_read_slices_is_published_with_a_note(served, client, options):
    served.serve(SLICES)
    forbidden = ApiFault(status=403, reason="Forbidden", message="resourceslices is forbidden", times=None)
    served.inject(forbidden, verb="watch", resource="resourceslices")
    served.inject(forbidden, verb="list", resource="resourceslices")

    with capture_logs() as logs:
        assert await observe(Access(server=served.url), options) == ()

    (problem,) = [text for text in (await client.get(HOST_STATES.at("host-a"))).problems if "Slice" in text]
    assert problem.startswith("the ResourceSlices of this node cannot be read: ")
    assert problem.endswith("resourceslices is forbidden")
    assert [log["resource"] for log in logs if log["event"] == "cannot follow the API server"] == [
        "resourceslices.resource.k8s.io"
    ]


async def test_a_cluster_without_slices_has_no_gap(served, client, options):
    missing = ApiFault(status=404, reason="NotFound", message="the server could not find it", times=None)
    served.serve(SLICES)
    for verb in ("watch", "list"):
        served.inject(missing, verb=verb, resource="resourceslices")

    assert await observe(Access(server=served.url), options) == ()

    assert not any("Slice" in problem for problem in (await client.get(HOST_STATES.at("host-a"))).problems)


async def test_changes_of_slices_are_noticed(server, client):
    server.serve(SLICES)
    notices: asyncio.Queue[str] = asyncio.Queue()
    slices = SliceTable(client, "host-a")
    assert slices.known() == (None, "")
    async with slices.following(lambda: notices.put_nowait("change")):
        await notices.get()
        assert slices.known() == ((), "")
        server.put(resource_slice())
        await notices.get()
        (known,) = slices.known().slices or ()
        assert [str(device.id) for device in known.devices] == ["gpu.example.com/host-a/gpu-0"]
        server.put({**resource_slice(), "status": {}})  # the same devices
        server.put(resource_slice(node=1))
        await notices.get()
        unreadable = resource_slice()
        unreadable["spec"]["devices"][0]["capacity"] = {"memory": {"value": "much"}}
        server.put(unreadable)
        await notices.get()
        assert slices.known() == ((), "")
        server.put(resource_slice())
        await notices.get()
        server.remove("resourceslices", "slice")
        await notices.get()

        assert notices.empty()
        assert slices.known() == ((), "")
