import pytest

from tests.grpc_fixtures import anyio_backend, one_loop
from tests.plugins.conftest import directory, ears, exchange
from tests.short_paths import short_directory
from tests.testing.runtimes import runtime_and_client

__all__ = ["anyio_backend", "directory", "ears", "exchange", "one_loop"]


@pytest.fixture
def place():
    """With a short name, as sockets need it."""
    with short_directory() as made:
        yield made


@pytest.fixture
async def both(place):
    """A runtime for tests, and somebody who uses it."""
    async with runtime_and_client(place) as made:
        yield made


@pytest.fixture
def runtime(both):
    return both[0]


@pytest.fixture
def client(both):
    return both[1]
