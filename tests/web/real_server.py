"""The API on a real socket with the real server."""

import asyncio
import socket
from contextlib import asynccontextmanager

import httpx2

from alignup.web import sockets
from alignup.web.asgi_server import ServerLimits, serve_app
from tests.agent.fake_backend import app_of
from tests.deadlines import SECONDS


@asynccontextmanager
async def on_unix(agent, path, *, limits=None, **options):
    """Serve the API at *path*; yield the event that ends streams."""
    stopping = asyncio.Event()
    app = app_of(agent, stopping=stopping, **options)
    with sockets.unix_socket(path) as listener:
        async with serve_app(app, listener, stopping=stopping, limits=limits or ServerLimits(end=2)):
            yield stopping


def client_at(path, **options):
    return httpx2.AsyncClient(
        transport=httpx2.AsyncHTTPTransport(uds=str(path), verify=False), base_url="http://agent", **options
    )


async def send_raw(path, request, *, answer=b"", then=b""):
    """Send raw bytes, wait for *answer*, and send *then* again and again until the server closes the connection.

    Return the response after *answer*; a server that closes a connection before it has read everything may cut it off.
    """
    reader, writer = await asyncio.open_unix_connection(str(path))
    try:
        async with asyncio.timeout(SECONDS):
            writer.write(request)
            if answer:
                await reader.readuntil(answer)
            response = asyncio.ensure_future(reader.read())
            while then and not response.done():
                writer.write(then)
                await asyncio.wait({response}, timeout=0.01)
            return await response
    except ConnectionError:
        return b""
    finally:
        writer.close()


def stale_socket(path):
    """A stale socket."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
