"""Requests with a body over kept connections, against a server that answers byte for byte what a test wants."""

import asyncio
from contextlib import asynccontextmanager

import httpx2
import pytest

from alignup.kubernetes.api import Timing, write_connections
from alignup.kubernetes.api.write_connections import WriteConnections
from tests.deadlines import SECONDS

pytestmark = pytest.mark.anyio
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class ScriptedServer:
    """Answers every request with the next of *answers*; an empty one closes the connection, ``None`` never comes."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.requests: list[bytes] = []
        self.connections = 0
        self.asked = asyncio.Event()  #: a request has arrived
        self.closed = asyncio.Event()  #: a connection was closed by either side

    async def serve(self, reader, writer):
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length:"))
                self.requests.append(head + await reader.readexactly(length))
                self.asked.set()
                answer = self.answers.pop(0)
                if answer is not None:
                    writer.write(answer)
                if answer == b"" or (answer and b"lose" in answer):
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            self.closed.set()


@asynccontextmanager
async def connections_to(script, path="", **timing):
    server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
    url = httpx2.URL(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{path}")
    made = WriteConnections(url, Timing(**timing))
    try:
        yield made
    finally:
        made.close()
        server.close()
        await server.wait_closed()


async def post(connections):
    """The status and the text of a response."""
    response = await connections.send("POST", "/", body=b"{}")
    return response.status, response.content.decode()


async def test_requests_share_a_connection():
    script = ScriptedServer(OK, OK)
    async with connections_to(script, "/cluster/") as connections:
        for number in range(2):
            response = await connections.send("PATCH", "/path?a=b", body=b"body %d" % number, headers=[("X-Own", "1")])
            assert (response.status, response.content) == (200, b"ok")
    assert script.connections == 1
    assert script.requests[0].startswith(b"PATCH /cluster/path?a=b HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nX-Own: 1\r\n" in script.requests[0]
    assert script.requests[1].endswith(b"\r\n\r\nbody 1")


@pytest.mark.parametrize(
    ("answer", "status", "content"),
    [
        (
            b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n",
            201,
            "abcde",
        ),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nTrailer: 1\r\n\r\n", 200, ""),
        (b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK, 200, "ok"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, ""),
        (b"HTTP/1.1 409 Conflict\r\nContent-Length: 4\r\n\r\nfull", 409, "full"),
    ],
)
async def test_the_connection_is_used_again_after(answer, status, content):
    script = ScriptedServer(answer, OK)
    async with connections_to(script) as connections:
        assert await post(connections) == (status, content)
        assert await post(connections) == (200, "ok")
    assert script.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nlast",
        b"HTTP/1.0 200 OK\r\nContent-Length: 4\r\nX: Close\r\n\r\nlast",
        b"HTTP/1.1 200 OK\r\nX: Close\r\n\r\nlast",
    ],
    ids=["told", "old", "endless"],
)
async def test_a_connection_that_ends_is_replaced(answer):
    script = ScriptedServer(answer, OK)
    async with connections_to(script) as connections:
        assert await post(connections) == (200, "last")
        assert await post(connections) == (200, "ok")
    assert script.connections == 2


async def test_a_connection_that_the_server_closed_meanwhile_is_replaced():
    script = ScriptedServer(OK + b"", OK)
    async with connections_to(script) as connections:
        await post(connections)
        connections._idle[-1]._writer.transport.abort()  # noqa: SLF001 - as when the server has closed it
        assert await post(connections) == (200, "ok")
    assert script.connections == 2


async def test_an_old_connection_is_replaced(monkeypatch):
    monkeypatch.setattr(write_connections, "IDLE_SECONDS", 0.0)
    script = ScriptedServer(OK, OK)
    async with connections_to(script) as connections:
        for _ in range(2):
            await post(connections)
    assert script.connections == 2


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", httpx2.ReadError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nConnection: close\r\n\r\nless", httpx2.ReadError),
        (b"220 mail\r\nclose\r\n\r\n", httpx2.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\nclose\r\n\r\n", httpx2.RemoteProtocolError),
        (b"HTTP/1.1 2xx OK\r\nX: close\r\n\r\n", httpx2.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\nX: close\r\n\r\n", httpx2.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX: close\r\n\r\nz\r\n", httpx2.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\nX: " + b"close" * 40_000, httpx2.RemoteProtocolError),
    ],
)
async def test_what_is_no_response_is_an_error(answer, error):
    script = ScriptedServer(answer, OK)
    async with connections_to(script) as connections:
        with pytest.raises(error):
            await post(connections)
        assert await post(connections) == (200, "ok")
    assert script.connections == 2


async def test_a_response_that_does_not_come_is_a_timeout_and_its_connection_is_closed():
    script = ScriptedServer(None, OK)
    async with connections_to(script, response=0.05) as connections:
        with pytest.raises(httpx2.ReadTimeout):
            await post(connections)
        async with asyncio.timeout(SECONDS):
            await script.closed.wait()


async def test_a_cancelled_request_closes_its_connection():
    script = ScriptedServer(None)
    async with connections_to(script) as connections:
        request = asyncio.ensure_future(post(connections))
        async with asyncio.timeout(SECONDS):
            await script.asked.wait()
            request.cancel()
            await script.closed.wait()


async def test_a_server_that_is_away_is_not_connected():
    with pytest.raises(httpx2.ConnectError):
        await post(WriteConnections(httpx2.URL("http://127.0.0.1:9"), Timing()))


async def test_more_requests_than_connections_wait(monkeypatch):
    monkeypatch.setattr(write_connections, "MAX_CONNECTIONS", 2)
    script = ScriptedServer(*[OK] * 6)
    async with connections_to(script) as connections:
        responses = await asyncio.gather(*(post(connections) for _ in range(6)))
    assert responses == [(200, "ok")] * 6
    assert script.connections <= 2
