"""Run ``alignup`` with a time of day that is wrong by as many seconds as a file says, now.

python -m e2e.shifted_clock FILE schedule --gate …
"""

import sys
import time
from pathlib import Path

LOOK_SECONDS = 0.2  #: between two looks at the file


class ShiftedClock:
    """``time.time`` and what is in the file at *path*."""

    def __init__(self, path: Path) -> None:
        self._path, self._real = path, time.time
        self._seconds, self._looked_at = 0.0, float("-inf")

    def __call__(self) -> float:
        if time.monotonic() >= self._looked_at + LOOK_SECONDS:
            self._looked_at = time.monotonic()
            self._seconds = float(self._path.read_text() or 0)
        return self._real() + self._seconds


if __name__ == "__main__":
    time.time = ShiftedClock(Path(sys.argv[1]))
    sys.argv = ["alignup", *sys.argv[2:]]
    from alignup.cli import main

    main()
