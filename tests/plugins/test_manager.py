"""Plugins on real sockets: what is heard of their devices, and how they are called."""

import asyncio
import logging
from contextlib import AsyncExitStack
from socket import AF_UNIX, SOCK_STREAM, socket

import grpc.aio
import pytest

from alignup.align.devices import PreferenceRequest
from alignup.align.errors import ListenError, PluginError
from alignup.align.machine import Device
from alignup.plugins.endpoint_store import ResourceState
from alignup.plugins.manager import DevicePluginManager
from alignup.testing import Fault, Plugin, Preference

pytestmark = pytest.mark.anyio

GPU, NIC = "example.com/gpu", "example.com/nic"


def ask(available, size, must_include=(), resource=GPU):
    return PreferenceRequest(
        uid="pod", container="app", resource=resource, available=available, must_include=must_include, size=size
    )


async def failing(call):
    with pytest.raises(PluginError) as caught:
        await call
    return str(caught.value)


async def test_devices_are_announced_as_they_are_listed(directory, exchange, ears):
    async with Plugin(GPU, "1@0,1@1+2,1,1@", directory=directory):
        await ears.until(lambda: GPU in ears.devices)

        assert ears.devices[GPU] == (
            Device(GPU, "gpu-0", 0b1),
            Device(GPU, "gpu-1", 0b110),
            Device(GPU, "gpu-2", None),
            Device(GPU, "gpu-3", 0),
        )


async def test_every_list_replaces_the_one_before(directory, exchange, ears):
    async with Plugin(GPU, "4@0", directory=directory) as plugin:
        await ears.until(lambda: len(ears.healthy(GPU)) == 4)

        plugin.set_health("gpu-1", "Broken")
        await ears.until(lambda: ears.healthy(GPU) == ["gpu-0", "gpu-2", "gpu-3"])
        plugin.remove("gpu-0")
        await ears.until(lambda: len(ears.devices[GPU]) == 3)
        plugin.set_health("gpu-1", "Healthy")
        await ears.until(lambda: ears.healthy(GPU) == ["gpu-1", "gpu-2", "gpu-3"])
        plugin.set_devices("")
        await ears.until(lambda: ears.devices[GPU] == ())

        assert exchange.capacity().capacity == {GPU: 0}


async def test_a_list_in_another_order_is_no_news(directory, exchange, ears):
    async with Plugin(GPU, "4@0", directory=directory) as plugin:
        await ears.until(lambda: GPU in ears.devices)
        plugin.service.devices = dict(reversed(plugin.service.devices.items()))
        plugin.service.list_again()
        plugin.set_health("gpu-2", "Unhealthy")
        await ears.until(lambda: len(ears.healthy(GPU)) == 3)

    assert ears.heard[:2] == [("announced", GPU)] * 2


async def test_options_are_those_the_plugin_says_when_asked(directory, exchange, ears):
    async with (
        Plugin(GPU, "2@0", directory=directory, advice=Preference.HIGHEST) as advising,
        Plugin(NIC, "2@0", directory=directory) as silent,
    ):
        await ears.until(lambda: {GPU, NIC} <= ears.devices.keys())

        assert ears.preferred == {GPU: True, NIC: False}
        assert await exchange.preferred(ask(("gpu-0", "gpu-1"), 1)) == ("gpu-1",)
        assert await exchange.preferred(ask(("nic-0", "nic-1"), 1, resource=NIC)) == ()
    (question,) = advising.asked("GetPreferredAllocation")
    assert list(question.container_requests[0].available_deviceIDs) == ["gpu-0", "gpu-1"]
    assert silent.asked("GetPreferredAllocation") == ()


async def test_allocate_hands_on_what_the_plugin_gives(directory, exchange, ears):
    async with Plugin(GPU, "2@0", directory=directory) as plugin:
        await plugin.registered()

        grant = await exchange.allocate(GPU, ("gpu-0", "gpu-1"))

        assert grant.envs == {"GPU_DEVICES": "gpu-0,gpu-1"}
        assert [node.container_path for node in grant.devices] == ["/dev/gpu/gpu-0", "/dev/gpu/gpu-1"]
        assert await failing(exchange.allocate(GPU, ("gpu-9",))) == (
            "rpc error: code = Unknown desc = there is no device gpu-9 of example.com/gpu"
        )


