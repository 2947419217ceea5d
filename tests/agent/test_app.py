"""The API in the same process: status codes, bodies and their schemas."""

import asyncio
import json

import jsonschema_rs
import pytest

from alignup.agent.app import read_pod
from alignup.align.errors import FileError, PodError, Problem, WorkLimitError
from alignup.align.settings import Policy
from alignup.documents.machines import machine_to_document
from alignup.web.responses import BusyError, NotReadyError
from tests.agent.fake_backend import GPU, FakeBackend, as_json, as_yaml, client_of, host, manifest
from tests.deadlines import until

pytestmark = pytest.mark.anyio

SMALL = manifest("small", cpu="2", memory="1Gi")
LARGE = manifest("large", cpu="12", memory="1Gi")
JSON = {"content-type": "application/json"}
CPU_LIMIT = "spec.containers[0].resources.limits[cpu]"
YAML = {"content-type": "application/yaml"}


@pytest.fixture
def agent():
    return FakeBackend()


@pytest.fixture
async def client(agent, anyio_backend):
    async with client_of(agent) as made:
        yield made


async def described(client, response, *, path=None):
    """Assert that the response matches the OpenAPI document; return its body."""
    request = response.request
    document = (await client.get("/openapi.json")).json()
    operation = document["paths"][path or request.url.path][request.method.lower()]
    kind = response.headers["content-type"].partition(";")[0]
    shape = operation["responses"][str(response.status_code)]["content"][kind]["schema"]
    if "json" in kind:
        jsonschema_rs.validate({**shape, "components": document["components"]}, response.json())
    return response.json() if "json" in kind else response.text


@pytest.mark.parametrize(
    ("policy", "wait_enabled", "sent", "status", "outcome"),
    [
        pytest.param(Policy.SINGLE_NUMA_NODE, False, SMALL, 201, "admitted", id="a pod that fits is admitted"),
        pytest.param(Policy.SINGLE_NUMA_NODE, True, LARGE, 202, "waiting", id="a pod that does not fit waits"),
        pytest.param(Policy.NONE, False, manifest("idle"), 201, "admitted", id="a pod without requests is admitted"),
    ],
)
async def test_a_pod_is_admitted_or_waits(policy, wait_enabled, sent, status, outcome):
    agent = FakeBackend(host(policy), wait_enabled=wait_enabled)
    async with client_of(agent) as client:
        response = await client.post("/v1/pods", json=sent)

        document = await described(client, response)
        assert response.status_code == status
        assert (document["outcome"], document["dryRun"]) == (outcome, False)
        located = await client.get(response.headers["location"])
        assert (await described(client, located, path="/v1/pods/{uid}"))["uid"] == document["pod"]["uid"]
        listed = await described(client, await client.get("/v1/pods"))
        assert [pod["status"] for pod in listed["pods"]] == [outcome]


async def test_a_rejected_pod_is_a_conflict_with_the_reason(client):
    response = await client.post("/v1/pods", json=LARGE)

    document = await described(client, response)
    assert response.status_code == 409
    assert response.headers["content-type"] == "application/problem+json"
    assert document["reason"] == "TopologyAffinityError"
    assert document["message"] == "Resources cannot be allocated with Topology locality"
    assert document["decision"]["rejection"]["reason"] == document["reason"]
    assert any(sentence.startswith("12 CPUs: too large") for sentence in document["explanation"])
    assert (await client.get("/v1/pods")).json()["pods"] == []


async def test_an_admitted_pod_is_kept(client):
    first = await client.post("/v1/pods", json=SMALL)

    again = await client.post("/v1/pods", json=SMALL)

    assert (again.status_code, (await described(client, again))["outcome"]) == (200, "kept")
    assert again.json()["pod"]["placements"] == first.json()["pod"]["placements"]


@pytest.mark.parametrize("sent", [SMALL, LARGE], ids=["one that fits", "one that does not"])
async def test_a_dry_run_changes_nothing(agent, client, sent):
    before = agent.host.ledger, (await client.get("/metrics")).text

    response = await client.post("/v1/pods?dryRun=true", json=sent)

    document = await described(client, response)
    assert (response.status_code, document["dryRun"], document["pod"]) == (200, True, None)
    assert document["outcome"] == ("admitted" if sent is SMALL else "rejected")
    assert (agent.host.ledger, (await client.get("/metrics")).text) == before
    assert not agent.stored
    assert not agent.known


