"""What is written to the transport of a connection, and when."""

import asyncio
import logging
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl

from alignup.web.response_cycles import ResponseCycle

LENGTH = (b"content-length", b"5")


class RecordedTransport:
    def __init__(self) -> None:
        self.actions: list[Any] = []

    def write(self, data: bytes) -> None:
        self.actions.append(data)

    def close(self) -> None:
        self.actions.append("close")


async def respond(*messages: dict[str, Any], keep_alive: bool = True, method: str = "GET") -> list[Any]:
    """What happens on the transport when an application sends these messages."""
    recorded = RecordedTransport()
    transport: Any = recorded
    scope: Any = {"type": "http", "method": method}
    cycle = ResponseCycle(
        scope=scope,
        transport=transport,
        flow=FlowControl(transport),
        logger=logging.getLogger("test"),
        access_logger=logging.getLogger("test"),
        access_log=False,
        default_headers=[],
        message_event=asyncio.Event(),
        expect_100_continue=False,
        keep_alive=keep_alive,
        on_response=lambda: recorded.actions.append("complete"),
    )

    async def app(_scope, _receive, send):
        for message in messages:
            await send(message)

    await cycle.run_asgi(app)
    return recorded.actions


def start(*headers: tuple[bytes, bytes], status: int = 200) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def body(data: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


def run(*messages, **options):
    return asyncio.run(respond(*messages, **options))


def test_head_and_body_are_one_write():
    *before, written = run(start(LENGTH), body(b"hello"))
    assert before == ["complete"]
    assert written == b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"


def test_the_rest_of_a_long_body_follows():
    written = [one for one in run(start(LENGTH), body(b"he", more=True), body(b"llo")) if one != "complete"]
    assert written == [b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhe", b"llo"]


def test_the_connection_closes_after_the_response():
    actions = run(start(LENGTH), body(b"hello"), keep_alive=False)
    assert actions[0].endswith(b"connection: close\r\n\r\nhello")
    assert actions[1] == "close"


def test_a_stream_begins_before_its_first_part():
    """A client of an event stream waits for the head, and the first event can be minutes away."""
    head, *_ = run(start(), body(b"event", more=True), body(b""))
    assert head.endswith(b"transfer-encoding: chunked\r\n\r\n")


def test_head_requests_get_the_head():
    written = [one for one in run(start(LENGTH), body(b"hello"), method="HEAD") if one != "complete"]
    assert written == [b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"]


def test_an_application_without_a_body_makes_an_error_response(caplog):
    written = b"".join(one for one in run(start(LENGTH)) if isinstance(one, bytes))
    assert written.startswith(b"HTTP/1.1 500 ")
    assert written.endswith(b"\r\n\r\nInternal Server Error")
    assert caplog.records