@pytest.mark.parametrize("wanted", [pytest.param(True, id="told"), pytest.param(False, id="not told")])
async def test_a_start_is_told_to_a_plugin_that_wants_to_know(directory, exchange, ears, wanted):
    plugin = Plugin(GPU, "1@0", directory=directory)
    plugin.service.pre_start = wanted
    async with plugin:
        await plugin.registered()

        await exchange.pre_start(GPU, ("gpu-0",))

        assert [list(one.devices_ids) for one in plugin.asked("PreStartContainer")] == [["gpu-0"]] * wanted


@pytest.mark.parametrize("wanted", [pytest.param(True, id="told"), pytest.param(False, id="not told")])
async def test_a_plugin_that_is_away_matters_to_a_start_only_if_it_wants_to_know(directory, exchange, ears, wanted):
    plugin = Plugin(GPU, "1@0", directory=directory)
    plugin.service.pre_start = wanted
    async with plugin:
        await ears.until(lambda: ears.healthy(GPU))
    await ears.until(lambda: ears.heard[-1] == ("stopped", GPU))

    if wanted:
        assert "has been stopped" in await failing(exchange.pre_start(GPU, ("gpu-0",)))
    else:
        await exchange.pre_start(GPU, ("gpu-0",))


async def test_after_a_restart_containers_start_though_their_plugin_is_not_back(exchange):
    exchange.expect([GPU])

    await exchange.pre_start(GPU, ("gpu-0",))  # nobody is asked, and nothing fails


async def test_nobody_there_to_be_called(exchange):
    assert await failing(exchange.allocate(GPU, ("gpu-0",))) == f"unknown Device Plugin {GPU}"
    text = f"endpoint not found in cache for a registered resource: {GPU}"
    assert await failing(exchange.preferred(ask(("gpu-0",), 1))) == text
    assert await failing(exchange.pre_start(GPU, ("gpu-0",))) == text


async def test_a_plugin_that_dies_and_comes_back(directory, exchange, ears):
    async with Plugin(GPU, "2@0", directory=directory):
        await ears.until(lambda: len(ears.healthy(GPU)) == 2)
    await ears.until(lambda: ears.heard[-1] == ("stopped", GPU))

    counts = exchange.capacity()
    assert (counts.capacity, counts.allocatable, counts.deleted) == ({GPU: 2}, {GPU: 0}, ())
    assert "has been stopped" in await failing(exchange.allocate(GPU, ("gpu-0",)))

    async with Plugin(GPU, "2@0", directory=directory):
        await ears.until(lambda: len(ears.healthy(GPU)) == 2)
        assert exchange.capacity().allocatable == {GPU: 2}


async def test_a_resource_is_given_up_when_nobody_comes_back_in_time(directory, ears):
    time = [0.0]
    async with DevicePluginManager(directory, ears, now=lambda: time[0]) as exchange:
        async with Plugin(GPU, "2@0", directory=directory):
            await ears.until(lambda: GPU in ears.devices)
        await ears.until(lambda: ears.heard[-1] == ("stopped", GPU))

        time[0] = 300.0
        assert exchange.capacity().capacity == {GPU: 2}
        time[0] = 300.1
        assert exchange.capacity().deleted == (GPU,)
        await ears.until(lambda: ears.heard[-1] == ("gone", GPU))

        assert exchange.view(GPU).state is ResourceState.GONE
        assert exchange.capacity() == exchange.capacity()
        assert await failing(exchange.allocate(GPU, ())) == f"unknown Device Plugin {GPU}"


async def test_after_a_restart_plugins_are_waited_for(directory, ears):
    time = [0.0]
    async with DevicePluginManager(directory, ears, now=lambda: time[0]) as exchange:
        exchange.expect([GPU, NIC])
        assert exchange.capacity().capacity == {GPU: 0, NIC: 0}

        async with Plugin(GPU, "2@0", directory=directory):
            await ears.until(lambda: GPU in ears.devices)
            time[0] = 301.0
            assert exchange.capacity().deleted == (NIC,)
            await ears.until(lambda: ears.heard == [("announced", GPU), ("gone", NIC)])


