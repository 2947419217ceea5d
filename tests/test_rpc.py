"""Calls on unix sockets: each fails with the error of whoever calls, and the code is kept."""

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
    """What is left of a call that was given up comes to the loop it was made in, a little later."""
    yield
    await asyncio.sleep(0.1)


@pytest.fixture
def path():
    with tempfile.TemporaryDirectory(prefix="alignup-") as place:
        yield Path(place) / "odd % name?.sock"


async def answer(asked):
    match asked.version:
        case "refuse":
            raise rpc.StatusError("not for you", code=grpc.StatusCode.PERMISSION_DENIED)
        case "wait":
            await asyncio.sleep(60)
    return wire.VersionResponse(version=asked.version)


def serving(path):
    return rpc.serve(path, SERVICE, {"Version": (wire.VersionRequest, answer)})


async def call(line, text, *, kind=wire.VersionResponse, seconds=5.0, patient=True):
    request = wire.VersionRequest(version=text)
    return await rpc.call(line, METHOD, request, answer=kind, seconds=seconds, failure=OwnError, patient=patient)


async def test_a_call_is_answered(path):
    async with serving(path), rpc.channel(path) as line:
        told = await call(line, "v1")

    assert told.version == "v1"


@pytest.mark.parametrize(
    ("text", "kind", "code"),
    [
        pytest.param("refuse", wire.VersionResponse, "PERMISSION_DENIED", id="a refusal"),
        pytest.param("wait", wire.VersionResponse, "DEADLINE_EXCEEDED", id="no answer in time"),
        pytest.param("v1", wire.StatusResponse, "INTERNAL", id="an answer that is something else"),
    ],
)
async def test_a_call_fails_with_the_callers_error(path, text, kind, code):
    async with serving(path), rpc.channel(path) as line:
        with pytest.raises(OwnError) as failed:
            await call(line, text, kind=kind, seconds=0.3)

    assert failed.value.code is grpc.StatusCode[code]
    assert str(failed.value)


async def test_a_patient_call_waits_for_somebody_to_come(path):
    async with rpc.channel(path) as line:
        waiting = asyncio.create_task(call(line, "v1"))
        await asyncio.sleep(0.2)
        async with serving(path):
            told = await waiting

    assert told.version == "v1"


async def test_another_call_fails_at_once_where_nobody_listens(path):
    async with rpc.channel(path) as line, asyncio.timeout(3):
        with pytest.raises(OwnError) as failed:
            await call(line, "v1", seconds=60, patient=False)

    assert failed.value.code is grpc.StatusCode.UNAVAILABLE


async def test_answers_that_are_too_large_are_refused_by_whoever_asked(path):
    async with serving(path), rpc.channel(path, largest=1000) as small, rpc.channel(path, largest=10**6) as large:
        with pytest.raises(OwnError) as failed:
            await call(small, "x" * 2000)
        told = await call(large, "x" * 2000)

    assert failed.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert len(told.version) == 2000


async def test_a_line_that_is_closed_ends_the_calls_on_it_but_not_whoever_made_them(path):
    async with serving(path):
        line = rpc.channel(path)
        waiting = asyncio.create_task(call(line, "wait"))
        await asyncio.sleep(0.1)
        await line.close()
        with pytest.raises(OwnError) as failed:
            await waiting

    assert failed.value.code is grpc.StatusCode.CANCELLED


async def test_whoever_is_to_end_while_calling_ends(path):
    async with serving(path), rpc.channel(path) as line:
        waiting = asyncio.create_task(call(line, "wait"))
        await asyncio.sleep(0.1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting


async def test_a_stream_fails_with_the_callers_error(path):
    async with serving(path), rpc.channel(path) as line:
        with pytest.raises(OwnError) as failed:
            async for _ in rpc.stream(
                line, METHOD, wire.VersionRequest(version="refuse"), answer=wire.VersionResponse, failure=OwnError
            ):
                pass

    assert failed.value.code is grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("NOT_FOUND", "rpc error: code = NotFound desc = why"),
        ("CANCELLED", "rpc error: code = Canceled desc = why"),
        ("OK", "rpc error: code = OK desc = why"),
    ],
)
def test_failures_in_the_words_of_the_kubelet(code, text):
    assert rpc.error_text(grpc.StatusCode[code], "why") == text
