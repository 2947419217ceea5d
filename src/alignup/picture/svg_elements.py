"""Elements of SVG with known sizes, and functions that combine them.

An element is measured before it is drawn. Text is measured with the widest characters of common monospaced fonts, so
that nothing overlaps in any font. Rows give their elements the height of the tallest, stacks the width of the widest.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from math import fsum
from typing import NamedTuple

from alignup.picture.text_format import width_in_em

_LINE = 1.4  #: line height in em
_BASE = 1.05  #: baseline in em
_HATCH_GAP = 5.0  #: between hatched lines


@cache
def css(*, plots: bool = False) -> str:
    """Return the style sheet, also that of *plots*; the reader's system or browser selects light or dark mode."""
    names = ("pictures.css", "plots.css") if plots else ("pictures.css",)
    return "".join((files(__package__) / "static" / name).read_text("utf-8") for name in names).removesuffix("\n")


class Canvas:
    def __init__(self) -> None:
        self.parts: list[str] = []

    def rect(
        self, at: tuple[float, float], size: tuple[float, float], *, style: str, corner: float = 0, **data: str
    ) -> None:
        """Draw a rectangle of a CSS class; *data* become ``data-…`` attributes, ``title`` the tooltip."""
        title = data.pop("title", "")
        extra = "".join(f' data-{name}="{escape(value)}"' for name, value in data.items())
        round_ = f' rx="{_n(corner)}"' if corner else ""
        shape = f'x="{_n(at[0])}" y="{_n(at[1])}" width="{_n(size[0])}" height="{_n(size[1])}"{round_}'
        end = f"><title>{escape(title)}</title></rect>" if title else "/>"
        self.parts.append(f'<rect class="{style}" {shape}{extra}{end}')

    def polyline(self, points: Iterable[tuple[float, float]], *, style: str) -> None:
        coordinates = " ".join(f"{_n(x)},{_n(y)}" for x, y in points)
        self.parts.append(f'<polyline class="{style}" points="{coordinates}"/>')

    def hatch(self, at: tuple[float, float], size: tuple[float, float]) -> None:
        """Draw lines from the lower left to the upper right."""
        (x, y), (width, height) = at, size
        lines = []
        offset = _HATCH_GAP / 2
        while offset < width + height:
            start, end = max(0.0, offset - height), min(offset, width)
            lines.append(f"M{_n(x + start)} {_n(y + offset - start)}L{_n(x + end)} {_n(y + offset - end)}")
            offset += _HATCH_GAP
        if lines:
            self.parts.append(f'<path class="hatch" d="{"".join(lines)}"/>')

    def text(self, at: tuple[float, float], text: str, *, size: float, style: str = "", centered: bool = False) -> None:
        classes = f' class="{style}"' if style else ""
        anchor = ' text-anchor="middle"' if centered else ""
        self.parts.append(
            f'<text{classes} x="{_n(at[0])}" y="{_n(at[1])}" font-size="{_n(size)}"{anchor}>{escape(text)}</text>'
        )


class Drawable(NamedTuple):
    """An element that can be drawn anywhere, in at least its own size."""

    width: float
    height: float
    draw: Callable[[Canvas, float, float, float, float], None]  #: canvas, x, y, width, height


def label(text: str, size: float = 12, *, style: str = "") -> Drawable:
    def draw(canvas: Canvas, x: float, y: float, _width: float, _height: float) -> None:
        canvas.text((x, y + size * _BASE), text, size=size, style=style)

    return Drawable(width_in_em(text) * size, size * _LINE, draw)


def block(
    lines: Sequence[str], *, style: str, size: float = 11, corner: float = 3, data: dict[str, str] | None = None
) -> Drawable:
    """Return a filled rectangle with centered lines of text, or none."""
    padding = 4
    width = max((width_in_em(line) * size for line in lines), default=0) + 2 * padding
    height = len(lines) * size * 1.25 + padding

    def draw(canvas: Canvas, x: float, y: float, width: float, height: float) -> None:
        canvas.rect((x, y), (width, height), style=style, corner=corner, **(data or {}))
        for turn, line in enumerate(lines):
            canvas.text((x + width / 2, y + padding / 2 + size * (turn * 1.25 + 0.98)), line, size=size, centered=True)

    return Drawable(width, height, draw)


