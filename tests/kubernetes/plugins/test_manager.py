"""Plugins on real sockets: device updates and calls."""

import asyncio
from contextlib import AsyncExitStack
from socket import AF_UNIX, SOCK_STREAM, socket

import pytest

from alignup.align.devices.provider import PreferenceRequest
from alignup.align.errors import ListenError, PluginError
from alignup.align.machine import Device
from alignup.kubernetes.plugins.endpoint import PluginTimeouts
from alignup.kubernetes.plugins.manager import DevicePluginManager
from alignup.kubernetes.plugins.resources import ResourceState
from alignup.kubernetes.plugins.unix_grpc import StatusError
from alignup.testing import Fault, Plugin, Preference
from tests.deadlines import until
from tests.effort import did, rounds
from tests.kubernetes.plugins.capacity import capacity_of
from tests.kubernetes.plugins.pausable import PausablePlugin

pytestmark = pytest.mark.anyio

GPU, NIC = "example.com/gpu", "example.com/nic"


def preference(available, size, must_include=(), resource=GPU):
    return PreferenceRequest(
        uid="pod", container="app", resource=resource, available=available, must_include=must_include, size=size
    )


async def error_of(call):
    with pytest.raises(PluginError) as caught:
        await call
    return str(caught.value)


async def test_listed_devices_reach_the_listener(directory, manager, listener):
    async with Plugin(GPU, "1@0,1@1+2,1,1@", directory=directory):
        await listener.until(lambda: GPU in listener.devices)

        assert listener.devices[GPU] == (
            Device(GPU, "gpu-0", 0b1),
            Device(GPU, "gpu-1", 0b110),
            Device(GPU, "gpu-2", None),
            Device(GPU, "gpu-3", 0),
        )


async def test_every_list_replaces_the_previous_one(directory, manager, listener):
    async with Plugin(GPU, "4@0", directory=directory) as plugin:
        await listener.until(lambda: len(listener.healthy(GPU)) == 4)

        plugin.set_health("gpu-1", "Broken")
        await listener.until(lambda: listener.healthy(GPU) == ["gpu-0", "gpu-2", "gpu-3"])
        plugin.remove("gpu-0")
        await listener.until(lambda: len(listener.devices[GPU]) == 3)
        plugin.set_health("gpu-1", "Healthy")
        await listener.until(lambda: listener.healthy(GPU) == ["gpu-1", "gpu-2", "gpu-3"])
        plugin.set_devices("")
        await listener.until(lambda: listener.devices[GPU] == ())

        assert capacity_of(manager).capacity == {GPU: 0}


async def test_the_order_of_a_list_does_not_matter(directory, manager, listener):
    async with Plugin(GPU, "4@0", directory=directory) as plugin:
        await listener.until(lambda: GPU in listener.devices)
        plugin.devices = dict(reversed(plugin.devices.items()))
        plugin.send_devices()
        plugin.set_health("gpu-2", "Unhealthy")
        await listener.until(lambda: len(listener.healthy(GPU)) == 3)

    assert listener.events[:2] == [("listed", GPU)] * 2


async def test_preferred_allocation_depends_on_the_options_of_the_plugin(directory, manager, listener):
    async with (
        Plugin(GPU, "2@0", directory=directory, preference=Preference.HIGHEST) as with_preference,
        Plugin(NIC, "2@0", directory=directory) as without,
    ):
        await listener.until(lambda: {GPU, NIC} <= listener.devices.keys())

        assert listener.preferred == {GPU: True, NIC: False}
        assert await manager.preferred(preference(("gpu-0", "gpu-1"), 1)) == ("gpu-1",)
        assert await manager.preferred(preference(("nic-0", "nic-1"), 1, resource=NIC)) == ()
    (request,) = with_preference.requests("GetPreferredAllocation")
    assert list(request.container_requests[0].available_deviceIDs) == ["gpu-0", "gpu-1"]
    assert without.requests("GetPreferredAllocation") == ()


async def test_allocate_returns_the_response_of_the_plugin(directory, manager, listener):
    async with Plugin(GPU, "2@0", directory=directory) as plugin:
        await plugin.wait_registered()

        response = await manager.allocate(GPU, ("gpu-0", "gpu-1"))

        assert response.envs == {"GPU_DEVICES": "gpu-0,gpu-1"}
        assert [node.container_path for node in response.devices] == ["/dev/gpu/gpu-0", "/dev/gpu/gpu-1"]
        assert await error_of(manager.allocate(GPU, ("gpu-9",))) == (
            "rpc error: code = Unknown desc = there is no device gpu-9 of example.com/gpu"
        )


