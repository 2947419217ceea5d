"""Hostile clients neither lock out clients with the token nor keep descriptors."""

import asyncio
import errno
import gc
import os
import resource
import select
import socket
import weakref
from contextlib import asynccontextmanager

import httpx2
import pytest
from structlog.testing import capture_logs

from alignup.web import sockets
from alignup.web.asgi_server import ConnectionLimits, ConnectionTable, ServerLimits, peer_of, serve_app
from alignup.web.served_connection import ServedConnection
from tests.agent.fake_backend import FakeBackend, app_of, manifest
from tests.deadlines import SECONDS, until
from tests.web.real_server import on_unix, send_raw

pytestmark = pytest.mark.anyio

TOKEN = {"Authorization": "Bearer secret"}
HEALTHZ = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


class FakeConnection:
    def __init__(self, name):
        self.name = name
        self.closed = False

    def close_now(self):
        self.closed = True

    def __repr__(self):
        return self.name


def table(**limits):
    return ConnectionTable(ConnectionLimits(**{"authenticated": 2, "unauthenticated": 4, "per_peer": 3} | limits))


def add(to, peer, *names):
    connections = [FakeConnection(name) for name in names]
    for connection in connections:
        to.add(connection, peer)
    return connections


def test_the_oldest_connection_of_a_peer_makes_room():
    connections = table()
    a, b, c, d = add(connections, "192.0.2.1", *"abcd")

    assert [connection.closed for connection in (a, b, c, d)] == [True, False, False, False]
    assert len(connections) == 3


def test_the_peer_with_most_connections_makes_room():
    connections = table()
    (first,) = add(connections, "192.0.2.1", "first")
    a, b, c = add(connections, "192.0.2.2", *"abc")
    (last,) = add(connections, "192.0.2.3", "last")

    assert [connection.closed for connection in (first, a, b, c, last)] == [False, True, False, False, False]


def test_authenticated_connections_are_not_closed():
    connections = table()
    a, b = add(connections, "192.0.2.1", *"ab")
    assert connections.authenticate(a)
    assert connections.authenticate(b)
    others = add(connections, "192.0.2.1", *"cdefgh")

    assert not a.closed
    assert not b.closed
    assert not connections.authenticate(others[-1]), "both slots are in use"
    connections.remove(a)
    assert connections.authenticate(others[-1])


def test_a_closed_connection_takes_no_slot():
    connections = table()
    (a,) = add(connections, "192.0.2.1", "a")
    connections.remove(a)

    assert connections.authenticate(a)
    assert len(connections) == 0


@pytest.mark.parametrize(
    ("address", "peer"),
    [
        pytest.param(("192.0.2.1", 5000), "192.0.2.1", id="IPv4"),
        pytest.param(("::ffff:192.0.2.1", 5000, 0, 0), "192.0.2.1", id="IPv4 in IPv6"),
        pytest.param(("2001:db8:1:2:3:4:5:6", 5000, 0, 0), "2001:db8:1:2::/64", id="IPv6"),
        pytest.param(("fe80::1%eth0", 5000, 0, 2), "fe80::/64", id="IPv6 with a scope"),
        pytest.param("", None, id="a unix socket"),
    ],
)
def test_a_peer_is_an_address_or_a_network(address, peer):
    assert peer_of(address) == peer


def test_half_of_the_descriptors_are_for_other_uses(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (100, 1000))

    limits = ConnectionLimits().within_descriptors()

    assert limits.authenticated + limits.unauthenticated <= 50


@asynccontextmanager
async def on_tcp(agent, listener_type=socket.socket, **limits):
    """Serve the API with a token; yield the address."""
    stopping = asyncio.Event()
    app = app_of(agent, stopping=stopping, token=b"secret")
    with sockets.tcp_socket(0) as bound, listener_type(fileno=os.dup(bound.fileno())) as listener:
        async with serve_app(
            app, listener, stopping=stopping, limits=ServerLimits(names=("x",), **{"end": 1} | limits)
        ):
            yield bound.getsockname()


def client_at(address):
    return httpx2.AsyncClient(base_url=f"http://{address[0]}:{address[1]}", timeout=SECONDS, verify=False)


async def poll(address, count):
    """Ask for /healthz on new connections, all of which stay open."""
    writers = []
    for _ in range(count):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(HEALTHZ)
        await reader.readuntil(b"ok\n")
        writers.append(writer)
    return writers


