"""Who holds what, as pictures tell it."""

from dataclasses import replace

from hypothesis import given, settings

from alignup.align import bits
from alignup.align.host import Host
from alignup.align.machine import Device
from alignup.picture.occupancy import UseState, known_devices, read_occupancy
from tests.picture import gallery
from tests.picture.gallery import GPU, hosts


def test_every_state_of_a_busy_host_is_told():
    uses = read_occupancy(gallery.busy().ledger)

    split = {use.mark: bits.show(cpus) for use, cpus in uses.split(range(64)).items()}
    assert split == {"r": "0-1", "A": "2-9", "B": "10-13", "D": "14-19", "E": "32-41", "s": "20-31,42-63"}
    assert [tenant.name for tenant in uses.tenants] == [
        *("default/train-0", "default/database", "default/web-7c9", "default/router", "default/infer-1"),
    ]
    assert uses.sharing == ("default/web-7c9",)


def test_cpus_nobody_runs_on_are_free_not_shared():
    host = gallery.busy()
    host.release("uid-web-7c9")

    uses = read_occupancy(host.ledger)

    assert uses.of_cpu(20).state is UseState.FREE
    assert uses.of_cpu(500).state is UseState.UNSEEN


def test_memory_is_divided_without_a_rest():
    host = gallery.busy()
    uses = read_occupancy(host.ledger)

    bars = uses.bars(host.machine.nodes[0])

    assert [dict(bar.parts) for bar in bars] == [
        {"in huge pages": 5 << 30, "reserved": 2 << 30, "held": 45 << 30, "free": 12 << 30},
        {"held": 512 << 20, "free": 512 << 20},
        {"held": 2 << 30, "free": 2 << 30},
    ]


def test_devices_are_as_announced_last_and_held_ones_never_vanish():
    host = gallery.busy()
    host.update_devices(GPU, [Device(GPU, "gpu-9", nodes=1)])

    known = {device.id: device for device in known_devices(host.machine, host.ledger) if device.resource == GPU}

    assert sorted(known) == ["gpu-0", "gpu-1", "gpu-2", "gpu-9"]
    assert not known["gpu-0"].healthy


def test_without_a_ledger_nothing_is_held_or_free():
    uses = read_occupancy(None)

    assert uses.of_cpu(0).state is UseState.PLAIN
    assert uses.tenants == ()


@given(hosts())
@settings(max_examples=40)
def test_every_cpu_has_one_use_and_owners_agree_with_the_ledger(host):
    uses = read_occupancy(host.ledger)

    split = uses.split(cpu.id for cpu in host.machine.cpus)
    assert sum(cpus.bit_count() for cpus in split.values()) == len(host.machine.cpus)
    for tenant in uses.tenants:
        held = next((cpus for use, cpus in split.items() if use.tenant == tenant), 0)
        assert held == tenant.cpus
    assert len({tenant.key for tenant in uses.tenants}) == len(uses.tenants)


def test_pods_known_by_uid_alone_are_called_by_it():
    host = gallery.busy()
    stripped = replace(host.ledger, pods={})

    uses = read_occupancy(stripped)

    assert uses.tenants[0].name == "uid-train-0"
    assert Host(host.machine, host.settings, ledger=stripped).ledger is stripped
