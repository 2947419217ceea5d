"""Tables for the terminal: columns as wide as what is in them, the last one as long as it likes."""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from alignup.align.bits import parse
from alignup.align.decision import Placement
from alignup.align.explain import story
from alignup.align.hint import Hint
from alignup.cli import screen


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Show rows under their heads; what a terminal would obey in them is shown, not obeyed."""
    lines = [heads, *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        screen.document("  ".join(cells).rstrip() + "\n")


def documents(found: object) -> None:
    """Show a document for machines."""
    screen.document(json.dumps(found, indent=2, ensure_ascii=False) + "\n")


def line(text: str) -> None:
    """Show one line."""
    screen.document(printable(text) + "\n")


def placed(placements: Iterable[Mapping[str, Any]]) -> str:
    """What containers have, in one line."""
    return "; ".join(f"{one['container']}: {story.given(_placement(one))}" for one in placements)


def nodes(placements: Iterable[Mapping[str, Any]]) -> str:
    """The NUMA nodes of containers that have some."""
    return ",".join(dict.fromkeys(one["hint"]["nodes"] for one in placements if one["hint"]["nodes"])) or "-"


def printable(text: str) -> str:
    """*text* without line ends and what else a terminal would obey: names come from anywhere."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def _placement(document: Mapping[str, Any]) -> Placement:
    said = document["hint"]["nodes"]
    hint = Hint(None if said is None else parse(said), document["hint"]["preferred"])
    return Placement(document["container"], hint, partial(dict, document["given"]))
