"""The decoding, defaults and validation of a KubeletConfiguration, as in the kubelet; and writing one.

Validation has the kubelet's messages in its order. Only fields that affect alignment are checked. CPU and memory
manager policies, options, reservations and thresholds are not part of it: they fail later, where they are used.
"""

import difflib
import json
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, fields
from typing import Any

from alignup.align import bits
from alignup.align.bits import quote
from alignup.align.errors import ConfigurationError, DocumentError, FieldError, ParseError, Problem, ProblemKind
from alignup.align.memory import reserved_memory
from alignup.align.memory.reserved_memory import ReservedMemory
from alignup.align.release import NEWEST, Release
from alignup.align.settings import Policy, Scope
from alignup.kubernetes.configuration import feature_gates
from alignup.kubernetes.configuration.fields import (
    DEFAULT_EVICTION_HARD,
    FIELDS,
    KIND,
    USED_FIELDS,
    VERSION,
    Configuration,
    StartupStage,
    holds_text,
    read_fields,
)
from alignup.kubernetes.manifests import documents
from alignup.kubernetes.manifests.documents import ParsedDocument
from alignup.kubernetes.manifests.object_reader import ObjectReader

#: Fields whose default also replaces an empty string or 0.
_DEFAULT_IF_ZERO = [
    "topologyManagerPolicy",
    "topologyManagerScope",
    "cpuManagerPolicy",
    "memoryManagerPolicy",
    "maxPods",
]
#: Fields that :func:`alignment_fields` writes.
_ALIGNMENT_FIELDS = (
    *("topologyManagerPolicy", "topologyManagerScope", "topologyManagerPolicyOptions"),
    *("cpuManagerPolicy", "cpuManagerPolicyOptions", "memoryManagerPolicy", "reservedMemory", "reservedSystemCPUs"),
    *("systemReserved", "kubeReserved", "evictionHard", "maxPods", "podsPerCore", "featureGates"),
)
_NONE = "none"
_SYSTEM = ("system-reserved", "system-reserved-compressible")
_KUBE = ("kube-reserved", "kube-reserved-compressible")
_KNOWN = ("pods", *_SYSTEM, *_KUBE)
_OPTIONS = f"{', '.join(map(quote, _KNOWN))} or {quote(_NONE)}"
_ENFORCE = "enforceNodeAllocatable"
_ENFORCE_FLAG = f"{_ENFORCE} (--enforce-node-allocatable)"
_MAX_WARNINGS = 100  # of one sort
_MAX_NAME = 200  # characters


def read(text: str | bytes, *, name: str = "kubelet.yaml", release: Release = NEWEST) -> Configuration:
    """Return the configuration in *text*, with defaults; :class:`ConfigurationError` if the kubelet would reject it.

    Like the kubelet, read only the first of several YAML documents.
    """
    return read_document(first_document(text, name=name), name=name, release=release)


def read_document(document: ParsedDocument, *, name: str, release: Release = NEWEST) -> Configuration:
    """Like :func:`read`, for a document that is parsed already."""
    configuration = decode_document(document, name=name, release=release)
    invalid = dict.fromkeys((*_field_problems(configuration), *_enforcement_problems(configuration)))
    if configuration.reserved_system_cpus:
        invalid |= dict.fromkeys(_reserved_cpu_problems(configuration))
    memory = dict.fromkeys(reserved_memory.reservation_problems(configuration.reserved_memory))
    problems = [Problem(field, f"invalid configuration: {message}") for field, message in invalid]
    problems += [Problem("reservedMemory", message) for message in memory]
    if problems:
        raise ConfigurationError(problems, stage=StartupStage.VALIDATION, source=name)
    return configuration


def decode_document(document: ParsedDocument, *, name: str, release: Release = NEWEST) -> Configuration:
    """Like :func:`read_document`, without validation, which the kubelet leaves until drop-ins are merged."""
    top = ObjectReader.of(document.value)
    values = read_fields(top) if has_type(top) else {}
    if top.diagnostics.problems:
        raise ConfigurationError(top.diagnostics.problems, stage=StartupStage.LOAD, source=name)
    used_fields = {field: value for field, value in values.items() if field in USED_FIELDS}
    gates = used_fields.get("featureGates")
    if gates and (problems := feature_gates.problems(gates, release)):
        # Unknown gates are most often gates of another release.
        unknown_gates = [problem for problem in problems if problem.kind is ProblemKind.UNKNOWN_GATE]
        names = [problem.field.removeprefix("featureGates[").removesuffix("]") for problem in unknown_gates]
        advice = f"remove {', '.join(names)}: Kubernetes {release} has no such feature gate" if names else None
        raise ConfigurationError(problems, stage=StartupStage.DEFAULTING_PANIC, source=name, advice=advice)
    for field in _DEFAULT_IF_ZERO:
        if not used_fields.get(field, True):
            del used_fields[field]
    if "cpuManagerReconcilePeriod" in used_fields and not used_fields["cpuManagerReconcilePeriod"].nanoseconds:
        del used_fields["cpuManagerReconcilePeriod"]
    if used_fields.get("mergeDefaultEvictionSettings") and "evictionHard" in used_fields:
        used_fields["evictionHard"] = {**DEFAULT_EVICTION_HARD, **used_fields["evictionHard"]}
    warnings, unknown_fields = [], top.diagnostics.unknown
    for path in unknown_fields[:_MAX_WARNINGS]:
        field_name = path if len(path) <= _MAX_NAME else f"{path[:_MAX_NAME]}..."
        warnings.append(f"the kubelet ignores unknown field {quote(field_name)}{_field_hint(path)}")
    if (more := len(unknown_fields) - _MAX_WARNINGS) > 0:
        warnings.append(f"the kubelet ignores {more} more unknown fields")
    duplicates = document.repeated[:_MAX_WARNINGS]
    warnings += [f"line {key.line}: {key}" if document.lines else str(key) for key in duplicates]
    return Configuration(
        **{USED_FIELDS[field]: value for field, value in used_fields.items()},
        warnings=tuple(warnings),
        given=frozenset(values) - {"kind", "apiVersion"},
        source=name,
        release=release,
    )


