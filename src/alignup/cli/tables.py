"""What agents and runs tell, for the terminal: tables, and what containers have in a line."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from alignup.align.bits import parse
from alignup.align.decision import Placement
from alignup.align.explain import story
from alignup.align.hint import Hint
from alignup.cli import screen
from alignup.cli.app import harmless
from alignup.picture.words import columns


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Show rows under their heads, a line each however long, so that they can be searched."""
    lines = [heads, *([harmless(cell) for cell in row] for row in rows)]
    widths = [max(map(columns, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [cell + " " * (width - columns(cell)) for cell, width in zip(line, widths, strict=True)]
        screen.line("  ".join(cells).rstrip())


def placed(placements: Iterable[Mapping[str, Any]]) -> str:
    """What containers have, in one line."""
    return story.given_each([_placement(one) for one in placements])


def outcome(refusal: Mapping[str, Any] | None, placements: Iterable[Mapping[str, Any]]) -> str:
    """Why a pod was refused, or what its containers have."""
    return f"{refusal['reason']}: {refusal['message']}" if refusal else placed(placements)


def nodes(placements: Iterable[Mapping[str, Any]]) -> str:
    """The NUMA nodes of containers that have some."""
    return ",".join(dict.fromkeys(one["hint"]["nodes"] for one in placements if one["hint"]["nodes"])) or "-"


def _placement(document: Mapping[str, Any]) -> Placement:
    said = document["hint"]["nodes"]
    hint = Hint(None if said is None else parse(said), document["hint"]["preferred"])
    return Placement(document["container"], hint, partial(dict, document["given"]))
