"""The HTTP client against a scripted server on a real socket, and its parser against every cut of a response."""

import asyncio
import gzip
import random
import ssl
import zlib
from contextlib import asynccontextmanager, suppress
from itertools import pairwise

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from alignup.kubernetes.api import http_client
from alignup.kubernetes.api.http_client import HttpClient
from alignup.kubernetes.api.http_connection import ClientConnection, HttpError
from tests.effort import SEED, did, rounds

pytestmark = pytest.mark.anyio

LONG = 30.0  # seconds, a limit that is not reached
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
GZIP = HEAD + b"Content-Encoding: gzip\r\n"
TUNNEL = b"HTTP/1.1 200 Connection established\r\n\r\n"


class Last(bytes):
    """A reply after which the server closes the connection."""

    __slots__ = ()


class ScriptedServer:
    """A server that gives the next reply to each request; a reply is bytes, or a function of reader and writer."""

    def __init__(self, *replies, tls=None, host="127.0.0.1"):
        self.next_reply = iter(replies).__next__
        self.tls, self.host = tls, host
        self.requests: list[bytes] = []
        self.connections: list[asyncio.Task] = []
        self.requested = asyncio.Semaphore(0)  # counts the requests

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.serve, self.host, 0, ssl=self.tls)
        self.port = self.server.sockets[0].getsockname()[1]
        host = f"[{self.host}]" if ":" in self.host else self.host
        self.url = f"{'https' if self.tls else 'http'}://{host}:{self.port}"
        return self

    async def __aexit__(self, *_):
        """Wait for the end of all connections: the clients must have closed them."""
        self.server.close()
        async with asyncio.timeout(LONG):
            await asyncio.gather(*self.connections)

    async def serve(self, reader, writer):
        self.connections.append(this_task())
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next((line[15:] for line in head.split(b"\r\n") if line.startswith(b"Content-Length:")), b"0")
                self.requests.append(head + await reader.readexactly(int(length)))
                self.requested.release()
                reply = self.next_reply()
                if callable(reply):
                    await reply(reader, writer)
                else:
                    writer.write(reply)
                    await writer.drain()
                if isinstance(reply, Last):
                    return
        except (EOFError, OSError):  # the client has closed the connection
            return
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


def this_task():
    task = asyncio.current_task()
    assert task is not None
    return task


async def hang(reader, _writer):
    """Do not respond until the client leaves."""
    while await reader.read(1 << 16):
        pass


@asynccontextmanager
async def connected(url, *, connect_seconds=LONG, **settings):
    """A client, which must close in time."""
    client = HttpClient(url, connect_seconds=connect_seconds, **settings)
    try:
        yield client
    finally:
        async with asyncio.timeout(LONG):
            await client.close()


async def fetch(client, *, method="GET", target="/", headers=(), body=None, seconds=LONG):
    """Return the status and the body."""
    response = await client.send(method, target, headers, body, seconds=seconds)
    try:
        return response.status, await response.read()
    finally:
        response.close()


async def fetch_chunks(client, *, seconds=LONG):
    """Return the status and the body, read in parts."""
    response = await client.send("GET", "/", (), seconds=seconds)
    try:
        return response.status, b"".join([chunk async for chunk in response.chunks()])
    finally:
        response.close()


both_ways = pytest.mark.parametrize("receive", [fetch, fetch_chunks], ids=["whole", "in parts"])


# Connections that are kept


async def test_requests_share_a_connection_and_send_their_bodies():
    async with ScriptedServer(OK, OK) as server, connected(server.url) as client:
        assert await fetch(client, target="/a?b=c", headers=[("Accept", "*/*")]) == (200, b"ok")
        assert await fetch(client, method="POST", target="/d", body=b"\r\n\r\n") == (200, b"ok")

    host = f"Host: 127.0.0.1:{server.port}\r\n".encode()
    assert server.requests == [
        b"GET /a?b=c HTTP/1.1\r\n" + host + b"Accept: */*\r\n\r\n",
        b"POST /d HTTP/1.1\r\n" + host + b"Content-Length: 4\r\n\r\n\r\n\r\n",
    ]
    assert len(server.connections) == 1


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), id="the server will close it"),
        pytest.param(OK.replace(b"1.1", b"1.0"), id="HTTP/1.0"),
        pytest.param(OK + OK.replace(b"ok", b"no"), id="two responses"),
        pytest.param(OK + b"garbage", id="bytes after the response"),
        pytest.param(OK + b"H", id="a byte after the response"),
    ],
)
@both_ways
async def test_some_connections_are_not_used_again(reply, receive):
    async with ScriptedServer(reply, reply) as server, connected(server.url) as client:
        assert await receive(client) == (200, b"ok")
        assert await receive(client) == (200, b"ok")

        assert len(server.connections) == 2


