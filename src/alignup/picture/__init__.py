"""Pictures of machines and of what pods hold on them, for the terminal and as SVG.

    alignup.picture.svg(host)       # of a Machine, or of a Host with what its pods hold
    alignup.picture.text(machine)   # the same for a terminal

Pure: no files, no terminal, and names of styles instead of colors. The command line, the documentation and the web
pages share this code.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from alignup.align.host import Host
    from alignup.align.machine import Machine

# The modules that draw are slow to import, and most commands need none of them.


def svg(subject: "Machine | Host") -> str:
    """Return a machine, or a host with what its pods hold, as one self-contained SVG document."""
    picture: str = import_module("alignup.picture.machine_svg").draw_svg(*_drawn(subject))
    return picture


def text(subject: "Machine | Host", *, width: int = 80) -> str:
    """Return a machine, or a host with what its pods hold, as text of *width* columns."""
    lines = import_module("alignup.picture.machine_text").draw_text(*_drawn(subject), width=width)
    plain = import_module("alignup.picture.text_format").plain
    return "\n".join(map(plain, lines))


def _drawn(subject: "Machine | Host") -> tuple[object, ...]:
    machine = getattr(subject, "machine", subject)
    return (machine, getattr(subject, "ledger", None))
