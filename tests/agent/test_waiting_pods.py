"""The wait queue: order, overtakes and capacity."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.agent.state import PodRecord, WaitingPods
from alignup.web.responses import BusyError
from tests.agent.states import ANY_DECISION
from tests.align.hosts import pod


def record(uid: str) -> PodRecord:
    return PodRecord(pod=pod(uid), since=1.0, source="api", decision=ANY_DECISION)


def wait_queue(*uids: str, max_overtakes: int | None = 2, capacity: int = 5) -> WaitingPods:
    queue = WaitingPods(max_overtakes=max_overtakes, capacity=capacity)
    for uid in uids:
        queue.add(record(uid))
    return queue


def test_positions_follow_arrival_order():
    waiting = wait_queue("a", "b", "c")
    waiting.remove("b")

    assert [waiting.position(uid) for uid in "abc"] == [1, None, 2]


def test_the_capacity_is_limited():
    full = wait_queue("a", "b", capacity=2)

    with pytest.raises(BusyError, match="no more than 2 pods can wait"):
        full.add(record("c"))
    full.remove("a")
    full.add(record("c"))
    assert full.uids() == ["b", "c"]


def test_an_admitted_pod_overtakes_the_pods_ahead_of_it():
    waiting = wait_queue("a", "b", "c")
    waiting.count_overtakes("c")

    assert waiting.overtakes == {"a": 1, "b": 1}
    assert not any(map(waiting.is_blocking, waiting.uids()))
    waiting.count_overtakes()  # by a pod that never waited
    assert waiting.overtakes == {"a": 2, "b": 2, "c": 1}


def test_a_pod_blocks_after_the_maximum_number_of_overtakes():
    waiting = wait_queue("a", "b")
    waiting.count_overtakes("b")
    waiting.count_overtakes()

    assert waiting.is_blocking("a")
    assert not waiting.is_blocking("b")


def test_without_a_limit_no_pod_ever_blocks():
    waiting = wait_queue("a", max_overtakes=None)
    for _ in range(1_000):
        waiting.count_overtakes()

    assert not any(map(waiting.is_blocking, waiting.uids()))


def test_a_removed_pod_leaves_no_trace():
    waiting = wait_queue("a", "b")
    waiting.count_overtakes()
    waiting.count_overtakes()
    waiting.remove("a")

    assert waiting.overtakes == {"b": 2}
    waiting.remove("b")
    assert vars(waiting) == vars(wait_queue()) | {"_arrivals": 2}


@given(st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=8), st.data())
def test_the_order_never_changes(uids, data):
    waiting = wait_queue(*uids, capacity=8)
    left = list(uids)
    for _ in range(len(uids)):
        uid = data.draw(st.sampled_from(left))
        before = dict(waiting.overtakes)

        copied = waiting.copy()
        waiting.count_overtakes(uid)
        waiting.remove(uid)

        place = left.index(uid)
        left.remove(uid)
        assert waiting.uids() == left
        assert all(waiting.overtakes.get(other, 0) == before.get(other, 0) + 1 for other in left[:place])
        assert all(waiting.overtakes.get(other, 0) == before.get(other, 0) for other in left[place:])
        assert (uid in copied, copied.overtakes) == (True, before)
