"""Read a :class:`~alignup.align.machine.Machine` from this system, a recording or a description."""

from alignup.machines.machine_source import discover, load, record, record_script

load_machine = load

__all__ = ["discover", "load", "load_machine", "record", "record_script"]
