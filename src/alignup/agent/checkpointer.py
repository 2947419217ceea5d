"""What stands, written down: the checkpoint after every change, encoding only what is new in it."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from alignup.agent import finished_pods as finishing
from alignup.agent.finished_pods import FinishedPod
from alignup.agent.pod_record import PodRecord
from alignup.agent.state import AgentState
from alignup.agent.wait_queue import WaitQueue
from alignup.align.host import Host
from alignup.align.ledger import Ledger
from alignup.align.providers import DeviceProvider
from alignup.align.workload import Pod
from alignup.schema import ledgers
from alignup.state.checkpoint import Checkpoint, CheckpointStore, encode_fragment
from alignup.state.fingerprint import machine_fingerprint, settings_fingerprint

PLUGINS_KEY = "plugins"  #: under which it is kept which resources device plugins serve
FINISHED_KEY = "finished"  #: under which pods are kept that have run

_Waiting = tuple[Pod, bytes]  # the pod, and its fragment but for the last field


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
        self._waiting: dict[str, _Waiting] = {}  #: by uid
        self._finished: tuple[Mapping[str, FinishedPod], list[dict[str, Any]]] = ({}, [])

    def __call__(self, standing: AgentState) -> None:
        """Store *standing* for good."""
        ledger = standing.settled().ledger
        self._store.save(
            Checkpoint(
                machine=self._machine,
                settings=self._settings,
                crumbs=ledgers.crumbs(ledger, providers=standing.host.providers),
                pods=self._pods(ledger, standing.held),
                waiting=self._line(standing.line),
                extra={PLUGINS_KEY: sorted(standing.plugins), **self._ended(standing.finished)},
            )
        )

    def _pods(self, ledger: Ledger, held: Mapping[str, PodRecord]) -> list[bytes]:
        """The fragment of every pod that runs here: made once, and anew when plugins say where devices are now."""
        inventories = ledger.books[DeviceProvider.name].inventories
        if inventories is not self._inventories:
            self._running, self._inventories = {}, inventories
        now = {}
        for uid, known in held.items():
            before = self._running.get(uid)
            now[uid] = before if before is not None and before[0] is known else (known, _running(ledger, known))
        self._running = now
        return [encoded for _, encoded in now.values()]

    def _ended(self, finished: Mapping[str, FinishedPod]) -> dict[str, Any]:
        """Those that have run, written anew only when one of them is new."""
        if finished != self._finished[0]:
            self._finished = finished, [_ended(one) for one in finished.values()]
        return {FINISHED_KEY: self._finished[1]} if finished else {}

    def _line(self, line: WaitQueue) -> list[bytes]:
        """The fragment of every pod that waits: all but how often it was overtaken stays the same."""
        now = {}
        for uid, known in line.pods.items():
            before = self._waiting.get(uid)
            now[uid] = before if before is not None and before[0] is known.pod else (known.pod, _waiting(known))
        self._waiting = now
        return [b'%s,"overtaken":%d}' % (encoded, line.overtakes.get(uid, 0)) for uid, (_, encoded) in now.items()]


def _running(ledger: Ledger, known: PodRecord) -> bytes:
    document = {**ledgers.pod_document(ledger, known.pod.uid), "since": known.since, "source": known.source}
    if known.grants:
        document["grants"] = known.grants
    return encode_fragment(document | _beyond(known))


def _waiting(known: PodRecord) -> bytes:
    document = {"pod": ledgers.written_pod(known.pod), "since": known.since, "source": known.source}
    return encode_fragment(document | _beyond(known)).removesuffix(b"}")


def _ended(finished: FinishedPod) -> dict[str, Any]:
    known = finished.known
    document = {
        "pod": ledgers.written_pod(known.pod),
        "since": known.since,
        "source": known.source,
        "run": finishing.run_to_document(finished.run),
        "decision": known.record.to_document(),
    }
    return document | _beyond(known)


def _beyond(known: PodRecord) -> dict[str, Any]:
    """What there is to know of a pod that somebody runs."""
    document: dict[str, Any] = {"manifest": known.pod.manifest.text} if known.pod.manifest else {}
    if known.ending is not None:
        document["ending"] = asdict(known.ending)
    return document
