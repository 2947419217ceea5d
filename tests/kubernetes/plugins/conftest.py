import tempfile
from pathlib import Path

import pytest

from alignup.kubernetes.plugins.endpoint import PluginTimeouts
from alignup.kubernetes.plugins.manager import DevicePluginManager
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
    async with DevicePluginManager(directory, *listener.callbacks, **metrics.callbacks) as made:
        yield made


@pytest.fixture
async def impatient(directory, listener, metrics):
    """A manager that waits only briefly for a plugin to register; a good plugin may have to try more than once."""
    timeouts = PluginTimeouts(dial=0.2)
    async with DevicePluginManager(directory, *listener.callbacks, **metrics.callbacks, timeouts=timeouts) as made:
        yield made
