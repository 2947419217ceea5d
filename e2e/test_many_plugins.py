"""Fifty plugins with a thousand devices each, as processes that are killed and restarted under load."""

import asyncio
import random
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from alignup.align.errors import PluginError
from alignup.kubernetes.plugins.manager import DevicePluginManager
from tests.kubernetes.plugins.capacity import capacity_of
from tests.kubernetes.plugins.listener import RecordingListener

PLUGINS, DEVICES = 50, 1_000
TIMEOUT = 300.0  #: seconds


def resource(number: int) -> str:
    return f"example.com/r{number}"


async def started(directory: Path, number: int, stack: AsyncExitStack) -> asyncio.subprocess.Process:
    """Start a plugin that is killed when *stack* closes."""
    command = ["-m", "alignup.testing.plugin", "--resource", resource(number), "--dir", str(directory)]
    plugin = await asyncio.create_subprocess_exec(sys.executable, *command, "--devices", f"{DEVICES}@{number % 8}")
    stack.push_async_callback(ended, plugin)
    return plugin


async def ended(plugin: asyncio.subprocess.Process) -> None:
    if plugin.returncode is None:
        plugin.kill()
    await plugin.wait()


@pytest.mark.anyio
async def test_fifty_plugins_with_a_thousand_devices_each() -> None:
    listener, dice = RecordingListener(), random.Random(3)
    expected = {resource(number): DEVICES for number in range(PLUGINS)}
    with tempfile.TemporaryDirectory(prefix="alignup-") as place:
        directory = Path(place)
        async with (
            DevicePluginManager(directory, *listener.callbacks) as manager,
            AsyncExitStack() as stack,
        ):
            plugins = {number: await started(directory, number, stack) for number in range(PLUGINS)}
            await listener.until(lambda: capacity_of(manager).allocatable == expected, seconds=TIMEOUT)

            calls = [asyncio.create_task(tried(manager, dice)) for _ in range(500)]
            for number in dice.sample(range(PLUGINS), 10):
                plugins[number].kill()
                await plugins[number].wait()
                plugins[number] = await started(directory, number, stack)
            outcomes = await asyncio.gather(*calls)
            await listener.until(lambda: capacity_of(manager).allocatable == expected, seconds=TIMEOUT)
            await manager.settled()

            assert {name: len(listener.healthy(name)) for name in listener.devices} == expected
            assert sum(outcomes) > 300


async def tried(manager: DevicePluginManager, dice: random.Random) -> bool:
    """Allocate a random device within the next seconds, and return whether that succeeded."""
    await asyncio.sleep(dice.random() * 3)
    number = dice.randrange(PLUGINS)
    id_ = f"r{number}-{dice.randrange(DEVICES)}"
    try:
        response = await manager.allocate(resource(number), (id_,))
    except PluginError:
        return False
    assert response.envs == {f"R{number}_DEVICES": id_}
    return True
