"""A kubelet's state files: what is wrong with each, what the kubelet does, and valid states to replace them.

With a repaired file, a kubelet with this configuration starts on this machine. A container keeps everything it holds or
loses all of it. With fewer CPUs or less memory than it requests, the kubelet would reject its pod at startup; with
none, it allocates again. An allocation without a competitor is kept; of two that conflict, the one of a running pod.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Generic, NamedTuple, TypeVar

from alignup.align import bits
from alignup.align.bits import CpuSet, NodeSet, quote
from alignup.align.cpus.options import CpuPolicy
from alignup.align.cpus.provider import CpuProvider
from alignup.align.errors import ParseError, StateError
from alignup.align.explain.defects import LATE_PLUGIN, TAINT_UNTIL_READY
from alignup.align.explain.sentences import format_quantity
from alignup.align.memory.ledger import Block, MemoryLedger
from alignup.align.memory.provider import MemoryPolicy
from alignup.align.reason_codes import (
    ALLOCATION_NOT_RESTORED,
    DEVICES_MISSING,
    HELD_BY_UNKNOWN_POD,
    LATE_DEVICE_PLUGIN,
    LEFTOVER_FILE,
    NOT_CHECKED,
    OUTDATED_STATE_FILE,
    STATE_FILE_REJECTED,
)
from alignup.align.settings import FeatureGates
from alignup.doctor.configuration import ManagerConfig
from alignup.doctor.findings import Area, Finding, Severity, error, format_cpus, note, ok, warning
from alignup.doctor.salvage import Salvage, SalvageSource, json_error, salvage, salvage_devices
from alignup.kubernetes.kubelet_files import state_files
from alignup.kubernetes.kubelet_files.state_files import (
    CPU_FILE,
    DEVICE_PATH,
    MEMORY_FILE,
    PODS_GATE,
    Contents,
    CpuState,
    DeviceEntry,
    DeviceState,
    MemoryState,
    StateFileFormat,
)
from alignup.picture.text_format import pluralize

Held = TypeVar("Held")
PodNames = Mapping[str, str]  #: running pods: uid → namespace/name

_FIX_CONFIGURATION = "fix the configuration first: the correct state depends on it"
_ONLY_NEW = "registerWithTaints does not do that: the kubelet taints only a Node object that it creates"
_ALLOCATED_AGAIN = "at startup the kubelet allocates again, or rejects the pod if it does not fit"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFiles:
    """The files of a kubelet's directory, by their path in it."""

    texts: Mapping[str, bytes] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)  #: file → why it cannot be read
    leftovers: tuple[str, ...] = ()  #: temporary files of interrupted writes
    directory: str = "/var/lib/kubelet"  #: for messages


@dataclass(frozen=True, slots=True)
class FileRepair:
    name: str  #: path in the directory
    before: bytes
    after: bytes
    done: tuple[str, ...]  #: sentences about what is kept and what is dropped


@dataclass(frozen=True, slots=True)
class StateCheck:
    findings: tuple[Finding, ...]
    repairs: tuple[FileRepair, ...] = ()


class DroppedEntry(NamedTuple):
    uid: str
    container: str  #: empty: the whole pod
    held: str
    reason: str
    blocks_start: bool = True  #: whether the kubelet does not start while it is in the file

    def holder(self, pods: PodNames) -> str:
        pod = format_pod(self.uid, pods)
        return f"{pod} container {self.container}" if self.container else pod


def format_pod(uid: str, pods: PodNames) -> str:
    return f"pod {pods.get(uid, uid)}"


