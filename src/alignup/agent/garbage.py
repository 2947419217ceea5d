"""Collects garbage without pauses that grow with the number of pods.

Python's full collection scans every object while nothing else runs: with 5,000 pods that takes a fifth of a second. The
pods of an agent stay, so what survives two collections is frozen instead: it is not scanned again, and still freed at
once when the last reference to it goes. Only garbage with references in a circle that was frozen before it became
garbage stays. So everything is scanned after all, rarely, when the agent is idle.
"""

import gc
import time
from collections.abc import Callable, Mapping
from typing import Any

FULL_COLLECTION_SECONDS = 3600.0  #: between full collections

#: New objects before a collection, and such collections before the survivors are frozen: about 10 ms of work at most.
#: Python's default of 700 takes a tenth of all CPU time.
_THRESHOLDS = 5_000, 3
_NEVER = 1 << 30


class GarbageCollection:
    """The garbage collection of this process from :meth:`start` on; *monotonic* returns a time in seconds."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._last_full = monotonic()

    def start(self) -> None:
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_THRESHOLDS, _NEVER)
        if _freeze_survivors not in gc.callbacks:
            gc.callbacks.append(_freeze_survivors)

    def collect_if_due(self) -> None:
        """Scan everything, frozen objects too, if that was long ago; nothing else runs meanwhile."""
        if self._monotonic() - self._last_full >= FULL_COLLECTION_SECONDS:
            gc.unfreeze()
            gc.collect()
            gc.freeze()
            self._last_full = self._monotonic()


def _freeze_survivors(phase: str, info: Mapping[str, Any]) -> None:
    """Called by Python before and after each collection."""
    if phase == "stop" and info["generation"] == 1:
        gc.freeze()
