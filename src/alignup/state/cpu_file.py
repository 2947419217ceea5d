"""``cpu_manager_state``: which CPUs are shared and which container owns which, as the kubelet keeps it in a file."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from alignup.align import bits
from alignup.align.bits import Cpus, quote
from alignup.align.errors import ParseError, StateError
from alignup.align.settings import FeatureGates
from alignup.state.checkpoint import CHECKSUM, Format, Older, check_policy, load, refusal, save
from alignup.state.go_types import CpuEntry, Field, MapOf, Struct, Text

NAME = "cpu_manager_state"
VERSION = 4  #: what is written now

PODS_GATE = "PodLevelResourceManagers"
BASELINES_GATE = "InPlacePodVerticalScalingExclusiveCPUs"

_TEXT = Text()
_LISTS = MapOf("map[string]string", _TEXT, _TEXT)
_PLAIN = (
    Field("policyName", "PolicyName", _TEXT),
    Field("defaultCpuSet", "DefaultCPUSet", _TEXT),
    Field("entries", "Entries", MapOf("map[string]map[string]string", _TEXT, _LISTS), omit_empty=True),
)
_POD = CpuEntry("state.PodEntry", "state.podEntryJSON", "cpuSet", "CPUSet")
_PODS = Field("podEntries", "PodEntries", MapOf("state.PodCPUAssignments", _TEXT, _POD), omit_empty=True)
_BASELINE = CpuEntry("state.ContainerBaseline", "state.containerBaselineJSON", "baseline", "Baseline")
_BASELINES = Field(
    "baselines",
    "Baselines",
    MapOf("state.ContainerBaselines", _TEXT, MapOf("map[string]state.ContainerBaseline", _TEXT, _BASELINE)),
    omit_empty=True,
)

FORMAT = Format(
    title="cpu manager",
    called="CPU manager",
    prefix="",
    number=VERSION,
    data=Struct("state.CPUManagerCheckpointData", (*_PLAIN, _PODS, _BASELINES)),
    name="state.CPUManagerCheckpoint",
    older=(
        Older(3, Struct("state.CPUManagerCheckpointV3", (*_PLAIN, _PODS, CHECKSUM)), own_name=True),
        Older(
            2,
            Struct("state.CPUManagerCheckpointV2", (*_PLAIN, CHECKSUM)),
            unchecked=True,
            own_name=True,
            own_name_gate=PODS_GATE,
        ),
    ),
)

Owned = Mapping[str, Mapping[str, Cpus]]  #: pod uid → container → its CPUs


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuState:
    """What a ``cpu_manager_state`` says."""

    policy: str
    default: Cpus = 0  #: shared by all containers that own none
    entries: Owned = field(default_factory=dict)
    pod_entries: Mapping[str, Cpus] = field(default_factory=dict)  #: pod uid → the CPUs it was given as one piece
    baselines: Owned = field(default_factory=dict)  #: what containers owned before they were resized
    version: int = field(default=VERSION, compare=False)  #: of the file it was read from


def parse(text: bytes, *, configured_policy: str | None, gates: FeatureGates, path: str) -> CpuState:
    """What the file at *path* says; a ``StateError`` with the kubelet's sentence where it would not start on it.

    The policy is not compared when *configured_policy* is ``None``. Pods as a whole and baselines count only where
    their gates are on.
    """
    try:
        loaded = load(FORMAT, text, gates=gates)
        if configured_policy is not None:
            check_policy(FORMAT, configured=configured_policy, stored=loaded.contents["policyName"])
        return _state(loaded.contents, gates, version=loaded.version)
    except (ParseError, StateError) as error:
        raise refusal(FORMAT, error, path) from None


def dump(state: CpuState, *, gates: FeatureGates) -> bytes:
    """The file that says *state*, byte for byte as the kubelet writes it."""
    return save(
        FORMAT,
        {
            "policyName": state.policy,
            "defaultCpuSet": bits.show(state.default),
            "entries": {
                uid: {name: bits.show(cpus) for name, cpus in own.items()} for uid, own in state.entries.items()
            },
            "podEntries": state.pod_entries if gates.on(PODS_GATE) else {},
            "baselines": state.baselines if gates.on(BASELINES_GATE) else {},
        },
    )


def _state(contents: dict[str, Any], gates: FeatureGates, *, version: int) -> CpuState:
    default = _cpus(contents["defaultCpuSet"], "default CPU set")
    entries = {
        uid: {
            name: _cpus(cpus, "cpuset", whose=f" for container {quote(name)} in pod {quote(uid)}")
            for name, cpus in (own or {}).items()
        }
        for uid, own in (contents["entries"] or {}).items()
    }
    baselines: Owned = {}
    if gates.on(BASELINES_GATE):
        baselines = {uid: own or {} for uid, own in (contents["baselines"] or {}).items()} or entries
    return CpuState(
        policy=contents["policyName"],
        default=default,
        entries=entries,
        pod_entries=(contents["podEntries"] or {}) if gates.on(PODS_GATE) else {},
        baselines=baselines,
        version=version,
    )


def _cpus(text: str, what: str, *, whose: str = "") -> Cpus:
    """A Linux list; the error says *what* it is, and *whose*."""
    try:
        return bits.parse(text)
    except ParseError as error:
        raise ParseError(f"could not parse {what} {quote(text)}{whose}: {error}") from None
