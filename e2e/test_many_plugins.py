"""Fifty plugins with a thousand devices each, as processes, killed and started again under load: nothing is lost."""
# ruff: noqa: S101 - a test, as those in tests/

import asyncio
import random
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from alignup.align.errors import PluginError
from alignup.plugins.manager import DevicePluginManager
from tests.plugins.ears import Ears

PLUGINS, DEVICES = 50, 1_000


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def resource(number: int) -> str:
    return f"example.com/r{number}"


async def started(directory: Path, number: int, stack: AsyncExitStack) -> asyncio.subprocess.Process:
    """One of the plugins; killed when *stack* is left."""
    command = ["-m", "alignup.testing.plugin", "--resource", resource(number), "--dir", str(directory)]
    made = await asyncio.create_subprocess_exec(sys.executable, *command, "--devices", f"{DEVICES}@{number % 8}")
    stack.push_async_callback(ended, made)
    return made


async def ended(plugin: asyncio.subprocess.Process) -> None:
    if plugin.returncode is None:
        plugin.kill()
    await plugin.wait()


@pytest.mark.anyio
async def test_fifty_plugins_with_a_thousand_devices_each() -> None:
    ears, dice = Ears(), random.Random(3)  # noqa: S311 - not cryptography
    everything = {resource(number): DEVICES for number in range(PLUGINS)}
    with tempfile.TemporaryDirectory(prefix="alignup-") as place:
        directory = Path(place)
        async with DevicePluginManager(directory, ears) as exchange, AsyncExitStack() as stack:
            plugins = {number: await started(directory, number, stack) for number in range(PLUGINS)}
            await ears.until(lambda: exchange.capacity().allocatable == everything, seconds=120)

            calls = [asyncio.create_task(tried(exchange, dice)) for _ in range(500)]
            for number in dice.sample(range(PLUGINS), 10):
                plugins[number].kill()
                await plugins[number].wait()
                plugins[number] = await started(directory, number, stack)
            outcomes = await asyncio.gather(*calls)
            await ears.until(lambda: exchange.capacity().allocatable == everything, seconds=60)
            await exchange.settled()

            assert {name: len(ears.healthy(name)) for name in ears.devices} == everything
            assert sum(outcomes) > 300


async def tried(exchange: DevicePluginManager, dice: random.Random) -> bool:
    """Whether a device of any plugin could be had at some time in the next seconds."""
    await asyncio.sleep(dice.random() * 3)
    number = dice.randrange(PLUGINS)
    id_ = f"r{number}-{dice.randrange(DEVICES)}"
    try:
        grant = await exchange.allocate(resource(number), (id_,))
    except PluginError:
        return False
    assert grant.envs == {f"R{number}_DEVICES": id_}
    return True
