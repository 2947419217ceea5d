"""Garbage is collected, but not among objects that stay.

Each script runs in a fork of one process: threads of other tests would collect garbage at any time.
"""

import subprocess
import sys
import textwrap

SETUP = """
import gc, os, sys, weakref
from alignup.agent import daemon
from alignup.agent.daemon import FULL_COLLECTION_SECONDS, GarbageCollection

class Node:
    "An object that refers to itself, so that only a collection frees it."
    def __init__(self):
        self.itself = self

now = 0.0
for script in sys.argv[1:]:
    if not os.fork():
        collection = GarbageCollection(lambda: now)
        collection.start()
        exec(script)
        sys.exit()
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""

SCRIPTS = {
    "what survives is not scanned again": """
        kept, before = [Node() for _ in range(100)], gc.get_freeze_count()

        gc.collect(0)
        assert gc.get_freeze_count() == before
        gc.collect(1)

        assert gc.get_freeze_count() >= before + len(kept)
        assert all(kept[0] is not one for one in gc.get_objects())
    """,
    "new garbage is collected, and a full collection never starts by itself": """
        gone, before = weakref.ref(Node()), gc.get_stats()[2]["collections"]
        kept = [Node() for _ in range(60_000)]

        assert gone() is None
        assert gc.get_stats()[2]["collections"] == before
        assert gc.get_freeze_count() >= len(kept) // 2
    """,
    "frozen garbage is collected rarely": """
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
    """,
    "starting twice adds one callback": """
        collection.start()

        assert gc.callbacks.count(daemon._freeze_survivors) == 1
    """,
}
FAILING = "assert not gc.callbacks"


def test_garbage_is_collected_but_not_among_objects_that_stay():
    scripts = [*map(textwrap.dedent, SCRIPTS.values()), FAILING]
    done = subprocess.run([sys.executable, "-c", SETUP, *scripts], capture_output=True, text=True, check=True)  # noqa: S603

    codes = dict(zip([*SCRIPTS, "a failed check"], done.stdout.split(), strict=True))
    assert codes == {**dict.fromkeys(SCRIPTS, "0"), "a failed check": "1"}, done.stderr
