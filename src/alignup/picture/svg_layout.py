"""Drawing on a sheet: pieces that know how much room they need, and ways to put them together.

A piece is measured before it is drawn, texts by the widest they can be in any usual monospaced font, so nothing
overlaps whatever font the reader has. Rows give their pieces the height of the highest, stacks the width of the widest.
"""

from collections.abc import Callable, Iterable, Sequence
from math import fsum
from typing import NamedTuple
from xml.sax.saxutils import escape, quoteattr

from alignup.picture.text_format import width_in_em

_LINE = 1.4  #: the height of a line, in font sizes
_BASE = 1.05  #: where letters stand in it


class Canvas:
    """The elements drawn so far."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def rect(
        self, at: tuple[float, float], size: tuple[float, float], *, kind: str, corner: float = 0, **data: str
    ) -> None:
        """A rectangle of a class; *data* become ``data-…`` attributes, except ``title``, which pointing at it shows."""
        title = data.pop("title", "")
        extra = "".join(f" data-{name}={quoteattr(value)}" for name, value in data.items())
        round_ = f' rx="{_n(corner)}"' if corner else ""
        shape = f'x="{_n(at[0])}" y="{_n(at[1])}" width="{_n(size[0])}" height="{_n(size[1])}"{round_}'
        end = f"><title>{escape(title)}</title></rect>" if title else "/>"
        self.parts.append(f'<rect class="{kind}" {shape}{extra}{end}')

    def text(self, at: tuple[float, float], text: str, *, size: float, kind: str = "", centred: bool = False) -> None:
        """A line of text whose letters stand on *at*."""
        classes = f' class="{kind}"' if kind else ""
        anchor = ' text-anchor="middle"' if centred else ""
        self.parts.append(
            f'<text{classes} x="{_n(at[0])}" y="{_n(at[1])}" font-size="{_n(size)}"{anchor}>{escape(text)}</text>'
        )


class Drawable(NamedTuple):
    """Something that can be drawn at any place, in at least its own size."""

    width: float
    height: float
    draw: Callable[[Canvas, float, float, float, float], None]  #: canvas, x, y, width, height


def label(text: str, size: float = 12, *, kind: str = "") -> Drawable:
    """A line of text."""

    def draw(canvas: Canvas, x: float, y: float, _width: float, _height: float) -> None:
        canvas.text((x, y + size * _BASE), text, size=size, kind=kind)

    return Drawable(width_in_em(text) * size, size * _LINE, draw)


def block(
    lines: Sequence[str], *, kind: str, size: float = 11, corner: float = 3, data: dict[str, str] | None = None
) -> Drawable:
    """A filled rectangle with centred lines of text in it, or none."""
    padding = 4
    width = max((width_in_em(line) * size for line in lines), default=0) + 2 * padding
    height = len(lines) * size * 1.25 + padding

    def draw(canvas: Canvas, x: float, y: float, width: float, height: float) -> None:
        canvas.rect((x, y), (width, height), kind=kind, corner=corner, **(data or {}))
        for turn, line in enumerate(lines):
            canvas.text((x + width / 2, y + padding / 2 + size * (turn * 1.25 + 0.98)), line, size=size, centred=True)

    return Drawable(width, height, draw)


def stack(pieces: Iterable[Drawable], gap: float = 4) -> Drawable:
    """Pieces under each other."""
    parts = tuple(pieces)

    def draw(canvas: Canvas, x: float, y: float, width: float, _height: float) -> None:
        for part in parts:
            part.draw(canvas, x, y, width, part.height)
            y += part.height + gap

    # fsum() rounds alike on every Python; sum() of floats does not.
    height = fsum(part.height for part in parts) + gap * max(0, len(parts) - 1)
    return Drawable(max((part.width for part in parts), default=0), height, draw)


def row(pieces: Iterable[Drawable], gap: float = 4) -> Drawable:
    """Pieces beside each other, all as high as the highest."""
    parts = tuple(pieces)

    def draw(canvas: Canvas, x: float, y: float, _width: float, height: float) -> None:
        for part in parts:
            part.draw(canvas, x, y, part.width, height)
            x += part.width + gap

    width = fsum(part.width for part in parts) + gap * max(0, len(parts) - 1)
    return Drawable(width, max((part.height for part in parts), default=0), draw)


def flow(pieces: Iterable[Drawable], most: float, *, gap: float = 4, across: float | None = None) -> Drawable:
    """Pieces beside each other as long as they fit in *most*, then in a new row; *across* is the gap between rows."""
    rows: list[list[Drawable]] = []
    used = 0.0
    for piece in pieces:
        if rows and used + gap + piece.width <= most:
            rows[-1].append(piece)
            used += gap + piece.width
        else:
            rows.append([piece])
            used = piece.width
    return stack((row(parts, gap) for parts in rows), gap if across is None else across)


def grid(pieces: Sequence[Drawable], across: int, *, gap: float = 4) -> Drawable:
    """Pieces in rows of *across*."""
    return stack((row(pieces[start : start + across], gap) for start in range(0, len(pieces), across)), gap)


def framed(title: Drawable, body: Drawable, *, kind: str, padding: float = 10) -> Drawable:
    """A box around *body* with a *title* on top; the body is given all its width."""

    def draw(canvas: Canvas, x: float, y: float, width: float, height: float) -> None:
        canvas.rect((x, y), (width, height), kind=kind, corner=6)
        title.draw(canvas, x + padding, y + padding * 0.7, width - 2 * padding, title.height)
        top = y + padding * 1.2 + title.height
        body.draw(canvas, x + padding, top, width - 2 * padding, y + height - padding - top)

    return Drawable(max(title.width, body.width) + 2 * padding, title.height + body.height + padding * 2.2, draw)


def bar(parts: Sequence[tuple[str, float]], *, height: float = 10) -> Drawable:
    """A strip as wide as there is room, divided into classes by their share of one."""

    def draw(canvas: Canvas, x: float, y: float, width: float, height: float) -> None:
        canvas.rect((x, y), (width, height), kind="free", corner=2)
        for kind, share in parts:
            canvas.rect((x, y), (width * share, height), kind=kind)
            x += width * share

    return Drawable(120, height, draw)


def _n(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")
