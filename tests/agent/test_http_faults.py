"""The server survives malformed requests and leaks nothing."""

import asyncio
import gc
import json
import random
import resource
from http import HTTPStatus
from pathlib import Path

import httpx2
import pytest

from alignup.web.asgi_server import ConnectionLimits, ServerLimits
from tests.agent.fake_backend import FakeBackend, manifest
from tests.deadlines import SECONDS
from tests.effort import SEED, did, rounds
from tests.web.real_server import client_at, on_unix, send_raw

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


def request(method=b"POST", path=b"/v1/pods", *, headers=(), body=b"", length=None):
    lines = [method + b" " + path + b" HTTP/1.1", b"Host: x", b"Connection: close", *headers]
    if length is not False:
        lines.append(b"Content-Length: %d" % (len(body) if length is None else length))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


JSON = [b"Content-Type: application/json"]
CHUNKED = [*JSON, b"Transfer-Encoding: chunked"]


def malformed(chance):
    """One malformed request of each kind, in random order."""
    requests = [
        chance.randbytes(chance.randrange(1, 2000)),
        chance.randbytes(8) + b"\r\n\r\n",
        request(chance.choice(METHODS), chance.choice(PATHS), headers=JSON, body=chance.randbytes(50)),
        request(headers=JSON, body=BODY[: chance.randrange(len(BODY))]),
        request(headers=JSON, body=BODY, length=chance.randrange(len(BODY))),
        request(headers=JSON, body=BODY, length=len(BODY) + 10),
        request(headers=JSON, body=b"", length=chance.choice([10**9, 10**30])),
        request(headers=[*JSON, b"Content-Length: -1"], length=False),
        request(headers=[*JSON, b"Content-Length: 5", b"Content-Length: 6"], body=BODY, length=False),
        request(headers=CHUNKED, length=False) + b"zz\r\n" + BODY,
        request(headers=CHUNKED, length=False) + b"5\r\nab",
        request(b"GET", headers=[b"X-Large: " + b"x" * 100_000]),
        request(b"GET", headers=[b"X-%d: y" % number for number in range(5000)]),
        request(b"GET", b"/" + b"a" * 100_000),
        request(b"GET", b"/v1/decisions?" + b"&".join([b"limit=1"] * 500)),
        request(b"GET", headers=[b"Upgrade: websocket", b"Connection: upgrade"]),
        request(headers=JSON, body=b"[" * chance.randrange(1000, 50_000)),
        request(headers=JSON, body=b'{"a":' * 10_000),
        request(headers=[b"Content-Type: application/yaml"], body=b"- " * 20_000),
        request(headers=[b"Content-Type: application/yaml"], body=b"&a [*a, *a]"),
        request(headers=[b"Content-Type: application/yaml"], body=chance.randbytes(500)),
        request(b"GET").replace(b"HTTP/1.1", b"HTTP/9.9"),
        request(b"GET").replace(b"\r\n", b"\n"),
    ]
    chance.shuffle(requests)
    return requests


@pytest.mark.soak
async def test_the_server_survives_malformed_requests(tmp_path, caplog):
    path = tmp_path / "api.sock"
    agent = FakeBackend()
    chance = random.Random(SEED)
    limits = ServerLimits(
        head=0.1, idle=600, end=1, connections=ConnectionLimits(unauthenticated=4 * len(malformed(chance)))
    )
    sizes = {}
    last = rounds(4, soak=200) - 1
    async with on_unix(agent, path, limits=limits, body_seconds=0.1):
        for number in range(last + 1):
            requests = malformed(chance)
            answers = await asyncio.gather(*(send_raw(path, request) for request in requests))
            did("malformed requests", len(requests))

            assert not any(answer.startswith(b"HTTP/1.1 5") for answer in answers)
            assert (await answered(path, "GET", "/healthz")).text == "ok\n"
            caplog.clear()
            if number in (1, last):
                gc.collect()
                sizes[number] = len(gc.get_objects()), resident()

        sent = await answered(path, "POST", "/v1/pods", content=BODY, headers={"content-type": "application/json"})
        assert sent.status_code in {200, 201}
    objects, memory = (after - before for before, after in zip(*sizes.values(), strict=True))
    assert objects < 2_000, f"objects grow: {sizes}"
    assert memory < 16 << 20, f"memory grows: {sizes}"


async def answered(path, method, url, **options):
    """Send a request until the server reads all of it within its short timeouts."""
    async with asyncio.timeout(SECONDS):
        while True:
            async with client_at(path, timeout=SECONDS) as client:
                try:
                    response = await client.request(method, url, **options)
                except httpx2.TransportError:
                    continue
            if response.status_code != HTTPStatus.REQUEST_TIMEOUT:
                return response


def resident():
    """The resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
