"""What Markdown files and docstrings mention: paths, modules, names, commands and options, and whether each exists.

Only spellings that can be resolved count, and only between backticks (docstrings: double ones, or after a role), in
comments of pyproject.toml or, for commands, at the beginning of a line of a code block. Python is read, not imported,
so tests and ``e2e`` are covered as well.
"""

import ast
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import NamedTuple

import yaml

from tools.command_tree import walk
from tools.reference import pages

ROOT = Path(__file__).parents[1]
CODE_FOLDERS = ("src", "tests", "e2e", "bench", "tools", "examples")
FOLDERS = (*CODE_FOLDERS, "docs", "deploy", "lock", "proto", ".github")
#: Files in which a name may occur, apart from Python, and their folders.
DATA_FOLDERS = ("src", "deploy", "examples", "proto", "docs")
DATA = ("*.yaml", "*.yml", "*.json", "*.html", "*.js", "*.proto", "*.toml", "*.sh", "*.tpl", "*.service", "Makefile")

DOCSTRING = re.compile(r'^\s*r?"""(.*?)"""', re.MULTILINE | re.DOTALL)
ATTRIBUTE_COMMENT = re.compile(r"#: .*")
COMMENT = re.compile(r"(?:^|\s)#.*", re.MULTILINE)
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
PLACEHOLDER = re.compile(r"(?<![A-Z])(?<![A-Z]_)(NAME|PACKAGE|MODULE)(?![A-Z])|…")
PATH = re.compile(rf"(?:{'|'.join(map(re.escape, FOLDERS))}|\.\.)/[\w./*-]*")
FILE = re.compile(r"[\w/]*\w+\.(pyi?|md|toml)")
DOTTED = re.compile(r"([A-Za-z_]\w*(?:\.\w+)+)(?:\(.*\))?")
#: A name of two words or more: ``snake_case``, ``CamelCase``, ``camelCase`` or ``UPPER_CASE``.
NAME = re.compile(r"([A-Za-z]\w*_\w*\w|[A-Za-z]+[a-z0-9][A-Z]\w*|[A-Z][a-z]\w*[A-Z]\w*)(?:\(.*\))?")
#: A cross-reference of a docstring, to a class, a function or the like.
ROLE = re.compile(r":[a-z]+:`~?([\w.]+)`")
OPTION = re.compile(r"(--[a-z][\w-]+)(?:[ =].*)?")
COMMAND = re.compile(r"(?:\$ )?(?:\.venv/bin/)?((?:kubectl )?alignup(?: .*)?)")
PYTHON = re.compile(r"(?:\$ )?(?:\S*/)?python3? (?:-m cProfile .*)?-m ([\w.]+)(.*)")
MAKE = re.compile(r"(?:\$ )?make((?: [a-z][\w-]*)+)(?= [A-Z]|$|  | #)")
HOST_NAME = re.compile(r"[\w.-]+\.(ai|com|dev|io|sh|policy)")
DATA_FILE = re.compile(r"\S+\.(bz2|conf|crt|css|csv|dep|gz|journal|js|json|LICENSE|lock|sock|sqlite|tar|yaml)")

#: The first part of paths to fields of Kubernetes' objects.
FIELDS = ("spec.", "status.", "metadata.", "data.", "schedulingPolicy.")
#: What does not exist here, by the reason.
OTHERS = {
    # files, calls and capabilities of Linux
    *("cpuset.cpus", "cpuset.mems", "memory.available", "set_mempolicy", "numa_maps", "sched_setaffinity", "ru_maxrss"),
    *("CAP_SYS_NICE", "CAP_DAC_READ_SEARCH"),
    # HTTP servers and clients that docs/why compares
    *("ClientSession.close", "Connection.close", "Connection.send", "h11_max_incomplete_size", "limit_concurrency"),
    *("keep_alive_timeout", "feed_data", "read_timeout", "--http1-buffer-size", "--http1-header-read-timeout"),
    # names of other libraries, languages and products
    *("cel.bind", "strconv.Atoi", "structlog.get_logger()", "machine.kubelet", "dedicated_cores"),
    "distributed.Client",
    *("io.containerd.nri.v1.nri", "kubeletconfig.experimental", "NCCL_TOPO_DUMP_FILE"),
    # fields of Kubernetes' objects, and a path in our JSON
    *("allocatedResourcesStatus", "sharedCounters", "workload.bindings"),
    *("tlsConfig", "caFile", "certFile", "keyFile", "managedResources"),
    # options of the kubelet, helm, kubectl and lstopo
    *("--root-dir", "--config-dir", "--set", "--address", "--no-io"),
    # a path that must be rejected
    "../../x.sock",
}


