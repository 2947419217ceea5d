"""What is written to the transport of a connection, and when."""

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from alignup.web.asgi_server import ConnectionLimits, ConnectionTable, ServerLimits
from alignup.web.served_connection import ServedConnection
from tests.effort import bounded

LENGTH = (b"content-length", b"5")


class RecordedTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.actions: list[Any] = []

    def write(self, data):
        self.actions.append(bytes(data))

    def close(self):
        self.actions.append("close")

    def is_closing(self):
        return "close" in self.actions

    def is_reading(self):
        return True

    def pause_reading(self):
        pass

    def resume_reading(self):
        pass

    def set_write_buffer_limits(self, high=None, low=None):
        pass


async def respond(*messages: dict[str, Any], keep_alive: bool = True, method: str = "GET") -> list[Any]:
    """What happens on the transport when an application sends these messages."""

    async def app(_scope, _receive, send):
        for message in messages:
            await send(message)

    transport = RecordedTransport()
    connection = ServedConnection(app, ServerLimits(), ConnectionTable(ConnectionLimits()), set())
    connection.connection_made(transport)
    close = "" if keep_alive else "Connection: close\r\n"
    connection.data_received(f"{method} / HTTP/1.1\r\nHost: x\r\n{close}\r\n".encode())
    assert connection.task is not None
    await connection.task
    connection.connection_lost(None)
    return transport.actions


def start(*headers: tuple[bytes, bytes], status: int = 200) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def body(data: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


def run(*messages, **options):
    """The actions on the transport, without the lines of dates."""
    actions = asyncio.run(respond(*messages, **options))
    return [b"".join(without_date(action)) if isinstance(action, bytes) else action for action in actions]


def without_date(written: bytes) -> list[bytes]:
    return [line for line in written.splitlines(keepends=True) if not line.startswith(b"date: ")]


def test_head_and_body_are_one_write():
    assert run(start(LENGTH), body(b"hello")) == [b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"]


def test_the_rest_of_a_long_body_follows():
    written = run(start(LENGTH), body(b"he", more=True), body(b"llo"))
    assert written == [b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhe", b"llo"]


def test_the_connection_closes_after_the_response():
    actions = run(start(LENGTH), body(b"hello"), keep_alive=False)
    assert actions[0].endswith(b"connection: close\r\n\r\nhello")
    assert actions[1] == "close"


def test_a_stream_begins_before_its_first_part():
    """A client of an event stream waits for the head, and the first event can be minutes away."""
    head, *parts = run(start(), body(b"event", more=True), body(b""))
    assert head.endswith(b"transfer-encoding: chunked\r\n\r\n")
    assert parts == [b"5\r\nevent\r\n", b"0\r\n\r\n"]


def test_head_requests_get_the_head():
    written = run(start(LENGTH), body(b"hello"), method="HEAD")
    assert written == [b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"]


def test_a_response_has_a_date():
    (written,) = asyncio.run(respond(start(LENGTH), body(b"hello")))
    assert b"\r\ndate: " in written


def test_an_application_without_a_body_makes_an_error_response():
    with capture_logs() as logs:
        written = b"".join(action for action in run(start(LENGTH)) if isinstance(action, bytes))
    assert written.startswith(b"HTTP/1.1 500 ")
    assert written.endswith(b"\r\n\r\nInternal Server Error")
    assert [entry["event"] for entry in logs] == ["request failed"]


def test_a_body_that_is_longer_than_its_length_ends_the_connection():
    with capture_logs() as logs:
        actions = run(start(LENGTH), body(b"he", more=True), body(b"llo, world"))
    assert actions == [b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhe", "close"]
    assert [entry["event"] for entry in logs] == ["request failed"]


def test_a_header_cannot_break_a_line():
    with capture_logs():
        written = b"".join(action for action in run(start((b"x", b"a\r\nb: c"))) if isinstance(action, bytes))
    assert written.startswith(b"HTTP/1.1 500 ")
    assert b"b: c" not in written


@pytest.mark.parametrize(
    "rest",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + 100_000 * b"a",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;" + 100_000 * b"a",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + 100_000 * b"a",
    ],
    ids=["long head", "long chunk extension", "invalid"],
)
def test_what_follows_a_request_and_is_refused_is_dropped(rest):
    async def app(_scope, _receive, send):
        await send(start(LENGTH))
        await send(body(b"hello"))

    async def answer() -> list[Any]:
        transport = RecordedTransport()
        connection = ServedConnection(app, ServerLimits(), ConnectionTable(ConnectionLimits()), set())
        connection.connection_made(transport)
        with bounded(100_000):
            connection.data_received(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + rest)
        while connection.task is not None:
            await connection.task
        connection.connection_lost(None)
        return transport.actions

    assert asyncio.run(answer())[0].startswith(b"HTTP/1.1 200 OK")
