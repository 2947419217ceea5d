"""Makes the agent's state durable: appends what changed to the journal, or writes a whole checkpoint.

A change costs the same however many pods there are: only pods that changed are looked at and encoded. A checkpoint is
written when the journal is as large as the checkpoint, when the devices of the host change, after a failed append, and
when the agent is idle. On a full disk, a new pod for whose record there is no space is rejected, and everything else is
written as a whole checkpoint: that of fewer pods is smaller than the journal.

The checkpoint and its journal have a size limit for new pods, and a higher one for everything else: pods must be able
to be released when there is no space for more.
"""

import errno
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from alignup.agent.pod_record import PodRecord
from alignup.agent.state import AgentState
from alignup.align.errors import AlignError, CheckpointError, CheckpointFullError
from alignup.align.host import Host
from alignup.align.ledger import Ledger
from alignup.documents import codec
from alignup.documents.checkpoints import HeldPodDocument, WaitingPodDocument
from alignup.documents.ledgers.documents import check_holders, pod_entry, residue
from alignup.documents.pods import pod_document
from alignup.store.checkpoint import MAX_BYTES, CheckpointStore
from alignup.store.checkpoint_format import Checkpoint
from alignup.store.fingerprint import machine_fingerprint, settings_fingerprint
from alignup.store.journal import JournalChange

MAX_BYTES_WITH_NEW_POD = MAX_BYTES // 4 * 3  #: of the checkpoint and its journal
MAX_JOURNAL_BYTES = 4 << 20  #: of the journal, unless the checkpoint is larger
IDLE_JOURNAL_BYTES = 64 << 10  #: of the journal of an idle agent

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

_Encoded = dict[str, tuple[object, bytes]]  # uid → the object whose identity stands for the document, and the document


class Checkpointer:
    """Saves states of a host; raises ``CheckpointError``, and ``CheckpointFullError`` for a state that is too large.

    A pod whose holdings change must get a new :class:`PodRecord`, or its old encoding is written again.
    """

    def __init__(self, store: CheckpointStore, host: Host, *, limit: int = MAX_BYTES_WITH_NEW_POD) -> None:
        self._store = store
        self._limit = limit  #: bytes with a new pod
        self._saved: AgentState | None = None
        self._lacks_space = False  #: whether there was no space for a record; a checkpoint makes the journal obsolete
        self._machine = machine_fingerprint(host.machine)
        self._settings = settings_fingerprint(host.settings)
        self._inventories: object = None  #: the devices when the admitted pods were encoded
        self._admitted: _Encoded = {}
        self._waiting: _Encoded = {}  #: documents without their last value

    def __call__(self, state: AgentState) -> None:
        if self._lacks_space:
            self._save_without_space(state)
        elif not self._append(state):
            self._save(state)
        self._saved = state

    def fold(self) -> None:
        """Write a checkpoint if the journal is worth it; if that fails, the journal is still valid.

        Any journal is, as long as there is no previous checkpoint: without one, damage of the checkpoint loses all.
        """
        with suppress(OSError, AlignError):
            least = IDLE_JOURNAL_BYTES if self._store.previous.exists() else 0
            if self._saved is not None and self._store.journal_size > least:
                self._save(self._saved)

    def _save_without_space(self, state: AgentState) -> None:
        """Write a checkpoint; if that fails, a shorter record than the one that failed may still fit."""
        try:
            self._save(state)
        except CheckpointError:
            new = self._saved is None or _has_new_pods(state, self._saved)
            if new or not state.unsaved or not self._append(state):
                raise

    def _append(self, state: AgentState) -> bool:
        """Append what changed to the journal; return whether that was possible.

        Raise ``CheckpointError`` if there is no space for a new pod.
        """
        saved = self._saved
        if saved is None or self._store.journal_size > max(MAX_JOURNAL_BYTES, self._store.checkpoint_size):
            return False
        ledger = _settled_ledger(state)
        changed = _changed_admitted(saved, state)
        if changed is None or ledger.devices.inventories is not self._inventories:
            return False
        removed, added = changed
        for uid in removed:
            self._admitted.pop(uid, None)
        self._admitted |= _encode_new(self._admitted, {uid: state.admitted[uid] for uid in added}, ledger)
        removed_waiting, waiting, overtaken = _changed_waiting(saved, state)
        before = self._waiting
        self._waiting = _encode_new(before, state.waiting.pods) if state.waiting is not saved.waiting else before
        change = JournalChange(
            residue=residue(ledger, providers=state.host.providers),
            plugins=None if state.plugins == saved.plugins else sorted(state.plugins),
            removed_pods=removed,
            pods=[self._admitted[uid][1] for uid in added],
            removed_waiting=removed_waiting,
            waiting=[self._waiting_document(uid, state) for uid in waiting],
            overtaken=overtaken,
        )
        try:
            self._store.append(change, limit=self._limit)
        except CheckpointError as error:  # nothing more can be appended: write everything
            self._lacks_space = isinstance(error.__cause__, OSError) and error.__cause__.errno in _NO_SPACE
            if self._lacks_space and _has_new_pods(state, saved):
                raise
            return False
        return True

    def _save(self, state: AgentState) -> None:
        """Write a checkpoint."""
        ledger = _settled_ledger(state)
        check_holders(ledger)
        if ledger.devices.inventories is not self._inventories:
            self._admitted, self._inventories = {}, ledger.devices.inventories
        self._admitted = _encode_new(self._admitted, state.admitted, ledger)
        self._waiting = _encode_new(self._waiting, state.waiting.pods)
        checkpoint = Checkpoint(
            machine=self._machine,
            settings=self._settings,
            residue=residue(ledger, providers=state.host.providers),
            plugins=sorted(state.plugins),
            pods=[encoded for _, encoded in self._admitted.values()],
            waiting=[self._waiting_document(uid, state) for uid in state.waiting.pods],
        )
        try:
            self._store.save(checkpoint, limit=self._limit)
        except CheckpointFullError:
            if self._saved is not None and _has_new_pods(state, self._saved):
                raise
            self._store.save(checkpoint)
        self._lacks_space = False

    def _waiting_document(self, uid: str, state: AgentState) -> bytes:
        return b"%s%d}" % (self._waiting[uid][1], state.waiting.overtakes.get(uid, 0))


