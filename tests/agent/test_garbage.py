"""Garbage is collected, but not among objects that stay."""

import gc
import weakref

import pytest

from alignup.agent import garbage
from alignup.agent.garbage import FULL_COLLECTION_SECONDS, GarbageCollection


class Node:
    """An object that refers to itself, so that only a collection frees it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def collection():
    """The collection of this process, with a time that tests set."""
    thresholds, callbacks = gc.get_threshold(), list(gc.callbacks)
    times = [0.0]
    one = GarbageCollection(lambda: times[0])
    one.start()
    yield one, times
    gc.callbacks[:] = callbacks
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.mark.usefixtures("collection")
def test_what_survives_is_not_scanned_again():
    kept, before = [Node() for _ in range(100)], gc.get_freeze_count()

    gc.collect(0)
    assert gc.get_freeze_count() == before
    gc.collect(1)

    assert gc.get_freeze_count() >= before + len(kept)
    assert all(kept[0] is not one for one in gc.get_objects())


@pytest.mark.usefixtures("collection")
def test_new_garbage_is_collected_and_a_full_collection_never_starts_by_itself():
    gone, before = weakref.ref(Node()), gc.get_stats()[2]["collections"]
    kept = [Node() for _ in range(60_000)]

    assert gone() is None
    assert gc.get_stats()[2]["collections"] == before
    assert gc.get_freeze_count() >= len(kept) // 2


def test_frozen_garbage_is_collected_rarely(collection):
    one, times = collection
    node = Node()
    gc.collect(1)
    gone = weakref.ref(node)
    del node

    times[0] = FULL_COLLECTION_SECONDS - 1
    one.collect_if_due()
    assert gone() is not None
    times[0] += 1
    one.collect_if_due()
    assert gone() is None


def test_starting_twice_adds_one_callback(collection):
    collection[0].start()

    assert gc.callbacks.count(garbage._freeze_survivors) == 1  # noqa: SLF001
