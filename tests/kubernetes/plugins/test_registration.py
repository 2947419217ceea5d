"""Registration: which plugins are rejected, and what else may arrive at the socket."""

import asyncio
import random
from contextlib import suppress
from pathlib import Path

import grpc
import grpc.aio
import pytest

from alignup.kubernetes.plugins import unix_grpc
from alignup.kubernetes.plugins.manager import DevicePluginManager, socket_path
from alignup.testing import Plugin
from alignup.wire import device_plugin_pb2 as wire
from tests.effort import SEED, did, rounds
from tests.kubernetes.plugins.capacity import capacity_of
from tests.kubernetes.plugins.raw import send

pytestmark = pytest.mark.anyio

GPU = "example.com/gpu"
REGISTER = "/v1beta1.Registration/Register"


@pytest.fixture
async def register(directory, impatient):
    """Send bytes to Register, and return the response or the code and details of the error."""
    async with unix_grpc.channel(directory / "kubelet.sock") as channel:

        async def call(request):
            raw = request if isinstance(request, bytes) else request.SerializeToString()
            try:
                return await send(channel, REGISTER, raw)
            except grpc.aio.AioRpcError as error:
                return error.code().name, error.details()

        yield call


@pytest.mark.parametrize(
    ("version", "resource", "text"),
    [
        pytest.param(
            "v1alpha1",
            GPU,
            'requested API version "v1alpha1" is not supported by kubelet. Supported version is ["v1beta1"]',
            id="another version",
        ),
        pytest.param("v1beta1", "gpu", 'the ResourceName "gpu" is invalid', id="no domain"),
        pytest.param("v1beta1", "", 'the ResourceName "" is invalid', id="no name"),
        pytest.param(
            "v1beta1",
            "foo.kubernetes.io/x",
            'the ResourceName "foo.kubernetes.io/x" is invalid',
            id="reserved for Kubernetes",
        ),
        pytest.param("v1beta1", "requests.a/b", 'the ResourceName "requests.a/b" is invalid', id="the name of a quota"),
        pytest.param("v1beta1", "a/b/c", 'the ResourceName "a/b/c" is invalid', id="two slashes"),
    ],
)
async def test_invalid_requests_are_rejected_with_the_text_of_the_kubelet(
    register, metrics, *, version, resource, text
):
    answer = await register(wire.RegisterRequest(version=version, endpoint="x.sock", resource_name=resource))

    assert answer == ("UNKNOWN", text)
    assert metrics.registrations == [resource]


async def test_an_unreachable_plugin_is_rejected_in_time(register):
    code, details = await register(wire.RegisterRequest(version="v1beta1", endpoint="none.sock", resource_name=GPU))

    assert code == "UNKNOWN"
    assert details.startswith("failed to dial device plugin: ")


async def test_a_plugin_without_grpc_is_rejected_in_time(directory, register):
    async def garbage(reader, writer):
        writer.write(b"HTTP/1.1 400 what?\r\n\r\n" + random.Random(SEED).randbytes(200))
        await writer.drain()
        writer.close()

    async with await asyncio.start_unix_server(garbage, directory / "x.sock"):
        answer = await register(wire.RegisterRequest(version="v1beta1", endpoint="x.sock", resource_name=GPU))

    assert answer[1].startswith("failed to dial device plugin: ")


async def test_a_plugin_that_never_answers_is_rejected_in_time(directory, register):
    done = asyncio.Event()

    async def silent(reader, writer):
        await done.wait()
        writer.close()

    async with await asyncio.start_unix_server(silent, directory / "x.sock"):
        answer = await register(wire.RegisterRequest(version="v1beta1", endpoint="x.sock", resource_name=GPU))
        done.set()

    assert answer[1].startswith("failed to dial device plugin: ")


@pytest.mark.soak
async def test_malformed_messages_change_nothing(directory, register, listener, caplog):
    dice, count = random.Random(SEED), rounds(150, soak=20_000)
    valid = wire.RegisterRequest(version="v1beta1", endpoint="x.sock", resource_name=GPU).SerializeToString()
    messages = [dice.randbytes(dice.randint(1, 60)) for _ in range(count)]
    messages += [valid[: dice.randrange(1, len(valid))] + b"\xff" * dice.randint(1, 3) for _ in range(count)]

    answers = [answer for chunk in _chunks(messages, 50) for answer in await asyncio.gather(*map(register, chunk))]

    assert {code for code, _ in answers} <= {"INTERNAL", "UNKNOWN"}
    assert sum(code == "INTERNAL" for code, _ in answers) > count
    did("malformed messages", len(messages))
    assert not any(record.exc_info for record in caplog.records)
    async with Plugin(GPU, "2@0", directory=directory):
        await listener.until(lambda: len(listener.healthy(GPU)) == 2)


async def test_garbage_on_the_socket_changes_nothing(directory, manager, listener):
    dice = random.Random(SEED)
    for size in (1, 100, 10_000):
        reader, writer = await asyncio.open_unix_connection(directory / "kubelet.sock")
        writer.write(dice.randbytes(size))
        if size == 1:  # the server waits for more
            writer.write_eof()
        with suppress(ConnectionError):
            async with asyncio.timeout(60):
                await reader.read()
        writer.close()

    async with Plugin(GPU, "2@0", directory=directory):
        await listener.until(lambda: len(listener.healthy(GPU)) == 2)


async def test_a_plugin_that_cancels_its_registration_leaves_nothing_behind(directory, manager, listener):
    async with unix_grpc.channel(directory / "kubelet.sock") as channel:
        request = wire.RegisterRequest(version="v1beta1", endpoint="none.sock", resource_name=GPU)
        with pytest.raises(grpc.aio.AioRpcError):
            await send(channel, REGISTER, request.SerializeToString(), seconds=0.02)

    assert capacity_of(manager).capacity == {}
    async with Plugin(GPU, "2@0", directory=directory):
        await listener.until(lambda: len(listener.healthy(GPU)) == 2)


async def test_socket_names_may_contain_any_character(directory, listener):
    odd = directory / "p%41 ?#=é"
    async with (
        DevicePluginManager(odd, *listener.callbacks),
        Plugin(GPU, "2@0", directory=odd, endpoint="a b%41?#=é.sock"),
    ):
        await listener.until(lambda: len(listener.healthy(GPU)) == 2)


def test_an_endpoint_is_a_file_in_the_plugin_directory():
    assert socket_path(Path("/plugins"), "..gpu.sock") == Path("/plugins/..gpu.sock")


@pytest.mark.parametrize(
    "endpoint",
    ["", ".", "..", "../x.sock", "../../x.sock", "/x.sock", "sub/x.sock", "x.sock/", "kubelet.sock", "a\0b"],
)
async def test_other_endpoints_are_rejected_and_not_dialled(directory, register, endpoint):
    dialled = asyncio.Event()

    async def accept(reader, writer):
        dialled.set()
        writer.close()

    (directory / "sub").mkdir()
    async with (
        await asyncio.start_unix_server(accept, directory.parent / "x.sock"),
        await asyncio.start_unix_server(accept, directory / "x.sock"),
        await asyncio.start_unix_server(accept, directory / "sub" / "x.sock"),
    ):
        answer = await register(wire.RegisterRequest(version="v1beta1", endpoint=endpoint, resource_name=GPU))

    assert answer[0] == "UNKNOWN"
    assert "must be a file in the plugin directory" in answer[1]
    assert not dialled.is_set()


def _chunks(things, size):
    return (things[start : start + size] for start in range(0, len(things), size))
