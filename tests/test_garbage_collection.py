"""Services do not search for garbage among what stays, and still free the garbage that they make."""

import subprocess
import sys

SCRIPT = """
import gc, weakref
from alignup import garbage_collection

class Cycle:
    def __init__(self):
        self.itself = self

at_start = [Cycle() for _ in range(100)]
garbage_collection.set_for_service()
assert not any(isinstance(searched, Cycle) for searched in gc.get_objects())
garbage = weakref.ref(Cycle())
later = [Cycle() for _ in range(20_000)]
assert garbage() is None
"""


def test_what_exists_at_the_start_is_not_searched_and_later_garbage_is_freed():
    """In a process of its own: other tests have threads that collect garbage."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)  # noqa: S603

    assert done.returncode == 0, done.stderr
