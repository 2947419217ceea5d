"""The API server for tests, with a plain HTTP client: what other programs see."""

import asyncio
import json
import sys

import httpx2
import pytest

from alignup.testing.api_server import ApiFault, ApiServer
from alignup.testing.api_server.__main__ import main

pytestmark = pytest.mark.anyio

POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": {"containers": []}}
PODS = "/api/v1/namespaces/default/pods"
TOPOLOGIES = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies"
MERGE, JSON, APPLY = (f"application/{name}" for name in ("merge-patch+json", "json-patch+json", "apply-patch+yaml"))


@pytest.fixture
async def server():
    async with ApiServer() as api_server:
        yield api_server


@pytest.fixture
async def http(server):
    async with httpx2.AsyncClient(base_url=server.url, trust_env=False, verify=False) as client:
        yield client


async def patch(http, path, body, content_type=MERGE, **parameters):
    return await http.patch(path, content=json.dumps(body), headers={"Content-Type": content_type}, params=parameters)


def apply(http, body, manager, **parameters):
    document = {"apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology", "metadata": {}, **body}
    return patch(http, f"{TOPOLOGIES}/host-a", document, APPLY, fieldManager=manager, **parameters)


def fields(document):
    """Return the fields that each manager owns."""
    return {entry["manager"]: entry["fieldsV1"] for entry in document["metadata"].get("managedFields", ())}


async def test_discovery_is_what_kubectl_reads(http):
    groups = [group["name"] for group in (await http.get("/apis")).json()["groups"]]
    core = {item["name"]: item["namespaced"] for item in (await http.get("/api/v1")).json()["resources"]}

    assert (await http.get("/api")).json()["versions"] == ["v1"]
    assert {"admissionregistration.k8s.io", "coordination.k8s.io", "policy", "topology.node.k8s.io"} <= {*groups}
    assert (core["pods"], core["nodes"]) == (True, False)
    assert (await http.get("/readyz")).text == "ok"
    assert (await http.get("/version")).json()["gitVersion"] == "v1.36.0"


async def test_created_objects_have_the_metadata_of_a_server(http):
    created = (await http.post(PODS, json={**POD, "status": {"phase": "Running"}})).json()

    metadata = created["metadata"]
    assert (metadata["namespace"], metadata["generation"], metadata["resourceVersion"]) == ("default", 1, "2")
    assert len(metadata["uid"]) == 36
    assert created["status"] == {"phase": "Pending"}


@pytest.mark.parametrize(
    ("request_line", "body", "status", "message"),
    [
        pytest.param("GET /api/v1/widgets", None, 404, "could not find the requested resource", id="no resource"),
        pytest.param(f"GET {PODS}/none", None, 404, 'pods "none" not found', id="no object"),
        pytest.param(f"DELETE {PODS}", None, 404, 'pods "" not found', id="no name"),
        pytest.param(f"OPTIONS {PODS}", None, 405, "does not allow this method", id="no such method"),
        pytest.param(f"POST {PODS}", "text", 400, "not an object", id="a text"),
        pytest.param(
            f"POST {PODS}", {"kind": "Node"}, 400, "kind Node does not match the expected Pod", id="another kind"
        ),
        pytest.param(f"POST {PODS}", {"metadata": {}}, 422, "metadata.name: Required value", id="without a name"),
        pytest.param(
            f"POST {PODS}", {"metadata": {"name": "a", "namespace": "b"}}, 400, "namespace", id="another namespace"
        ),
        pytest.param(f"GET {PODS}?labelSelector=a)", None, 400, "unable to parse requirement: a)", id="a bad selector"),
        pytest.param(
            f"GET {PODS}?watch=1&resourceVersion=99", None, 504, "Too large resource version", id="the future"
        ),
    ],
)
async def test_errors_are_status_objects(http, request_line, body, status, message):
    method, path = request_line.split()
    response = await http.request(method, path, json=body) if body else await http.request(method, path)

    assert response.status_code == response.json()["code"] == status
    assert response.json()["kind"] == "Status"
    assert message in response.json()["message"]


async def test_replacing_checks_version_and_name(server, http):
    old = server.put(POD)
    server.put({**POD, "metadata": {"name": "web", "labels": {"a": "b"}}})

    stale = await http.put(f"{PODS}/web", json=old)
    renamed = await http.put(f"{PODS}/web", json={**POD, "metadata": {"name": "api"}})
    replaced = await http.put(f"{PODS}/web", json={**POD, "spec": {"nodeName": "host-a"}})

    assert (stale.status_code, renamed.status_code, replaced.status_code) == (409, 400, 200)
    assert replaced.json()["metadata"]["generation"] == 2
    assert "labels" not in replaced.json()["metadata"]


