"""Calls over Unix sockets: a failed call raises the caller's error type with the status code."""

import asyncio
import os
import stat
import threading
from contextlib import asynccontextmanager, suppress

import grpc
import pytest

from alignup.kubernetes.plugins import unix_grpc
from alignup.wire import device_plugin_pb2 as wire
from tests.grpc_fixtures import anyio_backend, one_loop
from tests.short_paths import short_directory

__all__ = ["anyio_backend", "one_loop"]

SERVICE = wire.DESCRIPTOR.services_by_name["Registration"]
METHOD = f"/{SERVICE.full_name}/Register"

pytestmark = pytest.mark.anyio


class OwnError(Exception):
    def __init__(self, code, details):
        super().__init__(details)
        self.code = code


@pytest.fixture
def path():
    with short_directory() as place:
        yield place / "odd % name?.sock"


@asynccontextmanager
async def serving(path):
    """Serve Register at *path*, and yield an event that is set once a call waits."""
    waiting = asyncio.Event()

    async def respond(request):
        match request.version:
            case "reject":
                raise unix_grpc.StatusError("denied", code=grpc.StatusCode.PERMISSION_DENIED)
            case "wait":
                waiting.set()
                await asyncio.Event().wait()
        return wire.RegisterRequest(version=request.version)

    async with unix_grpc.serve(path, SERVICE, {"Register": (wire.RegisterRequest, respond)}):
        yield waiting


async def call(channel, text, *, kind=wire.RegisterRequest, seconds=60.0, wait_for_ready=True):
    request = wire.RegisterRequest(version=text)
    return await unix_grpc.call(
        channel, METHOD, request, response=kind, seconds=seconds, error=OwnError, wait_for_ready=wait_for_ready
    )


async def test_a_socket_is_never_open_to_others_under_a_loose_umask(path):
    """At every moment, the socket is private or does not exist."""
    seen, done = set(), threading.Event()

    def watch():
        while not done.is_set():
            for entry in os.scandir(path.parent):
                with suppress(FileNotFoundError):
                    mode = entry.stat(follow_symlinks=False).st_mode
                    seen.add((stat.S_IFMT(mode), stat.S_IMODE(mode)))

    watcher = threading.Thread(target=watch)
    before = os.umask(0)
    try:
        watcher.start()
        for _ in range(20):
            async with serving(path):
                assert stat.S_IMODE(path.stat().st_mode) == 0o600
    finally:
        os.umask(before)
        done.set()
        watcher.join()

    assert seen <= {(stat.S_IFSOCK, 0o600), (stat.S_IFDIR, 0o700)}
    assert list(path.parent.iterdir()) == []


async def test_a_call_returns_the_response(path):
    async with serving(path), unix_grpc.channel(path) as channel:
        response = await call(channel, "v1")

    assert response.version == "v1"


@pytest.mark.parametrize(
    ("text", "kind", "seconds", "code"),
    [
        pytest.param("reject", wire.RegisterRequest, 60, "PERMISSION_DENIED", id="a rejection"),
        pytest.param("wait", wire.RegisterRequest, 0.05, "DEADLINE_EXCEEDED", id="a timeout"),
        pytest.param("v1", wire.AllocateResponse, 60, "INTERNAL", id="a response of another type"),
    ],
)
async def test_a_failed_call_raises_the_error_of_the_caller(path, text, kind, seconds, code):
    async with serving(path), unix_grpc.channel(path) as channel:
        with pytest.raises(OwnError) as caught:
            await call(channel, text, kind=kind, seconds=seconds)

    assert caught.value.code is grpc.StatusCode[code]
    assert str(caught.value)


async def test_a_call_waits_for_the_server_to_listen(path):
    async with unix_grpc.channel(path) as channel:
        pending = asyncio.create_task(call(channel, "v1"))
        async with asyncio.timeout(60):
            while channel.get_state() is not grpc.ChannelConnectivity.TRANSIENT_FAILURE:  # it found no server
                await channel.wait_for_state_change(channel.get_state())
        async with serving(path):
            response = await pending

    assert response.version == "v1"


async def test_a_call_that_does_not_wait_fails_at_once_without_a_server(path):
    async with unix_grpc.channel(path) as channel, asyncio.timeout(60):
        with pytest.raises(OwnError) as caught:
            await call(channel, "v1", seconds=600, wait_for_ready=False)

    assert caught.value.code is grpc.StatusCode.UNAVAILABLE


async def test_responses_above_the_size_limit_fail(path):
    async with (
        serving(path),
        unix_grpc.channel(path, max_response=1000) as small,
        unix_grpc.channel(path, max_response=10**6) as large,
    ):
        with pytest.raises(OwnError) as caught:
            await call(small, "x" * 2000)
        response = await call(large, "x" * 2000)

    assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert len(response.version) == 2000


async def test_closing_the_channel_fails_pending_calls_without_cancelling_their_tasks(path):
    async with serving(path) as waiting:
        channel = unix_grpc.channel(path)
        pending = asyncio.create_task(call(channel, "wait"))
        await waiting.wait()
        await channel.close()
        with pytest.raises(OwnError) as caught:
            await pending

    assert caught.value.code is grpc.StatusCode.CANCELLED


async def test_cancelling_a_task_cancels_its_call(path):
    async with serving(path) as waiting, unix_grpc.channel(path) as channel:
        pending = asyncio.create_task(call(channel, "wait"))
        await waiting.wait()
        pending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pending


async def test_a_failed_stream_raises_the_error_of_the_caller(path):
    async with serving(path), unix_grpc.channel(path) as channel:
        with pytest.raises(OwnError) as caught:
            async for _ in unix_grpc.stream(
                channel, METHOD, wire.RegisterRequest(version="reject"), response=wire.RegisterRequest, error=OwnError
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
    assert unix_grpc.error_text(grpc.StatusCode[code], "why") == text
