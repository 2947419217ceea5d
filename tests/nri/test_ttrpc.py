"""Calls over a trunk: what peers get wrong is answered, and what is in flight ends with the trunk."""

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alignup.nri import frames, nri_plugin, ttrpc
from alignup.nri.frames import MAX_DATA, Decoder, FrameError, Message, MessageType, encode
from alignup.nri.ttrpc import Code, ConnectionClosedError, RpcError, Service, TtrpcConnection
from alignup.wire import ttrpc_pb2 as wire
from tests.short_paths import short_directory

pytestmark = pytest.mark.anyio

SERVED, CALLED = 1, 2


async def echo(method: str, payload: bytes) -> bytes:
    match method:
        case "Fail":
            raise RpcError(Code.INVALID_ARGUMENT, "no")
        case "Crash":
            raise KeyError(method)
        case "Wait":
            await asyncio.Event().wait()
        case "Grow":
            return b"x" * (MAX_DATA + 1)
    return payload


@asynccontextmanager
async def client_of(accept):
    """Yield a connection, and the task that runs it; *accept* gets the streams of its peer."""
    with short_directory() as place:
        server = await asyncio.start_unix_server(accept, place / "s")
        streams = await asyncio.open_unix_connection(str(place / "s"))
        client = TtrpcConnection(*streams, service=Service("test.Back", CALLED, echo), channel=SERVED)
        running = asyncio.create_task(client.run())
        try:
            yield client, running
        finally:
            client.close()
            await asyncio.gather(running, return_exceptions=True)
            server.close()


@asynccontextmanager
async def peers(call=echo):
    """Yield a connection that calls, and one that serves *call*; both run."""
    accepted: asyncio.Future[TtrpcConnection] = asyncio.get_running_loop().create_future()

    async def accept(reader, writer):
        connection = TtrpcConnection(reader, writer, service=Service("test.Echo", SERVED, call), channel=CALLED)
        accepted.set_result(connection)
        await connection.run()

    async with client_of(accept) as (client, _):
        served = await accepted
        try:
            yield client, served
        finally:
            served.close()


@asynccontextmanager
async def raw_peer():
    """Yield the reader and writer of a client that writes frames itself."""
    with short_directory() as place:

        async def accept(reader, writer):
            connection = TtrpcConnection(reader, writer, service=Service("test.Echo", SERVED, echo), channel=CALLED)
            ended.set_result((await asyncio.gather(connection.run(), return_exceptions=True))[0])

        ended: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        server = await asyncio.start_unix_server(accept, place / "s")
        reader, writer = await asyncio.open_unix_connection(str(place / "s"))
        try:
            yield reader, writer, ended
        finally:
            writer.close()
            await ended
            server.close()


async def call(connection: TtrpcConnection, method: str, payload: bytes = b"", *, seconds: float = 60.0) -> bytes:
    return await connection.call("test.Echo", method, payload, timeout=seconds)


def request(method: str = "Echo", payload: bytes = b"", **fields) -> bytes:
    return wire.Request(service="test.Echo", method=method, payload=payload, **fields).SerializeToString()


async def answers(reader: asyncio.StreamReader, count: int) -> list[tuple[int, int, str, bytes]]:
    """Return stream, code, message and payload of the next *count* responses."""
    decoder = Decoder(SERVED)
    received: list[tuple[int, int, str, bytes]] = []
    async with asyncio.timeout(60):
        while len(received) < count:
            data = await reader.read(1 << 16)
            assert data, "the connection was closed"
            for _, message in decoder.feed(data):
                assert message.type == MessageType.RESPONSE
                response = wire.Response.FromString(message.data or b"")
                received.append((message.stream, response.status.code, response.status.message, response.payload))
    return received


async def test_calls_in_both_directions_at_once():
    async with peers() as (client, served):
        texts = [b"%d" % number * 3000 for number in range(20)]
        there = [call(client, "Echo", text) for text in texts]
        back = [served.call("test.Back", "Echo", text, timeout=60) for text in texts]
        assert await asyncio.gather(*there, *back) == texts * 2


async def test_the_largest_request_and_response_arrive():
    async with peers() as (client, _):
        text = b"x" * (MAX_DATA - 100)
        assert await call(client, "Echo", text) == text


@pytest.mark.parametrize(
    ("method", "payload", "code", "message"),
    [
        ("Fail", b"", Code.INVALID_ARGUMENT, "no"),
        ("Crash", b"", Code.INTERNAL, "internal error; see the log of the plugin"),
        ("Grow", b"", Code.RESOURCE_EXHAUSTED, "the response is longer than 4194304 bytes"),
        ("Echo", b"x" * MAX_DATA, Code.RESOURCE_EXHAUSTED, "Echo: a message of 4194333 bytes is longer than 4194304"),
    ],
)
async def test_failures_are_errors_of_the_caller(method, payload, code, message):
    async with peers() as (client, _):
        with pytest.raises(RpcError) as failed:
            await call(client, method, payload)
        assert (failed.value.code, failed.value.message) == (code, message)
        assert await call(client, "Echo", b"still there") == b"still there"


async def test_a_call_ends_at_its_deadline_on_both_sides():
    handled = asyncio.Event()

    async def wait(method, payload):
        try:
            await asyncio.Event().wait()
        finally:
            handled.set()

    async with peers(wait) as (client, _):
        with pytest.raises(RpcError) as failed:
            await call(client, "Wait", seconds=0.05)
        assert failed.value.code == Code.DEADLINE_EXCEEDED
        await asyncio.wait_for(handled.wait(), 60)


