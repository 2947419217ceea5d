"""The output of ``alignup simulate --compare``: combinations with equal results share a row of 80 columns."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from math import prod
from typing import NamedTuple

from alignup.cli import terminal
from alignup.cli.layout import paragraph, section, table
from alignup.picture.cells import Cell, Line
from alignup.picture.text_format import clean, display_width, pluralize
from alignup.simulate.compare import Comparison, RankedVariant

_MAX_ROWS = 20
_MAX_EXAMPLES = 4  #: combinations listed per error
_FIGURES = ("admitted", "rejected", "one node", "CPUs", "devices")
_CAPTION = "CPUs and devices: stranded at peak demand"


class FoldedVariants(NamedTuple):
    """Combinations with equal figures."""

    variants: tuple[RankedVariant, ...]
    grids: tuple[dict[str, tuple[str, ...]], ...]  #: dimension → values, which can be combined freely

    @property
    def first(self) -> RankedVariant:
        return self.variants[0]


def fold_ties(ranked: Sequence[RankedVariant]) -> list[FoldedVariants]:
    """*ranked* in its order; variants of one rank with equal figures are folded, in as few grids as is easy."""
    folded: list[FoldedVariants] = []
    for _, found in groupby(ranked, _figures):
        variants = left = tuple(found)
        names = list(left[0].variant.choices)
        grids = []
        while left:
            grid = _largest_grid(left, names)
            grids.append({name: tuple(dict.fromkeys(one.variant.choices[name] for one in grid)) for name in names})
            left = tuple(one for one in left if one not in grid)
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
        for error in dict.fromkeys(one.error for one in invalid):
            yield from paragraph(error, prefix="  ", style="warn")
            labels = [clean(one.label) for one in invalid if one.error == error]
            for label in labels[:_MAX_EXAMPLES]:
                yield from paragraph(_breakable(label), prefix="      ")
            yield from more_lines(len(labels), shown=_MAX_EXAMPLES)


def more_lines(number: int, *, shown: int = _MAX_ROWS) -> Iterator[Line]:
    if number > shown:
        yield (Cell(f"      … and {number - shown} more; -o csv lists all", "dim"),)


def _table(folded: Sequence[FoldedVariants]) -> Iterator[Line]:
    """A column for each setting if they fit, else lines below the figures."""
    heads = ["", *folded[0].grids[0], *_FIGURES]
    rows = [line for one in folded for line in _rows(one)]
    widths = [max(map(display_width, column)) for column in zip(heads, *rows, strict=True)]
    if sum(widths) + 2 * len(widths) <= terminal.width():
        yield from table(rows, heads)
        return
    shown = list(table([[str(one.first.rank), *_numbers(one.first)] for one in folded], ["", *_FIGURES]))
    yield shown[0]
    for one, line in zip(folded, shown[1:], strict=True):
        yield line
        for grid in one.grids:
            text = "; ".join(f"{name}: {', '.join(values)}" for name, values in grid.items())
            yield from paragraph(_breakable(text), prefix="     - ", style="dim")


def _rows(one: FoldedVariants) -> Iterator[list[str]]:
    """The figures once, and every value on its own line."""
    first = True
    for grid in one.grids:
        for number in range(max(map(len, grid.values()))):
            values = [own[number] if number < len(own) else "" for own in grid.values()]
            yield [
                str(one.first.rank) if first else "",
                *values,
                *(_numbers(one.first) if first else [""] * len(_FIGURES)),
            ]
            first = False


def _breakable(text: str) -> str:
    """Sets of options can be wider than a terminal."""
    return text.replace("+", " + ")


def _reasons(folded: Sequence[FoldedVariants]) -> Iterator[Line]:
    ranks: dict[str, list[str]] = {}
    for one in (variant for group in folded for variant in group.variants):
        reasons = ", ".join(f"{number} {reason}" for reason, number in one.score.reasons.items())
        if reasons and str(one.rank) not in ranks.setdefault(reasons, []):
            ranks[reasons].append(str(one.rank))
    if ranks:
        yield from section("Why pods are rejected")
        yield from table([[", ".join(numbers), reasons] for reasons, numbers in ranks.items()])


def _numbers(one: RankedVariant) -> list[str]:
    score, stranded = one.score, one.score.stranded
    return [
        str(number)
        for number in (score.admitted, score.rejected, score.pods.on_one, stranded.cpus, stranded.all_devices)
    ]


def _figures(one: RankedVariant) -> tuple[object, ...]:
    return one.rank, *_numbers(one)


def _largest_grid(variants: Sequence[RankedVariant], names: Sequence[str]) -> list[RankedVariant]:
    """Variants, the first among them, that are all combinations of some values: all of them, or as many as easy."""
    found = [variants[0]]
    for one in variants[1:]:
        together = [*found, one]
        values = [dict.fromkeys(other.variant.choices[name] for other in together) for name in names]
        grid = [
            other
            for other in variants
            if all(other.variant.choices[name] in own for name, own in zip(names, values, strict=True))
        ]
        if len(grid) == prod(map(len, values)):
            found = grid
    return found
