"""Loads a KubeletConfiguration file: decodes it, applies defaults and validates it, as the kubelet does.

Validation has the kubelet's messages in its order. Only fields that affect alignment are checked. CPU and memory
manager policies, options, reservations and thresholds are not part of it: they fail later, where they are used.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from alignup.align import bits
from alignup.align.bits import quote
from alignup.align.errors import ConfigurationError, DocumentError, ParseError, Problem
from alignup.align.memory import reserved_memory
from alignup.align.settings import Policy, Scope
from alignup.kubernetes.configuration import feature_gates
from alignup.kubernetes.configuration.fields import FIELDS, holds_text, read_fields, suggest_field
from alignup.kubernetes.configuration.model import DEFAULT_EVICTION_HARD, Configuration, StartupStage
from alignup.kubernetes.manifests import documents
from alignup.kubernetes.manifests.object_reader import ObjectReader
from alignup.kubernetes.manifests.yaml_documents import ParsedDocument

VERSION = "kubelet.config.k8s.io/v1beta1"
KIND = "KubeletConfiguration"

_ATTRIBUTES = {field.name.replace("_", ""): field.name for field in fields(Configuration)}
#: The fields that are used → their attributes of :class:`Configuration`.
USED_FIELDS: Mapping[str, str] = {name: _ATTRIBUTES[name.lower()] for name in FIELDS if name.lower() in _ATTRIBUTES}

#: Fields whose default also replaces an empty string or 0.
_DEFAULT_IF_ZERO = "topologyManagerPolicy topologyManagerScope cpuManagerPolicy memoryManagerPolicy maxPods"
_NONE = "none"
_SYSTEM = ("system-reserved", "system-reserved-compressible")
_KUBE = ("kube-reserved", "kube-reserved-compressible")
_KNOWN = ("pods", *_SYSTEM, *_KUBE)
_OPTIONS = f"{', '.join(map(quote, _KNOWN))} or {quote(_NONE)}"
_ENFORCE = "enforceNodeAllocatable"
_ENFORCE_FLAG = f"{_ENFORCE} (--enforce-node-allocatable)"
_MAX_WARNINGS = 100  # of one sort
_MAX_NAME = 200  # characters


def read(text: str | bytes, *, name: str = "kubelet.yaml") -> Configuration:
    """The configuration in *text*, with defaults; :class:`ConfigurationError` if the kubelet would reject it.

    Like the kubelet, read only the first of several YAML documents.
    """
    configuration = load(text, name=name)
    if problems := _validation_problems(configuration):
        raise ConfigurationError(problems, stage=StartupStage.VALIDATION, source=name)
    return configuration


def load(text: str | bytes, *, name: str) -> Configuration:
    """Like :func:`read`, without validation, which the kubelet leaves until drop-ins are merged."""
    document = first_document(text, name=name)
    top = ObjectReader.of(document.value)
    given = read_fields(top) if has_type(top) else {}
    if top.diagnostics.problems:
        raise ConfigurationError(top.diagnostics.problems, stage=StartupStage.LOAD, source=name)
    given = {field: one for field, one in given.items() if field not in {"kind", "apiVersion"}}
    if problems := feature_gates.problems(given.get("featureGates", {})):
        # Unknown gates were most often removed since.
        gates = [one.field[len("featureGates[") : -1] for one in problems if one.what.startswith("unrecognized")]
        advice = f"remove {', '.join(gates)}: Kubernetes 1.37 has no such feature gate" if gates else None
        raise ConfigurationError(problems, stage=StartupStage.DEFAULTING_PANIC, source=name, advice=advice)
    duplicates = document.repeated[:_MAX_WARNINGS]
    return Configuration(
        **_with_defaults(given),
        warnings=(
            *_unknown_fields(top.diagnostics.unknown),
            *(f"line {one.line}: {one}" if document.lines else str(one) for one in duplicates),
        ),
        given=frozenset(given),
        source=name,
    )


def first_document(text: str | bytes, *, name: str) -> ParsedDocument:
    """The document that the kubelet reads; :class:`ConfigurationError` if there is none."""
    if not text:
        what = f"kubelet config file {quote(name)} was empty"
        raise ConfigurationError([Problem("", what)], stage=StartupStage.LOAD, source=name)
    try:
        document = _first_document(text, is_json=text.lstrip()[:1] in ("{", b"{"))
    except (ParseError, ValueError) as error:
        what = str(error) if isinstance(error, ParseError) else f"starts like JSON but is not: {error}"
        raise ConfigurationError([Problem("", what)], stage=StartupStage.LOAD, source=name) from None
    if document is None:  # comments, white space, an empty first document
        shown = text if isinstance(text, str) else text.decode(errors="replace")
        what = f"Object 'Kind' is missing in {quote(shown[:_MAX_NAME])}; the file is empty, set kind: {KIND}"
        raise ConfigurationError([Problem("kind", what)], stage=StartupStage.LOAD, source=name)
    return document


def apply_overrides(text: bytes, changes: Sequence[str]) -> bytes:
    """The configuration as JSON, with ``FIELD=VALUE`` or ``FIELD.KEY=VALUE`` for each of *changes*.

    The value is YAML, except in fields that hold strings. ``ParseError`` if a field is unknown: the kubelet would
    ignore it.
    """
    overrides = [parse_override(change) for change in changes]
    found = documents.read(text)
    if not found or found[0].number > 1:
        return text  # empty, which the kubelet rejects
    document = dict(found[0].value) if isinstance(found[0].value, Mapping) else {}
    for field, key, new in overrides:
        inner = document.get(field)
        document[field] = {**(inner if isinstance(inner, Mapping) else {}), key: new} if key else new
    return documents.to_json(document).encode()


def parse_override(change: str) -> tuple[str, str, object]:
    """The field, the key in it or an empty string, and the new value of ``FIELD=VALUE`` or ``FIELD.KEY=VALUE``."""
    path, equals, text = change.partition("=")
    if not equals or not path.strip("."):
        raise ParseError(f"--set {change}: no value; use an override like topologyManagerPolicy=restricted")
    field, _, key = path.partition(".")
    value: object = text
    if not holds_text(field):
        parsed = documents.read(text)
        value = parsed[0].value if parsed else None
    top = ObjectReader.of({field: {key: value} if key else value})
    read_fields(top)
    if unknown := top.diagnostics.unknown:
        close = None if "." in unknown[0] else suggest_field(unknown[0][:_MAX_NAME])
        hint = f"; did you mean {close}?" if close else ""
        raise ParseError(f"--set {change[:_MAX_NAME]}: unknown field {quote(unknown[0][:_MAX_NAME])}{hint}")
    return field, key, value


def _first_document(text: str | bytes, *, is_json: bool) -> ParsedDocument | None:
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


def has_type(top: ObjectReader) -> bool:
    """Whether an object is a KubeletConfiguration of the right version; otherwise the problem is recorded."""
    kind, version = top.text("kind"), top.text("apiVersion")
    if top.diagnostics.problems:
        return False
    if not kind:
        top.error("kind", f"is missing: set kind: {KIND}")
    elif not version:
        top.error("apiVersion", f"is missing: set apiVersion: {VERSION}")
    elif (kind, version) != (KIND, VERSION):
        what = f"no kind {quote(kind)} is registered for version {quote(version)}; use {KIND} of {VERSION}"
        top.error("kind" if kind != KIND else "apiVersion", what)
    return not top.diagnostics.problems


def _with_defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a :class:`Configuration` that differ from its defaults."""
    used = {name: given[name] for name in USED_FIELDS if name in given}
    for name in _DEFAULT_IF_ZERO.split():
        if not used.get(name, True):
            del used[name]
    if "cpuManagerReconcilePeriod" in used and not used["cpuManagerReconcilePeriod"].nanoseconds:
        del used["cpuManagerReconcilePeriod"]
    if used.get("mergeDefaultEvictionSettings") and "evictionHard" in used:
        used["evictionHard"] = {**DEFAULT_EVICTION_HARD, **used["evictionHard"]}
    return {USED_FIELDS[name]: one for name, one in used.items()}