async def test_an_answer_is_sent_before_the_deadline_of_the_request():
    async with raw_peer() as (reader, writer, _):
        writer.write(encode(SERVED, Message(1, 1, request("Wait", timeout_nano=50_000_000))))
        assert await answers(reader, 1) == [(1, Code.DEADLINE_EXCEEDED, "Wait takes too long", b"")]


async def test_calls_in_flight_fail_when_the_trunk_is_closed_and_later_ones_do_too():
    async with peers() as (client, served):
        waiting = asyncio.create_task(call(client, "Wait"))
        await call(client, "Echo")  # the other call is in flight, then
        served.close()
        with pytest.raises(ConnectionClosedError):
            await waiting
        with pytest.raises(ConnectionClosedError):
            await call(client, "Echo")


async def test_a_call_fails_when_the_peer_goes_away_while_the_request_is_written():
    async def accept(reader, writer):
        await reader.read(1)  # the rest exceeds all buffers
        writer.transport.abort()

    async with client_of(accept) as (client, running):
        with pytest.raises(ConnectionClosedError):
            await call(client, "Echo", b"x" * (MAX_DATA - 100))
        await running


async def test_requests_that_break_the_protocol_get_a_status_and_the_trunk_stays_open():
    async with raw_peer() as (reader, writer, _):
        other = wire.Request(service="test.Other", method="Echo").SerializeToString()
        for message in (
            Message(2, 1, request()),
            Message(5, 1, request()),
            Message(5, 1, request()),
            Message(3, 1, request()),
            Message(5, 3, b"data"),
            Message(7, 1, b"\xff\xff"),
            Message(9, 1, other),
            Message(11, 9, b"of a later version"),
            Message(11, 2, b"a response to nothing"),
            Message(13, 1, request(payload=b"good")),
        ):
            writer.write(encode(SERVED, message))
        assert sorted(await answers(reader, 8)) == [
            (2, 3, "stream 2 of a client is even", b""),
            (3, 3, "stream 3 is not above 5", b""),
            (5, 0, "", b""),
            (5, 3, "stream 5 is not above 5", b""),
            (5, 3, "stream 5 takes no data", b""),
            (7, 3, "the request cannot be decoded", b""),
            (9, 12, "service test.Other is not served", b""),
            (13, 0, "", b"good"),
        ]


async def test_a_request_that_is_too_long_is_refused_and_the_next_one_is_served():
    async with raw_peer() as (reader, writer, _):
        header = (MAX_DATA + 1).to_bytes(4, "big") + b"\0\0\0\1\1\0"
        text = header + b"x" * (MAX_DATA + 1)
        for start in range(0, len(text), 1 << 20):
            part = text[start : start + (1 << 20)]
            writer.write(SERVED.to_bytes(4, "big") + len(part).to_bytes(4, "big") + part)
            await writer.drain()
        writer.write(encode(SERVED, Message(3, 1, request(payload=b"good"))))
        assert await answers(reader, 2) == [
            (1, Code.RESOURCE_EXHAUSTED, "the request is longer than 4194304 bytes", b""),
            (3, 0, "", b"good"),
        ]


async def test_a_frame_that_makes_no_sense_closes_the_trunk():
    async with raw_peer() as (reader, writer, ended):
        writer.write(b"\xff" * 8)
        assert await reader.read() == b""
        assert isinstance(await asyncio.shield(ended), FrameError)


@pytest.mark.parametrize("response", [b"\xff\xff", wire.Response(status=wire.Status(code=5)).SerializeToString()])
async def test_a_response_that_is_broken_or_an_error_fails_the_call_and_strange_ones_are_ignored(response):
    async def accept(reader, writer):
        await reader.read(1)
        for message in (Message(1, 3, b""), Message(99, 2, b""), Message(1, 2, response), Message(1, 2, b"")):
            writer.write(encode(SERVED, message))
        await writer.drain()
        await reader.read()
        writer.close()

    async with client_of(accept) as (client, running):
        with pytest.raises(RpcError):
            await call(client, "Echo")
        client.close()
        await running


@settings(max_examples=30)
@given(st.lists(st.binary(max_size=60), max_size=5))
async def test_arbitrary_bytes_never_leave_the_server_in_a_state_that_hangs(anyio_backend, parts):
    async with raw_peer() as (_, writer, ended):
        for part in parts:
            writer.write(part)
        writer.close()
        async with asyncio.timeout(60):
            result = await asyncio.shield(ended)
        assert result is None or isinstance(result, FrameError)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4), st.binary(max_size=40)), min_size=1, max_size=8))
async def test_arbitrary_messages_are_answered_or_ignored_and_the_next_request_is_served(anyio_backend, sent):
    async with raw_peer() as (reader, writer, _):
        for stream, type_, data in sent:
            writer.write(encode(SERVED, Message(stream, type_, data)))
        writer.write(encode(SERVED, Message(99, 1, request(payload=b"good"))))
        expected = sum(type_ in {1, 3} for _, type_, _ in sent) + 1
        received = await answers(reader, expected)
        assert [payload for stream, code, _, payload in received if stream == 99] == [b"good"]


def test_the_library_needs_no_other_part_of_alignup():
    texts = [Path(module.__file__ or "").read_text() for module in (frames, ttrpc, nri_plugin)]
    imported = {line.split()[1] for text in texts for line in text.splitlines() if line.startswith("from alignup")}

    assert imported == {"alignup.nri.frames", "alignup.nri.ttrpc", "alignup.wire"}