def check_state(files: StateFiles, config: ManagerConfig, *, pods: PodNames | None = None) -> StateCheck:
    """Check what a kubelet does with *files*; *pods* are the running ones, which win conflicts."""
    findings: list[Finding] = []
    repairs: list[FileRepair] = []
    for name, check in {CPU_FILE: _check_cpus, MEMORY_FILE: _check_memory, DEVICE_PATH: _check_devices}.items():
        if name in files.texts:
            state_check = check(files.texts[name], f"{files.directory}/{name}", config, pods or {})
            findings += state_check.findings
            repairs += state_check.repairs
        elif name in files.unread:
            findings.append(warning(Area.STATE, f"cannot be checked: {files.unread[name]}", NOT_CHECKED, where=name))
        else:
            findings.append(ok(Area.STATE, "does not exist: the kubelet starts with an empty state", where=name))
    for name in files.leftovers:
        summary = "left over from an interrupted write; nothing reads it"
        findings.append(note(Area.STATE, summary, LEFTOVER_FILE, advice="delete it", where=name))
    return StateCheck(tuple(findings), tuple(repairs))


@dataclass(slots=True)
class _CheckedFile:
    """The file of the CPU manager or the memory manager."""

    format: StateFileFormat
    resource: str
    text: bytes
    policy: str | None  #: the configured one
    start: Callable[[bytes], None]  #: read the file as the kubelet does at startup; ``StateError``
    pods: PodNames
    salvaged: Salvage
    kubelet_error: str = ""  #: empty if the kubelet starts on the file
    dropped: Sequence[DroppedEntry] = ()
    differences: tuple[str, ...] = ()
    after: bytes | None = None  #: ``None``: cannot be repaired while the configuration is invalid

    def __post_init__(self) -> None:
        try:
            self.start(self.text)
        except StateError as failure:
            self.kubelet_error = str(failure)

    def set_repair(self, dropped_entries: Sequence[DroppedEntry], after: bytes) -> None:
        try:
            self.start(after)
        except StateError as failure:
            raise StateError(f"the kubelet would reject the repaired file: {failure}") from failure
        self.dropped = dropped_entries
        self.after = after

    @property
    def holders(self) -> set[str]:
        return {uid for uid, containers in (self.salvaged.contents["entries"] or {}).items() if containers}

    @property
    def repair(self) -> FileRepair | None:
        if self.after is None or not (self.kubelet_error or self.dropped or self.salvaged.copy_problem):
            return None
        actions = [f"restored from {self.salvaged.source}"]
        if uids := sorted(self.holders - {entry.uid for entry in self.dropped}):
            actions.append(f"kept: the {self.resource} of {', '.join(format_pod(uid, self.pods) for uid in uids)}")
        actions += [f"dropped: {entry.holder(self.pods)}, {entry.held}" for entry in self.dropped]
        if self.salvaged.source is SalvageSource.NOTHING:
            actions.append(f"all allocations of {self.resource} are lost; {_ALLOCATED_AGAIN}")
        return FileRepair(self.format.file_name, self.text, self.after, tuple(actions))

    def unusable(self, summary: str, *, kubelet_message: str) -> Finding:
        advice = _FIX_CONFIGURATION if self.after is None else f"a repair restores it from {self.salvaged.source}"
        name = self.format.file_name
        return error(
            Area.STATE, summary, STATE_FILE_REJECTED, kubelet_message=kubelet_message, advice=advice, where=name
        )

    def problems(self) -> Iterator[Finding]:
        """Yield each problem; the first one carries the kubelet's error."""
        policy, message, stored_policy = self.policy, self.kubelet_error, self.salvaged.contents["policyName"]
        for damage in self.salvaged.damage:
            yield self.unusable(f"{damage}; the kubelet does not start", kubelet_message=message)
            message = ""
        if policy is not None and stored_policy != policy and self.salvaged.source is not SalvageSource.NOTHING:
            has = f"policy {quote(stored_policy)}" if stored_policy else "no policy"
            summary = f"the file has {has}, but {quote(policy)} is configured; the kubelet does not start"
            yield self.unusable(summary, kubelet_message=message)
            return
        for difference in self.differences:
            yield self.unusable(difference, kubelet_message=message)
            message = ""
        for entry in self.dropped:
            summary = f"{entry.holder(self.pods)} holds {entry.held}: {entry.reason}"
            finding = error if entry.blocks_start else warning
            yield finding(
                Area.STATE,
                summary,
                ALLOCATION_NOT_RESTORED,
                kubelet_message=message if entry.blocks_start else "",
                advice=f"a repair drops it; {_ALLOCATED_AGAIN}",
                where=self.format.file_name,
            )
            message = "" if entry.blocks_start else message

    def to_check(self) -> StateCheck:
        repair, salvaged_file, name = self.repair, self.salvaged, self.format.file_name
        findings = list(self.problems())
        if self.kubelet_error and not any(finding.kubelet_message for finding in findings):
            summary = "the kubelet does not start on this file"
            findings.insert(0, self.unusable(summary, kubelet_message=self.kubelet_error))
        if salvaged_file.copy_problem:
            summary = f"{salvaged_file.copy_problem}; this kubelet ignores the copy, an older one would read it"
            findings.append(
                warning(Area.STATE, summary, OUTDATED_STATE_FILE, advice="a repair rewrites it", where=name)
            )
        newest = self.format.number
        if not self.kubelet_error and 0 < salvaged_file.version < newest:
            summary = (
                f"version {salvaged_file.version}, from an older kubelet: it is read, and rewritten as version {newest}"
            )
            findings.append(note(Area.STATE, summary, OUTDATED_STATE_FILE, where=name))
        unknown_uids = sorted((salvaged_file.contents["entries"] or {}).keys() - self.pods.keys())
        if self.pods and unknown_uids:
            summary = (
                f"held by {', '.join(unknown_uids)}, not among the given pods: the kubelet releases it once it runs"
            )
            findings.append(note(Area.STATE, summary, HELD_BY_UNKNOWN_POD, where=name))
        if not self.kubelet_error and not repair:
            contents = f"{self.resource} held by {pluralize(len(self.holders), 'pod')}"
            findings.append(ok(Area.STATE, f"policy {salvaged_file.contents['policyName']}, {contents}", where=name))
        return StateCheck(tuple(findings), (repair,) if repair else ())


