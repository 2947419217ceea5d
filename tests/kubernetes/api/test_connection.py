"""Requests against a scripted server on a real socket: broken and hostile servers, proxies, limits, and the end."""

import asyncio
import gzip
import random
import re
import ssl
import zlib
from contextlib import aclosing, asynccontextmanager, suppress

import pytest
import trustme

from alignup.kubernetes.api import Access, Timing, connection
from alignup.kubernetes.api.connection import Connection
from alignup.kubernetes.api.credentials import UserCredentials
from alignup.kubernetes.api.errors import AccessError, ApiStatusError, NotFoundError, UnreachableError, UnreadableError
from alignup.kubernetes.api.resource import ApiRequest
from tests.effort import SEED, did, rounds

pytestmark = pytest.mark.anyio

LONG = 30.0  # seconds, a limit that is not reached
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
GZIP = HEAD + b"Content-Encoding: gzip\r\n"
TUNNEL = b"HTTP/1.1 200 Connection established\r\n\r\n"
WATCH = ApiRequest(description="watch", path="/")
CLOSED = "closed before the response was complete"
DAMAGED = "the response is incomplete or damaged"


class Last(bytes):
    """A reply after which the server closes the connection."""

    __slots__ = ()


class ScriptedServer:
    """A server that gives the next reply to each request; a reply is bytes, or a function of reader and writer."""

    def __init__(self, *replies, tls=None, host="127.0.0.1", name=""):
        self.next_reply = iter(replies).__next__
        self.tls, self.host, self.name = tls, host, name
        self.requests: list[bytes] = []
        self.connections: list[asyncio.Task] = []
        self.requested = asyncio.Semaphore(0)  # counts the requests

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.serve, self.host, 0, ssl=self.tls)
        self.port = self.server.sockets[0].getsockname()[1]
        host = self.name or (f"[{self.host}]" if ":" in self.host else self.host)
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


def begin_and_hang(begin):
    async def reply(reader, writer):
        writer.write(begin)
        await hang(reader, writer)

    return reply


@asynccontextmanager
async def connected(url, *, authority=b"", proxy="", credentials=None, attempts=1, **limits):
    """A connection to a server that trusts *authority*; it must close in time."""
    credentials = credentials or UserCredentials()
    access = Access(server=url, authority=authority, proxy=proxy, credentials=credentials, source="the test")
    limits = {"connect": LONG, "response": LONG, "total": LONG} | limits
    made = Connection(access, Timing(attempts=attempts, retry=0.0, **limits))
    try:
        yield made
    finally:
        async with asyncio.timeout(LONG):
            await made.close()


async def fetch(client, *, method="GET", path="/", **parts):
    """Return the body."""
    return await client.send(ApiRequest(description="fetch", method=method, path=path, **parts))


async def fetch_lines(client, *, seconds=LONG):
    """Return the body, read in lines; a line without an end is not one."""
    async with client.lines(WATCH, seconds=seconds) as lines:
        return b"\n".join([line async for line in lines])


both_ways = pytest.mark.parametrize("receive", [fetch, fetch_lines], ids=["whole", "in lines"])


# Connections that are kept


async def test_requests_share_a_connection_and_send_their_bodies():
    async with ScriptedServer(OK, OK) as server, connected(server.url) as client:
        assert await fetch(client, path="/a", parameters={"b": "c d"}, accept="*/*") == b"ok"
        assert await fetch(client, method="POST", path="/d", body=b"\r\n\r\n") == b"ok"

    first, second = (request.split(b"\r\n") for request in server.requests)
    usual = {f"Host: 127.0.0.1:{server.port}".encode(), b"User-Agent: alignup", b"Accept-Encoding: identity", b""}
    assert first[0] == b"GET /a?b=c+d HTTP/1.1"
    assert set(first[1:]) == usual | {b"Accept: */*"}
    assert second[0] == b"POST /d HTTP/1.1"
    assert set(second[1:]) == usual | {
        *(b"Accept: application/json", b"Content-Type: application/json", b"Content-Length: 4"),
    }
    assert len(server.connections) == 1


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), id="the server will close it"),
        pytest.param(OK.replace(b"1.1", b"1.0"), id="HTTP/1.0"),
        pytest.param(OK + OK.replace(b"ok", b"no"), id="two responses"),
    ],
)
async def test_some_connections_are_not_used_again(reply):
    async with ScriptedServer(reply, reply) as server, connected(server.url) as client:
        assert await fetch(client) == b"ok"
        assert await fetch(client) == b"ok"

        assert len(server.connections) == 2


