import asyncio

import pytest
from structlog.testing import capture_logs

from alignup.kubernetes.api import Access, ApiClient, Timing
from alignup.testing.api_server import ApiServer
from tests.kubernetes.api.tasks import running

__all__ = ["client", "follow", "log", "server", "timing"]


@pytest.fixture
def log():
    """The entries of the log."""
    with capture_logs() as entries:
        yield entries


@pytest.fixture
async def server(anyio_backend):
    async with ApiServer() as made:
        yield made


@pytest.fixture
def timing():
    """Retries without waiting, on the clock of the event loop."""
    return Timing(retry=0.0, sleep=lambda seconds: asyncio.sleep(0), clock=lambda: asyncio.get_running_loop().time())


@pytest.fixture
async def client(server, timing):
    async with ApiClient(Access(server=server.url, source="the test"), timing=timing) as made:
        yield made


@pytest.fixture
async def follow():
    """Run informers until the end of the test."""
    async with running() as start:
        yield start
