"""Plots as SVG: stacked bars over time, whose tooltips say what they count."""

from collections.abc import Callable, Iterable, Sequence
from math import ceil, floor, fsum, log10
from typing import NamedTuple

from alignup.picture.svg_elements import Canvas, Drawable, flow, label, row, stack
from alignup.picture.text_format import clean, shorten, width_in_em

_WIDTH, _HEIGHT = 640.0, 220.0  #: of the area between the axes
_FONT = 11.0
_LEFT, _BOTTOM = 64.0, 22.0
_STYLES = 8  #: of series; they repeat

Format = Callable[[float], str]


class Series(NamedTuple):
    """Values over the positions of a plot; ``style`` counts from 0."""

    name: str
    values: Sequence[float]
    style: int = 0


def format_plain(value: float) -> str:
    """Return a number with as few digits as needed."""
    return f"{value:,.0f}" if value == round(value) else f"{value:,.2g}"


def ticks(most: float, *, count: int = 4) -> list[float]:
    """Return round numbers from 0 to at least *most*."""
    if most <= 0:
        return [0.0, 1.0]
    raw = most / count
    unit = 10.0 ** floor(log10(raw))
    step = next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= raw)
    return [turn * step for turn in range(ceil(most / step - 1e-9) + 1)]


def stacked_plot(
    title: str, positions: Sequence[float], series: Sequence[Series], *, x: Format = format_plain
) -> Drawable:
    """Draw counts of consecutive intervals that begin at *positions*, the last one as long as the one before."""
    sums = [fsum(layer.values[number] for layer in series) for number in range(len(positions))]
    width = positions[-1] - positions[-2] if len(positions) > 1 else 1.0
    ends = [*positions[1:], positions[-1] + width] if positions else []

    def draw(canvas: Canvas, frame: "_Frame") -> None:
        for number, start in enumerate(positions):
            base = 0.0
            for layer in series:
                value = layer.values[number]
                if value:
                    left_edge, right_edge = frame.x(start), frame.x(ends[number])
                    top, bottom = frame.y(base + value), frame.y(base)
                    canvas.rect(
                        (left_edge, top),
                        (max(right_edge - left_edge - 0.5, 0.5), bottom - top),
                        style=f"series{layer.style % _STYLES}",
                        title=f"{x(start)}: {format_plain(value)} {layer.name}",
                    )
                base += value

    across = [*positions, ends[-1]] if positions else positions
    return _titled(title, _plot(across, ticks(max(sums, default=0.0)), draw, x=x, y=format_plain), series)


class _Frame(NamedTuple):
    """The positions of values on the canvas."""

    left: float
    top: float
    first: float  #: position at the left
    last: float  #: position at the right
    highest: float  #: value at the top

    def x(self, position: float) -> float:
        span = self.last - self.first
        return self.left + (_WIDTH * (position - self.first) / span if span else 0.0)

    def y(self, value: float) -> float:
        return self.top + _HEIGHT * (1 - value / self.highest)


def _plot(
    positions: Sequence[float],
    marks: Sequence[float],
    draw_values: Callable[[Canvas, _Frame], None],
    *,
    x: Format,
    y: Format,
) -> Drawable:
    first, last = (positions[0], positions[-1]) if positions else (0.0, 1.0)

    def draw(canvas: Canvas, left: float, top: float, _width: float, _height: float) -> None:
        frame = _Frame(left + _LEFT, top + _FONT, first, last, marks[-1])
        for mark in marks:
            height = frame.y(mark)
            canvas.polyline([(frame.left, height), (frame.left + _WIDTH, height)], style="grid")
            text = y(mark)
            at = (frame.left - 6 - width_in_em(text) * _FONT, height + _FONT * 0.35)
            canvas.text(at, text, size=_FONT, style="dim")
        draw_values(canvas, frame)
        for share in (0.0, 0.5, 1.0):
            text = x(first + share * (last - first))
            at = (frame.left + share * (_WIDTH - width_in_em(text) * _FONT), frame.top + _HEIGHT + _FONT * 1.5)
            canvas.text(at, text, size=_FONT, style="dim")

    return Drawable(_LEFT + _WIDTH, _FONT + _HEIGHT + _BOTTOM, draw)


def _titled(title: str, plot: Drawable, series: Iterable[Series]) -> Drawable:
    keys = [row([_key(line.style), label(shorten(clean(line.name), 50), _FONT)], 5) for line in series]
    return stack([label(title, 13, style="strong"), flow(keys, _LEFT + _WIDTH, gap=18), plot], 4)


def _key(style: int) -> Drawable:
    def draw(canvas: Canvas, x: float, y: float, _width: float, _height: float) -> None:
        canvas.rect((x, y + 3), (10, 9), style=f"series{style % _STYLES}")

    return Drawable(10, _FONT * 1.4, draw)