async def test_a_connection_with_more_to_come_is_not_used_again():
    async with ScriptedServer(OK[:-1], OK) as server, connected(server.url) as client:
        async with client.lines(WATCH, seconds=LONG):
            pass

        assert await fetch(client) == b"ok"
        assert len(server.connections) == 2


async def test_an_old_connection_is_not_used_again(monkeypatch):
    monkeypatch.setattr(connection, "_IDLE_SECONDS", 0.0)
    async with ScriptedServer(OK, OK) as server, connected(server.url) as client:
        await fetch(client)
        await fetch(client)

        assert len(server.connections) == 2


# Requests that are lost


@pytest.mark.parametrize(
    ("request_parts", "repeated"),
    [
        pytest.param({"method": "GET"}, True, id="GET"),
        pytest.param({"method": "DELETE", "body": b"{}", "idempotent": True}, True, id="DELETE of a uid"),
        pytest.param({"method": "DELETE", "body": b"{}"}, False, id="DELETE of a name"),
        pytest.param({"method": "PUT", "body": b"{}"}, False, id="PUT"),
        pytest.param({"method": "POST", "body": b"{}"}, False, id="POST"),
        pytest.param({"method": "PATCH", "body": b"{}"}, False, id="PATCH"),
        pytest.param({"method": "PATCH", "body": b"{}", "idempotent": True}, True, id="apply"),
    ],
)
@pytest.mark.parametrize("used", [False, True], ids=["new connection", "used connection"])
@pytest.mark.parametrize("begin", [b"", OK[:20], OK[:-1]], ids=["", "head", "body"])
async def test_only_a_request_that_may_be_carried_out_twice_is_sent_twice(request_parts, repeated, used, begin):
    replies = ([OK] if used else []) + [Last(begin), OK]
    async with ScriptedServer(*replies) as server, connected(server.url, attempts=3) as client:
        if used:
            await fetch(client, path="/first")
        if repeated:
            assert await fetch(client, **request_parts) == b"ok"
        else:
            with pytest.raises(UnreachableError) as caught:
                await fetch(client, **request_parts)
            assert caught.value.sent
        assert len(server.requests) == used + 1 + repeated


GONE = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"


async def test_an_object_that_only_a_repeated_delete_does_not_find_is_deleted():
    delete = {"method": "DELETE", "body": b"{}", "idempotent": True}
    replies = Last(b""), GONE, GONE, Last(b""), GONE
    async with ScriptedServer(*replies) as server, connected(server.url, attempts=3) as client:
        assert await fetch(client, **delete) == b""
        with pytest.raises(NotFoundError):
            await fetch(client, **delete)
        with pytest.raises(NotFoundError):
            await fetch(client)


# Responses


def chunked(*chunks):
    return b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)


