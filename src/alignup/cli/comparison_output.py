"""The output of ``alignup simulate --compare``: combinations with equal results share a row of 80 columns."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from math import prod
from typing import NamedTuple

from alignup.cli import terminal
from alignup.cli.layout import paragraph, section, table
from alignup.picture.text_format import Cell, Line, clean, display_width, pluralize
from alignup.simulate.compare import Comparison, RankedVariant

_MAX_ROWS = 20
_MAX_EXAMPLES = 4  #: combinations listed per error
_FIGURES = ("admitted", "rejected", "one node", "CPUs", "devices")
_CAPTION = "CPUs and devices: stranded at peak demand"


class FoldedVariants(NamedTuple):
    """The combinations with equal figures."""

    variants: tuple[RankedVariant, ...]
    grids: tuple[dict[str, tuple[str, ...]], ...]  #: dimension → values, which can be combined freely

    @property
    def first(self) -> RankedVariant:
        return self.variants[0]


def fold_ties(ranked: Sequence[RankedVariant]) -> list[FoldedVariants]:
    """Return *ranked* in its order, with variants of one rank and equal figures folded into a few grids."""
    folded: list[FoldedVariants] = []
    for _, equal in groupby(ranked, lambda item: (item.rank, _numbers(item))):
        variants = left = tuple(equal)
        names = list(left[0].variant.choices)
        grids = []
        while left:
            grid = _largest_grid(left, names)
            grids.append({name: tuple(dict.fromkeys(item.variant.choices[name] for item in grid)) for name in names})
            left = tuple(item for item in left if item not in grid)
        folded.append(FoldedVariants(variants, tuple(grids)))
    return folded


def comparison_lines(comparison: Comparison) -> Iterator[Line]:
    ranked, invalid = comparison.ranked, comparison.invalid
    tried = pluralize(len(ranked) + len(invalid), "combination")
    best = ", best first" if ranked else ""
    yield (Cell(f"{tried}, {len(ranked)} of them valid{best}", "title"),)
    if ranked:
        folded = fold_ties(ranked)
        yield from paragraph(_CAPTION, style="dim")
        yield ()
        yield from _table(folded[:_MAX_ROWS])
        yield from more_lines(len(folded))
        yield from _reasons(folded[:_MAX_ROWS])
    if invalid:
        yield from section("The kubelet does not start with")
        for error in dict.fromkeys(variant.error for variant in invalid):
            yield from paragraph(error, prefix="  ", style="warn")
            labels = [clean(variant.label) for variant in invalid if variant.error == error]
            for label in labels[:_MAX_EXAMPLES]:
                yield from paragraph(_breakable(label), prefix="      ")
            yield from more_lines(len(labels), shown=_MAX_EXAMPLES)


def more_lines(number: int, *, shown: int = _MAX_ROWS) -> Iterator[Line]:
    if number > shown:
        yield (Cell(f"      … and {number - shown} more; -o csv lists all", "dim"),)


def _table(folded: Sequence[FoldedVariants]) -> Iterator[Line]:
    """Yield a column for each setting if they fit, else lines below the figures."""
    heads = ["", *folded[0].grids[0], *_FIGURES]
    rows = [row for variants in folded for row in _rows(variants)]
    widths = [max(map(display_width, column)) for column in zip(heads, *rows, strict=True)]
    if sum(widths) + 2 * len(widths) <= terminal.width():
        yield from table(rows, heads)
        return
    shown = list(table([[str(variants.first.rank), *_numbers(variants.first)] for variants in folded], ["", *_FIGURES]))
    yield shown[0]
    for variants, line in zip(folded, shown[1:], strict=True):
        yield line
        for grid in variants.grids:
            text = "; ".join(f"{name}: {', '.join(values)}" for name, values in grid.items())
            yield from paragraph(_breakable(text), prefix="     - ", style="dim")


def _rows(folded: FoldedVariants) -> Iterator[list[str]]:
    """Yield the figures once, and every value on its own line."""
    first = True
    for grid in folded.grids:
        for number in range(max(map(len, grid.values()))):
            rank, figures = ("", [""] * len(_FIGURES))
            if first:
                rank, figures, first = str(folded.first.rank), _numbers(folded.first), False
            yield [rank, *(values[number] if number < len(values) else "" for values in grid.values()), *figures]


def _breakable(text: str) -> str:
    """Return *text* with spaces in sets of options, which can be wider than a terminal."""
    return text.replace("+", " + ")


def _reasons(folded: Sequence[FoldedVariants]) -> Iterator[Line]:
    ranks: dict[str, list[str]] = {}
    for ranked in (variant for group in folded for variant in group.variants):
        reasons = ranked.score.reasons_text
        if reasons and str(ranked.rank) not in ranks.setdefault(reasons, []):
            ranks[reasons].append(str(ranked.rank))
    if ranks:
        yield from section("Why pods are rejected")
        yield from table([[", ".join(numbers), reasons] for reasons, numbers in ranks.items()])


def _numbers(ranked: RankedVariant) -> list[str]:
    score, stranded = ranked.score, ranked.score.stranded
    numbers = (score.admitted, score.rejected, score.pods.on_one, stranded.cpus, stranded.all_devices)
    return list(map(str, numbers))


def _largest_grid(variants: Sequence[RankedVariant], names: Sequence[str]) -> list[RankedVariant]:
    """Return variants, the first among them, that are all combinations of some values; not always the most."""
    largest = [variants[0]]
    for variant in variants[1:]:
        together = [*largest, variant]
        values = [dict.fromkeys(other.variant.choices[name] for other in together) for name in names]
        grid = [
            other
            for other in variants
            if all(other.variant.choices[name] in allowed for name, allowed in zip(names, values, strict=True))
        ]
        if len(grid) == prod(map(len, values)):
            largest = grid
    return largest