@pytest.mark.parametrize("required", [pytest.param(True, id="required"), pytest.param(False, id="not required")])
async def test_pre_start_is_called_if_the_plugin_requires_it(directory, manager, listener, required):
    plugin = Plugin(GPU, "1@0", directory=directory)
    plugin.pre_start = required
    async with plugin:
        await plugin.wait_registered()

        await manager.pre_start(GPU, ("gpu-0",))

        assert [list(request.devices_ids) for request in plugin.requests("PreStartContainer")] == [["gpu-0"]] * required


@pytest.mark.parametrize("required", [pytest.param(True, id="required"), pytest.param(False, id="not required")])
async def test_a_stopped_plugin_fails_pre_start_only_if_it_requires_it(directory, manager, listener, required):
    plugin = Plugin(GPU, "1@0", directory=directory)
    plugin.pre_start = required
    async with plugin:
        await listener.until(lambda: listener.healthy(GPU))
    await listener.until(lambda: listener.events[-1] == ("stopped", GPU))

    if required:
        assert "has been stopped" in await error_of(manager.pre_start(GPU, ("gpu-0",)))
    else:
        await manager.pre_start(GPU, ("gpu-0",))


async def test_after_a_restart_containers_start_before_their_plugin_registers(manager):
    manager.expect([GPU])

    await manager.pre_start(GPU, ("gpu-0",))


async def test_calls_of_an_unknown_resource_fail_with_the_text_of_the_kubelet(manager):
    assert await error_of(manager.allocate(GPU, ("gpu-0",))) == f"unknown Device Plugin {GPU}"
    text = f"endpoint not found in cache for a registered resource: {GPU}"
    assert await error_of(manager.preferred(preference(("gpu-0",), 1))) == text
    assert await error_of(manager.pre_start(GPU, ("gpu-0",))) == text


async def test_a_plugin_stops_and_comes_back(directory, manager, listener):
    async with Plugin(GPU, "2@0", directory=directory):
        await listener.until(lambda: len(listener.healthy(GPU)) == 2)
    await listener.until(lambda: listener.events[-1] == ("stopped", GPU))

    counts = capacity_of(manager)
    assert (counts.capacity, counts.allocatable, counts.deleted) == ({GPU: 2}, {GPU: 0}, ())
    assert "has been stopped" in await error_of(manager.allocate(GPU, ("gpu-0",)))

    async with Plugin(GPU, "2@0", directory=directory):
        await listener.until(lambda: len(listener.healthy(GPU)) == 2)
        assert capacity_of(manager).allocatable == {GPU: 2}


async def test_a_resource_is_removed_if_its_plugin_does_not_come_back_in_time(directory, listener):
    time = [0.0]
    async with DevicePluginManager(directory, *listener.callbacks, now=lambda: time[0]) as manager:
        async with Plugin(GPU, "2@0", directory=directory):
            await listener.until(lambda: GPU in listener.devices)
        await listener.until(lambda: listener.events[-1] == ("stopped", GPU))

        time[0] = 300.0
        assert capacity_of(manager).capacity == {GPU: 2}
        time[0] = 300.1
        assert capacity_of(manager).deleted == (GPU,)
        await listener.until(lambda: listener.events[-1] == ("removed", GPU))

        assert manager.status(GPU).state is ResourceState.GONE
        assert capacity_of(manager) == capacity_of(manager)
        assert await error_of(manager.allocate(GPU, ())) == f"unknown Device Plugin {GPU}"


async def test_after_a_restart_plugins_get_the_grace_period(directory, listener):
    time = [0.0]
    async with DevicePluginManager(directory, *listener.callbacks, now=lambda: time[0]) as manager:
        manager.expect([GPU, NIC])
        assert capacity_of(manager).capacity == {GPU: 0, NIC: 0}

        async with Plugin(GPU, "2@0", directory=directory):
            await listener.until(lambda: GPU in listener.devices)
            time[0] = 301.0
            assert capacity_of(manager).deleted == (NIC,)
            await listener.until(lambda: listener.events == [("listed", GPU), ("removed", NIC)])


async def test_plugins_register_again_with_the_next_manager(directory, listener):
    async with Plugin(GPU, "2@0", directory=directory) as gpu, Plugin(NIC, "1@1", directory=directory) as nic:
        for times in (1, 2, 3):
            async with DevicePluginManager(directory, *listener.callbacks) as manager:
                await gpu.wait_registered(times)
                await nic.wait_registered(times)
                await until(lambda: capacity_of(manager).allocatable == {GPU: 2, NIC: 1})
                await manager.settled()

    assert set(listener.events) == {("listed", GPU), ("listed", NIC)}


