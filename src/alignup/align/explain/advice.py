"""Proposals as sentences that say what to change and where the pod would then go, and as JSON."""

from collections.abc import Iterable, Sequence
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
from alignup.align.host import Host
from alignup.align.ledger import Ledger
from alignup.align.workload import Pod
from alignup.align.workload.names import CPU, is_extended


def describe_proposal(proposal: Proposal, ledger: Ledger) -> str:
    """The changes in one sentence; *ledger* gives the names of pods."""
    return ", and ".join(_describe(change, ledger) for change in proposal.changes)


def describe_result(proposal: Proposal) -> str:
    placements = proposal.decision.placements
    if len(placements) == 1:
        return sentences.describe_allocation(placements[0])
    return sentences.describe_allocations(placements)


def to_document(proposal: Proposal, ledger: Ledger) -> dict[str, Any]:
    return {
        "sentence": describe_proposal(proposal, ledger),
        "changes": [_change_document(change, ledger) for change in proposal.changes],
        "placements": [
            {"container": one.container, "nodes": sentences.node_list(one.hint.nodes), "given": one.as_text()}
            for one in proposal.decision.placements
        ],
    }


def ignored_requests(host: Host, pods: Sequence[Pod]) -> tuple[str, ...]:
    """Describe the requests of *pods* that a kubelet silently ignores."""
    gates, offered = host.settings.gates, host.ledger.devices.handled
    requested = {
        name for pod in pods for one in pod.all_containers for name in one.resources.requests if is_extended(name)
    }
    notes = [
        f"no device plugin offers {name}, and a kubelet admits pods regardless of such requests; "
        f"declare the devices with --devices {name}=..."
        for name in sorted(requested - offered)
    ]
    pod_level = [pod for pod in pods if pod.resources.requests or pod.resources.limits]
    if pod_level and not (gates.on("PodLevelResources") and gates.on("PodLevelResourceManagers")):
        which = f"{pod_level[0].name} and others have" if len(pod_level) > 1 else f"{pod_level[0].name} has"
        notes.append(
            f"{which} pod-level resources (spec.resources): "
            "their CPUs and memory are not aligned without feature gate PodLevelResourceManagers"
        )
    return tuple(notes)


def _describe(change: Change, ledger: Ledger) -> str:
    match change:
        case RequestChange():
            subject = f"container {change.container}" if change.container else "the pod"
            if not change.now:
                return f"remove {change.resource} from {subject}"
            return f"request {_amounts(change, milli=change.unit is Unit.MILLI_CPUS)} for {subject}"
        case SettingChange():
            return f"set {change.field} to {change.now} instead of {change.was}"
        case Eviction():
            return _eviction(change, ledger)
        case ReservationChange():
            drain = " (drain the node first: memory_manager_state records the old reservation)" if change.shares else ""
            return _reservation(change) + drain


def _eviction(change: Eviction, ledger: Ledger) -> str:
    names = [ledger.pod_name(uid) for uid in change.pods]
    count = sum(map(len, change.alternatives))
    if not count:
        others = ""
    elif len(names) > 1:
        others = " (or other pods that hold the same)"
    elif count == 1:
        others = " (or another pod that holds the same)"
    else:
        others = f" (or one of {count} others that hold the same)"
    return f"evict {_and(names)}{others}"


def _reservation(change: ReservationChange) -> str:
    if change.shares:
        shares = _and(f"{_instead(share.was, share.now)} on NUMA node {share.node}" for share in change.shares)
        if change.moved:
            return f"move reservedMemory ({change.resource}): {shares}"
        return f"reserve {_instead(change.was, change.now)} of {change.resource} in total, in reservedMemory {shares}"
    if change.listed:
        was, now = (bits.show(cpus) or "none" for cpus in change.listed)
        return f"set reservedSystemCPUs to {now} instead of {was}"
    return f"reserve {_amounts(change, milli=change.resource == CPU)} for system daemons"


def _amounts(change: RequestChange | ReservationChange, *, milli: bool) -> str:
    now = sentences.format_amount(change.resource, change.now, milli=milli)
    return f"{now} instead of {sentences.format_number(change.resource, change.was, milli=milli)}"


def _change_document(change: Change, ledger: Ledger) -> dict[str, Any]:
    match change:
        case RequestChange():
            now, was = (str(change.unit.quantity(number)) for number in (change.now, change.was))
            where = {"container": change.container, "resource": change.resource}
            return {"kind": "request", **where, "was": was, "now": now}
        case SettingChange():
            return {"kind": "setting", "field": change.field, "was": change.was, "now": change.now}
        case Eviction():
            pods = [{"uid": uid, "name": ledger.pod_name(uid)} for uid in change.pods]
            return {"kind": "leaving", "pods": pods, "instead": [list(alike) for alike in change.alternatives]}
        case ReservationChange():
            return _reservation_change_document(change)


def _reservation_change_document(change: ReservationChange) -> dict[str, Any]:
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


def _instead(was: int, now: int) -> str:
    return f"{sentences.format_quantity(now)} instead of {sentences.format_quantity(was)}"


def _and(names: Iterable[str]) -> str:
    listed = list(names)
    return listed[0] if len(listed) == 1 else f"{', '.join(listed[:-1])} and {listed[-1]}"
