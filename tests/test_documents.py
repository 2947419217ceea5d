"""The Python in the documents runs and prints what they show.

In every document the ``python`` blocks share one namespace. A ``text`` or ``json`` block directly after one, with only
blank lines between them, is its output. Other blocks are ignored.
"""

import ast
import inspect
import io
import json
import re
import runpy
import sys
from contextlib import redirect_stdout
from importlib import import_module
from itertools import zip_longest
from pathlib import Path
from pkgutil import iter_modules
from typing import NamedTuple

import pytest
import structlog

import alignup
from alignup import Host, align
from alignup.documents.decisions import to_document
from tests.align import test_prediction
from tests.documents.test_decisions import MAKERS

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "own_provider.py"
LIBRARY, DECISION = ROOT / "docs" / "library.md", ROOT / "docs" / "decision.md"
FIELDS_OF_DECISION = ROOT / "docs" / "decision-fields.md"
OWN_PROVIDER = ROOT / "docs" / "own-provider.md"
NOTEBOOK = ROOT / "examples" / "notebook.ipynb"

FENCED = re.compile(r"^```(?P<kind>[a-z]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(autouse=True)
def default_logging():
    """Undo what a document configures."""
    yield
    structlog.reset_defaults()


class Block(NamedTuple):
    """A Python block of a document, its line, and its documented output."""

    line: int
    code: str
    output: str | None


def blocks(text: str) -> list[Block]:
    fenced = list(FENCED.finditer(text))
    python_blocks = []
    for block, after in zip_longest(fenced, fenced[1:]):
        if block["kind"] != "python":
            continue
        shown = after and after["kind"] in {"text", "json"} and not text[block.end() : after.start()].strip()
        line = text.count("\n", 0, block.start("body"))
        python_blocks.append(Block(line, block["body"], after["body"] if after and shown else None))
    return python_blocks


DOCUMENTS = {
    str(path.relative_to(ROOT)): path
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
    if blocks(path.read_text(encoding="utf-8"))
}


def run(text: str, *, name: str) -> None:
    """Run the Python in a document and compare the output."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(text):
        code = compile("\n" * block.line + block.code, name, "exec")
        with redirect_stdout(io.StringIO()) as printed:
            exec(code, namespace)  # noqa: S102 - our own documents
        if block.output is not None:
            assert printed.getvalue() == block.output, f"{name}, line {block.line}"


@pytest.mark.parametrize("path", DOCUMENTS.values(), ids=DOCUMENTS)
def test_documents_show_the_real_output(path):
    run(path.read_text(encoding="utf-8"), name=str(path))


def test_the_library_and_decision_pages_have_code():
    assert {LIBRARY, DECISION} <= set(DOCUMENTS.values())


@pytest.mark.parametrize(
    ("text", "outputs"),
    [
        pytest.param("```python\na\n```\n\n```text\n1\n```\n", ["1\n"], id="the next block is the output"),
        pytest.param("```python\na\n```\nsaid\n```text\n1\n```\n", [None], id="text between them separates them"),
        pytest.param("```python\na\n```\n```console\n$ make run\n```\n", [None], id="a console block is no output"),
        pytest.param(
            "```python\na\n```\n```python\nb\n```\n```json\n2\n```\n", [None, "2\n"], id="two blocks, one output"
        ),
        pytest.param("```text\n1\n```\n", [], id="no Python"),
    ],
)
def test_blocks_are_found(text, outputs):
    assert [block.output for block in blocks(text)] == outputs


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("```python\nprint(1)\n```\n```text\n2\n```\n", id="prints something else"),
        pytest.param("```python\nx = 1\n```\n```python\nassert x == 2\n```\n", id="fails"),
    ],
)
def test_a_wrong_document_fails(text):
    with pytest.raises(AssertionError):
        run(text, name="wrong")


def test_every_field_of_a_decision_is_documented():
    text = FIELDS_OF_DECISION.read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `(\w+)`", text, re.MULTILINE))

    prediction = test_prediction.host(test_prediction.machine(0, 0, 0, 1, 1, 1), "restricted").predict(
        test_prediction.pod(4, 2)
    )
    fields = {key for decision in (*(make() for make in MAKERS), prediction) for key in keys(to_document(decision))}

    assert fields == documented


def keys(value: object) -> set[str]:
    """Return every field name in a document; keys that are providers, resources or nodes do not count."""
    if isinstance(value, list):
        return set().union(*map(keys, value))
    if not isinstance(value, dict):
        return set()
    choices = keys(list(value["choices"].values())) if "choices" in value else set()
    skipped = {"given", "free", "choices"}
    return set(value).union(choices, *(keys(inner) for key, inner in value.items() if key not in skipped))


class TestOwnProvider:
    """The custom provider of its page."""

    def test_the_page_shows_the_example(self):
        shown = blocks(OWN_PROVIDER.read_text(encoding="utf-8"))
        provider = next(block.code for block in shown if "class CacheWays" in block.code)

        assert provider in EXAMPLE.read_text(encoding="utf-8")

    def test_it_takes_less_than_sixty_lines(self):
        source = EXAMPLE.read_text(encoding="utf-8")
        tree = ast.parse(source)
        main = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "main")
        docstrings = {
            line
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node)
            for line in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
        }
        imports = {
            line
            for node in tree.body
            if isinstance(node, ast.ImportFrom)
            for line in range(node.lineno, (node.end_lineno or 0) + 1)
        }
        code = [
            text
            for line, text in enumerate(source.splitlines()[: main.lineno - 1], start=1)
            if text.strip() and not text.lstrip().startswith("#") and line not in docstrings | imports
        ]

        assert 30 < len(code) < 60

    def test_it_runs(self, capsys, monkeypatch):
        monkeypatch.setattr(sys, "argv", [str(EXAMPLE)])

        runpy.run_path(str(EXAMPLE), run_name="__main__")

        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith("a: admitted on {0}")
        assert "'example.com/cache-ways': '0-7 of node 0'" in lines[0]
        assert lines[1].startswith("b: admitted on {1}")
        assert lines[2] == "c: rejected, TopologyAffinityError"


class TestNotebook:
    """The example notebook, without Jupyter: the cells run, and each ends with a value that a notebook shows."""

    CELLS = tuple(cell for cell in json.loads(NOTEBOOK.read_text("utf-8"))["cells"] if cell["cell_type"] == "code")

    def test_it_has_at_most_forty_lines_of_code_and_no_stored_output(self):
        lines = [line for cell in self.CELLS for line in cell["source"] if line.strip()]

        assert 20 < len(lines) <= 40
        assert [cell["outputs"] for cell in self.CELLS if cell["outputs"]] == []

    def test_its_cells_run_and_show_pictures_and_tables(self, monkeypatch):
        monkeypatch.chdir(ROOT)
        namespace: dict[str, object] = {}
        shown = [self.run_cell("".join(cell["source"]), namespace) for cell in self.CELLS]

        pictures = [value for value in shown if hasattr(value, "_repr_svg_")]
        tables = [value for value in shown if hasattr(value, "_repr_html_")]
        assert (len(pictures), len(tables)) == (2, 4)
        assert all(value._repr_svg_().startswith("<svg") for value in pictures)
        assert all("<td" in value._repr_html_() for value in tables)
        assert repr(shown[4]).endswith("admitted>")

    def run_cell(self, source: str, namespace: dict[str, object]) -> object:
        """Run a cell, and return the value of its last line, which is an expression."""
        tree = ast.parse(source)
        last = tree.body.pop()
        assert isinstance(last, ast.Expr)
        exec(compile(tree, "cell", "exec"), namespace)  # noqa: S102 - our own notebook
        return eval(compile(ast.Expression(last.value), "cell", "eval"), namespace)  # noqa: S307


ARCHITECTURE, CONTRIBUTING = (ROOT / "docs" / "architecture.md").read_text(), (ROOT / "CONTRIBUTING.md").read_text()
SPAN = re.compile(r"`([^`]+)`")


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the first table below *heading* in the architecture, without the table's own heading."""
    table = ARCHITECTURE.split(f"## {heading}\n")[1].split("|---|---|\n")[1].split("\n\n")[0]
    return [line.strip("|").split("|") for line in table.splitlines()]


def resolve(name: str) -> object:
    """Return the module or the member of a module below ``alignup`` with this dotted name."""
    try:
        return import_module(f"alignup.{name}")
    except ModuleNotFoundError:
        module, _, member = name.rpartition(".")
        return getattr(import_module(f"alignup.{module}"), member)


def test_the_architecture_lists_the_modules_of_the_core():
    listed = [name.rstrip("/") for cells in rows("The core") for name in SPAN.findall(cells[0])]

    assert sorted(listed) == sorted(module.name for module in iter_modules(align.__path__))


def test_the_architecture_names_programs_and_modules_that_exist():
    """A class is public. A module is one of the program, or has a dot in its name."""
    for program, story in rows("The programs"):
        (package,) = SPAN.findall(program)
        for name in SPAN.findall(story):
            assert hasattr(alignup, name) or resolve(name if "." in name else f"{package}.{name}")


def test_contributing_names_arguments_that_exist():
    (call,) = (span for span in SPAN.findall(CONTRIBUTING) if span.startswith("Host("))

    assert set(re.findall(r"(\w+)=", call)) <= inspect.signature(Host).parameters.keys()


MAX_WORDS = 30  #: of a sentence
MAX_LINES = 250  #: of a page
EXEMPT = {"reasons.md"}  #: generated
PAGES = [path for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if path.name not in EXEMPT]
FENCED_ANY = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")


def long_sentences(text: str) -> list[str]:
    """Return the sentences of prose with too many words. A span of code is a word; tables and code are not prose."""
    prose = FENCED_ANY.sub("\n", text)
    sentences = (
        sentence
        for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[*+-]|\d+\.|\||#)\s?)", prose)
        if not paragraph.lstrip("\n").startswith(("|", "#", "    "))
        for sentence in re.split(r"(?<=[.!?])[\")*]*\s+", LINK.sub(r"\1", SPAN.sub("code", paragraph)))
    )
    return [" ".join(sentence.split()) for sentence in sentences if len(re.findall(r"\S*\w\S*", sentence)) > MAX_WORDS]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_and_sentences_are_short(path):
    text = path.read_text("utf-8")

    assert long_sentences(text) == []
    assert text.count("\n") <= MAX_LINES


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("word " * 30 + "\n", 0, id="as long as may be"),
        pytest.param("word " * 31 + "\n", 1, id="too long"),
        pytest.param("word " * 20 + "end. " + "word " * 20, 0, id="two sentences"),
        pytest.param("* " + "word " * 20 + "\n* " + "word " * 20, 0, id="two items"),
        pytest.param("word " * 20 + "\n" + "word " * 20, 1, id="on two lines"),
        pytest.param("word " * 29 + "`alignup why -f FILE`\n", 0, id="code is one word"),
        pytest.param("word " * 29 + "[one two](there.md)", 1, id="a link has its words"),
        pytest.param("| " + "word " * 40 + "|\n", 0, id="a table"),
        pytest.param("```text\n" + "word " * 40 + "\n```\n", 0, id="a block"),
    ],
)
def test_long_sentences_are_found(text, expected):
    assert len(long_sentences(text)) == expected