async def test_devices_and_calls_belong_to_the_plugin_that_registered_last(directory, manager, listener):
    async with Plugin(GPU, "2@0", directory=directory, endpoint="old.sock") as old:
        await listener.until(lambda: len(listener.healthy(GPU)) == 2)
        async with Plugin(GPU, "3@0", directory=directory, endpoint="new.sock", preference=Preference.LOWEST) as new:
            await listener.until(lambda: len(listener.healthy(GPU)) == 3)
            assert listener.preferred[GPU]
            old.set_devices("1@0")
            await manager.allocate(GPU, ("gpu-2",))
            await manager.settled()
            assert len(listener.healthy(GPU)) == 3
        await listener.until(lambda: listener.healthy(GPU) == ["gpu-0"])
        assert not listener.preferred[GPU]
        await manager.allocate(GPU, ("gpu-0",))

        assert ("stopped", GPU) not in listener.events
    assert [list(request.container_requests[0].devices_ids) for request in old.requests("Allocate")] == [["gpu-0"]]
    assert [list(request.container_requests[0].devices_ids) for request in new.requests("Allocate")] == [["gpu-2"]]


async def test_a_plugin_serves_until_its_successor_lists_devices(directory, manager, listener):
    late = Plugin(GPU, "1@0", directory=directory, endpoint="late.sock")
    late.inject("ListAndWatch", Fault(hang=True))
    async with Plugin(GPU, "2@0", directory=directory, endpoint="old.sock") as old:
        await listener.until(lambda: len(listener.healthy(GPU)) == 2)
        async with late:
            await late.wait_registered()
            await manager.allocate(GPU, ("gpu-1",))

    assert (len(old.requests("Allocate")), len(late.requests("Allocate"))) == (1, 0)


async def test_allocate_goes_to_the_plugin_that_lists_the_devices(directory, manager, listener):
    """A pod may have been decided on just before another plugin of the resource registered."""
    devices = [Device(GPU, "new-0", 1)]
    async with Plugin(GPU, "2@0", directory=directory, endpoint="old.sock") as old:
        await listener.until(lambda: len(listener.healthy(GPU)) == 2)
        async with Plugin(GPU, devices, directory=directory, endpoint="new.sock") as new:
            await listener.until(lambda: listener.healthy(GPU) == ["new-0"])
            await manager.allocate(GPU, ("gpu-1",))

    assert (len(old.requests("Allocate")), len(new.requests("Allocate"))) == (1, 0)


async def test_a_plugin_may_register_twice(directory, manager, listener):
    async with Plugin(GPU, "2@0", directory=directory) as plugin:
        await plugin.wait_registered()
        await asyncio.gather(*(plugin.register() for _ in range(5)))
        plugin.set_health("gpu-0", "Unhealthy")
        await listener.until(lambda: listener.healthy(GPU) == ["gpu-1"])
        await manager.allocate(GPU, ("gpu-1",))
        assert ("stopped", GPU) not in listener.events
    await listener.until(lambda: listener.events[-1] == ("stopped", GPU))

    async with Plugin(GPU, "2@0", directory=directory) as again:
        await again.wait_registered()
        await listener.until(lambda: len(listener.healthy(GPU)) == 2)
    assert again.rejections == []


#: Calls of a plugin.
METHODS = {
    "Allocate": lambda manager: manager.allocate(GPU, ("gpu-0",)),
    "GetPreferredAllocation": lambda manager: manager.preferred(preference(("gpu-0", "gpu-1"), 1)),
    "PreStartContainer": lambda manager: manager.pre_start(GPU, ("gpu-0",)),
}


def faulty(directory, method, fault):
    """A plugin with one fault."""
    plugin = Plugin(GPU, "2@0", directory=directory, preference=Preference.LOWEST)
    plugin.pre_start = True
    plugin.inject(method, fault)
    return plugin


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        pytest.param(Fault(garbage=True), "code = Internal desc = grpc: failed to unmarshal", id="garbage"),
        pytest.param(Fault(error="no"), "code = Unknown desc = no", id="an error"),
    ],
)
@pytest.mark.parametrize("method", METHODS)
async def test_a_bad_response_fails_only_its_call(directory, manager, listener, *, method, fault, text):
    async with faulty(directory, method, fault) as plugin:
        await listener.until(lambda: GPU in listener.devices)

        assert text in await error_of(METHODS[method](manager))

        plugin.inject(method, Fault())
        await METHODS[method](manager)
        assert listener.healthy(GPU) == ["gpu-0", "gpu-1"]