async def test_unauthenticated_clients_do_not_lock_out_the_token():
    few = ConnectionLimits(authenticated=2, unauthenticated=4, per_peer=4)
    async with on_tcp(FakeBackend(), connections=few) as address, client_at(address) as client:
        assert (await client.get("/v1/pods", headers=TOKEN)).status_code == 200
        strangers = await poll(address, 20)

        again = await client.get("/v1/pods", headers=TOKEN)  # on the connection from before
        async with client_at(address) as other:
            new = await other.get("/v1/pods", headers=TOKEN)

        assert (again.status_code, new.status_code) == (200, 200)
        for stranger in strangers:
            stranger.close()


async def test_too_many_authenticated_connections_are_told_so():
    few = ConnectionLimits(authenticated=1, unauthenticated=4, per_peer=4)
    async with on_tcp(FakeBackend(), connections=few) as address, client_at(address) as client:
        await client.get("/v1/pods", headers=TOKEN)
        async with client_at(address) as other:
            refused = await other.get("/v1/pods", headers=TOKEN)

        assert refused.status_code == 503
        assert refused.headers["connection"] == "close"
        assert refused.headers["retry-after"] == "1"


async def ask_until_closed(address, request):
    """Repeat a request on one connection until the server closes it."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        while True:
            writer.write(request)
            await reader.readuntil(b"ok\n")
    finally:
        writer.close()


async def test_a_connection_that_stays_unauthenticated_is_closed():
    request = b"GET /readyz HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\n\r\n"
    async with asyncio.timeout(SECONDS), on_tcp(FakeBackend(), unauthenticated=0.1) as address:
        reader, owner = await asyncio.open_connection(*address)
        owner.write(request)
        await reader.readuntil(b"}\n")

        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await ask_until_closed(address, HEALTHZ)

        owner.write(request)
        assert b"200 OK" in await reader.readuntil(b"}\n")
        owner.close()


class BusyListener(socket.socket):
    """Has no free descriptor for the first calls of accept."""

    failures = 3

    def accept(self):
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


async def test_without_descriptors_the_server_waits_and_writes_one_line():
    with capture_logs() as logs:
        async with on_tcp(FakeBackend(), BusyListener) as address, client_at(address) as client:
            assert (await client.get("/healthz")).text == "ok\n"

    assert [(entry["event"], entry["error"]) for entry in logs if entry["log_level"] == "warning"] == [
        ("cannot accept connections", "Too many open files")
    ]


def is_closed(connection):
    """Whether the other side has closed its descriptor."""
    poller = select.poll()
    poller.register(connection, select.POLLHUP)
    return bool(poller.poll(0))


@pytest.mark.parametrize("path", ["/v1/events", "/v1/picture.svg"])
async def test_the_descriptor_of_a_client_that_reads_nothing_is_closed(tmp_path, path):
    """Also if the response is complete and only the kernel's buffer is full."""
    socket_path = tmp_path / "api.sock"
    agent = FakeBackend()
    async with on_unix(agent, socket_path, limits=ServerLimits(read=0.1, idle=600, end=1)):
        with socket.socket(socket.AF_UNIX) as deaf:
            deaf.connect(str(socket_path))
            deaf.setblocking(False)
            request = f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()

            def send():
                agent.event_bus.publish("big", {"text": "x" * 50_000})
                try:
                    deaf.send(request)
                except BlockingIOError:
                    pass
                except BrokenPipeError:
                    return True
                return is_closed(deaf)

            await until(send)


async def test_a_large_head_is_refused(path):
    async with on_unix(FakeBackend(), path, limits=ServerLimits(head_bytes=1000, end=1)):
        head = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX: %s\r\n\r\n"
        large = await send_raw(path, head % (b"x" * 950))
        small = await send_raw(path, head % (b"x" * 900))

    assert large.startswith(b"HTTP/1.1 431 ")
    assert small.startswith(b"HTTP/1.1 200 ")


