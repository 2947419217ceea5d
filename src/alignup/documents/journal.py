"""The records of the journal as JSON documents: how a checkpoint changes.

A record has the complete residue of the ledger, which is small, and only the pods that changed.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TypeVar

from alignup.align.errors import ParseError
from alignup.documents.checkpoints import CheckpointDocument, HeldPodDocument, WaitingPodDocument
from alignup.documents.codec import Count, Document
from alignup.documents.ledgers.documents import ResidueDocument

_Stored = TypeVar("_Stored")


class JournalHeader(Document, frozen=True):
    """The first line of a journal."""

    format: str
    version: int
    serial: int  #: of the checkpoint that the journal follows


class ChangeDocument(Document, frozen=True, kw_only=True):
    """A record. Pods are removed first; then those listed replace the ones with the same uid, or are appended."""

    serial: int  #: one more than that of the previous record, or of the checkpoint
    residue: ResidueDocument
    plugins: list[str] | None = None  #: ``None``: as before
    removed_pods: list[str] = []  #: uids
    pods: list[HeldPodDocument] = []
    removed_waiting: list[str] = []  #: uids
    waiting: list[WaitingPodDocument] = []
    overtaken: dict[str, Count] = {}  #: uids of waiting pods → how many pods have overtaken them


def apply_changes(document: CheckpointDocument, changes: Sequence[ChangeDocument]) -> CheckpointDocument:
    """Return the checkpoint after all *changes*; ``ParseError`` if they do not belong to it."""
    if not changes:
        return document
    pods = _by_uid(document.pods, _held_uid)
    waiting = _by_uid(document.waiting, _waiting_uid)
    plugins = document.plugins
    for change in changes:
        plugins = plugins if change.plugins is None else change.plugins
        _update(pods, change.removed_pods, change.pods, _held_uid)
        _update(waiting, change.removed_waiting, change.waiting, _waiting_uid)
        for uid, count in change.overtaken.items():
            if uid not in waiting:
                raise ParseError(f"pod {uid} is overtaken but not waiting")
            waiting[uid] = waiting[uid].replace(overtaken=count)
    return document.replace(
        serial=changes[-1].serial,
        residue=changes[-1].residue,
        plugins=plugins,
        pods=list(pods.values()),
        waiting=list(waiting.values()),
    )


def _by_uid(stored: Collection[_Stored], uid_of: Callable[[_Stored], object]) -> dict[object, _Stored]:
    found = {uid_of(one): one for one in stored}
    if len(found) < len(stored):
        raise ParseError("two pods have the same uid")
    return found


def _update(
    stored: dict[object, _Stored], removed: Iterable[str], added: Iterable[_Stored], uid_of: Callable[[_Stored], object]
) -> None:
    for uid in removed:
        if uid not in stored:
            raise ParseError(f"pod {uid} is removed but does not exist")
        del stored[uid]
    for one in added:
        stored[uid_of(one)] = one


def _held_uid(pod: HeldPodDocument) -> str:
    return pod.entry.pod.uid


def _waiting_uid(pod: WaitingPodDocument) -> str:
    return pod.pod.uid