async def test_a_released_pod_is_gone(agent, client):
    idle = agent.host.ledger
    await client.post("/v1/pods", json=SMALL)

    response = await client.delete("/v1/pods/default-small")

    document = await described(client, response, path="/v1/pods/{uid}")
    assert response.status_code == 200
    assert document["pod"]["placements"][0]["given"]["cpu"] == {"cpu": "2-3"}
    assert agent.host.ledger.cpus.shared == idle.cpus.shared
    again = await client.delete("/v1/pods/default-small")
    assert again.status_code == 404
    assert "default-small" in (await described(client, again, path="/v1/pods/{uid}"))["detail"]


@pytest.mark.parametrize(
    ("body", "headers", "status", "field"),
    [
        pytest.param(as_yaml(SMALL), YAML, 201, None, id="YAML"),
        pytest.param(as_yaml(SMALL), {"content-type": "text/yaml; charset=UTF-8"}, 201, None, id="an older name"),
        pytest.param(as_json(SMALL), {"content-type": "Application/JSON"}, 201, None, id="names have no case"),
        pytest.param(b"{", JSON, 400, "", id="JSON that ends too early"),
        pytest.param(b"a: [", YAML, 400, "", id="YAML that ends too early"),
        pytest.param(b"[" * 100_000, JSON, 400, "", id="deep JSON"),
        pytest.param(b"[" * 100_000, YAML, 400, "", id="deep YAML"),
        pytest.param(b"\xff{}", JSON, 400, "", id="no UTF-8"),
        pytest.param(b"", JSON, 400, "", id="nothing"),
        pytest.param(as_json({**SMALL, "kind": "Node"}), JSON, 422, "kind", id="another kind"),
        pytest.param(as_json(manifest("a", cpu="much")), JSON, 422, CPU_LIMIT, id="no amount"),
        pytest.param(as_json(manifest("\ud800")), JSON, 422, "metadata.name", id="half a surrogate pair"),
        pytest.param(as_json(SMALL), {}, 415, "Content-Type", id="no type"),
        pytest.param(as_json(SMALL), {"content-type": "text/html"}, 415, "Content-Type", id="another type"),
        pytest.param(as_json(SMALL), {"content-type": ";;;"}, 415, "Content-Type", id="an invalid type"),
        pytest.param(as_json(SMALL), JSON | {"content-encoding": "gzip"}, 415, "Content-Encoding", id="compressed"),
        pytest.param(as_yaml(SMALL), {"content-type": "text/yaml; charset=utf-16"}, 415, "Content-Type", id="UTF-16"),
        pytest.param(b" " * 2049, JSON, 413, None, id="too much"),
    ],
)
async def test_invalid_documents_are_rejected_with_their_fields(body, headers, status, field):
    async with client_of(FakeBackend(), body_bytes=2048 if status == 413 else 1 << 20) as client:
        response = await client.post("/v1/pods", content=body, headers=headers)

        document = await described(client, response)
        assert response.status_code == status
        if field is not None:
            assert field in [error["field"] for error in document["errors"]]
        if status == 400:
            assert document["detail"].startswith("The document is not valid JSON or YAML: ")


