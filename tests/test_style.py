"""House rules that no linter checks: sizes, imports, one name for one thing, and plain words."""

import ast
import re
import symtable
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
MODULES = [path for path in sorted((ROOT / "src" / "alignup").rglob("*.py")) if "wire" not in path.parts]

MAX_MODULE_LINES = 700
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 10
MAX_LOCAL_IMPORTS = 20

#: Names that say nothing about the thing they are bound to.
VAGUE_NAMES = {"one", "found", "own", "what", "those"}

#: Modules of several packages that have the same role in each; those of ``cli`` have the names of commands.
PARALLEL_MODULES = {
    *("__init__", "__main__", "app", "cover", "errors", "hints", "ledger", "metrics", "options", "pages", "provider"),
    *("service", "templates"),
}

#: Words that stand for a person, or for a mechanism that has a usual name.
PRIVATE_WORDS = re.compile(
    r"\b(whoever|somebody|anybody|everybody|(un)?heed(s|ed)?|as (it|things) stands?|in vain|errands?|is no good)\b",
    re.IGNORECASE,
)
#: British spellings; Kubernetes writes American English. Python's ``asyncio`` writes "cancelled".
BRITISH = re.compile(
    r"(behavi|col|fav|harb|hon|hum|lab|neighb|rum|vap)our|"
    r"(analy|caty|paraly)s(e[drs]?|ing)\b|"
    r"(capital|categor|central|character|custom|emphas|equal|final|formal|general|initial|local|material|maxim|minim|modern|"
    r"normal|optim|organ|parallel|prior|priorit|random|recogn|serial|special|standard|summar|synchron|token|util|visual)"
    r"is(e[drs]?|ing|ation)\b|"
    r"\b(artefact|catalogue|centre|cheque|defence|dialogue|fulfil\b|grey|judgement|kerb|learnt|licence|misspelt|"
    r"offence|programme|sceptical|spelt|storey|tyre|whilst)|"
    r"(label|model|signal|travel|level|channel|tunnel)l(ed|ing)\b",
    re.IGNORECASE,
)
CODE = ("src/**/*.py", "tests/**/*.py", "bench/*.py", "e2e/*.py", "examples/**/*.py", "tools/*.py")
TEXTS = ("src/**/*.py", "tests/**/*.py", "bench/*.py", "e2e/*.py", "examples/*.py", "docs/**/*.md", "*.md")
OTHER_TEXTS = ("src/**/*.html", "src/**/*.js", "deploy/**/*.*", "examples/**/*.yaml", "tools/*.py", "Makefile")


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


