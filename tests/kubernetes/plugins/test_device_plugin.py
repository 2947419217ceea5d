"""A device plugin that stays registered, with the manager of the agent as kubelet."""

import asyncio
from contextlib import asynccontextmanager
from socket import AF_UNIX, SOCK_STREAM, socket

import pytest
from structlog.testing import capture_logs

from alignup.align.machine import Device
from alignup.kubernetes.plugins.device_plugin import DevicePlugin
from alignup.kubernetes.plugins.manager import DevicePluginManager
from tests.deadlines import until

pytestmark = pytest.mark.anyio

NAME = "example.com/marker"
DEVICES = tuple(Device(NAME, f"m-{number}", nodes=1 << number % 2) for number in range(4))


@asynccontextmanager
async def running(directory, **options):
    plugin = DevicePlugin(NAME, directory, retry=0.01, **options)
    plugin.set_devices(DEVICES)
    task = asyncio.create_task(plugin.run())
    try:
        yield plugin
    finally:
        task.cancel()
        await asyncio.wait([task])


def sockets(directory):
    return [path.name for path in directory.glob("example.com_marker-*.sock")]


async def test_it_registers_and_reports_changes(directory, listener, manager):
    async with running(directory) as plugin:
        await until(lambda: listener.devices.get(NAME) == DEVICES)
        assert plugin.connected
        ill = (*DEVICES[:3], Device(NAME, "m-3", nodes=2, healthy=False))
        plugin.set_devices(ill)
        await until(lambda: listener.devices[NAME] == ill)
        plugin.set_devices(iter(DEVICES))
        await until(lambda: listener.devices[NAME] == DEVICES)

    await until(lambda: not any(device.healthy for device in listener.devices[NAME]))
    assert not plugin.connected
    assert sockets(directory) == []


async def test_containers_get_nothing_but_the_devices(directory, listener, manager):
    allocated: list[tuple[str, ...]] = []
    async with running(directory, allocated=allocated.append):
        await until(lambda: listener.devices.get(NAME) == DEVICES)
        response = await manager.allocate(NAME, ["m-1", "m-3"])

    assert allocated == [("m-1", "m-3")]
    assert not response.envs
    assert not response.devices


async def test_it_registers_another_socket_with_a_kubelet_that_restarts(directory, listener):
    """A real kubelet rejects a socket that it has not noticed the end of, and forgets the plugin."""
    seen: set[str] = set()
    registered: list[dict[str, bool]] = []
    async with running(directory, registered=lambda **result: registered.append(result)):
        for _ in range(3):
            async with DevicePluginManager(directory, *listener.callbacks):
                await until(lambda: listener.devices.pop(NAME, None) == DEVICES)
                (name,) = sockets(directory)
                assert name not in seen
                seen.add(name)
    assert registered.count({"success": True}) == 3


async def test_it_waits_for_a_kubelet_without_a_socket(directory, listener, monkeypatch):
    directory.mkdir()
    listens, attempts = DevicePlugin._listens, []  # noqa: SLF001 - an attempt has no other effect

    def counted(plugin):
        attempts.append(listens(plugin))
        return attempts[-1]

    monkeypatch.setattr(DevicePlugin, "_listens", counted)
    async with running(directory) as plugin:
        await until(lambda: len(attempts) >= 3)
        assert not any(attempts)
        assert [*directory.iterdir()] == []
        async with DevicePluginManager(directory, *listener.callbacks):
            await until(lambda: plugin.connected)


async def test_a_kubelet_that_rejects_it_is_tried_again(directory, listener, manager):
    results: list[dict[str, bool]] = []
    with capture_logs() as logs:
        plugin = DevicePlugin("no-prefix", directory, retry=0.01, registered=lambda **result: results.append(result))
        task = asyncio.create_task(plugin.run())
        await until(lambda: results.count({"success": False}) == 3)
        task.cancel()
        await asyncio.wait([task])

    assert [log["problem"] for log in logs if log["event"] == "cannot register with the kubelet"] == [
        'the ResourceName "no-prefix" is invalid'
    ]


async def test_sockets_of_plugins_that_were_killed_are_removed(directory, listener, manager):
    dead, alive = directory / "example.com_marker-0.sock", directory / "example.com_marker-1.sock"
    other, file = directory / "other.sock", directory / "example.com_marker-2.sock"
    with socket(AF_UNIX, SOCK_STREAM) as listening:
        listening.bind(str(alive))
        listening.listen()
        for path in (dead, other):
            with socket(AF_UNIX, SOCK_STREAM) as gone:
                gone.bind(str(path))
        file.touch()
        async with running(directory):
            await until(lambda: listener.devices.get(NAME) == DEVICES)

    assert not dead.exists()
    assert [path.exists() for path in (alive, other, file)] == [True, True, True]
