"""CPUs, memory and devices behind the one face that admission knows."""

from dataclasses import replace
from typing import Any

import pytest

from alignup.align.errors import ProviderError
from alignup.align.hint import Hint
from alignup.align.machine import Device
from alignup.align.memory.provider import MemoryPolicy, MemorySettings
from alignup.align.provider import Need, Provider
from alignup.align.providers import CpuHintProvider, DeviceProvider, MemoryProvider, PreferencesNeededError
from alignup.align.quantity import Quantity
from alignup.align.workload import Container, Pod, Resources
from tests.align.hosts import GIB, GPU, NIC, host, pod
from tests.strategies_pods import guaranteed

NODE_1 = Hint(0b10, preferred=True)

PROVIDERS: dict[str, Provider[Any]] = {one.name: one for one in host().providers}
each = pytest.mark.parametrize("provider", PROVIDERS.values(), ids=PROVIDERS)


@each
def test_who_asks_for_nothing_is_no_concern(provider):
    idle = provider.idle()
    nobody = Pod(name="a", uid="a", containers=(Container("app"),))
    app = nobody.containers[0]

    assert not provider.hints(idle, nobody, app)
    assert not provider.hints(idle, nobody, None)
    assert provider.needs(idle, nobody, app) == {}
    assert provider.given(provider.allocate(idle, nobody, app, affinity=NODE_1), "a", "app") == {}


@each
def test_what_was_given_comes_back(provider):
    idle = provider.idle()
    wanted = pod(gpu="1")

    book = provider.allocate(idle, wanted, wanted.containers[0], affinity=NODE_1)

    assert provider.given(book, "a", "app")
    assert provider.release(book, "a") == idle
    assert provider.release(idle, "a") == idle


@each
def test_what_a_pod_could_have_used_again_is_forgotten_with_it(provider):
    """A pod of the same uid may come again, and is to be placed as the first time."""
    idle = provider.idle()
    wanted = replace(pod(gpu="1"), init=(guaranteed("init", {"cpu": "2", "memory": "1Gi", GPU: "1"}),))

    book = provider.allocate(idle, wanted, wanted.init[0], affinity=NODE_1)

    assert provider.release(book, "a") == idle


@pytest.mark.parametrize(
    ("name", "given", "needs"),
    [
        pytest.param("device", {GPU: "gpu-1"}, {GPU: Need(1, {0: 1, 1: 1}, in_all=2)}, id="devices by id"),
        pytest.param("cpu", {"cpu": "4-5"}, {"cpu": Need(2, {0: 3, 1: 4})}, id="CPUs as a list"),
        pytest.param(
            "memory",
            {"memory": f"1={GIB}"},
            {"memory": Need(GIB, {0: 16 * GIB - (64 << 20), 1: 16 * GIB})},
            id="memory as nodes and bytes",
        ),
    ],
)
def test_what_goes_on_record(name, given, needs):
    provider = PROVIDERS[name]
    idle = provider.idle()
    wanted = pod(gpu="1")
    app = wanted.containers[0]

    assert provider.needs(idle, wanted, app) == needs
    assert provider.needs(idle, wanted, None) == needs
    assert provider.given(provider.allocate(idle, wanted, app, affinity=NODE_1), "a", "app") == given


class TestDevices:
    def test_the_fit_check_may_count_on_the_healthy_ones(self):
        devices = DeviceProvider(
            0b11, (Device(GPU, "a", 1), Device(GPU, "b", 1, healthy=False), Device(NIC, "c", None))
        )

        assert devices.offered(devices.idle(), "a") == {GPU: 1, NIC: 1}

    def test_plugins_that_want_to_be_asked_are(self):
        devices = DeviceProvider(
            0b11, (Device(GPU, "a", 1), Device(GPU, "b", 1)), preferred_allocation=frozenset({GPU})
        )
        wanted = pod(gpu="1")

        with pytest.raises(PreferencesNeededError) as caught:
            devices.allocate(devices.idle(), wanted, wanted.containers[0], affinity=Hint(1, preferred=True))

        (ask,) = caught.value.asks
        answered = replace(devices, answers={ask: ("b",)})
        book = answered.allocate(devices.idle(), wanted, wanted.containers[0], affinity=Hint(1, preferred=True))
        assert answered.given(book, "a", "app") == {GPU: "b"}

    def test_a_pod_as_a_whole_is_given_none(self):
        devices = PROVIDERS["device"]
        idle = devices.idle()

        assert devices.allocate(idle, pod(gpu="1"), None, affinity=NODE_1) is idle

    def test_a_resource_whose_plugin_is_gone_has_nothing_free(self):
        devices = DeviceProvider(0b11, (Device(GPU, "a", 1),))
        wanted = pod(gpu="1")
        held = devices.allocate(devices.idle(), wanted, wanted.containers[0], affinity=Hint(1, preferred=True))
        forgotten = replace(held, inventories={}, free={})

        assert devices.needs(forgotten, wanted, wanted.containers[0]) == {GPU: Need(1, {})}


class TestMemory:
    def test_not_managed_it_has_no_opinion(self):
        memory = MemoryProvider(host().view, MemorySettings(MemoryPolicy.NONE))
        wanted = pod()

        assert memory.idle().nodes == {}
        assert memory.hints(memory.idle(), wanted, wanted.containers[0]) is None
        assert memory.allocate(memory.idle(), wanted, wanted.containers[0], affinity=NODE_1) == memory.idle()

    def test_an_amount_it_does_not_take_is_not_on_record_and_refused_when_it_comes_to_giving(self):
        """Half a byte; a static pod may ask for it, since nobody rewrites what it says."""
        memory = PROVIDERS["memory"]
        idle = memory.idle()
        half = {"cpu": Quantity.parse("2"), "memory": Quantity.parse("1073741824500m")}
        wanted = Pod(name="a", uid="a", containers=(Container("app", Resources(half, half)),))
        app = wanted.containers[0]

        assert memory.needs(idle, wanted, app) == {}
        assert memory.hints(idle, wanted, app) is None
        with pytest.raises(ProviderError, match="failed to represent quantity as int64"):
            memory.allocate(idle, wanted, app, affinity=NODE_1)


def test_starting_a_container_means_nothing_to_cpus_and_devices():
    wanted = pod(gpu="1")
    for name in ("cpu", "device"):
        idle = PROVIDERS[name].idle()
        assert PROVIDERS[name].started(idle, wanted, wanted.containers[0]) is idle


def test_cpus_are_offered_by_the_host_not_by_their_provider():
    cpus = PROVIDERS["cpu"]

    assert isinstance(cpus, CpuHintProvider)
    assert cpus.offered(cpus.idle(), "a") == {}
