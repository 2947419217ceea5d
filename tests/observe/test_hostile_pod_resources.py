"""The observer beside a hostile PodResources server: it waits and reads within limits, says so, and goes on."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from alignup.align.errors import PluginError
from alignup.kubernetes.plugins import pod_resources
from alignup.kubernetes.plugins.pod_resources import PodResourcesClient, pod_resources_client
from alignup.observe.kubelet_reader import KubeletPaths, KubeletReader
from alignup.observe.observation import join
from alignup.testing.simulated_kubelet import SimulatedKubelet
from tests.align.hosts import pod
from tests.deadlines import SECONDS

pytestmark = pytest.mark.anyio

SHORT = 0.3  #: seconds of a call that never ends
EMPTY_POD = b"\x0a\x00"


def never(_request: bytes, context: grpc.ServicerContext) -> bytes:
    ended = threading.Event()
    context.add_callback(ended.set)
    ended.wait()
    return b""


def answering(raw: bytes):
    def answer(_request: bytes, _context: object) -> bytes:
        return raw

    return answer


def endless(_request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
    while context.is_active():
        yield bytes(1 << 20)


UNARY = {
    "a huge message": (answering(bytes(pod_resources.MAX_RESPONSE + 1)), "ResourceExhausted"),
    "garbage": (answering(b"\xff" * 116), "failed to unmarshal"),
    "half a message": (answering(b"\x0a\x7f"), "failed to unmarshal"),
    "millions of empty pods": (answering(EMPTY_POD * (4 << 20)), "has more than 100000 entries"),
    "a pod with millions of containers": (
        answering(b"\x0a\x80\x80\x80\x04" + b"\x1a\x00" * (4 << 20)),
        "has more than 100000 entries",
    ),
    "an endless number": (answering(b"\x0a" + b"\xff" * (1 << 20)), "failed to unmarshal"),
}


@asynccontextmanager
async def serving(path: Path, handler: Any, *, seconds: float = SECONDS) -> AsyncIterator[PodResourcesClient]:
    """Serve in threads: what is left of a call when it ends must not reach the event loop of a later test."""
    server = grpc.server(ThreadPoolExecutor(max_workers=4))
    methods = dict.fromkeys(("List", "GetAllocatableResources"), handler)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1.PodResourcesLister", methods),))
    server.add_insecure_port(f"unix:{path}")
    server.start()
    try:
        async with pod_resources_client(path, seconds=seconds) as client:
            yield client
    finally:
        server.stop(None).wait()


@pytest.mark.parametrize(("answer", "message"), UNARY.values(), ids=UNARY)
async def test_a_hostile_answer_is_an_error_in_words(short_path, answer, message):
    handler: Any = grpc.unary_unary_rpc_method_handler(answer)
    async with serving(short_path / "socket", handler) as client:
        with pytest.raises(PluginError, match=message):
            await client.list()


ENDLESS: dict[str, tuple[Any, str]] = {
    "never answers": (grpc.unary_unary_rpc_method_handler(never), "DeadlineExceeded"),
    "an endless stream": (grpc.unary_stream_rpc_method_handler(endless), "rpc error"),
}


@pytest.mark.parametrize(("handler", "message"), ENDLESS.values(), ids=ENDLESS)
async def test_an_answer_without_end_ends_with_the_time_for_the_call(short_path, handler, message):
    async with serving(short_path / "socket", handler, seconds=SHORT) as client:
        with pytest.raises(PluginError, match=message):
            await client.list()


async def test_a_server_that_does_not_speak_grpc_is_an_error(short_path):
    async def shout(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                writer.write(b"HTTP/1.1 200 OK\r\n" * 1000)
                await writer.drain()
        except ConnectionError:
            writer.close()

    server = await asyncio.start_unix_server(shout, short_path / "socket")
    async with server, pod_resources_client(short_path / "socket", seconds=SHORT) as client:
        with pytest.raises(PluginError, match="rpc error"):
            await client.list()


async def test_the_host_is_observed_nevertheless(short_path):
    kubelet = SimulatedKubelet()
    kubelet.run(pod("a", gpu="1"))
    (short_path / "config.yaml").write_bytes(kubelet.text)
    kubelet.write(short_path)
    handler: Any = grpc.unary_unary_rpc_method_handler(answering(EMPTY_POD * (1 << 20)))
    async with serving(short_path / "socket", handler) as client:
        reader = KubeletReader(
            KubeletPaths(directory=short_path),
            pod_resources=client,
            pods=lambda: dict(kubelet.pods),
            discover=lambda _root: kubelet.machine,
        )
        observation = join(await reader.read())

    assert list(observation.host.ledger.pods) == ["a"]
    assert any("PodResources does not answer" in gap for gap in observation.gaps)
