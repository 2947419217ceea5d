"""The restoration of the agent's state from its database.

The host may have changed since. If every pod can keep its resources, the agent continues and logs the changes. If not,
it starts read-only and leaves the database untouched until its operator says what may be lost, so nothing is lost
silently and the agent does not crash in a loop.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from alignup.agent import pending_admission
from alignup.agent.state import API_SOURCE, AgentState, PodRecord, WaitingPods, check_uid
from alignup.align.decision import Decision
from alignup.align.errors import (
    AlignError,
    ParseError,
    PodError,
    RestoreError,
    StateError,
    StoreError,
    StoreProblem,
    WorkLimitError,
)
from alignup.align.host import Host
from alignup.align.ledger import Ledger
from alignup.align.workload import Pod
from alignup.documents.ledgers import restore_ledger
from alignup.documents.pod_documents import PodGrants, read_pod
from alignup.store.fingerprint import machine_fingerprint, settings_fingerprint
from alignup.store.state_store import HeldPodDocument, StateStore, StoredState

_MISFIT_ADVICE = "restore the machine or the configuration"
_DAMAGE_ADVICE = "start the alignup version that wrote it"


class RecoveryMode(StrEnum):
    """What may be lost if not everything can be restored."""

    SET_ASIDE = "set-aside"  #: rename a database that cannot be used, and start without pods
    ACCEPT_LOSS = "accept-loss"  #: go on without acknowledged changes that the database has lost
    DROP_MISFITS = "drop-misfits"  #: release pods that cannot keep their resources


#: What may be lost, by what is wrong with the database.
_MODES = {StoreProblem.UNUSABLE: RecoveryMode.SET_ASIDE, StoreProblem.INCOMPLETE: RecoveryMode.ACCEPT_LOSS}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryOptions:
    waiting: WaitingPods = field(default_factory=WaitingPods)  #: empty, with its limits
    wait_enabled: bool = False
    modes: frozenset[RecoveryMode] = frozenset()
    hints: Mapping[RecoveryMode, str] = field(default_factory=dict)  #: how to choose a mode, for messages


@dataclass(frozen=True, slots=True)
class ImportedState:
    ledger: Ledger
    grants: Mapping[str, PodGrants] = field(default_factory=dict)  #: by uid


@dataclass(frozen=True, slots=True)
class RecoveryProblem:
    text: str  #: with a remedy
    mode: RecoveryMode | None = None  #: that solves it, too

    def message(self, hints: Mapping[RecoveryMode, str]) -> str:
        hint = hints.get(self.mode) if self.mode else None
        return f"{self.text}, or {hint}" if hint else self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryResult:
    state: AgentState
    problems: tuple[RecoveryProblem, ...] = ()  #: if there are any, the agent must be read-only
    notes: tuple[str, ...] = ()

    def messages(self, options: RecoveryOptions) -> tuple[str, ...]:
        return tuple(problem.message(options.hints) for problem in self.problems)


def recover(
    store: StateStore,
    host: Host,
    *,
    options: RecoveryOptions,
    now: float,
    imported: Callable[[], ImportedState] | None = None,
) -> RecoveryResult:
    """Restore the state on an idle *host*; without a stored state, the *imported* one or an empty one."""
    empty = AgentState(host=host, idle_ledger=host.ledger, waiting=options.waiting, wait_enabled=options.wait_enabled)
    notes: tuple[str, ...] = ()
    result = _load(store, empty, options=options, now=now)
    if result is not None and any(problem.mode is RecoveryMode.SET_ASIDE for problem in result.problems):
        if RecoveryMode.SET_ASIDE not in options.modes:
            return result
        names = ", ".join(store.set_aside()) or "nothing"
        notes = (*(problem.text for problem in result.problems), f"starting without its pods; set aside: {names}")
        result = None
    if result is None:
        result = RecoveryResult(state=empty) if imported is None else _imported(empty, imported(), now=now)
    elif imported is not None:
        notes = ("there is a stored state, so the kubelet's state files are ignored",)
    return replace(result, notes=(*notes, *result.notes))


def _load(store: StateStore, empty: AgentState, *, options: RecoveryOptions, now: float) -> RecoveryResult | None:
    """Return the stored state on this host, or why it cannot be used; ``None`` if nothing is stored."""
    try:
        stored_state = store.load(accept_loss=RecoveryMode.ACCEPT_LOSS in options.modes)
        lost_changes = store.lost_changes()
    except StoreError as error:
        return RecoveryResult(state=empty, problems=(RecoveryProblem(str(error), _MODES.get(error.kind)),))
    if stored_state is None:
        return RecoveryResult(state=empty, notes=(lost_changes,)) if lost_changes else None
    host = empty.host
    machine = stored_state.machine.differences(machine_fingerprint(host.machine))
    settings = stored_state.settings.differences(settings_fingerprint(host.settings))
    changes = [lost_changes] if lost_changes else []
    changes += [f"the machine changed: {difference}" for difference in machine]
    changes += [f"the settings changed: {difference}" for difference in settings]
    plugins = frozenset(stored_state.plugins)  # their devices are unknown until they reconnect
    bare_host = host.with_ledger(pending_admission.without_resources(host.ledger, plugins))
    result = _rebuild(stored_state, replace(empty, host=bare_host, plugins=plugins), options=options, now=now)
    return replace(result, notes=(*changes, *result.notes))


def _rebuild(stored_state: StoredState, empty: AgentState, *, options: RecoveryOptions, now: float) -> RecoveryResult:
    host, unreleasable = empty.host, _unreleasable(pod.entry.pod.uid for pod in stored_state.pods)
    pods = [pod for pod in stored_state.pods if pod.entry.pod.uid not in unreleasable]
    misfits = list(unreleasable.values())
    while True:
        try:
            entries = [pod.entry for pod in pods]
            ledger = restore_ledger(entries, stored_state.residue, idle=host.ledger, providers=host.providers)
            break
        except StateError as error:
            uids = error.uids if isinstance(error, RestoreError) else ()
            misfits += error.problems if isinstance(error, RestoreError) else (str(error),)
            if not uids:  # the problem is not about single pods
                return _contradiction(empty, misfits)
            pods = [pod for pod in pods if pod.entry.pod.uid not in uids]
    try:
        state, dropped_notes = _restore(pods, ledger, stored_state, empty, now=now)
    except (AlignError, ValueError, LookupError, ArithmeticError, RecursionError) as error:
        return _contradiction(empty, [f"the stored state is invalid: {error}"])
    if misfits and RecoveryMode.DROP_MISFITS not in options.modes:
        problems = (RecoveryProblem(f"{misfit}; {_MISFIT_ADVICE}", RecoveryMode.DROP_MISFITS) for misfit in misfits)
        return RecoveryResult(state=state, problems=tuple(problems))
    release_messages = (f"released because it cannot keep its resources: {misfit}" for misfit in misfits)
    return RecoveryResult(state=state, notes=(*release_messages, *dropped_notes))


def _contradiction(empty: AgentState, messages: Iterable[str]) -> RecoveryResult:
    problems = (RecoveryProblem(f"{message}; {_DAMAGE_ADVICE}", RecoveryMode.SET_ASIDE) for message in messages)
    return RecoveryResult(state=empty, problems=tuple(problems))


def _restore(
    held_pods: Sequence[HeldPodDocument], ledger: Ledger, stored_state: StoredState, empty: AgentState, *, now: float
) -> tuple[AgentState, list[str]]:
    """Return the restored state, and why some pods no longer wait."""
    host = empty.host.with_ledger(ledger)
    admitted_pods = {}
    for document, (uid, entry) in zip(held_pods, ledger.pods.items(), strict=True):
        since = now if document.since is None else document.since
        record = _record(entry.pod, host, since=since, source=document.source or API_SOURCE)
        admitted_pods[uid] = replace(record, grants=document.grants)
    queue, dropped_notes = empty.waiting.copy(), list[str]()
    for waiting_entry in stored_state.waiting:
        pod = read_pod(waiting_entry.pod)
        if pod.uid in admitted_pods or pod.uid in queue:
            raise ParseError(f"two pods have the uid {pod.uid}")
        try:
            check_uid(pod.uid)
            record = _record(pod, host, since=waiting_entry.since, source=waiting_entry.source)
            queue.update(record.with_decision(_waiting_decision(record, host)))
        except (PodError, WorkLimitError) as error:  # under changed settings
            dropped_notes.append(f"{pod.namespace}/{pod.name} is removed from the wait queue: {error}")
    queue.overtakes = {uid: count for uid, count in stored_state.overtaken.items() if uid in queue and count}
    return replace(empty, host=host, admitted=admitted_pods, waiting=queue), dropped_notes


def _waiting_decision(record: PodRecord, host: Host) -> Decision:
    """Return why a restored pod waits; it holds nothing, even if it would fit now."""
    if record.decision.rejection is not None:
        return record.decision
    if missing_resources := tuple(pending_admission.unknown_resources(host, record.pod)):
        return pending_admission.rejected_for_missing_devices(record.decision, missing_resources)
    return pending_admission.waiting_since_restart(record.decision)


def _imported(empty: AgentState, kubelet: ImportedState, *, now: float) -> RecoveryResult:
    """Continue from the state of a kubelet; devices that the machine does not declare belong to plugins."""
    if unreleasable := _unreleasable(kubelet.ledger.pods):
        return RecoveryResult(state=empty, problems=tuple(map(RecoveryProblem, unreleasable.values())))
    host = empty.host.with_ledger(kubelet.ledger)
    admitted_pods = {
        uid: replace(_record(entry.pod, host, since=now, source=API_SOURCE), grants=kubelet.grants.get(uid, {}))
        for uid, entry in kubelet.ledger.pods.items()
    }
    declared_resources = {device.resource for device in host.machine.devices}
    plugins = frozenset(host.ledger.devices.inventories) - declared_resources
    return RecoveryResult(state=replace(empty, host=host, admitted=admitted_pods, plugins=plugins))


def _unreleasable(uids: Iterable[str]) -> dict[str, str]:
    """Return the invalid uids, each with the reason."""
    reasons = {}
    for uid in uids:
        try:
            check_uid(uid)
        except PodError as error:
            reasons[uid] = f"the uid of a pod is invalid: {error}"
    return reasons


def _record(pod: Pod, host: Host, *, since: float, source: str) -> PodRecord:
    """Return the record of a restored pod; the latest decision about an admitted pod is that it keeps its resources."""
    decision = host.decide(pod).without_ledgers()
    return PodRecord(pod=pod, since=since, source=source, decision=decision)