@pytest.mark.parametrize(
    ("reply", "body"),
    [
        pytest.param(OK[:-2] + b"a\n", b"a", id="length"),
        pytest.param(HEAD + b"Content-Length: 0\r\n\r\n", b"", id="empty"),
        pytest.param(CHUNKED + chunked(b"a", b"\n", b""), b"a", id="chunks"),
        pytest.param(CHUNKED + b"2;name=value\r\na\n\r\n0\r\nContent-Encoding: gzip\r\n\r\n", b"a", id="trailers"),
        pytest.param(Last(HEAD + b"\r\na\n"), b"a", id="until the end of the connection"),
        pytest.param(Last(b"HTTP/1.0 200 OK\r\n\r\na\n"), b"a", id="HTTP/1.0"),
        pytest.param(b"HTTP/1.1 204 No Content\r\n\r\n", b"", id="204"),
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 x\r\n\r\n" + OK[:-2] + b"a\n", b"a", id="1xx"),
        pytest.param(Last(GZIP + b"\r\n" + gzip.compress(b"a\n")), b"a", id="gzip"),
        pytest.param(
            Last(GZIP + b"\r\n" + gzip.compress(b"a") + gzip.compress(b"") + gzip.compress(b"\n")),
            b"a",
            id="gzip in several members",
        ),
        pytest.param(GZIP + b"Content-Length: 0\r\n\r\n", b"", id="nothing in gzip"),
        pytest.param(HEAD + b"Content-Encoding: identity\r\nContent-Length: 2\r\n\r\na\n", b"a", id="identity"),
    ],
)
@both_ways
async def test_responses(reply, body, receive):
    async with ScriptedServer(reply) as server, connected(server.url) as client:
        assert (await receive(client)).strip() == body


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        pytest.param(b"garbage\r\n\r\n", "no valid HTTP response: ", id="garbage"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "no valid HTTP", id="negative length"),
        pytest.param(HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", "no valid HTTP", id="two lengths"),
        pytest.param(CHUNKED[:-2] + b"Content-Length: 1\r\n\r\n", "no valid HTTP", id="length and chunks"),
        pytest.param(CHUNKED + b"2\r\nok\r\nx\r\n", f"no valid HTTP|{DAMAGED}", id="size of a chunk"),
        pytest.param(CHUNKED + b"1\r\nok\r\n", f"no valid HTTP|{DAMAGED}", id="chunk without an end"),
        pytest.param(CHUNKED + b"f" * 17 + b"\r\n", f"no valid HTTP|{DAMAGED}", id="huge chunk"),
        pytest.param(HEAD + b"X: " + b"x" * (300 << 10), "no valid HTTP", id="large header"),
        pytest.param(HEAD + b"X: y\r\n" * 300, "no valid HTTP response: Too many headers", id="many headers"),
        pytest.param(Last(b""), CLOSED, id="nothing"),
        pytest.param(Last(OK[:20]), CLOSED, id="part of a head"),
        pytest.param(Last(OK[:-1]), DAMAGED, id="part of a body"),
        pytest.param(Last(CHUNKED + b"2\r\nok\r\n"), DAMAGED, id="part of the chunks"),
        pytest.param(GZIP + b"Content-Length: 2\r\n\r\nok", f"no valid HTTP|{DAMAGED}", id="no gzip"),
        pytest.param(HEAD + b"Content-Encoding: br\r\n\r\nok", f"no valid HTTP|{DAMAGED}", id="not asked for"),
    ],
)
@both_ways
async def test_responses_that_are_not_valid(reply, message, receive):
    async with ScriptedServer(reply, OK) as server, connected(server.url) as client:
        with pytest.raises(UnreachableError, match=message) as caught:
            await receive(client)

        assert caught.value.sent
        assert await fetch(client) == b"ok"


async def test_a_protocol_that_was_not_asked_for_is_an_error():
    reply = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n"
    async with ScriptedServer(reply, OK) as server, connected(server.url, response=0.05) as client:
        with pytest.raises((ApiStatusError, UnreachableError)):
            await fetch(client)

        assert await fetch(client) == b"ok"


async def test_redirects_are_errors():
    reply = b"HTTP/1.1 302 Found\r\nLocation: /b\r\nContent-Length: 0\r\n\r\n"
    async with ScriptedServer(reply) as server, connected(server.url) as client:
        with pytest.raises(ApiStatusError, match="HTTP status 302"):
            await fetch(client)

    assert len(server.requests) == 1


async def test_cookies_are_not_sent_back():
    reply = OK.replace(b"\r\n\r\n", b"\r\nSet-Cookie: a=b\r\n\r\n")
    async with ScriptedServer(reply, OK) as server, connected(server.url) as client:
        await fetch(client)
        await fetch(client)

    assert b"Cookie" not in server.requests[1]


