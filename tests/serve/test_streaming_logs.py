"""Container logs over HTTP."""

import asyncio

import pytest

from alignup.web.responses import NotReadyError
from alignup.web.server import ServerLimits
from tests.agent.fake_backend import FakeBackend, FakeLog, client_of, manifest, run_of, running
from tests.agent.test_app import described
from tests.deadlines import until
from tests.web.real_server import client_at, on_unix

pytestmark = pytest.mark.anyio

WEB = "default-web"
LOGS = f"/v1/pods/{WEB}/logs"
BINARY = b"\xff\x00\x1b[2J\n"


@pytest.fixture
async def agent():
    """A pod with two containers; the second has restarted."""
    agent = FakeBackend()
    await agent.admit_document(manifest("web", cpu="1", memory="1Gi"))
    agent.run(WEB, run_of(running("setup", kind="init", state="ended"), running("app"), running("side", restarts=1)))
    agent.container_logs[WEB, "setup", False] = FakeLog(b"ready\n")
    agent.container_logs[WEB, "app", False] = FakeLog(b"one\n", b"two\n", BINARY)
    agent.container_logs[WEB, "side", True] = FakeLog(b"alas\n")
    return agent


@pytest.mark.parametrize(
    ("query", "text"),
    [
        pytest.param("", b"one\ntwo\n" + BINARY, id="all of the first app container, bytes as they are"),
        pytest.param("?container=setup", b"ready\n", id="of a named container"),
        pytest.param("?tail=1", BINARY, id="the last line"),
        pytest.param("?tail=0", b"", id="no line"),
        pytest.param("?container=side&previous=true", b"alas\n", id="of the time before"),
        pytest.param("?tail=2&timestamps=true&follow=false", b"%stwo\n%s%s", id="with the time of each line"),
        pytest.param("?follow=true", b"one\ntwo\n" + BINARY, id="an ended container is not followed"),
    ],
)
async def test_the_requested_part_is_sent(agent, query, text):
    async with client_of(agent) as client:
        response = await client.get(f"{LOGS}{query}")

    stamp = b"2027-01-15T08:00:00Z "
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/plain; charset=utf-8"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.content == (text % (stamp, stamp, BINARY) if b"%s" in text else text)


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        pytest.param("/v1/pods/unknown/logs", 404, "no pod has the uid unknown", id="no such pod"),
        pytest.param(f"{LOGS}?container=x", 404, "pod default-web has no container x", id="no such container"),
        pytest.param(f"{LOGS}?previous=true", 404, "container app has no log", id="no such log"),
        pytest.param(f"{LOGS}?tail=-1", 400, "tail: must be an integer", id="no number of lines"),
        pytest.param(f"{LOGS}?follow=yes", 400, "follow: must be true or false", id="neither yes nor no"),
        pytest.param(f"{LOGS}?container=", 400, "container: must be a text", id="an empty name"),
    ],
)
async def test_missing_logs_and_invalid_parameters_are_reported(agent, path, status, message):
    async with client_of(agent) as client:
        response = await client.get(path)

        assert response.status_code == status
        assert message in (await described(client, response, path="/v1/pods/{uid}/logs"))["detail"]


async def test_a_log_that_cannot_be_read_now_is_unavailable(agent):
    agent.error = NotReadyError("the runtime does not respond")
    async with client_of(agent) as client:
        response = await client.get(LOGS)

        assert response.status_code == 503
        await described(client, response, path="/v1/pods/{uid}/logs")


async def test_head_does_not_wait_for_the_end(agent):
    agent.container_logs[WEB, "app", False].over = False
    async with client_of(agent) as client:
        response = await client.head(f"{LOGS}?follow=true")

    assert (response.status_code, response.content) == (200, b"")


async def test_a_followed_log_is_streamed_until_the_container_ends(agent, tmp_path):
    log = agent.container_logs[WEB, "app", False] = FakeLog(b"one\n", over=False)
    path = tmp_path / "api.sock"
    async with on_unix(agent, path), client_at(path) as client:
        async with client.stream("GET", f"{LOGS}?follow=true") as stream:
            lines = stream.aiter_lines()
            first = await anext(lines)
            log.print(b"two\n")
            second = await anext(lines)
            log.end()
            rest = [line async for line in lines]

        assert (first, second, rest) == ("one", "two", [])
        assert log.readers == 0


async def test_a_disconnected_client_closes_the_log(agent, tmp_path):
    log = agent.container_logs[WEB, "app", False] = FakeLog(b"one\n", over=False)
    path = tmp_path / "api.sock"
    async with on_unix(agent, path):
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(f"GET {LOGS}?follow=true HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        await reader.readuntil(b"one")
        assert log.readers == 1

        writer.transport.abort()

        await until(lambda: not log.readers)


async def test_a_client_that_reads_nothing_is_disconnected(agent, tmp_path):
    log = agent.container_logs[WEB, "app", False] = FakeLog(*[b"x" * 65536] * 1000)
    path = tmp_path / "api.sock"
    async with on_unix(agent, path, limits=ServerLimits(read=0.1, end=1)):
        reader, writer = await asyncio.open_unix_connection(str(path), limit=1)
        writer.write(f"GET {LOGS} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        await until(lambda: log.readers)

        await until(lambda: not log.readers)

        writer.transport.abort()
        del reader


async def test_the_number_of_log_streams_is_limited(agent, tmp_path):
    agent.container_logs[WEB, "app", False] = FakeLog(b"one\n", over=False)
    path = tmp_path / "api.sock"
    async with on_unix(agent, path, logs=1), client_at(path) as client:
        async with client.stream("GET", f"{LOGS}?follow=true") as stream:
            await anext(stream.aiter_lines())
            rejected = await client.get(LOGS)
        await until(lambda: not agent.container_logs[WEB, "app", False].readers)
        again = await client.get(LOGS)

    assert (rejected.status_code, rejected.headers["retry-after"]) == (429, "5")
    assert again.text == "one\n"


async def test_followed_logs_end_with_the_server(agent, tmp_path):
    agent.container_logs[WEB, "app", False] = FakeLog(b"one\n", over=False)
    path = tmp_path / "api.sock"
    async with (
        client_at(path) as client,
        on_unix(agent, path, limits=ServerLimits(end=5)) as stopping,
        client.stream("GET", f"{LOGS}?follow=true") as stream,
    ):
        lines = stream.aiter_lines()
        await anext(lines)
        stopping.set()

        assert [line async for line in lines] == []


async def test_a_read_error_aborts_the_response(agent, tmp_path):
    """A truncated log must not look complete."""

    class Broken(FakeLog):
        async def read(self, query):
            del query
            yield b"one\n"
            raise OSError("the disk is gone")

    agent.container_logs[WEB, "app", False] = Broken()
    path = tmp_path / "api.sock"
    async with on_unix(agent, path), client_at(path) as client, client.stream("GET", LOGS) as stream:
        with pytest.raises(Exception, match="incomplete chunked read"):
            [line async for line in stream.aiter_lines()]
