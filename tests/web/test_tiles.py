"""Tiles of what is free."""

from alignup.picture.numa_bars import ResourceBar
from alignup.web.tiles import capacity_tiles


def test_a_tile_says_what_is_free_what_fits_and_what_is_stranded():
    totals = {
        "example.com/gpu": ResourceBar("example.com/gpu", 0, 2, 1, 1),
        "memory": ResourceBar("memory", 0, 0, 0, 3 << 30),
        "cpu": ResourceBar("cpu", 1, 0, 0, 4000),
        "hugepages-2Mi": ResourceBar("hugepages-2Mi"),
    }

    tiles = capacity_tiles(totals, {"cpu": 64, "example.com/gpu": 1})

    assert [(tile.label, tile.value, tile.unit, tile.note, tile.tone) for tile in tiles] == [
        ("Free CPUs", "4,000", "of 4,001", "largest aligned request: 64", ""),
        ("Free memory", "3 GiB", "of 3 GiB", "", ""),
        ("Free example.com/gpu", "2", "of 4", "largest aligned request: 1; 1 stranded", "wait"),
    ]
