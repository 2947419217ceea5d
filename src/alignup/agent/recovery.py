"""What stood when the agent last wrote it down, put together again on the host as it is now.

The host may have changed since. Where every pod can still have what it had, the agent goes on and says what changed.
Where one cannot, it starts all the same, answers questions, and decides nothing: the checkpoint stays untouched until
somebody has said what to do. So nothing is lost without a word, and nobody is restarted for ever.
"""

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from alignup.agent import finished_pods as finishing
from alignup.agent.checkpointer import FINISHED_KEY, PLUGINS_KEY
from alignup.agent.devices import device_state
from alignup.agent.finished_pods import FinishedPod
from alignup.agent.pending_admission import PodGrants
from alignup.agent.pod_record import API_SOURCE, Document, PodRecord, StoredRecord, TerminationRequest
from alignup.agent.state import AgentState
from alignup.agent.wait_queue import WaitQueue
from alignup.align.errors import AlignError, CheckpointError, PodError, RestoreError, StateError, WorkLimitError
from alignup.align.host import Host
from alignup.align.ledger import Ledger
from alignup.align.workload import Pod
from alignup.kube.podspec import PodManifest
from alignup.schema import decisions, ledgers
from alignup.state.checkpoint import CheckpointStore, LoadedCheckpoint
from alignup.state.fingerprint import machine_fingerprint, settings_fingerprint

_ADVICE = (
    "put the machine or the configuration back as it was, "
    "or start with --recover drop-misfits to release just these pods"
)
_DAMAGE = "start the alignup that wrote it, or with --recover previous once it is moved away"


class RecoveryMode(StrEnum):
    """What may be given up when not everything can be had again."""

    PREVIOUS = "previous"  #: where the checkpoint is no good, the one before it counts
    DROP_MISFITS = "drop-misfits"  #: pods that cannot have what they had are released


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryOptions:
    """How the agent was told to go about it."""

    line: WaitQueue = field(default_factory=WaitQueue)  #: empty, with its limits
    wait: bool = False
    recover: frozenset[RecoveryMode] = frozenset()


@dataclass(frozen=True, slots=True)
class ImportedState:
    """What a kubelet left."""

    ledger: Ledger
    grants: Mapping[str, PodGrants] = field(default_factory=dict)  #: by uid


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryResult:
    """What stands again."""

    standing: AgentState
    problems: tuple[str, ...] = ()  #: why nothing may be decided, each with what to do; then nothing may be written
    notes: tuple[str, ...] = ()  #: what people should know, a sentence each


def recover(
    store: CheckpointStore,
    host: Host,
    *,
    terms: RecoveryOptions,
    now: float,
    imported: Callable[[], ImportedState] | None = None,
) -> RecoveryResult:
    """What stood on *host*, which is idle; where nothing was ever stored, what *imported* tells, or nothing."""
    empty = AgentState(host=host, idle=host.ledger, line=terms.line, wait=terms.wait)
    try:
        loaded = _loaded(store, terms)
    except CheckpointError as error:
        return RecoveryResult(standing=empty, problems=(str(error),))
    if loaded is None:
        return RecoveryResult(standing=empty if imported is None else _imported(empty, imported(), now=now))
    changes = (
        *(f"the machine changed: {what}" for what in loaded.machine.changes(machine_fingerprint(host.machine))),
        *(f"the settings changed: {what}" for what in loaded.settings.changes(settings_fingerprint(host.settings))),
    )
    found = _rebuilt(loaded, _unplugged(empty, loaded.extra.get(PLUGINS_KEY, ())), terms=terms, now=now)
    finished, lost = _finished(loaded.extra.get(FINISHED_KEY, ()))
    found = replace(found, standing=replace(found.standing, finished=finished), notes=(*found.notes, *lost))
    unused = () if imported is None else ("there is a checkpoint, so the kubelet's state files were not looked at",)
    return replace(found, notes=(*loaded.notes, *unused, *changes, *found.notes))


def _loaded(store: CheckpointStore, terms: RecoveryOptions) -> LoadedCheckpoint | None:
    """The checkpoint; the one before it only where this one is no good, so that leaving the option on does no harm."""
    try:
        return store.load()
    except CheckpointError:
        if RecoveryMode.PREVIOUS not in terms.recover:
            raise
        return store.load(previous=True)


def _unplugged(empty: AgentState, served: Iterable[str]) -> AgentState:
    """*empty*, where devices of resources that plugins served are unknown until these are back."""
    plugins = frozenset(map(str, served))
    host = _with(empty.host, device_state.without_resources(empty.host.ledger, plugins))
    return replace(empty, host=host, plugins=plugins)