async def test_a_connection_with_more_to_come_is_not_used_again():
    async with ScriptedServer(OK[:-1], OK) as server, connected(server.url) as client:
        (await client.send("GET", "/", (), seconds=LONG)).close()

        assert await fetch(client) == (200, b"ok")
        assert len(server.connections) == 2


async def test_a_response_that_was_paused_leaves_a_connection_that_works():
    size = 2 << 20
    reply = HEAD + b"Content-Length: %d\r\n\r\n" % size + bytes(size)
    connection, transport, owner = make_connection(asyncio.get_running_loop())
    response = connection.send(b"", LONG)
    connection.data_received(reply)
    assert transport.paused

    response.close()

    assert owner.reusable
    assert not transport.paused


@pytest.mark.parametrize("last", [Last(OK), Last(OK + b"HTTP/1.1 408 Request Timeout\r\n\r\n")], ids=["", "unasked"])
async def test_a_connection_that_the_server_closed_is_not_used_again(last):
    async with ScriptedServer(last, OK) as server, connected(server.url) as client:
        assert await fetch(client) == (200, b"ok")
        await server.connections[0]

        assert await fetch(client, method="POST", body=b"{}") == (200, b"ok")


async def test_an_old_connection_is_not_used_again(monkeypatch):
    async with ScriptedServer(OK, OK) as server, connected(server.url) as client:
        await fetch(client)
        monkeypatch.setattr("alignup.kubernetes.api.http_connection.IDLE_SECONDS", 0.0)
        await fetch(client)

        assert len(server.connections) == 2


@pytest.mark.parametrize(
    "setting",
    [("http_client.MAX_IDLE", 1), ("http_connection.IDLE_SECONDS", 0.0)],
    ids=["more than a number", "older than a limit"],
)
async def test_idle_connections_are_closed(monkeypatch, setting):
    async with ScriptedServer(OK, OK) as server, connected(server.url) as client:
        responses = [await client.send("GET", "/", (), seconds=LONG) for _ in range(2)]
        responses[1].close()
        monkeypatch.setattr(f"alignup.kubernetes.api.{setting[0]}", setting[1])
        responses[0].close()

        async with asyncio.timeout(LONG):
            await server.connections[1]


# Responses


def chunked(*chunks):
    return b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)


