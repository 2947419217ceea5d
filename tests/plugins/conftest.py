import tempfile
from pathlib import Path

import pytest

from alignup.plugins.endpoint import PluginTimeouts
from alignup.plugins.manager import DevicePluginManager
from tests.grpc_fixtures import anyio_backend, one_loop
from tests.plugins.ears import Ears

__all__ = ["anyio_backend", "one_loop"]

QUICK = PluginTimeouts(dial=0.3, preferred=0.3, allocate=0.3, pre_start=0.3)


@pytest.fixture
def directory():
    """With a short name, as sockets need it."""
    with tempfile.TemporaryDirectory(prefix="alignup-") as place:
        yield Path(place) / "plugins"


@pytest.fixture
def ears():
    return Ears()


@pytest.fixture
async def exchange(directory, ears):
    async with DevicePluginManager(directory, ears) as made:
        yield made


@pytest.fixture
async def strict(directory, ears):
    """An exchange that waits for nobody; on a busy machine even good plugins may be too slow for it."""
    async with DevicePluginManager(directory, ears, deadlines=QUICK) as made:
        yield made
