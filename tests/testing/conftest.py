import pytest

from tests.grpc_fixtures import anyio_backend, one_loop
from tests.kubernetes.plugins.conftest import directory, listener, manager, metrics
from tests.short_paths import short_directory

__all__ = ["anyio_backend", "directory", "listener", "manager", "metrics", "one_loop"]


@pytest.fixture
def root():
    """A directory with a short path, which sockets need."""
    with short_directory() as path:
        yield path
