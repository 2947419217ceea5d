"""The live configuration of the kubelet: asked for over HTTPS, only if the certificate of the kubelet is verified."""

import json
import ssl

import pytest
import trustme

from alignup.kubernetes.api import Access
from alignup.kubernetes.api.credentials import UserCredentials
from alignup.kubernetes.api.host_states import HOST_STATES
from alignup.observe.service import observe
from alignup.testing.api_server import ApiFault, ApiServer
from tests.observe.api_objects import SERVED, node
from tests.observe.observed_machine import observe_once

pytestmark = pytest.mark.anyio

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
    server.serve(SERVED)
    server.put(node("host-a"))
    return server


@pytest.fixture
def observe_kubelet(served, client, cluster_authority, tmp_path):
    """Run the observer beside a kubelet with *certificate*, which has *own* in its files."""

    async def run(certificate, *, own=b"", fault=None):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate.configure_cert(context)
        async with ApiServer(tls=context) as kubelet:
            kubelet.respond("/configz", json.dumps(LIVE).encode())
            if fault:
                kubelet.inject(fault)
            address = kubelet.url.removeprefix("https://")
            options = observe_once(tmp_path / "kubelet", configz=True, kubelet_address=address)
            if own:
                (tmp_path / "kubelet" / "pki").mkdir()
                (tmp_path / "kubelet" / "pki" / "kubelet.crt").write_bytes(own)
            authority, credentials = cluster_authority.cert_pem.bytes(), UserCredentials(token=TOKEN)
            await observe(Access(server=served.url, authority=authority, credentials=credentials), options)
        state = await client.get(HOST_STATES.at("host-a"))
        return state.configuration.get("maxPods"), state.problems, kubelet.requests

    return run


async def test_a_kubelet_with_a_certificate_of_the_cluster_is_asked_with_the_token(observe_kubelet, cluster_authority):
    pods, problems, (request,) = await observe_kubelet(cluster_authority.issue_cert("127.0.0.1"))

    assert pods == 77
    assert not any("configuration" in one for one in problems)
    assert (request.path, request.headers["authorization"]) == ("/configz", f"Bearer {TOKEN}")


async def test_a_kubelet_that_signed_its_certificate_itself_is_verified_with_it(observe_kubelet, own_authority):
    certificate = own_authority.issue_cert("host-a")
    pods, _, _ = await observe_kubelet(certificate, own=chain(certificate, own_authority))

    assert pods == 77


async def test_a_certificate_that_the_kubelet_no_longer_uses_does_no_harm(
    observe_kubelet, cluster_authority, own_authority
):
    old = chain(own_authority.issue_cert("host-a"), own_authority)
    pods, _, _ = await observe_kubelet(cluster_authority.issue_cert("host-a"), own=old)

    assert pods == 77


@pytest.mark.parametrize(
    ("name", "own"),
    [
        pytest.param("127.0.0.1", False, id="of an unknown authority"),
        pytest.param("host-b", True, id="for another node"),
    ],
)
async def test_a_certificate_that_cannot_be_verified_gets_no_token(observe_kubelet, own_authority, name, own):
    certificate = own_authority.issue_cert(name)
    pods, problems, requests = await observe_kubelet(certificate, own=chain(certificate, own_authority) if own else b"")

    assert pods is None
    assert requests == []
    (problem,) = [one for one in problems if "live configuration" in one]
    assert "certificate verify failed" in problem
    assert "config.yaml, without the flags of the kubelet" in problem


async def test_without_the_permission_the_file_is_read(observe_kubelet, cluster_authority):
    forbidden = ApiFault(status=403, reason="Forbidden", message="user=observer, resource=nodes", times=None)
    pods, problems, _ = await observe_kubelet(cluster_authority.issue_cert("127.0.0.1"), fault=forbidden)

    assert pods is None
    assert "user=observer, resource=nodes" in next(one for one in problems if "live configuration" in one)


def chain(certificate, authority):
    """The content of ``kubelet.crt``."""
    return certificate.cert_chain_pems[0].bytes() + authority.cert_pem.bytes()