class Mention(NamedTuple):
    """A span of code in a text, and the file of the text."""

    file: Path
    text: str
    module_of: Path | None = None  #: the folder of source code that has a module of this name

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}: {self.text}"


class Link(NamedTuple):
    file: Path
    target: str  #: path, relative to the file
    anchor: str


def markdown_files() -> list[Path]:
    """Return the documents; those of other projects are in folders named vendor."""
    files = [*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))]
    return sorted(path for path in files if "vendor" not in path.parts)


def python_files() -> list[Path]:
    paths = [path for folder in CODE_FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path for path in paths if "wire" not in path.parts and path.stem not in {"mentions", "test_mentions"}]


@cache
def read(path: Path) -> str:
    return path.read_text("utf-8")


@cache
def parse(path: Path) -> ast.Module:
    stub = path.with_suffix(".pyi")
    return ast.parse(read(stub if stub.exists() else path))


def mentions_in_markdown(file: Path, text: str) -> Iterator[Mention]:
    """Return the spans of a document, and the commands in its code blocks, whose lines may end with a backslash."""
    blocks = re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    blocks += re.findall(r"(?:^    .*\n)+", prose, re.MULTILINE)
    if tested := re.search(r"^\| module \| tests \|\n(.*?)(\n\n|\Z)", prose, re.MULTILINE | re.DOTALL):
        folder = ROOT / "src" / "alignup" / file.parent.relative_to(ROOT / "tests")
        for cell in re.findall(r"^\|(.*?)\|", tested[1], re.MULTILINE):
            yield from (Mention(file, span, folder) for span in SPAN.findall(cell))
    for span in SPAN.findall(prose):
        yield Mention(file, span)
    for block in blocks:
        for line in re.sub(r"\s*\\\n\s*", " ", block).splitlines():
            if COMMAND.fullmatch(line.strip()) or PYTHON.fullmatch(line.strip()) or MAKE.match(line.strip()):
                yield Mention(file, re.split(r"  | [|&>]", line.strip())[0].strip())


def mentions_in_docstrings(file: Path, text: str) -> Iterator[Mention]:
    for docstring in [*DOCSTRING.findall(text), *ATTRIBUTE_COMMENT.findall(text)]:
        for span in re.findall(r"``([^`]+)``", docstring):
            yield Mention(file, re.sub(r"\s+", " ", span))
        for name in ROLE.findall(docstring):
            yield Mention(file, f":role:`{name}`")


def mentions_in_comments(file: Path, text: str) -> Iterator[Mention]:
    """Return the paths, modules and spans of code in the comments of a TOML file."""
    for comment in re.findall(r"(?:^|\s)#(.*)$", text, re.MULTILINE):
        for word in re.findall(r"[\w./*-]+[\w*/]", comment):
            if PATH.fullmatch(word) or FILE.fullmatch(word) or word.startswith("alignup."):
                yield Mention(file, word)
        for span in SPAN.findall(comment):
            yield Mention(file, span)


def links_in(file: Path, text: str) -> Iterator[Link]:
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)):
        if "://" not in target:
            yield Link(file, *target.partition("#")[::2])