async def test_plugins_register_again_with_the_next_exchange(directory, ears):
    async with Plugin(GPU, "2@0", directory=directory) as gpu, Plugin(NIC, "1@1", directory=directory) as nic:
        for times in (1, 2, 3):
            async with DevicePluginManager(directory, ears) as exchange:
                await gpu.registered(times)
                await nic.registered(times)
                await ears.until(lambda: len(ears.heard) >= 2 * times)  # noqa: B023 - within this round
                assert exchange.capacity().allocatable == {GPU: 2, NIC: 1}

    assert set(ears.heard) == {("announced", GPU), ("announced", NIC)}


async def test_of_several_sockets_the_last_is_called_and_any_may_list(directory, exchange, ears):
    async with Plugin(GPU, "2@0", directory=directory, endpoint="old.sock") as old:
        await old.registered()
        async with Plugin(GPU, "3@0", directory=directory, endpoint="new.sock", advice=Preference.LOWEST) as new:
            await ears.until(lambda: len(ears.healthy(GPU)) == 3)
            await exchange.allocate(GPU, ("gpu-0",))
            old.set_devices("1@0")
            await ears.until(lambda: len(ears.healthy(GPU)) == 1)
            assert ears.preferred[GPU]
        await ears.until(lambda: not ears.preferred[GPU])
        await exchange.allocate(GPU, ("gpu-0",))

        assert ears.healthy(GPU) == ["gpu-0"]
        assert ("stopped", GPU) not in ears.heard
    assert (len(old.asked("Allocate")), len(new.asked("Allocate"))) == (1, 1)


async def test_one_that_registers_twice_is_heard_and_its_end_is_noticed(directory, exchange, ears):
    async with Plugin(GPU, "2@0", directory=directory) as plugin:
        await plugin.registered()
        await asyncio.gather(*(plugin.register() for _ in range(5)))
        plugin.set_health("gpu-0", "Unhealthy")
        await ears.until(lambda: ears.healthy(GPU) == ["gpu-1"])
        await exchange.allocate(GPU, ("gpu-1",))
        assert ("stopped", GPU) not in ears.heard
    await ears.until(lambda: ears.heard[-1] == ("stopped", GPU))

    async with Plugin(GPU, "2@0", directory=directory) as again:
        await again.registered()
        await ears.until(lambda: len(ears.healthy(GPU)) == 2)
    assert again.rejections == []


METHODS = {
    "Allocate": lambda exchange: exchange.allocate(GPU, ("gpu-0",)),
    "GetPreferredAllocation": lambda exchange: exchange.preferred(ask(("gpu-0", "gpu-1"), 1)),
    "PreStartContainer": lambda exchange: exchange.pre_start(GPU, ("gpu-0",)),
}


def spoilt(directory, method, fault):
    """A plugin that is bad at one thing only."""
    plugin = Plugin(GPU, "2@0", directory=directory, advice=Preference.LOWEST)
    plugin.service.pre_start = True
    plugin.misbehave(method, fault)
    return plugin


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        pytest.param(Fault(garbage=True), "code = Internal desc = grpc: failed to unmarshal", id="answers garbage"),
        pytest.param(Fault(error="no"), "code = Unknown desc = no", id="refuses"),
    ],
)
@pytest.mark.parametrize("method", METHODS)
async def test_a_bad_answer_is_the_end_of_one_call(directory, exchange, ears, *, method, fault, says):
    async with spoilt(directory, method, fault) as plugin:
        await plugin.registered()

        assert says in await failing(METHODS[method](exchange))

        plugin.misbehave(method, Fault())
        await METHODS[method](exchange)
        assert ears.healthy(GPU) == ["gpu-0", "gpu-1"]


@pytest.mark.parametrize("fault", [Fault(hang=True), Fault(delay=9)], ids=["never", "late"])
@pytest.mark.parametrize("method", METHODS)
async def test_one_that_does_not_answer_in_time_is_not_waited_for(directory, strict, ears, *, method, fault):
    async with spoilt(directory, method, fault) as plugin:
        await plugin.registered()
        await ears.until(lambda: GPU in ears.devices)

        assert "code = DeadlineExceeded" in await failing(METHODS[method](strict))

        assert ears.healthy(GPU) == ["gpu-0", "gpu-1"]