async def test_lines_are_returned_when_they_arrive():
    pack = zlib.compressobj(wbits=31)
    parts = [pack.compress(b"a\n") + pack.flush(zlib.Z_SYNC_FLUSH), pack.compress(b"b\nc") + pack.flush()]
    more = asyncio.Event()

    async def reply(_reader, writer):
        writer.write(GZIP + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(parts[0]))
        await more.wait()
        writer.write(chunked(parts[1], b""))

    async with (
        ScriptedServer(reply) as server,
        connected(server.url) as client,
        client.lines(WATCH, seconds=LONG) as lines,
    ):
        assert await anext(lines) == b"a"
        more.set()
        assert [line async for line in lines] == [b"b"]  # the rest is not a line


# Limits


async def endless(_reader, writer):
    """Send a response that does not end."""
    writer.write(CHUNKED)
    while True:
        writer.write(chunked(b"x"))
        await writer.drain()
        await asyncio.sleep(0)


async def endless_heads(_reader, writer):
    """Send informational responses without an end."""
    while True:
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(0)


@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "gzip"])
async def test_the_size_of_a_body_is_limited(compressed):
    bodies = [gzip.compress(bytes(size)) if compressed else bytes(size) for size in (1 << 20, (1 << 20) + 1)]
    head = GZIP if compressed else HEAD
    replies = [head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body) for body in bodies]
    async with ScriptedServer(*replies, OK) as server, connected(server.url) as client:
        assert len(await fetch(client, max_bytes=1 << 20)) == 1 << 20
        with pytest.raises(UnreadableError, match="the response is larger than 1 MiB"):
            await fetch(client, max_bytes=1 << 20)
        assert await fetch(client, max_bytes=1 << 20) == b"ok"


async def test_the_size_of_an_error_is_limited():
    reply = b"HTTP/1.1 500 x\r\nContent-Length: 2000000\r\n\r\n" + bytes(2_000_000)
    async with ScriptedServer(reply) as server, connected(server.url) as client:
        with pytest.raises(UnreadableError, match="the response is larger than 1 MiB"):
            await fetch(client, max_bytes=1 << 20)


@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "gzip"])
async def test_the_size_of_a_line_is_limited(monkeypatch, compressed):
    monkeypatch.setattr(connection, "MAX_LINE", 1 << 20)
    body = (b"x" * (1 << 19) + b"\n") * 8 + b"y" * (2 << 20)
    body = gzip.compress(body) if compressed else body
    head = GZIP if compressed else HEAD
    reply = head + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(body)
    async with (
        ScriptedServer(reply) as server,
        connected(server.url) as client,
        client.lines(WATCH, seconds=LONG) as lines,
    ):
        for _ in range(8):
            assert len(await anext(lines)) == 1 << 19
        with pytest.raises(UnreachableError, match="a line of the response is larger than 1 MiB"):
            await anext(lines)


@pytest.mark.parametrize("begin", [b"", OK[:20], OK[:-1]], ids=["", "head", "body"])
async def test_a_server_that_stops_responding_is_an_error(begin):
    async with (
        ScriptedServer(begin_and_hang(begin), OK) as server,
        connected(server.url, response=0.05) as client,
    ):
        with pytest.raises(UnreachableError, match=r"no response within 0\.05 seconds") as caught:
            await fetch(client)

        assert caught.value.sent
        assert await fetch(client) == b"ok"


@pytest.mark.parametrize(
    "reply",
    [endless, endless_heads, begin_and_hang(b"HTTP/1.1 100 Continue\r\n\r\n")],
    ids=["body", "heads", "nothing after a head"],
)
async def test_a_response_without_an_end_is_an_error(reply):
    async with ScriptedServer(reply, OK) as server, connected(server.url, total=0.1) as client:
        with pytest.raises(UnreachableError, match=r"no complete response within 0\.1 seconds") as caught:
            await fetch(client)

        assert caught.value.sent
        assert await fetch(client) == b"ok"


