"""Garbage is collected, but not among objects that stay.

Each test has a process of its own: threads of other tests would collect garbage at any time.
"""

import subprocess
import sys
import textwrap

SETUP = """
import gc, weakref
from alignup.agent import daemon
from alignup.agent.daemon import FULL_COLLECTION_SECONDS, GarbageCollection

class Node:
    "An object that refers to itself, so that only a collection frees it."
    def __init__(self):
        self.itself = self

now = 0.0
collection = GarbageCollection(lambda: now)
collection.start()
"""


def run(script: str) -> None:
    program = f"{SETUP}\n{textwrap.dedent(script)}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)  # noqa: S603

    assert done.returncode == 0, done.stderr


def test_what_survives_is_not_scanned_again():
    run("""
        kept, before = [Node() for _ in range(100)], gc.get_freeze_count()

        gc.collect(0)
        assert gc.get_freeze_count() == before
        gc.collect(1)

        assert gc.get_freeze_count() >= before + len(kept)
        assert all(kept[0] is not one for one in gc.get_objects())
    """)


def test_new_garbage_is_collected_and_a_full_collection_never_starts_by_itself():
    run("""
        gone, before = weakref.ref(Node()), gc.get_stats()[2]["collections"]
        kept = [Node() for _ in range(60_000)]

        assert gone() is None
        assert gc.get_stats()[2]["collections"] == before
        assert gc.get_freeze_count() >= len(kept) // 2
    """)


def test_frozen_garbage_is_collected_rarely():
    run("""
        node = Node()
        gc.collect(1)
        gone = weakref.ref(node)
        del node

        now = FULL_COLLECTION_SECONDS - 1
        collection.collect_if_due()
        assert gone() is not None
        now += 1
        collection.collect_if_due()
        assert gone() is None
    """)


def test_starting_twice_adds_one_callback():
    run("""
        collection.start()

        assert gc.callbacks.count(daemon._freeze_survivors) == 1
    """)


def test_a_failed_check_fails_the_test():
    done = subprocess.run([sys.executable, "-c", f"{SETUP}\nassert not gc.callbacks"], capture_output=True, check=False)  # noqa: S603

    assert b"AssertionError" in done.stderr