def _check_cpus(text: bytes, path: str, config: ManagerConfig, pods: PodNames) -> StateCheck:
    gates, provider = config.gates, config.cpus

    def start(text: bytes) -> None:
        state = state_files.parse_cpu_state(text, configured_policy=config.cpu_policy, gates=gates, path=path)
        if provider and provider.policy is CpuPolicy.STATIC:
            provider.restore_ledger(state.default, state.entries, pod_held=state.pod_entries)

    format_ = state_files.CPU_FORMAT
    salvaged_file = salvage(format_, text, gates=gates)
    file = _CheckedFile(format_, "CPUs", text, config.cpu_policy, start, pods, salvaged_file)
    if provider:
        state, dropped_entries = repair_cpus(salvaged_file.contents, provider, gates=gates, pods=pods)
        file.set_repair(dropped_entries, state_files.dump_cpu_state(state, gates=gates))
        if provider.policy is CpuPolicy.STATIC and salvaged_file.contents["policyName"] == CpuPolicy.STATIC:
            file.differences = tuple(_cpu_differences(salvaged_file.contents, provider, gates=gates))
    return file.to_check()


def _check_memory(text: bytes, path: str, config: ManagerConfig, pods: PodNames) -> StateCheck:
    gates, idle, policy = config.gates, config.memory, config.memory_policy

    def start(text: bytes) -> None:
        state = state_files.parse_memory_state(text, configured_policy=policy, gates=gates, path=path)
        if idle is not None and policy == MemoryPolicy.STATIC:
            ledger = MemoryLedger(state.machine_state, state.entries, state.pod_entries)
            ledger.restored(idle, pod_level=config.pod_level)

    format_ = state_files.MEMORY_FORMAT
    salvaged_file = salvage(format_, text, gates=gates)
    file = _CheckedFile(format_, "memory", text, policy, start, pods, salvaged_file)
    if idle is not None and policy is not None:
        state, dropped_entries = repair_memory(salvaged_file.contents, idle, policy=policy, gates=gates, pods=pods)
        file.set_repair(dropped_entries, state_files.dump_memory_state(state, gates=gates))
        if file.kubelet_error and policy == MemoryPolicy.STATIC == salvaged_file.contents["policyName"]:
            file.differences = tuple(_memory_differences(salvaged_file.contents, state, dropped=bool(dropped_entries)))
    return file.to_check()


