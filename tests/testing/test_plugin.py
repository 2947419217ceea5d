"""The plugin as a process: it registers, does as its script says, dies and is started again."""

import asyncio
import json
import signal

import pytest

from alignup.align.errors import PluginError
from alignup.plugins.manager import DevicePluginManager
from alignup.testing.plugin import main
from tests.testing.processes import process

pytestmark = pytest.mark.anyio

GPU = "example.com/gpu"


async def test_it_registers_serves_and_stops_when_told(directory, exchange, ears):
    async with process(directory, "--devices", "2@0,2@1", "--preferred", "highest", "--prestart") as plugin:
        await ears.until(lambda: len(ears.healthy(GPU)) == 4)
        grant = await exchange.allocate(GPU, ("gpu-3",))
        await exchange.pre_start(GPU, ("gpu-3",))
        assert plugin.stdout is not None
        assert plugin.stderr is not None
        said = await plugin.stdout.readline()

        plugin.send_signal(signal.SIGTERM)
        await ears.until(lambda: ears.heard[-1] == ("stopped", GPU))
        assert await asyncio.wait_for(plugin.wait(), 5) == 0
        complaints = await plugin.stderr.read()

    assert ears.preferred == {GPU: True}
    assert grant.envs == {"GPU_DEVICES": "gpu-3"}
    assert (said, complaints) == (b"registered example.com/gpu: 1\n", b"")


async def test_killed_it_is_missed_and_started_again_it_is_back(directory, exchange, ears):
    async with process(directory, "--devices", "2@0") as plugin:
        await ears.until(lambda: len(ears.healthy(GPU)) == 2)
        plugin.kill()
        await ears.until(lambda: ears.heard[-1] == ("stopped", GPU))
    async with process(directory, "--devices", "3@0"):
        await ears.until(lambda: len(ears.healthy(GPU)) == 3)

    assert ears.heard[:3] == [("announced", GPU), ("stopped", GPU), ("announced", GPU)]


async def test_it_registers_again_when_the_registry_is_back(directory, ears):
    async with process(directory, "--devices", "2@0"):
        for _ in range(2):
            async with DevicePluginManager(directory, ears):
                await ears.until(lambda: len(ears.healthy(GPU)) == 2)
            ears.devices.clear()


async def test_it_dies_of_too_many_calls(directory, exchange, ears):
    async with process(directory, "--devices", "2@0", "--crash-after", "2", "--allocate-delay", "0.01") as plugin:
        await ears.until(lambda: GPU in ears.devices)
        for _ in range(2):
            await exchange.allocate(GPU, ("gpu-0",))
        with pytest.raises(PluginError):
            await exchange.allocate(GPU, ("gpu-0",))
        assert await asyncio.wait_for(plugin.wait(), 5) == -signal.SIGKILL
    await ears.until(lambda: ears.heard[-1] == ("stopped", GPU))


async def test_it_does_what_its_script_says(directory, exchange, ears, tmp_path):
    steps = [
        {"do": "fault", "method": "Allocate", "error": "out of order"},
        {"after": 0.1, "do": "devices", "devices": "1@1"},
        {"after": 1, "do": "crash"},
    ]
    script = tmp_path / "script"
    script.write_text("\n".join(map(json.dumps, steps)))

    async with process(directory, "--devices", "3@0", "--script", str(script)) as plugin:
        await ears.until(lambda: [device.nodes for device in ears.devices.get(GPU, ())] == [0b10])
        with pytest.raises(PluginError, match="out of order"):
            await exchange.allocate(GPU, ("gpu-0",))
        assert await asyncio.wait_for(plugin.wait(), 5) == -signal.SIGKILL


@pytest.mark.parametrize(
    ("options", "says"),
    [
        pytest.param(["--devices", "x"], "is no count of devices", id="devices that are none"),
        pytest.param(["--devices", "1", "--script", "nowhere/at-all"], "No such file", id="no such script"),
    ],
)
def test_what_is_wrong_is_said(capsys, options, says):
    status = main(["--resource", GPU, "--dir", "nowhere", *options])

    assert status == 2
    assert says in capsys.readouterr().err
