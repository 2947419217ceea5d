"""The API on a real socket with the real server."""

import asyncio
import socket
from contextlib import asynccontextmanager

import httpx2

from alignup.serve import sockets
from alignup.serve.server import ServerLimits
from tests.serve.fake_backend import app_of


@asynccontextmanager
async def on_unix(agent, path, *, limits=None, **options):
    """Serve the API at *path*; yield the event that ends streams."""
    stopping = asyncio.Event()
    app = app_of(agent, stopping=stopping, **options)
    with sockets.unix_socket(path) as listener:
        async with sockets.serve_app(app, listener, stopping=stopping, limits=limits or ServerLimits(end=2)):
            yield stopping


def client_at(path, **options):
    return httpx2.AsyncClient(transport=httpx2.AsyncHTTPTransport(uds=str(path)), base_url="http://agent", **options)


async def send_raw(path, *parts, pause=0.0):
    """Send raw bytes and return the response; ``None`` if the server closed the connection without one."""
    reader, writer = await asyncio.open_unix_connection(str(path))
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause)
        async with asyncio.timeout(5):
            return await reader.read()
    except (ConnectionError, BrokenPipeError):
        return b""
    finally:
        writer.close()


def stale_socket(path):
    """A stale socket."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
