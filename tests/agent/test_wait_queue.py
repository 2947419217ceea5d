"""The wait queue: order, overtakes and capacity."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.agent.pod_record import PodRecord
from alignup.agent.wait_queue import WaitQueue
from alignup.web.responses import BusyError
from tests.agent.states import ANY_DECISION
from tests.align.hosts import pod


def record(uid: str) -> PodRecord:
    return PodRecord(pod=pod(uid), since=1.0, source="api", decision=ANY_DECISION)


def wait_queue(*uids: str, max_overtakes: int | None = 2, capacity: int = 5) -> WaitQueue:
    result = WaitQueue(max_overtakes=max_overtakes, capacity=capacity)
    for uid in uids:
        result = result.added(record(uid))
    return result


def test_positions_follow_arrival_order():
    waiting = wait_queue("a", "b", "c").without("b")

    assert [waiting.position(uid) for uid in "abc"] == [1, None, 2]


def test_the_capacity_is_limited():
    full = wait_queue("a", "b", capacity=2)

    with pytest.raises(BusyError, match="2 pods are waiting"):
        full.added(record("c"))
    assert list(full.without("a").added(record("c")).pods) == ["b", "c"]


def test_an_admitted_pod_overtakes_the_pods_ahead_of_it():
    waiting = wait_queue("a", "b", "c").with_overtakes("c")

    assert waiting.overtakes == {"a": 1, "b": 1}
    assert not any(map(waiting.is_blocking, waiting.pods))


def test_a_pod_that_never_waited_overtakes_all_waiting_pods():
    assert wait_queue("a", "b").with_overtakes().overtakes == {"a": 1, "b": 1}


def test_a_pod_blocks_after_the_maximum_number_of_overtakes():
    waiting = wait_queue("a", "b").with_overtakes("b").with_overtakes()

    assert waiting.is_blocking("a")
    assert not waiting.is_blocking("b")


def test_without_a_limit_no_pod_ever_blocks():
    waiting = wait_queue("a", max_overtakes=None)
    for _ in range(1_000):
        waiting = waiting.with_overtakes()

    assert not any(map(waiting.is_blocking, waiting.pods))


def test_a_removed_pod_leaves_no_trace():
    waiting = wait_queue("a", "b").with_overtakes().with_overtakes().without("a")

    assert waiting.overtakes == {"b": 2}
    assert waiting.without("b") == wait_queue()


@given(st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=8), st.data())
def test_the_order_never_changes(uids, data):
    waiting = wait_queue(*uids, capacity=8)
    left = list(uids)
    for _ in range(len(uids)):
        uid = data.draw(st.sampled_from(left))
        before = dict(waiting.overtakes)

        waiting = waiting.with_overtakes(uid).without(uid)

        place = left.index(uid)
        left.remove(uid)
        assert list(waiting.pods) == left
        assert all(waiting.overtakes.get(one, 0) == before.get(one, 0) + 1 for one in left[:place])
        assert all(waiting.overtakes.get(one, 0) == before.get(one, 0) for one in left[place:])
