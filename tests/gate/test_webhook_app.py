"""The endpoint that the API server calls about new pods."""

import pytest
from starlette.testclient import TestClient

from alignup.align.errors import ParseError
from alignup.gate.webhook_app import MAX_REVIEW_BYTES, webhook_app

JSON = {"Content-Type": "application/json"}


def answer(body):
    if body != b"{}":
        raise ParseError("request: the review has no request")
    return b'{"kind":"AdmissionReview"}'


@pytest.fixture
def client():
    return TestClient(webhook_app("/gate", answer))


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
