"""A kubelet's state files, ``/var/lib/kubelet`` or a copy of it: read as the kubelet does, and written byte for byte.

``cpu_manager_state``
    the shared CPUs, and the exclusive CPUs of each container
``memory_manager_state``
    the memory of each NUMA node, and the memory of each container
``device-plugins/kubelet_internal_checkpoint``
    the devices of each container, and the healthy devices

The newest version of the first two wraps its contents as JSON in a string, with a checksum of that string. A copy in
the format of the oldest version lets older kubelets read the file; it is ignored if the wrapped contents are usable,
even if it is damaged. Files of older kubelets are read too, newest version first.

The surprising rule: other checksums are not of the file but of a dump of Go structs with type names.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

from alignup import atomic_files
from alignup.align import bits
from alignup.align.bits import CpuSet, NodeSet, quote
from alignup.align.errors import FileError, ParseError, Problem, StateError
from alignup.align.memory.ledger import Block, MemoryTable, NodeMemory
from alignup.align.release import Release
from alignup.align.settings import FeatureGates
from alignup.kubernetes.kubelet_files.go_json import STRING, GoField, GoType, Kind, checksum_text, decode, encode

T = TypeVar("T")
Contents = dict[str, Any]  #: of a file, by the field names of its newest version

CPU_FILE = "cpu_manager_state"
MEMORY_FILE = "memory_manager_state"
PLUGINS_DIR = "device-plugins"
DEVICE_FILE = "kubelet_internal_checkpoint"
DEVICE_PATH = f"{PLUGINS_DIR}/{DEVICE_FILE}"

PODS_GATE = "PodLevelResourceManagers"
BASELINES_GATE = "InPlacePodVerticalScalingExclusiveCPUs"
CORRUPT = "checkpoint is corrupted"
NO_NODE = -1  #: the key of devices without topology
_HASHED_BYTES = 512  #: of a text whose checksum is computed at a time

_GO_NAMES = {
    "defaultCpuSet": "DefaultCPUSet",
    "total": "TotalMemSize",
    "numaAffinity": "NUMAAffinity",
    "cpuSet": "CPUSet",
}
_OMIT_EMPTY = {"entries", "podEntries", "baselines", "memoryBlocks", "limits", "requests"}


def go_struct(name: str, **types: GoType) -> GoType:
    """Return a struct; most fields have the same name in Go and in JSON, but for the first letter."""
    fields = [
        GoField(key, _GO_NAMES.get(key, f"{key[0].upper()}{key[1:]}"), type_, omit_empty=key in _OMIT_EMPTY)
        for key, type_ in types.items()
    ]
    return GoType(name, Kind.STRUCT, fields=tuple(fields))


CHECKSUM = GoType("checksum.Checksum", Kind.UINT)


class ChecksumError(ParseError):
    """A file of an older version whose checksum does not match."""


@dataclass(frozen=True, slots=True)
class OlderVersion:
    number: int
    struct: GoType
    #: whether a checksum that is 0 or missing is accepted
    checksum_optional: Callable[[Release], bool] = lambda _release: False
    #: whether a checksum with its own struct name is accepted besides one with the name that all versions share
    accepts_own_name: Callable[[FeatureGates], bool] = lambda _gates: False


@dataclass(frozen=True, slots=True)
class StateFileFormat:
    """The file of the CPU manager or the memory manager."""

    file_name: str
    title: str  #: the manager's name in its errors
    called: str  #: the manager's name in advice to delete the file
    prefix: str  #: of errors about the policy
    number: int  #: the newest version, which is written
    data: GoType  #: what is wrapped
    name: str  #: the type name of the newest version, and once of all versions
    older: tuple[OlderVersion, ...]  #: newest first
    first: GoType | None = None  #: the first version, which is not read any more

    @property
    def newest(self) -> GoType:
        """The whole file: the fields of the oldest version, and the wrapped contents."""
        struct = go_struct(self.name, data=STRING, dataChecksum=CHECKSUM)
        return replace(struct, fields=self.older[-1].struct.fields + struct.fields)

    def older_versions(self, gates: FeatureGates) -> tuple[OlderVersion, ...]:
        """Return the older versions that a kubelet reads, newest first; without a wrapper, the first is written."""
        with_pods = gates.release.stores_pods_as_whole and gates.on(PODS_GATE)
        return self.older if gates.release.wraps_state_files or with_pods else self.older[-1:]


def _parse_state_file(  # noqa: PLR0913 - the first two describe the file
    format_: StateFileFormat,
    build: Callable[[int, Contents, FeatureGates], T],
    text: bytes,
    *,
    configured_policy: str | None,
    gates: FeatureGates,
    path: str,
) -> T:
    """Decode the file at *path*; ``StateError`` with the kubelet's message if a kubelet would not start with it.

    The policy is not checked if *configured_policy* is ``None``. What needs a feature gate is ignored unless it is on.
    """
    try:
        version, contents = load_state_file(format_, text, gates=gates)
        check_policy(format_, configured_policy=configured_policy, stored_policy=contents["policyName"])
        return build(version, contents, gates)
    except (ParseError, StateError) as error:
        raise StateError(
            f"could not restore state from checkpoint: {error}, please drain this node and delete "
            f"the {format_.called} checkpoint file {quote(path)} before restarting Kubelet"
        ) from None


def load_state_file(format_: StateFileFormat, text: bytes, *, gates: FeatureGates) -> tuple[int, Contents]:
    """Return the version and the contents; ``ParseError`` with the kubelet's message if the kubelet would reject it."""
    if not gates.release.wraps_state_files:
        return _load_older(format_, text, gates)
    whole, error = decode(format_.newest, text, into=format_.newest.empty)
    contents: Contents = {}
    if error is not None:
        error = f"failed to deserialize {format_.title} checkpoint: {error}"
    else:
        contents, error = decode(format_.data, whole["data"].encode(), into=format_.data.empty)
        if error is not None:
            error = f"failed to deserialize {format_.title} checkpoint data: {error}"
        elif whole["dataChecksum"] != fnv1a(data_checksum_text(whole["data"])):
            error = CORRUPT
    if error is None:
        return format_.number, contents
    if whole["data"] or whole["dataChecksum"]:
        raise ParseError(f"could not load v{format_.number} checkpoint: {error}")
    return _load_older(format_, text, gates)


