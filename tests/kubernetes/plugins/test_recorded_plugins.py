"""Recorded sessions of real device plugins: the manager sends the recorded requests and understands the responses."""

import grpc
import pytest
from google.protobuf.json_format import ParseDict

from alignup.align.devices.provider import PreferenceRequest
from alignup.align.errors import PluginError
from alignup.kubernetes.plugins.allocate_response import AllocateResponse
from alignup.kubernetes.plugins.unix_grpc import error_text
from alignup.wire import device_plugin_pb2 as wire
from tests.kubernetes.plugins.replay import RECORDED, replayed, sessions
from tests.recorded.setting import announced

pytestmark = pytest.mark.anyio

SESSIONS = [session for path in sorted(RECORDED.glob("*.jsonl")) for session in sessions(path)]


def test_every_recording_is_replayed():
    assert {session.plugin for session in SESSIONS} == {
        "generic-device-plugin",
        "intel-gpu-plugin",
        "sample-device-plugin",
    }
    assert len(SESSIONS) == 8 + 3 + 6
    assert all(session.lists and session.ended for session in SESSIONS)
    assert all(call.finished for session in SESSIONS for call in session.calls)


@pytest.mark.parametrize(
    "session", [pytest.param(session, id=f"{session.plugin} {session.resource}") for session in SESSIONS]
)
async def test_a_recorded_plugin_gets_the_recorded_calls(directory, manager, listener, session):
    async with replayed(session, directory) as plugin:
        for listed in session.lists:
            devices = set(announced(session.resource, listed))
            await listener.until(lambda devices=devices: set(listener.devices.get(session.resource, "-")) == devices)
            plugin.more.release()
        for call in session.calls:
            await repeat(call, manager, session.resource)

        methods = [method for method, _ in plugin.requests if method != "ListAndWatch"]
    await listener.until(lambda: listener.events[-1] == ("stopped", session.resource))

    # The recorder called PreStartContainer on every plugin; we call it only if it is required, and none requires it.
    assert methods == [call.method for call in session.calls if call.method != "PreStartContainer"]
    assert listener.preferred[session.resource] == (session.plugin == "intel-gpu-plugin")


async def repeat(call, manager, resource):
    """Send a recorded request, and compare the response."""
    match call.method:
        case "GetPreferredAllocation":
            (request,) = call.request_document["container_requests"]
            wanted = PreferenceRequest(
                uid="pod",
                container="app",
                resource=resource,
                available=tuple(request["available_deviceIDs"]),
                must_include=tuple(request["must_include_deviceIDs"]),
                size=request["allocation_size"],
            )
            assert await manager.preferred(wanted) == tuple(call.response["container_responses"][0]["deviceIDs"])
        case "Allocate":
            (request,) = call.request_document["container_requests"]
            assert await allocated(manager, resource, request["devices_ids"]) == expected(call)
        case "PreStartContainer":
            await manager.pre_start(resource, call.request_document["devices_ids"])


async def allocated(manager, resource, ids):
    try:
        return await manager.allocate(resource, ids)
    except PluginError as error:
        return str(error)


def expected(call):
    if call.error:
        return error_text(grpc.StatusCode[call.error["code"]], call.error["details"])
    message = ParseDict(call.response, wire.AllocateResponse())
    assert message.container_responses, "the recorded response is empty"
    return AllocateResponse.from_message(message.container_responses[0])
