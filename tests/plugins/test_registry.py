"""Registering: who is refused, in which words, and what else may arrive at the socket."""

import asyncio
import random
from contextlib import suppress
from pathlib import Path

import grpc
import grpc.aio
import pytest

from alignup import rpc
from alignup.plugins.manager import DevicePluginManager
from alignup.plugins.registry import socket_path
from alignup.testing import Plugin
from alignup.wire import device_plugin_pb2 as wire
from tests.plugins.raw import send

pytestmark = pytest.mark.anyio

GPU = "example.com/gpu"
REGISTER = "/v1beta1.Registration/Register"


@pytest.fixture
async def register(directory, strict):
    """Send bytes to Register; what comes of it."""
    async with rpc.channel(directory / "kubelet.sock") as line:

        async def ask(request):
            try:
                return await send(
                    line, REGISTER, request if isinstance(request, bytes) else request.SerializeToString()
                )
            except grpc.aio.AioRpcError as error:
                return error.code().name, error.details()

        yield ask


@pytest.mark.parametrize(
    ("version", "resource", "says"),
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
            "v1beta1", "foo.kubernetes.io/x", 'the ResourceName "foo.kubernetes.io/x" is invalid', id="Kubernetes' own"
        ),
        pytest.param("v1beta1", "requests.a/b", 'the ResourceName "requests.a/b" is invalid', id="a quota's name"),
        pytest.param("v1beta1", "a/b/c", 'the ResourceName "a/b/c" is invalid', id="two slashes"),
    ],
)
async def test_refused_as_the_kubelet_refuses(register, strict, *, version, resource, says):
    answer = await register(wire.RegisterRequest(version=version, endpoint="x.sock", resource_name=resource))

    assert answer == ("UNKNOWN", says)
    (counted,) = strict.tally.collect()
    assert [(one.labels, one.value) for one in counted.samples] == [({"resource_name": resource}, 1)]


async def test_one_that_cannot_be_reached_is_refused_in_time(register):
    code, says = await register(wire.RegisterRequest(version="v1beta1", endpoint="none.sock", resource_name=GPU))

    assert code == "UNKNOWN"
    assert says.startswith("failed to dial device plugin: ")


async def test_one_whose_socket_speaks_no_grpc_is_refused_in_time(directory, register):
    async def rubbish(reader, writer):
        writer.write(b"HTTP/1.1 400 what?\r\n\r\n" + random.randbytes(200))
        await writer.drain()
        writer.close()

    async with await asyncio.start_unix_server(rubbish, directory / "x.sock"):
        answer = await register(wire.RegisterRequest(version="v1beta1", endpoint="x.sock", resource_name=GPU))

    assert answer[1].startswith("failed to dial device plugin: ")


async def test_one_that_takes_connections_and_says_nothing_is_refused_in_time(directory, register):
    with_nothing_to_say = asyncio.Event()

    async def silent(reader, writer):
        await with_nothing_to_say.wait()
        writer.close()

    async with await asyncio.start_unix_server(silent, directory / "x.sock"):
        answer = await register(wire.RegisterRequest(version="v1beta1", endpoint="x.sock", resource_name=GPU))
        with_nothing_to_say.set()

    assert answer[1].startswith("failed to dial device plugin: ")


async def test_a_thousand_malformed_messages_change_nothing(directory, register, ears, caplog):
    dice = random.Random(7)
    sound = wire.RegisterRequest(version="v1beta1", endpoint="x.sock", resource_name=GPU).SerializeToString()
    messages = [dice.randbytes(dice.randint(1, 60)) for _ in range(500)]
    messages += [sound[: dice.randrange(1, len(sound))] + b"\xff" * dice.randint(1, 3) for _ in range(500)]

    answers = [answer for one in _chunks(messages, 50) for answer in await asyncio.gather(*map(register, one))]

    assert {code for code, _ in answers} <= {"INTERNAL", "UNKNOWN"}
    assert sum(code == "INTERNAL" for code, _ in answers) > 500
    assert not any(record.exc_info for record in caplog.records)
    async with Plugin(GPU, "2@0", directory=directory):
        await ears.until(lambda: len(ears.healthy(GPU)) == 2)


async def test_garbage_on_the_socket_itself_changes_nothing(directory, exchange, ears):
    for size in (1, 100, 10_000):
        reader, writer = await asyncio.open_unix_connection(directory / "kubelet.sock")
        writer.write(random.randbytes(size))
        with suppress(ConnectionError, TimeoutError):
            await asyncio.wait_for(reader.read(1000), 0.05 if size == 1 else 5)
        writer.close()

    async with Plugin(GPU, "2@0", directory=directory):
        await ears.until(lambda: len(ears.healthy(GPU)) == 2)


async def test_a_plugin_that_gives_up_waiting_leaves_nothing(directory, exchange, ears):
    async with rpc.channel(directory / "kubelet.sock") as line:
        request = wire.RegisterRequest(version="v1beta1", endpoint="none.sock", resource_name=GPU)
        with pytest.raises(grpc.aio.AioRpcError):
            await send(line, REGISTER, request.SerializeToString(), seconds=0.05)

    assert exchange.capacity().capacity == {}
    async with Plugin(GPU, "2@0", directory=directory):
        await ears.until(lambda: len(ears.healthy(GPU)) == 2)


async def test_sockets_of_odd_names_are_found(directory, ears):
    odd = directory / "p%41 ?#=é"
    async with DevicePluginManager(odd, ears), Plugin(GPU, "2@0", directory=odd, endpoint="a b%41?#=é.sock"):
        await ears.until(lambda: len(ears.healthy(GPU)) == 2)


@pytest.mark.parametrize(
    ("endpoint", "found"),
    [
        pytest.param("gpu.sock", "/plugins/gpu.sock", id="a file"),
        pytest.param("/gpu.sock", "/plugins/gpu.sock", id="a slash first"),
        pytest.param("sub/gpu.sock", "/plugins/sub/gpu.sock", id="in a folder"),
        pytest.param("", "/plugins", id="nothing"),
    ],
)
def test_the_socket_a_plugin_names(endpoint, found):
    assert socket_path(Path("/plugins"), endpoint) == Path(found)


def _chunks(things, size):
    return (things[start : start + size] for start in range(0, len(things), size))