def _load_older(format_: StateFileFormat, text: bytes, gates: FeatureGates) -> tuple[int, Contents]:
    error = None
    for version in format_.older_versions(gates):
        # Releases that have one version only call it as all versions are called in checksums.
        name = version.struct.name if gates.release.stores_pods_as_whole else format_.name
        contents, error = decode(replace(version.struct, name=name), text, into=version.struct.empty)
        if error is None and _checksum_matches(format_, version, contents, gates):
            return version.number, format_.data.empty | contents
    if format_.first is not None and gates.release.reads_corrupt_cpus_as_v1:
        _, error = decode(format_.first, text, into=format_.first.empty, names_map_keys=True)
    raise ChecksumError(CORRUPT) if error is None else ParseError(error)


def _checksum_matches(format_: StateFileFormat, version: OlderVersion, contents: Contents, gates: FeatureGates) -> bool:
    checksum = contents["checksum"]
    if not checksum and version.checksum_optional(gates.release):
        return True
    names = [format_.name, version.struct.name] if version.accepts_own_name(gates) else [format_.name]
    return checksum in (fnv1a(struct_checksum_text(version.struct, contents, name=name)) for name in names)


def _encode_state_file(format_: StateFileFormat, contents: Contents, gates: FeatureGates) -> bytes:
    """Return a file as the kubelet of a release writes it."""
    if not gates.release.wraps_state_files:
        struct = format_.older_versions(gates)[0].struct
        checked_contents = {field.key: contents[field.key] for field in struct.fields if field.key != "checksum"}
        checksum = fnv1a(struct_checksum_text(struct, checked_contents, name=format_.name))
        return encode(struct, {**checked_contents, "checksum": checksum}).encode()
    data = encode(format_.data, contents)
    copy, checksum = copy_for_older_kubelets(format_, contents)
    document = {"data": data, "dataChecksum": fnv1a(data_checksum_text(data))}
    return encode(format_.newest, {**copy, "checksum": checksum, **document}).encode()


