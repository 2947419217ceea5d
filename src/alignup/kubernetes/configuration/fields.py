"""The fields of a KubeletConfiguration, version v1beta1: their types, and the defaults of those that Alignup uses.

The kubelet decodes its file as Go decodes JSON: strict about types, lenient about names. A string is not a number and
a number is not a string; ``null`` counts as absent, except for a duration. Unknown fields, also those in other
capitals, are ignored. The types of all fields are checked; only those that affect alignment are used.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Self

from alignup.align.bits import quote
from alignup.align.errors import ParseError
from alignup.align.memory.reserved_memory import ReservedMemory
from alignup.align.release import NEWEST, Release
from alignup.kubernetes.manifests.documents import NumberLiteral
from alignup.kubernetes.manifests.object_reader import ObjectReader, type_of

VERSION = "kubelet.config.k8s.io/v1beta1"
KIND = "KubeletConfiguration"

StringMap = Mapping[str, str]
FieldDecoder = Callable[[ObjectReader, str], Any]  #: returns a field's value, or records why it cannot

#: The feature gates of all releases with their dependencies, and the fields of plain types.
KUBELET_TABLES: Mapping[str, Any] = json.loads(Path(__file__).with_name("kubelet.json").read_text("utf-8"))

DEFAULT_EVICTION_HARD: StringMap = {
    "memory.available": "100Mi",
    "nodefs.available": "10%",
    "nodefs.inodesFree": "5%",
    "imagefs.available": "15%",
    "imagefs.inodesFree": "5%",
}


class StartupStage(StrEnum):
    """The steps of a kubelet's startup that can fail, in order."""

    LOAD = "load"
    DEFAULTING_PANIC = "defaulting_panic"
    VALIDATION = "validation"
    RESERVED_CPUS = "reserved_cpus"
    KUBE_RESERVED = "kube_reserved"
    SYSTEM_RESERVED = "system_reserved"
    EVICTION_HARD = "eviction_hard"
    TOPOLOGY_MANAGER = "topology_manager"
    CPU_MANAGER = "cpu_manager"
    MEMORY_MANAGER = "memory_manager"
    NODE_ALLOCATABLE = "node_allocatable"

    @property
    def failure(self) -> str:
        """What a kubelet does that fails here, in words."""
        if self is StartupStage.DEFAULTING_PANIC:
            return "the kubelet panics while it sets defaults"
        return f"the kubelet stops at {self.replace('_', ' ')}"


_SECOND = 1_000_000_000
_SMALL_UNITS = {"ns": 1, "us": 1_000, "µs": 1_000, "μs": 1_000, "ms": 1_000_000}
_UNITS = {**_SMALL_UNITS, "s": _SECOND, "m": 60 * _SECOND, "h": 3600 * _SECOND}
_LONGEST = (1 << 63) - 1
_PART = re.compile(r"([0-9]*)(?:\.([0-9]*))?([^0-9.]*)")


@dataclass(frozen=True, slots=True, order=True)
class Duration:
    """A duration, which prints as in Go: ``1m30s``."""

    nanoseconds: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``1h30m``, ``-1.5s``, ``100ms``; :class:`ParseError` has Go's message."""
        sign = -1 if text.startswith("-") else 1
        rest = text[1:] if text[:1] in {"-", "+"} else text
        if rest == "0":
            return cls(0)
        total = 0
        position = 0
        while position < len(rest) or not rest:
            match = _PART.match(rest, position)
            if match is None or not (match[1] or match[2]):
                raise ParseError(f"time: invalid duration {quote(text)}")
            whole, fraction, unit = match.groups("")
            if not unit:
                raise ParseError(f"time: missing unit in duration {quote(text)}")
            if unit not in _UNITS:
                raise ParseError(f"time: unknown unit {quote(unit)} in duration {quote(text)}")
            if len(whole.lstrip("0")) > 19:
                raise ParseError(f"time: invalid duration {quote(text)}")
            digits = fraction[:18]  # more digits make no difference
            total += int(whole or "0") * _UNITS[unit] + int(int(digits or "0") * (_UNITS[unit] / 10 ** len(digits)))
            position = match.end()
        if total > _LONGEST + (sign < 0):
            raise ParseError(f"time: invalid duration {quote(text)}")
        return cls(sign * total)

    def __str__(self) -> str:
        sign, rest = ("-", -self.nanoseconds) if self.nanoseconds < 0 else ("", self.nanoseconds)
        if 0 < rest < _SECOND:
            unit = "ns" if rest < 1_000 else "µs" if rest < 1_000_000 else "ms"
            return f"{sign}{_decimal(rest, _UNITS[unit])}{unit}"
        minutes, rest = divmod(rest, _UNITS["m"])
        hours, minutes = divmod(minutes, 60)
        shown = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
        return f"{sign}{shown}{_decimal(rest, _SECOND)}s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """A KubeletConfiguration with the kubelet's defaults, as far as it affects alignment."""

    topology_manager_policy: str = "none"
    topology_manager_scope: str = "container"
    topology_manager_policy_options: StringMap = field(default_factory=dict)
    cpu_manager_policy: str = "none"
    cpu_manager_policy_options: StringMap = field(default_factory=dict)
    cpu_manager_reconcile_period: Duration = Duration(10 * _SECOND)
    memory_manager_policy: str = "None"
    reserved_memory: tuple[ReservedMemory, ...] = ()
    reserved_system_cpus: str = ""
    system_reserved: StringMap = field(default_factory=dict)
    kube_reserved: StringMap = field(default_factory=dict)
    system_reserved_cgroup: str = ""
    kube_reserved_cgroup: str = ""
    enforce_node_allocatable: tuple[str, ...] = ("pods",)
    eviction_hard: StringMap = field(default_factory=lambda: DEFAULT_EVICTION_HARD)
    merge_default_eviction_settings: bool = False
    cgroups_per_qos: bool = True
    qos_reserved: StringMap = field(default_factory=dict)
    max_pods: int = 110
    pods_per_core: int = 0
    local_storage_capacity_isolation: bool = True
    feature_gates: Mapping[str, bool] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()  #: what the kubelet ignores: unknown fields, duplicate keys
    given: frozenset[str] = frozenset()  #: the fields that the file sets, under their names there
    source: str = field(default="", compare=False)  #: the name of the file, for messages
    release: Release = NEWEST  #: of the kubelet


