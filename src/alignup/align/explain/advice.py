"""Proposals in sentences: what to change, so that a person can do it, and where the pod would then go."""

from collections.abc import Iterable, Mapping
from typing import Any

from alignup.align import bits
from alignup.align.explain import sentences
from alignup.align.explain.changes import (
    Change,
    Eviction,
    Proposal,
    RequestChange,
    ReservationChange,
    SettingChange,
    Unit,
)
from alignup.align.ledger import Ledger
from alignup.align.workload.names import CPU


def describe_proposal(proposal: Proposal, ledger: Ledger) -> str:
    """What to change, in a sentence; pods are called by the names they have in *ledger*."""
    return ", and ".join(_told(change, ledger) for change in proposal.changes)


def describe_result(proposal: Proposal) -> str:
    """What each container would be given then."""
    placements = proposal.decision.placements
    if len(placements) == 1:
        return sentences.describe_allocation(placements[0])
    return "; ".join(f"{one.container}: {sentences.describe_allocation(one)}" for one in placements)


def to_document(proposal: Proposal, ledger: Ledger) -> dict[str, Any]:
    """The same for machines: the changes with their values, the sentence, and what each container would be given."""
    return {
        "sentence": describe_proposal(proposal, ledger),
        "changes": [_document(change, ledger) for change in proposal.changes],
        "placements": [
            {"container": one.container, "nodes": sentences.node_list(one.hint.nodes), "given": _plain(one.given)}
            for one in proposal.decision.placements
        ],
    }


def _plain(given: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    return {provider: dict(resources) for provider, resources in given.items()}


def _told(change: Change, ledger: Ledger) -> str:
    match change:
        case RequestChange():
            return _request(change)
        case SettingChange():
            return f"set {change.field} to {change.now} instead of {change.was}"
        case Eviction():
            return _leaving(change, ledger)
        case ReservationChange():
            drained = " (drain the node first: its memory_manager_state is of the old one)" if change.shares else ""
            return _reservation(change) + drained


def _request(change: RequestChange) -> str:
    who = f"container {change.container}" if change.container else "the pod"
    if not change.now:
        return f"let {who} do without {change.resource}"
    milli = change.unit is Unit.MILLI_CPUS
    now, was = (sentences.format_amount(change.resource, number, milli=milli) for number in (change.now, change.was))
    return f"let {who} ask for {now} instead of {was.split(' ')[0]}"


def _leaving(change: Eviction, ledger: Ledger) -> str:
    names = [_name(uid, ledger) for uid in change.pods]
    others = [len(alike) for alike in change.instead_of]
    if sum(others) == 0:
        alike = ""
    elif len(names) == 1:
        alike = f" ({_count(others[0])} would do as well)"
    else:
        alike = " (or others that hold the same)"
    return f"stop {_and(names)}{alike}"


def _reservation(change: ReservationChange) -> str:
    if change.shares:
        shares = _and(
            f"{sentences.format_quantity(share.now)} instead of {sentences.format_quantity(share.was)} on node {share.node}"
            for share in change.shares
        )
        if change.moved:
            return f"move reservedMemory ({change.resource}): {shares}"
        kept = _instead(change.was, change.now)
        return f"reserve less {change.resource}, {kept} in all, in reservedMemory {shares}"
    if change.listed:
        was, now = (bits.show(cpus) or "none" for cpus in change.listed)
        return f"set reservedSystemCPUs to {now} instead of {was}"
    milli = change.resource == CPU
    now, was = (sentences.format_amount(change.resource, number, milli=milli) for number in (change.now, change.was))
    return f"reserve {now} instead of {was.split(' ')[0]} for the system and Kubernetes"


def _document(change: Change, ledger: Ledger) -> dict[str, Any]:
    match change:
        case RequestChange():
            now, was = (str(change.unit.quantity(number)) for number in (change.now, change.was))
            where = {"container": change.container, "resource": change.resource}
            return {"kind": "request", **where, "was": was, "now": now}
        case SettingChange():
            return {"kind": "setting", "field": change.field, "was": change.was, "now": change.now}
        case Eviction():
            pods = [{"uid": uid, "name": _name(uid, ledger)} for uid in change.pods]
            return {"kind": "leaving", "pods": pods, "instead": [list(alike) for alike in change.instead_of]}
        case ReservationChange():
            return _reservation_document(change)


def _reservation_document(change: ReservationChange) -> dict[str, Any]:
    unit = Unit.MILLI_CPUS if change.resource == CPU else Unit.BYTES

    def both(was: int, now: int) -> dict[str, str]:
        return {"was": str(unit.quantity(was)), "now": str(unit.quantity(now))}

    document: dict[str, Any] = {"kind": "reservation", "resource": change.resource, **both(change.was, change.now)}
    if change.listed:
        was, now = map(bits.show, change.listed)
        document["reservedSystemCPUs"] = {"was": was, "now": now}
    if change.shares:
        shares = [{"node": share.node, **both(share.was, share.now)} for share in change.shares]
        document["reservedMemory"] = shares
    return document


def _name(uid: str, ledger: Ledger) -> str:
    resident = ledger.pods.get(uid)
    if resident is None or not resident.pod.namespace:
        return uid
    return f"{resident.pod.namespace}/{resident.pod.name}"


def _instead(was: int, now: int) -> str:
    return f"{sentences.format_quantity(now)} instead of {sentences.format_quantity(was)}"


def _count(number: int) -> str:
    return "another one" if number == 1 else f"each of {number} others"


def _and(names: Iterable[str]) -> str:
    listed = list(names)
    return listed[0] if len(listed) == 1 else f"{', '.join(listed[:-1])} and {listed[-1]}"
