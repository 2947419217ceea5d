"""A trend as a small line without axes, for a tile: as wide as the tile, from zero to the largest value."""

from collections.abc import Sequence
from html import escape

_WIDTH, _HEIGHT = 100, 24


def draw_sparkline(values: Sequence[float], *, name: str) -> str:
    """Draw *values*, the oldest first, as SVG inside a page; *name* is for screen readers. Empty: fewer than two."""
    if len(values) < 2:
        return ""
    top = max(*values, 1e-9)
    step = _WIDTH / (len(values) - 1)
    line = " ".join(
        f"{number * step:.1f},{_HEIGHT - 1 - (_HEIGHT - 2) * value / top:.1f}" for number, value in enumerate(values)
    )
    size = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none"'
    area = f'<polygon points="0,{_HEIGHT} {line} {_WIDTH},{_HEIGHT}"/>'
    return f'<svg class="spark" role="img" aria-label="{escape(name)}" {size}>{area}<polyline points="{line}"/></svg>'