def _rebuilt(loaded: LoadedCheckpoint, empty: AgentState, *, terms: RecoveryOptions, now: float) -> RecoveryResult:
    """What the checkpoint says, as far as it can be so."""
    document, misfits = _fitting(loaded.document, empty.host)
    if document is None:
        return RecoveryResult(standing=empty, problems=tuple(f"{what}; {_DAMAGE}" for what in misfits))
    try:
        standing, dropped = _standing(document, loaded.waiting, empty, now=now)
    except (AlignError, KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"the checkpoint makes no sense: {type(error).__name__}: {error}"
        return RecoveryResult(standing=empty, problems=(f"{what}; {_DAMAGE}",))
    if misfits and RecoveryMode.DROP_MISFITS not in terms.recover:
        return RecoveryResult(standing=standing, problems=tuple(f"{what}; {_ADVICE}" for what in misfits))
    released = (f"released, as it cannot stay: {what}" for what in misfits)
    return RecoveryResult(standing=standing, notes=(*released, *dropped))


def _fitting(document: Mapping[str, Any], host: Host) -> tuple[Mapping[str, Any] | None, tuple[str, ...]]:
    """The document without pods that cannot have what they had, and why; ``None`` when it is not about pods."""
    misfits: tuple[str, ...] = ()
    while True:
        try:
            ledgers.from_document(document, host.ledger, providers=host.providers)
        except RestoreError as error:
            misfits += error.problems
            if not error.uids:
                return None, misfits
            document = ledgers.without_pods(document, error.uids)
        except StateError as error:
            return None, (*misfits, str(error))
        else:
            return document, misfits


def _standing(
    document: Mapping[str, Any], waiting: tuple[Any, ...], empty: AgentState, *, now: float
) -> tuple[AgentState, list[str]]:
    """What stands, given a document that fits, and who cannot wait any longer."""
    ledger = ledgers.from_document(document, empty.host.ledger, providers=empty.host.providers)
    host = _with(empty.host, ledger)
    held = {}
    for piece, (uid, resident) in zip(document["pods"], ledger.pods.items(), strict=True):
        since, source = piece.get("since", now), piece.get("source", API_SOURCE)
        known = _known(_with_manifest(resident.pod, piece), host, since=float(since), source=str(source))
        held[uid] = replace(known, grants=_grants(piece.get("grants", {})), ending=_ending(piece))
    pods, overtaken, dropped = {}, {}, []
    for one in waiting:
        pod = _with_manifest(ledgers.read_pod(one["pod"]), one)
        try:
            pods[pod.uid] = _known(pod, host, since=float(one["since"]), source=str(one["source"]))
        except (PodError, WorkLimitError) as error:  # by settings that are new
            dropped.append(f"{pod.namespace}/{pod.name} waits no longer: {error}")
        else:
            overtaken[pod.uid] = int(one["overtaken"])
    line = replace(empty.line, pods=pods, overtakes={uid: times for uid, times in overtaken.items() if times})
    return replace(empty, host=host, held=held, line=line), dropped


def _finished(documents: Iterable[Mapping[str, Any]]) -> tuple[dict[str, FinishedPod], list[str]]:
    """Pods that have run, and what cannot be read of them, which nobody needs to go on."""
    found, lost = {}, []
    for one in documents:
        try:
            pod = _with_manifest(ledgers.read_pod(one["pod"]), one)
            kept = StoredRecord(decisions.from_document(one["decision"]))
            kept.to_document()
            known = PodRecord(pod=pod, since=float(one["since"]), source=str(one["source"]), record=kept)
            run = finishing.run_from_document(one["run"])
            found[pod.uid] = FinishedPod(known=replace(known, ending=_ending(one)), run=run)
        except (AlignError, KeyError, TypeError, ValueError, AttributeError) as error:
            lost.append(f"a pod that has run is forgotten, as it cannot be read: {type(error).__name__}: {error}")
    return found, lost


def _with_manifest(pod: Pod, document: Mapping[str, Any]) -> Pod:
    """A pod, with its manifest where that was kept."""
    manifest = document.get("manifest")
    return replace(pod, manifest=PodManifest(str(manifest))) if manifest else pod


def _ending(document: Mapping[str, Any]) -> TerminationRequest | None:
    """When a pod was told to end."""
    told = document.get("ending")
    if told is None:
        return None
    return TerminationRequest(float(told["since"]), None if told["grace"] is None else float(told["grace"]))


def _imported(empty: AgentState, found: ImportedState, *, now: float) -> AgentState:
    """What stands where a kubelet left off; devices the machine does not tell of are those of plugins."""
    host = _with(empty.host, found.ledger)
    held = {
        uid: replace(_known(one.pod, host, since=now, source=API_SOURCE), grants=found.grants.get(uid, {}))
        for uid, one in found.ledger.pods.items()
    }
    declared = {device.resource for device in host.machine.devices}
    return replace(
        empty, host=host, held=held, plugins=frozenset(device_state.device_ledger(host).inventories) - declared
    )


def _with(host: Host, ledger: Ledger) -> Host:
    """The same host with another ledger."""
    other = copy(host)
    other.ledger = ledger
    return other


def _known(pod: Pod, host: Host, *, since: float, source: str) -> PodRecord:
    """A pod as it is found again: of one that runs here the newest decision is that it keeps what it has."""
    kept = StoredRecord(host.decide(pod))
    kept.to_document()
    return PodRecord(pod=pod, since=since, source=source, record=kept)


def _grants(document: Mapping[str, Any]) -> dict[str, dict[str, Document]]:
    """What device plugins gave with the devices, as it was kept."""
    return {
        container: {resource: dict(given) for resource, given in own.items()} for container, own in document.items()
    }