async def test_one_that_never_answers_holds_up_nobody_else(directory, exchange, ears):
    bad = Plugin(GPU, "2@0", directory=directory)
    bad.misbehave("Allocate", Fault(hang=True))
    bad.misbehave("PreStartContainer", Fault(hang=True))
    bad.service.pre_start = True
    async with bad, Plugin(NIC, "1@0", directory=directory) as good:
        await bad.registered()
        await good.registered()
        stuck = [asyncio.create_task(failing(exchange.allocate(GPU, ("gpu-0",)))) for _ in range(20)]
        stuck += [asyncio.create_task(failing(exchange.pre_start(GPU, ("gpu-0",)))) for _ in range(20)]

        for _ in range(10):
            await exchange.allocate(NIC, ("nic-0",))
        good.set_health("nic-0", "Unhealthy")
        await ears.until(lambda: NIC in ears.devices and not ears.healthy(NIC))

        assert not any(task.done() for task in stuck)
    assert len(await asyncio.gather(*stuck)) == 40


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        pytest.param(Fault(hang=True), "code = DeadlineExceeded", id="never answers"),
        pytest.param(Fault(garbage=True), "code = Internal", id="answers garbage"),
        pytest.param(Fault(error="no"), "code = Unknown desc = no", id="refuses"),
    ],
)
async def test_one_that_does_not_say_what_it_can_do_is_not_taken(directory, strict, ears, *, fault, says):
    bad = Plugin(GPU, "2@0", directory=directory)
    bad.misbehave("GetDevicePluginOptions", fault)
    async with bad:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await bad.register()
        assert says in str(refused.value.details())
        assert strict.view(GPU).state is ResourceState.GONE

        bad.misbehave("GetDevicePluginOptions", Fault())
        await ears.until(lambda: len(ears.healthy(GPU)) == 2)


@pytest.mark.parametrize("fault", [Fault(garbage=True), Fault(error="no")], ids=["garbage", "an error"])
async def test_a_list_that_is_none_ends_the_connection(directory, exchange, ears, fault):
    async with Plugin(GPU, "2@0", directory=directory) as plugin:
        await ears.until(lambda: GPU in ears.devices)
        plugin.misbehave("ListAndWatch", fault)
        plugin.service.list_again()
        await ears.until(lambda: ears.heard[-1] == ("stopped", GPU))

        plugin.misbehave("ListAndWatch", Fault())
        await plugin.register()
        await ears.until(lambda: len(ears.healthy(GPU)) == 2)


async def test_one_that_never_lists_its_devices_is_not_heard_of(directory, exchange, ears):
    mute = Plugin(GPU, "2@0", directory=directory)
    mute.misbehave("ListAndWatch", Fault(hang=True))
    async with mute, Plugin(NIC, "1@0", directory=directory):
        await mute.registered()
        await ears.until(lambda: NIC in ears.devices)
        assert exchange.capacity().capacity == {NIC: 1}
    await ears.until(lambda: ears.heard[-1] == ("stopped", NIC))

    assert all(resource == NIC for _, resource in ears.heard)


async def test_a_plugin_that_flaps_a_hundred_times_ends_as_it_should(directory, exchange, ears):
    async with Plugin(NIC, "1@0", directory=directory) as other:
        await other.registered()
        async with Plugin(GPU, "2@0", directory=directory) as plugin:
            await plugin.registered()
            for _ in range(100):
                await plugin.restart()
                await plugin.register()
            await ears.until(lambda: len(ears.healthy(GPU)) == 2)
            await exchange.settled()

            assert ears.healthy(NIC) == ["nic-0"]
            assert ears.heard.count(("announced", NIC)) == 1
            assert exchange.capacity().allocatable == {GPU: 2, NIC: 1}


async def test_health_that_flaps_faster_than_anybody_can_write_is_told_as_it_ends(directory, exchange, ears):
    async with Plugin(GPU, "2@0", directory=directory) as plugin:
        await ears.until(lambda: GPU in ears.devices)
        for turn in range(101):
            plugin.set_health("gpu-0", "Healthy" if turn % 2 else "Unhealthy")
        plugin.set_devices("3@0")
        await ears.until(lambda: len(ears.healthy(GPU)) == 3)