@pytest.mark.parametrize("reply", [endless, hang], ids=["events", "silence"])
async def test_a_watch_that_the_server_does_not_end_is_an_error(reply):
    async with ScriptedServer(reply) as server, connected(server.url) as client:
        with pytest.raises(UnreachableError, match=r"no complete response within 0\.1 seconds"):
            await fetch_lines(client, seconds=0.1)


async def test_a_request_waits_for_a_connection_for_a_limited_time(monkeypatch):
    monkeypatch.setattr(connection, "MAX_CONNECTIONS", 1)
    async with ScriptedServer(OK[:-1], OK) as server, connected(server.url, connect=0.3) as client:
        async with client.lines(WATCH, seconds=LONG):
            with pytest.raises(UnreachableError, match=r"no connection within 0\.3 seconds") as caught:
                await fetch(client)
            assert not caught.value.sent

        assert await fetch(client) == b"ok"


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
    async with silent() as (port, _), connected(f"https://127.0.0.1:{port}", connect=0.05) as client:
        with pytest.raises(UnreachableError, match=r"no connection within 0\.05 seconds") as caught:
            await fetch(client)
        assert not caught.value.sent


# Cancellation


async def cancelled(task):
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("begin", [b"", OK[:-1]], ids=["head", "body"])
async def test_a_cancelled_request_leaves_its_slot(monkeypatch, begin):
    monkeypatch.setattr(connection, "MAX_CONNECTIONS", 1)
    async with ScriptedServer(begin_and_hang(begin), OK) as server, connected(server.url) as client:
        task = asyncio.create_task(fetch(client))
        waiting = asyncio.create_task(fetch(client))
        await server.requested.acquire()
        third = asyncio.create_task(fetch(client))
        await asyncio.sleep(0)
        await cancelled(third)
        await cancelled(task)

        assert await waiting == b"ok"


async def test_a_request_cancelled_in_the_handshake_leaves_its_slot(monkeypatch):
    monkeypatch.setattr(connection, "MAX_CONNECTIONS", 1)
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
    async with ScriptedServer(begin_and_hang(reply)) as server, connected(server.url) as client:
        task = asyncio.create_task(receive(client))
        await server.requested.acquire()
        await client.close()

        with pytest.raises(UnreachableError, match="closed"):
            await task


async def test_close_does_not_take_part_of_a_body_for_all_of_it():
    async with (
        ScriptedServer(begin_and_hang(HEAD + b"\r\na\n")) as server,
        connected(server.url) as client,
        client.lines(WATCH, seconds=LONG) as lines,
    ):
        assert await anext(lines) == b"a"
        await client.close()

        with pytest.raises(UnreachableError, match="closed"):
            await anext(lines)


async def test_a_closed_client_sends_nothing(monkeypatch):
    monkeypatch.setattr(connection, "MAX_CONNECTIONS", 1)
    async with ScriptedServer(hang) as server, connected(server.url, attempts=3) as client:
        task, waiting = asyncio.create_task(fetch(client)), asyncio.create_task(fetch(client))
        await server.requested.acquire()
        await client.close()

        for refused in (task, waiting, fetch(client)):
            with pytest.raises(UnreachableError, match="the client is closed") as caught:
                await refused
            assert not caught.value.sent
        assert len(server.connections) == 1


@pytest.mark.parametrize("with_tls", [False, True], ids=["http", "https"])
async def test_a_connection_that_opens_after_close_is_closed(server_tls, pem, with_tls):
    async with (
        ScriptedServer(tls=server_tls if with_tls else None) as server,
        connected(server.url, authority=pem) as client,
    ):
        task = asyncio.create_task(fetch(client))
        await asyncio.sleep(0)  # it has begun to connect
        await client.close()

        with pytest.raises(UnreachableError, match="closed"):
            await task


async def test_a_cancelled_close_does_not_cancel_another():
    async with ScriptedServer(hang) as server, connected(server.url) as client:
        task = asyncio.create_task(fetch(client))
        await server.requested.acquire()
        first, second = asyncio.create_task(client.close()), asyncio.create_task(client.close())
        await asyncio.sleep(0)
        first.cancel()
        await second

        with pytest.raises(UnreachableError):
            await task