async def test_a_change_without_effect_keeps_the_version(server, http):
    version = server.put({**POD, "metadata": {"name": "web", "labels": {"a": "b"}}})["metadata"]["resourceVersion"]

    same = await patch(http, f"{PODS}/web", {"metadata": {"labels": {"a": "b"}}})

    assert same.json()["metadata"]["resourceVersion"] == version


@pytest.mark.parametrize(
    ("operation", "labels"),
    [
        pytest.param({"op": "add", "path": "/metadata/labels/c", "value": "d"}, {"a": "b", "c": "d"}, id="add"),
        pytest.param({"op": "replace", "path": "/metadata/labels/a", "value": "c"}, {"a": "c"}, id="replace"),
        pytest.param({"op": "remove", "path": "/metadata/labels/a"}, {}, id="remove"),
        pytest.param(
            {"op": "copy", "from": "/metadata/labels/a", "path": "/metadata/labels/x~1y"},
            {"a": "b", "x/y": "b"},
            id="copy",
        ),
        pytest.param({"op": "move", "from": "/metadata/labels/a", "path": "/metadata/labels/c"}, {"c": "b"}, id="move"),
        pytest.param({"op": "test", "path": "/metadata/labels/a", "value": "b"}, {"a": "b"}, id="test"),
        pytest.param({"op": "test", "path": "/metadata/labels/a", "value": "c"}, None, id="a test that fails"),
        pytest.param({"op": "replace", "path": "/metadata/labels/c", "value": "d"}, None, id="nothing to replace"),
        pytest.param({"op": "jump", "path": "/metadata"}, None, id="an unknown operation"),
    ],
)
async def test_json_patches(server, http, operation, labels):
    server.put({**POD, "metadata": {"name": "web", "labels": {"a": "b"}}})

    response = await patch(http, f"{PODS}/web", [operation], JSON)

    assert response.status_code == (422 if labels is None else 200)
    assert labels is None or response.json()["metadata"].get("labels", {}) == labels


async def test_json_patches_of_lists(server, http):
    server.put({**POD, "spec": {"containers": [{"name": "b"}]}})
    operations = [
        {"op": "add", "path": "/spec/containers/0", "value": {"name": "a"}},
        {"op": "add", "path": "/spec/containers/-", "value": {"name": "d"}},
        {"op": "replace", "path": "/spec/containers/2", "value": {"name": "c"}},
    ]

    patched = (await patch(http, f"{PODS}/web", operations, JSON)).json()

    assert [item["name"] for item in patched["spec"]["containers"]] == ["a", "b", "c"]
    assert (
        await patch(http, f"{PODS}/web", [{**operations[0], "path": "/spec/containers/9"}], JSON)
    ).status_code == 422


async def test_other_patches_are_rejected(server, http):
    server.put(POD)

    assert (await patch(http, f"{PODS}/web", {}, "application/strategic-merge-patch+json")).status_code == 415
    assert (await patch(http, f"{PODS}/web", POD, APPLY)).status_code == 422  # no field manager


async def test_managers_share_equal_fields_and_own_what_they_apply(http):
    created = await apply(http, {"attributes": {"a": 1, "b": 1}, "zones": [1]}, "first")
    shared = (await apply(http, {"attributes": {"a": 1, "c": 1}}, "second")).json()

    assert created.status_code == 201
    assert shared["attributes"] == {"a": 1, "b": 1, "c": 1}
    assert fields(shared) == {
        "first": {"f:attributes": {"f:a": {}, "f:b": {}}, "f:zones": {}},
        "second": {"f:attributes": {"f:a": {}, "f:c": {}}},
    }

    left = (await apply(http, {"zones": [1]}, "first")).json()
    assert left["attributes"] == {"a": 1, "c": 1}  # a belongs to the second one as well

    gone = (await apply(http, {}, "second")).json()
    assert "attributes" not in gone


async def test_a_conflict_names_the_manager_and_force_takes_the_field(http):
    await apply(http, {"attributes": {"a": 1}}, "first")

    conflict = await apply(http, {"attributes": {"a": 2}}, "second")
    taken = await apply(http, {"attributes": {"a": 2}}, "second", force="true")

    assert conflict.status_code == 409
    assert conflict.json()["message"] == 'Apply failed with 1 conflict: conflict with "first": .attributes.a'
    assert conflict.json()["details"]["causes"] == [{"reason": "FieldManagerConflict", "field": ".attributes.a"}]
    assert fields(taken.json()) == {"second": {"f:attributes": {"f:a": {}}}}


