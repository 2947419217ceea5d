"""The ledger of a host: adding and removing pods makes a new one."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align.decision import Decision
from alignup.align.fit import UsedResources
from alignup.align.host import Host
from alignup.align.ledger import AdmittedPod, Ledger
from alignup.align.machine import Device
from alignup.align.workload.demand import fit_used
from tests.align.hosts import GIB, GPU, admit, arrivals, hosts, make_host, make_pod


def resident(uid: str, *, gpu: str = "0") -> AdmittedPod:
    wanted = make_pod(uid, gpu=gpu)
    return AdmittedPod(wanted, {}, fit_used(wanted))


def idle() -> Ledger:
    return replace(make_host().initial_ledger(), others={"count": 0})


def test_a_pod_is_added():
    empty = idle()

    ledger = empty.with_pod(resident("a", gpu="1"), {**empty.by_provider(), "count": 1})

    assert (ledger.cpus, ledger.memory, ledger.devices) == (empty.cpus, empty.memory, empty.devices)
    assert ledger.others == {"count": 1}
    assert list(ledger.pods) == ["a"]
    assert ledger.used == UsedResources(milli_cpu=2000, memory=GIB, pods=1, scalars={GPU: 1})
    assert (empty.others, empty.pods, empty.used) == ({"count": 0}, {}, UsedResources())


def test_pods_are_in_the_order_of_admission():
    ledger = idle()
    for uid in ("c", "a", "b"):
        ledger = ledger.with_pods([resident(uid)])

    assert list(ledger.pods) == ["c", "a", "b"]
    assert list(ledger.without_pod("a", ledger.by_provider()).pods) == ["c", "b"]


def test_an_unknown_pod_cannot_be_removed():
    with pytest.raises(KeyError):
        idle().without_pod("unknown", idle().by_provider())


class TestAlignmentKey:
    """Ledgers with equal keys place every new pod alike, whichever pods and devices they hold."""

    @given(host=hosts(), data=st.data())
    def test_names_of_pods_and_devices_do_not_matter(self, host: Host, data: st.DataObject):
        machine = host.machine
        renamed = machine.with_reported(replace(device, id=f"other-{device.id}") for device in machine.devices)
        other = Host(renamed, host.settings)
        for number in range(data.draw(st.integers(0, 3))):
            wanted = data.draw(arrivals(f"u{number}"))
            admit(host, wanted)
            admit(other, replace(wanted, uid=f"v{number}", name="other"))
        wanted = data.draw(arrivals("new"))

        assert host.ledger.alignment_key() == other.ledger.alignment_key()
        assert host.ledger.used == other.ledger.used
        assert nameless(admit(host, wanted)) == nameless(admit(other, wanted))
        assert host.ledger.alignment_key() == other.ledger.alignment_key()

    def test_an_allocation_changes_the_key_and_its_release_restores_it(self):
        host = make_host()
        idle = host.ledger.alignment_key()

        host.admit(make_pod("a", gpu="1"))
        assert all(part != before for part, before in zip(host.ledger.alignment_key(), idle, strict=True))

        host.release("a")
        assert host.ledger.alignment_key() == idle

    def test_the_health_of_a_device_changes_the_key(self):
        host = make_host()
        idle = host.ledger.alignment_key()

        host.update_devices(GPU, (Device(GPU, "gpu-0", nodes=1, healthy=False), Device(GPU, "gpu-1", nodes=2)))

        assert host.ledger.alignment_key() != idle

    def test_a_device_that_is_gone_stays_in_the_key_while_it_is_held(self):
        host = make_host()
        host.admit(make_pod("a", gpu="1"))
        host.update_devices(GPU, ())
        held = host.ledger.alignment_key()
        host.release("a")

        assert host.ledger.alignment_key() != held


def nameless(decision: Decision) -> object:
    """What was decided, with the number of devices instead of their ids."""
    placed = [
        (placement.hint, placement.cpus, placement.memory, {r: len(ids) for r, ids in placement.devices.items()})
        for placement in decision.placements
    ]
    steps = [(step.container, step.width, step.rule, step.hint, step.accepted) for step in decision.steps]
    return decision.outcome, steps, placed, decision.rejection
