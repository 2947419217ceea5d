"""A KubeletConfiguration with the kubelet's defaults."""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from alignup.align.bits import quote
from alignup.align.errors import ParseError
from alignup.align.memory.reserved_memory import ReservedMemory

StringMap = Mapping[str, str]

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


_SECOND = 1_000_000_000
_SMALL_UNITS = {"ns": 1, "us": 1_000, "µs": 1_000, "μs": 1_000, "ms": 1_000_000}
_UNITS = {**_SMALL_UNITS, "s": _SECOND, "m": 60 * _SECOND, "h": 3600 * _SECOND}
_LONGEST = (1 << 63) - 1
_PART = re.compile(r"([0-9]*)(?:\.([0-9]*))?([^0-9.]*)")


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Duration:
    """Prints as in Go: ``1m30s``."""

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


def _decimal(number: int, unit: int) -> str:
    """*number* / *unit* without trailing zeros."""
    whole, rest = divmod(number, unit)
    fraction = str(rest).zfill(len(str(unit)) - 1).rstrip("0")
    return f"{whole}.{fraction}" if rest else str(whole)
