"""Recorded conversations of real device plugins: this side asks what was asked, and understands what was said."""

import grpc
import pytest
from google.protobuf.json_format import ParseDict

from alignup.align.devices import PreferenceRequest
from alignup.align.errors import PluginError
from alignup.plugins.allocate_response import AllocateResponse
from alignup.rpc import error_text
from alignup.wire import device_plugin_pb2 as wire
from tests.plugins.replay import RECORDED, sessions, speaking
from tests.recorded.setting import announced

pytestmark = pytest.mark.anyio

SESSIONS = [session for path in sorted(RECORDED.glob("*.jsonl")) for session in sessions(path)]


def test_nothing_of_the_recordings_is_left_out():
    assert {session.plugin for session in SESSIONS} == {
        "generic-device-plugin",
        "intel-gpu-plugin",
        "sample-device-plugin",
    }
    assert len(SESSIONS) == 8 + 3 + 6
    assert all(session.lists and session.ended for session in SESSIONS)
    assert all(call.over for session in SESSIONS for call in session.calls)


@pytest.mark.parametrize("session", [pytest.param(one, id=f"{one.plugin} {one.resource}") for one in SESSIONS])
async def test_a_real_plugin_is_heard_and_called_as_recorded(directory, manager, listener, session):
    async with speaking(session, directory) as parrot:
        for told in session.lists:
            devices = set(announced(session.resource, told))
            await listener.until(lambda devices=devices: set(listener.devices.get(session.resource, "-")) == devices)
            parrot.more.release()
        for call in session.calls:
            await repeat(call, manager, session.resource)

        asked = [method for method, _ in parrot.asked if method != "ListAndWatch"]
    await listener.until(lambda: listener.events[-1] == ("stopped", session.resource))

    # The recorder told every plugin of a start; here those are told that want to know, and none of these does.
    assert asked == [call.method for call in session.calls if call.method != "PreStartContainer"]
    assert listener.preferred[session.resource] == (session.plugin == "intel-gpu-plugin")


async def repeat(call, manager, resource):
    """Ask what was asked, and see that the answer is the one given then."""
    match call.method:
        case "GetPreferredAllocation":
            (question,) = call.question["container_requests"]
            ask = PreferenceRequest(
                uid="pod",
                container="app",
                resource=resource,
                available=tuple(question["available_deviceIDs"]),
                must_include=tuple(question["must_include_deviceIDs"]),
                size=question["allocation_size"],
            )
            assert await manager.preferred(ask) == tuple(call.response["container_responses"][0]["deviceIDs"])
        case "Allocate":
            (question,) = call.question["container_requests"]
            assert await allocated(manager, resource, question["devices_ids"]) == expected(call)
        case "PreStartContainer":
            await manager.pre_start(resource, call.question["devices_ids"])


async def allocated(manager, resource, ids):
    try:
        return await manager.allocate(resource, ids)
    except PluginError as error:
        return str(error)


def expected(call):
    if call.error:
        return error_text(grpc.StatusCode[call.error["code"]], call.error["details"])
    message = ParseDict(call.response, wire.AllocateResponse())
    assert message.container_responses, "nothing was given"
    return AllocateResponse.from_message(message.container_responses[0])
