"""Calls over Unix sockets: a failed call raises the caller's error type with the status code."""

import asyncio
import tempfile
from pathlib import Path

import grpc
import pytest

from alignup import rpc
from alignup.wire import cri_pb2 as wire

SERVICE = wire.DESCRIPTOR.services_by_name["RuntimeService"]
METHOD = f"/{SERVICE.full_name}/Version"

pytestmark = pytest.mark.anyio


class OwnError(Exception):
    def __init__(self, code, details):
        super().__init__(details)
        self.code = code


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module", autouse=True)
async def one_loop(anyio_backend):
    """Keep the loop open a little longer: abandoned calls finish in the background."""
    yield
    await asyncio.sleep(0.1)


@pytest.fixture
def path():
    with tempfile.TemporaryDirectory(prefix="alignup-") as place:
        yield Path(place) / "odd % name?.sock"


async def respond(request):
    match request.version:
        case "reject":
            raise rpc.StatusError("denied", code=grpc.StatusCode.PERMISSION_DENIED)
        case "wait":
            await asyncio.sleep(60)
    return wire.VersionResponse(version=request.version)


def serving(path):
    return rpc.serve(path, SERVICE, {"Version": (wire.VersionRequest, respond)})


async def call(channel, text, *, kind=wire.VersionResponse, seconds=5.0, wait_for_ready=True):
    request = wire.VersionRequest(version=text)
    return await rpc.call(
        channel, METHOD, request, response=kind, seconds=seconds, error=OwnError, wait_for_ready=wait_for_ready
    )


async def test_a_call_returns_the_response(path):
    async with serving(path), rpc.channel(path) as channel:
        response = await call(channel, "v1")

    assert response.version == "v1"


@pytest.mark.parametrize(
    ("text", "kind", "code"),
    [
        pytest.param("reject", wire.VersionResponse, "PERMISSION_DENIED", id="a rejection"),
        pytest.param("wait", wire.VersionResponse, "DEADLINE_EXCEEDED", id="a timeout"),
        pytest.param("v1", wire.StatusResponse, "INTERNAL", id="a response of another type"),
    ],
)
async def test_a_failed_call_raises_the_error_of_the_caller(path, text, kind, code):
    async with serving(path), rpc.channel(path) as channel:
        with pytest.raises(OwnError) as caught:
            await call(channel, text, kind=kind, seconds=0.3)

    assert caught.value.code is grpc.StatusCode[code]
    assert str(caught.value)


async def test_a_call_waits_for_the_server_to_listen(path):
    async with rpc.channel(path) as channel:
        waiting = asyncio.create_task(call(channel, "v1"))
        await asyncio.sleep(0.2)
        async with serving(path):
            response = await waiting

    assert response.version == "v1"


async def test_a_call_that_does_not_wait_fails_at_once_without_a_server(path):
    async with rpc.channel(path) as channel, asyncio.timeout(3):
        with pytest.raises(OwnError) as caught:
            await call(channel, "v1", seconds=60, wait_for_ready=False)

    assert caught.value.code is grpc.StatusCode.UNAVAILABLE


async def test_responses_above_the_size_limit_fail(path):
    async with (
        serving(path),
        rpc.channel(path, max_response=1000) as small,
        rpc.channel(path, max_response=10**6) as large,
    ):
        with pytest.raises(OwnError) as caught:
            await call(small, "x" * 2000)
        response = await call(large, "x" * 2000)

    assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert len(response.version) == 2000


async def test_closing_the_channel_fails_pending_calls_without_cancelling_their_tasks(path):
    async with serving(path):
        channel = rpc.channel(path)
        waiting = asyncio.create_task(call(channel, "wait"))
        await asyncio.sleep(0.1)
        await channel.close()
        with pytest.raises(OwnError) as caught:
            await waiting

    assert caught.value.code is grpc.StatusCode.CANCELLED


async def test_cancelling_a_task_cancels_its_call(path):
    async with serving(path), rpc.channel(path) as channel:
        waiting = asyncio.create_task(call(channel, "wait"))
        await asyncio.sleep(0.1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting


async def test_a_failed_stream_raises_the_error_of_the_caller(path):
    async with serving(path), rpc.channel(path) as channel:
        with pytest.raises(OwnError) as caught:
            async for _ in rpc.stream(
                channel, METHOD, wire.VersionRequest(version="reject"), response=wire.VersionResponse, error=OwnError
            ):
                pass

    assert caught.value.code is grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("NOT_FOUND", "rpc error: code = NotFound desc = why"),
        ("CANCELLED", "rpc error: code = Canceled desc = why"),
        ("OK", "rpc error: code = OK desc = why"),
    ],
)
def test_error_texts_are_those_of_grpc_go(code, text):
    assert rpc.error_text(grpc.StatusCode[code], "why") == text
