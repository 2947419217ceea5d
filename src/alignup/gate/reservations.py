"""Nodes that are kept for pods that have waited long, so that smaller pods do not overtake them for ever.

A large pod fits only after several small ones on one node have ended. If every freed CPU goes to the next small pod,
that never happens. So for the first pods of the queue that have waited long, one node each is kept. A pod that comes
after them in the queue is placed there only if the waiting pod will fit beside it, and beside all such pods before it,
once those have ended that were there when the node was kept. So the waiting pod waits for none that overtook it, and
the rest of a large node stays in use.

For the first gang that has waited long, as many nodes are kept as it needs to start when the others have ended there.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from alignup.align.workload import Pod
from alignup.gate.pod_queue import GatedGang, GatedPod, kind_key
from alignup.gate.schedulable_nodes import NodeCapacity
from alignup.placement.kept_hosts import MAX_UNSUITABLE, find_hosts, fits_after, usable_hosts
from alignup.schedule.large_pods import is_large
from alignup.schedule.live_cluster import LiveCluster

MAX_RESERVED = 3  #: pods and gangs at a time for which nodes are kept, of which one is a gang
_RETRY_SECONDS = 60.0  #: after no node was suitable


@dataclass(slots=True)
class Reservation:
    """A node that is kept for a pod, or for some pods of a gang."""

    holder: GatedPod
    pods: tuple[Pod, ...]
    later: dict[str, Pod] = field(default_factory=dict)  #: by uid, pods after it in the queue that came since


class Reservations:
    def __init__(self, live: LiveCluster, capacity: NodeCapacity, *, limit: int = MAX_RESERVED) -> None:
        self._live, self.capacity, self._limit = live, capacity, limit
        self._kept: dict[str, Reservation] = {}  #: by node
        self._tried: dict[str, float] = {}  #: pods and gangs without suitable nodes → when

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def names(self) -> Collection[str]:
        return self._kept.keys()

    @property
    def holders(self) -> dict[str, GatedPod]:
        """The pods and gangs for which nodes are kept, by uid."""
        return {kept.holder.uid: kept.holder for kept in self._kept.values()}

    def keeps_out(self, node: str, waiting: GatedPod) -> bool:
        """Return whether *node* is kept for a pod that comes before this one, and that would not fit beside it."""
        kept = self._before(node, waiting)
        if kept is None:
            return False
        api_node, record = self._live.nodes.get(node), self._live.cluster.record(node)
        if api_node is None or record is None:
            return True
        (*pods, last), later = kept.pods, kept.later
        if self.capacity.insufficient(api_node, last, beside=(*later.values(), waiting.pod, *pods), empty=True):
            return True
        return not fits_after(record, kept.pods, waiting.pod, staying={*later, waiting.uid})

    def take(self, node: str, waiting: GatedPod) -> None:
        """Note that a pod will be on *node*."""
        kept = self._before(node, waiting)
        if kept is not None:
            kept.later[waiting.uid] = waiting.pod

    def _before(self, node: str, waiting: GatedPod) -> Reservation | None:
        """Return the reservation of *node* for a pod that comes before this one."""
        kept = self._kept.get(node)
        return kept if kept is not None and kept.holder.order < waiting.order else None

    def nodes_of(self, uid: str) -> tuple[str, ...]:
        """Return the nodes that are kept for a pod, or a gang."""
        return tuple([node for node, kept in self._kept.items() if kept.holder.uid == uid])

    def end(self, uid: str) -> tuple[str, ...]:
        """Drop the reservations of a pod or gang that waits no longer; return its nodes."""
        self._tried.pop(uid, None)
        nodes = self.nodes_of(uid)
        for node in nodes:
            del self._kept[node]
        return nodes

    def forget_pod(self, uid: str) -> None:
        """Note that a pod is no longer on a node."""
        for kept in self._kept.values():
            kept.later.pop(uid, None)

    def drop_node(self, node: str) -> None:
        """Drop the reservation of a node that is gone, or has changed so that it may not be suitable.

        The other nodes of a gang are not kept any more either: others may be better now.
        """
        kept = self._kept.get(node)
        if kept is not None:
            self.end(kept.holder.uid)

    def describe(self, node: str) -> str:
        """Return why pods are kept out of a node; empty: it is not kept for a pod."""
        kept = self._kept.get(node)
        return f"kept for {kept.holder.full_name}, which has waited longer" if kept else ""

    def may_reserve(self, waiting: GatedPod, *, now: float) -> bool:
        """Return whether a node may be kept for a pod; not for a while after none was suitable."""
        holders = self.holders
        one_gang = isinstance(waiting, GatedGang) and any(isinstance(each, GatedGang) for each in holders.values())
        if len(holders) >= self._limit or waiting.uid in holders or one_gang:
            return False
        return now - self._tried.get(waiting.uid, -_RETRY_SECONDS) >= _RETRY_SECONDS

    def _has_enough(self, name: str, pod: Pod) -> bool:
        node = self._live.nodes.get(name)
        return node is not None and not self.capacity.insufficient(node, pod, empty=True)

    def reserve(
        self,
        waiting: GatedPod,
        members: Sequence[GatedPod],
        may_use: Callable[[GatedPod, str], bool],
        *,
        now: float,
    ) -> tuple[str, ...]:
        """Keep the nodes that a pod, or *members* of a gang, need after the end of others, and may use. Return them.

        By their Node objects, they have enough of everything that the pods request: kubelets ignore extended resources
        that they do not know, such as GPUs on a node without any.
        """
        cluster = self._live.cluster
        records = [record for name in cluster.hosts if name not in self._kept and (record := cluster.record(name))]
        records.sort(key=lambda record: (self.capacity.count_pods(record.name), record.name))
        by_uid, pods = {member.uid: member for member in members}, [member.pod for member in members]
        nodes = usable_hosts(
            pods,
            [record.name for record in records],
            kind=lambda pod: kind_key(by_uid[pod.uid]),
            may_use=lambda pod, name: self._has_enough(name, pod) and may_use(by_uid[pod.uid], name),
        )
        tries = 1 if any(map(is_large, pods)) else MAX_UNSUITABLE
        hosts = find_hosts(records, pods, nodes, max_unsuitable=tries)
        self._kept |= {name: Reservation(waiting, held) for name, held in hosts.items()}
        if not hosts:
            recent = {uid: tried for uid, tried in self._tried.items() if now - tried < _RETRY_SECONDS}
            self._tried = recent | {waiting.uid: now}
        return tuple(hosts)