def _unknown_fields(paths: Sequence[str]) -> Iterator[str]:
    for path in paths[:_MAX_WARNINGS]:
        close = None if "." in path else suggest_field(path[:_MAX_NAME])
        hint = f"; did you mean {close}?" if close else ""
        name = path if len(path) <= _MAX_NAME else f"{path[:_MAX_NAME]}..."
        yield f"the kubelet ignores unknown field {quote(name)}{hint}"
    if len(paths) > _MAX_WARNINGS:
        yield f"the kubelet ignores {len(paths) - _MAX_WARNINGS} more unknown fields"


def _validation_problems(configuration: Configuration) -> tuple[Problem, ...]:
    checks = (_field_problems, _enforcement_problems, _reserved_cpus)
    found = dict.fromkeys(problem for check in checks for problem in check(configuration))
    memory = reserved_memory.reservation_problems(configuration.reserved_memory)
    return (
        *(Problem(field, f"invalid configuration: {what}") for field, what in found),
        *(Problem("reservedMemory", what) for what in dict.fromkeys(memory)),
    )


def _field_problems(configuration: Configuration) -> Iterator[tuple[str, str]]:
    for field, flag, number in (
        ("maxPods", "--max-pods", configuration.max_pods),
        ("podsPerCore", "--pods-per-core", configuration.pods_per_core),
    ):
        if number < 0:
            yield field, f"{field} ({flag}) {number} must not be a negative number"
    policy, scope = configuration.topology_manager_policy, configuration.topology_manager_scope
    if policy not in set(Policy):
        what = f"(--topology-manager-policy) {quote(policy)} must be one of: [{' '.join(map(quote, Policy))}]"
        yield "topologyManagerPolicy", f"topologyManagerPolicy {what}"
    if scope not in set(Scope):
        what = f"(--topology-manager-scope) {quote(scope)} must be one of: {', or '.join(map(quote, Scope))}"
        yield "topologyManagerScope", f"topologyManagerScope {what}"