def scopes(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for inner in table.get_children():
        yield from scopes(inner)


def vague_names(path: Path) -> Iterator[str]:
    """Yield the vague names that are bound as variables, and the function or class; no tree of objects is made."""
    for scope in scopes(symtable.symtable(path.read_text("utf-8"), str(path), "exec")):
        for name in VAGUE_NAMES.intersection(scope.get_identifiers()):
            symbol = scope.lookup(name)
            if (symbol.is_assigned() or symbol.is_parameter() or symbol.is_imported()) and not symbol.is_namespace():
                yield f"{path.relative_to(ROOT)}:{scope.get_lineno()}: {name} in {scope.get_name()}"


LOG_LEVELS = ("debug", "info", "warning", "error", "exception")
LOG_CALL = re.compile(rf"\.({'|'.join(LOG_LEVELS)})\(")


class LogCall(NamedTuple):
    place: str
    fields: set[str | None]


class Module(NamedTuple):
    """What the rules below are about: most of a tree is not kept."""

    functions: list[tuple[str, int, int]]  #: place, lines, parameters
    log_calls: list[LogCall]
    local_imports: dict[str, str]  #: place → line


@cache
def read_modules() -> list[Module]:
    return [read_module(path) for path in MODULES]


def read_module(path: Path) -> Module:
    name, text = path.relative_to(ROOT), path.read_text("utf-8")
    tree, source = ast.parse(text), text.splitlines()
    functions = list(functions_in(tree.body))
    imports_inside = path.parent.name != "cli" and re.search(r"^ +(from|import) ", text, re.MULTILINE)
    return Module(
        [(f"{name}: {node.name}", lines(node), parameters(node)) for node in functions],
        [
            LogCall(f"{name}:{node.lineno}", {keyword.arg for keyword in node.keywords})
            for node in (ast.walk(tree) if LOG_CALL.search(text) else ())
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOG_LEVELS
        ],
        {
            f"{name}:{node.lineno}": source[node.lineno - 1]
            for function in (functions if imports_inside else ())
            for node in ast.walk(function)
            if isinstance(node, ast.Import | ast.ImportFrom)
        },
    )


def test_modules_are_short():
    lengths = {path: len(path.read_text("utf-8").splitlines()) for path in MODULES}

    assert {str(path): length for path, length in lengths.items() if length > MAX_MODULE_LINES} == {}


def test_functions_and_parameter_lists_are_short():
    functions = [function for module in read_modules() for function in module.functions]

    assert [place for place, length, _ in functions if length > MAX_FUNCTION_LINES] == []
    assert [place for place, _, count in functions if count > MAX_PARAMETERS] == []


def test_a_public_class_name_is_defined_once():
    paths = defaultdict(list)
    for path in MODULES:
        for name in re.findall(r"^class ([A-Za-z]\w*)", path.read_text("utf-8"), re.MULTILINE):
            paths[name].append(str(path.relative_to(ROOT)))

    assert {name: defining for name, defining in paths.items() if len(defining) > 1} == {}


def test_a_module_name_stands_for_one_thing():
    packages = defaultdict(list)
    for path in MODULES:
        if path.parent.name != "cli" and path.stem not in PARALLEL_MODULES:
            packages[path.stem].append(str(path.parent.relative_to(ROOT)))

    assert {name: having for name, having in packages.items() if len(having) > 1} == {}


def test_variables_are_named_after_what_they_hold():
    paths = [path for pattern in CODE for path in sorted(ROOT.glob(pattern)) if "wire" not in path.parts]

    assert [place for path in paths for place in vague_names(path)] == []


def test_log_lines_about_a_pod_have_its_name_and_its_uid():
    calls = [call for module in read_modules() for call in module.log_calls]

    assert len([place for place, names in calls if names >= {"pod", "uid"}]) > 10
    assert [place for place, names in calls if names & {"pod", "uid", "pod_uid"} and not names >= {"pod", "uid"}] == []


def test_imports_inside_functions_are_few_and_have_a_reason():
    imports = {place: line for module in read_modules() for place, line in module.local_imports.items()}

    assert len(imports) <= MAX_LOCAL_IMPORTS
    assert [place for place, line in imports.items() if not re.search(r"# (?!noqa)|noqa: [\w, ]+ - ", line)] == []


def occurrences(words: re.Pattern[str], patterns: tuple[str, ...]) -> list[str]:
    """Return where *words* are in the files of *patterns*."""
    return [
        f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}: {match.group()}"
        for path, text in texts_of(patterns)
        for match in words.finditer(text)
    ]


def texts_of(patterns: tuple[str, ...]) -> Iterator[tuple[Path, str]]:
    for pattern in patterns:
        for path in ROOT.glob(pattern):
            if path != Path(__file__) and path.is_file() and "wire" not in path.parts:
                yield path, path.read_text("utf-8").replace("_", " ")


def test_texts_use_plain_words():
    assert occurrences(PRIVATE_WORDS, TEXTS) == []


def test_spelling_is_american():
    words = {word for path, text in texts_of(TEXTS + OTHER_TEXTS) for word in re.findall(r"[^\W_]+", text)}
    wrong = "|".join(word for word in words if BRITISH.search(word))
    assert not wrong or occurrences(re.compile(rf"\b({wrong})\b"), TEXTS + OTHER_TEXTS) == []
    assert [word for word in ("behaviour", "Recognised", "labelled", "grey") if not BRITISH.search(word)] == []
    assert not BRITISH.search("aria-labelledby rise precise exercise hour four promise")