def copy_for_older_kubelets(format_: StateFileFormat, contents: Contents) -> tuple[Contents, int]:
    """Return the part of *contents* that the oldest version has, and its checksum."""
    oldest = format_.older[-1].struct
    copy = {field.key: contents[field.key] for field in oldest.fields if field.key != "checksum"}
    return copy, fnv1a(struct_checksum_text(oldest, copy, name=format_.name))


def check_policy(format_: StateFileFormat, *, configured_policy: str | None, stored_policy: str) -> None:
    """Reject a file that another policy wrote, as the kubelet does; ``None``: any policy may have written it."""
    if configured_policy not in (None, stored_policy):
        raise StateError(
            f"{format_.prefix}configured policy {quote(configured_policy or '')} differs from "
            f"state checkpoint policy {quote(stored_policy)}"
        )


def data_checksum_text(data: str) -> str:
    return f"(string){data}"


def struct_checksum_text(struct: GoType, contents: Contents, *, name: str) -> str:
    """Return the text of the checksum of an older version, whose Go type has this *name*."""
    return f"(*{name}){checksum_text(struct, {**contents, 'checksum': 0})}"


def fnv1a(text: str) -> int:
    """Return the checksum of *text* in the kubelet's state files: 32-bit FNV-1a."""
    data, value = text.encode(), 0x811C9DC5
    for begin in range(0, len(data), _HASHED_BYTES):
        value = _hash_on(value, data[begin : begin + _HASHED_BYTES])
    return value


@lru_cache(maxsize=256)  # a changed file often begins as before
def _hash_on(value: int, data: bytes) -> int:
    for byte in data:
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


# cpu_manager_state

_CPU_FIELDS = {
    "policyName": STRING,
    "defaultCpuSet": STRING,
    "entries": GoType("map[string]map[string]string", Kind.MAP, GoType("map[string]string", Kind.MAP, STRING)),
}
_POD_CPUS_JSON = GoField("cpuSet", "CPUSet", GoType("state.podEntryJSON", Kind.STRUCT))
_POD_CPUS = GoType("state.PodEntry", Kind.CPU_SET, fields=(_POD_CPUS_JSON,))
_CPU_PODS = GoType("state.PodCPUAssignments", Kind.MAP, _POD_CPUS)
_BASELINE_JSON = GoField("baseline", "Baseline", GoType("state.containerBaselineJSON", Kind.STRUCT))
_BASELINE = GoType("state.ContainerBaseline", Kind.CPU_SET, fields=(_BASELINE_JSON,))
_BASELINES = GoType(
    "state.ContainerBaselines", Kind.MAP, GoType("map[string]state.ContainerBaseline", Kind.MAP, _BASELINE)
)

