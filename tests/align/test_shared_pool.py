"""The shared pool, divided: never a CPU that is not in it, never nothing, few nodes, balanced, and stable."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align import bits
from alignup.align.machine import Cpu, Distances, Machine, NumaNode
from alignup.align.shared_pool import PoolShare, SharedPod, SharedPool, _Division, divide_pool
from tests.deadlines import cpu_limit
from tests.strategies import machines

GIB = 1 << 30


def machine(nodes: int = 2, cpus: int = 4, *, memory: int = 16 * GIB, distances: bool = False) -> Machine:
    """Return a machine whose NUMA nodes have as many *cpus* each, numbered node by node."""
    rows = {a: {b: 10 if a == b else 11 if a // 2 == b // 2 else 20 for b in range(nodes)} for a in range(nodes)}
    return Machine(
        cpus=tuple(Cpu(id_, core=id_, socket=0, node=id_ // cpus) for id_ in range(nodes * cpus)),
        nodes=tuple(NumaNode(id_, memory=memory) for id_ in range(nodes)),
        distances=Distances(rows) if distances else None,
    )


def pool(cpus: str, **shape) -> SharedPool:
    return SharedPool(machine(**shape), bits.parse(cpus))


def show(division: dict[str, PoolShare]) -> dict[str, str]:
    return {uid: bits.show(share.cpus) for uid, share in sorted(division.items())}


def test_each_pod_is_on_one_node_and_the_nodes_are_loaded_alike():
    pods = [SharedPod("a", 2000), SharedPod("b", 1000), SharedPod("c", 1000), SharedPod("d", 500)]

    assert show(divide_pool(pool("0-7"), pods)) == {"a": "0-3", "b": "4-7", "c": "4-7", "d": "0-3"}


def test_pods_without_requests_are_spread_too():
    division = divide_pool(pool("0-7"), [SharedPod(f"p{number}") for number in range(10)])

    assert sorted(show(division).values()) == ["0-3"] * 5 + ["4-7"] * 5


def test_a_pod_gets_as_many_nodes_as_its_requests_need_and_close_ones():
    shared = pool("1-15", nodes=4, distances=True)
    division = divide_pool(shared, [SharedPod("wide", 6000), SharedPod("all", 14000)])

    assert show(divide_pool(shared, [SharedPod("wide", 6000)])) == {"wide": "8-15"}
    assert division["all"].nodes == 0b1111
    assert division["all"].cpus == bits.parse("1-15")


def test_a_pod_that_needs_more_than_a_node_has_left_gets_a_second_one():
    division = divide_pool(pool("0-7"), [SharedPod("a", 3000), SharedPod("b", 3000), SharedPod("c", 2000)])

    assert show(division) == {"a": "0-3", "b": "4-7", "c": "0-7"}


def test_nodes_that_are_exactly_full_are_not_overloaded():
    division = divide_pool(pool("0-7"), [SharedPod(uid, 2000) for uid in "abcd"])

    assert sorted(show(division).values()) == ["0-3", "0-3", "4-7", "4-7"]


def test_requests_beyond_the_pool_still_give_every_pod_cpus():
    division = divide_pool(pool("0-7"), [SharedPod(uid, 9000) for uid in "abc"])

    assert show(division) == dict.fromkeys("abc", "0-7")


def test_pods_stay_where_they_are_when_others_come_and_small_differences_do_not_move_them():
    pods = [SharedPod(uid, 500) for uid in "abc"]
    before = divide_pool(pool("0-7"), pods)

    after = divide_pool(pool("0-7"), [*pods, SharedPod("0", 400)], before)

    assert {uid: after[uid] for uid in "abc"} == before


def test_pods_move_when_their_node_loses_its_cpus_and_back_when_the_loads_differ_much():
    pods = [SharedPod(uid, 1000) for uid in "abcd"]
    before = divide_pool(pool("0-7"), pods)
    shrunk = divide_pool(pool("0-3"), pods, before)
    grown = divide_pool(pool("0-7"), pods, shrunk)

    assert sorted(show(before).values()) == ["0-3", "0-3", "4-7", "4-7"]
    assert show(shrunk) == dict.fromkeys("abcd", "0-3")
    assert sorted(show(grown).values()) == ["0-3", "0-3", "4-7", "4-7"]


@pytest.mark.parametrize("count", [2, 3, 10])
def test_idle_pods_do_not_leave_a_node_empty_that_has_come_back(count):
    pods = [SharedPod(f"p{number}") for number in range(count)]
    grown = divide_pool(pool("0-7"), pods, divide_pool(pool("0-3"), pods))
    sizes = [list(show(grown).values()).count(cpus) for cpus in ("0-3", "4-7")]

    assert min(sizes) * 3 >= max(sizes) - 1


def test_a_wide_pod_shrinks_as_soon_as_there_is_room_on_one_node():
    pods = [SharedPod("a", 3000), SharedPod("b", 3000), SharedPod("c", 2000)]
    before = divide_pool(pool("0-7"), pods)

    assert show(divide_pool(pool("0-7"), pods[1:], before)) == {"b": "4-7", "c": "0-3"}


def test_cpus_follow_memory_that_the_kubelet_reserved_and_the_memory_nodes_are_not_touched():
    division = divide_pool(pool("0-7"), [SharedPod("a", 3900), SharedPod("pinned", 1000, GIB, pinned=0b10)])

    assert show(division) == {"a": "0-3", "pinned": "4-7"}
    assert (division["pinned"].memory_nodes, division["a"].memory_nodes) == (0, 0b11)


def test_a_pod_whose_memory_is_where_no_shared_cpu_is_goes_anywhere():
    assert show(divide_pool(pool("0-3"), [SharedPod("a", 1000, pinned=0b10)])) == {"a": "0-3"}


def test_memory_follows_the_cpus_where_the_limits_fit():
    pods = [SharedPod("a", 3000, 10 * GIB), SharedPod("b", 2000, 10 * GIB), SharedPod("c", 1000, 10 * GIB)]
    division = divide_pool(pool("0-7"), [*pods, SharedPod("d", 100)])

    assert {uid: bits.show(share.memory_nodes) for uid, share in division.items()} == {
        "a": "0",
        "b": "1",
        "c": "0-1",  # the node of its CPUs has 6 GiB left
        "d": "0-1",  # it has no limit
    }


def test_a_pod_keeps_its_memory_nodes_when_another_wants_them():
    before = divide_pool(pool("0-7"), [SharedPod("z", 4000, 10 * GIB)])
    division = divide_pool(pool("0-3"), [SharedPod("z", 4000, 10 * GIB), SharedPod("a", 0, 10 * GIB)], before)

    assert (before["z"].memory_nodes, division["z"].memory_nodes, division["a"].memory_nodes) == (0b01, 0b01, 0b11)


def test_a_wide_pod_takes_memory_from_all_its_nodes_and_reserved_memory_counts():
    shared = SharedPool(machine(), bits.parse("0-7"), memory={0: 4 * GIB, 1: -GIB})
    wide = divide_pool(shared, [SharedPod("a", 8000, 4 * GIB), SharedPod("b", 0, GIB)])

    assert shared.node_memory == {0: 4 * GIB, 1: 0}
    assert {uid: share.memory_nodes for uid, share in wide.items()} == {"a": 0b11, "b": 0b11}


def test_an_empty_pool_gives_nothing_and_cpus_in_no_node_are_given_to_all():
    without_nodes = Machine(cpus=(Cpu(0, 0, 0, None), Cpu(1, 1, 0, None)), nodes=())

    assert divide_pool(pool(""), [SharedPod("a")]) == {}
    assert divide_pool(SharedPool(without_nodes, 0b11), [SharedPod("a")]) == {"a": PoolShare(0, 0b11, 0)}


@st.composite
def pools(draw: st.DrawFn) -> SharedPool:
    drawn = draw(machines(max_nodes=5))
    cpus = draw(st.sets(st.sampled_from([cpu.id for cpu in drawn.cpus]), min_size=1))
    return SharedPool(drawn, bits.of(cpus))


requests = st.one_of(st.integers(0, 500), st.integers(0, 30_000))
limits = st.none() | st.integers(0, 64 * GIB)


@st.composite
def pods(draw: st.DrawFn, most: int = 12) -> list[SharedPod]:
    count = draw(st.integers(0, most))
    pinned = st.just(0) | st.integers(0, 31)
    return [SharedPod(f"pod-{number}", draw(requests), draw(limits), draw(pinned)) for number in range(count)]


@given(pools(), pods(), pools())
def test_no_part_is_empty_or_has_other_cpus_whatever_was_before(shared, wanted, other):
    before = divide_pool(other, wanted)
    division = divide_pool(shared, wanted, before)

    assert division.keys() == {pod.uid for pod in wanted}
    for share in division.values():
        assert share.cpus
        assert share.cpus & ~shared.cpus == 0
        assert share.memory_nodes & ~bits.of(node.id for node in shared.machine.nodes) == 0


@given(pools(), pods(), pools())
def test_the_same_pool_and_pods_are_divided_as_before(shared, wanted, other):
    division = divide_pool(shared, wanted, divide_pool(other, wanted))

    assert divide_pool(shared, wanted, division) == division
    assert divide_pool(shared, reversed(wanted), division) == division


@given(pools(), pods())
def test_a_pod_alone_is_on_as_few_nodes_as_its_requests_allow(shared, wanted):
    for pod in wanted:
        share = divide_pool(shared, [pod])[pod.uid]
        if not pod.pinned & shared.nodes and shared.nodes:
            sizes = sorted((cpus.bit_count() for cpus in shared.node_cpus.values()), reverse=True)
            fewest = next((count for count in range(1, len(sizes)) if sum(sizes[:count]) * 1000 >= pod.cpu), len(sizes))
            assert share.nodes.bit_count() >= fewest
            assert fewest > 1 or share.nodes.bit_count() == 1


def naive_best(division: _Division, shared: SharedPool, pod: SharedPod) -> int:
    """Return the best nodes for a pod by the cost of every set of close nodes."""
    levels = [min((division.cost(pod, nodes), nodes) for nodes in level) for level in shared.neighborhoods]
    not_overloaded = (nodes for cost, nodes in levels if cost.shortage == cost.overload == 0)
    enough = (nodes for cost, nodes in levels if cost.shortage == 0)
    return next(not_overloaded, next(enough, levels[-1][1]))


@given(pools(), pods())
def test_the_best_nodes_are_those_of_a_search_of_all_sets(shared, wanted):
    division = _Division(shared)
    for pod in wanted if shared.nodes else ():
        best = division.best(pod)[1]
        expected = naive_best(division, shared, pod)
        division.put(pod, best)

        assert best == expected


@given(st.integers(2, 6), st.integers(1, 40), st.integers(0, 100))
def test_equal_pods_on_equal_nodes_differ_by_at_most_one(nodes, count, cpu):
    division = divide_pool(
        SharedPool(machine(nodes, 8), (1 << nodes * 8) - 1), [SharedPod(f"p{number}", cpu) for number in range(count)]
    )
    sizes = [sum(share.nodes == 1 << node for share in division.values()) for node in range(nodes)]

    assert max(sizes) - min(sizes) <= 1
    assert sum(sizes) == count


@pytest.mark.parametrize("cpu", [100, 700])
def test_250_pods_on_a_machine_of_16_nodes_are_divided_well_within_the_time_limit_of_a_runtime(cpu):
    shared = SharedPool(machine(16, 12, distances=True), (1 << 16 * 12) - 1)
    wanted = [SharedPod(f"p{number:03}", cpu + number, GIB) for number in range(250)]
    shrunk = SharedPool(shared.machine, shared.cpus >> 60 << 60)
    with cpu_limit():
        after = divide_pool(shrunk, wanted, divide_pool(shared, wanted))

    assert all(share.cpus & ~shrunk.cpus == 0 for share in after.values())


@pytest.mark.parametrize("load", [98, 105])
def test_500_pods_on_a_full_machine_of_64_nodes_are_divided_without_a_look_at_every_node_of_every_set(load):
    shared = SharedPool(machine(64, 12), (1 << 64 * 12) - 1)
    with cpu_limit(6):
        division = divide_pool(shared, [SharedPod(f"p{number:03}", 64 * 120 * load // 500) for number in range(500)])

    assert len(division) == 500
