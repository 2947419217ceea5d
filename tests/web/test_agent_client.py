"""The HTTP client, with servers that answer in every way a server can."""

import socket
import threading
import time
from contextlib import contextmanager, suppress

import pytest

from alignup.web.address import TcpAddress, UnixAddress
from alignup.web.agent_client import TIMEOUT, AgentClient, AgentError, AgentErrorKind, pod_path

OK = b"HTTP/1.1 200 OK\r\n"


@contextmanager
def serve(path, handle, *, timeout=TIMEOUT):
    """Call *handle* with one connection; yield a client."""

    def accept(listening):
        connection, _ = listening.accept()
        with connection:
            connection.settimeout(60)
            handle(connection)

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        thread = threading.Thread(target=accept, args=[listening])
        thread.start()
        try:
            yield AgentClient(UnixAddress(path), token="secret", timeout=timeout)  # noqa: S106 - a made-up token
        finally:
            thread.join()


def answer(*parts, wait=False):
    """Read the request, send *parts*, and with *wait* let the client close the connection."""

    def handle(connection):
        connection.recv(1 << 16)
        with suppress(ConnectionError):  # the client may have read enough
            for part in parts:
                connection.sendall(part)
            if wait:
                assert connection.recv(1) == b""

    return handle


def flood(connection, head):
    """Send a body until the client has enough of it."""
    connection.recv(1 << 16)
    with suppress(OSError):
        connection.sendall(OK + head)
        while True:
            connection.sendall(b"[" * (1 << 20))


@pytest.mark.parametrize(
    "handle",
    [
        pytest.param(answer(OK, b'\r\n{"a": 1}'), id="until the connection is closed"),
        pytest.param(answer(OK, b'Content-Length: 8\r\n\r\n{"a": 1}', wait=True), id="of known length"),
        pytest.param(answer(OK, b'content-length:8\r\n\r\n{"a": 1}garbage'), id="with more bytes than announced"),
        pytest.param(answer(b"HTTP/1.0 200\n", b'Server: x\n\n{"a": 1}'), id="without a reason and carriage returns"),
        pytest.param(
            answer(*(bytes([byte]) for byte in OK + b'A: b\r\nContent-Length: 8\r\n\r\n{"a": 1}')),
            id="byte by byte",
        ),
    ],
)
def test_a_response_is_read_to_its_end(tmp_path, handle):
    with serve(tmp_path / "sock", handle) as agent:
        assert agent.get("/v1/x") == {"a": 1}


@pytest.mark.parametrize(
    "handle",
    [
        pytest.param(answer(), id="before the response"),
        pytest.param(lambda connection: connection.recv(1), id="before the end of the request"),
        pytest.param(answer(b"HTTP/1."), id="in the status line"),
        pytest.param(answer(OK), id="before the headers"),
        pytest.param(answer(OK, b"Content-Le"), id="in the headers"),
        pytest.param(answer(OK, b'Content-Length: 9\r\n\r\n{"a": 1}'), id="in the body"),
    ],
)
def test_a_connection_that_is_closed_early_is_an_error(tmp_path, handle):
    with serve(tmp_path / "sock", handle) as agent, pytest.raises(AgentError, match="closed the connection: ") as error:
        agent.get("/v1/x")

    assert error.value.kind is AgentErrorKind.CLOSED


