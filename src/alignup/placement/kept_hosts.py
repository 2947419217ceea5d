"""Hosts that are kept for pods: whether the pods fit there once others have ended, and beside which other pods."""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence

from alignup.align.bits import NodeSet
from alignup.align.errors import AlignError
from alignup.align.ledger import Ledger
from alignup.align.workload import Pod
from alignup.placement.host_model import HostModel
from alignup.placement.host_record import HostRecord
from alignup.placement.pod_shape import shape_key
from alignup.placement.steered import ANYWHERE

MAX_UNSUITABLE = 20  #: hosts without room for any of the pods, after which the search for hosts ends


def admits_alone(model: HostModel, ledger: Ledger, *pods: Pod, staying: Collection[str] = ()) -> bool:
    """Return whether a host admits *pods*, in this order, after the end of all other pods except pods that stay."""
    after = model.without(ledger, [uid for uid in ledger.pods if uid not in staying])
    return _admit(model, after, *pods) is not None


def _admit(model: HostModel, ledger: Ledger, *pods: Pod, nodes: NodeSet = ANYWHERE) -> Ledger | None:
    """Return *ledger* after the admission of pods, in this order, while markers are on *nodes* only.

    ``None``: not all are admitted.
    """
    after: Ledger | None = ledger
    try:
        for pod in pods:
            after = after and model.admit(after, pod, nodes)
    except AlignError:
        return None
    return after


def fits_after(
    record: HostRecord,
    holders: Sequence[Pod],
    newcomers: Sequence[Pod],
    *,
    staying: Collection[str],
    nodes: NodeSet = ANYWHERE,
) -> bool:
    """Return whether *holders* are admitted after *newcomers*, when all pods have ended except pods that stay.

    The newcomers are steered to *nodes*.
    """
    model = record.model
    after = [_admit(model, ledger, *newcomers, nodes=nodes) for ledger in record.states().ledgers]
    return bool(after) and all(ledger and admits_alone(model, ledger, *holders, staying=staying) for ledger in after)


def usable_hosts(
    pods: Iterable[Pod],
    hosts: Collection[str],
    *,
    kind: Callable[[Pod], Hashable],
    may_use: Callable[[Pod, str], bool],
) -> dict[str, set[str]]:
    """Return the hosts that each pod may use, by its uid; pods of one *kind* may use the same hosts."""
    hosts_of_kind: dict[Hashable, set[str]] = {}
    usable: dict[str, set[str]] = {}
    for pod in pods:
        key = kind(pod)
        if key not in hosts_of_kind:
            hosts_of_kind[key] = {name for name in hosts if may_use(pod, name)}
        usable[pod.uid] = hosts_of_kind[key]
    return usable


def find_hosts(
    records: Iterable[HostRecord],
    pods: Sequence[Pod],
    usable: Mapping[str, Collection[str]],
    *,
    max_unsuitable: int = MAX_UNSUITABLE,
) -> dict[str, tuple[Pod, ...]]:
    """Return hosts that admit all *pods* of a gang after the end of all others, the first suitable ones; or none.

    *usable* are the hosts that each pod may use, by its uid. Each host gets as many pods as it admits. With several
    kinds of pods, others might suffice where none are returned.
    """
    hosts: dict[str, tuple[Pod, ...]] = {}
    shapes: dict[Hashable, int] = {}
    waiting_pods = {pod.uid: (pod, shapes.setdefault(shape_key(pod), len(shapes))) for pod in pods}
    used_by_some = set[str]().union(*usable.values())
    unsuitable = 0
    for record in records:
        if record.name not in used_by_some:
            continue
        admitted_pods: dict[str, Pod] = {}
        refused_shapes: set[int] = set()  #: shapes that do not fit beside the pods that the host has by now
        candidates = {uid: entry for uid, entry in waiting_pods.items() if record.name in usable[uid]}
        after = record.model.without(record.ledger, record.ledger.pods)
        for uid, (pod, shape) in candidates.items():
            if shape in refused_shapes:
                continue
            ledger_with_pod = _admit(record.model, after, pod)
            if ledger_with_pod is None:
                refused_shapes.add(shape)
            else:
                admitted_pods[uid], after = pod, ledger_with_pod
                refused_shapes.clear()
        if admitted_pods:
            hosts[record.name] = tuple(admitted_pods.values())
            waiting_pods = {uid: entry for uid, entry in waiting_pods.items() if uid not in admitted_pods}
        unsuitable += bool(candidates) and not admitted_pods
        if not waiting_pods or unsuitable >= max_unsuitable:
            break
    return {} if waiting_pods else hosts
