"""Hostile clients of every kind at once: a client with the token is served, and nothing of them stays."""

import asyncio
import os
import random
import ssl
from contextlib import asynccontextmanager, suppress

import pytest

from alignup.web import sockets
from alignup.web.asgi_server import ConnectionLimits, ServerLimits, serve_app
from alignup.web.sockets import ServerCertificate
from tests.agent.fake_backend import FakeBackend, app_of
from tests.certificates import ca_file, install
from tests.deadlines import SECONDS, until
from tests.effort import SEED, attacked, did, rounds

pytestmark = pytest.mark.anyio

TOKEN = b"Authorization: Bearer secret\r\n"
OWNER = b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + TOKEN + b"\r\n"
LIMITS = ServerLimits(
    head=0.3,
    idle=1,
    read=0.3,
    unauthenticated=0.5,
    end=1,
    names=("x",),
    connections=ConnectionLimits(authenticated=64, unauthenticated=16, per_peer=16),  # some attackers have the token
)
CLOSED = b"a closed connection"
PATHS = [b"/healthz", b"/v1/pods", b"/v1/events", b"/v1/picture.svg", b"/metrics", b"/v1/decisions", b"/%00"]


def head(chance, *, length=0, authorized=False):
    method = b"POST" if length else b"GET"
    lines = [b"%s %s HTTP/1.1" % (method, chance.choice(PATHS)), b"Host: x", b"Content-Type: application/json"]
    lines += [b"Content-Length: %d" % length] if length else []
    return b"\r\n".join(lines) + b"\r\n" + (TOKEN if authorized else b"") + b"\r\n"


async def silent(_chance, reader, _writer):
    await reader.read()


async def slow_head(chance, _reader, writer):
    for byte in head(chance):
        writer.write(bytes([byte]))
        await asyncio.sleep(0.02)


async def slow_body(chance, _reader, writer):
    writer.write(head(chance, length=10_000, authorized=chance.random() < 0.5))
    for _ in range(100):
        writer.write(b" ")
        await asyncio.sleep(0.02)


async def never_reading(chance, _reader, writer):
    writer.transport.pause_reading()
    request = head(chance, authorized=chance.random() < 0.5)
    async with asyncio.timeout(2):
        while True:
            writer.write(request * 10)
            await writer.drain()
            await asyncio.sleep(0)


async def half_closed(chance, reader, writer):
    writer.write(head(chance, length=chance.choice([0, 100])))
    if writer.can_write_eof():
        writer.write_eof()
    await reader.read()


async def pipelined_rubbish(chance, reader, writer):
    writer.write(head(chance) * chance.randrange(50) + chance.randbytes(chance.randrange(100_000)))
    await reader.read()


async def endless_head(_chance, _reader, writer):
    writer.write(b"GET / HTTP/1.1\r\n")
    while True:
        writer.write(b"X: %s\r\n" % (b"x" * 10_000))
        await writer.drain()
        await asyncio.sleep(0)  # over TLS, drain returns at once after a reset, and the loop would never report it


async def vanishing(chance, _reader, writer):
    writer.write(head(chance)[: chance.randrange(100)])
    writer.transport.abort()


KINDS = [silent, slow_head, slow_body, never_reading, half_closed, pipelined_rubbish, endless_head, vanishing]


async def attack(kind, chance, address, context):
    """Behave as *kind* until the server closes the connection, or for a few seconds."""
    writer = None
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(3):
            reader, writer = await asyncio.open_connection(*address, ssl=context)
            await kind(chance, reader, writer)
    if writer is not None:
        writer.transport.abort()


async def ask(address, context):
    """The status of a request with the token, or :data:`CLOSED`.

    On a busy machine this client, too, may be slower than the server allows; then it asks again.
    """
    while True:
        clock = asyncio.get_running_loop().time
        started = clock()
        try:
            status = await ask_once(address, context)
        except TimeoutError as error:
            return repr(error).encode()
        except OSError:
            status = CLOSED
        if status != CLOSED or clock() - started < LIMITS.head:
            return status


async def ask_once(address, context):
    async with asyncio.timeout(SECONDS):
        reader, writer = await asyncio.open_connection(*address, ssl=context)
        try:
            writer.write(OWNER)
            status = (await reader.readline())[9:12] or CLOSED
        finally:
            writer.close()
    did("requests with the token among hostile HTTP clients")
    return status


@asynccontextmanager
async def serve(tls):
    stopping = asyncio.Event()
    app = app_of(FakeBackend(), stopping=stopping, token=b"secret", body_seconds=0.3)
    with sockets.tcp_socket(0) as listener:
        async with serve_app(app, listener, stopping=stopping, limits=LIMITS, tls=tls):
            yield listener.getsockname()


def descriptors():
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - only their number


@pytest.mark.soak
@pytest.mark.parametrize("with_tls", [False, True], ids=["plain", "TLS"])
async def test_hostile_clients_neither_lock_out_the_token_nor_stay(tmp_path, with_tls):
    certificate = ServerCertificate(*install("first", tmp_path)) if with_tls else None
    context = ssl.create_default_context(cafile=ca_file()) if with_tls else None
    chance = random.Random(SEED)
    findings: list[str] = []
    tries = 0
    async with serve(None if certificate is None else certificate.context) as address:
        assert await ask(address, context) == b"200"
        before = descriptors()
        for _ in range(rounds(1, soak=5)):
            kinds = KINDS * rounds(2, soak=16)
            chance.shuffle(kinds)
            # A peer's oldest connection is closed for so many newer ones, even ours during its handshake.
            closings = (len(kinds) - 1) // LIMITS.connections.per_peer
            attackers = [asyncio.ensure_future(attack(kind, chance, address, context)) for kind in kinds]
            while not all(attacker.done() for attacker in attackers):
                status = await ask(address, context)
                expected = status == b"200" or (status == CLOSED and closings > 0)
                findings += [] if expected else [f"seed {SEED}: the token got {status!r}"]
                closings -= status == CLOSED
                await asyncio.sleep(0.05)
            tries += len(await asyncio.gather(*attackers))
            try:
                await until(lambda: descriptors() <= before)
            except TimeoutError:
                findings.append(f"seed {SEED}: {descriptors() - before} descriptors stay open")

    attacked(f"hostile HTTP clients, {'TLS' if with_tls else 'plain'}", tries, findings)
