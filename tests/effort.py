"""The amount of work that tests do: a little in ``make test``, a lot in ``make soak``.

``make test`` runs the same examples with the same seeds every time. ``make soak`` runs only the tests that scale
(property tests, and those marked ``soak``), with a new seed that it prints.
"""

import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

SOAK = "ALIGNUP_SOAK" in os.environ

#: Seed of everything random that Hypothesis does not draw.
SEED = int(os.environ.get("ALIGNUP_SEED", "1"))

#: Examples per property test.
EXAMPLES = int(os.environ.get("ALIGNUP_EXAMPLES", "1500" if SOAK else "20"))

#: What this process did, for the summary: kills, examples, requests.
DONE: Counter[str] = Counter()


def examples(percent: int) -> int:
    """Return the given share of :data:`EXAMPLES`, for a property whose examples take longer than most."""
    return max(4, EXAMPLES * percent // 100)


def rounds(short: int, *, soak: int) -> int:
    """Return how often to repeat something, for a test marked ``soak``."""
    return soak if SOAK else short


def did(work: str, count: int = 1) -> None:
    """Count work for the summary, such as ``did("agents killed")``."""
    DONE[work] += count


def attacked(attack: str, tries: int, findings: Sequence[str]) -> None:
    """Count attacks for the summary, and fail if they found anything."""
    did(attack, tries)
    did(f"{attack}: findings", len(findings))
    assert not findings, "\n".join(findings[:10])


@contextmanager
def bounded(limit: int) -> Iterator[None]:
    """Fail if a block calls more than *limit* functions."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"
        if calls > limit:
            sys.setprofile(None)
            raise AssertionError("too much work")

    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(None)
