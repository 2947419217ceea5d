"""Check a kubelet's state files: what is wrong with each, what the kubelet does, and how to repair it."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from alignup.align import bits
from alignup.align.bits import quote
from alignup.align.cpus.options import CpuPolicy
from alignup.align.cpus.provider import CpuProvider
from alignup.align.errors import ParseError, StateError
from alignup.align.explain.sentences import format_quantity
from alignup.align.memory.ledger import MemoryLedger
from alignup.align.memory.provider import MemoryPolicy
from alignup.align.settings import FeatureGates
from alignup.doctor.configuration import ManagerConfig
from alignup.doctor.findings import Area, Finding, error, format_cpus, note, ok, warning
from alignup.doctor.repair import DroppedEntry, PodNames, format_pod, repair_cpus, repair_devices, repair_memory
from alignup.doctor.salvage import Salvage, SalvageSource, json_error, salvage, salvage_devices
from alignup.kubernetes.kubelet_files import state_files
from alignup.kubernetes.kubelet_files.state_files import DEVICE_PATH, PODS_GATE, MemoryState
from alignup.picture.text_format import pluralize

_FIX_CONFIGURATION = "fix the configuration first: the correct state depends on it"
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


def check_state(files: StateFiles, config: ManagerConfig, *, pods: PodNames | None = None) -> StateCheck:
    """What a kubelet does with *files*; *pods* are the running ones, which win conflicts."""
    findings: list[Finding] = []
    repairs: list[FileRepair] = []
    checks = {state_files.CPU_FILE: _check_cpus, state_files.MEMORY_FILE: _check_memory, DEVICE_PATH: _check_devices}
    for name, check in checks.items():
        if name in files.texts:
            checked = check(files.texts[name], f"{files.directory}/{name}", config, pods or {})
            findings += checked.findings
            repairs += checked.repairs
        elif name in files.unread:
            findings.append(warning(Area.STATE, f"cannot be checked: {files.unread[name]}", where=name))
        else:
            findings.append(ok(Area.STATE, "does not exist: the kubelet starts with an empty state", where=name))
    for name in files.leftovers:
        summary = "left over from an interrupted write; nothing reads it"
        findings.append(note(Area.STATE, summary, advice="delete it", where=name))
    return StateCheck(tuple(findings), tuple(repairs))


@dataclass(slots=True)
class _CheckedFile:
    name: str
    resource: str
    newest: int  #: the newest version
    text: bytes
    policy: str | None  #: the configured one
    start: Callable[[bytes], None]  #: read the file as the kubelet does at startup; ``StateError``
    found: Salvage
    pods: PodNames
    kubelet_error: str = ""  #: empty if the kubelet starts on the file
    dropped: Sequence[DroppedEntry] = ()
    differences: tuple[str, ...] = ()
    after: bytes | None = None  #: ``None``: cannot be repaired while the configuration is invalid

    def __post_init__(self) -> None:
        try:
            self.start(self.text)
        except StateError as failure:
            self.kubelet_error = str(failure)

    def set_repair(self, dropped: Sequence[DroppedEntry], after: bytes) -> None:
        try:
            self.start(after)
        except StateError as failure:
            raise StateError(f"the kubelet would reject the repaired file: {failure}") from failure
        self.dropped, self.after = dropped, after

    @property
    def holders(self) -> set[str]:
        return {uid for uid, held in (self.found.contents["entries"] or {}).items() if held}

    @property
    def repair(self) -> FileRepair | None:
        if self.after is None or not (self.kubelet_error or self.dropped or self.found.copy_problem):
            return None
        done = [f"restored from {self.found.source}"]
        if kept := sorted(self.holders - {entry.uid for entry in self.dropped}):
            done.append(f"kept: the {self.resource} of {_format_pods(kept, self.pods)}")
        done += [f"dropped: {_format_holder(entry, self.pods)}, {entry.held}" for entry in self.dropped]
        if self.found.source is SalvageSource.NOTHING:
            done.append(f"all allocations of {self.resource} are lost; {_ALLOCATED_AGAIN}")
        return FileRepair(self.name, self.text, self.after, tuple(done))

    def unusable(self, summary: str, *, kubelet_message: str) -> Finding:
        advice = _FIX_CONFIGURATION if self.after is None else f"--write repairs it from {self.found.source}"
        return error(Area.STATE, summary, kubelet_message=kubelet_message, advice=advice, where=self.name)


def _check_cpus(text: bytes, path: str, config: ManagerConfig, pods: PodNames) -> StateCheck:
    gates, provider = config.gates, config.cpus

    def start(text: bytes) -> None:
        state = state_files.parse_cpu_state(text, configured_policy=config.cpu_policy, gates=gates, path=path)
        if provider and provider.policy is CpuPolicy.STATIC:
            provider.restore_ledger(state.default, state.entries, pod_held=state.pod_entries)

    found = salvage(state_files.CPU_FORMAT, text, gates=gates)
    file = _CheckedFile(
        state_files.CPU_FILE, "CPUs", state_files.CPU_FORMAT.number, text, config.cpu_policy, start, found, pods
    )
    if provider:
        state, dropped = repair_cpus(found.contents, provider, gates=gates, pods=pods)
        file.set_repair(dropped, state_files.dump_cpu_state(state, gates=gates))
        if provider.policy is CpuPolicy.STATIC and found.contents["policyName"] == CpuPolicy.STATIC:
            file.differences = tuple(_cpu_differences(found.contents, provider, gates=gates))
    return _to_check(file)


def _check_memory(text: bytes, path: str, config: ManagerConfig, pods: PodNames) -> StateCheck:
    gates, idle, policy = config.gates, config.memory, config.memory_policy

    def start(text: bytes) -> None:
        state = state_files.parse_memory_state(text, configured_policy=policy, gates=gates, path=path)
        if idle is not None and policy == MemoryPolicy.STATIC:
            stored = MemoryLedger(state.machine_state, state.entries, state.pod_entries)
            stored.restored(idle, pod_level=config.pod_level)

    found = salvage(state_files.MEMORY_FORMAT, text, gates=gates)
    file = _CheckedFile(
        state_files.MEMORY_FILE, "memory", state_files.MEMORY_FORMAT.number, text, policy, start, found, pods
    )
    if idle is not None and policy is not None:
        state, dropped = repair_memory(found.contents, idle, policy=policy, gates=gates, pods=pods)
        file.set_repair(dropped, state_files.dump_memory_state(state, gates=gates))
        if file.kubelet_error and policy == MemoryPolicy.STATIC == found.contents["policyName"]:
            file.differences = tuple(_memory_differences(found.contents, state, dropped=bool(dropped)))
    return _to_check(file)


def _cpu_differences(contents: Mapping[str, Any], provider: CpuProvider, *, gates: FeatureGates) -> Iterator[str]:
    """Problems of the shared pool; ``repair`` checks the exclusive CPUs."""
    try:
        shared = bits.parse(contents["defaultCpuSet"])
    except ParseError as error:
        yield f"the list of shared CPUs {quote(contents['defaultCpuSet'])} is invalid ({error})"
        return
    if not shared and not contents["entries"]:
        return
    exclusive = bits.union((contents["podEntries"] or {}).values()) if gates.on(PODS_GATE) else 0
    for containers in (contents["entries"] or {}).values():
        for text in (containers or {}).values():
            with suppress(ParseError):
                exclusive |= bits.parse(text)
    strict = provider.options.strict_cpu_reservation
    if gone := shared & ~provider.view.all_cpus:
        yield f"{format_cpus(gone)} in the shared pool, but not on this machine, or offline"
    if strict and (clash := shared & provider.reserved):
        yield (
            f"{format_cpus(clash)} reserved, but in the shared pool: strict-cpu-reservation was off, or other CPUs "
            "were reserved, when the file was written"
        )
    if not strict and (missing := provider.reserved & ~shared & ~exclusive):
        yield (
            f"{format_cpus(missing)} reserved, but not in the shared pool: other CPUs were reserved when the file "
            "was written, or strict-cpu-reservation was on"
        )
    if both := shared & exclusive:
        yield f"{format_cpus(both)} in the shared pool and exclusive to a container"
    if unassigned := provider.view.all_cpus & ~provider.reserved & ~(shared | exclusive):
        yield f"{format_cpus(unassigned)} neither in the shared pool nor exclusive: new, formerly reserved, or lost"


def _memory_differences(contents: Mapping[str, Any], repaired: MemoryState, *, dropped: bool) -> Iterator[str]:
    """Problems of the machine state, apart from allocations that had to be *dropped*."""
    stored: Mapping[int, Any] = contents["machineState"] or {}
    now = repaired.machine_state
    if not stored:
        yield "memory is allocated, but the file has no machine state"
        return
    if gone := sorted(stored.keys() - now.keys()):
        yield f"NUMA nodes {', '.join(map(str, gone))} no longer exist"
    if new := sorted(now.keys() - stored.keys()):
        yield f"NUMA nodes {', '.join(map(str, new))} are new"
    found = [
        f"NUMA node {id_}: {difference}"
        for id_ in sorted(stored.keys() & now.keys())
        for difference in _table_differences((stored[id_] or {}).get("memoryMap") or {}, now[id_].tables)
    ]
    yield from found
    if not (found or gone or new or dropped):
        yield "the allocations do not match the free memory in the file"


def _table_differences(stored: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for type_ in sorted(stored.keys() | now.keys()):
        before, table = stored.get(type_), now.get(type_)
        if before is None or table is None:
            yield f"{type_} is {'new' if before is None else 'gone'}"
            continue
        was = {name: format_quantity(before[name]) for name in before}
        total, reserved, left = (format_quantity(amount) for amount in table[:3])
        written = "when the file was written, now"
        if was["total"] != total:
            yield f"{was['total']} of {type_} {written} {total}"
        if was["systemReserved"] != reserved:
            yield f"{was['systemReserved']} of {type_} was reserved {written} {reserved}"
        if (was["total"], was["systemReserved"]) == (total, reserved) and was["allocatable"] != left:
            yield f"{was['allocatable']} of {type_} was allocatable {written} {left}"


def _to_check(file: _CheckedFile) -> StateCheck:
    repair = file.repair
    findings = list(_problems(file))
    if file.kubelet_error and not any(finding.kubelet_message for finding in findings):
        findings.insert(0, file.unusable("the kubelet does not start on this file", kubelet_message=file.kubelet_error))
    if file.found.copy_problem:
        summary = f"{file.found.copy_problem}; this kubelet ignores the copy, an older one would read it"
        findings.append(warning(Area.STATE, summary, advice="--write rewrites it", where=file.name))
    if not file.kubelet_error and 0 < (version := file.found.version) < file.newest:
        summary = f"version {version}, from an older kubelet: it is read, and rewritten as version {file.newest}"
        findings.append(note(Area.STATE, summary, where=file.name))
    unknown = sorted((file.found.contents["entries"] or {}).keys() - file.pods.keys())
    if file.pods and unknown:
        summary = f"held by {', '.join(unknown)}, not among the given pods: the kubelet releases it once it runs"
        findings.append(note(Area.STATE, summary, where=file.name))
    if not file.kubelet_error and not repair:
        held = f"{file.resource} held by {pluralize(len(file.holders), 'pod')}"
        findings.append(ok(Area.STATE, f"policy {file.found.contents['policyName']}, {held}", where=file.name))
    return StateCheck(tuple(findings), (repair,) if repair else ())


def _problems(file: _CheckedFile) -> Iterator[Finding]:
    """Each problem of a file; the first one carries the kubelet's error."""
    found, policy, message = file.found, file.policy, file.kubelet_error
    stored = found.contents["policyName"]
    for damage in found.damage:
        yield file.unusable(f"{damage}; the kubelet does not start", kubelet_message=message)
        message = ""
    if policy is not None and stored != policy and found.source is not SalvageSource.NOTHING:
        has = f"policy {quote(stored)}" if stored else "no policy"
        summary = f"the file has {has}, but {quote(policy)} is configured; the kubelet does not start"
        yield file.unusable(summary, kubelet_message=message)
        return
    for difference in file.differences:
        yield file.unusable(difference, kubelet_message=message)
        message = ""
    for entry in file.dropped:
        summary = f"{_format_holder(entry, file.pods)} holds {entry.held}: {entry.reason}"
        advice = f"--write drops it; {_ALLOCATED_AGAIN}"
        if entry.blocks_start:
            yield error(Area.STATE, summary, kubelet_message=message, advice=advice, where=file.name)
            message = ""
        else:
            yield warning(Area.STATE, summary, advice=advice, where=file.name)