@pytest.mark.parametrize(
    "handle",
    [
        pytest.param(answer(b"SSH-2.0\r\n", wait=True), id="another protocol"),
        pytest.param(answer(b"HTTP/2 200 OK\r\n\r\n{}", wait=True), id="another version"),
        pytest.param(answer(b"HTTP/1.1 OK\r\n\r\n{}", wait=True), id="no status"),
        pytest.param(answer(OK, b"x" * 70_000, wait=True), id="a very long header"),
        pytest.param(answer(OK, b"X: y\r\n" * 101, wait=True), id="too many headers"),
        pytest.param(answer(OK, b"Content-Length: -1\r\n\r\n{}", wait=True), id="a negative length"),
        pytest.param(answer(OK, b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", wait=True), id="chunks"),
        pytest.param(answer(OK, b"\r\n<html>"), id="a web page"),
        pytest.param(answer(OK, b"\r\n\xff"), id="no text"),
        pytest.param(answer(OK, b"\r\n[]"), id="a JSON array"),
        pytest.param(lambda connection: flood(connection, b"\r\n"), id="a document without an end"),
        pytest.param(lambda connection: flood(connection, b"Content-Length: 9999999999\r\n\r\n"), id="a huge document"),
    ],
)
def test_a_server_that_is_not_an_agent_is_an_error(tmp_path, handle):
    with serve(tmp_path / "sock", handle) as agent, pytest.raises(AgentError, match="is not an agent"):
        agent.get("/v1/x")


def test_a_server_that_answers_byte_by_byte_is_an_error_in_the_end(tmp_path):
    def trickle(connection):
        connection.recv(1 << 16)
        with suppress(OSError):
            connection.sendall(OK + b"\r\n")
            while True:
                connection.sendall(b" ")
                time.sleep(0.001)

    with serve(tmp_path / "sock", trickle, timeout=0.2) as agent, pytest.raises(AgentError, match="did not answer"):
        agent.get("/v1/x")


def test_an_event_without_an_end_is_an_error(tmp_path):
    with serve(tmp_path / "sock", lambda connection: flood(connection, b"\r\ndata: ")) as agent:
        events = agent.events()
        with pytest.raises(AgentError, match="is not an agent"):
            next(events)


def test_a_server_that_does_not_answer_is_an_error(tmp_path):
    silent = serve(tmp_path / "sock", answer(OK, wait=True), timeout=0.1)
    with silent as agent, pytest.raises(AgentError, match="did not answer"):
        agent.get("/v1/x")


def test_a_response_before_the_end_of_the_request_is_read(tmp_path):
    def handle(connection):
        # The length is needed: the connection is reset, since the server has not read the request.
        connection.sendall(b'HTTP/1.1 413 Too large\r\nContent-Length: 23\r\n\r\n{"detail": "too large"}')
        connection.shutdown(socket.SHUT_RDWR)

    with serve(tmp_path / "sock", handle) as agent, pytest.raises(AgentError, match="too large"):
        agent.admit({"padding": "x" * (1 << 24)})


def test_the_request_carries_the_token_and_the_query(tmp_path):
    requests = []

    def handle(connection):
        requests.append(connection.recv(1 << 16))
        connection.sendall(OK + b"\r\n{}")

    with serve(tmp_path / "sock", handle) as agent:
        agent.get(pod_path("a/b"), limit=0, other=None)

    lines = requests[0].split(b"\r\n")
    assert lines[0] == b"GET /v1/pods/a%2Fb?limit=0 HTTP/1.0"
    assert b"Authorization: Bearer secret" in lines


def test_events_are_yielded_as_they_arrive(tmp_path):
    received = threading.Event()

    def handle(connection):
        connection.recv(1 << 16)
        connection.sendall(OK + b'\r\n: comment\n\nevent: admitted\ndata: {"a": 1}\n\n')
        assert received.wait(60)
        connection.sendall(b'data: {"b": 2}\n')

    with serve(tmp_path / "sock", handle) as agent:
        events = agent.events()
        first = next(events)
        received.set()

        assert [first, *events] == [{"a": 1}, {"b": 2}]


def test_events_may_pause_for_longer_than_the_timeout(tmp_path):
    for timeout in (0.1, 1.0, 10.0):
        received = threading.Event()

        def handle(connection, timeout=timeout, received=received):
            connection.recv(1 << 16)
            with suppress(ConnectionError):
                connection.sendall(OK + b'\r\ndata: {"a": 1}\n')
                if received.wait(60):
                    time.sleep(1.5 * timeout)
                connection.sendall(b'data: {"b": 2}\n')

        with serve(tmp_path / f"{timeout}.sock", handle, timeout=timeout) as agent:
            events = agent.events()
            try:
                first = next(events)
            except AgentError:
                continue  # the machine is too busy for this timeout
            finally:
                received.set()
            assert [first, *events] == [{"a": 1}, {"b": 2}]
            return
    pytest.fail("no response within 10 seconds")


def test_an_error_instead_of_events_is_raised(tmp_path):
    sent = b'HTTP/1.1 404 Not found\r\n\r\n{"errors": [{"field": "tail", "message": "is wrong"}]}'

    with serve(tmp_path / "sock", answer(sent)) as agent, pytest.raises(AgentError, match="tail: is wrong"):
        list(agent.events())


@pytest.mark.parametrize("host", ["localhost", "x" * 70, "no such host"])
def test_an_agent_that_is_not_there_is_an_error(host):
    with pytest.raises(AgentError, match="no agent answers at "):
        AgentClient(TcpAddress(host, 1)).ping()
