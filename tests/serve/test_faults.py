"""The server survives malformed requests and leaks nothing."""

import asyncio
import gc
import json
import random
import resource
from pathlib import Path

import pytest

from alignup.serve.server import ServerLimits
from tests.serve.fake_backend import FakeBackend, manifest
from tests.serve.real_server import client_at, on_unix, send_raw

pytestmark = pytest.mark.anyio

BODY = json.dumps(manifest("small", cpu="2", memory="1Gi")).encode()
METHODS = [b"GET", b"POST", b"DELETE", b"PUT", b"OPTIONS", b"TRACE", b"CONNECT", b"PRI", b"BREW", b"get"]
PATHS = [
    b"/v1/pods",
    b"/v1/pods/x",
    b"/v1/decisions",
    b"/v1/machine",
    b"/%00",
    b"/v1/pods/%ff",
    b"*",
    b"http://x/",
    b"//",
]
AT_A_TIME, ROUNDS = 100, 10


def request(method=b"POST", path=b"/v1/pods", *, headers=(), body=b"", length=None):
    lines = [method + b" " + path + b" HTTP/1.1", b"Host: x", b"Connection: close", *headers]
    if length is not False:
        lines.append(b"Content-Length: %d" % (len(body) if length is None else length))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


JSON = [b"Content-Type: application/json"]
CHUNKED = [*JSON, b"Transfer-Encoding: chunked"]


def malformed(chance):
    """A malformed request, in the parts to send."""
    kinds = [
        lambda: [chance.randbytes(chance.randrange(1, 2000))],
        lambda: [chance.randbytes(8) + b"\r\n\r\n"],
        lambda: [request(chance.choice(METHODS), chance.choice(PATHS), headers=JSON, body=chance.randbytes(50))],
        lambda: [request(headers=JSON, body=BODY[: chance.randrange(len(BODY))])],
        lambda: [request(headers=JSON, body=BODY, length=chance.randrange(len(BODY)))],
        lambda: [request(headers=JSON, body=BODY, length=len(BODY) + 10)],
        lambda: [request(headers=JSON, body=b"", length=chance.choice([10**9, 10**30]))],
        lambda: [request(headers=[*JSON, b"Content-Length: -1"], length=False)],
        lambda: [request(headers=[*JSON, b"Content-Length: 5", b"Content-Length: 6"], body=BODY, length=False)],
        lambda: [request(headers=CHUNKED, length=False) + b"zz\r\n" + BODY],
        lambda: [request(headers=CHUNKED, length=False) + b"5\r\nab"],
        lambda: [request(b"GET", headers=[b"X-Large: " + b"x" * 100_000])],
        lambda: [request(b"GET", headers=[b"X-%d: y" % number for number in range(5000)])],
        lambda: [request(b"GET", b"/" + b"a" * 100_000)],
        lambda: [request(b"GET", b"/v1/decisions?" + b"&".join([b"limit=1"] * 500))],
        lambda: [request(b"GET", headers=[b"Upgrade: websocket", b"Connection: upgrade"])],
        lambda: [request(headers=JSON, body=b"[" * chance.randrange(1000, 50_000))],
        lambda: [request(headers=JSON, body=b'{"a":' * 10_000)],
        lambda: [request(headers=[b"Content-Type: application/yaml"], body=b"- " * 20_000)],
        lambda: [request(headers=[b"Content-Type: application/yaml"], body=b"&a [*a, *a]")],
        lambda: [request(headers=[b"Content-Type: application/yaml"], body=chance.randbytes(500))],
        lambda: [request(b"GET").replace(b"HTTP/1.1", b"HTTP/9.9")],
        lambda: [request(b"GET").replace(b"\r\n", b"\n")],
    ]
    return chance.choice(kinds)()


async def test_the_server_survives_a_thousand_malformed_requests(tmp_path, caplog):
    path = tmp_path / "api.sock"
    agent = FakeBackend()
    chance = random.Random(8)
    limits = ServerLimits(head=0.15, idle=1, end=1, connections=4 * AT_A_TIME)
    sizes = []
    async with on_unix(agent, path, limits=limits, body_seconds=0.15):
        for _ in range(ROUNDS):
            answers = await asyncio.gather(*(send_raw(path, *malformed(chance)) for _ in range(AT_A_TIME)))

            assert not any(answer.startswith(b"HTTP/1.1 5") for answer in answers)
            async with client_at(path) as client:  # a new client, because the old connection may be closed as idle
                assert (await client.get("/healthz")).text == "ok\n"
            caplog.clear()
            gc.collect()
            sizes.append((len(gc.get_objects()), resident()))

        async with client_at(path) as client:
            sent = await client.post("/v1/pods", content=BODY, headers={"content-type": "application/json"})
        assert sent.status_code in {200, 201}
    objects, pages = (max(later) - most for later, most in zip(zip(*sizes[3:], strict=True), sizes[2], strict=True))
    assert objects < 2_000, f"objects grow: {sizes}"
    assert pages < 16 << 20, f"memory grows: {sizes}"


def resident():
    """The resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
