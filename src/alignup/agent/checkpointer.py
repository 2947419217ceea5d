"""Writes the agent's state to the checkpoint, and encodes only the pods that have changed.

The checkpoint has a size limit for new pods, and a higher one for everything else: pods must be able to terminate and
finish, and be released, when there is no space for more.
"""

from collections.abc import Mapping
from typing import Any

from alignup.agent.pod_record import PodRecord
from alignup.agent.state import AgentState
from alignup.align.errors import CheckpointFullError
from alignup.align.host import Host
from alignup.align.ledger import Ledger
from alignup.schema import codec
from alignup.schema.checkpoints import HeldPodDocument, WaitingPodDocument
from alignup.schema.ledgers.documents import pod_entry, residue
from alignup.schema.pods import pod_document
from alignup.state.checkpoint import MAX_BYTES, Checkpoint, CheckpointStore
from alignup.state.fingerprint import machine_fingerprint, settings_fingerprint

MAX_BYTES_WITH_NEW_POD = MAX_BYTES // 4 * 3  #: of the checkpoint

_Encoded = dict[str, tuple[object, bytes]]  # uid → the object whose identity stands for the document, and the document


class Checkpointer:
    """Saves states of a host; raises ``CheckpointError``, and ``CheckpointFullError`` for a state that is too large.

    A pod whose holdings change must get a new :class:`PodRecord`, or its old encoding is written again.
    """

    def __init__(self, store: CheckpointStore, host: Host, *, limit: int = MAX_BYTES_WITH_NEW_POD) -> None:
        self._store = store
        self._limit = limit  #: bytes with a new pod
        self._saved: AgentState | None = None
        self._machine = machine_fingerprint(host.machine)
        self._settings = settings_fingerprint(host.settings)
        self._inventories: object = None  #: the devices when the admitted pods were encoded
        self._admitted: _Encoded = {}
        self._waiting: _Encoded = {}  #: documents without their last value

    def __call__(self, state: AgentState) -> None:
        ledger = (state.settled_host() if state.pending else state.host).ledger
        if ledger.devices.inventories is not self._inventories:
            self._admitted, self._inventories = {}, ledger.devices.inventories
        self._admitted = _encode_new(self._admitted, state.admitted, ledger)
        self._waiting = _encode_new(self._waiting, state.waiting.pods)
        overtakes = state.waiting.overtakes
        checkpoint = Checkpoint(
            machine=self._machine,
            settings=self._settings,
            residue=residue(ledger, providers=state.host.providers),
            plugins=sorted(state.plugins),
            pods=[encoded for _, encoded in self._admitted.values()],
            waiting=[b"%s%d}" % (text, overtakes.get(uid, 0)) for uid, (_, text) in self._waiting.items()],
            finished=[record.finished_document for record in state.finished.values()],
        )
        try:
            self._store.save(checkpoint, limit=self._limit)
        except CheckpointFullError:
            if self._saved is not None and _has_new_pods(state, self._saved):
                raise
            self._store.save(checkpoint)
        self._saved = state


def _has_new_pods(state: AgentState, before: AgentState) -> bool:
    """Whether a pod is new, or new devices are granted to one that was waiting."""
    known = before.admitted.keys() | before.waiting.pods.keys()
    granted = {uid for uid, record in state.admitted.items() if record.grants and uid not in before.admitted}
    return bool(granted or (state.admitted.keys() | state.waiting.pods.keys()) - known)


def _encode_new(before: _Encoded, pods: Mapping[str, PodRecord], ledger: Ledger | None = None) -> _Encoded:
    """Encode the pods that have changed; with a *ledger*, they are admitted pods, else they are waiting."""
    encoded: _Encoded = {}
    for uid, record in pods.items():
        waiting = ledger is None
        identity = record.pod if waiting else record  # the document of a waiting pod has no decision
        known = before.get(uid)
        if known is not None and known[0] is identity:
            encoded[uid] = known
            continue
        common: dict[str, Any] = {
            "since": record.since,
            "source": record.source,
            "manifest": record.pod.manifest.text if record.pod.manifest else None,
            "termination": record.termination,
        }
        document: HeldPodDocument | WaitingPodDocument
        if ledger is not None:
            document = HeldPodDocument(entry=pod_entry(ledger, uid), grants=record.grants, **common)
        else:
            document = WaitingPodDocument(pod=pod_document(record.pod), overtaken=0, **common)
        text = codec.encode(document)
        # The last value of a waiting pod changes with every pod that overtakes it, and is added later.
        encoded[uid] = identity, text.removesuffix(b"0}") if waiting else text
    return encoded