@pytest.mark.parametrize("fault", [Fault(hang=True), Fault(delay=600)], ids=["a hang", "a delay"])
@pytest.mark.parametrize("method", METHODS)
async def test_calls_time_out(directory, listener, metrics, *, method, fault):
    timeouts = PluginTimeouts(preferred=0.05, allocate=0.05, pre_start=0.05)
    async with (
        DevicePluginManager(directory, *listener.callbacks, **metrics.callbacks, timeouts=timeouts) as manager,
        faulty(directory, method, fault),
    ):
        await listener.until(lambda: GPU in listener.devices)

        assert "code = DeadlineExceeded" in await error_of(METHODS[method](manager))

        assert listener.healthy(GPU) == ["gpu-0", "gpu-1"]


async def test_a_hanging_plugin_does_not_delay_others(directory, manager, listener):
    bad = Plugin(GPU, "2@0", directory=directory)
    bad.inject("Allocate", Fault(hang=True))
    bad.inject("PreStartContainer", Fault(hang=True))
    bad.pre_start = True
    async with bad, Plugin(NIC, "1@0", directory=directory) as good:
        await bad.wait_registered()
        await good.wait_registered()
        pending = [asyncio.create_task(error_of(manager.allocate(GPU, ("gpu-0",)))) for _ in range(20)]
        pending += [asyncio.create_task(error_of(manager.pre_start(GPU, ("gpu-0",)))) for _ in range(20)]

        for _ in range(10):
            await manager.allocate(NIC, ("nic-0",))
        good.set_health("nic-0", "Unhealthy")
        await listener.until(lambda: NIC in listener.devices and not listener.healthy(NIC))

        assert not any(task.done() for task in pending)
    assert len(await asyncio.gather(*pending)) == 40


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        pytest.param(Fault(hang=True), "code = DeadlineExceeded", id="a hang"),
        pytest.param(Fault(garbage=True), "code = Internal", id="garbage"),
        pytest.param(Fault(error="no"), "code = Unknown desc = no", id="an error"),
    ],
)
async def test_a_plugin_without_options_is_rejected(directory, impatient, listener, *, fault, text):
    bad = Plugin(GPU, "2@0", directory=directory)
    bad.retry_delay = 0.01
    bad.inject("GetDevicePluginOptions", fault)
    async with bad:
        with pytest.raises(StatusError) as rejected:
            await bad.register()
        assert text in str(rejected.value)
        assert impatient.status(GPU).state is ResourceState.GONE

        bad.inject("GetDevicePluginOptions", Fault())
        await listener.until(lambda: len(listener.healthy(GPU)) == 2)


@pytest.mark.parametrize("fault", [Fault(garbage=True), Fault(error="no")], ids=["garbage", "an error"])
async def test_an_invalid_list_ends_the_connection(directory, manager, listener, fault):
    async with Plugin(GPU, "2@0", directory=directory) as plugin:
        await listener.until(lambda: GPU in listener.devices)
        plugin.inject("ListAndWatch", fault)
        plugin.send_devices()
        await listener.until(lambda: listener.events[-1] == ("stopped", GPU))

        plugin.inject("ListAndWatch", Fault())
        await plugin.register()
        await listener.until(lambda: len(listener.healthy(GPU)) == 2)


async def test_a_plugin_that_never_lists_devices_is_not_reported(directory, manager, listener):
    silent = Plugin(GPU, "2@0", directory=directory)
    silent.inject("ListAndWatch", Fault(hang=True))
    async with silent, Plugin(NIC, "1@0", directory=directory):
        await silent.wait_registered()
        await listener.until(lambda: NIC in listener.devices)
        assert capacity_of(manager).capacity == {NIC: 1}
    await listener.until(lambda: listener.events[-1] == ("stopped", NIC))

    assert all(resource == NIC for _, resource in listener.events)


@pytest.mark.soak
async def test_a_plugin_may_restart_many_times(directory, manager, listener):
    async with Plugin(NIC, "1@0", directory=directory):
        await listener.until(lambda: listener.healthy(NIC))
        async with Plugin(GPU, "2@0", directory=directory) as plugin:
            await plugin.wait_registered()
            for _ in range(rounds(20, soak=1_000)):
                await plugin.restart()
                await plugin.register()
                did("plugins restarted")
            await until(lambda: capacity_of(manager).allocatable == {GPU: 2, NIC: 1})
            await manager.settled()

            assert (len(listener.healthy(GPU)), listener.healthy(NIC)) == (2, ["nic-0"])
            assert listener.events.count(("listed", NIC)) == 1