def _cpu_differences(contents: Contents, provider: CpuProvider, *, gates: FeatureGates) -> Iterator[str]:
    """Yield problems of the shared pool; ``repair_cpus`` checks the exclusive CPUs."""
    try:
        shared_cpus = bits.parse(contents["defaultCpuSet"])
    except ParseError as error:
        yield f"the list of shared CPUs {quote(contents['defaultCpuSet'])} is invalid ({error})"
        return
    if not shared_cpus and not contents["entries"]:
        return
    exclusive = bits.union((contents["podEntries"] or {}).values()) if gates.on(PODS_GATE) else 0
    for containers in (contents["entries"] or {}).values():
        for text in (containers or {}).values():
            with suppress(ParseError):
                exclusive |= bits.parse(text)
    strict = provider.options.strict_cpu_reservation
    if gone_cpus := shared_cpus & ~provider.view.all_cpus:
        yield f"{format_cpus(gone_cpus)} in the shared pool, but not on this machine, or offline"
    if strict and (clash := shared_cpus & provider.reserved):
        yield (
            f"{format_cpus(clash)} reserved, but in the shared pool: strict-cpu-reservation was off, or other CPUs "
            "were reserved, when the file was written"
        )
    if not strict and (missing_cpus := provider.reserved & ~shared_cpus & ~exclusive):
        yield (
            f"{format_cpus(missing_cpus)} reserved, but not in the shared pool: other CPUs were reserved when the file "
            "was written, or strict-cpu-reservation was on"
        )
    if both := shared_cpus & exclusive:
        yield f"{format_cpus(both)} in the shared pool and exclusive to a container"
    if other_cpus := provider.view.all_cpus & ~provider.reserved & ~(shared_cpus | exclusive):
        yield f"{format_cpus(other_cpus)} neither in the shared pool nor exclusive: new, formerly reserved, or lost"


def _memory_differences(contents: Contents, repaired_state: MemoryState, *, dropped: bool) -> Iterator[str]:
    """Yield problems of the machine state, apart from allocations that had to be *dropped*."""
    stored_tables: Mapping[int, Any] = contents["machineState"] or {}
    now = repaired_state.machine_state
    if not stored_tables:
        yield "memory is allocated, but the file has no machine state"
        return
    if gone_nodes := sorted(stored_tables.keys() - now.keys()):
        yield f"NUMA nodes {', '.join(map(str, gone_nodes))} no longer exist"
    if new := sorted(now.keys() - stored_tables.keys()):
        yield f"NUMA nodes {', '.join(map(str, new))} are new"
    differences = [
        f"NUMA node {id_}: {difference}"
        for id_ in sorted(stored_tables.keys() & now.keys())
        for difference in _table_differences((stored_tables[id_] or {}).get("memoryMap") or {}, now[id_].tables)
    ]
    yield from differences
    if not (differences or gone_nodes or new or dropped):
        yield "the allocations do not match the free memory in the file"


