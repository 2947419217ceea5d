"""Where a :class:`~alignup.align.machine.Machine` comes from: this system, a recording, or somebody's description."""

from alignup.discover.source import discover, load, record

__all__ = ["discover", "load", "record"]
