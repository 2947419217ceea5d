"""The search for sets of pods: by size, then by cost, equivalent pods last."""

import pytest

from alignup.align.eviction_search import (
    EvictionCost,
    EvictionSearch,
    EvictionUnit,
    HostShortage,
    find_units,
)
from alignup.align.host import Host
from alignup.align.workload import Pod
from tests.align.hosts import make_host, make_pod

NOTHING = HostShortage((), {})


def unit(uid: str, *, pods: int = 1, priority: int = 0, memory: int = 0, holdings: object = None, nodes: int = 1):
    cost = EvictionCost(pods, (priority,) * pods, memory)
    return EvictionUnit((uid,), cost, holdings or uid, nodes)


def tried(units: list[EvictionUnit], size: int, **options: int) -> list[str]:
    search: EvictionSearch[bool] = EvictionSearch(units, lambda _: None, NOTHING, **options)
    return ["".join(chosen.pods[0] for chosen in each) for each in search.sets(size)]


@pytest.mark.parametrize(
    ("units", "order"),
    [
        pytest.param([unit("a", priority=2), unit("b", priority=1)], ["b", "a"], id="lower priority first"),
        pytest.param([unit("a", memory=2), unit("b", memory=1)], ["b", "a"], id="less memory first"),
        pytest.param([unit("b"), unit("a")], ["a", "b"], id="equal ones by uid"),
        pytest.param(
            [unit("a", holdings="x"), unit("b", holdings="x"), unit("c", memory=1)],
            ["a", "c", "b"],
            id="equivalent ones last",
        ),
        pytest.param([unit("a", pods=2), unit("b")], ["b"], id="a group counts all its pods"),
    ],
)
def test_single_units_are_tried_in_this_order(units, order):
    assert tried(units, 1) == order


def test_the_highest_priority_of_a_set_decides():
    units = [unit("a", priority=0), unit("b", priority=3), unit("c", priority=2), unit("d", priority=2)]

    assert tried(units, 2)[:3] == ["ac", "ad", "cd"]


def test_a_group_is_tried_among_sets_of_its_size():
    assert tried([unit("a", pods=2), unit("b"), unit("c", priority=1)], 2) == ["a", "bc"]


def test_large_sets_on_one_numa_node_come_first():
    units = [unit("a"), unit("b", nodes=2), unit("c", nodes=2), unit("d", nodes=2, priority=9)]

    assert tried(units, 3)[0] == "bcd"


def test_sets_of_equivalent_pods_are_limited():
    units = [unit(f"{number}", holdings="same") for number in range(6)]
    search: EvictionSearch[bool] = EvictionSearch(units, lambda _: None, NOTHING, max_equivalent=3)

    assert len(list(search.sets(2))) == 1 + 3
    assert search.limited == {2}


def test_sparing_keeps_the_cheapest_units():
    units = [unit(name, memory=place) for place, name in enumerate("abcd")]
    search = EvictionSearch(units, lambda uids: set(uids) if len(uids) >= 2 else None, NOTHING)

    assert search.spare() == ((units[0], units[1]), {"a", "b"})


def test_nothing_is_spared_where_all_are_not_enough():
    search: EvictionSearch[bool] = EvictionSearch([unit("a")], lambda _: None, NOTHING)

    assert search.spare() is None
    assert list(search.sufficient(1)) == []


def full_host() -> tuple[Host, Pod, HostShortage]:
    """Return a host with as many pods as it may have, a pod that is rejected, and what the host lacks for it."""
    host = make_host(max_pods=2, memory=False)
    for uid in "ab":
        host.admit(make_pod(uid, cpu="1"))
    pod = make_pod("new", cpu="7")
    return host, pod, HostShortage.of(host, pod)


def test_sets_that_use_too_little_are_not_decided_on():
    host, pod, shortage = full_host()
    units = find_units(host, pod, shortage)

    assert [short.resource for short in shortage.shortfalls] == ["pods", "cpu"]
    assert list(EvictionSearch(units, lambda _: True, shortage).sufficient(1)) == []
    assert EvictionSearch(units, lambda _: True, shortage).prove(units)


def test_units_of_one_group_are_one():
    host, pod, shortage = full_host()
    units = find_units(host, pod, shortage, cost=lambda arrival, _: EvictionCost(1, (arrival,), 5, 7))

    group = EvictionUnit.together(units, EvictionCost.total([unit.cost for unit in units]))

    assert group.pods == ("a", "b")
    assert group.cost == EvictionCost(2, (1, 0), 10, 14)
    assert group.uses == {"pods": 2, "cpu": 2000}
    assert [units for units, _ in EvictionSearch([group], lambda _: True, shortage).sufficient(2)] == [(group,)]
