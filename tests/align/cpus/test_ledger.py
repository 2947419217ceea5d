"""Who owns which CPUs: what giving and taking back change, and what they never change."""

from dataclasses import replace

import pytest

from alignup.align import bits
from alignup.align.cpus.ledger import CpuLedger
from alignup.align.errors import StateError

ALL = bits.parse("0-7")
RESERVED = bits.parse("0")
IDLE = CpuLedger(node_cpus={0: bits.parse("0-3"), 5: bits.parse("4-7")}, reserved=RESERVED, shared=ALL)


def cpus(text: str) -> bits.CpuSet:
    return bits.parse(text)


def test_reserved_cpus_are_shared_but_not_available():
    assert IDLE.shared == ALL
    assert IDLE.available == cpus("1-7")
    assert IDLE.free == {0: 3, 5: 4}


def test_an_unknown_container_holds_nothing():
    assert IDLE.holds("pod", "app") is None
    assert IDLE.owned("pod") == 0


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        pytest.param("0-1", "CPUs 0 are not available", id="reserved CPUs are never given"),
        pytest.param("1-3", "CPUs 2-3 are not available", id="nor another pod's"),
        pytest.param("7-8", "CPUs 8 are not available", id="nor those the machine does not have"),
    ],
)
def test_only_available_cpus_can_be_given(wanted, why):
    ledger = IDLE.give("other", "app", cpus=cpus("2-3"))

    with pytest.raises(StateError) as rejected:
        ledger.give("pod", "app", cpus=cpus(wanted))
    with pytest.raises(StateError) as rejected_pod:
        ledger.give_pod("pod", cpus(wanted), containers={})

    assert str(rejected.value) == str(rejected_pod.value) == why


def test_releasing_an_unknown_container_changes_nothing():
    assert IDLE.take_back("pod", "app") is IDLE


def test_cpus_of_a_whole_pod_can_be_released_without_its_containers():
    assert IDLE.give_pod("pod", cpus("1-4"), containers={}).forget("pod") == IDLE


def test_containers_own_only_cpus_of_their_pod():
    with pytest.raises(StateError, match="CPUs 5 are not CPUs of the pod"):
        IDLE.give_pod("pod", cpus("1-4"), containers={"a": cpus("4-5")})


def test_containers_that_are_gone_own_nothing():
    ledger = IDLE.give("pod", "init", cpus=cpus("1-2")).give("pod", "app", cpus=cpus("2-3"))
    ledger = ledger.give_pod("whole", cpus("4-6"), containers={"a": cpus("4"), "b": cpus("5-6")})

    here = {("pod", "app"), ("whole", "b"), ("unknown", "app")}

    assert ledger.only(here).held == {"pod": {"app": cpus("2-3")}, "whole": {"b": cpus("5-6")}}
    assert ledger.only(here).shared == cpus("0-1,7"), "one piece comes back as one piece"
    assert ledger.only(()) == IDLE
    assert ledger.only({(uid, name) for uid, containers in ledger.held.items() for name in containers}) is ledger


def test_only_one_pod_has_reusable_cpus():
    ledger = IDLE.with_reusable("pod", cpus("1-2"))

    assert ledger.reusable_by("pod") == cpus("1-2")
    assert ledger.reusable_by("other") == 0
    assert ledger.with_reusable("other", 0).reusable_by("pod") == 0
    assert ledger.with_reusable("pod", cpus("1-2")) is ledger


def counted(ledger: CpuLedger) -> dict[int, int]:
    return {
        node: (node_cpus & ledger.shared & ~ledger.reserved).bit_count() for node, node_cpus in ledger.node_cpus.items()
    }


def test_free_cpus_are_counted_after_every_change():
    init = IDLE.give("pod", "init", cpus=cpus("1-2,5"))
    again = init.give("pod", "app", cpus=cpus("2-3,5"))
    back = again.take_back("pod", "init")
    whole = back.give_pod("other", cpus("6-7"), containers={"app": cpus("6")})
    ledgers = [init, again, back, whole, whole.take_back("pod", "app"), whole.take_back("other", "app")]

    assert [ledger.free for ledger in ledgers] == [counted(ledger) for ledger in ledgers]
    assert replace(again, shared=ALL).free == IDLE.free
