"""Label and field selectors."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from alignup.testing.api_server.problems import StatusProblem

Matches = Callable[[Mapping[str, Any]], bool]

_SET = re.compile(r"\s*(?P<key>[^\s!=,()]+)\s+(?P<not>not)?in\s*\((?P<values>[^)]*)\)\s*")
_EQUALITY = re.compile(r"\s*(?P<key>[^\s!=,()]+)\s*(?P<operator>==|!=|=)\s*(?P<value>[^\s,()]*)\s*")
_EXISTENCE = re.compile(r"\s*(?P<not>!)?\s*(?P<key>[^\s!=,()]+)\s*")


def selector(labels: str, fields: str) -> Matches:
    """Return whether an object matches both selectors; :class:`StatusProblem` if one is malformed."""
    by_label = [_requirement(text, sets=True) for text in _parts(labels)]
    by_field = [_requirement(text, sets=False) for text in _parts(fields)]

    def matches(obj: Mapping[str, Any]) -> bool:
        own = obj["metadata"].get("labels") or {}
        return all(test(own.get(key)) for key, test in by_label) and all(
            test(str(_field(obj, key))) for key, test in by_field
        )

    return matches


def _parts(text: str) -> list[str]:
    """Split at commas outside of parentheses."""
    return [part for part in re.split(r",(?![^(]*\))", text) if part.strip()]


def _requirement(text: str, *, sets: bool) -> tuple[str, Callable[[str | None], bool]]:
    if sets and (found := _SET.fullmatch(text)):
        values = {value.strip() for value in found["values"].split(",")}
        return found["key"], lambda value: (value in values) is not bool(found["not"])
    if found := _EQUALITY.fullmatch(text):
        wanted, equal = found["value"], found["operator"] != "!="
        return found["key"], lambda value: (value == wanted) is equal
    if sets and (found := _EXISTENCE.fullmatch(text)):
        return found["key"], lambda value: (value is None) is bool(found["not"])
    raise StatusProblem(400, f"unable to parse requirement: {text.strip()}")


def _field(obj: Mapping[str, Any], path: str) -> object:
    """The value at a path such as ``spec.nodeName``; empty if it is absent. Servers know only some paths."""
    value: Any = obj
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return "" if value is None else value
