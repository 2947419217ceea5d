"""What the CPU vectors write, as our values, and back."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from alignup.align import bits
from alignup.align.bits import CpuSet
from alignup.align.cpus.options import CpuOptions
from alignup.align.cpus.provider import CpuHints
from alignup.align.hint import HintList
from alignup.align.release import NEWEST, Release
from alignup.align.settings import FeatureGates
from alignup.align.workload import Pod, Resources
from tests.vector_types import list_of, pod_of

Json = Mapping[str, Any]

parse_cached = lru_cache(maxsize=4096)(bits.parse)


def options_of(names: Sequence[str]) -> CpuOptions:
    return CpuOptions(**{name.replace("-", "_"): True for name in names})


def seen_pod(case: Json, pod: Json) -> Pod:
    """The pod as the kubelet of a case sees it: without pod-level resources if that gate is off."""
    gates = FeatureGates(dict.fromkeys(case["gates"], True), case["release"])
    return (
        pod_of(pod) if gates.on("PodLevelResources") else replace(pod_of(pod), resources=Resources(), recorded_qos=None)
    )


def gates_of(names: Sequence[str], release: Release = NEWEST) -> FeatureGates:
    return FeatureGates(dict.fromkeys(names, True), release)


def held_of(assignments: Json | None) -> dict[str, dict[str, CpuSet]]:
    return {uid: sets_of(containers) for uid, containers in (assignments or {}).items()}


def sets_of(lists: Mapping[str, str] | None) -> dict[str, CpuSet]:
    return {name: parse_cached(cpus) for name, cpus in (lists or {}).items()}


def listed(answer: CpuHints | None) -> list[list] | None:
    """An answer in the form of the vectors: [[nodes, preferred], …], or nothing at all."""
    if answer is None:
        return None
    spelled = answer if isinstance(answer, HintList) else HintList.of_family(answer)
    return [[list_of(mask or 0), preferred] for mask, preferred in spelled]