@pytest.mark.parametrize(
    ("reply", "status", "body"),
    [
        pytest.param(OK, 200, b"ok", id="length"),
        pytest.param(HEAD + b"Content-Length: 0\r\n\r\n", 200, b"", id="empty"),
        pytest.param(CHUNKED + chunked(b"o", b"k", b""), 200, b"ok", id="chunks"),
        pytest.param(CHUNKED + b"2;name=value\r\nok\r\n0\r\nContent-Encoding: gzip\r\n\r\n", 200, b"ok", id="trailers"),
        pytest.param(Last(HEAD + b"\r\nok"), 200, b"ok", id="until the end of the connection"),
        pytest.param(Last(b"HTTP/1.0 200 OK\r\n\r\nok"), 200, b"ok", id="HTTP/1.0"),
        pytest.param(b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", id="204"),
        pytest.param(b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", 304, b"", id="304"),
        pytest.param(
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 x\r\nContent-Length: 9\r\n\r\n" + OK, 200, b"ok", id="1xx"
        ),
        pytest.param(Last(GZIP + b"\r\n" + gzip.compress(b"ok")), 200, b"ok", id="gzip"),
        pytest.param(
            Last(GZIP + b"\r\n" + gzip.compress(b"o") + gzip.compress(b"") + gzip.compress(b"k")),
            *(200, b"ok"),
            id="gzip in several members",
        ),
        pytest.param(GZIP + b"Content-Length: 0\r\n\r\n", 200, b"", id="nothing in gzip"),
        pytest.param(HEAD + b"Content-Encoding: identity\r\nContent-Length: 2\r\n\r\nok", 200, b"ok", id="identity"),
    ],
)
@both_ways
async def test_responses(reply, status, body, receive):
    async with ScriptedServer(reply) as server, connected(server.url) as client:
        assert await receive(client) == (status, body)


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        pytest.param(b"garbage\r\n\r\n", "no valid HTTP response: ", id="garbage"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "no valid HTTP", id="negative length"),
        pytest.param(HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", "no valid HTTP", id="two lengths"),
        pytest.param(CHUNKED[:-2] + b"Content-Length: 1\r\n\r\n", "no valid HTTP", id="length and chunks"),
        pytest.param(CHUNKED + b"2\r\nok\r\nx\r\n", "no valid HTTP", id="size of a chunk"),
        pytest.param(CHUNKED + b"1\r\nok\r\n", "no valid HTTP", id="chunk without an end"),
        pytest.param(CHUNKED + b"f" * 17 + b"\r\n", "no valid HTTP", id="huge chunk"),
        pytest.param(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
            "no valid HTTP response: it switches to another protocol",
            id="upgrade",
        ),
        pytest.param(HEAD + b"X: " + b"x" * (300 << 10), "the head of the response is too large", id="large head"),
        pytest.param(b"HTTP/1.1 100 x\r\n\r\n" * (20 << 10), "the head of the response is too large", id="endless 1xx"),
        pytest.param(Last(b""), "closed before the response was complete", id="nothing"),
        pytest.param(Last(OK[:20]), "closed before the response was complete", id="part of a head"),
        pytest.param(Last(OK[:-1]), "closed before the response was complete", id="part of a body"),
        pytest.param(
            Last(CHUNKED + b"2\r\nok\r\n"), "closed before the response was complete", id="part of the chunks"
        ),
        pytest.param(GZIP + b"Content-Length: 2\r\n\r\nok", "cannot be decompressed", id="no gzip"),
        pytest.param(Last(GZIP + b"\r\n" + gzip.compress(b"ok")[:-1]), "cannot be decompressed", id="part of gzip"),
        pytest.param(Last(GZIP + b"\r\n" + gzip.compress(b"ok") + b"x"), "cannot be decompressed", id="after gzip"),
    ],
)
@both_ways
async def test_responses_that_are_not_valid(reply, message, receive):
    async with ScriptedServer(reply, OK) as server, connected(server.url) as client:
        with pytest.raises(HttpError, match=message) as caught:
            await receive(client)

        assert caught.value.sent
        assert await receive(client) == (200, b"ok")


async def test_parts_are_returned_when_they_arrive():
    pack = zlib.compressobj(wbits=31)
    parts = [pack.compress(b"a" * 9) + pack.flush(zlib.Z_SYNC_FLUSH), pack.compress(b"b") + pack.flush()]
    more = asyncio.Event()

    async def reply(_reader, writer):
        writer.write(GZIP + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(parts[0]))
        await more.wait()
        writer.write(chunked(parts[1], b""))

    async with ScriptedServer(reply) as server, connected(server.url) as client:
        response = await client.send("GET", "/", (), seconds=LONG)
        chunks = response.chunks()
        assert await anext(chunks) == b"a" * 9
        more.set()
        assert [chunk async for chunk in chunks] == [b"b"]
        response.close()


# Pieces of responses


class Transport(asyncio.Transport):
    """A transport that counts what is asked of it."""

    def __init__(self):
        super().__init__()
        self.paused = self.closing = False

    def get_extra_info(self, name, default=None):
        return self

    def setsockopt(self, *_):
        pass

    def write(self, data):
        pass

    def pause_reading(self):
        self.paused = True

    def resume_reading(self):
        self.paused = False

    def is_closing(self):
        return self.closing

    def abort(self):
        self.closing = True


class Owner(HttpClient):
    """A client that is told what becomes of a connection, and keeps none."""

    reusable = None

    def __init__(self):
        super().__init__("http://server", connect_seconds=1)

    def opened(self, connection):
        pass

    def closed(self, connection):
        pass

    def give_back(self, connection, *, reusable):
        self.reusable = reusable


def make_connection(loop):
    transport, owner = Transport(), Owner()
    connection = ClientConnection(owner, loop)
    connection.connection_made(transport)
    return connection, transport, owner


@st.composite
def responses(draw):
    """A response, its body, and whether its end is known only from the connection."""
    body = draw(st.binary(max_size=40))
    sent, lines = body, [b"HTTP/1.1 200 OK", b"X: y"]
    if draw(st.booleans()):
        sent = gzip.compress(body)
        lines.append(b"content-encoding: GZIP")
    framing = draw(st.sampled_from(["length", "chunks", "connection"]))
    if framing == "length":
        lines.append(b"CONTENT-LENGTH: %d" % len(sent))
    elif framing == "chunks":
        size = draw(st.integers(1, 9))
        lines.append(b"Transfer-Encoding: chunked")
        sent = chunked(*(sent[start : start + size] for start in range(0, len(sent), size)))
        sent += b"0\r\n" + draw(st.sampled_from([b"", b"Content-Encoding: x\r\n"])) + b"\r\n"
    first = draw(st.sampled_from([b"", b"HTTP/1.1 100 Continue\r\n\r\n"]))
    return first + b"\r\n".join([*lines, b"", sent]), body, framing == "connection"


async def receive_pieces(pieces, *, in_parts, lost):
    connection, _, owner = make_connection(asyncio.get_running_loop())
    response = connection.send(b"", LONG)
    for piece in pieces:
        connection.data_received(piece)
    if lost:
        connection.connection_lost(None)
    try:
        await response.wait_for_head()
        body = b"".join([chunk async for chunk in response.chunks()]) if in_parts else await response.read()
        return response.status, body
    finally:
        response.close()
        assert owner.reusable is not None


@given(responses(), st.lists(st.integers(0, 300)), st.booleans())
def test_a_response_in_any_pieces_is_the_same(response, cuts, in_parts):
    data, body, lost = response
    cuts = [0, *sorted({min(cut, len(data)) for cut in cuts}), len(data)]
    pieces = [data[start:end] for start, end in pairwise(cuts)]

    assert asyncio.run(receive_pieces(pieces, in_parts=in_parts, lost=lost)) == (200, body)


@given(responses(), st.integers(0, 300), st.booleans())
def test_a_response_that_is_cut_is_an_error(response, cut, in_parts):
    data, body, unknown = response
    cut = min(cut, len(data) - 1)

    async def receive():
        try:
            return await receive_pieces([data[:cut]], in_parts=in_parts, lost=True)
        except HttpError:
            return None

    result = asyncio.run(receive())
    if unknown and result is not None:
        assert body.startswith(result[1])  # nothing says how long it is
    else:
        assert result is None


async def test_a_slow_reader_stops_the_server():
    connection, transport, _ = make_connection(asyncio.get_running_loop())
    response = connection.send(b"", LONG)
    connection.data_received(CHUNKED)
    count = 0
    while not transport.paused:
        connection.data_received(chunked(bytes(1 << 16)))
        count += 1
    assert count == 17

    chunks = response.chunks()
    assert len(await anext(chunks)) == count << 16
    assert not transport.paused

    connection.data_received(chunked(bytes(2 << 20)))
    assert transport.paused
    connection.connection_lost(ConnectionResetError(104, "reset"))
    assert len(await anext(chunks)) == 2 << 20
    with pytest.raises(HttpError, match="Connection reset by peer"):
        await anext(chunks)
    response.close()


async def test_reading_a_whole_body_resumes_the_server():
    connection, transport, _ = make_connection(asyncio.get_running_loop())
    response = connection.send(b"", LONG)
    connection.data_received(CHUNKED + chunked(bytes(2 << 20)))
    assert transport.paused

    task = asyncio.create_task(response.read())
    await asyncio.sleep(0)
    assert not transport.paused
    connection.data_received(chunked(bytes(2 << 20), b""))
    assert not transport.paused
    assert len(await task) == 4 << 20


async def test_the_time_limit_is_for_each_part():
    connection, _, owner = make_connection(asyncio.get_running_loop())
    response = connection.send(b"", 0.01)
    task = asyncio.create_task(response.wait_for_head())
    await asyncio.sleep(0)
    connection.data_received(OK[:-1])
    await task
    await asyncio.sleep(0.02)  # longer than the limit for the head
    connection.data_received(OK[-1:])

    assert [chunk async for chunk in response.chunks()] == [b"ok"]
    response.close()
    assert owner.reusable


@pytest.mark.parametrize("lost", [True, False])
async def test_a_request_on_a_connection_that_was_closed_is_not_sent(lost):
    connection, _, owner = make_connection(asyncio.get_running_loop())
    if lost:
        connection.connection_lost(None)
    else:
        connection.data_received(OK)  # nothing was asked for
    response = connection.send(b"", LONG)

    with pytest.raises(HttpError, match="the connection was closed") as caught:
        await response.wait_for_head()

    assert not caught.value.sent
    response.close()
    assert not owner.reusable


# Time limits and cancellation


@pytest.mark.parametrize("begin", [b"", b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 2", OK[:-1]], ids=["", "head", "body"])
@both_ways
async def test_a_server_that_stops_responding_is_an_error(begin, receive):
    async def reply(reader, writer):
        writer.write(begin)
        await hang(reader, writer)

    async with ScriptedServer(reply, OK) as server, connected(server.url) as client:
        with pytest.raises(HttpError, match=r"no response within 0\.05 seconds") as caught:
            await receive(client, seconds=0.05)

        assert caught.value.sent
        assert await receive(client) == (200, b"ok")


async def test_a_request_waits_for_a_connection_for_a_limited_time(monkeypatch):
    monkeypatch.setattr(http_client, "MAX_CONNECTIONS", 1)
    async with ScriptedServer(OK, OK) as server, connected(server.url, connect_seconds=0.3) as client:
        response = await client.send("GET", "/", (), seconds=LONG)
        with pytest.raises(HttpError, match=r"none of 1 connections was free within 0\.3 seconds") as caught:
            await fetch(client)
        assert not caught.value.sent

        response.close()
        assert await fetch(client) == (200, b"ok")


@asynccontextmanager
async def silent():
    """A server that accepts connections, and says nothing."""
    accepted = asyncio.Semaphore(0)
    connections = []

    async def serve(reader, writer):
        connections.append(this_task())
        accepted.release()
        with suppress(OSError):
            await hang(reader, writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1], accepted
    server.close()
    async with asyncio.timeout(LONG):
        await asyncio.gather(*connections)


async def test_a_handshake_has_a_time_limit():
    async with silent() as (port, _), connected(f"https://127.0.0.1:{port}", connect_seconds=0.05) as client:
        with pytest.raises(HttpError, match=r"no connection within 0\.05 seconds") as caught:
            await fetch(client)
        assert not caught.value.sent


async def cancelled(task):
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("begin", [b"", OK[:-1]], ids=["head", "body"])
async def test_a_cancelled_request_leaves_its_slot(monkeypatch, begin):
    monkeypatch.setattr(http_client, "MAX_CONNECTIONS", 1)

    async def reply(reader, writer):
        writer.write(begin)
        await hang(reader, writer)

    async with ScriptedServer(reply, OK) as server, connected(server.url) as client:
        task = asyncio.create_task(fetch(client))
        waiting = asyncio.create_task(fetch(client))
        await server.requested.acquire()
        third = asyncio.create_task(fetch(client))
        await asyncio.sleep(0)
        await cancelled(third)
        await cancelled(task)

        assert await waiting == (200, b"ok")


async def test_a_request_cancelled_in_the_handshake_leaves_its_slot(monkeypatch):
    monkeypatch.setattr(http_client, "MAX_CONNECTIONS", 1)
    async with silent() as (port, accepted), connected(f"https://127.0.0.1:{port}") as client:
        for _ in range(2):
            task = asyncio.create_task(fetch(client))
            await accepted.acquire()
            await cancelled(task)


# The end of a client


@both_ways
@pytest.mark.parametrize(
    "reply", [OK[:20], OK[:-1], HEAD + b"\r\no", CHUNKED], ids=["head", "body", "unknown", "chunks"]
)
async def test_close_ends_requests(reply, receive):
    async def stay(reader, writer):
        writer.write(reply)
        await hang(reader, writer)

    async with ScriptedServer(stay) as server, connected(server.url) as client:
        task = asyncio.create_task(receive(client))
        await server.requested.acquire()
        await client.close()

        with pytest.raises(HttpError, match="the connection was closed"):
            await task


async def test_close_does_not_take_part_of_a_body_for_all_of_it():
    async def stay(reader, writer):
        writer.write(HEAD + b"\r\no")
        await hang(reader, writer)

    async with ScriptedServer(stay) as server, connected(server.url) as client:
        response = await client.send("GET", "/", (), seconds=LONG)
        await client.close()

        with pytest.raises(HttpError, match="the connection was closed"):
            await response.read()
        response.close()


async def test_a_closed_client_sends_nothing(monkeypatch):
    monkeypatch.setattr(http_client, "MAX_CONNECTIONS", 1)
    async with ScriptedServer(hang) as server, connected(server.url) as client:
        task, waiting = asyncio.create_task(fetch(client)), asyncio.create_task(fetch(client))
        await server.requested.acquire()
        await client.close()

        with pytest.raises(HttpError, match="the connection was closed"):
            await task
        for refused in (waiting, fetch(client)):
            with pytest.raises(HttpError, match="the client is closed") as caught:
                await refused
            assert not caught.value.sent
        assert len(server.connections) == 1


@pytest.mark.parametrize("with_tls", [False, True], ids=["http", "https"])
async def test_a_connection_that_opens_after_close_is_closed(server_tls, client_tls, with_tls):
    async with (
        ScriptedServer(tls=server_tls if with_tls else None) as server,
        connected(server.url, tls=client_tls) as client,
    ):
        task = asyncio.create_task(fetch(client))
        await asyncio.sleep(0)  # it has begun to connect
        await client.close()

        with pytest.raises(HttpError, match=r"the connection was closed|the client is closed") as caught:
            await task
        assert not caught.value.sent


async def test_a_cancelled_close_does_not_cancel_another():
    async with ScriptedServer(hang) as server, connected(server.url) as client:
        task = asyncio.create_task(fetch(client))
        await server.requested.acquire()
        first, second = asyncio.create_task(client.close()), asyncio.create_task(client.close())
        await asyncio.sleep(0)
        first.cancel()
        await second

        with pytest.raises(HttpError):
            await task


# Requests


@pytest.mark.parametrize(
    ("path", "target"), [("", b"/api"), ("/", b"/api"), ("/k8s/clusters/c-1/", b"/k8s/clusters/c-1/api")]
)
async def test_the_path_of_the_url_comes_first(path, target):
    async with ScriptedServer(OK) as server, connected(server.url.replace("//", "//user:a b@") + path) as client:
        await fetch(client, target="/api")

    assert server.requests[0].split()[1] == target
    assert b"user" not in server.requests[0]


async def test_ipv6():
    try:
        server = await ScriptedServer(OK, host="::1").__aenter__()
    except OSError:
        pytest.skip("no IPv6")
    async with connected(server.url) as client:
        await fetch(client)
    await server.__aexit__()

    assert f"Host: [::1]:{server.port}\r\n".encode() in server.requests[0]


@pytest.mark.parametrize(
    ("request_parts", "message"),
    [
        ({"target": "/a b"}, "must be escaped"),
        ({"target": "/\r\nHost: x"}, "must be escaped"),
        ({"target": "/ä"}, "must be escaped"),
        ({"headers": [("X", "a\r\nHost: x")]}, "the header X has a line break"),
        ({"headers": [("X", "a\nHost: x")]}, "line break"),
        ({"headers": [("X", "a\rb")]}, "line break"),
        ({"headers": [("X", "a\0b")]}, "line break"),
        ({"headers": [("X: a\r\nHost", "b")]}, "line break"),
    ],
)
async def test_requests_that_are_not_valid_are_not_sent(request_parts, message):
    async with ScriptedServer(OK) as server, connected(server.url) as client:
        with pytest.raises(ValueError, match=message):
            await fetch(client, **request_parts)

        assert await fetch(client, headers=[("X", "ä")]) == (200, b"ok")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("127.0.0.1:1", "http and https are supported"),
        ("ftp://127.0.0.1", "the scheme is ftp"),
        ("http://", "no host"),
        ("http://:80", "no host"),
        ("http://host:x", "[Pp]ort"),
        ("http://host:99999", "[Pp]ort"),
        ("http://[::1", "IPv6"),
        ("http://host/a b", "must be escaped"),
        ("http://ho st/", "must be escaped"),
    ],
)
async def test_urls_that_cannot_be_used(url, message):
    with pytest.raises(ValueError, match=message):
        HttpClient(url, connect_seconds=LONG)
    with pytest.raises(ValueError, match=message):
        HttpClient("http://127.0.0.1", proxy=url, connect_seconds=LONG)


# TLS


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@pytest.fixture(scope="module")
def server_tls(authority):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context


@pytest.fixture
def client_tls(authority):
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


@both_ways
async def test_tls(server_tls, client_tls, receive):
    size = 3 << 20
    large = HEAD + b"Content-Length: %d\r\n\r\n" % size + bytes(size)
    async with ScriptedServer(OK, large, OK, tls=server_tls) as server, connected(server.url, tls=client_tls) as client:
        assert await receive(client) == (200, b"ok")
        assert await receive(client) == (200, bytes(size))
        assert await receive(client) == (200, b"ok")

        assert len(server.connections) == 1


async def test_a_tls_connection_that_the_server_closed_is_not_used_again(server_tls, client_tls):
    async with ScriptedServer(Last(OK), OK, tls=server_tls) as server, connected(server.url, tls=client_tls) as client:
        assert await fetch(client) == (200, b"ok")
        await server.connections[0]

        assert await fetch(client, method="POST", body=b"{}") == (200, b"ok")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_client_certificate_that_is_rejected_is_an_error(authority, client_tls, version):
    server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(server_tls)
    authority.configure_trust(server_tls)
    server_tls.verify_mode, server_tls.maximum_version = ssl.CERT_REQUIRED, version
    trustme.CA().issue_cert("client.example").configure_cert(client_tls)

    async with ScriptedServer(tls=server_tls) as server, connected(server.url, tls=client_tls) as client:
        with pytest.raises(HttpError, match=r"(?i)alert|reset|closed|broke"):
            await fetch(client)


async def test_a_server_without_tls_is_an_error(client_tls):
    async def serve(_reader, writer):
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, connected(f"https://127.0.0.1:{port}", tls=client_tls) as client:
        with pytest.raises(HttpError, match=r"(?i)ssl") as caught:
            await fetch(client)

    assert not caught.value.sent


# Proxies


@pytest.fixture(params=["http proxy", "https proxy"])
def proxy_tls(request, authority, server_tls, monkeypatch, tmp_path):
    """What a proxy needs for TLS; the system trusts its certificate."""
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.crt"))
    return server_tls if request.param == "https proxy" else None


def tunnel_to(port, *, reply=TUNNEL):
    """Connect to a port, as a proxy does."""

    async def copy(reader, writer):
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
        writer.close()

    async def connect(reader, writer):
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(reply)
        await asyncio.gather(copy(reader, server_writer), copy(server_reader, writer))

    return connect


async def test_a_proxy_gets_requests_for_http_in_absolute_form():
    async with ScriptedServer(OK) as proxy:
        url = proxy.url.replace("//", "//user:pa%3Ass@")
        async with connected("http://api.example:8080/base", proxy=url) as client:
            assert await fetch(client, target="/api") == (200, b"ok")

    assert proxy.requests[0].split(b"\r\n") == [
        b"GET http://api.example:8080/base/api HTTP/1.1",
        b"Host: api.example:8080",
        b"Proxy-Authorization: Basic dXNlcjpwYTpzcw==",
        b"",
        b"",
    ]


@pytest.mark.parametrize("reply", [TUNNEL, TUNNEL[:-2] + b"Content-Length: 0\r\n\r\n", TUNNEL + b"early"])
async def test_a_proxy_opens_a_tunnel_for_https(server_tls, client_tls, proxy_tls, reply):
    async with (
        ScriptedServer(OK, OK, tls=server_tls) as server,
        ScriptedServer(tunnel_to(server.port, reply=reply), tls=proxy_tls) as proxy,
        connected(server.url, tls=client_tls, proxy=proxy.url.replace("//", "//user@")) as client,
    ):
        assert await fetch(client) == (200, b"ok")
        assert await fetch(client) == (200, b"ok")

    name = f"127.0.0.1:{server.port}".encode()
    assert proxy.requests == [
        b"CONNECT %b HTTP/1.1\r\nHost: %b\r\nProxy-Authorization: Basic dXNlcjo=\r\n\r\n" % (name, name)
    ]
    assert b"Proxy-Authorization" not in server.requests[0]


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://api.example", b"api.example:443"),
        ("https://user:secret@api.example:6443/base", b"api.example:6443"),
        ("https://[::1]", b"[::1]:443"),
    ],
)
async def test_a_proxy_gets_host_and_port_of_a_tunnel(url, name):
    async with ScriptedServer(Last(b"")) as proxy, connected(url, proxy=proxy.url) as client:
        with pytest.raises(HttpError):
            await fetch(client)

    assert proxy.requests == [b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n\r\n" % (name, name)]


async def stay_silent(reader, writer):
    writer.write(TUNNEL)
    await hang(reader, writer)


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n", "responded with HTTP status 407"),
        (Last(b""), "closed before the response was complete"),
        (b"garbage\r\n\r\n", "no valid HTTP response"),
        (hang, r"no connection within 0\.1 seconds"),
        (stay_silent, r"no connection within 0\.1 seconds"),
        (Last(TUNNEL), "reset|broke|closed|SSL"),
        (Last(TUNNEL + b"garbage"), "reset|broke|closed|SSL"),
    ],
    ids=[
        "407",
        "close",
        "garbage",
        "hang",
        "hang in the handshake",
        "close in the handshake",
        "garbage in the handshake",
    ],
)
async def test_a_proxy_that_opens_no_tunnel_is_an_error(client_tls, proxy_tls, monkeypatch, reply, message):
    monkeypatch.setattr(http_client, "MAX_CONNECTIONS", 1)
    limit = 0.1 if callable(reply) else LONG
    async with (
        ScriptedServer(reply, reply, tls=proxy_tls) as proxy,
        connected("https://127.0.0.1:1", tls=client_tls, proxy=proxy.url, connect_seconds=limit) as client,
    ):
        for _ in range(2):
            with pytest.raises(HttpError, match=message) as caught:
                await fetch(client)
            assert not caught.value.sent
        async with asyncio.timeout(LONG):
            await asyncio.gather(*proxy.connections)


