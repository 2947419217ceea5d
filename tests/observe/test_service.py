"""The whole observer: found by its options, against the API server for tests and files on disk."""

import json
from dataclasses import replace

import pytest

from alignup.align.errors import StateError
from alignup.kubernetes.api import Access
from alignup.kubernetes.api.host_states import HOST_STATES, read_host_state
from alignup.machines import machine_source as source
from alignup.observe import service as observe
from alignup.testing.api_server import ServedResource
from tests.kubernetes.api.objects import node
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

    problems = await observe.observe(Access(server=server.url), replace(options, listen=("127.0.0.1", 0)))

    assert problems == ()
    found = read_host_state(await client.get(HOST_STATES.at("host-a")))
    assert found.machine.kubelet_view() == source.discover().kubelet_view()
    (state,) = server.objects("hoststates")
    assert state["metadata"]["ownerReferences"][0]["uid"] == "node-uid"
    assert json.dumps(state["configuration"]).count("none") == 0


async def test_the_observer_refuses_the_node_object_of_another_machine(server, options):
    document = node()
    document["status"] = {"nodeInfo": {"bootID": "boot-2"}}
    server.put(document)

    with pytest.raises(StateError, match="node host-a is another machine, or its kubelet has not started since"):
        await observe.observe(Access(server=server.url), options)