async def test_calls_under_way_fail_when_the_plugin_goes(directory, exchange, ears):
    plugin = Plugin(GPU, "1@0", directory=directory)
    plugin.misbehave("Allocate", Fault(delay=0.2))
    async with plugin:
        await ears.until(lambda: GPU in ears.devices)
        call = asyncio.create_task(failing(exchange.allocate(GPU, ("gpu-0",))))
        await asyncio.sleep(0.05)

    assert await call in (
        "rpc error: code = Unavailable desc = Cancelling all calls",
        f"endpoint {GPU} at {plugin.socket} has been stopped",
    )


async def test_calls_under_way_are_answered_when_the_plugin_registers_again(directory, exchange, ears):
    plugin = Plugin(GPU, "1@0", directory=directory)
    plugin.misbehave("Allocate", Fault(delay=0.2))
    async with plugin:
        await ears.until(lambda: GPU in ears.devices)
        call = asyncio.create_task(exchange.allocate(GPU, ("gpu-0",)))
        await asyncio.sleep(0.05)
        await plugin.register()

        assert (await call).envs == {"GPU_DEVICES": "gpu-0"}


async def test_what_is_not_a_socket_stays_and_sockets_go(directory, ears):
    directory.mkdir(mode=0o755)
    (directory / "kubelet_internal_checkpoint").write_text("{}")
    (directory / "folder").mkdir()
    with socket(AF_UNIX, SOCK_STREAM) as stale, socket(AF_UNIX, SOCK_STREAM) as dead:
        stale.bind(str(directory / "gpu.sock"))
        dead.bind(str(directory / "kubelet.sock"))
    async with DevicePluginManager(directory, ears):
        left = {path.name for path in directory.iterdir()}

    assert left == {"kubelet_internal_checkpoint", "folder", "kubelet.sock"}
    assert {path.name for path in directory.iterdir()} == {"kubelet_internal_checkpoint", "folder"}


async def test_the_directory_is_made(directory, ears):
    async with DevicePluginManager(directory / "deeper", ears):
        assert (directory / "deeper").stat().st_mode & 0o777 == 0o750


async def test_where_a_kubelet_is_at_work_nothing_is_touched(directory, exchange, ears):
    async with Plugin(GPU, "1@0", directory=directory) as plugin:
        await plugin.registered()
        with pytest.raises(ListenError, match="somebody listens at"):
            await DevicePluginManager(directory, ears).__aenter__()

        assert plugin.socket.exists()
        await exchange.allocate(GPU, ("gpu-0",))


async def test_a_socket_that_cannot_be_is_refused_in_words(directory, ears):
    with pytest.raises(ListenError, match="choose a directory with a shorter name"):
        await DevicePluginManager(directory / ("x" * 100), ears).__aenter__()
    directory.mkdir()
    (directory / "kubelet.sock").write_text("")
    with pytest.raises(ListenError, match="is there and is no socket"):
        await DevicePluginManager(directory, ears).__aenter__()
    with pytest.raises(ListenError, match="cannot be used"):
        await DevicePluginManager(directory / "kubelet.sock" / "x", ears).__aenter__()


async def test_registrations_and_allocations_are_counted(directory, exchange, ears, caplog):
    caplog.set_level(logging.ERROR)
    async with Plugin(GPU, "1@0", directory=directory) as plugin:
        await plugin.registered()
        await exchange.allocate(GPU, ("gpu-0",))
        await failing(exchange.allocate(GPU, ("gpu-9",)))

    registered, durations = exchange.tally.collect()
    assert [(sample.labels, sample.value) for sample in registered.samples] == [({"resource_name": GPU}, 1)]
    assert durations.samples[-1].value == 2


async def test_fifty_plugins_with_a_thousand_devices_each(directory, exchange, ears):
    everything = {f"example.com/r{number}": 1_000 for number in range(50)}
    async with AsyncExitStack() as stack:
        for number, resource in enumerate(everything):
            await stack.enter_async_context(Plugin(resource, f"1000@{number % 8}", directory=directory))
        await ears.until(lambda: ears.devices.keys() == everything.keys(), seconds=30)

        assert {resource: len(ears.healthy(resource)) for resource in ears.devices} == everything
        assert exchange.capacity().allocatable == everything