CPU_FORMAT = StateFileFormat(
    file_name=CPU_FILE,
    title="cpu manager",
    called="CPU manager",
    prefix="",
    number=4,
    data=go_struct("state.CPUManagerCheckpointData", **_CPU_FIELDS, podEntries=_CPU_PODS, baselines=_BASELINES),
    name="state.CPUManagerCheckpoint",
    older=(
        OlderVersion(
            3,
            go_struct("state.CPUManagerCheckpointV3", **_CPU_FIELDS, podEntries=_CPU_PODS, checksum=CHECKSUM),
            accepts_own_name=lambda _gates: True,
        ),
        OlderVersion(
            2,
            go_struct("state.CPUManagerCheckpointV2", **_CPU_FIELDS, checksum=CHECKSUM),
            checksum_optional=lambda _release: True,
            accepts_own_name=lambda gates: not gates.on(PODS_GATE),
        ),
    ),
    first=go_struct(
        "state.CPUManagerCheckpointV1",
        **_CPU_FIELDS | {"entries": GoType("map[string]string", Kind.MAP, STRING)},
        checksum=CHECKSUM,
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
    version: int = field(default=CPU_FORMAT.number, compare=False)  #: in which the file was written


def dump_cpu_state(state: CpuState, *, gates: FeatureGates) -> bytes:
    entries = {
        uid: {name: bits.show(cpus) for name, cpus in containers.items()} for uid, containers in state.entries.items()
    }
    return _encode_state_file(
        CPU_FORMAT,
        {
            "policyName": state.policy,
            "defaultCpuSet": bits.show(state.default),
            "entries": entries,
            "podEntries": state.pod_entries if gates.on(PODS_GATE) else {},
            "baselines": state.baselines if gates.on(BASELINES_GATE) else {},
        },
        gates,
    )


def _cpu_state(version: int, contents: Contents, gates: FeatureGates) -> CpuState:
    kind = "default CPU set" if gates.release.wraps_state_files else "default cpu set"
    default = _parse_cpus(contents["defaultCpuSet"], kind)
    entries = {
        uid: {
            name: _parse_cpus(cpus, "cpuset", owner=f" for container {quote(name)} in pod {quote(uid)}")
            for name, cpus in (containers or {}).items()
        }
        for uid, containers in (contents["entries"] or {}).items()
    }
    baselines: CpuAssignments = {}
    if gates.on(BASELINES_GATE):
        baselines = {uid: containers or {} for uid, containers in (contents["baselines"] or {}).items()} or entries
    return CpuState(
        policy=contents["policyName"],
        default=default,
        entries=entries,
        pod_entries=(contents["podEntries"] or {}) if gates.on(PODS_GATE) else {},
        baselines=baselines,
        version=version,
    )


def _parse_cpus(text: str, kind: str, *, owner: str = "") -> CpuSet:
    try:
        return bits.parse(text)
    except ParseError as error:
        raise ParseError(f"could not parse {kind} {quote(text)}{owner}: {error}") from None


parse_cpu_state = partial(_parse_state_file, CPU_FORMAT, _cpu_state)


# memory_manager_state

_INT = GoType("int", Kind.INT)
_INTS = GoType("[]int", Kind.SLICE, _INT)
_SIZE = GoType("uint64", Kind.UINT)
_TABLE_KEYS = ("total", "systemReserved", "allocatable", "reserved", "free")
_TABLE = go_struct("state.MemoryTable", **dict.fromkeys(_TABLE_KEYS, _SIZE))
_TABLES = GoType("map[v1.ResourceName]*state.MemoryTable", Kind.POINTER_MAP, _TABLE)
_NODE = go_struct("state.NUMANodeState", numberOfAssignments=_INT, memoryMap=_TABLES, cells=_INTS)
_BLOCK = go_struct("state.Block", numaAffinity=_INTS, type=GoType("v1.ResourceName", Kind.STRING), size=_SIZE)
_BLOCKS = GoType("[]state.Block", Kind.SLICE, _BLOCK)
_MEMORY_FIELDS = {
    "policyName": STRING,
    "machineState": GoType("state.NUMANodeMap", Kind.POINTER_MAP, _NODE, _INT),
    "entries": GoType(
        "state.ContainerMemoryAssignments", Kind.MAP, GoType("map[string][]state.Block", Kind.MAP, _BLOCKS)
    ),
}
_MEMORY_PODS = GoType("state.PodMemoryAssignments", Kind.MAP, go_struct("state.PodEntry", memoryBlocks=_BLOCKS))

MEMORY_FORMAT = StateFileFormat(
    file_name=MEMORY_FILE,
    title="memory manager",
    called="memory manager",
    prefix="[memorymanager] ",
    number=3,
    data=go_struct("state.MemoryManagerCheckpointData", **_MEMORY_FIELDS, podEntries=_MEMORY_PODS),
    name="state.MemoryManagerCheckpoint",
    older=(
        OlderVersion(
            2,
            go_struct("state.MemoryManagerCheckpointV2", **_MEMORY_FIELDS, podEntries=_MEMORY_PODS, checksum=CHECKSUM),
        ),
        OlderVersion(
            1,
            go_struct("state.MemoryManagerCheckpointV1", **_MEMORY_FIELDS, checksum=CHECKSUM),
            checksum_optional=lambda release: release.accepts_memory_without_checksum,
        ),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryState:
    policy: str
    machine_state: Mapping[int, NodeMemory] = field(default_factory=dict)
    #: pod uid → container → blocks
    entries: Mapping[str, Mapping[str, tuple[Block, ...]]] = field(default_factory=dict)
    #: pod uid → blocks of the pod as a whole
    pod_entries: Mapping[str, tuple[Block, ...]] = field(default_factory=dict)
    version: int = field(default=MEMORY_FORMAT.number, compare=False)  #: in which the file was written


def dump_memory_state(state: MemoryState, *, gates: FeatureGates) -> bytes:
    def block_contents(blocks: Sequence[Block]) -> tuple[dict[str, Any], ...]:
        return tuple(
            {"numaAffinity": tuple(bits.members(nodes)), "type": type_, "size": size} for nodes, type_, size in blocks
        )

    nodes = {
        id_: {
            "numberOfAssignments": node.assignments,
            "memoryMap": {type_: dict(zip(_TABLE_KEYS, table, strict=True)) for type_, table in node.tables.items()},
            "cells": tuple(bits.members(node.cells)),
        }
        for id_, node in state.machine_state.items()
    }
    entries = {
        uid: {name: block_contents(blocks) for name, blocks in containers.items()}
        for uid, containers in state.entries.items()
    }
    pods = state.pod_entries if gates.on(PODS_GATE) else {}
    return _encode_state_file(
        MEMORY_FORMAT,
        {
            "policyName": state.policy,
            "machineState": nodes,
            "entries": entries,
            "podEntries": {uid: {"memoryBlocks": block_contents(blocks)} for uid, blocks in pods.items()},
        },
        gates,
    )


def _memory_state(version: int, contents: Contents, gates: FeatureGates) -> MemoryState:
    machine = contents["machineState"] or {}
    for id_, node in machine.items():
        if node is None or None in (node["memoryMap"] or {}).values():  # with which the kubelet crashes
            raise StateError(f"NUMA node {id_}, or one of its memory types, is null")
    pods = (contents["podEntries"] or {}) if gates.on(PODS_GATE) else {}
    return MemoryState(
        policy=contents["policyName"],
        machine_state={
            id_: NodeMemory(
                _node_set(machine[id_]["cells"]),
                machine[id_]["numberOfAssignments"],
                {type_: MemoryTable(*table.values()) for type_, table in (machine[id_]["memoryMap"] or {}).items()},
            )
            for id_ in sorted(machine)
        },
        entries={
            uid: {name: _blocks(blocks) for name, blocks in (containers or {}).items()}
            for uid, containers in (contents["entries"] or {}).items()
        },
        pod_entries={uid: _blocks(pod["memoryBlocks"]) for uid, pod in pods.items()},
        version=version,
    )


def _blocks(blocks: Sequence[dict[str, Any]] | None) -> tuple[Block, ...]:
    return tuple(Block(_node_set(block["numaAffinity"]), block["type"], block["size"]) for block in blocks or ())


def _node_set(ids: Sequence[int] | None) -> NodeSet:
    for id_ in ids or ():
        if not 0 <= id_ < bits.MAX_MEMBER:
            raise StateError(f"{id_} is not a NUMA node")
    return bits.of(ids or ())


parse_memory_state = partial(_parse_state_file, MEMORY_FORMAT, _memory_state)


# kubelet_internal_checkpoint


_IDS = GoType("[]string", Kind.SLICE, STRING)
_DEVICE_ENTRY = go_struct(
    "checkpoint.PodDevicesEntry",
    PodUID=STRING,
    ContainerName=STRING,
    ResourceName=STRING,
    DeviceIDs=GoType("checkpoint.DevicesPerNUMA", Kind.MAP, _IDS, GoType("int64", Kind.INT)),
    AllocResp=GoType("[]uint8", Kind.BYTES),
)
_DEVICE_DATA = go_struct(
    "checkpoint.checkpointData",
    PodDeviceEntries=GoType("[]checkpoint.PodDevicesEntry", Kind.SLICE, _DEVICE_ENTRY),
    RegisteredDevices=GoType("map[string][]string", Kind.MAP, _IDS),
)
_DEVICE_STRUCT = go_struct("checkpoint.Data", Data=_DEVICE_DATA, Checksum=CHECKSUM)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceEntry:
    """The devices of one resource in one container."""

    uid: str
    container: str
    resource: str
    devices: Mapping[int, tuple[str, ...]]  #: NUMA node → ids; a device on two nodes is listed under both
    response: bytes = b""  #: the plugin's ``ContainerAllocateResponse``

    @property
    def nodes(self) -> dict[str, frozenset[int]]:
        """Each id → its NUMA nodes; empty for a device without topology."""
        nodes_by_id: dict[str, frozenset[int]] = {}
        for node, ids in self.devices.items():
            for id_ in ids:
                nodes_by_id[id_] = nodes_by_id.get(id_, frozenset()) | ({node} - {NO_NODE})
        return nodes_by_id


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState:
    entries: tuple[DeviceEntry, ...] = ()
    #: resource → ids of healthy devices; ``None`` if the file has null instead of a list
    registered: Mapping[str, tuple[str, ...] | None] = field(default_factory=dict)


def parse_device_state(text: bytes, *, path: str) -> DeviceState:
    """Decode the file at *path*; ``StateError`` if a kubelet would continue without it and forget all holdings."""
    file, error = decode(_DEVICE_STRUCT, text)
    data = file["Data"]
    if error is None and file["Checksum"] != fnv1a(device_checksum_text(data)):
        error = CORRUPT
    if error is not None:
        raise StateError(
            f"could not read the device manager checkpoint file {quote(path)}: {error}; "
            "a kubelet continues without it and forgets which container holds which devices"
        )
    entries = tuple(
        DeviceEntry(
            uid=entry["PodUID"],
            container=entry["ContainerName"],
            resource=entry["ResourceName"],
            devices={node: ids or () for node, ids in (entry["DeviceIDs"] or {}).items()},
            response=entry["AllocResp"] or b"",
        )
        for entry in data["PodDeviceEntries"] or ()
    )
    return DeviceState(entries=entries, registered=data["RegisteredDevices"] or {})


def dump_device_state(state: DeviceState) -> bytes:
    data = device_contents(state)
    return encode(_DEVICE_STRUCT, {"Data": data, "Checksum": fnv1a(device_checksum_text(data))}).encode()


def device_checksum_text(data: Contents) -> str:
    return f"({_DEVICE_DATA.name}){checksum_text(_DEVICE_DATA, data)}"


def device_contents(state: DeviceState) -> Contents:
    """Return the contents as a kubelet has them: no entries are nil, not an empty list."""
    entries = tuple(
        {
            "PodUID": entry.uid,
            "ContainerName": entry.container,
            "ResourceName": entry.resource,
            "DeviceIDs": entry.devices,
            "AllocResp": entry.response,
        }
        for entry in state.entries
    )
    return {"PodDeviceEntries": entries or None, "RegisteredDevices": state.registered}


# The directory

KnownFiles = dict[Path, tuple[bytes, Any]]  #: the last contents of each file, and the same decoded


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletFiles:
    """The contents of the three files about resources; ``None`` if a file is missing or unusable."""

    cpu: CpuState | None = None
    memory: MemoryState | None = None
    devices: DeviceState | None = None
    problems: tuple[Problem, ...] = ()  #: with the path of the file as field
    gaps: tuple[str, ...] = ()  #: what is unknown, one sentence each


def state_file_paths(directory: Path) -> dict[str, Path]:
    """Return the paths of the three files about resources, by their path in a kubelet's directory.

    A copy may have all of them in one directory.
    """
    nested_path, flat_path = directory / DEVICE_PATH, directory / DEVICE_FILE
    return {
        CPU_FILE: directory / CPU_FILE,
        MEMORY_FILE: directory / MEMORY_FILE,
        DEVICE_PATH: flat_path if flat_path.exists() and not nested_path.exists() else nested_path,
    }


def read_state_files(
    directory: Path,
    *,
    gates: FeatureGates,
    devices_optional: bool = False,
    cache: KnownFiles | None = None,
) -> KubeletFiles:
    """Read the three files about resources; a missing file is a gap, and an unusable one a problem, not an error.

    With *devices_optional* a missing file of devices is not a gap. Files whose contents are in *cache* are not decoded
    again.
    ``FileError`` if the directory does not exist or has none of the files.
    """
    if not directory.is_dir():
        raise FileError(f"{directory}: no such directory; name the state directory of a kubelet")
    states: dict[str, Any] = {}
    problems, gaps, missing_count = [], [], 0
    kinds: tuple[tuple[str, Any, str], ...] = (
        ("cpu", partial(parse_cpu_state, configured_policy=None, gates=gates), "the CPUs in use are"),
        ("memory", partial(parse_memory_state, configured_policy=None, gates=gates), "the memory in use is"),
        ("devices", parse_device_state, "the devices are"),
    )
    for (kind, parse, content), path in zip(kinds, state_file_paths(directory).values(), strict=True):
        try:
            text = atomic_files.read(path)
            if text is not None:
                states[kind] = decode_once(parse, text, path, cache)
                continue
            missing_count += 1
            if kind != "devices" or not devices_optional:
                gaps.append(f"{directory} has no {path.name}, so {content} unknown")
        except (FileError, StateError) as error:
            problems.append(Problem(str(path), str(error)))
    if missing_count == len(kinds):
        names = f"{CPU_FILE}, {MEMORY_FILE}, {DEVICE_PATH}"
        raise FileError(f"{directory}: none of the kubelet's state files exists ({names})")
    return KubeletFiles(**states, problems=tuple(problems), gaps=tuple(gaps))


def decode_once(parse: Callable[..., T], text: bytes, path: Path, cache: KnownFiles | None) -> T:
    """Return what *parse* makes of the text of a file, or the entry of *cache* with the same text."""
    entry = cache.get(path) if cache else None
    if entry is not None and entry[0] == text:
        state: T = entry[1]
        return state
    state = parse(text, path=str(path))
    if cache is not None:
        cache[path] = text, state
    return state


def write_state_files(directory: Path, files: KubeletFiles, *, gates: FeatureGates) -> tuple[Path, ...]:
    """Write the states that are not ``None`` as a kubelet with these *gates* does; return the paths.

    No kubelet may use *directory* meanwhile: it would overwrite the files.
    """
    texts: dict[Path, bytes] = {}
    if files.cpu is not None:
        texts[directory / CPU_FILE] = dump_cpu_state(files.cpu, gates=gates)
    if files.memory is not None:
        texts[directory / MEMORY_FILE] = dump_memory_state(files.memory, gates=gates)
    if files.devices is not None:
        texts[directory / DEVICE_PATH] = dump_device_state(files.devices)
    for path, text in texts.items():
        atomic_files.make_directory(path.parent)
        atomic_files.write(path, text)
    return tuple(texts)
