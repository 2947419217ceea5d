"""Occupancy: which pod holds which CPUs, memory and devices."""

from dataclasses import replace

from hypothesis import given, settings

from alignup.align import bits
from alignup.align.host import Host
from alignup.align.machine import Device
from alignup.picture.occupancy import UseState, known_devices, read_occupancy
from tests.effort import examples
from tests.picture import gallery
from tests.picture.gallery import GPU, hosts


def test_a_busy_host_has_every_state():
    occupancy = read_occupancy(gallery.busy().ledger)

    split = {use.mark: bits.show(cpus) for use, cpus in occupancy.split(range(64)).items()}
    assert split == {"r": "0-1", "A": "2-9", "B": "10-13", "D": "14-19", "E": "32-41", "s": "20-31,42-63"}
    assert [holder.name for holder in occupancy.holders] == [
        *("default/train-0", "default/database", "default/web-7c9", "default/router", "default/infer-1"),
    ]
    assert occupancy.sharing == ("default/web-7c9",)


def test_cpus_without_pods_are_free_not_shared():
    host = gallery.busy()
    host.release("uid-web-7c9")

    occupancy = read_occupancy(host.ledger)

    assert occupancy.of_cpu(20).state is UseState.FREE
    assert occupancy.of_cpu(500).state is UseState.UNSEEN


def test_the_parts_of_memory_add_up():
    host = gallery.busy()
    occupancy = read_occupancy(host.ledger)

    bars = occupancy.bars(host.machine.nodes[0])

    assert [dict(bar.parts) for bar in bars] == [
        {"in huge pages": 5 << 30, "reserved": 2 << 30, "held": 45 << 30, "free": 12 << 30},
        {"held": 512 << 20, "free": 512 << 20},
        {"held": 2 << 30, "free": 2 << 30},
    ]


def test_devices_are_as_last_announced_plus_held_ones():
    host = gallery.busy()
    host.update_devices(GPU, [Device(GPU, "gpu-9", nodes=1)])

    known = {device.id: device for device in known_devices(host.machine, host.ledger) if device.resource == GPU}

    assert sorted(known) == ["gpu-0", "gpu-1", "gpu-2", "gpu-9"]
    assert not known["gpu-0"].healthy


def test_a_device_that_many_pods_share_names_some_of_them():
    host = gallery.claimed()
    claims = host.ledger.claims
    assert claims is not None
    for number in range(5):
        host.admit(gallery.pod(f"more-{number}", cpu="1m", memory="1Mi"))
    shared = {f"uid-more-{number}": claims.held["uid-infer-0"] for number in range(5)}
    ledger = replace(host.ledger, claims=replace(claims, held={**claims.held, **shared}))

    use = read_occupancy(ledger).of_device(Device("gpu.example.com (DRA, H100)", "gpu-2", nodes=2))

    assert use.mark == "B,C,D,E,+3"
    assert use.description == "held by default/infer-0, default/infer-1, default/more-0, default/more-1, +3"


def test_without_a_ledger_nothing_is_held_or_free():
    occupancy = read_occupancy(None)

    assert occupancy.of_cpu(0).state is UseState.PLAIN
    assert occupancy.holders == ()


@given(hosts())
@settings(max_examples=examples(40))
def test_every_cpu_has_one_use_that_matches_the_ledger(host):
    occupancy = read_occupancy(host.ledger)

    split = occupancy.split(cpu.id for cpu in host.machine.cpus)
    assert sum(cpus.bit_count() for cpus in split.values()) == len(host.machine.cpus)
    for holder in occupancy.holders:
        held = next((cpus for use, cpus in split.items() if use.holder == holder), 0)
        assert held == holder.cpus
    assert len({holder.key for holder in occupancy.holders}) == len(occupancy.holders)


def test_pods_without_a_name_go_by_their_uid():
    host = gallery.busy()
    stripped = replace(host.ledger, pods={})

    occupancy = read_occupancy(stripped)

    assert occupancy.holders[0].name == "uid-train-0"
    assert Host(host.machine, host.settings, ledger=stripped).ledger is stripped