def stack(elements: Iterable[Drawable], gap: float = 4) -> Drawable:
    parts = tuple(elements)

    def draw(canvas: Canvas, x: float, y: float, width: float, _height: float) -> None:
        for part in parts:
            part.draw(canvas, x, y, width, part.height)
            y += part.height + gap

    # fsum() rounds alike on every Python; sum() of floats does not.
    height = fsum(part.height for part in parts) + gap * max(0, len(parts) - 1)
    return Drawable(max((part.width for part in parts), default=0), height, draw)


def row(elements: Iterable[Drawable], gap: float = 4) -> Drawable:
    parts = tuple(elements)

    def draw(canvas: Canvas, x: float, y: float, _width: float, height: float) -> None:
        for part in parts:
            part.draw(canvas, x, y, part.width, height)
            x += part.width + gap

    width = fsum(part.width for part in parts) + gap * max(0, len(parts) - 1)
    return Drawable(width, max((part.height for part in parts), default=0), draw)


def flow(elements: Iterable[Drawable], most: float, *, gap: float = 4, across: float | None = None) -> Drawable:
    """Return elements beside each other in rows of at most *most*; *across* is the gap between rows."""
    rows: list[list[Drawable]] = []
    line_width = 0.0
    for element in elements:
        if rows and line_width + gap + element.width <= most:
            rows[-1].append(element)
            line_width += gap + element.width
        else:
            rows.append([element])
            line_width = element.width
    return stack((row(parts, gap) for parts in rows), gap if across is None else across)


def grid(elements: Sequence[Drawable], across: int, *, gap: float = 4) -> Drawable:
    return stack((row(elements[start : start + across], gap) for start in range(0, len(elements), across)), gap)


def framed(title: Drawable, body: Drawable, *, style: str, padding: float = 10) -> Drawable:
    """Return a box with a *title* around *body*, which gets the full width."""

    def draw(canvas: Canvas, x: float, y: float, width: float, height: float) -> None:
        canvas.rect((x, y), (width, height), style=style, corner=6)
        title.draw(canvas, x + padding, y + padding * 0.7, width - 2 * padding, title.height)
        top = y + padding * 1.2 + title.height
        body.draw(canvas, x + padding, top, width - 2 * padding, y + height - padding - top)

    return Drawable(max(title.width, body.width) + 2 * padding, title.height + body.height + padding * 2.2, draw)


class Segment(NamedTuple):
    """A part of a bar."""

    style: str
    share: float  #: of the bar
    data: Mapping[str, str] = {}
    mark: str = ""  #: drawn where there is room
    hatched: bool = False  #: told from others without color


def bar(segments: Sequence[Segment], *, height: float = 16) -> Drawable:
    def draw(canvas: Canvas, x: float, y: float, width: float, height: float) -> None:
        canvas.rect((x, y), (width, height), style="free", corner=2)
        for segment in segments:
            across = width * segment.share
            canvas.rect((x, y), (across, height), style=segment.style, corner=0, **segment.data)
            if segment.hatched:
                canvas.hatch((x, y), (across, height))
            if segment.mark and width_in_em(segment.mark) * 11 + 4 < across:
                canvas.text((x + across / 2, y + height / 2 + 4), segment.mark, size=11, centered=True)
            x += across

    return Drawable(120, height, draw)


_MARGIN = 16.0


def svg_document(page: Drawable, *, title: str, description: str) -> str:
    """Return *page* as a file of its own, with its style sheet."""
    canvas = Canvas()
    page.draw(canvas, _MARGIN, _MARGIN, page.width, page.height)
    across, down = round(page.width + 2 * _MARGIN), round(page.height + 2 * _MARGIN)
    room = f'width="{across}" height="{down}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="alignup" role="img" {room} viewBox="0 0 {across} {down}">',
            f"<title>{escape(title)}</title>",
            f"<desc>{escape(description)}</desc>",
            f"<style>{css()}</style>",
            f'<rect class="paper" {room}/>',
            *canvas.parts,
            "</svg>\n",
        ]
    )


def svg_inline(element: Drawable, name: str, style: str = "") -> str:
    """Return a picture inside a page that has the style sheet; *name* is for screen readers, *style* a CSS class."""
    canvas = Canvas()
    element.draw(canvas, 1, 1, element.width, element.height)
    across, down = round(element.width + 2), round(element.height + 2)
    head = f'<svg class="{f"alignup {style}".rstrip()}" role="img" aria-label="{escape(name)}"'
    return f'{head} width="{across}" height="{down}" viewBox="0 0 {across} {down}">{"".join(canvas.parts)}</svg>'


def _n(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")
