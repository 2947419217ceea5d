"""Which pods get the gate when they are created, and the endpoint that the API server calls about them."""

import base64
import json

import pytest
from starlette.testclient import TestClient

from alignup.align.errors import ParseError
from alignup.schedule.cluster_facts import GATE
from alignup.schedule.gate.admission import LABEL, MAX_REVIEW_BYTES, ReviewOutcome, answer_review, webhook_app
from alignup.testing.api_server.patches import json_patch

OURS = {"name": GATE}
OTHER = {"name": "example.com/quota"}


def pod(*gates, metadata=None, **spec):
    gated = {"schedulingGates": list(gates)} if gates else {}
    return {"metadata": {"generateName": "web-", **(metadata or {})}, "spec": {"containers": [], **gated, **spec}}


def review(obj, **request):
    resource = {"group": "", "version": "v1", "resource": "pods"}
    asked = {"uid": "7", "operation": "CREATE", "resource": resource, "namespace": "ml", "object": obj, **request}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": asked}


def ask(document):
    """The outcome, and the pod as the API server would create it."""
    counted: list[ReviewOutcome] = []
    answered = json.loads(answer_review(json.dumps(document).encode(), counted.append))
    response = answered["response"]
    assert (answered["apiVersion"], answered["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    assert (response["uid"], response["allowed"]) == ("7", "status" not in response)
    assert ("patch" in response) is (response.get("patchType") == "JSONPatch")
    operations = json.loads(base64.b64decode(response.get("patch", "W10=")))
    return counted, json_patch(document["request"]["object"] or {}, operations)


def owned(kind, **owner):
    return {"ownerReferences": [{"apiVersion": "apps/v1", "kind": kind, "name": "x", "uid": "1", **owner}]}


@pytest.mark.parametrize(
    ("obj", "gates"),
    [
        pytest.param(pod(), [OURS], id="without gates"),
        pytest.param(pod(schedulingGates=[]), [OURS], id="an empty list"),
        pytest.param(pod(schedulingGates=None), [OURS], id="null"),
        pytest.param(pod(OTHER), [OTHER, OURS], id="another gate stays"),
        pytest.param(pod(metadata=owned("ReplicaSet", controller=True)), [OURS], id="of a ReplicaSet"),
        pytest.param(pod(metadata=owned("DaemonSet")), [OURS], id="not controlled by its DaemonSet"),
        pytest.param(pod(metadata={"labels": {LABEL: "enabled"}}), [OURS], id="opted in itself"),
        pytest.param(pod(metadata={"labels": None, "annotations": None}), [OURS], id="null metadata"),
    ],
)
def test_pods_get_the_gate_after_their_own(obj, gates):
    outcomes, created = ask(review(obj))

    assert outcomes == [ReviewOutcome.GATED]
    assert created["spec"]["schedulingGates"] == gates
    assert {**created["spec"], "schedulingGates": obj["spec"].get("schedulingGates")} == {
        **obj["spec"],
        "schedulingGates": obj["spec"].get("schedulingGates"),
    }


def test_asking_again_changes_nothing():
    _, created = ask(review(pod(OTHER)))

    assert ask(review(created)) == ([ReviewOutcome.ALREADY_GATED], created)


@pytest.mark.parametrize(
    ("obj", "outcome"),
    [
        pytest.param(pod(nodeName="host-a"), ReviewOutcome.NODE_GIVEN, id="a node name"),
        pytest.param(
            pod(metadata={"annotations": {"kubernetes.io/config.mirror": "x"}}), ReviewOutcome.NODE_GIVEN, id="a mirror"
        ),
        pytest.param(pod(metadata=owned("DaemonSet", controller=True)), ReviewOutcome.DAEMON_SET, id="a DaemonSet"),
        pytest.param(pod(metadata={"labels": {LABEL: "disabled"}}), ReviewOutcome.OPTED_OUT, id="opted out"),
        pytest.param(pod(schedulerName="batch"), ReviewOutcome.OTHER_SCHEDULER, id="of another scheduler"),
    ],
)
def test_some_pods_are_left_alone(obj, outcome):
    assert ask(review(obj)) == ([outcome], obj)


@pytest.mark.parametrize("labels", [{}, {LABEL: "disabled"}], ids=["opted in", "opted out"])
@pytest.mark.parametrize("name", ["node", "predicted-placement", "room-found"])
def test_annotations_that_only_controllers_write_are_refused_on_creation(name, labels):
    obj = pod(metadata={"annotations": {f"alignup.dev/{name}": "host-a", "a": "b"}, "labels": labels})

    assert ask(review(obj)) == ([ReviewOutcome.REFUSED], obj)
    response = json.loads(answer_review(json.dumps(review(obj)).encode()))["response"]
    assert (response["allowed"], response["status"]) == (
        False,
        {
            "code": 403,
            "message": f"ReservedAnnotation: only Alignup writes annotations such as alignup.dev/{name}; "
            "create the pod without them",
        },
    )


def test_annotations_for_pod_authors_are_not_refused():
    assert ask(review(pod(metadata={"annotations": {"topology.alignup.dev/policy": "restricted"}})))[0] == ["gated"]


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param({"operation": "UPDATE"}, id="update"),
        pytest.param({"operation": "DELETE", "object": None}, id="deletion"),
        pytest.param({"subResource": "binding"}, id="a subresource"),
        pytest.param({"resource": {"group": "apps", "version": "v1", "resource": "deployments"}}, id="not a pod"),
    ],
)
def test_other_requests_are_allowed_as_they_are(request_):
    document = review(pod())
    document["request"] |= request_

    assert ask(document)[0] == [ReviewOutcome.NOT_A_NEW_POD]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        pytest.param(b"", "not JSON", id="empty"),
        pytest.param(b"{", "not JSON", id="cut off"),
        pytest.param(b"[]", "expected `object`", id="a list"),
        pytest.param(b'{"a":' + b"[" * 100_000, "not JSON", id="nested"),
        pytest.param(b"{}", "missing required field `apiVersion`", id="no version"),
        pytest.param(
            json.dumps({**review(pod()), "apiVersion": "admission.k8s.io/v1beta1"}).encode(),
            "expected admission.k8s.io/v1 AdmissionReview, got admission.k8s.io/v1beta1 AdmissionReview",
            id="another version",
        ),
        pytest.param(json.dumps({**review(pod()), "request": None}).encode(), "has no request", id="no request"),
        pytest.param(
            json.dumps(review(pod(nodeName=7))).encode(), "request.object.spec.nodeName: expected `str`", id="a number"
        ),
        pytest.param(
            json.dumps(review(pod(schedulingGates={"name": GATE}))).encode(),
            "request.object.spec.schedulingGates: expected",
            id="no list of gates",
        ),
    ],
)
def test_a_malformed_review_is_an_error_that_says_where(body, message):
    with pytest.raises(ParseError) as caught:
        answer_review(body)

    assert message in str(caught.value)