def first_document(text: str | bytes, *, name: str, parts: tuple[ParsedDocument, ...] | None = None) -> ParsedDocument:
    """Return the document of *text* that the kubelet reads; :class:`ConfigurationError` if there is none.

    *parts* has the documents of the text, if it is parsed already.
    """
    if not text:
        message = f"kubelet config file {quote(name)} was empty"
        raise ConfigurationError([Problem("", message)], stage=StartupStage.LOAD, source=name)
    is_json = text.lstrip()[:1] in ("{", b"{")
    try:
        parts = _readable_documents(text) if parts is None else parts
        if is_json and not (len(parts) == 1 and parts[0].json and text.rstrip()[-1:] in ("}", b"}")):
            # The kubelet does not fall back to YAML.
            json.loads(text, parse_int=str, parse_float=str, parse_constant=documents.reject_constant)
    except (ParseError, ValueError) as error:
        if isinstance(error, DocumentError):
            kind = ProblemKind.OWN_LIMIT if error.own_limit else ProblemKind.OTHER
            problem = Problem("", error.message, kind, line=error.line)
        else:
            message = str(error) if isinstance(error, ParseError) else f"starts like JSON but is not: {error}"
            problem = Problem("", message)
        raise ConfigurationError([problem], stage=StartupStage.LOAD, source=name) from None
    if not parts or parts[0].number > 1:  # comments, white space, an empty first document
        excerpt = text if isinstance(text, str) else text.decode(errors="replace")
        message = f"Object 'Kind' is missing in {quote(excerpt[:_MAX_NAME])}; the file is empty, set kind: {KIND}"
        raise ConfigurationError([Problem("kind", message)], stage=StartupStage.LOAD, source=name)
    return parts[0]


def parse_override(change: str) -> tuple[str, str, object]:
    """Return the field, the key in it or an empty string, and the new value of ``FIELD=VALUE`` or ``FIELD.KEY=VALUE``.

    The value is YAML, except in fields that hold strings. ``FieldError`` if the field is unknown: the kubelet would
    ignore it.
    """
    path, equals, text = change.partition("=")
    if not equals or not path.strip("."):
        raise FieldError("no value; use an override like topologyManagerPolicy=restricted", field=change)
    field, _, key = path.partition(".")
    value: object = text
    if not holds_text(field):
        parts = documents.read(text)
        value = parts[0].value if parts else None
    top = ObjectReader.of({field: {key: value} if key else value})
    read_fields(top)
    if unknown_fields := top.diagnostics.unknown:
        field_name = quote(unknown_fields[0][:_MAX_NAME])
        raise FieldError(f"unknown field {field_name}{_field_hint(unknown_fields[0])}", field=change[:_MAX_NAME])
    return field, key, value


def alignment_fields(configuration: Configuration) -> dict[str, Any]:
    """Return the fields that affect alignment and differ from the kubelet's defaults, as a KubeletConfiguration.

    All feature gates are in it: with some, a kubelet of another release does not start.
    """
    document: dict[str, Any] = {"apiVersion": VERSION, "kind": KIND}
    defaults = {
        field.name: field.default_factory() if field.default_factory is not MISSING else field.default
        for field in fields(Configuration)
    }
    for name in _ALIGNMENT_FIELDS:
        value = getattr(configuration, USED_FIELDS[name])
        if value == defaults[USED_FIELDS[name]]:
            continue
        if name == "reservedMemory":
            value = reserved_memory_document(value)
        document[name] = dict(value) if isinstance(value, dict) else value
    return document


def reserved_memory_document(entries: Iterable[ReservedMemory]) -> list[dict[str, Any]]:
    return [
        {"numaNode": entry.node, "limits": {name: str(amount) for name, amount in entry.limits.items()}}
        for entry in entries
    ]


