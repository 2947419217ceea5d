"""The machine that a command is about: this one, or the one that the command line names."""

import os
import re
from pathlib import Path

from alignup.align.machine import Machine
from alignup.cli.app import Place
from alignup.machines import discover, load


def machine_place(machine: str | None, option: str = "") -> Place:
    """Return where an error in a machine is: in its file, in *option*, or on this machine."""
    if machine is None:
        return Place(detail="on this machine")
    if os.path.lexists(machine):
        return Place(file=machine)
    return Place(option)


def load_machine(machine: str | None, *, devices_only: bool = False) -> Machine:
    if machine is None:
        return discover()
    # Synthetic levels have colons or are numbers alone; documents have brackets or line breaks.
    is_path = machine.strip() and not re.search(r"[:<{\n\0]", machine) and not re.fullmatch(r"[\d\s]*", machine)
    return load(Path(machine) if is_path else machine, devices_only=devices_only)