def _settled_ledger(state: AgentState) -> Ledger:
    return (state.settled_host() if state.pending else state.host).ledger


def _has_new_pods(state: AgentState, before: AgentState) -> bool:
    """Whether a pod is new, or new devices are granted to one that was waiting."""
    known = before.admitted.keys() | before.waiting.pods.keys()
    granted = {uid for uid, record in state.admitted.items() if record.grants and uid not in before.admitted}
    return bool(granted or (state.admitted.keys() | state.waiting.pods.keys()) - known)


def _changed_admitted(saved: AgentState, state: AgentState) -> tuple[list[str], list[str]] | None:
    """Return the uids of admitted pods to remove and then to add, so that their order is right too.

    Only pods that ``AgentState.unsaved`` names are looked at. ``None``: it does not name all changes.
    """
    unsaved, before, after = state.unsaved, saved.admitted, state.admitted
    last = []  # pods that were added, or added again, are at the end
    for uid in reversed(after):
        if uid not in unsaved:
            break
        last.append(uid)
    moved = set(last)
    removed = sorted(uid for uid in unsaved if uid in before and (uid in moved or uid not in after))
    replaced = sorted(uid for uid in unsaved - moved if uid in after and before.get(uid) is not after[uid])
    if len(before) - len(removed) + len(last) != len(after):
        return None
    return removed, [*replaced, *reversed(last)]


def _changed_waiting(saved: AgentState, state: AgentState) -> tuple[list[str], list[str], dict[str, int]]:
    """Return the uids to remove and then to add, and the counts of overtakes that changed."""
    before, after = saved.waiting, state.waiting
    if before is after:
        return [], [], {}
    removed, added = _changed(
        {uid: record.pod for uid, record in before.pods.items()}, {uid: one.pod for uid, one in after.pods.items()}
    )
    overtaken = {
        uid: after.overtakes.get(uid, 0)
        for uid in after.pods
        if before.overtakes.get(uid, 0) != after.overtakes.get(uid, 0)
    }
    return removed, added, overtaken


def _changed(before: Mapping[str, object], after: Mapping[str, object]) -> tuple[list[str], list[str]]:
    """Return the keys to remove and then to add or replace, so that *before* becomes *after* in the same order."""
    if before is after:
        return [], []
    kept, new = [uid for uid in before if uid in after], [uid for uid in after if uid not in before]
    if list(after) != kept + new:
        return list(before), list(after)
    removed = [uid for uid in before if uid not in after]
    return removed, [uid for uid, one in after.items() if before.get(uid) is not one]


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
        common: dict[str, Any] = {"since": record.since, "source": record.source}
        document: HeldPodDocument | WaitingPodDocument
        if ledger is not None:
            document = HeldPodDocument(entry=pod_entry(ledger, uid), grants=record.grants, **common)
        else:
            document = WaitingPodDocument(pod=pod_document(record.pod), overtaken=0, **common)
        text = codec.encode(document)
        # The last value of a waiting pod changes with every pod that overtakes it, and is added later.
        encoded[uid] = identity, text.removesuffix(b"0}") if waiting else text
    return encoded