async def test_an_update_takes_the_fields_it_changes(http):
    await apply(http, {"attributes": {"a": 1, "b": 1}}, "first")

    changed = (await patch(http, f"{TOPOLOGIES}/host-a", {"attributes": {"a": 2}}, fieldManager="editor")).json()

    assert fields(changed) == {"first": {"f:attributes": {"f:b": {}}}, "editor": {"f:attributes": {"f:a": {}}}}


async def test_an_object_with_finalizers_is_deleted_when_they_are_gone(server, http):
    server.put({**POD, "metadata": {"name": "web", "finalizers": ["example.com/wait"]}})

    marked = (await http.delete(f"{PODS}/web")).json()
    assert marked["metadata"]["deletionTimestamp"]
    assert len(server.objects("pods")) == 1

    await patch(http, f"{PODS}/web", {"metadata": {"finalizers": None}})
    assert server.objects("pods") == []


async def test_resources_of_a_definition_are_served(http):
    names = {"kind": "Widget", "plural": "widgets"}
    versions = [{"name": "v1", "subresources": {"status": {}}}, {"name": "v2", "served": False}]
    spec = {"group": "example.com", "scope": "Namespaced", "names": names, "versions": versions}
    await http.post(
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        json={"metadata": {"name": "widgets.example.com"}, "spec": spec},
    )
    path = "/apis/example.com/v1/namespaces/default/widgets"

    created = await http.post(path, json={"metadata": {"generateName": "w-"}, "spec": {}, "status": {"a": "b"}})
    name = created.json()["metadata"]["name"]
    status = await patch(http, f"{path}/{name}/status", {"spec": {"x": 1}, "status": {"c": "d"}})

    assert name.startswith("w-")
    assert "status" not in created.json()
    assert (status.json()["spec"], status.json()["status"]) == ({}, {"c": "d"})
    assert (await http.get("/apis/example.com/v2/widgets")).status_code == 404


async def test_a_watch_of_one_object_is_ended_by_its_timeout(server, http):
    server.put({**POD, "metadata": {"name": "other"}})
    server.put(POD)

    response = await http.get(f"{PODS}/web", params={"watch": "true", "timeoutSeconds": "0.01"})

    (event,) = response.text.splitlines()
    assert (json.loads(event)["type"], json.loads(event)["object"]["metadata"]["name"]) == ("ADDED", "web")


async def test_faults_apply_to_the_most_specific_requests_and_are_counted(server, http):
    server.inject(ApiFault(status=500, times=None))
    server.inject(ApiFault(status=429, retry_after=3, times=2), verb="list", resource="pods")

    throttled = await http.get(PODS)
    statuses = [(await http.get(path)).status_code for path in (PODS, PODS, "/api/v1/nodes")]
    server.inject(ApiFault())

    assert (throttled.status_code, throttled.headers["Retry-After"]) == (429, "3")
    assert statuses == [429, 500, 500]
    assert (await http.get(PODS)).status_code == 200


async def test_requests_can_be_waited_for(server, http):
    waiting = asyncio.create_task(server.wait_requests("GET", "/pods", times=2))
    await http.get(PODS)
    await http.get(PODS)
    async with asyncio.timeout(60):
        await waiting

    assert [request.path for request in server.requests] == [PODS, PODS]


async def test_a_process_has_the_given_objects_and_plays_a_script(tmp_path):
    (tmp_path / "objects.json").write_text(json.dumps({"kind": "List", "items": [POD]}))
    (tmp_path / "script").write_text('{"do": "fault", "verb": "list", "status": 503, "times": 1}\n')
    arguments = ("--kubeconfig", "config", "-f", "objects.json", "--script", "script")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "alignup.testing.api_server", *arguments), cwd=tmp_path, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    url = (await process.stdout.readline()).decode().split()[-1]
    config = json.loads((tmp_path / "config").read_text())

    async with httpx2.AsyncClient(base_url=url, trust_env=False, verify=False) as http:
        statuses = [(await http.get(PODS)).status_code for _ in range(2)]
        names = [item["metadata"]["name"] for item in (await http.get(PODS)).json()["items"]]
    process.terminate()

    assert await process.wait() == 0
    assert config["clusters"][0]["cluster"]["server"] == url
    assert (statuses, names) == ([503, 200], ["web"])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        pytest.param("-f", "{", "not a Kubernetes object that this server knows", id="objects"),
        pytest.param("-f", '{"apiVersion": "v1", "kind": "Widget"}', "not a Kubernetes object", id="an unknown kind"),
        pytest.param("--script", '{"do": "fault", "statuss": 1}', "fault has no field statuss", id="script"),
    ],
)
def test_unusable_files_are_named(tmp_path, capsys, name, content, message):
    path = tmp_path / "file"
    path.write_text(content)

    assert main([name, str(path)]) == 2
    assert message in capsys.readouterr().err
