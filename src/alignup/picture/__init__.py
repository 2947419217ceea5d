"""Pictures of machines: what is where, and who holds what, for the terminal and as SVG.

Pure: no files, no terminal, no colours but names of styles. The command line, the documentation and the dashboard
draw with the same code.
"""

from alignup.picture.cells import Cell, Line, plain
from alignup.picture.svg import draw as draw_svg
from alignup.picture.text import draw as draw_text

__all__ = ["Cell", "Line", "draw_svg", "draw_text", "plain"]