@pytest.mark.parametrize("declared", [True, False], ids=["with a length", "in pieces"])
async def test_the_size_of_a_body_is_limited(declared):
    async def pieces(size):
        for _ in range(size // 256):
            yield b" " * 256

    async with client_of(FakeBackend(), body_bytes=1024) as client:
        statuses = [
            (await client.post("/v1/pods", content=b" " * size if declared else pieces(size), headers=JSON)).status_code
            for size in (1024, 1280)
        ]

    assert statuses == [400, 413]


async def test_a_body_that_does_not_arrive_times_out():
    async def drops():
        while True:
            yield b" "
            await asyncio.sleep(0.02)

    async with client_of(FakeBackend(), body_seconds=0.1) as client:
        response = await client.post("/v1/pods", content=drops(), headers=JSON)

        assert response.status_code == 408
        assert response.headers["connection"] == "close"
        await described(client, response)


@pytest.mark.parametrize(
    ("query", "fields"),
    [
        pytest.param("color=red", ["color"], id="unknown"),
        pytest.param("limit=3&limit=4", ["limit"], id="twice"),
        pytest.param("limit=0", ["limit"], id="too few"),
        pytest.param("limit=1001", ["limit"], id="too many"),
        pytest.param("limit=ten&before=-1&outcome=odd&pod=", ["limit", "before", "outcome", "pod"], id="four at once"),
        pytest.param("before=9223372036854775808", ["before"], id="a number no store holds"),
        pytest.param("before=" + "9" * 5000, ["before"], id="a number without end"),
        pytest.param("limit=%C2%B2", ["limit"], id="digits of another kind"),
        pytest.param("limit", ["limit"], id="no value"),
    ],
)
async def test_invalid_parameters_are_rejected_by_name(client, query, fields):
    response = await client.get(f"/v1/decisions?{query}")

    document = await described(client, response)
    assert response.status_code == 400
    assert sorted(error["field"] for error in document["errors"]) == sorted(fields)


@pytest.mark.parametrize("path", ["/v1/pods", "/v1/machine", "/v1/picture.svg", "/readyz", "/metrics", "/openapi.json"])
async def test_paths_without_parameters_reject_any(client, path):
    response = await client.get(f"{path}?verbose=1")

    assert response.status_code == 400
    problem = await described(client, response)
    assert problem["errors"] == [{"field": "verbose", "message": "is not a parameter of this path"}]


async def test_the_history_has_pages(client):
    for number in range(5):
        await client.post("/v1/pods", json=manifest(f"p{number}", cpu="2" if number % 2 else "12", memory="1Gi"))

    page = await described(client, await client.get("/v1/decisions?limit=2"))
    rest = await described(client, await client.get(f"/v1/decisions?limit=9&before={page['next']}"))
    rejected = await described(client, await client.get("/v1/decisions?outcome=rejected&pod=p2"))

    assert [decision["id"] for decision in page["decisions"]] == [5, 4]
    assert [decision["id"] for decision in rest["decisions"]] == [3, 2, 1]
    assert rest["next"] is None
    assert [decision["decision"]["pod"]["name"] for decision in rejected["decisions"]] == ["p2"]


async def test_a_stored_decision_is_explained(client):
    await client.post("/v1/pods", json=LARGE)

    decision = await described(client, await client.get("/v1/decisions/1"), path="/v1/decisions/{id}")
    missing = await client.get("/v1/decisions/2")
    odd = await client.get("/v1/decisions/last")

    assert decision["explanation"][0] == "Pod default/large is rejected: TopologyAffinityError"
    assert (missing.status_code, odd.status_code) == (404, 400)
    assert (await described(client, odd, path="/v1/decisions/{id}"))["errors"][0]["field"] == "id"


@pytest.mark.parametrize(
    ("error", "status", "retry"),
    [
        pytest.param(NotReadyError("devices are not known yet"), 503, "5", id="not ready"),
        pytest.param(FileError("the disk is full"), 503, "5", id="cannot be written down"),
        pytest.param(BusyError("100 wait"), 429, "1", id="too many wait"),
        pytest.param(WorkLimitError("too hard", sources=["gpu"]), 422, None, id="too hard to decide"),
        pytest.param(PodError([Problem("metadata.uid", "Required value")]), 422, None, id="no sound pod"),
        pytest.param(RuntimeError("secret"), 500, None, id="a fault of ours"),
    ],
)
async def test_errors_of_the_backend_become_problems(agent, client, error, status, retry):
    agent.error = error
    response = await client.post("/v1/pods", json=SMALL)

    assert (response.status_code, response.headers.get("retry-after")) == (status, retry)
    assert response.headers["content-type"] == "application/problem+json"
    assert "secret" not in response.text
    if status != 500:
        assert str(error) in (await described(client, response))["detail"]


async def test_a_slow_decision_continues_after_the_timeout():
    agent = FakeBackend()
    agent.proceed = asyncio.Event()
    async with client_of(agent, answer_seconds=0.05) as client:
        response = await client.post("/v1/pods", json=SMALL)

        assert response.status_code == 504
        await described(client, response)
        agent.proceed.set()
        await until(lambda: agent.known)
        assert (await client.get("/v1/pods/default-small")).status_code == 200


async def test_readiness_has_a_reason(agent, client):
    assert await described(client, await client.get("/readyz")) == {"ready": True}

    agent.not_ready = ("the state directory is not writable\nrun: chown",)

    response = await client.get("/readyz")
    assert response.status_code == 503
    assert [error["message"] for error in (await described(client, response))["errors"]] == list(agent.not_ready)
    assert (await client.get("/healthz?why=because")).text == "ok\n"


async def test_the_machine_and_its_picture(agent, client):
    await client.post("/v1/pods", json=manifest("artist", cpu="2", memory="1Gi", gpu="1"))

    machine = await described(client, await client.get("/v1/machine"))
    picture = await client.get("/v1/picture.svg")

    assert machine == machine_to_document(agent.host.machine)
    assert picture.headers["content-type"] == "image/svg+xml"
    assert "sandbox" in picture.headers["content-security-policy"]
    assert "artist" in picture.text
    assert GPU in picture.text


async def test_a_picture_is_drawn_once_for_each_state(client, monkeypatch):
    drawn = []

    def draw(_, ledger):
        drawn.append(len(ledger.pods))
        return str(ledger.pods)

    monkeypatch.setattr("alignup.picture.machine_svg.draw_svg", draw)
    first = await asyncio.gather(*(client.get("/v1/picture.svg") for _ in range(3)))
    await client.post("/v1/pods", json=manifest("artist", cpu="2", memory="1Gi"))
    later = [await client.get("/v1/picture.svg") for _ in range(2)]

    assert drawn == [0, 1]
    assert ["artist" in response.text for response in (*first, *later)] == [False, False, False, True, True]


@pytest.mark.parametrize("method", ["PUT", "PATCH", "TRACE", "BREW"])
@pytest.mark.parametrize(
    ("path", "allow"),
    [
        pytest.param("/v1/pods", "GET, HEAD, OPTIONS, POST", id="pods"),
        pytest.param("/v1/pods/x", "DELETE, GET, HEAD, OPTIONS", id="a pod"),
        pytest.param("/v1/events", "GET, HEAD, OPTIONS", id="events"),
    ],
)
async def test_an_unsupported_method_gets_the_supported_ones(client, method, path, allow):
    rejected = await client.request(method, path)
    response = await client.options(path)

    assert (rejected.status_code, rejected.headers["allow"]) == (405, allow)
    assert rejected.json()["status"] == 405
    assert (response.status_code, response.headers["allow"], response.content) == (204, allow, b"")


@pytest.mark.parametrize("path", ["/v1/pods", "/v1/picture.svg", "/healthz", "/v1/events", "/v1/pods/unknown"])
async def test_head_is_get_without_a_body(client, path):
    head = await client.head(path)

    assert head.content == b""
    if path != "/v1/events":
        full = await client.get(path)
        assert (head.status_code, head.headers["content-length"]) == (
            full.status_code,
            full.headers["content-length"],
        )
    else:
        assert head.headers["content-type"].startswith("text/event-stream")


@pytest.mark.parametrize("path", ["/v2", "/v1", "/v1/pods/", "/v1/pods/a/b", "//v1/pods", "/v1/PODS"])
async def test_other_paths_are_not_found(client, path):
    response = await client.get(path)

    assert (response.status_code, response.headers["content-type"]) == (404, "application/problem+json")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        pytest.param({}, 401, id="none"),
        pytest.param({"authorization": "Bearer wrong"}, 401, id="another"),
        pytest.param({"authorization": "Bearer "}, 401, id="an empty one"),
        pytest.param({"authorization": "Basic dG9rZW4="}, 401, id="another scheme"),
        pytest.param({"authorization": "token"}, 401, id="no scheme"),
        pytest.param({"authorization": b"Bearer t\xf6ken"}, 401, id="odd bytes"),
        pytest.param({"authorization": "bearer token"}, 200, id="the right one"),
    ],
)
async def test_a_token_is_required(headers, status):
    async with client_of(FakeBackend(), token=b"token") as client:
        answers = [await client.get(path, headers=headers) for path in ("/v1/pods", "/metrics", "/openapi.json")]
        alive = await client.get("/healthz", headers=headers)

        assert {response.status_code for response in answers} == {status}
        assert alive.status_code == 200
        if status == 401:
            assert answers[0].headers["www-authenticate"] == "Bearer"
            assert (await client.delete("/v1/pods/x", headers=headers)).status_code == 401
        else:
            document = json.loads(answers[2].text)
            assert document["paths"]["/v1/pods"]["get"]["security"] == [{"token": []}]
            assert document["paths"]["/healthz"]["get"]["security"] == []


def test_a_pod_without_a_uid_gets_one_derived_from_its_name():
    document = manifest("web")
    del document["metadata"]["uid"]
    content = as_json(document)

    assert read_pod(content).uid == read_pod(content).uid != ""
