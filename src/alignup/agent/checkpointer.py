"""Writes the agent's state to the checkpoint, and encodes only the pods that have changed."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from alignup.agent.pod_record import FinishedPod, PodRecord
from alignup.agent.state import AgentState
from alignup.align.host import Host
from alignup.align.ledger import Ledger
from alignup.schema import codec
from alignup.schema.checkpoints import FinishedPodDocument, HeldPodDocument, TerminationDocument, WaitingPodDocument
from alignup.schema.decisions import decision_document
from alignup.schema.ledgers.documents import pod_entry, residue
from alignup.schema.pods import pod_document
from alignup.state.checkpoint import Checkpoint, CheckpointStore
from alignup.state.fingerprint import machine_fingerprint, settings_fingerprint

_Record = TypeVar("_Record", PodRecord, FinishedPod)
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
        self._admitted = _encode_new(self._admitted, state.admitted, lambda one: _admitted(ledger, one))
        self._waiting = _encode_new(self._waiting, state.waiting.pods, _waiting)
        self._finished = _encode_new(self._finished, state.finished, _finished)
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


def _encode_new(before: _Encoded, records: Mapping[str, _Record], encode: Callable[[_Record], bytes]) -> _Encoded:
    """Encode the records that have changed; a waiting pod's document does not contain its latest decision."""
    encoded: _Encoded = {}
    for uid, record in records.items():
        identity = record.pod if isinstance(record, PodRecord) and encode is _waiting else record
        known = before.get(uid)
        encoded[uid] = known if known is not None and known[0] is identity else (identity, encode(record))
    return encoded


def _admitted(ledger: Ledger, record: PodRecord) -> bytes:
    entry = pod_entry(ledger, record.pod.uid)
    return codec.encode(HeldPodDocument(entry=entry, grants=record.grants, **_common(record)))


def _waiting(record: PodRecord) -> bytes:
    """Return the document without its last value, which changes with every pod that overtakes."""
    document = WaitingPodDocument(pod=pod_document(record.pod), overtaken=0, **_common(record))
    return codec.encode(document).removesuffix(b"0}")


def _finished(finished: FinishedPod) -> bytes:
    record = finished.record
    pod, decision = pod_document(record.pod), decision_document(record.decision)
    return codec.encode(FinishedPodDocument(pod=pod, run=finished.run, decision=decision, **_common(record)))


def _common(record: PodRecord) -> dict[str, Any]:
    request = record.termination
    return {
        "since": record.since,
        "source": record.source,
        "manifest": record.pod.manifest.text if record.pod.manifest else None,
        "termination": None if request is None else TerminationDocument(request.since, request.grace),
    }
