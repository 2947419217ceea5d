"""The chart, rendered as ``helm template`` does, for the few constructs of Go's templates that it uses.

They are: fields of ``.Values``, ``.Release``, ``.Chart`` and of the dot; ``.Files.Get``; ``if``, ``with``, ``range``
and ``end``; texts and numbers; pipelines; and the functions below. Anything else is an error. Where Helm is installed,
a test compares.
"""

import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import yaml

from tests.console_runner import ROOT
from tests.deploy.manifests import Manifest, read_documents

CHART = ROOT / "deploy" / "helm" / "alignup"

_ACTION = re.compile(r"(\s*)\{\{(-?)\s*(/\*.*?\*/|.*?)\s*(-?)\}\}(\s*)", re.DOTALL)
_WORD = re.compile(r'\s*(?:(\|)|"([^"\\]*)"|(\d+)|([$.][\w.]*)|(\w+))')

_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "default": lambda fallback, value: value or fallback,
    "eq": lambda first, second: first == second,
    "nindent": lambda spaces, text: "".join(f"\n{' ' * spaces}{line}" for line in text.splitlines()),
    "not": lambda value: not value,
    "replace": lambda old, new, text: text.replace(old, new),
    "quote": lambda value: '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"',
    "toYaml": lambda value: yaml.safe_dump(value, default_flow_style=False).removesuffix("\n"),
}


@dataclass(slots=True)
class _Block:
    """The content of an ``if``, ``with`` or ``range``, or the whole template."""

    keyword: str
    pipeline: str
    parts: "list[str | _Block]" = field(default_factory=list)  #: a block without parts and keyword is an expression


def render_chart(values: Mapping[str, Any] | None = None, *, namespace: str = "alignup") -> list[Manifest]:
    """Render all objects, those of ``crds/`` included; *values* replace defaults, maps are merged."""
    definitions = [
        document for path in sorted((CHART / "crds").glob("*.yaml")) for document in read_documents(path.read_text())
    ]
    texts = render_templates(values, namespace=namespace)
    return definitions + [
        document for name, text in texts.items() if name != "NOTES.txt" for document in read_documents(text)
    ]


def render_templates(values: Mapping[str, Any] | None = None, *, namespace: str = "alignup") -> dict[str, str]:
    """Render the templates; by path."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    root = {
        "Values": _merged(default_values(), values or {}),
        "Release": {"Name": "alignup", "Namespace": namespace},
        "Files": {"Get": lambda name: (CHART / name).read_text("utf-8")},
        "Chart": {name[:1].upper() + name[1:]: value for name, value in chart.items()},
    }
    templates = CHART / "templates"
    return {
        str(path.relative_to(templates)): render(path.read_text("utf-8"), root)
        for path in sorted(templates.rglob("*"))
        if path.is_file()
    }


def default_values() -> dict[str, Any]:
    (values,) = read_documents((CHART / "values.yaml").read_text("utf-8"))
    return values


def render(template: str, root: Mapping[str, Any]) -> str:
    return _render(_parse(template), root, root)


def _parse(template: str) -> _Block:
    stack = [_Block("", "")]
    position = 0
    for match in _ACTION.finditer(template):
        before, left, action, right, after = match.groups()
        stack[-1].parts.append(template[position : match.start()] + ("" if left else before))
        position = match.end() - (0 if right else len(after))
        keyword, _, rest = action.partition(" ")
        if keyword in {"if", "with", "range"}:
            stack.append(_Block(keyword, rest))
        elif action == "end":
            block = stack.pop()
            stack[-1].parts.append(block)
        elif not action.startswith("/*"):
            stack[-1].parts.append(_Block("", action))
    stack[-1].parts.append(template[position:])
    (whole,) = stack
    return whole


def _render(block: _Block, dot: Any, root: Mapping[str, Any]) -> str:
    return "".join(part if isinstance(part, str) else _render_block(part, dot, root) for part in block.parts)


def _render_block(block: _Block, dot: Any, root: Mapping[str, Any]) -> str:
    value = _evaluate(block.pipeline, dot, root)
    match block.keyword:
        case "if":
            return _render(block, dot, root) if value else ""
        case "with":
            return _render(block, value, root) if value else ""
        case "range":
            return "".join(_render(block, item, root) for item in value)
    assert isinstance(value, str | int), f"{block.pipeline} is {value!r}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _evaluate(pipeline: str, dot: Any, root: Mapping[str, Any]) -> Any:
    commands: list[list[Any]] = [[]]
    position = 0
    while position < len(pipeline):
        word = _WORD.match(pipeline, position)
        assert word, f"unknown construct: {pipeline[position:]}"
        position = word.end()
        bar, text, number, path, name = word.groups()
        if bar:
            commands.append([])
        elif name:
            assert not commands[-1], f"unknown construct: {pipeline}"
            commands[-1].append(_FUNCTIONS[name])
        else:
            commands[-1].append(int(number) if number else _field(path, dot, root) if path else text)
    result: list[Any] = []
    for first, *arguments in commands:
        result = [first(*arguments, *result)] if callable(first) else [first]
    return result[0]


def _field(path: str, dot: Any, root: Mapping[str, Any]) -> Any:
    value = root if path.startswith("$") else dot
    for name in path.strip("$.").split(".") if path.strip("$.") else ():
        value = value[name]
    return value


def _merged(default: Any, values: Any) -> Any:
    if not isinstance(default, dict) or not isinstance(values, Mapping):
        return deepcopy(values)
    return {**default, **{name: _merged(default.get(name), value) for name, value in values.items()}}
