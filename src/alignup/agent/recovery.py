"""Restores the state from the checkpoint.

The host may have changed since. If every pod can keep its resources, the agent continues and logs the changes. If not,
it starts read-only and leaves the checkpoint untouched until an option says what to drop, so nothing is lost silently
and the agent does not crash in a loop.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import count

from alignup.agent import pending_admission
from alignup.agent.devices import device_state
from alignup.agent.pod_record import API_SOURCE, PodRecord, check_uid
from alignup.agent.state import AgentState
from alignup.agent.wait_queue import WaitQueue
from alignup.align.decision import Decision
from alignup.align.errors import (
    AlignError,
    CheckpointError,
    ParseError,
    PodError,
    RestoreError,
    StateError,
    WorkLimitError,
)
from alignup.align.host import Host
from alignup.align.ledger import Ledger
from alignup.align.workload import Pod
from alignup.documents.checkpoints import CheckpointDocument, HeldPodDocument, PodGrants, WaitingPodDocument
from alignup.documents.ledgers.restore import restore_ledger
from alignup.documents.pods import read_pod
from alignup.store.checkpoint import CheckpointStore
from alignup.store.checkpoint_format import LoadedCheckpoint
from alignup.store.fingerprint import machine_fingerprint, settings_fingerprint

_ADVICE = "restore the machine or the configuration, or start with --recover drop-misfits to release only these pods"
_DAMAGE = "start the alignup version that wrote it, or start with --recover previous to fall back to the previous one"


class RecoveryMode(StrEnum):
    """What may be lost if not everything can be restored."""

    PREVIOUS = "previous"  #: fall back to the latest earlier state, in the journal or the previous checkpoint
    DROP_MISFITS = "drop-misfits"  #: release pods that cannot keep their resources


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryOptions:
    waiting: WaitQueue = field(default_factory=WaitQueue)  #: empty, with its limits
    wait_enabled: bool = False
    modes: frozenset[RecoveryMode] = frozenset()


@dataclass(frozen=True, slots=True)
class ImportedState:
    ledger: Ledger
    grants: Mapping[str, PodGrants] = field(default_factory=dict)  #: by uid


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryResult:
    state: AgentState
    problems: tuple[str, ...] = ()  #: each with a remedy; if there are any, the agent must be read-only
    contradictory: bool = False  #: whether the contents of the checkpoint are the problem, and not the host
    notes: tuple[str, ...] = ()


def recover(
    store: CheckpointStore,
    host: Host,
    *,
    options: RecoveryOptions,
    now: float,
    imported: Callable[[], ImportedState] | None = None,
) -> RecoveryResult:
    """Restore the state on an idle *host*; without a checkpoint, the *imported* state or an empty one."""
    empty = AgentState(host=host, idle_ledger=host.ledger, waiting=options.waiting, wait_enabled=options.wait_enabled)
    may_use_previous, attempts = RecoveryMode.PREVIOUS in options.modes, count()
    try:
        loaded = store.load()
    except CheckpointError as error:  # an earlier one only if this one is damaged, so the option can stay set
        if not may_use_previous or (loaded := _earlier(store, next(attempts))) is None:
            return RecoveryResult(state=empty, problems=(str(error),))
    if loaded is None:
        return RecoveryResult(state=empty) if imported is None else _imported(empty, imported(), now=now)
    found = _recover_from(loaded, empty, options=options, now=now)
    while found.contradictory and may_use_previous and (loaded := _earlier(store, next(attempts))) is not None:
        before = _recover_from(loaded, empty, options=options, now=now)
        found = replace(before, notes=(*found.problems, *before.notes))
    unused = () if imported is None else ("there is a checkpoint, so the kubelet's state files are ignored",)
    return replace(found, notes=(*unused, *found.notes))


def _earlier(store: CheckpointStore, attempt: int) -> LoadedCheckpoint | None:
    """Return an earlier state if there is one; the error about the current one says more than its own."""
    try:
        return store.load(previous=True, attempt=attempt)
    except CheckpointError:
        return None


def _recover_from(
    loaded: LoadedCheckpoint, empty: AgentState, *, options: RecoveryOptions, now: float
) -> RecoveryResult:
    document, host = loaded.document, empty.host
    machine = document.machine.differences(machine_fingerprint(host.machine))
    settings = document.settings.differences(settings_fingerprint(host.settings))
    changes = [f"the machine changed: {what}" for what in machine]
    changes += [f"the settings changed: {what}" for what in settings]
    plugins = frozenset(document.plugins)  # their devices are unknown until they reconnect
    unplugged = _with_ledger(host, device_state.without_resources(host.ledger, plugins))
    found = _rebuild(document, replace(empty, host=unplugged, plugins=plugins), options=options, now=now)
    return replace(found, notes=(*loaded.notes, *changes, *found.notes))


def _rebuild(
    document: CheckpointDocument, empty: AgentState, *, options: RecoveryOptions, now: float
) -> RecoveryResult:
    host, unreleasable = empty.host, _unreleasable(pod.entry.pod.uid for pod in document.pods)
    pods = [pod for pod in document.pods if pod.entry.pod.uid not in unreleasable]
    misfits = list(unreleasable.values())
    while True:
        try:
            entries = [pod.entry for pod in pods]
            ledger = restore_ledger(entries, document.residue, idle=host.ledger, providers=host.providers)
            break
        except StateError as error:
            uids = error.uids if isinstance(error, RestoreError) else ()
            misfits += error.problems if isinstance(error, RestoreError) else (str(error),)
            if not uids:  # the problem is not about single pods
                return _contradiction(empty, misfits)
            pods = [pod for pod in pods if pod.entry.pod.uid not in uids]
    try:
        state, dropped = _restore(pods, ledger, document.waiting, empty, now=now)
    except (AlignError, ValueError, LookupError, ArithmeticError, RecursionError) as error:
        return _contradiction(empty, [f"the checkpoint is invalid: {error}"])
    if misfits and RecoveryMode.DROP_MISFITS not in options.modes:
        return RecoveryResult(state=state, problems=tuple(f"{what}; {_ADVICE}" for what in misfits))
    released = (f"released because it cannot keep its resources: {what}" for what in misfits)
    return RecoveryResult(state=state, notes=(*released, *dropped))


def _contradiction(empty: AgentState, problems: Iterable[str]) -> RecoveryResult:
    return RecoveryResult(state=empty, problems=tuple(f"{what}; {_DAMAGE}" for what in problems), contradictory=True)


def _restore(
    documents: Sequence[HeldPodDocument],
    ledger: Ledger,
    waiting: Sequence[WaitingPodDocument],
    empty: AgentState,
    *,
    now: float,
) -> tuple[AgentState, list[str]]:
    """Return the restored state, and why some pods no longer wait."""
    host = _with_ledger(empty.host, ledger)
    admitted = {}
    for one, (uid, entry) in zip(documents, ledger.pods.items(), strict=True):
        since = now if one.since is None else one.since
        record = _record(entry.pod, host, since=since, source=one.source or API_SOURCE)
        admitted[uid] = replace(record, grants=one.grants)
    pods, overtakes, dropped = {}, {}, list[str]()
    for each in waiting:
        pod = read_pod(each.pod)
        if pod.uid in admitted or pod.uid in pods:
            raise ParseError(f"two pods have the uid {pod.uid}")
        try:
            check_uid(pod.uid)
            record = _record(pod, host, since=each.since, source=each.source)
            pods[pod.uid] = record.with_decision(_waiting_decision(record, host))
        except (PodError, WorkLimitError) as error:  # under changed settings
            dropped.append(f"{pod.namespace}/{pod.name} is removed from the wait queue: {error}")
        else:
            overtakes[pod.uid] = each.overtaken
    waiting_pods = replace(empty.waiting, pods=pods, overtakes={uid: n for uid, n in overtakes.items() if n})
    return replace(empty, host=host, admitted=admitted, waiting=waiting_pods), dropped


def _waiting_decision(record: PodRecord, host: Host) -> Decision:
    """Return why a restored pod waits; it holds nothing, even if it would fit now."""
    if record.decision.rejection is not None:
        return record.decision
    if missing := tuple(device_state.unknown_resources(host, record.pod)):
        return pending_admission.rejected_for_missing_devices(record.decision, missing)
    return pending_admission.waiting_since_restart(record.decision)


def _imported(empty: AgentState, found: ImportedState, *, now: float) -> RecoveryResult:
    """Continue from the state of a kubelet; devices that the machine does not declare belong to plugins."""
    if unreleasable := _unreleasable(found.ledger.pods):
        return RecoveryResult(state=empty, problems=tuple(unreleasable.values()))
    host = _with_ledger(empty.host, found.ledger)
    admitted = {
        uid: replace(_record(one.pod, host, since=now, source=API_SOURCE), grants=found.grants.get(uid, {}))
        for uid, one in found.ledger.pods.items()
    }
    declared = {device.resource for device in host.machine.devices}
    plugins = frozenset(host.ledger.devices.inventories) - declared
    return RecoveryResult(state=replace(empty, host=host, admitted=admitted, plugins=plugins))


def _unreleasable(uids: Iterable[str]) -> dict[str, str]:
    """Return the invalid uids, each with the reason."""
    found = {}
    for uid in uids:
        try:
            check_uid(uid)
        except PodError as error:
            found[uid] = f"the uid of a pod is invalid: {error}"
    return found


def _with_ledger(host: Host, ledger: Ledger) -> Host:
    other = copy(host)
    other.ledger = ledger
    return other


def _record(pod: Pod, host: Host, *, since: float, source: str) -> PodRecord:
    """Return the record of a restored pod; the latest decision about an admitted pod is that it keeps its resources."""
    decision = host.decide(pod).without_ledgers()
    return PodRecord(pod=pod, since=since, source=source, decision=decision)
