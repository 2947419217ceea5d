"""A kubelet's state files looked into: what is wrong with each, what the kubelet would do, how it can be repaired."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from alignup.align.bits import quote
from alignup.align.cpus.options import CpuPolicy
from alignup.align.errors import StateError
from alignup.align.memory.ledger import MemoryLedger
from alignup.align.memory.provider import MemoryPolicy
from alignup.doctor.configuration import ManagerConfig
from alignup.doctor.differences import cpu_differences, memory_differences
from alignup.doctor.findings import Area, Finding, error, note, ok, warning
from alignup.doctor.repair import DroppedEntry, PodNames, format_pod, repair_cpus, repair_devices, repair_memory
from alignup.doctor.salvage import Salvage, SalvageSource, json_error, salvage, salvage_devices
from alignup.state.kubelet import cpu_file, device_file, memory_file
from alignup.state.kubelet.checkpoint import StateFileFormat
from alignup.state.kubelet.state_dir import PLUGINS_DIR

DEVICE_STATE = f"{PLUGINS_DIR}/{device_file.NAME}"

_NOT_YET = "put the configuration right first: what the file should say depends on it"
_AGAIN = "a kubelet that starts gives it some anew, perhaps others, or refuses the pod if there is no room"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFiles:
    """What is in a kubelet's directory, each file by its path there."""

    texts: Mapping[str, bytes] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)  #: files that cannot be read, and why
    leftovers: tuple[str, ...] = ()  #: files written aside that never took their place
    directory: str = "/var/lib/kubelet"  #: as it stands in messages


@dataclass(frozen=True, slots=True)
class FileRepair:
    """A file as it is and as it would be."""

    name: str  #: its path in the directory
    before: bytes
    after: bytes
    done: tuple[str, ...]  #: what is kept and what is given up, a line each


@dataclass(frozen=True, slots=True)
class StateCheck:
    """What was found in state files, and what can be done about it."""

    findings: tuple[Finding, ...]
    repairs: tuple[FileRepair, ...] = ()


def check_state(files: StateFiles, basis: ManagerConfig, *, pods: PodNames | None = None) -> StateCheck:
    """What a kubelet would do with *files*; *pods* are those that run, and keep what they have before others."""
    names = pods or {}
    looks: tuple[tuple[str, Callable[[bytes, str, ManagerConfig, PodNames], StateCheck]], ...] = (
        (cpu_file.NAME, _cpus),
        (memory_file.NAME, _memory),
        (DEVICE_STATE, _devices),
    )
    findings: list[Finding] = []
    repairs: list[FileRepair] = []
    for name, look in looks:
        if name in files.texts:
            looked = look(files.texts[name], f"{files.directory}/{name}", basis, names)
            findings += looked.findings
            repairs += looked.repairs
        elif name in files.unread:
            findings.append(warning(Area.STATE, f"it cannot be looked into: {files.unread[name]}", where=name))
        else:
            findings.append(ok(Area.STATE, "there is none: the kubelet begins with an empty one", where=name))
    for name in files.leftovers:
        what = "left over from writing a state file that was interrupted; nothing reads it"
        findings.append(note(Area.STATE, what, advice="it can be deleted", where=name))
    return StateCheck(tuple(findings), tuple(repairs))


@dataclass(frozen=True, slots=True)
class _Case:
    """One file of the CPU or memory manager, with all that is known about it."""

    name: str
    text: bytes
    found: Salvage
    said: str  #: the kubelet's sentence where it refuses the file
    losses: tuple[DroppedEntry, ...] = ()
    differences: tuple[str, ...] = ()
    after: bytes | None = None  #: ``None``: cannot be repaired while the configuration is not right
    what: str = "CPUs"
    pods: PodNames = field(default_factory=dict)

    @property
    def repair(self) -> FileRepair | None:
        """What is to be written, where something is."""
        if self.after is None or not (self.said or self.losses or self.found.tampered):
            return None
        return FileRepair(self.name, self.text, self.after, tuple(self._done()))

    def _done(self) -> Iterator[str]:
        uids = {uid for uid, own in (self.found.contents["entries"] or {}).items() if own}
        given_up = {loss.uid for loss in self.losses}
        yield f"taken from {self.found.source}"
        if kept := sorted(uids - given_up):
            yield f"kept: the {self.what} of {', '.join(format_pod(uid, self.pods) for uid in kept)}"
        for loss in self.losses:
            yield f"given up: {_whose(loss, self.pods)}, {loss.held}"
        if self.found.source is SalvageSource.NOTHING:
            yield f"who holds which {self.what} is lost; {_AGAIN}"