# Requests


@pytest.mark.parametrize(
    ("path", "target"), [("", b"/api"), ("/", b"/api"), ("/k8s/clusters/c-1/", b"/k8s/clusters/c-1/api")]
)
async def test_the_path_of_the_url_comes_first(path, target):
    async with ScriptedServer(OK) as server, connected(server.url.replace("//", "//user:a b@") + path) as client:
        await fetch(client, path="/api")

    assert server.requests[0].split()[1] == target
    assert b"user" not in server.requests[0]


async def test_a_path_and_parameters_are_sent_as_they_are():
    selector = "app in (a, b),c=d+e;f%20g"
    async with ScriptedServer(OK) as server, connected(server.url) as client:
        await fetch(client, path="/leases/a%2Fb%3A/../c", parameters={"labelSelector": selector})

    target = b"/leases/a%2Fb%3A/../c?labelSelector=app+in+%28a%2C+b%29%2Cc%3Dd%2Be%3Bf%2520g"
    assert server.requests[0].split()[1] == target


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
    ("path", "content_type", "message"),
    [
        ("/a b", "x", "must be escaped"),
        ("/\r\nHost: x", "x", "must be escaped"),
        ("/ä", "x", "must be escaped"),
        ("/", "a\r\nHost: x", "cannot send a request"),
        ("/", "a\nHost: x", "cannot send a request"),
        ("/", "a\rb", "cannot send a request"),
        ("/", "a\0b", "cannot send a request"),
    ],
)
async def test_requests_that_are_not_valid_are_not_sent(path, content_type, message):
    async with ScriptedServer(OK) as server, connected(server.url) as client:
        with pytest.raises(AccessError, match=message):
            await fetch(client, method="POST", path=path, content_type=content_type, body=b"")

        assert await fetch(client, method="POST", content_type="ä", body=b"") == b"ok"


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
    for server, proxy in ((url, ""), ("http://127.0.0.1", url)):
        async with connected(server, proxy=proxy) as client:
            with pytest.raises(AccessError, match=f"the test: cannot use {re.escape(server)}.*: .*{message}"):
                await fetch(client)


# TLS


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@pytest.fixture(scope="module")
def pem(authority):
    return authority.cert_pem.bytes()


@pytest.fixture(scope="module")
def server_tls(authority):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context


async def test_tls(server_tls, pem):
    size = 3 << 20
    large = HEAD + b"Content-Length: %d\r\n\r\n" % size + bytes(size)
    async with ScriptedServer(OK, large, OK, tls=server_tls) as server, connected(server.url, authority=pem) as client:
        assert await fetch(client) == b"ok"
        assert await fetch(client) == bytes(size)
        assert await fetch(client) == b"ok"

        assert len(server.connections) == 1


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_client_certificate_that_is_rejected_is_an_error(authority, pem, version):
    server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(server_tls)
    authority.configure_trust(server_tls)
    server_tls.verify_mode, server_tls.maximum_version = ssl.CERT_REQUIRED, version
    stranger = trustme.CA().issue_cert("client.example")
    credentials = UserCredentials(certificate=stranger.cert_chain_pems[0].bytes(), key=stranger.private_key_pem.bytes())

    async with (
        ScriptedServer(tls=server_tls) as server,
        connected(server.url, authority=pem, credentials=credentials) as client,
    ):
        with pytest.raises(UnreachableError, match=r"(?i)alert|reset|closed|broke"):
            await fetch(client)


async def test_a_server_without_tls_is_an_error(pem):
    async def serve(_reader, writer):
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, connected(f"https://127.0.0.1:{port}", authority=pem) as client:
        with pytest.raises(UnreachableError, match=r"(?i)ssl") as caught:
            await fetch(client)

    assert not caught.value.sent


# Proxies


