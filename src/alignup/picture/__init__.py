"""Pictures of machines and of what pods hold on them, for the terminal and as SVG.

Pure: no files, no terminal, and names of styles instead of colors. The command line, the documentation and the web
pages share this code.
"""

from alignup.picture.cells import Cell, Line, plain
from alignup.picture.svg import draw as draw_svg
from alignup.picture.text import draw as draw_text

__all__ = ["Cell", "Line", "draw_svg", "draw_text", "plain"]