def _table_differences(stored_table: Mapping[str, Any], current_table: Mapping[str, Any]) -> Iterator[str]:
    for type_ in sorted(stored_table.keys() | current_table.keys()):
        old_table, table = stored_table.get(type_), current_table.get(type_)
        if old_table is None or table is None:
            yield f"{type_} is {'new' if old_table is None else 'gone'}"
            continue
        was = {name: format_quantity(old_table[name]) for name in old_table}
        total, reserved_size, allocatable = (format_quantity(amount) for amount in table[:3])
        times = "when the file was written, now"
        if was["total"] != total:
            yield f"{was['total']} of {type_} {times} {total}"
        if was["systemReserved"] != reserved_size:
            yield f"{was['systemReserved']} of {type_} was reserved {times} {reserved_size}"
        if (was["total"], was["systemReserved"]) == (total, reserved_size) and was["allocatable"] != allocatable:
            yield f"{was['allocatable']} of {type_} was allocatable {times} {allocatable}"


def _check_devices(text: bytes, path: str, config: ManagerConfig, pods: PodNames) -> StateCheck:
    """Check the device manager's file; a kubelet that cannot read it starts without it."""
    findings: list[Finding] = []
    actions: list[str] = []
    salvaged_file = False
    try:
        state = state_files.parse_device_state(text, path=path)
    except StateError:
        salvaged_file = True
        state, unread = salvage_devices(text)
        damage = json_error(text) or "the checksum does not match the contents, or a value has the wrong type"
        summary = f"{damage}; the kubelet starts without the file and forgets which container holds which devices"
        advice = f"a repair restores it from {SalvageSource.REST}"
        findings.append(warning(Area.STATE, summary, STATE_FILE_REJECTED, advice=advice, where=DEVICE_PATH))
        actions.append(f"restored from {SalvageSource.REST}")
        actions += [f"dropped: {unread} unreadable entries"] if unread else []
    state, dropped_entries = repair_devices(state, pods=pods)
    if uids := sorted({entry.uid for entry in state.entries}):
        actions.insert(salvaged_file, f"kept: the devices of {', '.join(format_pod(uid, pods) for uid in uids)}")
    for entry in dropped_entries:
        summary = f"{entry.holder(pods)} holds {entry.held}: {entry.reason}"
        findings.append(
            warning(Area.STATE, summary, ALLOCATION_NOT_RESTORED, advice="a repair drops it", where=DEVICE_PATH)
        )
        actions.append(f"dropped: {entry.holder(pods)}, {entry.held}")
    findings += _missing_devices(state, config, pods)
    if not findings:
        findings.append(ok(Area.STATE, f"devices held by {pluralize(len(uids), 'pod')}", where=DEVICE_PATH))
    if resources := sorted({entry.resource for entry in state.entries}):
        summary = f"pods hold devices of {', '.join(resources)}; a defect of the kubelet: {LATE_PLUGIN.sentence}"
        advice = f"{TAINT_UNTIL_READY}; {_ONLY_NEW}"
        findings.append(note(Area.STATE, summary, LATE_DEVICE_PLUGIN, advice=advice, where=DEVICE_PATH))
    new_text = state_files.dump_device_state(state)
    broken = any(finding.severity is Severity.WARNING for finding in findings)
    return StateCheck(tuple(findings), (FileRepair(DEVICE_PATH, text, new_text, tuple(actions)),) if broken else ())


def _missing_devices(state: DeviceState, config: ManagerConfig, pods: PodNames) -> Iterator[Finding]:
    """Yield allocated devices that were not healthy when the file was written, and more than the machine declares."""
    devices: dict[str, set[str]] = {}
    for entry in state.entries:
        devices.setdefault(entry.resource, set()).update(entry.nodes)
        if missing_ids := sorted(entry.nodes.keys() - set(state.registered.get(entry.resource) or ())):
            summary = (
                f"{format_pod(entry.uid, pods)} container {entry.container} holds {entry.resource} "
                f"{', '.join(missing_ids)}, which was not among the healthy devices"
            )
            yield note(Area.STATE, summary, DEVICES_MISSING, where=DEVICE_PATH)
    declared_counts = Counter(device.resource for device in config.devices)
    for resource, ids in sorted(devices.items()):
        if 0 < declared_counts[resource] < len(ids):
            summary = f"{len(ids)} devices of {resource} are held, but the machine has {declared_counts[resource]}"
            yield note(Area.STATE, summary, DEVICES_MISSING, where=DEVICE_PATH)


