"""Hosts that are kept for pods: whether these fit there at all, and beside which others, once pods have ended."""

from collections.abc import Callable, Collection, Iterable, Sequence

from alignup.align.errors import AlignError
from alignup.align.ledger import Ledger
from alignup.align.workload import Pod
from alignup.placement.host_model import HostModel
from alignup.placement.host_record import HostRecord

MAX_UNSUITABLE = 20  #: hosts without room for any pod of a gang, after which the search for hosts ends


def admits_alone(model: HostModel, ledger: Ledger, *pods: Pod, staying: Collection[str] = ()) -> bool:
    """Return whether a host admits *pods*, in this order, after the end of all other pods but those that stay."""
    ending = [uid for uid in ledger.pods if uid not in staying]
    try:
        after: Ledger | None = model.without(ledger, ending)
        for pod in pods:
            after = after and model.at(after).decide_without_plugins(pod).after
    except AlignError:
        return False
    return after is not None


def fits_after(record: HostRecord, holders: Sequence[Pod], newcomer: Pod, *, staying: Collection[str]) -> bool:
    """Return whether *holders* are admitted after *newcomer*, when all pods have ended but those that stay."""
    model = record.model
    try:
        after = [model.at(ledger).decide_without_plugins(newcomer).after for ledger in record.states().ledgers]
    except AlignError:
        return False
    return bool(after) and all(ledger and admits_alone(model, ledger, *holders, staying=staying) for ledger in after)


def find_hosts(
    records: Iterable[HostRecord], pods: Sequence[Pod], may_use: Callable[[Pod, str], bool]
) -> dict[str, tuple[Pod, ...]]:
    """Return hosts that admit all *pods* of a gang after the end of all others, the first suitable ones; or none.

    Each host gets as many as it admits. With several kinds of pods, others might suffice where none are returned.
    """
    hosts: dict[str, tuple[Pod, ...]] = {}
    left, unsuitable = list(pods), 0
    for record in records:
        held: tuple[Pod, ...] = ()
        for pod in tuple(left):
            if may_use(pod, record.name) and admits_alone(record.model, record.ledger, *held, pod):
                held = (*held, pod)
                left.remove(pod)
        if held:
            hosts[record.name] = held
        unsuitable += not held
        if not left or unsuitable >= MAX_UNSUITABLE:
            break
    return {} if left else hosts