def _cpus(text: bytes, path: str, basis: ManagerConfig, pods: PodNames) -> StateCheck:
    gates, provider = basis.gates, basis.cpus
    found = salvage(cpu_file.FORMAT, text, gates=gates)
    said = _cpu_verdict(text, basis, path)
    losses: tuple[DroppedEntry, ...] = ()
    differences: tuple[str, ...] = ()
    after = None
    if provider:
        mended = repair_cpus(found.contents, provider, gates=gates, pods=pods)
        losses = mended.losses
        after = cpu_file.dump(mended.state, gates=gates)
        _check(_cpu_verdict(after, basis, path))
        if provider.policy is CpuPolicy.STATIC and found.contents["policyName"] == CpuPolicy.STATIC:
            differences = tuple(cpu_differences(found.contents, provider, gates=gates))
    case = _Case(cpu_file.NAME, text, found, said, losses, differences, after, pods=pods)
    return _told(case, cpu_file.FORMAT, basis.cpu_policy)


def _cpu_verdict(text: bytes, basis: ManagerConfig, path: str) -> str:
    """What a kubelet says against a file; empty when it starts on it."""
    try:
        state = cpu_file.parse(text, configured_policy=basis.cpu_policy, gates=basis.gates, path=path)
        if basis.cpus and basis.cpus.policy is CpuPolicy.STATIC:
            basis.cpus.start(state.default, state.entries, pod_held=state.pod_entries)
    except StateError as refused:
        return str(refused)
    return ""


def _memory(text: bytes, path: str, basis: ManagerConfig, pods: PodNames) -> StateCheck:
    gates, idle, policy = basis.gates, basis.memory, basis.memory_policy
    found = salvage(memory_file.FORMAT, text, gates=gates)
    said = _memory_verdict(text, basis, path)
    losses: tuple[DroppedEntry, ...] = ()
    differences: tuple[str, ...] = ()
    after = None
    if idle is not None and policy is not None:
        mended = repair_memory(found.contents, idle, policy=policy, gates=gates, pods=pods)
        losses = mended.losses
        after = memory_file.dump(mended.state, gates=gates)
        _check(_memory_verdict(after, basis, path))
        if said and policy == MemoryPolicy.STATIC == found.contents["policyName"]:
            differences = tuple(memory_differences(found.contents, mended.state, lost=bool(losses)))
    case = _Case(memory_file.NAME, text, found, said, losses, differences, after, what="memory", pods=pods)
    return _told(case, memory_file.FORMAT, policy)


def _memory_verdict(text: bytes, basis: ManagerConfig, path: str) -> str:
    """What a kubelet says against a file; empty when it starts on it."""
    try:
        state = memory_file.parse(text, configured_policy=basis.memory_policy, gates=basis.gates, path=path)
        if basis.memory is not None and basis.memory_policy == MemoryPolicy.STATIC:
            stored = MemoryLedger(state.machine_state, state.entries, state.pod_entries)
            stored.restored(basis.memory, pod_level=basis.pod_level)
    except StateError as refused:
        return str(refused)
    return ""


def _check(said: str) -> None:
    """Nothing is offered that a kubelet would not take."""
    if said:
        raise StateError(f"the repaired file would be refused: {said}")


def _told(case: _Case, format_: StateFileFormat, policy: str | None) -> StateCheck:
    """What is to be said about a file of the CPU or memory manager."""
    repair = case.repair
    findings = list(_faults(case, policy))
    if case.said and not any(one.said for one in findings):
        findings.insert(0, _refused(case, "the kubelet does not start on it"))
    if case.found.tampered:
        what = f"{case.found.tampered}; this kubelet does not look at it, an older one would"
        findings.append(warning(Area.STATE, what, advice="--write writes it anew", where=case.name))
    version = case.found.version
    if not case.said and 0 < version < format_.number:
        what = (
            f"version {version}, of an older kubelet: it is read, and written as version {format_.number} from then on"
        )
        findings.append(note(Area.STATE, what, where=case.name))
    findings += _strangers(case)
    if not case.said and not repair:
        holders = len([own for own in (case.found.contents["entries"] or {}).values() if own])
        what = f"policy {case.found.contents['policyName']}, {case.what} held by {_pods(holders)}"
        findings.append(ok(Area.STATE, what, where=case.name))
    return StateCheck(tuple(findings), (repair,) if repair else ())


