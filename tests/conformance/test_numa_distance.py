"""Average distances, and which of two sets of nodes is narrower or closer.

The kubelet looks up columns by node id even in rows that have one entry a node. On machines with gaps in their ids it
then crashes, or reads another node's column. We give the right distance; those cases are counted apart, once the
kubelet's number is known to be the wrong column's.
"""

from collections.abc import Callable, Mapping, Sequence

from alignup.align import bits
from alignup.align.machine import Distances
from tests.conformance.harness import Case, run

Rows = Mapping[int, Sequence[int]]


def test_distances_are_averaged_and_compared_as_the_kubelet_does(request):
    run(request, "numa_distance", check)


def check(case: Case) -> str | None:
    rows = {int(node): row for node, row in case["distances"].items()}
    sets = [bits.of(case["mask"]), bits.of(case["other"])]
    distances = Distances.of_rows(rows)
    ours = [distances.total(nodes) / nodes.bit_count() ** 2 if nodes else 0.0 for nodes in sets]
    assert ours == [averaged(rows, nodes, right_column) for nodes in sets]

    if case["panics"]:
        assert any(crashes(rows, nodes) for nodes in sets), "the kubelet should not crash here"
        return "the kubelet crashes on gaps"

    assert list(bits.members(min(sets, key=narrowness))) == sorted(case["narrowest"])
    expected = [case["avg_mask"], case["avg_other"]]
    averages = dict(zip(sets, expected, strict=True))
    assert list(bits.members(min(sets, key=lambda nodes: closeness(nodes, averages)))) == sorted(case["closest"])
    if ours == expected:
        return None

    assert expected == [averaged(rows, nodes, column_of_id) for nodes in sets]
    return "the kubelet reads a wrong column"


def narrowness(nodes: bits.NodeSet) -> tuple[int, int]:
    return nodes.bit_count(), nodes


def closeness(nodes: bits.NodeSet, averages: Mapping[bits.NodeSet, float]) -> tuple[int, float, int]:
    return nodes.bit_count(), averages[nodes], nodes


def averaged(rows: Rows, nodes: bits.NodeSet, column: Callable[[Rows, int, int], int]) -> float:
    chosen = list(bits.members(nodes))
    return sum(rows[a][column(rows, a, b)] for a in chosen for b in chosen) / len(chosen) ** 2 if chosen else 0.0


def right_column(rows: Rows, a: int, b: int) -> int:
    ids = sorted(rows)
    return b if len(rows[a]) > ids[-1] else ids.index(b)


def column_of_id(rows: Rows, a: int, b: int) -> int:
    return b


def crashes(rows: Rows, nodes: bits.NodeSet) -> bool:
    return any(b >= len(rows[a]) for a in bits.members(nodes) for b in bits.members(nodes))


def test_a_crash_of_the_kubelet_is_counted_apart():
    case = {
        "distances": {"0": [10, 20], "4": [20, 10]},
        "mask": [0, 4],
        "other": [4],
        "avg_mask": None,
        "avg_other": None,
        "closest": None,
        "narrowest": None,
        "panics": True,
    }

    assert check(case) == "the kubelet crashes on gaps"


def test_a_wrong_column_of_the_kubelet_is_counted_apart():
    rows = {"0": [10, 20, 30], "2": [20, 10, 40], "3": [30, 40, 10]}
    wrong = (10 + 30 + 20 + 40) / 4
    case = {
        "distances": rows,
        "mask": [0, 2],
        "other": [0],
        "avg_mask": wrong,
        "avg_other": 10,
        "closest": [0],
        "narrowest": [0],
        "panics": False,
    }

    assert check(case) == "the kubelet reads a wrong column"