def has_type(top: ObjectReader) -> bool:
    """Return whether an object is a KubeletConfiguration of the right version; otherwise the problem is recorded."""
    kind, version = top.text("kind"), top.text("apiVersion")
    if top.diagnostics.problems:
        return False
    if not kind:
        top.error("kind", f"is missing: set kind: {KIND}")
    elif not version:
        top.error("apiVersion", f"is missing: set apiVersion: {VERSION}")
    elif (kind, version) != (KIND, VERSION):
        message = f"no kind {quote(kind)} is registered for version {quote(version)}; use {KIND} of {VERSION}"
        top.error("kind" if kind != KIND else "apiVersion", message)
    return not top.diagnostics.problems


def _readable_documents(text: str | bytes) -> tuple[ParsedDocument, ...]:
    """Return the documents of *text* up to the first that cannot be parsed."""
    try:
        return documents.read(text)
    except DocumentError as error:
        if error.document == 1:
            raise
        if isinstance(text, bytes):
            text = text.decode("utf-16" if text.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig")
        lines = text.splitlines(keepends=True)
        ends = [number for number, line in enumerate(lines[: error.line]) if line.startswith(("---", "..."))]
        if not ends:
            raise
        return _readable_documents("".join(lines[: ends[-1]]))


def _field_hint(path: str) -> str:
    """Return a known field with a similar name, as the end of a message; empty if there is none."""
    spellings = {field.lower(): field for field in FIELDS}
    close = [] if "." in path else difflib.get_close_matches(path[:_MAX_NAME].lower(), spellings, n=1, cutoff=0.7)
    return f"; did you mean {spellings[close[0]]}?" if close else ""


def _field_problems(configuration: Configuration) -> Iterator[tuple[str, str]]:
    for field, flag, number in (
        ("maxPods", "--max-pods", configuration.max_pods),
        ("podsPerCore", "--pods-per-core", configuration.pods_per_core),
    ):
        if number < 0:
            yield field, f"{field} ({flag}) {number} must not be a negative number"
    policy, scope = configuration.topology_manager_policy, configuration.topology_manager_scope
    if policy not in set(Policy):
        message = f"(--topology-manager-policy) {quote(policy)} must be one of: [{' '.join(map(quote, Policy))}]"
        yield "topologyManagerPolicy", f"topologyManagerPolicy {message}"
    if scope not in set(Scope):
        message = f"(--topology-manager-scope) {quote(scope)} must be one of: {', or '.join(map(quote, Scope))}"
        yield "topologyManagerScope", f"topologyManagerScope {message}"


def _enforcement_problems(configuration: Configuration) -> Iterator[tuple[str, str]]:
    enforced_levels = configuration.enforce_node_allocatable
    for pair in (_SYSTEM, _KUBE):
        if set(pair) <= set(enforced_levels):
            both = " and ".join(map(quote, pair))
            yield _ENFORCE, f"both {both} cannot be specified together in {_ENFORCE_FLAG}"
    for index, name in enumerate(enforced_levels):
        if name in enforced_levels[:index]:
            yield _ENFORCE, f"duplicated enforcements {quote(name)} in {_ENFORCE_FLAG}"
        elif name in _KNOWN:
            yield from _enforced(name, configuration)
        elif name != _NONE:
            yield _ENFORCE, f"option {quote(name)} specified for {_ENFORCE_FLAG}. Valid options are {_OPTIONS}"
        elif len(enforced_levels) > 1:
            message = f"may not contain additional enforcements when {quote(_NONE)} is specified"
            yield _ENFORCE, f"{_ENFORCE_FLAG} {message}"


def _enforced(name: str, configuration: Configuration) -> Iterator[tuple[str, str]]:
    for names, field, flag, cgroup in (
        (_SYSTEM, "systemReservedCgroup", "--system-reserved-cgroup", configuration.system_reserved_cgroup),
        (_KUBE, "kubeReservedCgroup", "--kube-reserved-cgroup", configuration.kube_reserved_cgroup),
    ):
        if name in names and not cgroup:
            either = " or ".join(map(quote, names))
            yield field, f"{field} ({flag}) must be specified when {either} included in {_ENFORCE_FLAG}"
    if not configuration.cgroups_per_qos:
        message = f"(--cgroups-per-qos) must be set to true when {quote(name)} contained in {_ENFORCE_FLAG}"
        yield "cgroupsPerQOS", f"cgroupsPerQOS {message}"


def _reserved_cpu_problems(configuration: Configuration) -> Iterator[tuple[str, str]]:
    field, cpus = "reservedSystemCPUs", configuration.reserved_system_cpus
    if configuration.system_reserved_cgroup or configuration.kube_reserved_cgroup:
        cgroups = "systemReservedCgroup (--system-reserved-cgroup) or kubeReservedCgroup (--kube-reserved-cgroup)"
        yield field, f"can't use {field} (--reserved-cpus) with {cgroups}"
    try:
        bits.parse_spans(cpus)
    except ParseError as error:
        yield field, f"unable to parse {field} (--reserved-cpus) {cpus}, error: {error}"
