"""Read a :class:`~alignup.align.machine.Machine` from this system, a recording or a description."""

from alignup.machines.machine_source import discover, load, record, record_script

__all__ = ["discover", "load", "record", "record_script"]
