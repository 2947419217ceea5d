"""House rules that no linter checks: sizes, one name for one thing, and plain words."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
MODULES = [path for path in sorted((ROOT / "src" / "alignup").rglob("*.py")) if "wire" not in path.parts]

MAX_MODULE_LINES = 700
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 10

#: Words that stand for a person, or for a mechanism that has a usual name.
PRIVATE_WORDS = re.compile(
    r"\b(whoever|somebody|anybody|everybody|(un)?heed(s|ed)?|as (it|things) stands?|in vain|errands?|is no good)\b",
    re.IGNORECASE,
)
TEXTS = ("src/**/*.py", "tests/**/*.py", "bench/*.py", "e2e/*.py", "examples/*.py", "docs/**/*.md", "*.md")


def functions_in(statements: list[ast.stmt]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return the functions at any depth; expressions have none, and are most of a module."""
    for statement in statements:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            yield statement
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from functions_in(getattr(statement, block, []))


def lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return len(node.args.posonlyargs) + len(node.args.args) + len(node.args.kwonlyargs)


def test_modules_are_short():
    lengths = {path: len(path.read_text("utf-8").splitlines()) for path in MODULES}

    assert {str(path): length for path, length in lengths.items() if length > MAX_MODULE_LINES} == {}


def test_functions_and_parameter_lists_are_short():
    functions = [
        (path.relative_to(ROOT), node)
        for path in MODULES
        for node in functions_in(ast.parse(path.read_text("utf-8")).body)
    ]

    assert [f"{path}: {node.name}" for path, node in functions if lines(node) > MAX_FUNCTION_LINES] == []
    assert [f"{path}: {node.name}" for path, node in functions if parameters(node) > MAX_PARAMETERS] == []


def test_a_public_class_name_is_defined_once():
    paths = defaultdict(list)
    for path in MODULES:
        for name in re.findall(r"^class ([A-Za-z]\w*)", path.read_text("utf-8"), re.MULTILINE):
            paths[name].append(str(path.relative_to(ROOT)))

    assert {name: found for name, found in paths.items() if len(found) > 1} == {}


def test_texts_use_plain_words():
    found = [
        f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}: {match.group()}"
        for pattern in TEXTS
        for path in ROOT.glob(pattern)
        if path != Path(__file__)
        for text in [path.read_text("utf-8").replace("_", " ")]
        for match in PRIVATE_WORDS.finditer(text)
    ]

    assert found == []