async def test_rapid_health_changes_collapse_into_the_last_one(directory, manager, listener):
    async with Plugin(GPU, "2@0", directory=directory) as plugin:
        await listener.until(lambda: GPU in listener.devices)
        for turn in range(101):
            plugin.set_health("gpu-0", "Healthy" if turn % 2 else "Unhealthy")
        plugin.set_devices("3@0")
        await listener.until(lambda: len(listener.healthy(GPU)) == 3)


async def test_pending_calls_fail_when_the_plugin_stops(directory, manager, listener):
    plugin = Plugin(GPU, "1@0", directory=directory)
    plugin.inject("Allocate", Fault(hang=True))
    async with plugin:
        await listener.until(lambda: GPU in listener.devices)
        call = asyncio.create_task(error_of(manager.allocate(GPU, ("gpu-0",))))
        await plugin.wait_called("Allocate")

    assert await call in (
        "rpc error: code = Unavailable desc = the server stops",
        "rpc error: code = Unavailable desc = Cancelling all calls",
        f"endpoint {GPU} at {plugin.socket} has been stopped",
    )


async def test_pending_calls_finish_when_the_plugin_registers_again(directory, manager, listener):
    async with PausablePlugin(GPU, "1@0", directory=directory) as plugin:
        plugin.pause()
        await listener.until(lambda: GPU in listener.devices)
        call = asyncio.create_task(manager.allocate(GPU, ("gpu-0",)))
        await plugin.wait_called("Allocate")
        await plugin.register()
        plugin.resume()

        assert (await call).envs == {"GPU_DEVICES": "gpu-0"}


async def test_old_sockets_are_removed_and_other_files_stay(directory, listener):
    directory.mkdir(mode=0o755)
    (directory / "kubelet_internal_checkpoint").write_text("{}")
    (directory / "subdirectory").mkdir()
    with socket(AF_UNIX, SOCK_STREAM) as stale, socket(AF_UNIX, SOCK_STREAM) as dead:
        stale.bind(str(directory / "gpu.sock"))
        dead.bind(str(directory / "kubelet.sock"))
    async with DevicePluginManager(directory, *listener.callbacks):
        left = {path.name for path in directory.iterdir()}

    assert left == {"kubelet_internal_checkpoint", "subdirectory", "kubelet.sock"}
    assert {path.name for path in directory.iterdir()} == {"kubelet_internal_checkpoint", "subdirectory"}


async def test_the_directory_is_created(directory, listener):
    async with DevicePluginManager(directory / "deeper", *listener.callbacks):
        assert (directory / "deeper").stat().st_mode & 0o777 == 0o750


async def test_the_directory_of_a_running_kubelet_is_left_alone(directory, manager, listener):
    async with Plugin(GPU, "1@0", directory=directory) as plugin:
        await plugin.wait_registered()
        with pytest.raises(ListenError, match="another process listens at"):
            await DevicePluginManager(directory, *listener.callbacks).__aenter__()

        assert plugin.socket.exists()
        await manager.allocate(GPU, ("gpu-0",))


async def test_an_impossible_socket_is_rejected_with_the_reason(directory, listener):
    with pytest.raises(ListenError, match="too long for a socket"):
        await DevicePluginManager(directory / ("x" * 100), *listener.callbacks).__aenter__()
    directory.mkdir()
    (directory / "kubelet.sock").write_text("")
    with pytest.raises(ListenError, match="exists and is not a socket"):
        await DevicePluginManager(directory, *listener.callbacks).__aenter__()
    with pytest.raises(ListenError, match="cannot use the device plugin directory"):
        await DevicePluginManager(directory / "kubelet.sock" / "x", *listener.callbacks).__aenter__()


async def test_registrations_and_allocations_are_counted(directory, manager, listener, metrics):
    async with Plugin(GPU, "1@0", directory=directory) as plugin:
        await plugin.wait_registered()
        await manager.allocate(GPU, ("gpu-0",))
        await error_of(manager.allocate(GPU, ("gpu-9",)))

    assert metrics.registrations == [GPU]
    assert metrics.allocations == [GPU, GPU]


@pytest.mark.soak
async def test_many_plugins_with_a_thousand_devices_each(directory, manager, listener):
    expected = {f"example.com/r{number}": 1_000 for number in range(rounds(10, soak=50))}
    async with AsyncExitStack() as stack:
        for number, resource in enumerate(expected):
            await stack.enter_async_context(Plugin(resource, f"1000@{number % 8}", directory=directory))
        await listener.until(lambda: listener.devices.keys() == expected.keys())

        assert {resource: len(listener.healthy(resource)) for resource in listener.devices} == expected
        assert capacity_of(manager).allocatable == expected