def _enforcement_problems(configuration: Configuration) -> Iterator[tuple[str, str]]:
    chosen = configuration.enforce_node_allocatable
    for pair in (_SYSTEM, _KUBE):
        if set(pair) <= set(chosen):
            both = " and ".join(map(quote, pair))
            yield _ENFORCE, f"both {both} cannot be specified together in {_ENFORCE_FLAG}"
    for index, name in enumerate(chosen):
        if name in chosen[:index]:
            yield _ENFORCE, f"duplicated enforcements {quote(name)} in {_ENFORCE_FLAG}"
        elif name in _KNOWN:
            yield from _enforced(name, configuration)
        elif name != _NONE:
            yield _ENFORCE, f"option {quote(name)} specified for {_ENFORCE_FLAG}. Valid options are {_OPTIONS}"
        elif len(chosen) > 1:
            what = f"may not contain additional enforcements when {quote(_NONE)} is specified"
            yield _ENFORCE, f"{_ENFORCE_FLAG} {what}"


def _enforced(name: str, configuration: Configuration) -> Iterator[tuple[str, str]]:
    for names, field, flag, cgroup in (
        (_SYSTEM, "systemReservedCgroup", "--system-reserved-cgroup", configuration.system_reserved_cgroup),
        (_KUBE, "kubeReservedCgroup", "--kube-reserved-cgroup", configuration.kube_reserved_cgroup),
    ):
        if name in names and not cgroup:
            either = " or ".join(map(quote, names))
            yield field, f"{field} ({flag}) must be specified when {either} included in {_ENFORCE_FLAG}"
    if not configuration.cgroups_per_qos:
        what = f"(--cgroups-per-qos) must be set to true when {quote(name)} contained in {_ENFORCE_FLAG}"
        yield "cgroupsPerQOS", f"cgroupsPerQOS {what}"


def _reserved_cpus(configuration: Configuration) -> Iterator[tuple[str, str]]:
    field, cpus = "reservedSystemCPUs", configuration.reserved_system_cpus
    if not cpus:
        return
    if configuration.system_reserved_cgroup or configuration.kube_reserved_cgroup:
        cgroups = "systemReservedCgroup (--system-reserved-cgroup) or kubeReservedCgroup (--kube-reserved-cgroup)"
        yield field, f"can't use {field} (--reserved-cpus) with {cgroups}"
    try:
        bits.parse_spans(cpus)
    except ParseError as error:
        yield field, f"unable to parse {field} (--reserved-cpus) {cpus}, error: {error}"
