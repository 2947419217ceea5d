"""What stood when the agent last wrote it down, put together again on the host as it is now.

The host may have changed since. Where every pod can still have what it had, the agent goes on and says what changed.
Where one cannot, it starts all the same, answers questions, and decides nothing: the checkpoint stays untouched until
somebody has said what to do. So nothing is lost without a word, and nobody is restarted for ever.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from enum import StrEnum

from alignup.agent.devices import device_state
from alignup.agent.finished_pods import FinishedPod
from alignup.agent.pending_admission import PodGrants
from alignup.agent.pod_record import API_SOURCE, PodRecord, StoredRecord, TerminationRequest
from alignup.agent.state import AgentState
from alignup.agent.wait_queue import WaitQueue
from alignup.align.errors import AlignError, CheckpointError, PodError, RestoreError, StateError, WorkLimitError
from alignup.align.host import Host
from alignup.align.ledger import Ledger
from alignup.align.workload import Pod
from alignup.kube.podspec import PodManifest
from alignup.schema import codec
from alignup.schema.checkpoints import (
    CheckpointDocument,
    FinishedPodDocument,
    HeldPodDocument,
    TerminationDocument,
    WaitingPodDocument,
)
from alignup.schema.decisions import from_document
from alignup.schema.ledgers.restore import restore_ledger
from alignup.schema.pods import PodDocument, read_pod
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
    document = loaded.document
    changes = (
        *(f"the machine changed: {what}" for what in document.machine.differences(machine_fingerprint(host.machine))),
        *(
            f"the settings changed: {what}"
            for what in document.settings.differences(settings_fingerprint(host.settings))
        ),
    )
    found = _rebuilt(document, _unplugged(empty, document.plugins), terms=terms, now=now)
    finished, lost = _finished(document.finished)
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
    plugins = frozenset(served)
    host = _with(empty.host, device_state.without_resources(empty.host.ledger, plugins))
    return replace(empty, host=host, plugins=plugins)


def _rebuilt(document: CheckpointDocument, empty: AgentState, *, terms: RecoveryOptions, now: float) -> RecoveryResult:
    """Return the state that the checkpoint describes, as far as the host still allows it."""
    pods, ledger, misfits = _restorable(document, empty.host)
    if ledger is None:
        return RecoveryResult(standing=empty, problems=tuple(f"{what}; {_DAMAGE}" for what in misfits))
    try:
        standing, dropped = _standing(pods, ledger, document.waiting, empty, now=now)
    except (AlignError, ValueError) as error:
        return RecoveryResult(standing=empty, problems=(f"the checkpoint is invalid: {error}; {_DAMAGE}",))
    if misfits and RecoveryMode.DROP_MISFITS not in terms.recover:
        return RecoveryResult(standing=standing, problems=tuple(f"{what}; {_ADVICE}" for what in misfits))
    released = (f"released, as it cannot stay: {what}" for what in misfits)
    return RecoveryResult(standing=standing, notes=(*released, *dropped))


def _restorable(
    document: CheckpointDocument, host: Host
) -> tuple[Sequence[HeldPodDocument], Ledger | None, tuple[str, ...]]:
    """Return the pods that can keep what they hold, their ledger, and why the others cannot.

    The ledger is ``None`` if the problem is not about single pods.
    """
    pods, misfits = document.pods, tuple[str, ...]()
    while True:
        try:
            entries = [pod.entry for pod in pods]
            ledger = restore_ledger(entries, document.residue, idle=host.ledger, providers=host.providers)
        except RestoreError as error:
            misfits += error.problems
            if not error.uids:
                return pods, None, misfits
            pods = [pod for pod in pods if pod.entry.pod.uid not in error.uids]
        except StateError as error:
            return pods, None, (*misfits, str(error))
        else:
            return pods, ledger, misfits


def _standing(
    documents: Sequence[HeldPodDocument],
    ledger: Ledger,
    waiting: Sequence[WaitingPodDocument],
    empty: AgentState,
    *,
    now: float,
) -> tuple[AgentState, list[str]]:
    """Return the restored state, and why some pods no longer wait."""
    host = _with(empty.host, ledger)
    held = {}
    for one, (uid, admitted) in zip(documents, ledger.pods.items(), strict=True):
        pod = _with_manifest(admitted.pod, one.manifest)
        since = now if one.since is None else one.since
        known = _known(pod, host, since=since, source=one.source or API_SOURCE)
        held[uid] = replace(known, grants=one.grants, ending=_termination(one.termination))
    pods, overtaken, dropped = {}, {}, []
    for each in waiting:
        pod = _read_pod(each.pod, each.manifest)
        try:
            pods[pod.uid] = _known(pod, host, since=each.since, source=each.source)
        except (PodError, WorkLimitError) as error:  # by settings that are new
            dropped.append(f"{pod.namespace}/{pod.name} waits no longer: {error}")
        else:
            overtaken[pod.uid] = each.overtaken
    line = replace(empty.line, pods=pods, overtakes={uid: times for uid, times in overtaken.items() if times})
    return replace(empty, host=host, held=held, line=line), dropped


def _finished(documents: Iterable[object]) -> tuple[dict[str, FinishedPod], list[str]]:
    """Return the finished pods, and why some cannot be read; nothing depends on them."""
    found, lost = {}, []
    for document in documents:
        try:
            one = codec.convert(document, FinishedPodDocument)
            pod = _read_pod(one.pod, one.manifest)
            kept = StoredRecord(from_document(one.decision))
            kept.to_document()
            known = PodRecord(
                pod=pod, since=one.since, source=one.source, record=kept, ending=_termination(one.termination)
            )
            found[pod.uid] = FinishedPod(known=known, run=one.run)
        except (AlignError, KeyError, TypeError, ValueError) as error:
            lost.append(f"a finished pod is forgotten because it cannot be read: {error}")
    return found, lost


def _read_pod(document: PodDocument, manifest: str | None) -> Pod:
    return _with_manifest(read_pod(document), manifest)


def _with_manifest(pod: Pod, manifest: str | None) -> Pod:
    return replace(pod, manifest=PodManifest(manifest)) if manifest else pod


def _termination(document: TerminationDocument | None) -> TerminationRequest | None:
    return None if document is None else TerminationRequest(document.since, document.grace)


def _imported(empty: AgentState, found: ImportedState, *, now: float) -> AgentState:
    """What stands where a kubelet left off; devices the machine does not tell of are those of plugins."""
    host = _with(empty.host, found.ledger)
    held = {
        uid: replace(_known(one.pod, host, since=now, source=API_SOURCE), grants=found.grants.get(uid, {}))
        for uid, one in found.ledger.pods.items()
    }
    declared = {device.resource for device in host.machine.devices}
    return replace(empty, host=host, held=held, plugins=frozenset(host.ledger.devices.inventories) - declared)


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
