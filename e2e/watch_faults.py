"""A proxy before an API server that repeats and reorders events of watches, as no API server should.

Lists, and the lists that watches begin with, stay as they are.
"""

import asyncio
import json
import random
import ssl
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import ClientError, ClientSession, ClientTimeout, StreamReader, TCPConnector, web

from e2e.control_plane import ADMIN, ControlPlane

HOLD_SECONDS = 0.2  #: for which an event waits for the next, to come after it
_PASSED = ("Accept", "Content-Type", "User-Agent")  #: headers
_FAILED = 502


@dataclass
class WatchFaults:
    """Shares of all events, from 0 to 1."""

    repeated: float = 0.05  #: at once, or after a few others
    reordered: float = 0.005  #: after the next one; a client lists again
    chance: random.Random = field(default_factory=lambda: random.Random(1))
    done: Counter[str] = field(default_factory=Counter)

    async def disturb(self, lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yield the lines of a watch with faults."""
        earlier: deque[bytes] = deque(maxlen=8)
        delayed = b""
        pending = asyncio.ensure_future(anext(lines, b""))
        try:
            while True:
                await asyncio.wait([pending], timeout=HOLD_SECONDS if delayed else None)
                if not pending.done():
                    yield delayed
                    delayed = b""
                    continue
                line = pending.result()
                if not line:
                    break
                pending = asyncio.ensure_future(anext(lines, b""))
                if not delayed and self.chance.random() < self.reordered:
                    delayed = line
                    continue
                yield line
                earlier.append(line)
                if delayed:
                    yield delayed
                    self.done["reordered"] += 1
                    delayed = b""
                if self.chance.random() < self.repeated:
                    yield self.chance.choice(earlier)
                    self.done["repeated"] += 1
            if delayed:
                yield delayed
        finally:
            pending.cancel()


@asynccontextmanager
async def disturbed(plane: ControlPlane, faults: WatchFaults) -> AsyncIterator[Path]:
    """Serve the API server of *plane* with faults, for its administrator; yield a kubeconfig."""
    trust = ssl.create_default_context(cafile=str(plane.certificate))
    trust.verify_flags &= ~ssl.VERIFY_X509_STRICT
    session = ClientSession(connector=TCPConnector(ssl=trust, limit=0), timeout=ClientTimeout(total=None))

    async def forward(request: web.Request) -> web.StreamResponse:
        headers = {name: request.headers[name] for name in _PASSED if name in request.headers}
        headers |= {"Authorization": f"Bearer {ADMIN}", "Accept-Encoding": "identity"}
        body = await request.read()
        try:
            async with session.request(
                request.method, f"{plane.url}{request.path_qs}", data=body or None, headers=headers
            ) as answer:
                kept = {"Content-Type": answer.headers.get("Content-Type", "application/json")}
                if "watch" not in request.query or answer.status >= 300:
                    return web.Response(status=answer.status, body=await answer.read(), headers=kept)
                response = web.StreamResponse(status=answer.status, headers=kept)
                await response.prepare(request)
                initial = request.query.get("sendInitialEvents") == "true"
                async for line in _lines(answer.content, faults, initial=initial):
                    await response.write(line)
                return response
        except ClientError as error:
            return web.Response(status=_FAILED, text=str(error))

    app = web.Application(client_max_size=2**26)
    app.router.add_route("*", "/{path:.*}", forward)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    config = plane.directory / "disturbed.kubeconfig"
    cluster = {"name": "e2e", "cluster": {"server": f"http://127.0.0.1:{port}"}}
    context = {"name": "e2e", "context": {"cluster": "e2e", "user": "e2e"}}
    document = {"apiVersion": "v1", "kind": "Config", "current-context": "e2e", "clusters": [cluster]}
    config.write_text(json.dumps({**document, "contexts": [context], "users": [{"name": "e2e", "user": {}}]}))
    try:
        yield config
    finally:
        await runner.cleanup()
        await session.close()


async def _lines(content: StreamReader, faults: WatchFaults, *, initial: bool) -> AsyncIterator[bytes]:
    """Yield the lines of a response, with faults after the list that it may begin with."""

    async def read() -> AsyncIterator[bytes]:
        while line := await content.readline():
            yield line

    lines = read()
    with suppress(ClientError, ValueError):
        while initial and (line := await anext(lines, b"")):
            initial = b"k8s.io/initial-events-end" not in line
            yield line
        async for line in faults.disturb(lines):
            yield line