_Conflict = tuple[str, bool]  #: why an allocation cannot be kept, and whether the kubelet does not start with it


@dataclass(slots=True)
class _Kept(Generic[Held]):
    format: Callable[[Held], str]
    try_hold: Callable[[str, Held], _Conflict | None]  #: for the pod with this uid
    never_released: str  #: why a pod-level allocation without containers is dropped
    held: dict[str, dict[str, Held]] = field(default_factory=dict)
    pods: set[str] = field(default_factory=set)  #: with a pod-level allocation
    dropped: list[DroppedEntry] = field(default_factory=list)

    def keep(self, uid: str, containers: dict[str, Held], whole: Held | None) -> None:
        """Keep what fits; the pod-level allocation *whole* is kept or dropped together with all containers."""
        if whole is None:
            for name, allocation in containers.items():
                if conflict := self.try_hold(uid, allocation):
                    self.drop(uid, name, allocation, conflict)
                else:
                    self.held.setdefault(uid, {})[name] = allocation
            return
        conflict = self.try_hold(uid, whole) if containers else (self.never_released, False)
        if conflict:
            self.drop(uid, "", whole, conflict)
        else:
            self.held[uid] = containers
            self.pods.add(uid)

    def drop(self, uid: str, container: str, allocation: Held, conflict: _Conflict) -> None:
        self.dropped.append(DroppedEntry(uid, container, self.format(allocation), *conflict))


def _containers_by_pod(contents: Contents) -> dict[str, Mapping[str, Any]]:
    return {uid: containers or {} for uid, containers in (contents["entries"] or {}).items()}


def repair_cpus(
    contents: Contents, provider: CpuProvider, *, gates: FeatureGates, pods: PodNames
) -> tuple[CpuState, list[DroppedEntry]]:
    """Return the CPU manager's state as *provider* accepts it."""
    stored_containers = _containers_by_pod(contents)
    if provider.policy is CpuPolicy.NONE:
        dropped_entries = [
            DroppedEntry(uid, name, f"CPUs {text}", "policy none has no exclusive CPUs")
            for uid, containers in stored_containers.items()
            for name, text in containers.items()
        ]
        return CpuState(policy=CpuPolicy.NONE), dropped_entries
    owners: dict[str, CpuSet] = {}

    def try_hold(uid: str, cpus: CpuSet) -> _Conflict | None:
        if gone_cpus := cpus & ~provider.view.all_cpus:
            return f"the machine has no {format_cpus(gone_cpus)}", True
        if reserved_cpus := cpus & provider.reserved:
            return f"{format_cpus(reserved_cpus)} must stay reserved", True
        for other, other_cpus in owners.items():
            if other != uid and cpus & other_cpus:
                return f"{format_pod(other, pods)} holds {format_cpus(cpus & other_cpus)} too", False
        owners[uid] = owners.get(uid, 0) | cpus
        return None

    repair = _Kept(format_cpus, try_hold, "no container of the pod has any, so they would never be released")
    pod_wide: Mapping[str, CpuSet] = contents["podEntries"] or {} if gates.on(PODS_GATE) else {}
    for uid in sorted({**stored_containers, **pod_wide}, key=lambda uid: uid not in pods):
        containers = {}
        for name, text in stored_containers.get(uid, {}).items():
            try:
                containers[name] = bits.parse(text)
            except ParseError as error:
                reason = f"the list is invalid ({error})"
                repair.dropped.append(DroppedEntry(uid, name, f"CPUs {bits.quote(text)}", reason))
        repair.keep(uid, containers, pod_wide[uid] | bits.union(containers.values()) if uid in pod_wide else None)
    state = CpuState(
        policy=CpuPolicy.STATIC,
        default=_shared_cpus(repair, owners, provider),  # which may drop pods
        entries=repair.held,
        pod_entries={uid: cpus for uid, cpus in pod_wide.items() if uid in repair.pods},
        baselines=_baselines(contents, repair.held, provider.view.all_cpus)
        if gates.on(state_files.BASELINES_GATE)
        else {},
    )
    return state, repair.dropped


