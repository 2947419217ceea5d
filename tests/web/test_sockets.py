"""Real sockets and the real server: access, shutdown and timeouts."""

import asyncio
import os
import signal
import socket
import stat
import threading
from contextlib import AsyncExitStack, ExitStack

import httpx2
import pytest

from alignup.align.errors import ListenError
from alignup.web import sockets
from alignup.web.asgi_server import ServerLimits
from tests.agent.fake_backend import FakeBackend, manifest
from tests.deadlines import SECONDS, until
from tests.web.real_server import client_at, on_unix, send_raw, stale_socket

pytestmark = pytest.mark.anyio

SMALL = manifest("small", cpu="2", memory="1Gi")


async def test_all_operations_over_a_unix_socket(tmp_path):
    path = tmp_path / "api.sock"
    agent = FakeBackend()
    async with on_unix(agent, path), client_at(path) as client:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert (await client.get("/readyz")).status_code == 200
        assert (await client.post("/v1/pods", json=SMALL)).status_code == 201
        assert (await client.post("/v1/pods", json=manifest("large", cpu="12", memory="1Gi"))).status_code == 409
        assert [pod["name"] for pod in (await client.get("/v1/pods")).json()["pods"]] == ["small"]
        assert "<svg" in (await client.get("/v1/picture.svg")).text
        assert "kubelet_topology_manager_admission_requests_total 2\n" in (await client.get("/metrics")).text
        assert (await client.head("/v1/pods")).status_code == 200
        assert (await client.delete("/v1/pods/default-small")).status_code == 200

    assert not path.exists()
    assert [file.name for file in tmp_path.iterdir()] == []


async def test_events_are_streamed_as_they_happen(path):
    agent = FakeBackend()
    async with on_unix(agent, path, heartbeat_seconds=0.05), client_at(path) as client:
        async with client.stream("GET", "/v1/events", headers={"last-event-id": "7"}) as stream:
            lines = stream.aiter_lines()
            assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
            assert await message(lines) == [": events from now on", "retry: 5000"]
            await client.post("/v1/pods", json=SMALL)

            received = await message(lines)
            while received == [": still here"]:  # how many precede the event depends on the speed of the machine
                received = await message(lines)
            heartbeat = await message(lines)

        assert received[:2] == ["id: 1", "event: admitted"]
        assert received[2].startswith('data: {"id":1,"time":"2027-01-15T08:00:0')
        assert received[2].endswith('"kind":"admitted","detail":{"uid":"default-small"}}')
        assert len(received) == 3
        assert heartbeat == [": still here"]
        await until(lambda: not agent.event_bus.subscribers)


async def message(lines):
    """The lines of the next message of an event stream."""
    received = []
    while line := await anext(lines):
        received.append(line)
    return received


async def test_a_stream_ends_with_the_events_before_the_shutdown(path):
    agent = FakeBackend()
    async with AsyncExitStack() as clients, on_unix(agent, path) as stopping:
        client = await clients.enter_async_context(client_at(path))
        stream = await clients.enter_async_context(client.stream("GET", "/v1/events"))
        lines = stream.aiter_lines()
        assert await anext(lines) == ": events from now on"
        for _ in range(3):
            agent.event_bus.publish("tick", {})
        stopping.set()

        assert [line async for line in lines if line.startswith("event")] == ["event: tick"] * 3


