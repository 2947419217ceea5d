"""The webhook on a real socket, with thousands of connections and slow clients: API servers are answered meanwhile."""

import asyncio
import json
import os
import resource
import socket
import ssl
from collections import deque

import pytest

from alignup.schedule.gate.admission import answer_review, webhook_app
from alignup.schedule.gate.metrics import GateMetrics
from alignup.schedule.gate.service import WEBHOOK_PATH, WebhookServer
from alignup.web.asgi_server import ConnectionLimits, ServerLimits, kubernetes_limits, serve_app
from alignup.web.metrics import metrics_lines
from alignup.web.sockets import ServerCertificate, tcp_socket
from tests.certificates import ca_file, install
from tests.deadlines import SECONDS, until
from tests.kubernetes.api.tasks import running
from tests.schedule.gate.test_admission import pod, review

pytestmark = pytest.mark.anyio

CONNECTIONS = 2000
STRANGER = ("127.0.0.2", 0)  #: an address other than that of the API server
REVIEW = json.dumps(review(pod())).encode()
HEAD = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


@pytest.fixture
def trusting():
    return ssl.create_default_context(cafile=ca_file())


@pytest.fixture
async def address(tmp_path):
    """The address of a webhook that is served as a replica serves it."""
    certificate = ServerCertificate(*install("first", tmp_path))
    with tcp_socket(0) as listener:
        async with running() as start:
            start(WebhookServer(listener, certificate, {WEBHOOK_PATH: answer_review}, kubernetes_limits()).run())
            yield listener.getsockname()[:2]


async def ask(address, trusting, *, local=None, body=REVIEW):
    """Send a review on a new connection; return the response, and the connection."""
    async with asyncio.timeout(SECONDS):
        reader, writer = await asyncio.open_connection(*address, ssl=trusting, local_addr=local)
        writer.write(HEAD % (WEBHOOK_PATH.encode(), len(body)) + body)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split()[0])
        return head.split()[1], await reader.readexactly(length), writer


async def is_answered(address, trusting):
    status, body, writer = await ask(address, trusting)
    writer.close()
    return status == b"200" and json.loads(body)["response"]["allowed"]


def descriptors():
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - only their number


async def test_thousands_of_silent_connections(address, trusting):
    """The oldest of a stranger are closed for newer ones, whose number is limited."""
    before = descriptors()
    open_at_a_time = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2 - before, 500)
    opened: deque[socket.socket] = deque()
    for number in range(CONNECTIONS):
        stranger = socket.socket()
        stranger.setblocking(False)
        stranger.bind(STRANGER)
        await asyncio.get_running_loop().sock_connect(stranger, address)
        opened.append(stranger)
        if len(opened) > open_at_a_time:
            opened.popleft().close()
        if number % 500 == 0:
            assert await is_answered(address, trusting)
    assert await is_answered(address, trusting)
    await until(lambda: descriptors() - before - len(opened) <= ConnectionLimits().per_peer + 2)
    for stranger in opened:
        stranger.close()
    await until(lambda: descriptors() <= before + 2)


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"POST /v1/ga", id="a part of the head"),
        pytest.param(HEAD % (WEBHOOK_PATH.encode(), 8 << 20), id="a head without the body"),
        pytest.param(HEAD % (WEBHOOK_PATH.encode(), len(REVIEW)) + REVIEW[:-1], id="all but the last byte"),
        pytest.param((HEAD % (WEBHOOK_PATH.encode(), len(REVIEW)) + REVIEW) * 200, id="many reviews, never reading"),
    ],
)
async def test_slow_clients(address, trusting, sent):
    writers = []
    for _ in range(40):
        _, writer = await asyncio.open_connection(*address, ssl=trusting, local_addr=STRANGER)
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # of a socket, it has one
        writer.write(sent)
        writers.append(writer)

    assert await is_answered(address, trusting)
    for writer in writers:
        writer.transport.abort()


async def test_a_review_is_answered_while_strangers_have_all_slots_of_known_clients(tmp_path, trusting):
    """Anyone who reaches the webhook can send reviews, and then counts as known."""
    certificate = ServerCertificate(*install("first", tmp_path))
    limits = ServerLimits(connections=ConnectionLimits(authenticated=8, unauthenticated=4, per_peer=2))
    app = webhook_app({WEBHOOK_PATH: answer_review})
    with tcp_socket(0) as listener:
        async with serve_app(app, listener, stopping=asyncio.Event(), limits=limits, tls=certificate.context):
            address = listener.getsockname()[:2]
            strangers = [(await ask(address, trusting, local=STRANGER))[2] for _ in range(20)]

            assert await is_answered(address, trusting)
            for writer in strangers:
                writer.transport.abort()


async def test_too_large_a_review_is_refused_before_it_is_read(address, trusting):
    async with asyncio.timeout(SECONDS):
        reader, writer = await asyncio.open_connection(*address, ssl=trusting)
        writer.write(HEAD % (WEBHOOK_PATH.encode(), 9 << 20))
        assert (await reader.readline()).split()[1] == b"413"
        writer.transport.abort()


async def test_labels_of_metrics_take_no_names_of_pods_or_namespaces():
    """Whatever is reviewed, a metric of the gate has as many series as there are outcomes and states."""
    metrics = GateMetrics()
    for number in range(50):
        document = review(pod(metadata={"name": f"p{number}", "labels": {"a": f"x{number}"}}), namespace=f"n{number}")
        answer_review(json.dumps(document).encode(), metrics.reviewed)
    text = "".join(metrics_lines(metrics.registry))
    labels = {line.partition("{")[2].partition("=")[0] for line in text.splitlines() if "{" in line}

    assert labels <= {"outcome", "state", "le"}
    assert 'alignup_gate_reviews_total{outcome="gated"} 50\n' in text
