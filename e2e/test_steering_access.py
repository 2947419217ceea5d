"""Who may write which half of a SteeringInstruction, by a real API server with our definition, roles and policy."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from alignup.kubernetes.api import ApiClient, PatchType, find_access
from alignup.kubernetes.api.errors import ApiStatusError, InvalidObjectError
from alignup.kubernetes.api.steering_instructions import STEERING_INSTRUCTIONS
from e2e import control_plane
from e2e.api import NODES, SECONDS, Api, RefusedError
from e2e.marks import needs
from e2e.observed_node import ACCOUNT, install_observer

pytestmark = [needs(control_plane.missing()), pytest.mark.anyio]

INSTRUCTIONS = "/apis/alignup.dev/v1alpha1/steeringinstructions"
POD = {"namespace": "default", "name": "train-0", "uid": "u"}
READY = {"observedGeneration": 1, "phase": "Ready"}


@pytest.fixture(scope="module")
def api(api: Api) -> Api:
    install_observer(api)
    for name in "ab":
        api.request("POST", NODES, {"metadata": {"name": name}})
        api.request("POST", INSTRUCTIONS, instruction(name))
    return api


def instruction(name: str, **spec: object) -> dict[str, Any]:
    kind = {"apiVersion": STEERING_INSTRUCTIONS.api_version, "kind": STEERING_INSTRUCTIONS.kind}
    return {**kind, "metadata": {"name": name}, "spec": {"pod": POD, "numaNodes": "1", "containers": 1, **spec}}


@pytest.fixture
async def observer(api: Api) -> AsyncIterator[ApiClient]:
    """A client with the token of the observer of node a."""
    token = api.account_token(ACCOUNT, node="a")
    access = find_access(api.plane.kubeconfig(api.plane.directory / "observer.kubeconfig", {"token": token}))
    async with ApiClient(access) as client:
        yield client


async def test_an_observer_writes_the_status_of_its_own_node_only(api: Api, observer: ApiClient) -> None:
    assert {item.metadata.name for item in (await observer.list(STEERING_INSTRUCTIONS)).items} == {"a", "b"}

    async def write(name: str) -> str:
        try:
            await observer.patch(STEERING_INSTRUCTIONS.at(name, subresource="status"), {"status": READY})
        except ApiStatusError as error:
            return str(error)
        return ""

    async with asyncio.timeout(SECONDS):
        while not (refused := await write("b")):  # noqa: ASYNC110 - a new policy takes a moment
            await asyncio.sleep(0.1)
    assert "the observer of node a must not write the objects of node b" in refused
    before = api.get(f"{INSTRUCTIONS}/a") or {}
    assert await write("a") == ""
    stored = api.get(f"{INSTRUCTIONS}/a") or {}
    assert stored["metadata"]["generation"] == before["metadata"]["generation"]
    assert stored["status"] == READY
    with pytest.raises(ApiStatusError, match="cannot"):
        await observer.patch(STEERING_INSTRUCTIONS.at("a"), {"spec": {"numaNodes": "0"}})


async def test_an_observer_creates_the_object_of_its_own_node_only(api: Api, observer: ApiClient) -> None:
    with pytest.raises(ApiStatusError, match="the observer of node a must not write the objects of node c"):
        await observer.create(STEERING_INSTRUCTIONS, {"metadata": {"name": "c"}})
    api.request("DELETE", f"{INSTRUCTIONS}/a")
    created = await observer.create(STEERING_INSTRUCTIONS, {"metadata": {"name": "a"}})

    assert (created.metadata.name, created.spec.pod) == ("a", None)
    spec = [{"op": "add", "path": "/spec", "value": instruction("a")["spec"]}]  # as the cluster service writes it
    api.request("PATCH", f"{INSTRUCTIONS}/a", spec, content="application/json-patch+json")
    stored = await observer.list(STEERING_INSTRUCTIONS)
    assert [each.spec.numa_nodes for each in stored.items if each.metadata.name == "a"] == ["1"]


async def test_an_answer_to_another_instruction_is_refused(api: Api, observer: ApiClient) -> None:
    ref = STEERING_INSTRUCTIONS.at("a", subresource="status")
    metadata = (api.get(f"{INSTRUCTIONS}/a") or {})["metadata"]
    for changes, written in (({}, True), ({"uid": "6d1f0c5e"}, False), ({"generation": 7}, False)):
        known = {"uid": metadata["uid"], "generation": metadata["generation"], **changes}
        tests = [{"op": "test", "path": f"/metadata/{name}", "value": value} for name, value in known.items()]
        patch = [*tests, {"op": "add", "path": "/status", "value": READY}]
        if written:
            await observer.patch(ref, patch, patch_type=PatchType.JSON)
        else:
            with pytest.raises(InvalidObjectError):
                await observer.patch(ref, patch, patch_type=PatchType.JSON)


def test_only_the_spec_makes_a_new_instruction(api: Api) -> None:
    path = f"{INSTRUCTIONS}/b"
    before = (api.get(path) or {})["metadata"]["generation"]
    same = api.merge(path, {"spec": instruction("b")["spec"], "status": {"phase": "Done"}})
    other = api.merge(path, {"spec": {"numaNodes": "0"}})
    cleared = api.merge(path, {"spec": None})

    assert [document["metadata"]["generation"] - before for document in (same, other, cleared)] == [0, 1, 2]
    assert same.get("status", {}).get("phase") != "Done"  # which is a subresource


@pytest.mark.parametrize("spec", [{"numaNodes": ""}, {"numaNodes": "one"}, {"containers": 0}, {"pod": {"name": "x"}}])
def test_invalid_instructions_are_refused(api: Api, spec: dict[str, Any]) -> None:
    with pytest.raises(RefusedError, match="422"):
        api.request("POST", INSTRUCTIONS, instruction("c", **spec))
