"""Loads a KubeletConfiguration file: decodes it, applies defaults and validates it, as the kubelet does."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from alignup.align.bits import quote
from alignup.align.errors import ConfigurationError, DocumentError, ParseError, Problem
from alignup.kube import documents, feature_gates
from alignup.kube.configuration import validation
from alignup.kube.configuration.model import DEFAULT_EVICTION_HARD, Configuration, StartupStage
from alignup.kube.configuration.schema import FIELDS, holds_text, read_fields, suggest_field
from alignup.kube.object_reader import ObjectReader
from alignup.kube.yaml_documents import ParsedDocument

_VERSION = "kubelet.config.k8s.io/v1beta1"
_KIND = "KubeletConfiguration"

_ATTRIBUTES = {field.name.replace("_", ""): field.name for field in fields(Configuration)}
#: The fields that are used → their attributes of :class:`Configuration`.
_USED: Mapping[str, str] = {name: _ATTRIBUTES[name.lower()] for name in FIELDS if name.lower() in _ATTRIBUTES}

#: Fields whose default also replaces an empty string or 0.
_DEFAULT_IF_ZERO = """
    topologyManagerPolicy topologyManagerScope cpuManagerPolicy memoryManagerPolicy maxPods containerLogMaxSize
"""
_MAX_WARNINGS = 100  # of one sort
_MAX_NAME = 200  # characters


def read(text: str | bytes, *, name: str = "kubelet.yaml") -> Configuration:
    """The configuration in *text*, with defaults; :class:`ConfigurationError` if the kubelet would reject it.

    Like the kubelet, read only the first of several YAML documents.
    """
    is_json = text.lstrip()[:1] in ("{", b"{")
    try:
        document = _first_document(text, is_json=is_json)
    except (ParseError, ValueError) as error:
        what = str(error) if isinstance(error, ParseError) else f"starts like JSON but is not: {error}"
        raise ConfigurationError([Problem("", what)], stage=StartupStage.LOAD, source=name) from None
    top = ObjectReader.of(document.value if document else None)
    given = _typed_fields(top)
    if top.diagnostics.problems:
        raise ConfigurationError(top.diagnostics.problems, stage=StartupStage.LOAD, source=name)
    if problems := feature_gates.problems(given.get("featureGates", {})):
        # Unknown gates were most often removed since.
        gates = [one.field[len("featureGates[") : -1] for one in problems if one.what.startswith("unrecognized")]
        advice = f"remove {', '.join(gates)}: Kubernetes 1.37 has no such feature gate" if gates else None
        raise ConfigurationError(problems, stage=StartupStage.DEFAULTING_PANIC, source=name, advice=advice)
    duplicates = document.repeated[:_MAX_WARNINGS] if document else ()
    configuration = Configuration(
        **_with_defaults(given),
        warnings=(
            *_unknown_fields(top.diagnostics.unknown),
            *(str(one) if is_json else f"line {one.line}: {one}" for one in duplicates),
        ),
        given=frozenset(given),
        source=name,
    )
    if problems := validation.problems(configuration):
        raise ConfigurationError(problems, stage=StartupStage.VALIDATION, source=name)
    return configuration


def apply_overrides(text: bytes, changes: Sequence[str]) -> bytes:
    """The configuration as JSON, with ``FIELD=VALUE`` or ``FIELD.KEY=VALUE`` for each of *changes*.

    The value is YAML, except in fields that hold strings.
    """
    found = documents.read(text)
    value = found[0].value if found and found[0].number == 1 else {}
    document = dict(value) if isinstance(value, Mapping) else {}
    for change in changes:
        path, equals, new_value = change.partition("=")
        if not equals or not path.strip("."):
            raise ParseError(f"--set {change}: no value; use an override like topologyManagerPolicy=restricted")
        top, *rest = path.split(".", 1)
        new: object = new_value
        if not holds_text(top):
            parsed = documents.read(new_value)
            new = parsed[0].value if parsed else None
        if rest:
            inner = document.get(top)
            new = {**(inner if isinstance(inner, Mapping) else {}), rest[0]: new}
        document[top] = new
    return documents.to_json(document).encode()


def _first_document(text: str | bytes, *, is_json: bool) -> ParsedDocument | None:
    """The first document of *text*; ``None`` if it is empty."""
    if not text:
        raise ParseError("the file is empty")
    found = _readable_documents(text)
    if is_json:  # the kubelet does not fall back to YAML
        json.loads(text, parse_int=str, parse_float=str, parse_constant=documents.reject_constant)
    return found[0] if found and found[0].number == 1 else None


def _readable_documents(text: str | bytes) -> tuple[ParsedDocument, ...]:
    """The documents of *text* up to the first that cannot be parsed."""
    try:
        return documents.read(text)
    except DocumentError as error:
        if error.document == 1:
            raise
        if isinstance(text, bytes):
            text = text.decode("utf-16" if text.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig")
        lines = text.splitlines(keepends=True)
        ends = (number for number, line in enumerate(lines[: error.line]) if line.startswith(("---", "...")))
        return _readable_documents("".join(lines[: max(ends, default=0)]))


def _typed_fields(top: ObjectReader) -> dict[str, Any]:
    kind, version = top.text("kind"), top.text("apiVersion")
    if top.diagnostics.problems:
        return {}
    if not kind:
        top.error("kind", f"is missing: set kind: {_KIND}")
    elif not version:
        top.error("apiVersion", f"is missing: set apiVersion: {_VERSION}")
    elif (kind, version) != (_KIND, _VERSION):
        what = f"no kind {quote(kind)} is registered for version {quote(version)}; use {_KIND} of {_VERSION}"
        top.error("kind" if kind != _KIND else "apiVersion", what)
    else:
        return {name: one for name, one in read_fields(top).items() if name not in {"kind", "apiVersion"}}
    return {}


def _with_defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a :class:`Configuration` that differ from its defaults."""
    used = {name: given[name] for name in _USED if name in given}
    for name in _DEFAULT_IF_ZERO.split():
        if not used.get(name, True):
            del used[name]
    if "cpuManagerReconcilePeriod" in used and not used["cpuManagerReconcilePeriod"].nanoseconds:
        del used["cpuManagerReconcilePeriod"]
    if used.get("mergeDefaultEvictionSettings") and "evictionHard" in used:
        used["evictionHard"] = {**DEFAULT_EVICTION_HARD, **used["evictionHard"]}
    return {_USED[name]: one for name, one in used.items()}


def _unknown_fields(paths: Sequence[str]) -> Iterator[str]:
    for path in paths[:_MAX_WARNINGS]:
        close = None if "." in path else suggest_field(path[:_MAX_NAME])
        hint = f"; did you mean {close}?" if close else ""
        name = path if len(path) <= _MAX_NAME else f"{path[:_MAX_NAME]}..."
        yield f"the kubelet ignores unknown field {quote(name)}{hint}"
    if len(paths) > _MAX_WARNINGS:
        yield f"the kubelet ignores {len(paths) - _MAX_WARNINGS} more unknown fields"