def _shared_cpus(repair: _Kept[CpuSet], owners: dict[str, CpuSet], provider: CpuProvider) -> CpuSet:
    """Return all other CPUs; drop pods until there are some."""
    all_cpus = provider.view.all_cpus
    if provider.options.strict_cpu_reservation:
        all_cpus &= ~provider.reserved
    while repair.held and not all_cpus & ~bits.union(owners.values()):
        uid = min(repair.held, key=lambda uid: (owners[uid].bit_count(), uid))
        reason = "the shared pool would be empty, and no kubelet starts on that; the pod gets the same CPUs again"
        repair.drop(uid, "", owners.pop(uid), (reason, True))
        repair.pods.discard(uid)
        del repair.held[uid]
    return all_cpus & ~bits.union(owners.values())


def _baselines(
    contents: Contents, holdings: Mapping[str, Mapping[str, CpuSet]], possible_cpus: CpuSet
) -> dict[str, dict[str, CpuSet]]:
    """Return what containers held before a resize, or what they hold now if the record makes no sense."""
    recorded_baselines: Mapping[str, Any] = contents["baselines"] or {}
    baselines: dict[str, dict[str, CpuSet]] = {}
    for uid, containers in holdings.items():
        for name, cpus in containers.items():
            recorded_cpus = (recorded_baselines.get(uid) or {}).get(name, 0)
            baselines.setdefault(uid, {})[name] = (
                cpus if not recorded_cpus or recorded_cpus & ~possible_cpus else recorded_cpus
            )
    return baselines


def repair_memory(
    contents: Contents, idle: MemoryLedger, *, policy: str, gates: FeatureGates, pods: PodNames
) -> tuple[MemoryState, list[DroppedEntry]]:
    """Return the memory manager's state that follows from *idle* and the allocations."""
    stored_blocks = {
        uid: {name: _blocks(blocks) for name, blocks in containers.items()}
        for uid, containers in _containers_by_pod(contents).items()
    }
    pod_entries = contents["podEntries"] or {} if gates.on(PODS_GATE) else {}
    pod_wide = {uid: _blocks((entry or {}).get("memoryBlocks")) for uid, entry in pod_entries.items()}
    if policy == MemoryPolicy.NONE:
        dropped_entries = [
            DroppedEntry(uid, name, _format_blocks(blocks), "policy None pins no memory")
            for uid, containers in stored_blocks.items()
            for name, blocks in containers.items()
        ]
        return MemoryState(policy=policy), dropped_entries
    ledger = idle

    def try_hold(_uid: str, blocks: tuple[Block, ...]) -> _Conflict | None:
        nonlocal ledger
        new_ledger = ledger
        for block in blocks:
            if conflict := _memory_conflict(new_ledger, block):
                return conflict
            new_ledger = new_ledger.give("", "", blocks=(block,))
        ledger = new_ledger
        return None

    def priority(uid: str) -> tuple[bool, int]:
        """Sort running pods first, then wide node groups, which have to be allocated first."""
        blocks = [*pod_wide.get(uid, ()), *chain.from_iterable(stored_blocks.get(uid, {}).values())]
        return uid not in pods, -max((block.nodes.bit_count() for block in blocks), default=0)

    repair = _Kept(_format_blocks, try_hold, "no container of the pod has any, so it would never be released")
    for uid in sorted({**stored_blocks, **pod_wide}, key=priority):
        repair.keep(uid, stored_blocks.get(uid, {}), pod_wide.get(uid))
    pod_entries = {uid: blocks for uid, blocks in pod_wide.items() if uid in repair.pods}
    charged_blocks = [*pod_entries.values()]
    charged_blocks += [
        blocks for uid, allocations in repair.held.items() if uid not in repair.pods for blocks in allocations.values()
    ]
    ledger_of_pods = idle
    for block in sorted(chain.from_iterable(charged_blocks), key=lambda block: -block.nodes.bit_count()):
        ledger_of_pods = ledger_of_pods.give("", "", blocks=(block,))  # groups first, as the kubelet checks it
    state = MemoryState(policy=policy, machine_state=ledger_of_pods.nodes, entries=repair.held, pod_entries=pod_entries)
    return state, repair.dropped


