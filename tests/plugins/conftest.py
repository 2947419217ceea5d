import asyncio
import tempfile
from pathlib import Path

import pytest

from alignup.plugins.endpoint import Deadlines
from alignup.plugins.exchange import Exchange
from tests.plugins.ears import Ears

QUICK = Deadlines(dial=0.3, preferred=0.3, allocate=0.3, pre_start=0.3)


@pytest.fixture(scope="package")
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="package", autouse=True)
async def one_loop(anyio_backend):
    """All tests here share a loop.

    gRPC hands what is left of a call that was given up to the loop it was made in, a little later, and when that is
    closed by then it complains in the next one.
    """
    yield
    await asyncio.sleep(0.1)


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
    async with Exchange(directory, ears) as made:
        yield made


@pytest.fixture
async def strict(directory, ears):
    """An exchange that waits for nobody; on a busy machine even good plugins may be too slow for it."""
    async with Exchange(directory, ears, deadlines=QUICK) as made:
        yield made
