"""What stands, written down: the checkpoint after every change, encoding only what is new in it."""

from collections.abc import Mapping

from alignup.agent.finished_pods import FinishedPod
from alignup.agent.pod_record import PodRecord
from alignup.agent.state import AgentState
from alignup.agent.wait_queue import WaitQueue
from alignup.align.host import Host
from alignup.align.ledger import Ledger
from alignup.schema import codec
from alignup.schema.checkpoints import FinishedPodDocument, HeldPodDocument, TerminationDocument, WaitingPodDocument
from alignup.schema.ledgers.documents import pod_entry, residue
from alignup.schema.pods import pod_document
from alignup.state.checkpoint import Checkpoint, CheckpointStore
from alignup.state.fingerprint import machine_fingerprint, settings_fingerprint


class Checkpointer:
    """Stores what stands on a host; ``CheckpointError`` when it cannot be stored.

    Whoever changes what a pod holds has to make a new :class:`PodRecord` of it.
    """

    def __init__(self, store: CheckpointStore, host: Host) -> None:
        self._store = store
        self._machine = machine_fingerprint(host.machine)
        self._settings = settings_fingerprint(host.settings)
        self._running: dict[str, tuple[PodRecord, bytes]] = {}  #: by uid
        self._inventories: object = None  #: the devices there were when these were made
        self._waiting: dict[str, tuple[object, bytes]] = {}  #: uid → the pod, and its document up to the last value
        self._finished: dict[str, tuple[FinishedPod, bytes]] = {}  #: by uid

    def __call__(self, standing: AgentState) -> None:
        """Store *standing* for good."""
        ledger = standing.settled().ledger
        self._store.save(
            Checkpoint(
                machine=self._machine,
                settings=self._settings,
                residue=residue(ledger, providers=standing.host.providers),
                plugins=sorted(standing.plugins),
                pods=self._pods(ledger, standing.held),
                waiting=self._line(standing.line),
                finished=self._finished_pods(standing.finished),
            )
        )

    def _pods(self, ledger: Ledger, held: Mapping[str, PodRecord]) -> list[bytes]:
        """The fragment of every pod that runs here: made once, and anew when plugins say where devices are now."""
        inventories = ledger.devices.inventories
        if inventories is not self._inventories:
            self._running, self._inventories = {}, inventories
        now = {}
        for uid, known in held.items():
            before = self._running.get(uid)
            now[uid] = before if before is not None and before[0] is known else (known, _held(ledger, known))
        self._running = now
        return [encoded for _, encoded in now.values()]

    def _finished_pods(self, finished: Mapping[str, FinishedPod]) -> list[bytes]:
        now = {}
        for uid, one in finished.items():
            before = self._finished.get(uid)
            now[uid] = before if before is not None and before[0] is one else (one, _finished(one))
        self._finished = now
        return [encoded for _, encoded in now.values()]

    def _line(self, line: WaitQueue) -> list[bytes]:
        now = {}
        for uid, known in line.pods.items():
            before = self._waiting.get(uid)
            now[uid] = before if before is not None and before[0] is known.pod else (known.pod, _waiting(known))
        self._waiting = now
        return [b"%s%d}" % (encoded, line.overtakes.get(uid, 0)) for uid, (_, encoded) in now.items()]


def _held(ledger: Ledger, known: PodRecord) -> bytes:
    return codec.encode(
        HeldPodDocument(
            entry=pod_entry(ledger, known.pod.uid),
            since=known.since,
            source=known.source,
            grants=known.grants,
            manifest=_manifest(known),
            termination=_termination(known),
        )
    )


def _waiting(known: PodRecord) -> bytes:
    """Return a waiting pod's document without its last value, which changes with every pod that overtakes it."""
    document = codec.encode(
        WaitingPodDocument(
            pod=pod_document(known.pod),
            since=known.since,
            source=known.source,
            manifest=_manifest(known),
            termination=_termination(known),
            overtaken=0,
        )
    )
    return document.removesuffix(b"0}")


def _finished(finished: FinishedPod) -> bytes:
    known = finished.known
    return codec.encode(
        FinishedPodDocument(
            pod=pod_document(known.pod),
            since=known.since,
            source=known.source,
            manifest=_manifest(known),
            termination=_termination(known),
            run=finished.run,
            decision=dict(known.record.to_document()),
        )
    )


def _manifest(known: PodRecord) -> str | None:
    return known.pod.manifest.text if known.pod.manifest else None


def _termination(known: PodRecord) -> TerminationDocument | None:
    return None if known.ending is None else TerminationDocument(known.ending.since, known.ending.grace)