async def test_a_tunnel_to_an_untrusted_server_is_an_error(server_tls, proxy_tls):
    loop = asyncio.get_running_loop()
    handler = loop.get_exception_handler()
    loop.set_exception_handler(lambda *_: None)  # early releases of Python 3.11 and 3.12 fail to abort TLS within TLS
    async with (
        ScriptedServer(tls=server_tls) as server,
        ScriptedServer(tunnel_to(server.port), tls=proxy_tls) as proxy,
        connected(server.url, proxy=proxy.url, tls=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)) as client,
    ):
        with pytest.raises(HttpError, match="certificate verify failed") as caught:
            await fetch(client)
    loop.set_exception_handler(handler)

    assert not caught.value.sent


@pytest.mark.parametrize("end", ["cancel", "close"])
async def test_a_handshake_in_a_tunnel_can_be_ended(client_tls, proxy_tls, end):
    handshake = asyncio.Event()

    async def reply(reader, writer):
        writer.write(TUNNEL)
        await reader.read(1)
        handshake.set()
        await hang(reader, writer)

    async with (
        ScriptedServer(reply, tls=proxy_tls) as proxy,
        connected("https://127.0.0.1:1", tls=client_tls, proxy=proxy.url) as client,
    ):
        task = asyncio.create_task(fetch(client))
        await handshake.wait()
        if end == "cancel":
            await cancelled(task)
        else:
            async with asyncio.timeout(LONG):
                await client.close()
            with pytest.raises(HttpError) as caught:
                await task
            assert not caught.value.sent