def anchors(text: str) -> set[str]:
    """Return the anchors of the headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}


@cache
def command_options() -> dict[tuple[str, ...], frozenset[str]]:
    """Return the long options of each command, by its words after ``alignup``."""
    return {
        help_.words[1:]: frozenset(re.findall(r"--[\w-]+", " ".join(names for names, _ in help_.options)))
        for help_ in walk()
    }


@cache
def words() -> frozenset[str]:
    """Return the words of all code and data, without docstrings and comments."""
    texts = [COMMENT.sub("", DOCSTRING.sub("", read(path))) for path in python_files()]
    texts += [read(path) for folder in DATA_FOLDERS for name in DATA for path in (ROOT / folder).rglob(name)]
    texts += [read(ROOT / name) for name in ("Makefile", "pyproject.toml", "hatch_build.py")]
    return frozenset(word for text in texts for word in re.findall(r"\w+", text))


@cache
def modules() -> dict[str, Path]:
    """Return every module and package by its dotted name."""
    paths = {}
    for path in python_files():
        parts = path.relative_to(ROOT / "src" if path.is_relative_to(ROOT / "src") else ROOT).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return paths


def bound(statements: list[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    """Return the names that statements of a module or class bind, with the statement."""
    for statement in statements:
        match statement:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, statement
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                yield from ((alias.asname or alias.name, statement) for alias in aliases)
            case ast.If(body=inner):
                yield from bound(inner)
            case ast.Assign() | ast.AnnAssign():
                for node in ast.walk(statement):
                    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                        yield node.id, statement


@cache
def files_of_classes() -> dict[str, list[Path]]:
    paths: dict[str, list[Path]] = {}
    for path in modules().values():
        for name in re.findall(r"^class (\w+)", read(path), re.MULTILINE):
            paths.setdefault(name, []).append(path)
    return paths


def classes(name: str) -> list[ast.ClassDef]:
    nodes = [node for path in files_of_classes().get(name, []) for node in parse(path).body]
    return [node for node in nodes if isinstance(node, ast.ClassDef) and node.name == name]


def has_member(definition: ast.ClassDef, member: str) -> bool:
    """Return whether the class, or a class of ours that it inherits from, has the member; methods set some."""
    if any(name == member for name, _ in bound(definition.body)):
        return True
    attributes = [node for node in ast.walk(definition) if isinstance(node, ast.Attribute)]
    set_in_methods = {attribute.attr for attribute in attributes if isinstance(attribute.ctx, ast.Store)}
    bases = [base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "") for base in definition.bases]
    return member in set_in_methods or any(
        has_member(parent, member) for base in bases for parent in classes(base) if parent is not definition
    )


def class_has(name: str, member: str) -> bool:
    """Return whether the class *name*, or the class of objects usually called *name*, has the member."""
    title = name if name[0].isupper() else "".join(word.capitalize() for word in name.split("_"))
    return any(has_member(definition, member) for definition in classes(title))


def is_dotted_name(name: str) -> bool:
    """Return whether a module, its member, or a member of a class has this name; the first packages may be left out."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        prefix, rest = ".".join(parts[:length]), parts[length:]
        for module, path in modules().items():
            if module != prefix and not module.endswith(f".{prefix}"):
                continue
            statements = dict(bound(parse(path).body))
            if not rest or (rest[0] in statements and len(rest) == 1):
                return True
            if rest[0] in statements and class_has(rest[0], rest[1]):
                return True
    if class_has(parts[-2], parts[-1]) or class_has(parts[0], parts[1]):
        return True
    if parts[0] in sys.stdlib_module_names:
        with suppress(ImportError, AttributeError):
            return resolve_name(name) is not None
    return is_helm_value(parts)


def is_module_below(folder: Path, name: str) -> bool:
    pattern = PLACEHOLDER.sub("*", name)
    return (ROOT / name).exists() or any(folder.rglob(f"{pattern}.py")) or any(folder.rglob(f"{pattern}/"))


def is_name(mention: Mention, name: str) -> bool:
    """Return whether code has the name, in its own spelling or as a field of documents, or a metric has it."""
    if name.startswith("test_") and mention.file.name == "README.md":
        return is_file(mention, f"{name}.py")
    if mention.module_of:
        return is_module_below(mention.module_of, name)
    snake_case = re.sub(r"(?<=[a-z0-9])[A-Z]", lambda match: f"_{match[0].lower()}", name)
    return name in words() or snake_case in words() or name in metric_names() or PLACEHOLDER.search(name) is not None


@cache
def metric_names() -> frozenset[str]:
    """Return the names of all metrics, those of the kubelet with and without its prefix."""
    names = re.findall(r"^\| `(\w+)`", "\n".join(pages()["metrics.md"]), re.MULTILINE)
    return frozenset(names) | {name.removeprefix("kubelet_") for name in names}


@cache
def helm_values() -> dict[str, object]:
    values: dict[str, object] = yaml.safe_load(read(ROOT / "deploy/helm/alignup/values.yaml"))
    return values