def _faults(case: _Case, policy: str | None) -> Iterator[Finding]:
    """Each thing wrong with a file; the first of them has the kubelet's own words."""
    stored, found = case.found.contents["policyName"], case.found
    for number, damage in enumerate(found.damage):
        yield _refused(case, f"{damage}; the kubelet does not start", said=case.said if not number else "")
    if policy is not None and stored != policy and found.source is not SalvageSource.NOTHING:
        said = "" if found.damage else case.said
        of = f"of policy {quote(stored)}" if stored else "of no policy"
        yield _refused(case, f"the file is {of}, {quote(policy)} is configured; the kubelet does not start", said=said)
        return
    said = "" if found.damage else case.said
    for difference in case.differences:
        yield _refused(case, difference, said=said)
        said = ""
    for loss in case.losses:
        what = f"{_whose(loss, case.pods)} holds {loss.held}: {loss.why}"
        if loss.refused:
            yield error(Area.STATE, what, said=said, advice=f"--write gives it up; {_AGAIN}", where=case.name)
            said = ""
        else:
            yield warning(Area.STATE, what, advice=f"--write gives it up; {_AGAIN}", where=case.name)


def _refused(case: _Case, what: str, *, said: str | None = None) -> Finding:
    advice = _NOT_YET
    if case.after is not None:
        advice = f"--write repairs it, from {case.found.source}"
    return error(Area.STATE, what, said=case.said if said is None else said, advice=advice, where=case.name)


def _strangers(case: _Case) -> Iterator[Finding]:
    """Who is in the file, but does not run."""
    if not case.pods:
        return
    unknown = sorted((case.found.contents["entries"] or {}).keys() - case.pods.keys())
    if unknown:
        what = f"held by {', '.join(unknown)}, not among the pods given: the kubelet takes it back once it runs"
        yield note(Area.STATE, what, where=case.name)


def _whose(loss: DroppedEntry, pods: PodNames) -> str:
    return f"{format_pod(loss.uid, pods)} container {loss.container}" if loss.container else format_pod(loss.uid, pods)


def _pods(count: int) -> str:
    return "nobody" if not count else "a pod" if count == 1 else f"{count} pods"


def _devices(text: bytes, path: str, basis: ManagerConfig, pods: PodNames) -> StateCheck:
    """The device manager's file: a kubelet that cannot read it goes on without."""
    findings: list[Finding] = []
    done: list[str] = []
    try:
        state = device_file.parse(text, path=path)
    except StateError:
        state, unread = salvage_devices(text)
        damage = json_error(text) or "its checksum is wrong for what is there, or a value is of a wrong kind"
        findings.append(
            warning(
                Area.STATE,
                f"{damage}; the kubelet starts without it and forgets which container holds which devices",
                advice="--write repairs it, from what can still be read of it, unchecked",
                where=DEVICE_STATE,
            )
        )
        done.append(f"taken from {SalvageSource.REST}")
        done += [f"given up: {unread} entries that cannot be read"] if unread else []
    mended = repair_devices(state, pods=pods)
    for loss in mended.losses:
        what = f"{_whose(loss, pods)} holds {loss.held}: {loss.why}"
        findings.append(warning(Area.STATE, what, advice="--write gives it up", where=DEVICE_STATE))
        done.append(f"given up: {_whose(loss, pods)}, {loss.held}")
    if kept := sorted({entry.uid for entry in mended.state.entries}):
        done.insert(bool(done and done[0].startswith("taken")), f"kept: the devices of {_all(kept, pods)}")
    findings += [*_ill(mended.state, pods), *_too_few(mended.state, basis)]
    if not findings:
        findings.append(ok(Area.STATE, f"devices held by {_pods(len(kept))}", where=DEVICE_STATE))
    after = device_file.dump(mended.state)
    broken = any(one.severity == "warning" for one in findings)
    return StateCheck(tuple(findings), (FileRepair(DEVICE_STATE, text, after, tuple(done)),) if broken else ())


def _all(uids: Iterable[str], pods: PodNames) -> str:
    return ", ".join(format_pod(uid, pods) for uid in uids)


def _ill(state: device_file.DeviceState, pods: PodNames) -> Iterator[Finding]:
    """Devices somebody holds that were not healthy when the file was written, or are gone."""
    for entry in state.entries:
        healthy = set(state.registered.get(entry.resource) or ())
        missing = sorted(entry.nodes.keys() - healthy)
        if missing:
            what = (
                f"{format_pod(entry.uid, pods)} container {entry.container} holds {entry.resource} {', '.join(missing)}, "
                "which was not among the healthy devices"
            )
            yield note(Area.STATE, what, where=DEVICE_STATE)


def _too_few(state: device_file.DeviceState, basis: ManagerConfig) -> Iterator[Finding]:
    """More devices held than the machine is said to have; of resources nobody declared nothing is known."""
    there = Counter(device.resource for device in basis.devices)
    held: dict[str, set[str]] = {}
    for entry in state.entries:
        held.setdefault(entry.resource, set()).update(entry.nodes)
    for resource, ids in sorted(held.items()):
        if 0 < there[resource] < len(ids):
            what = f"{len(ids)} devices of {resource} are held, and the machine has {there[resource]}"
            yield note(Area.STATE, what, where=DEVICE_STATE)