@pytest.fixture(params=["http proxy", "https proxy"])
def proxy_tls(request, monkeypatch, tmp_path):
    """What a proxy needs for TLS; the system trusts its certificate, and nobody else does."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.crt"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    return context if request.param == "https proxy" else None


def make_proxy(*replies, tls):
    return ScriptedServer(*replies, tls=tls, name="localhost")


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


async def test_a_proxy_gets_requests_for_http_in_absolute_form(proxy_tls):
    async with make_proxy(OK, tls=proxy_tls) as proxy:
        url = proxy.url.replace("//", "//user:pa%3Ass@")
        async with connected("http://api.example:8080/base", proxy=url) as client:
            assert await fetch(client, path="/api") == b"ok"

    lines = proxy.requests[0].split(b"\r\n")
    assert lines[0] == b"GET http://api.example:8080/base/api HTTP/1.1"
    assert b"Host: api.example:8080" in lines
    assert b"Proxy-Authorization: Basic dXNlcjpwYTpzcw==" in lines


@pytest.mark.parametrize("reply", [TUNNEL, TUNNEL[:-2] + b"Content-Length: 0\r\n\r\n"])
async def test_a_proxy_opens_a_tunnel_for_https(server_tls, pem, proxy_tls, reply):
    async with (
        ScriptedServer(OK, OK, tls=server_tls) as server,
        make_proxy(tunnel_to(server.port, reply=reply), tls=proxy_tls) as proxy,
        connected(
            server.url,
            authority=pem,
            proxy=proxy.url.replace("//", "//user:ä@"),
            credentials=UserCredentials(token="secret"),  # noqa: S106 - a token of a test
        ) as client,
    ):
        assert await fetch(client) == b"ok"
        assert await fetch(client) == b"ok"

    name = f"127.0.0.1:{server.port}".encode()
    (request,) = (request.split(b"\r\n") for request in proxy.requests)
    assert request[0] == b"CONNECT %b HTTP/1.1" % name
    assert {b"Host: %b" % name, b"User-Agent: alignup", b"Proxy-Authorization: Basic dXNlcjrDpA=="} <= set(request)
    assert not [line for line in request if line.startswith(b"Authorization")]
    assert b"Proxy-Authorization" not in server.requests[0]
    assert b"Authorization: Bearer secret\r\n" in server.requests[0]


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
        with pytest.raises(UnreachableError):
            await fetch(client)

    assert proxy.requests[0].startswith(b"CONNECT %b HTTP/1.1\r\n" % name)
    assert b"secret" not in proxy.requests[0]


async def test_a_proxy_that_nobody_trusts_is_an_error(server_tls, pem):
    async with (
        make_proxy(tls=server_tls) as proxy,
        connected("https://127.0.0.1:1", authority=pem, proxy=proxy.url) as client,
    ):
        with pytest.raises(UnreachableError, match="certificate verify failed") as caught:
            await fetch(client)

    assert not caught.value.sent


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (b"HTTP/1.1 407 x\r\nContent-Length: 0\r\n\r\n", ("the proxy responded with HTTP status 407", False)),
        (Last(b""), (CLOSED, True)),
        (b"garbage\r\n\r\n", ("no valid HTTP response", True)),
        (hang, (r"no connection within 0\.1 seconds", False)),
        (begin_and_hang(TUNNEL), (r"no connection within 0\.1 seconds", False)),
        (Last(TUNNEL), ("reset|broke|clos|SSL", False)),
        (Last(TUNNEL + b"garbage"), ("reset|broke|clos|SSL", None)),
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
async def test_a_proxy_that_opens_no_tunnel_is_an_error(pem, proxy_tls, monkeypatch, reply, reason):
    monkeypatch.setattr(connection, "MAX_CONNECTIONS", 1)
    message, sent = reason
    limit = 0.1 if callable(reply) else LONG
    async with (
        make_proxy(reply, reply, tls=proxy_tls) as proxy,
        connected("https://127.0.0.1:1", authority=pem, proxy=proxy.url, connect=limit) as client,
    ):
        for _ in range(2):
            with pytest.raises(UnreachableError, match=message) as caught:
                await fetch(client)
            assert sent is None or caught.value.sent is sent
        async with asyncio.timeout(LONG):
            await asyncio.gather(*proxy.connections)


async def test_a_tunnel_to_an_untrusted_server_is_an_error(server_tls, proxy_tls):
    loop = asyncio.get_running_loop()
    handler = loop.get_exception_handler()
    loop.set_exception_handler(lambda *_: None)  # early releases of Python 3.11 and 3.12 fail to abort TLS within TLS
    async with (
        ScriptedServer(tls=server_tls) as server,
        make_proxy(tunnel_to(server.port), tls=proxy_tls) as proxy,
        connected(server.url, proxy=proxy.url, authority=trustme.CA().cert_pem.bytes()) as client,
    ):
        with pytest.raises(UnreachableError, match="certificate verify failed") as caught:
            await fetch(client)
    loop.set_exception_handler(handler)

    assert not caught.value.sent


@pytest.mark.parametrize("end", ["cancel", "close"])
async def test_a_handshake_in_a_tunnel_can_be_ended(pem, proxy_tls, end):
    handshake = asyncio.Event()

    async def reply(reader, writer):
        writer.write(TUNNEL)
        await reader.read(1)
        handshake.set()
        await hang(reader, writer)

    async with (
        make_proxy(reply, tls=proxy_tls) as proxy,
        connected(
            "https://127.0.0.1:1", authority=pem, proxy=proxy.url, connect=0.2 if end == "close" else LONG
        ) as client,
    ):
        task = asyncio.create_task(fetch(client))
        await handshake.wait()
        if end == "cancel":
            await cancelled(task)
        else:
            async with asyncio.timeout(LONG):
                await client.close()
            with pytest.raises(UnreachableError):
                await task


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
        writer.write(HEAD + b"Content-Length: %d\r\n\r\n%b\n" % (len(target) + 1, target))

    async def fail(self, reader, writer):
        writer.write(self.dice.choice(FAULTS))
        if self.dice.random() < 0.5:
            await hang(reader, writer)
        raise EOFError


async def request_amid_faults(client, number, dice):
    """Send a request; its response is the right one if there is one."""
    request = ApiRequest(description="fetch", path=f"/{number}")
    action = dice.choice(["read", "read", "lines", "lines", "leave"])
    if action == "read":
        assert (await client.send(request)).strip() in {b"/%d" % number, b"ok"}
        did("HTTP requests amid faults: responses")
        return
    async with client.lines(request, seconds=0.02) as lines, aclosing(lines):
        if action == "lines":
            assert [line async for line in lines] in ([b"/%d" % number], [])
            did("HTTP requests amid faults: responses")


async def cancel_at_random(task, dice):
    """Let a task end, or cancel it after a while."""
    if dice.random() < 0.5:
        for _ in range(dice.randrange(30)):
            await asyncio.sleep(0)
        task.cancel()
    with suppress(asyncio.CancelledError, UnreachableError):
        await task


@pytest.mark.soak
@pytest.mark.parametrize("with_tls", [False, True], ids=["http", "https"])
async def test_random_faults_and_cancellations_lose_no_slot_and_no_connection(server_tls, pem, monkeypatch, with_tls):
    dice = random.Random(SEED)
    slots, requests = 3, rounds(100, soak=5_000)
    monkeypatch.setattr(connection, "MAX_CONNECTIONS", slots)
    async with FaultyServer(dice, tls=server_tls if with_tls else None) as server:
        async with connected(server.url, authority=pem, response=0.02, total=0.05) as client:
            for first in range(0, requests, 5):
                tasks = [asyncio.create_task(request_amid_faults(client, first + add, dice)) for add in range(5)]
                await asyncio.gather(*(cancel_at_random(task, dice) for task in tasks))

            server.next_reply = lambda: begin_and_hang(CHUNKED)
            server.requested = asyncio.Semaphore(0)
            tasks = [asyncio.create_task(fetch_lines(client)) for _ in range(slots)]
            async with asyncio.timeout(LONG):
                for _ in range(slots):
                    await server.requested.acquire()
        for task in tasks:
            with pytest.raises(UnreachableError):
                await task
    did("HTTP requests amid faults", requests)
