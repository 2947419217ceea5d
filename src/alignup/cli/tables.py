"""What agents and runs tell, for the terminal: tables, and what containers have in a line."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from alignup.align.bits import parse
from alignup.align.decision import Placement
from alignup.align.explain import sentences
from alignup.align.hint import Hint
from alignup.cli import terminal
from alignup.cli.app import escape_control
from alignup.picture.text_format import display_width


def print_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Show rows under their heads, a line each however long, so that they can be searched."""
    lines = [heads, *([escape_control(cell) for cell in row] for row in rows)]
    widths = [max(map(display_width, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [cell + " " * (width - display_width(cell)) for cell, width in zip(line, widths, strict=True)]
        terminal.print_line("  ".join(cells).rstrip())


def describe_placements(placements: Iterable[Mapping[str, Any]]) -> str:
    """What containers have, in one line."""
    return sentences.describe_allocations([_placement(one) for one in placements])


def describe_outcome(refusal: Mapping[str, Any] | None, placements: Iterable[Mapping[str, Any]]) -> str:
    """Why a pod was refused, or what its containers have."""
    return f"{refusal['reason']}: {refusal['message']}" if refusal else describe_placements(placements)


def numa_nodes(placements: Iterable[Mapping[str, Any]]) -> str:
    """The NUMA nodes of containers that have some."""
    return ",".join(dict.fromkeys(one["hint"]["nodes"] for one in placements if one["hint"]["nodes"])) or "-"


def _placement(document: Mapping[str, Any]) -> Placement:
    said = document["hint"]["nodes"]
    hint = Hint(None if said is None else parse(said), document["hint"]["preferred"])
    return Placement(document["container"], hint, partial(dict, document["given"]))
