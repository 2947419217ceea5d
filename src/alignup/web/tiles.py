"""Tiles of what is free, which the pages of a node and of a cluster have in common."""

from collections.abc import Mapping
from typing import NamedTuple

from alignup.align.workload.names import CPU, MEMORY, is_hugepages
from alignup.picture.numa_bars import ResourceBar
from alignup.picture.occupancy import format_amount
from alignup.picture.text_format import clean, shorten

MAX_TILES = 8


class Tile(NamedTuple):
    """One figure on a page."""

    label: str
    value: str
    note: str = ""
    tone: str = ""  #: good, bad, wait; empty: none
    trend: str = ""  #: a picture
    unit: str = ""


def format_count(resource: str, number: int) -> str:
    """Return an amount for a tile, large numbers with commas."""
    text = format_amount(resource, number)
    return f"{number:,}" if text == str(number) else text


def resource_name(resource: str) -> str:
    return {CPU: "CPUs", MEMORY: "memory"}.get(resource, shorten(clean(resource), 48))


def capacity_tiles(totals: Mapping[str, ResourceBar], largest: Mapping[str, int]) -> list[Tile]:
    """Return a tile for each resource but huge pages: what is free, and the *largest* request that fits aligned."""
    resources = [name for name in totals if not is_hugepages(name)]
    order = sorted(resources, key=lambda name: (name != CPU, name != MEMORY, name))
    tiles = []
    for name in order[:MAX_TILES]:
        bar = totals[name]
        if not bar.total:
            continue
        free = bar.free + bar.stranded
        stranded_text = f"{format_amount(name, bar.stranded)} stranded" if bar.stranded else ""
        fits = f"largest aligned request: {format_amount(name, largest[name])}" if name in largest else ""
        tiles.append(
            Tile(
                f"Free {resource_name(name)}",
                format_count(name, free),
                "; ".join(filter(None, (fits, stranded_text))),
                tone="bad" if not free else "wait" if bar.stranded else "",
                unit=f"of {format_count(name, bar.total)}",
            )
        )
    return tiles
