"""Writes the agent's state to the checkpoint, and encodes only the pods that have changed."""

from collections.abc import Mapping
from typing import Any

from alignup.agent.pod_record import PodRecord
from alignup.agent.state import AgentState
from alignup.align.host import Host
from alignup.align.ledger import Ledger
from alignup.schema import codec
from alignup.schema.checkpoints import FinishedPodDocument, HeldPodDocument, WaitingPodDocument
from alignup.schema.decisions import decision_document
from alignup.schema.ledgers.documents import pod_entry, residue
from alignup.schema.pods import pod_document
from alignup.state.checkpoint import Checkpoint, CheckpointStore
from alignup.state.fingerprint import machine_fingerprint, settings_fingerprint

_Encoded = dict[str, tuple[object, bytes]]  # uid → the object whose identity stands for the document, and the document


class Checkpointer:
    """Saves states of a host; raises ``CheckpointError``.

    A pod whose holdings change must get a new :class:`PodRecord`, or its old encoding is written again.
    """

    def __init__(self, store: CheckpointStore, host: Host) -> None:
        self._store = store
        self._machine = machine_fingerprint(host.machine)
        self._settings = settings_fingerprint(host.settings)
        self._inventories: object = None  #: the devices when the admitted pods were encoded
        self._admitted: _Encoded = {}
        self._waiting: _Encoded = {}  #: documents without their last value
        self._finished: _Encoded = {}

    def __call__(self, state: AgentState) -> None:
        ledger = (state.settled_host() if state.pending else state.host).ledger
        if ledger.devices.inventories is not self._inventories:
            self._admitted, self._inventories = {}, ledger.devices.inventories
        self._admitted = _encode_new(self._admitted, state.admitted, ledger)
        self._waiting = _encode_new(self._waiting, state.waiting.pods)
        self._finished = _encode_new(self._finished, state.finished)
        overtakes = state.waiting.overtakes
        self._store.save(
            Checkpoint(
                machine=self._machine,
                settings=self._settings,
                residue=residue(ledger, providers=state.host.providers),
                plugins=sorted(state.plugins),
                pods=[encoded for _, encoded in self._admitted.values()],
                waiting=[b"%s%d}" % (text, overtakes.get(uid, 0)) for uid, (_, text) in self._waiting.items()],
                finished=[encoded for _, encoded in self._finished.values()],
            )
        )


def _encode_new(before: _Encoded, pods: Mapping[str, PodRecord], ledger: Ledger | None = None) -> _Encoded:
    """Encode the pods that have changed; with a *ledger*, they are admitted pods."""
    encoded: _Encoded = {}
    for uid, record in pods.items():
        waiting = ledger is None and record.run is None
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
        document: HeldPodDocument | WaitingPodDocument | FinishedPodDocument
        if ledger is not None:
            document = HeldPodDocument(entry=pod_entry(ledger, uid), grants=record.grants, **common)
        elif record.run is None:
            document = WaitingPodDocument(pod=pod_document(record.pod), overtaken=0, **common)
        else:
            pod, decision = pod_document(record.pod), decision_document(record.decision)
            document = FinishedPodDocument(pod=pod, run=record.run, decision=decision, **common)
        text = codec.encode(document)
        # The last value of a waiting pod changes with every pod that overtakes it, and is added later.
        encoded[uid] = identity, text.removesuffix(b"0}") if waiting else text
    return encoded
