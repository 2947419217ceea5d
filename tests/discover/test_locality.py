"""Recorded PCIe trees and links against the known levels; ``--machines DIR`` selects another set."""

import json
import re
from itertools import combinations
from typing import TYPE_CHECKING

import pytest

from alignup.align.locality import Level
from alignup.documents.machines import machine_from_document, machine_to_document
from alignup.machines import load
from alignup.picture.machine_svg import draw_svg
from alignup.picture.machine_text import draw_text
from alignup.picture.pcie_tree import draw_matrix
from alignup.picture.text_format import plain

if TYPE_CHECKING:
    from pathlib import Path


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    given: Path = metafunc.config.getoption("--machines")
    folder = given if (given / "levels.json").exists() else given / "locality"
    files = sorted(path for path in folder.glob("*") if path.suffix in {".xml", ".txt"})
    name = next(name for name in ("described", "matrix", "file") if name in metafunc.fixturenames)
    if name == "matrix":
        files = [file for file in files if re.match(r"[\s\x1b]*(\[4m)?GPU0", file.read_text())]
    if name == "described":
        levels = json.loads((folder / "levels.json").read_text()) if files else {}
        files = [file for file in files if file.name in levels]
        cases = [pytest.param((file, levels[file.name]), id=file.name) for file in files]
    else:
        cases = [pytest.param(file, id=file.name) for file in files]
    metafunc.parametrize(name, cases)


def test_levels_match_the_facts(described):
    file, facts = described
    written = machine_to_document(load(file, devices_only=True), pairs=True)
    pcie = {frozenset(pair["devices"]): pair["pcie"] for pair in written.get("pairs", ())}
    addresses = [device["id"] for device in facts["devices"]]

    levels = {(addresses[a], addresses[b]): facts["levels"][a][b] for a, b in combinations(range(len(addresses)), 2)}

    assert {pair: pcie[frozenset(pair)] for pair in levels} == levels


def test_a_matrix_is_printed_as_nvidia_smi_does(matrix):
    """Rows and columns that the file has; documents leave out some."""
    rows = [line.split() for line in re.sub(r"\x1b\[[0-9;]*m", "", matrix.read_text()).splitlines()]
    columns = len(rows[0]) if "CPU" not in rows[0] else rows[0].index("CPU")
    names = rows[0][:columns]

    printed = draw_matrix(load(matrix, devices_only=True))

    cells = {row[0]: row[1 : columns + 1] for line in printed[1 : columns + 1] if (row := line.split())}
    by_column = dict(zip(names, cells.values(), strict=True))
    for row in rows[1:]:
        if row and row[0] in by_column:
            assert by_column[row[0]] == row[1 : columns + 1]


def test_every_file_is_read_drawn_and_written(file):
    machine = load(file, devices_only=True)

    assert [plain(line) for line in draw_text(machine)]
    assert draw_svg(machine).startswith("<svg")
    assert draw_matrix(machine)
    assert len(machine.pci) + len(machine.cpus) > 0
    if machine.cpus:
        assert machine_from_document(machine_to_document(machine, pairs=True)) == machine
    locality = machine.locality
    for a, b in combinations(locality.devices, 2):
        assert locality.level(a, b) is locality.level(b, a)
        assert not (locality.flat and locality.level(a, b) is Level.SYS)
