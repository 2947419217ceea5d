import pytest

from tests.grpc_fixtures import anyio_backend, one_loop
from tests.kubernetes.plugins.conftest import directory, listener, manager, metrics
from tests.short_paths import short_directory
from tests.testing.runtimes import runtime_and_client

__all__ = ["anyio_backend", "directory", "listener", "manager", "metrics", "one_loop"]


@pytest.fixture
def root():
    """A directory with a short path, which sockets need."""
    with short_directory() as made:
        yield made


@pytest.fixture
async def both(root):
    """A test runtime and a client of it."""
    async with runtime_and_client(root) as made:
        yield made


@pytest.fixture
def runtime(both):
    return both[0]


@pytest.fixture
def client(both):
    return both[1]