# Random faults

FAULTS = [
    *(b"", OK[:20], OK[:-1], CHUNKED, CHUNKED + chunked(b"ok"), b"HTTP/1.1 100 Continue\r\n\r\n", HEAD + b"\r\nok"),
    *(b"garbage\r\n\r\n", CHUNKED + b"x\r\n", GZIP + b"Content-Length: 2\r\n\r\nok", CHUNKED + chunked(bytes(2 << 20))),
]


class FaultyServer(ScriptedServer):
    """A server that sends the target of a request back, or something wrong."""

    def __init__(self, dice, *, tls):
        super().__init__(tls=tls)
        self.dice = dice
        self.next_reply = lambda: dice.choice([self.respond, self.respond, self.fail])

    async def respond(self, _reader, writer):
        target = self.requests[-1].split()[1]
        surplus = self.dice.choice([b"", b"", b"", b"HTTP/1.1 408 x\r\n\r\n"])
        writer.write(HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(target), target) + surplus)

    async def fail(self, reader, writer):
        writer.write(self.dice.choice(FAULTS))
        if self.dice.random() < 0.5:
            await hang(reader, writer)
        raise EOFError


async def request_amid_faults(client, number, dice):
    """Send a request; its response is the right one if there is one."""
    response = await client.send("GET", f"/{number}", (), seconds=0.02)
    try:
        action = dice.choice(["read", "read", "chunks", "chunks", "leave"])
        if action != "leave":
            body = await response.read() if action == "read" else b"".join([part async for part in response.chunks()])
            assert body in {b"/%d" % number, b"ok"}
            did("HTTP requests amid faults: responses")
    finally:
        response.close()


