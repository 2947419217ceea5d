"""The roles grant what the programs need, and nothing else."""

import ssl

import pytest
import trustme

from alignup.cluster.observe import observe
from alignup.kubeapi import Access
from alignup.testing.api_server import ApiServer
from tests.cluster.api_objects import SERVED, node
from tests.cluster.observed_machine import observe_once
from tests.deploy.manifests import BASE, by_name, read_kustomization
from tests.deploy.permissions import granted, used

pytestmark = pytest.mark.anyio

OBJECTS = by_name(read_kustomization(BASE))


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def test_the_observer_has_the_permissions_that_it_uses(tmp_path):
    """It runs against a server with lists in watches, and an older one without."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    async with ApiServer() as new, ApiServer() as old, ApiServer(tls=context) as kubelet:
        kubelet.respond("/configz", b'{"kubeletconfig":{}}')
        old.streamed_lists = False
        for server in (new, old):
            server.serve(SERVED)
            server.put(node("host-a"))
            address = kubelet.url.removeprefix("https://")
            options = observe_once(tmp_path / str(id(server)), configz=True, kubelet_address=address)
            access = Access(server=server.url, authority=authority.cert_pem.bytes())
            assert await observe(access, options) == ()

    needed = used([new, old])
    assert {request.path for request in kubelet.requests} == {"/configz"}  # which the kubelet authorizes like this:
    needed.add(("get", "", "nodes/configz"))
    assert granted(OBJECTS["ClusterRole /alignup-observer"]) == needed
