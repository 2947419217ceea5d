"""House rules that no linter checks: sizes, imports, one name for one thing, and plain words."""

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


def bound_names(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Return every name that is bound as a variable, and its line."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.alias(asname=str(name)):
                yield name, node.lineno
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name, node.lineno
            case ast.MatchMapping(rest=str(name)):
                yield name, node.lineno


def test_modules_are_short():
    lengths = {path: len(path.read_text("utf-8").splitlines()) for path in MODULES}

    assert {str(path): length for path, length in lengths.items() if length > MAX_MODULE_LINES} == {}


def test_functions_and_parameter_lists_are_short():
    functions = [
        (f"{path.relative_to(ROOT)}: {node.name}", lines(node), parameters(node))  # without the tree, which is large
        for path in MODULES
        for node in functions_in(ast.parse(path.read_text("utf-8")).body)
    ]

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
    bound = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in paths
        for name, line in bound_names(ast.parse(path.read_text("utf-8")))
        if name in VAGUE_NAMES
    ]

    assert bound == []


def test_log_lines_about_a_pod_have_its_name_and_its_uid():
    calls = [
        (f"{path.relative_to(ROOT)}:{node.lineno}", {keyword.arg for keyword in node.keywords})
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"debug", "info", "warning", "error", "exception"}
    ]

    assert len([place for place, names in calls if names >= {"pod", "uid"}]) > 10
    assert [place for place, names in calls if names & {"pod", "uid", "pod_uid"} and not names >= {"pod", "uid"}] == []


def test_imports_inside_functions_are_few_and_have_a_reason():
    texts = {path: path.read_text("utf-8") for path in MODULES if path.parent.name != "cli"}
    imports = {
        f"{path.relative_to(ROOT)}:{node.lineno}": text.splitlines()[node.lineno - 1]
        for path, text in texts.items()
        if re.search(r"^ +(from|import) ", text, re.MULTILINE)
        for function in functions_in(ast.parse(text).body)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }

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
