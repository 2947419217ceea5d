"""No amounts of a pod are an internal error."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.agent.fake_backend import GPU, FakeBackend, client_of
from tests.effort import examples

pytestmark = pytest.mark.anyio

AMOUNTS = st.sampled_from(
    ["1", "0", "1e999999999", "0e999999999", "1e20000", "1e-2147483648", "1n", "9223372036854775807", "99999999999Ei"]
) | st.from_regex(r"[0-9]{1,20}(e-?[0-9]{1,10}|[mkMGTPE]i?)?", fullmatch=True)
PLACES = ("a", "b", "init", "sidecar", "overhead", "status")


@st.composite
def manifests(draw):
    """A pod that requests extreme amounts of one resource in two places."""
    resource = draw(st.sampled_from(["cpu", "memory", "ephemeral-storage", GPU, "example.com/unknown"]))
    drawn = {place: {resource: draw(AMOUNTS)} for place in draw(st.permutations(PLACES))[:2]}
    containers = {name: {"name": name, "resources": {"limits": drawn.get(name, {})}} for name in PLACES}
    containers["sidecar"]["restartPolicy"] = "Always"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "extreme"},
        "spec": {
            "containers": [containers["a"], containers["b"]],
            "initContainers": [containers["sidecar"], containers["init"]],
            "overhead": drawn.get("overhead", {}),
        },
        "status": {"containerStatuses": [{"name": "a", "allocatedResources": drawn.get("status", {})}]},
    }


@given(st.lists(manifests(), min_size=5, max_size=5))
@settings(max_examples=examples(20))
async def test_extreme_amounts_are_admitted_or_rejected(anyio_backend, sent):
    async with client_of(FakeBackend()) as client:
        statuses = {(await client.post("/v1/pods", json=document)).status_code for document in sent}

    assert statuses <= {200, 201, 409, 422}


async def test_amounts_that_cannot_be_added_up_are_invalid():
    containers = [
        {"name": name, "resources": {"limits": {"cpu": cpu, "memory": "1Gi"}}}
        for name, cpu in (("a", "1e999999999"), ("b", "1"))
    ]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "far-apart"}, "spec": {"containers": containers}}
    async with client_of(FakeBackend()) as client:
        response = await client.post("/v1/pods", json=pod)

    assert response.status_code == 422
    assert response.json()["errors"] == [
        {
            "field": "spec",
            "message": "cannot add up the amounts: amounts 999999999 digits apart cannot be added (a limit of alignup)",
        }
    ]
