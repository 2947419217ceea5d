"""Likely mistakes in manifests, and what is probably meant: misspelled and misplaced fields, templates."""

import json
import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path

#: Type → field → the type of its value or of the elements of its list, empty if it has arbitrary or no fields;
#: tools/manifest_fields.py writes it.
FIELDS: Mapping[str, Mapping[str, str]] = json.loads(Path(__file__).with_name("fields.json").read_text("utf-8"))
TypePath = tuple[tuple[str, str], ...]  # types of objects, from the outside in, each with the path to it
UnknownField = tuple[TypePath, str]  # where it is, and its name

_MAX_SEARCHED = 100  # objects in which a misplaced field is searched
_GO_TEMPLATE = re.compile(
    rb"\{\{-?\s*(?:[.$(\"]|/\*|end\b|else\b|(?:if|with|range|define|include|template|block|toYaml)\s)"
)
_HELM = re.compile(rb"\.Values\b|\.Release\b|\.Chart\b|\binclude\s")
_RESOURCE_NAME = re.compile(r"(cpu|memory|ephemeral-storage)$|hugepages-|[^/]+\.[^/]+/")
CHART, KUSTOMIZATIONS = "Chart.yaml", ("kustomization.yaml", "kustomization.yml")
_PLAIN_KEY = re.compile(r"[A-Za-z]+")


def describe_unknown(unknown_field: UnknownField) -> tuple[str, str]:
    """Return the path of a field that does not exist, and what is probably meant."""
    types, name = unknown_field
    type_, path = types[-1]
    inside: list[str] = []
    level = {"": type_}  # path → type of the objects below, one level at a time
    while level and len(inside) != 1 and len(level) < _MAX_SEARCHED:
        fields = {
            join_path(above, field): (field, below)
            for above, of in level.items()
            for field, below in FIELDS[of].items()
        }
        inside = [field for field, (last, _) in fields.items() if last.lower() == name.lower()]
        level = {field: below for field, (_, below) in fields.items() if below}
    equal, similar = (get_close_matches(name, FIELDS[type_], n=1, cutoff=cutoff) for cutoff in (0.85, 0.7))
    outside = [join_path(above, name) for of, above in reversed(types[:-1]) if name in FIELDS[of]]
    if "limits" in FIELDS[type_] and _RESOURCE_NAME.match(name):
        outside = [join_path("limits", name)]
    candidates = equal or (inside if len(inside) == 1 else []) or similar or outside
    return join_path(path, name), f"unknown field; did you mean {candidates[0]}?" if candidates else "unknown field"


def describe_template(text: str | bytes) -> str:
    """Return what to do with *text* if it is a template of a manifest; else an empty text."""
    content = text.encode() if isinstance(text, str) else text
    if not _GO_TEMPLATE.search(content):
        return ""
    if _HELM.search(content):
        return "this is a Helm template; try helm template CHART | alignup why -f -"
    return "this is a Go template, not a manifest; render it first"


def join_path(path: str, key: str) -> str:
    """Return the path of field *key* in the object at *path*."""
    if not _PLAIN_KEY.fullmatch(key):
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else key