def _blocks(blocks: Iterable[Mapping[str, Any]] | None) -> tuple[Block, ...]:
    """Return the blocks of a file; impossible nodes become an empty set."""

    def nodes(ids: Sequence[int]) -> NodeSet:
        return bits.of(ids) if all(0 <= node < bits.MAX_MEMBER for node in ids) else 0

    return tuple(Block(nodes(block["numaAffinity"] or ()), block["type"], block["size"]) for block in blocks or ())


def _memory_conflict(ledger: MemoryLedger, block: Block) -> _Conflict | None:
    nodes = list(bits.members(block.nodes))
    if gone_nodes := [str(node) for node in nodes if node not in ledger.nodes]:
        return f"the machine has no NUMA node {', '.join(gone_nodes)}", True
    if not nodes:
        return "it is on no NUMA node", True
    if not any(block.type in ledger.nodes[node].tables for node in nodes):
        return f"{_format_nodes(block.nodes)} no longer has {block.type}", True
    if groups := {ledger.nodes[node].cells for node in nodes if ledger.nodes[node].assignments} - {block.nodes}:
        group = bits.show(groups.pop())
        return f"other pods hold NUMA nodes {group} as a group; a kubelet may or may not start on that", False
    room = ledger.free(block.nodes, block.type)
    if block.size > room:
        return f"only {format_quantity(room)} of {block.type} is left on {_format_nodes(block.nodes)}", True
    return None


def _format_blocks(blocks: tuple[Block, ...]) -> str:
    """``1Gi of memory on NUMA nodes 0-1``."""
    parts = [f"{format_quantity(block.size)} of {block.type} on {_format_nodes(block.nodes)}" for block in blocks]
    return " and ".join(parts) or "nothing"


def _format_nodes(nodes: NodeSet) -> str:
    return f"NUMA node{'s' * (nodes.bit_count() != 1)} {bits.show(nodes)}"


def repair_devices(state: DeviceState, *, pods: PodNames) -> tuple[DeviceState, list[DroppedEntry]]:
    """Return the device manager's state, without devices of two pods and incomplete entries."""
    owners: dict[tuple[str, str], str] = {}
    valid: list[DeviceEntry] = []
    dropped_entries = []
    for entry in sorted(state.entries, key=lambda entry: entry.uid not in pods):
        ids = sorted(entry.nodes)
        others = {owners.get((entry.resource, id_), entry.uid) for id_ in ids} - {entry.uid}
        if others:
            reason = f"{format_pod(min(others), pods)} holds it too"
        elif not entry.uid or not entry.container or not entry.resource or not ids:
            reason = "the entry lacks a pod, a container, a resource or devices"
        else:
            valid.append(entry)
            owners |= {(entry.resource, id_): entry.uid for id_ in ids}
            continue
        devices = f"{entry.resource} {', '.join(ids)}"
        dropped_entries.append(DroppedEntry(entry.uid, entry.container, devices, reason, blocks_start=False))
    identities = {id(entry) for entry in valid}
    entries = tuple(entry for entry in state.entries if id(entry) in identities)
    return DeviceState(entries=entries, registered=state.registered), dropped_entries