async def cancel_at_random(task, dice):
    """Let a task end, or cancel it after a while."""
    if dice.random() < 0.5:
        for _ in range(dice.randrange(30)):
            await asyncio.sleep(0)
        task.cancel()
    with suppress(asyncio.CancelledError, HttpError):
        await task


@pytest.mark.soak
@pytest.mark.parametrize("with_tls", [False, True], ids=["http", "https"])
async def test_random_faults_and_cancellations_lose_no_slot_and_no_connection(
    server_tls, client_tls, monkeypatch, with_tls
):
    dice = random.Random(SEED)
    slots, requests = 3, rounds(100, soak=5_000)
    monkeypatch.setattr(http_client, "MAX_CONNECTIONS", slots)
    monkeypatch.setattr(http_client, "MAX_IDLE", 2)
    async with FaultyServer(dice, tls=server_tls if with_tls else None) as server:
        async with connected(server.url, tls=client_tls) as client:
            for first in range(0, requests, 5):
                tasks = [asyncio.create_task(request_amid_faults(client, first + add, dice)) for add in range(5)]
                await asyncio.gather(*(cancel_at_random(task, dice) for task in tasks))

            server.next_reply = lambda: OK
            async with asyncio.timeout(LONG):
                held = [await client.send("GET", "/", (), seconds=LONG) for _ in range(slots)]
            assert [response.status for response in held] == [200] * slots

            server.next_reply = lambda: hang
            tasks = [asyncio.create_task(fetch(client)) for _ in range(slots)]
            for response in held[1:]:
                response.close()
            await asyncio.sleep(0)
        for task in tasks:
            with pytest.raises(HttpError):
                await task
        held[0].close()
    did("HTTP requests amid faults", requests)
