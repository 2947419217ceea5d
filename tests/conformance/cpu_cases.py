"""What the CPU vectors write, as our values, and back."""

from collections.abc import Mapping, Sequence
from typing import Any

from alignup.align import bits
from alignup.align.bits import CpuSet
from alignup.align.cpus.hints import CpuHints
from alignup.align.cpus.options import CpuOptions
from alignup.align.hint import HintList
from alignup.align.settings import FeatureGates

Json = Mapping[str, Any]


def options_of(names: Sequence[str]) -> CpuOptions:
    return CpuOptions(**{name.replace("-", "_"): True for name in names})


def gates_of(names: Sequence[str]) -> FeatureGates:
    return FeatureGates(dict.fromkeys(names, True))


def held_of(assignments: Json | None) -> dict[str, dict[str, CpuSet]]:
    return {uid: sets_of(containers) for uid, containers in (assignments or {}).items()}


def sets_of(lists: Mapping[str, str] | None) -> dict[str, CpuSet]:
    return {name: bits.parse(cpus) for name, cpus in (lists or {}).items()}


def listed(answer: CpuHints | None) -> list[list] | None:
    """An answer in the form of the vectors: [[nodes, preferred], …], or nothing at all."""
    if answer is None:
        return None
    spelled = answer if isinstance(answer, HintList) else HintList.of_family(answer)
    return [[list(bits.members(mask or 0)), preferred] for mask, preferred in spelled]
