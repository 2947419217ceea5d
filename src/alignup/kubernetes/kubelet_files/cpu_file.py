"""``cpu_manager_state``: the shared CPUs, and the exclusive CPUs of each container."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from alignup.align import bits
from alignup.align.bits import CpuSet, quote
from alignup.align.errors import ParseError
from alignup.align.settings import FeatureGates
from alignup.kubernetes.kubelet_files import checkpoint
from alignup.kubernetes.kubelet_files.checkpoint import CHECKSUM, PODS_GATE, Contents, OlderVersion, StateFileFormat
from alignup.kubernetes.kubelet_files.go_types import GoCpuSetEntry, GoField, GoMap, GoString, GoStruct

NAME = "cpu_manager_state"
VERSION = 4  #: the one that is written
BASELINES_GATE = "InPlacePodVerticalScalingExclusiveCPUs"

_TEXT = GoString()
_LISTS = GoMap("map[string]string", _TEXT, _TEXT)
_PLAIN = (
    GoField("policyName", "PolicyName", _TEXT),
    GoField("defaultCpuSet", "DefaultCPUSet", _TEXT),
    GoField("entries", "Entries", GoMap("map[string]map[string]string", _TEXT, _LISTS), omit_empty=True),
)
_POD = GoCpuSetEntry("state.PodEntry", "state.podEntryJSON", "cpuSet", "CPUSet")
_PODS = GoField("podEntries", "PodEntries", GoMap("state.PodCPUAssignments", _TEXT, _POD), omit_empty=True)
_BASELINE = GoCpuSetEntry("state.ContainerBaseline", "state.containerBaselineJSON", "baseline", "Baseline")
_BASELINES = GoField(
    "baselines",
    "Baselines",
    GoMap("state.ContainerBaselines", _TEXT, GoMap("map[string]state.ContainerBaseline", _TEXT, _BASELINE)),
    omit_empty=True,
)
_V3 = GoStruct("state.CPUManagerCheckpointV3", (*_PLAIN, _PODS, CHECKSUM))
_V2 = GoStruct("state.CPUManagerCheckpointV2", (*_PLAIN, CHECKSUM))

FORMAT = StateFileFormat(
    title="cpu manager",
    called="CPU manager",
    prefix="",
    number=VERSION,
    data=GoStruct("state.CPUManagerCheckpointData", (*_PLAIN, _PODS, _BASELINES)),
    name="state.CPUManagerCheckpoint",
    older=(
        OlderVersion(3, _V3, accepts_own_name=lambda _gates: True),
        OlderVersion(2, _V2, checksum_optional=True, accepts_own_name=lambda gates: not gates.on(PODS_GATE)),
    ),
)

CpuAssignments = Mapping[str, Mapping[str, CpuSet]]  #: pod uid → container → CPUs


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuState:
    policy: str
    default: CpuSet = 0  #: shared by all containers without exclusive CPUs
    entries: CpuAssignments = field(default_factory=dict)
    pod_entries: Mapping[str, CpuSet] = field(default_factory=dict)  #: pod uid → CPUs of the pod as a whole
    baselines: CpuAssignments = field(default_factory=dict)  #: CPUs of containers before they were resized
    version: int = field(default=VERSION, compare=False)  #: in which the file was written


def dump(state: CpuState, *, gates: FeatureGates) -> bytes:
    entries = {uid: {name: bits.show(cpus) for name, cpus in own.items()} for uid, own in state.entries.items()}
    return checkpoint.encode_state_file(
        FORMAT,
        {
            "policyName": state.policy,
            "defaultCpuSet": bits.show(state.default),
            "entries": entries,
            "podEntries": state.pod_entries if gates.on(PODS_GATE) else {},
            "baselines": state.baselines if gates.on(BASELINES_GATE) else {},
        },
    )


def _state(version: int, contents: Contents, gates: FeatureGates) -> CpuState:
    default = _cpus(contents["defaultCpuSet"], "default CPU set")
    entries = {
        uid: {
            name: _cpus(cpus, "cpuset", owner=f" for container {quote(name)} in pod {quote(uid)}")
            for name, cpus in (own or {}).items()
        }
        for uid, own in (contents["entries"] or {}).items()
    }
    baselines: CpuAssignments = {}
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


def _cpus(text: str, what: str, *, owner: str = "") -> CpuSet:
    try:
        return bits.parse(text)
    except ParseError as error:
        raise ParseError(f"could not parse {what} {quote(text)}{owner}: {error}") from None


parse = partial(checkpoint.parse_state_file, FORMAT, _state)
