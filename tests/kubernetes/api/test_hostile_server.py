"""A server that answers whatever it likes, or one behind the proxy of an API server: what it costs is limited."""

import asyncio
import gzip
import io
from contextlib import asynccontextmanager, suppress

import pytest

from alignup.kubernetes.api import PODS, ApiClient, Informer, Timing
from alignup.kubernetes.api.access import Access
from alignup.kubernetes.api.errors import UnreadableError
from alignup.testing.api_server import ApiFault, ApiServer
from tests.deadlines import until
from tests.kubernetes.api.tasks import running

pytestmark = pytest.mark.anyio

LIMIT = 1 << 20
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"


def compressed(size):
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb") as file:
        for _ in range(size >> 20):
            file.write(bytes(1 << 20))
    return packed.getvalue()


async def flood(writer):
    """Send until the client has enough."""
    while True:
        writer.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
        await writer.drain()


async def send_bomb(writer):
    bomb = compressed(1 << 26)
    writer.write(b"Content-Length: %d\r\n\r\n" % len(bomb) + bomb)
    await writer.drain()


@asynccontextmanager
async def serving(head, send):
    """A server that answers every request with *head* and what *send* sends; yield a client, and the requests."""
    requests = []

    async def serve(reader, writer):
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            requests.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(head)
            await send(writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        async with ApiClient(Access(server=f"http://127.0.0.1:{port}"), timing=Timing(retry=0.0)) as client:
            yield client, requests
    finally:
        server.close()


@pytest.mark.parametrize(
    ("head", "send"),
    [
        pytest.param(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", flood, id="endless"),
        pytest.param(HEAD + b"Content-Encoding: gzip\r\n", send_bomb, id="compressed"),
        pytest.param(b"HTTP/1.1 500 Failed\r\nTransfer-Encoding: chunked\r\n\r\n", flood, id="the reason of an error"),
    ],
)
async def test_a_body_that_is_larger_than_the_caller_accepts_is_an_error(head, send):
    async with serving(head, send) as (client, requests):
        with pytest.raises(UnreadableError, match="the response is larger than 1 MiB"):
            await client.get_raw("/api/v1/nodes/a/proxy/configz", max_bytes=LIMIT)

        assert len(requests) == 1  # another response would be as large


async def test_a_server_cannot_send_its_clients_away_for_long():
    waits = []

    async def sleep(seconds):
        waits.append(seconds)
        await asyncio.sleep(0)

    timing = Timing(retry=1, longest_retry=5, sleep=sleep, random=lambda: 1.0)
    async with ApiServer() as server, running() as follow:
        server.put({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "default"}, "spec": {}})
        server.inject(ApiFault(status=429, retry_after=10**9, times=2))
        async with ApiClient(Access(server=server.url), timing=timing) as client:
            assert await client.get(PODS.at("a", namespace="default"))
            server.inject(ApiFault(status=429, retry_after=10**9, times=1), verb="watch")
            informer = Informer(client, PODS)
            follow(informer.run())
            await until(lambda: informer.synced)
            assert waits == [5, 5, 5]
