"""Hosts that are kept for a pod: whether it fits there at all, and beside which others, once pods have ended."""

from collections.abc import Collection

from alignup.align.errors import AlignError
from alignup.align.ledger import Ledger
from alignup.align.workload import Pod
from alignup.placement.host_model import HostModel
from alignup.placement.host_record import HostRecord


def admits_alone(model: HostModel, ledger: Ledger, pod: Pod, *, staying: Collection[str] = ()) -> bool:
    """Return whether a host admits *pod* after the end of all other pods but those that stay."""
    ending = [uid for uid in ledger.pods if uid not in staying]
    try:
        return model.at(model.without(ledger, ending)).decide_without_plugins(pod).admitted
    except AlignError:
        return False


def fits_after(record: HostRecord, holder: Pod, newcomer: Pod, *, staying: Collection[str]) -> bool:
    """Return whether *holder* is admitted after *newcomer*, when all pods have ended but those that stay."""
    model = record.model
    try:
        after = [model.at(ledger).decide_without_plugins(newcomer).after for ledger in record.states().ledgers]
    except AlignError:
        return False
    return bool(after) and all(ledger and admits_alone(model, ledger, holder, staying=staying) for ledger in after)
