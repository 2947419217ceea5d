"""CPUs, memory and devices behind the protocol that admission uses."""

from dataclasses import replace
from typing import Any

import pytest

from alignup.align import bits
from alignup.align.devices.provider import DeviceProvider
from alignup.align.errors import StateError
from alignup.align.hint import Hint, Need, Provider
from alignup.align.machine import Device
from alignup.align.memory.ledger import Block
from alignup.align.workload import Container, Pod
from tests.align.hosts import GIB, GPU, NIC, make_host, make_pod
from tests.strategies_pods import guaranteed

NODE_1 = Hint(0b10, preferred=True)

HOST = make_host()
PROVIDERS: dict[str, Provider[Any]] = {provider.name: provider for provider in HOST.providers}
each = pytest.mark.parametrize("provider", PROVIDERS.values(), ids=PROVIDERS)


@each
def test_a_container_without_requests_gets_nothing(provider):
    idle = provider.initial_ledger()
    plain = Pod(name="a", uid="a", containers=(Container("app"),))
    app = plain.containers[0]

    assert not provider.hints(idle, plain, app)
    assert not provider.hints(idle, plain, None)
    assert provider.needs(idle, plain, app) == {}
    assert provider.allocate(idle, plain, app, affinity=NODE_1) == idle


@each
def test_an_allocation_is_released(provider):
    idle = provider.initial_ledger()
    wanted = make_pod(gpu="1")

    ledger = provider.allocate(idle, wanted, wanted.containers[0], affinity=NODE_1)

    assert ledger.held["a"]["app"]
    assert provider.release(ledger, "a") == idle
    assert provider.release(idle, "a") == idle


@each
def test_reusable_resources_are_forgotten_with_the_pod(provider):
    """A later pod with the same uid is placed like the first one."""
    idle = provider.initial_ledger()
    wanted = replace(make_pod(gpu="1"), init=(guaranteed("init", {"cpu": "2", "memory": "1Gi", GPU: "1"}),))

    ledger = provider.allocate(idle, wanted, wanted.init[0], affinity=NODE_1)

    assert provider.release(ledger, "a") == idle


@pytest.mark.parametrize(
    ("name", "held", "needs"),
    [
        pytest.param("device", {GPU: ("gpu-1",)}, {GPU: Need(1, {0: 1, 1: 1}, free_total=2)}, id="devices"),
        pytest.param("cpu", bits.parse("4-5"), {"cpu": Need(2, {0: 3, 1: 4})}, id="CPUs"),
        pytest.param(
            "memory",
            (Block(0b10, "memory", GIB),),
            {"memory": Need(GIB, {0: 16 * GIB - (64 << 20), 1: 16 * GIB})},
            id="memory",
        ),
    ],
)
def test_needs_and_allocations(name, held, needs):
    provider = PROVIDERS[name]
    idle = provider.initial_ledger()
    wanted = make_pod(gpu="1")
    app = wanted.containers[0]

    assert provider.needs(idle, wanted, app) == needs
    assert provider.needs(idle, wanted, None) == needs
    assert provider.allocate(idle, wanted, app, affinity=NODE_1).held["a"]["app"] == held


class TestDevices:
    def test_the_capacity_is_the_number_of_healthy_devices(self):
        devices = DeviceProvider(
            0b11, (Device(GPU, "a", 1), Device(GPU, "b", 1, healthy=False), Device(NIC, "c", None))
        )

        assert devices.capacity(devices.initial_ledger(), "a") == {GPU: 1, NIC: 1}

    def test_a_pod_as_a_whole_gets_none(self):
        idle = HOST.devices.initial_ledger()

        assert HOST.devices.allocate(idle, make_pod(gpu="1"), None, affinity=NODE_1) is idle

    def test_a_resource_without_plugin_has_nothing_free(self):
        devices = DeviceProvider(0b11, (Device(GPU, "a", 1),))
        wanted = make_pod(gpu="1")
        app = wanted.containers[0]
        held = devices.allocate(devices.initial_ledger(), wanted, app, affinity=Hint(1, preferred=True))
        forgotten = replace(held, inventories={}, free={})

        assert devices.needs(forgotten, wanted, app) == {GPU: Need(1, {})}


def test_a_provider_without_json_cannot_store_its_ledger():
    with pytest.raises(StateError, match="the provider cpu cannot store its ledger"):
        HOST.cpus.to_json(HOST.ledger.cpus)
    with pytest.raises(StateError, match="the provider memory cannot store its ledger"):
        HOST.memory.from_json({})


def test_starting_a_container_changes_nothing_for_cpus_and_devices():
    wanted = make_pod(gpu="1")
    for provider in (HOST.cpus, HOST.devices):
        idle: Any = provider.initial_ledger()
        assert provider.start_container(idle, wanted, wanted.containers[0]) is idle


def test_the_host_knows_the_capacity_of_cpus():
    assert HOST.cpus.capacity(HOST.cpus.initial_ledger(), "a") == {}
