"""A ledger put together again, on the idle ledger of a host as it is now.

The host may have changed since: CPUs are switched off, nodes are gone, more is reserved, device plugins are not back
yet. What a pod holds it keeps if it can be had at all, even where the pod would not be placed there today; where it
cannot, all that is in the way is said in one :class:`RestoreError`, with the pod and the container.

The surprising rule: devices need not be there. Plugins come back after the host does, so what pods hold stays held, and
a resource without a plugin has until then just the devices pods hold, none of them healthy.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from alignup.align.errors import ParseError, RestoreError, StateError
from alignup.align.fit import UsedResources
from alignup.align.ledger import Ledger
from alignup.align.provider import Provider
from alignup.align.providers import CpuHintProvider, DeviceProvider, MemoryProvider
from alignup.schema.ledgers.cpus import read_cpus
from alignup.schema.ledgers.devices import read_devices
from alignup.schema.ledgers.memory import read_memory
from alignup.schema.ledgers.pieces import HoldingConflict, PodEntry, read_pod_entry
from alignup.schema.ledgers.values import fields, items


def from_document(document: Mapping[str, Any], idle: Ledger, *, providers: Iterable[Provider[Any]] = ()) -> Ledger:
    """The ledger a document describes, on the *idle* one of its host; *providers* are those of the host.

    :class:`RestoreError` when pods cannot have what they held, another ``StateError`` when it is no ledger at all.
    """
    if idle.pods:
        raise StateError("a ledger is put together on an idle one, but there are pods on this")
    try:
        pieces = _pieces(document)
        books = _books(pieces, fields(document["crumbs"]), idle, {one.name: one for one in providers})
    except StateError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        missing = "there is no " if isinstance(error, KeyError) else ""
        raise StateError(f"not a ledger: {missing}{error}") from error
    used = UsedResources()
    for piece in pieces:
        used = used.plus(piece.resident.uses)
    return Ledger(books, {piece.uid: piece.resident for piece in pieces}, used)


def without_pods(document: Mapping[str, Any], uids: Collection[str]) -> dict[str, Any]:
    """*document* with some pods gone, and all they held with them; books of providers from outside stay as they are."""
    return {**document, "pods": [piece for piece in document["pods"] if piece["pod"]["uid"] not in uids]}


def _pieces(document: Mapping[str, Any]) -> tuple[PodEntry, ...]:
    pieces = tuple(map(read_pod_entry, items(fields(document)["pods"])))
    seen: dict[str, PodEntry] = {}
    for piece in pieces:
        other = seen.setdefault(piece.uid, piece)
        if other is not piece:
            raise ParseError(f"{other.owner()} and {piece.owner()} have the same uid")
    return pieces


def _books(
    pieces: Sequence[PodEntry],
    crumbs: Mapping[str, Any],
    idle: Ledger,
    providers: Mapping[str, Provider[Any]],
) -> dict[str, Any]:
    """The books of *idle*, with everything written in them again."""
    misfits: list[HoldingConflict] = []
    cpus, memory, devices = (fields(crumbs[name]) for name in ("cpus", "memory", "devices"))
    books = {
        **idle.books,
        CpuHintProvider.name: read_cpus(pieces, cpus, idle=idle.books[CpuHintProvider.name], misfits=misfits),
        MemoryProvider.name: read_memory(pieces, memory, idle=idle.books[MemoryProvider.name], misfits=misfits),
        DeviceProvider.name: read_devices(pieces, devices, idle=idle.books[DeviceProvider.name], misfits=misfits),
    }
    for name, kept in fields(crumbs["others"]).items():
        if name not in providers or name not in idle.books:
            misfits.append(HoldingConflict("", f"there is a book of {name}, but nobody here provides that"))
        else:
            books[name] = providers[name].kept(kept)
    if misfits:
        uids = dict.fromkeys(one.uid for one in misfits if one.uid)
        raise RestoreError([one.what for one in misfits], uids=tuple(uids))
    return books