async def test_many_short_headers_are_refused(path):
    """They need far more memory than their text."""
    async with on_unix(FakeBackend(), path):
        many = await send_raw(path, HEALTHZ[:-2] + b"x:\r\n" * 4000 + b"\r\n")

    assert many.startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(HEALTHZ[:-2] + b"Connection: close\r\n\r\n", id="answered"),
        pytest.param(HEALTHZ[:-2] + b"x: y\r\n" * 9000, id="too large"),
        pytest.param(b"rubbish\r\n\r\n", id="invalid"),
        pytest.param(b"POST /v1/pods HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{", id="truncated"),
        pytest.param(HEALTHZ * 9, id="left"),
    ],
)
async def test_a_closed_connection_needs_no_garbage_collection(path, monkeypatch, request_):
    served = []

    class TracedConnection(ServedConnection):
        def __init__(self, *positional, **named):
            super().__init__(*positional, **named)
            served.append(weakref.ref(self))

    monkeypatch.setattr("alignup.web.asgi_server.ServedConnection", TracedConnection)
    gc.disable()
    try:
        async with on_unix(FakeBackend(), path):
            _reader, writer = await asyncio.open_unix_connection(str(path))
            writer.write(request_)
            await until(lambda: served)
            writer.close()
            await until(lambda: served[0]() is None)
    finally:
        gc.enable()


async def test_a_body_is_no_head(path):
    """A document that is larger than a head may be, also if the response precedes its end."""
    body = b"x" * 5000
    head = b"POST /v1/unknown HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n"
    async with on_unix(FakeBackend(), path, limits=ServerLimits(head_bytes=1000, end=1)):
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(head)
        assert await reader.readuntil(b"\r\n") == b"HTTP/1.1 404 Not Found\r\n"
        writer.write(body + HEALTHZ)
        async with asyncio.timeout(SECONDS):
            assert b"HTTP/1.1 200 OK" in await reader.readuntil(b"ok\n")
        writer.close()


async def test_pipelined_requests_are_answered_in_order(path):
    agent = FakeBackend()
    await agent.admit_document(manifest("web", cpu="1", memory="1Gi"))
    last = b"GET /v1/pods/default-web HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    async with on_unix(agent, path, limits=ServerLimits(head_bytes=1000, end=1)):
        answered = await send_raw(path, HEALTHZ * 50 + last)

    assert answered.count(b"HTTP/1.1 200 OK") == 51
    assert b'"uid":"default-web"' in answered


async def test_endless_trailers_are_refused(path):
    body = b"POST /v1/unknown HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX: "
    async with on_unix(FakeBackend(), path, limits=ServerLimits(head=600, head_bytes=1000, end=1)):
        answered = await send_raw(path, body, answer=b"API.", then=b"x" * 100)

    assert b"HTTP/1.1 431 " in answered


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        pytest.param(b"GET /healthz HTTP/1.1\r\n\r\n", b"400", id="no host"),
        pytest.param(b"GET /healthz HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", b"400", id="two hosts"),
        pytest.param(HEALTHZ[:-2] + b"Connection: upgrade\r\nUpgrade: h2c\r\n\r\n", b"200", id="another protocol"),
        pytest.param(HEALTHZ + b"rubbish\r\n\r\n", b"200", id="rubbish behind it"),
    ],
)
async def test_a_connection_ends_after_a_request_that_cannot_be_followed(path, request_, status):
    async with on_unix(FakeBackend(), path, limits=ServerLimits(head=600, idle=600, end=1)):
        answered = await send_raw(path, request_ + HEALTHZ)

    assert answered.startswith(b"HTTP/1.1 " + status)
    assert answered.count(b"HTTP/1.1 ") == 1


async def test_requests_behind_one_without_a_response_are_not_read(path):
    sent, refusals = 0, 0
    async with on_unix(FakeBackend(), path, limits=ServerLimits(end=1)):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.setblocking(False)
            client.send(b"GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n")
            while sent < 8 << 20 and refusals < 100:
                try:
                    sent += client.send(HEALTHZ * 1000)
                except BlockingIOError:
                    refusals += 1
                await asyncio.sleep(0)

    assert sent < 2 << 20


async def test_a_stream_over_http_1_0_has_no_chunks(path):
    async with asyncio.timeout(SECONDS), on_unix(FakeBackend(), path, limits=ServerLimits(end=1)) as stopping:
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(b"GET /v1/events HTTP/1.0\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        stopping.set()
        body = await reader.read()
        writer.close()

    assert b"transfer-encoding" not in head
    assert body == b": events from now on\nretry: 5000\n\n"