_ATTRIBUTES = {field.name.replace("_", ""): field.name for field in fields(Configuration)}

_text = ObjectReader.text
_flag = ObjectReader.flag
_int32 = ObjectReader.integer
_int64 = partial(ObjectReader.integer, bits=64)
_strings = ObjectReader.strings
_map_of, _list_of = ObjectReader.map_of, ObjectReader.list_of


def read_fields(document: ObjectReader) -> dict[str, Any]:
    values = {}
    for name, value in document.fields.items():
        decode = FIELDS.get(name)
        if decode is None:
            document.diagnostics.unknown.append(name)
        elif value is not None or decode is _duration:
            values[name] = decode(document, name)
    return values


def holds_text(name: str) -> bool:
    """Return whether the values of a field, or of its keys, are strings; true if it is unknown."""
    return FIELDS.get(name, _text) in (_text, _texts, _duration, _nullable_duration)


def _number(owner: ObjectReader, name: str) -> None:
    value = owner.fields.get(name)
    if isinstance(value, bool) or not isinstance(value, NumberLiteral | int | float) or not math.isfinite(float(value)):
        owner.error(name, f"must be a 64-bit number, not {type_of(value)}")


def _duration(owner: ObjectReader, name: str) -> Duration:
    """Read a duration; ``null`` is the empty string, which is not a valid duration."""
    text = owner.text(name)
    if type(owner.fields.get(name)) in {str, type(None)}:
        try:
            return Duration.parse(text)
        except ParseError as error:
            owner.error(name, str(error))
    return Duration(0)


def _nullable_duration(owner: ObjectReader, name: str) -> Duration | None:
    return _duration(owner, name) if owner.has(name) else None


def _object(**fields: FieldDecoder) -> FieldDecoder:
    def read(owner: ObjectReader, name: str) -> dict[str, Any]:
        child = owner.child(name)
        owner.diagnostics.unknown.extend(child.path_of(inner) for inner in child.fields if inner not in fields)
        return {inner: decode(child, inner) for inner, decode in fields.items() if inner in child.fields}

    return read


def _reserved_memory(owner: ObjectReader, name: str) -> ReservedMemory:
    entry = _RESERVED_MEMORY(owner, name)
    return ReservedMemory(entry.get("numaNode") or 0, entry.get("limits") or {})


_texts = partial(_map_of, read=_text)
_RESERVED_MEMORY = _object(numaNode=_int32, limits=ObjectReader.quantities)
_X509, _ANONYMOUS = _object(clientCAFile=_text), _object(enabled=_flag)
_TAINT = _object(key=_text, value=_text, effect=_text, timeAdded=_text)
_SHUTDOWN_GRACE = _object(priority=_int32, shutdownGracePeriodSeconds=_int64)
_WEBHOOK = _object(cacheAuthorizedTTL=_duration, cacheUnauthorizedTTL=_duration)

_PLAIN_TYPES: Mapping[str, FieldDecoder] = {
    "string": _text,
    "bool": _flag,
    "int32": _int32,
    "int64": _int64,
    "number": _number,
    "duration": _duration,
    "nullableDuration": _nullable_duration,
    "stringMap": _texts,
    "stringList": _strings,
}
#: Every field → its decoder.
FIELDS: Mapping[str, FieldDecoder] = {
    **{name: decode for kind, decode in _PLAIN_TYPES.items() for name in KUBELET_TABLES["fields"][kind]},
    "tlsCurvePreferences": partial(_list_of, read=_int32),
    "featureGates": partial(_map_of, read=_flag),
    "staticPodURLHeader": partial(_map_of, read=_strings),
    "reservedMemory": partial(_list_of, read=_reserved_memory),
    "registerWithTaints": partial(_list_of, read=_TAINT),
    "shutdownGracePeriodByPodPriority": partial(_list_of, read=_SHUTDOWN_GRACE),
    "authentication": _object(x509=_X509, webhook=_object(enabled=_flag, cacheTTL=_duration), anonymous=_ANONYMOUS),
    "authorization": _object(mode=_text, webhook=_WEBHOOK),
    "memorySwap": _object(swapBehavior=_text),
    "crashLoopBackOff": _object(maxContainerRestartPeriod=_nullable_duration),
    "userNamespaces": _object(idsPerPod=_int64),
    "tracing": _object(endpoint=_text, samplingRatePerMillion=_int32),
    "logging": lambda owner, name: owner.fields[name],
}

#: The fields that are used → their attributes of :class:`Configuration`.
USED_FIELDS: Mapping[str, str] = {name: _ATTRIBUTES[name.lower()] for name in FIELDS if name.lower() in _ATTRIBUTES}


def _decimal(number: int, unit: int) -> str:
    """Format *number* / *unit* without trailing zeros."""
    whole, rest = divmod(number, unit)
    fraction = str(rest).zfill(len(str(unit)) - 1).rstrip("0")
    return f"{whole}.{fraction}" if rest else str(whole)
