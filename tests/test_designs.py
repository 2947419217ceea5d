"""Everything that docs/designs.md names exists, and each section of the designs has rows."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "designs.md").read_text("utf-8")
ROWS = [
    [cell.strip() for cell in line[1:-1].split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith(("| item |", "|---"))
]
FOLDERS = ("tests", "e2e", "examples", "deploy")


@cache
def definitions(path: Path) -> set[str]:
    """Return functions and classes of a module, with those inside of classes as ``Class::function``."""
    names = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}::{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return names


def missing(text: str) -> list[str]:
    """Return the paths, tests and names in backticks that do not exist."""
    absent = []
    source = ""
    for span, name in re.findall(r"`([^`]+)`(?: \(`([\w.]+)`\))?", text):
        file, _, test = span.partition("::")
        if "/" not in file or " " in file:
            continue
        path = ROOT / file if file.startswith(FOLDERS) else ROOT / "src" / "alignup" / file
        if not path.exists():
            absent.append(file)
        elif test and test not in definitions(path):
            absent.append(span)
        elif name and path.suffix == ".py":
            source = path.read_text("utf-8")
            absent += [f"{file}: {part}" for part in name.split(".") if not re.search(rf"\b{part}\b", source)]
    return absent


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:60])
def test_a_row_has_four_cells_and_names_only_what_exists(row):
    assert len(row) == 4
    assert missing(" ".join(row)) == []


def test_most_items_have_code_and_a_test():
    with_test = [row for row in ROWS if re.search(r"`(tests|e2e)/", row[2])]

    assert len(ROWS) > 70
    assert len(with_test) > len(ROWS) - 6  # non-goals have none


@pytest.mark.parametrize(
    ("text", "absent"),
    [
        ("`align/admit.py`", []),
        ("`align/absent.py`", ["align/absent.py"]),
        ("`tests/test_designs.py::test_absent`", ["tests/test_designs.py::test_absent"]),
        ("`align/hint.py` (`Absent`)", ["align/hint.py: Absent"]),
        ("`align/hint.py` (`Provider`) and `none`", []),
    ],
)
def test_what_does_not_exist_is_found(text, absent):
    assert missing(text) == absent
