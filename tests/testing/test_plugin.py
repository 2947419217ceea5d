"""The plugin as a process: it registers, runs its script, dies and restarts."""

import asyncio
import json
import signal
import sys
from pathlib import Path

import pytest

from alignup.align.devices.provider import PreferenceRequest
from alignup.align.errors import PluginError
from alignup.kubernetes.plugins.manager import DevicePluginManager
from alignup.testing.plugin import main
from tests.testing.processes import exit_code, plugin_process, plugin_program_process

pytestmark = pytest.mark.anyio

GPU = "example.com/gpu"
EXAMPLES = Path(__file__).parents[2] / "examples"


async def test_it_registers_serves_and_stops_on_sigterm(directory, manager, listener):
    options = ("--devices", "2@0,2@1", "--preferred", "highest", "--prestart")
    async with plugin_program_process(directory, *options) as plugin:
        await listener.until(lambda: len(listener.healthy(GPU)) == 4)
        response = await manager.allocate(GPU, ("gpu-3",))
        await manager.pre_start(GPU, ("gpu-3",))
        assert plugin.stdout is not None
        assert plugin.stderr is not None
        printed = await plugin.stdout.readline()

        plugin.send_signal(signal.SIGTERM)
        await listener.until(lambda: listener.events[-1] == ("stopped", GPU))
        assert await asyncio.wait_for(plugin.wait(), 60) == 0
        errors = await plugin.stderr.read()

    assert listener.preferred == {GPU: True}
    assert response.envs == {"GPU_DEVICES": "gpu-3"}
    assert (printed, errors) == (b"registered example.com/gpu: 1\n", b"")


async def test_it_prefers_near_devices_of_a_machine(directory, manager, listener):
    options = ("--devices", "4@0,4@1", "--preferred", "near", "--machine", str(EXAMPLES / "locality/machine.yaml"))
    with plugin_process(directory, *options):
        await listener.until(lambda: len(listener.healthy(GPU)) == 8)
        assert set(await manager.preferred(question(GPU, [f"gpu-{number}" for number in range(1, 8)], 2))) == {
            "gpu-1",
            "gpu-2",
        }


async def test_the_example_prefers_near_devices(directory, manager, listener):
    machine = str(EXAMPLES / "locality/machine.yaml")
    arguments = (GPU, "--kind", "GPU", "--dir", str(directory), "--machine", machine)
    process = await asyncio.create_subprocess_exec(sys.executable, str(EXAMPLES / "near_plugin.py"), *arguments)
    try:
        await listener.until(lambda: len(listener.healthy(GPU)) == 8)
        assert listener.preferred == {GPU: True}
        available = ["0000:14:00.0", "0000:21:00.0", "0000:42:00.0", "0000:24:00.0"]
        assert set(await manager.preferred(question(GPU, available, 2))) == {"0000:21:00.0", "0000:24:00.0"}
        await manager.allocate(GPU, ("0000:21:00.0",))
    finally:
        process.kill()
        await process.wait()


@pytest.mark.parametrize("options", [(), ("--machine", "nowhere.yaml")])
def test_near_devices_need_a_machine(capsys, options):
    with pytest.raises(SystemExit) as end:
        main(["--resource", GPU, "--devices", "1", "--dir", "/", "--preferred", "near", *options])
    assert end.value.code == 2
    assert "--machine" in capsys.readouterr().err


def question(resource, available, size):
    return PreferenceRequest(
        uid="uid", container="app", resource=resource, available=tuple(available), must_include=(), size=size
    )


async def test_a_killed_plugin_is_noticed_and_may_come_back(directory, manager, listener):
    with plugin_process(directory, "--devices", "2@0") as plugin:
        await listener.until(lambda: len(listener.healthy(GPU)) == 2)
        plugin.kill()
        await listener.until(lambda: listener.events[-1] == ("stopped", GPU))
    with plugin_process(directory, "--devices", "3@0"):
        await listener.until(lambda: len(listener.healthy(GPU)) == 3)

    assert listener.events[:3] == [("listed", GPU), ("stopped", GPU), ("listed", GPU)]


async def test_it_registers_again_with_a_new_registry(directory, listener):
    with plugin_process(directory, "--devices", "2@0"):
        for _ in range(2):
            async with DevicePluginManager(directory, *listener.callbacks):
                await listener.until(lambda: len(listener.healthy(GPU)) == 2)
            listener.devices.clear()


async def test_it_crashes_after_the_given_number_of_calls(directory, manager, listener):
    with plugin_process(directory, "--devices", "2@0", "--crash-after", "2", "--allocate-delay", "0.01") as plugin:
        await listener.until(lambda: GPU in listener.devices)
        for _ in range(2):
            await manager.allocate(GPU, ("gpu-0",))
        with pytest.raises(PluginError):
            await manager.allocate(GPU, ("gpu-0",))
        assert await exit_code(plugin) == -signal.SIGKILL
    await listener.until(lambda: listener.events[-1] == ("stopped", GPU))


async def test_it_runs_its_script(directory, manager, listener, tmp_path):
    steps = [
        {"do": "fault", "method": "Allocate", "error": "out of order"},
        {"after": 0.01, "do": "devices", "devices": "1@1"},
    ]
    script = tmp_path / "script"
    script.write_text("\n".join(map(json.dumps, steps)))

    with plugin_process(directory, "--devices", "3@0", "--script", str(script)):
        await listener.until(lambda: [device.nodes for device in listener.devices.get(GPU, ())] == [0b10])
        with pytest.raises(PluginError, match="out of order"):
            await manager.allocate(GPU, ("gpu-0",))


async def test_its_script_may_crash_it(directory, tmp_path):
    script = tmp_path / "script"
    script.write_text('{"do": "crash"}')

    with plugin_process(directory, "--devices", "3@0", "--script", str(script)) as plugin:
        assert await exit_code(plugin) == -signal.SIGKILL


@pytest.mark.parametrize(
    ("options", "text"),
    [
        pytest.param(["--devices", "x"], "is not a device list", id="invalid devices"),
        pytest.param(["--devices", "1", "--script", "nowhere/at-all"], "No such file", id="a missing script"),
    ],
)
def test_invalid_options_are_rejected(capsys, options, text):
    status = main(["--resource", GPU, "--dir", "nowhere", *options])

    assert status == 2
    assert text in capsys.readouterr().err