def _format_holder(entry: DroppedEntry, pods: PodNames) -> str:
    pod = format_pod(entry.uid, pods)
    return f"{pod} container {entry.container}" if entry.container else pod


def _format_pods(uids: Iterable[str], pods: PodNames) -> str:
    return ", ".join(format_pod(uid, pods) for uid in uids)


def _check_devices(text: bytes, path: str, config: ManagerConfig, pods: PodNames) -> StateCheck:
    """A kubelet that cannot read the device manager's file starts without it."""
    findings: list[Finding] = []
    done: list[str] = []
    try:
        state = state_files.parse_device_state(text, path=path)
    except StateError:
        state, unread = salvage_devices(text)
        damage = json_error(text) or "the checksum does not match the contents, or a value has the wrong type"
        summary = f"{damage}; the kubelet starts without the file and forgets which container holds which devices"
        advice = f"--write repairs it from {SalvageSource.REST}"
        findings.append(warning(Area.STATE, summary, advice=advice, where=DEVICE_PATH))
        done.append(f"restored from {SalvageSource.REST}")
        done += [f"dropped: {unread} unreadable entries"] if unread else []
    state, dropped = repair_devices(state, pods=pods)
    for entry in dropped:
        summary = f"{_format_holder(entry, pods)} holds {entry.held}: {entry.reason}"
        findings.append(warning(Area.STATE, summary, advice="--write drops it", where=DEVICE_PATH))
        done.append(f"dropped: {_format_holder(entry, pods)}, {entry.held}")
    if kept := sorted({entry.uid for entry in state.entries}):
        done.insert(bool(done and done[0].startswith("restored")), f"kept: the devices of {_format_pods(kept, pods)}")
    findings += _missing_devices(state, config, pods)
    if not findings:
        findings.append(ok(Area.STATE, f"devices held by {pluralize(len(kept), 'pod')}", where=DEVICE_PATH))
    after = state_files.dump_device_state(state)
    broken = any(finding.severity == "warning" for finding in findings)
    return StateCheck(tuple(findings), (FileRepair(DEVICE_PATH, text, after, tuple(done)),) if broken else ())


def _missing_devices(state: state_files.DeviceState, config: ManagerConfig, pods: PodNames) -> Iterator[Finding]:
    """Allocated devices that were not healthy when the file was written, and more than the machine declares."""
    held: dict[str, set[str]] = {}
    for entry in state.entries:
        held.setdefault(entry.resource, set()).update(entry.nodes)
        if missing := sorted(entry.nodes.keys() - set(state.registered.get(entry.resource) or ())):
            summary = (
                f"{format_pod(entry.uid, pods)} container {entry.container} holds {entry.resource} "
                f"{', '.join(missing)}, which was not among the healthy devices"
            )
            yield note(Area.STATE, summary, where=DEVICE_PATH)
    declared = Counter(device.resource for device in config.devices)
    for resource, ids in sorted(held.items()):
        if 0 < declared[resource] < len(ids):
            summary = f"{len(ids)} devices of {resource} are held, but the machine has {declared[resource]}"
            yield note(Area.STATE, summary, where=DEVICE_PATH)
