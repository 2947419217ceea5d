"""Pictures of machines and of what pods hold on them, for the terminal and as SVG.

Pure: no files, no terminal, and names of styles instead of colors. The command line, the documentation and the web
pages share this code.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from alignup.picture.cells import Cell, Line, plain

if TYPE_CHECKING:
    from alignup.picture.svg import draw as draw_svg
    from alignup.picture.text import draw as draw_text

__all__ = ["Cell", "Line", "draw_svg", "draw_text", "plain"]


def __getattr__(name: str) -> Callable[..., object]:
    """Import a drawing function on first use: a decision is drawn without both."""
    if name == "draw_svg":
        from alignup.picture.svg import draw  # noqa: PLC0415

        return draw
    if name == "draw_text":
        from alignup.picture.text import draw as text  # noqa: PLC0415

        return text
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