def is_helm_value(parts: list[str]) -> bool:
    value: object = helm_values()
    for part in parts:
        if not isinstance(value, dict) or part not in value:
            return False
        value = value[part]
    return True


def is_path(mention: Mention, path: str) -> bool:
    """Return whether files have the path; placeholders and * stand for any name."""
    folder = mention.file.parent if path.startswith("..") else ROOT
    if PLACEHOLDER.search(path) or "*" in path:
        return any(folder.glob(PLACEHOLDER.sub("*", path)))
    return (folder / path).exists()


def is_file(mention: Mention, name: str) -> bool:
    """Return whether a file has this name: for a README of tests in its folder, for others anywhere.

    A README that names the folder of the kubelet's answers may mention its files, too.
    """
    folders = [ROOT / folder for folder in FOLDERS]
    if mention.file.name == "README.md" and mention.file.parent != ROOT:
        folders = [mention.file.parent]
        if "`../conformance`" in read(mention.file):
            folders.append(mention.file.parent / "../conformance")
    pattern = PLACEHOLDER.sub("*", name)
    return any(ROOT.glob(pattern)) or any(any(folder.rglob(pattern)) for folder in folders)


def wrong_words_of_command(line: str) -> list[str]:
    """Return the subcommand and the long options of an ``alignup`` command line that do not exist."""
    try:
        arguments = shlex.split(line, comments=True)
    except ValueError:  # a quoted text goes on in the next line
        arguments = line.split()
    path: tuple[str, ...] = ("cluster",) if arguments.pop(0) == "kubectl" and arguments.pop(0) else ()
    options = command_options()
    while arguments and (*path, arguments[0]) in options:
        path = (*path, arguments.pop(0))
    is_group = any(command[:-1] == path for command in options if command)
    if is_group and arguments and re.fullmatch(r"[a-z][a-z-]*", arguments[0]):
        return [arguments[0]]
    given = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return [word for word in given if (option := OPTION.fullmatch(word)) and option[1] not in options[path]]


@cache
def other_options() -> frozenset[str]:
    """Return the options that programs below ``alignup.testing`` and the tests themselves declare."""
    texts = [path.read_text("utf-8") for path in (ROOT / "src/alignup/testing").rglob("*.py")]
    texts += [(ROOT / name).read_text("utf-8") for name in ("tests/conftest.py", "examples/cluster_demo.py")]
    return frozenset(option for text in texts for option in re.findall(r'"(--[\w-]+)"', text))


@cache
def make_targets() -> frozenset[str]:
    return frozenset(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


def is_python_module(name: str, arguments: str) -> bool:
    if name == "bench":
        benchmarks = re.findall(r"(?:^| )([a-z_]+)\b", arguments)
        return all((ROOT / "bench" / f"bench_{benchmark}.py").exists() for benchmark in benchmarks)
    return name in modules() or name.partition(".")[0] in sys.stdlib_module_names or name == "pytest"


def is_wrong(mention: Mention) -> bool:
    """Return whether the mention has one of the spellings that are resolved, and does not resolve."""
    if match := ROLE.fullmatch(mention.text):
        return not (is_dotted_name(match[1]) if "." in match[1] else match[1] in words())
    return is_wrong_span(mention)


def is_wrong_span(mention: Mention) -> bool:
    text = mention.text.strip()
    if text in OTHERS or text.partition(" ")[0] in OTHERS:
        return False
    if match := COMMAND.fullmatch(text):
        return bool(wrong_words_of_command(match[1]))
    if match := PYTHON.fullmatch(text):
        return not is_python_module(match[1], match[2])
    if match := MAKE.match(text):
        return not set(match[1].split()) <= make_targets()
    if match := OPTION.fullmatch(text):
        all_options = frozenset().union(*command_options().values()) | other_options()
        return match[1] not in all_options
    if PATH.fullmatch(text):
        return not is_path(mention, text)
    if FILE.fullmatch(text):
        return not is_file(mention, text)
    if match := DOTTED.fullmatch(text):
        foreign = HOST_NAME.fullmatch(text) or DATA_FILE.fullmatch(text) or text.startswith(FIELDS) or text[1].isdigit()
        return not foreign and not is_dotted_name(match[1])
    if match := NAME.fullmatch(text):
        return not is_name(mention, match[1])
    return mention.module_of is not None and not is_module_below(mention.module_of, text)