# The endpoint

JSON = {"Content-Type": "application/json"}


def answer_empty(body):
    if body != b"{}":
        raise ParseError("request: the review has no request")
    return b'{"kind":"AdmissionReview"}'


@pytest.fixture
def client():
    return TestClient(webhook_app({"/gate": answer_empty}))


def test_a_review_is_answered_as_json(client):
    response = client.post("/gate", content=b"{}", headers=JSON)

    assert (response.status_code, response.json()) == (200, {"kind": "AdmissionReview"})
    assert response.headers["content-type"] == "application/json"


def test_a_malformed_review_is_an_error_with_the_reason(client):
    response = client.post("/gate", content=b"[]", headers=JSON)

    assert (response.status_code, response.text) == (400, "not a review: request: the review has no request\n")


@pytest.mark.parametrize(
    ("content", "headers", "status"),
    [
        pytest.param(b"x" * (MAX_REVIEW_BYTES + 1), JSON, 413, id="too large"),
        pytest.param(iter([b"x" * MAX_REVIEW_BYTES, b"x"]), JSON, 413, id="too large in chunks"),
        pytest.param(b"{}", {"Content-Type": "application/yaml"}, 415, id="another type"),
        pytest.param(b"{}", {}, 415, id="without a type"),
        pytest.param(b"{}", {**JSON, "Content-Encoding": "gzip"}, 415, id="compressed"),
    ],
)
def test_other_bodies_are_rejected(client, content, headers, status):
    assert client.post("/gate", content=content, headers=headers).status_code == status


def test_other_methods_and_paths_do_not_exist(client):
    assert client.get("/gate").status_code == 405
    assert client.post("/", content=b"{}", headers=JSON).status_code == 404
