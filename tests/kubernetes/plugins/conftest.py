import tempfile
from pathlib import Path

import pytest

from alignup.kubernetes.plugins.endpoint import PluginTimeouts
from tests.grpc_fixtures import anyio_backend, one_loop
from tests.kubernetes.plugins.listener import RecordingListener, RecordingMetrics

__all__ = ["anyio_backend", "one_loop"]


@pytest.fixture
def directory():
    """A directory with a short path, which sockets need."""
    with tempfile.TemporaryDirectory(prefix="alignup-") as parent:
        yield Path(parent) / "plugins"


@pytest.fixture
def listener():
    return RecordingListener()


@pytest.fixture
def metrics():
    return RecordingMetrics()


@pytest.fixture
async def manager(directory, listener, metrics):
    async with listener.manager(directory, **metrics.of_manager) as made:
        yield made


@pytest.fixture
async def impatient(directory, listener, metrics):
    """A manager that waits only briefly for a plugin to register; a good plugin may have to try more than once."""
    async with listener.manager(directory, timeouts=PluginTimeouts(dial=0.2), **metrics.of_manager) as made:
        yield made