async def test_a_vanished_client_is_detected(path):
    agent = FakeBackend()
    async with on_unix(agent, path):
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(b"GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"retry")
        assert agent.event_bus.subscribers

        writer.transport.abort()

        await until(lambda: not agent.event_bus.subscribers)


async def test_a_client_that_reads_nothing_is_disconnected(path):
    agent = FakeBackend()
    async with on_unix(agent, path, heartbeat_seconds=0.01, limits=ServerLimits(read=0.1, end=1)):
        with socket.socket(socket.AF_UNIX) as deaf:
            deaf.connect(str(path))
            deaf.sendall(b"GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n")
            await until(lambda: agent.event_bus.subscribers)

            await until(
                lambda: agent.event_bus.publish("big", {"text": "x" * 50_000}) and not agent.event_bus.subscribers
            )


async def test_the_number_of_event_streams_is_limited(path):
    async with on_unix(FakeBackend(), path, streams=1), client_at(path) as client:
        async with client.stream("GET", "/v1/events") as first:
            assert await anext(first.aiter_lines())
            rejected = await client.get("/v1/events")

        assert rejected.status_code == 429


async def test_shutdown_finishes_requests_and_ends_streams(path):
    agent = FakeBackend()
    agent.proceed = proceed = asyncio.Event()

    async def decide_during_shutdown(stopping):
        await stopping.wait()
        proceed.set()

    async with asyncio.timeout(SECONDS), client_at(path, timeout=SECONDS) as client:
        async with on_unix(agent, path, limits=ServerLimits(end=10 * SECONDS)) as stopping:
            stream = asyncio.ensure_future(client.get("/v1/events"))
            under_way = asyncio.ensure_future(client.post("/v1/pods", json=SMALL))
            await until(lambda: agent.event_bus.subscribers and agent.arrived.is_set())
            deciding = asyncio.ensure_future(decide_during_shutdown(stopping))

        await deciding
        assert (await under_way).status_code == 201
        assert (await stream).text.startswith(": events from now on")
        with pytest.raises(httpx2.ConnectError):
            await client.get("/healthz")


async def test_shutdown_does_not_wait_forever(path):
    agent = FakeBackend()
    agent.proceed = asyncio.Event()  # which is never set
    async with asyncio.timeout(SECONDS), client_at(path, timeout=SECONDS) as client:
        async with on_unix(agent, path, limits=ServerLimits(end=0.1)):
            under_way = asyncio.ensure_future(client.post("/v1/pods", json=SMALL))
            await agent.arrived.wait()

        assert (await under_way).status_code == 500


async def test_the_server_handles_no_signals(tmp_path):
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    async with on_unix(FakeBackend(), tmp_path / "api.sock"):
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


@pytest.mark.parametrize(
    ("sent", "answer", "then"),
    [
        pytest.param(b"", b"", b"", id="sends nothing"),
        pytest.param(b"GET /healthz HT", b"", b"", id="stops in the middle"),
        pytest.param(b"GET /healthz HTTP/1.1\r\n", b"", b"X: y\r\n", id="goes on in drops"),
        pytest.param(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", b"ok\n", b"\r\n", id="drops after a first request"),
    ],
)
async def test_an_incomplete_request_times_out(path, sent, answer, then):
    async with on_unix(FakeBackend(), path, limits=ServerLimits(head=0.1, idle=600, end=1)):
        assert await send_raw(path, sent, answer=answer, then=then) == b""


async def test_a_connection_without_a_request_yet_can_have_a_limit_of_its_own(path):
    """A client may open a connection, and use it for the first time much later."""
    async with on_unix(FakeBackend(), path, limits=ServerLimits(head=0.01, first=600, idle=600, end=1)):
        reader, writer = await asyncio.open_unix_connection(path)
        assert await send_raw(path, b"GET /healthz HT") == b""  # the time for a head has passed, for both
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).endswith(b"ok\n")
        writer.close()
    async with on_unix(FakeBackend(), path, limits=ServerLimits(head=600, first=0.01, idle=600, end=1)):
        assert await send_raw(path, b"") == b""


async def test_a_stale_socket_is_replaced(path):
    stale_socket(path)
    async with on_unix(FakeBackend(), path), client_at(path) as client:
        assert (await client.get("/healthz")).text == "ok\n"


async def test_a_socket_in_use_is_not_replaced(path):
    async with on_unix(FakeBackend(), path), client_at(path) as client:
        with pytest.raises(ListenError, match="another process listens at"), sockets.unix_socket(path):
            pass

        assert (await client.get("/healthz")).text == "ok\n"


async def test_a_socket_that_replaced_ours_is_not_removed(path):
    with sockets.unix_socket(path):
        path.unlink()
        stale_socket(path)

    assert path.is_socket()


@pytest.mark.parametrize("kind", ["file", "directory", "link"])
def test_other_files_are_not_replaced(tmp_path, kind):
    path = tmp_path / "api.sock"
    if kind == "directory":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(tmp_path / "other")
    else:
        path.write_text("precious")

    with pytest.raises(ListenError, match="is not a socket"), sockets.unix_socket(path):
        pass

    assert os.path.lexists(path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["api.sock"]


def test_a_socket_is_never_open_to_others_under_a_loose_umask(tmp_path):
    """At every moment, the socket is private or does not exist."""
    path, seen, done = tmp_path / "api.sock", set(), threading.Event()

    def look():
        while not done.is_set():
            try:
                seen.add(stat.S_IMODE(path.stat().st_mode))
            except FileNotFoundError:
                continue

    watcher = threading.Thread(target=look)
    before = os.umask(0)
    watcher.start()
    try:
        for _ in range(50):
            with sockets.unix_socket(path):
                pass
    finally:
        os.umask(before)
        done.set()
        watcher.join()

    assert seen <= {0o600}


def test_of_many_concurrent_servers_one_listens(path):
    stale_socket(path)
    started = threading.Barrier(8)
    won: list[socket.socket] = []
    lost: list[ListenError] = []

    def come():
        started.wait()
        try:
            won.append(stack.enter_context(sockets.unix_socket(path)))
        except ListenError as error:
            lost.append(error)

    with ExitStack() as stack:
        threads = [threading.Thread(target=come) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert (len(won), len(lost)) == (1, 7)


def test_a_path_that_is_too_long_is_an_error(tmp_path):
    path = tmp_path / ("x" * 110)

    with pytest.raises(ListenError, match="bytes too long for a socket"), sockets.unix_socket(path):
        pass


def test_a_directory_that_cannot_be_created_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(ListenError, match=r"file/api\.sock"), sockets.unix_socket(tmp_path / "file" / "api.sock"):
        pass


def test_an_address_in_use_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        with pytest.raises(ListenError, match=f"cannot listen on 127.0.0.1 port {port}"), sockets.tcp_socket(port):
            pass


def test_an_invalid_address_is_an_error():
    with pytest.raises(ListenError, match="cannot listen on"), sockets.tcp_socket(1, "not an address"):
        pass


@pytest.mark.parametrize(
    ("content", "mode", "why"),
    [
        pytest.param(b"secret\n", 0o640, "chmod 600", id="the group can read it"),
        pytest.param(b"secret\n", 0o604, "chmod 600", id="others can read it"),
        pytest.param(b"secret\n", 0o602, "chmod 600", id="others can change it"),
        pytest.param(b" \n", 0o600, "is empty", id="empty"),
        pytest.param(b"two words", 0o600, "does not contain a token", id="two words"),
        pytest.param(b"s\xf6cret", 0o600, "does not contain a token", id="odd bytes"),
        pytest.param(b"x" * 5000, 0o600, "does not contain a token", id="too long"),
    ],
)
def test_invalid_tokens_are_rejected(tmp_path, content, mode, why):
    path = tmp_path / "token"
    path.write_bytes(content)
    path.chmod(mode)

    with pytest.raises(ListenError, match=why):
        sockets.read_token(path)


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_token_is_stripped(tmp_path, mode):
    path = tmp_path / "token"
    path.write_bytes(b"c2VjcmV0==\n")
    path.chmod(mode)

    assert sockets.read_token(path) == b"c2VjcmV0=="


@pytest.mark.parametrize("kind", ["missing", "directory", "pipe"])
def test_a_token_file_must_be_private(tmp_path, kind):
    path = tmp_path / "token"
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path, 0o600)

    with pytest.raises(ListenError, match=str(path)):
        sockets.read_token(path)
