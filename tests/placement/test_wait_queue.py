"""The wait queue: whatever comes and goes, the order, the positions and the heads of the kinds are as specified."""

from hypothesis import given, settings
from hypothesis import strategies as st

from alignup.placement.wait_queue import WaitQueue
from tests.effort import examples

uids = st.sampled_from("abcdefgh")
kinds = st.sampled_from(["small", "large", "gpu"])
puts = st.tuples(st.just("put"), uids, kinds, st.integers(0, 2))
changes = st.lists(puts | st.tuples(st.just("remove"), uids), max_size=30)


def build(*items: tuple[str, str, int]) -> WaitQueue[str, str]:
    queue: WaitQueue[str, str] = WaitQueue()
    for uid, kind, order in items:
        queue.put(uid, f"{uid}!", kind=kind, order=(order,))
    return queue


@given(changes)
@settings(max_examples=examples(200))
def test_items_are_in_order_and_every_view_agrees(steps):
    queue = build()
    model: dict[str, tuple[int, str]] = {}  # in order of arrival
    for step in steps:
        if step[0] == "put":
            _, uid, kind, order = step
            queue.put(uid, f"{uid}!", kind=kind, order=(order,))
            model[uid] = (order, kind)
        else:
            assert queue.remove(step[1]) == (f"{step[1]}!" if model.pop(step[1], None) else None)
    ordered = sorted(model, key=lambda uid: model[uid][0])
    assert list(queue) == [f"{uid}!" for uid in ordered]
    assert [queue.position(uid) for uid in ordered] == list(range(1, len(ordered) + 1))
    firsts = {model[uid][1]: f"{uid}!" for uid in reversed(ordered)}
    assert dict(queue.heads()) == firsts
    assert [item for _, item in queue.heads()] == [item for item in queue if item in firsts.values()]
    for kind in ("small", "large", "gpu"):
        assert queue.of_kind(kind) == [f"{uid}!" for uid in ordered if model[uid][1] == kind]


def test_after_the_removal_of_a_head_the_next_of_its_kind_follows_in_its_turn():
    queue = build(("a", "small", 0), ("b", "large", 1), ("c", "small", 2), ("d", "small", 3), ("e", "large", 4))
    tried = []
    for kind, item in queue.heads():
        tried.append(item)
        if kind == "small":
            queue.remove(item.rstrip("!"))
    assert tried == ["a!", "b!", "c!", "d!"]
    assert list(queue) == ["b!", "e!"]


def test_blocked_kinds_are_skipped():
    queue = build(("a", "small", 0), ("b", "large", 1))
    queue.blocked |= {"small", "gpu"}
    assert list(queue.heads()) == [("large", "b!")]
    assert list(queue.heads(blocked=True)) == [("small", "a!")]
    queue.blocked.discard("small")
    assert [item for _, item in queue.heads()] == ["a!", "b!"]
    assert queue.blocked == {"gpu"}


def test_a_replaced_item_keeps_its_arrival():
    queue = build(("a", "small", 0), ("b", "small", 0))
    queue.put("a", "new", kind="large", order=(0,))
    assert list(queue) == ["new", "b!"]
    assert queue.get("a") == "new"
    assert (queue.get("c"), queue.position("c"), queue.remove("c")) == (None, None, None)


def test_a_copy_changes_independently():
    queue = build(("a", "small", 0), ("b", "small", 1))
    copied = queue.copy()
    copied.remove("a")
    copied.blocked.add("small")
    copied.put("c", "c!", kind="large")
    assert (list(queue), queue.blocked) == (["a!", "b!"], set())
    assert (list(copied), "a" in copied, len(copied)) == (["c!", "b!"], False, 2)
