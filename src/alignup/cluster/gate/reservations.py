"""Nodes that are kept for pods that have waited long, so that smaller pods do not overtake them for ever.

A large pod fits only after several small ones on one node have ended. If every freed CPU goes to the next small pod,
that never happens. So for the first pods of the queue that have waited long, one node each is left to drain: pods that
come after them in the queue are not placed there.
"""

from collections.abc import Callable, Collection

from alignup.align.errors import AlignError
from alignup.align.workload import Pod
from alignup.cluster.gate.pod_queue import GatedPod
from alignup.placement.host_record import HostRecord

MAX_RESERVED = 3  #: nodes at a time
_MAX_TRIED = 20  #: nodes that are tried for one pod
_RETRY_SECONDS = 60.0  #: after no node was suitable


class Reservations:
    def __init__(self, *, limit: int = MAX_RESERVED) -> None:
        self._limit = limit
        self._held: dict[str, GatedPod] = {}  #: node → the pod that it is kept for
        self._tried: dict[str, float] = {}  #: pods that no node would admit even without other pods → when

    def __len__(self) -> int:
        return len(self._held)

    def keeps_out(self, node: str, waiting: GatedPod) -> bool:
        """Whether *node* is kept for a pod that comes before this one."""
        holder = self._held.get(node)
        return holder is not None and holder.order < waiting.order

    def node_of(self, uid: str) -> str:
        """Return the node that is kept for a pod; empty: none."""
        return next((node for node, holder in self._held.items() if holder.uid == uid), "")

    def end(self, uid: str) -> str:
        """A pod waits no longer; return the node that was kept for it, or an empty string."""
        self._tried.pop(uid, None)
        node = self.node_of(uid)
        self._held.pop(node, None)
        return node

    def drop_node(self, node: str) -> None:
        """A node has changed, so that it may not be suitable, or is gone."""
        self._held.pop(node, None)

    def reserve(
        self,
        waiting: GatedPod,
        nodes: Collection[str],
        *,
        record: Callable[[str], HostRecord | None],
        pods: Callable[[str], int],
        now: float,
    ) -> str:
        """Keep one of *nodes* for a pod; *pods* counts those of a node. Return it, or an empty string."""
        if len(self._held) >= self._limit or self.node_of(waiting.uid):
            return ""
        if now - self._tried.get(waiting.uid, -_RETRY_SECONDS) < _RETRY_SECONDS:
            return ""
        free = sorted((name for name in nodes if name not in self._held), key=lambda name: (pods(name), name))
        for name in free[:_MAX_TRIED]:
            found = record(name)
            if found is not None and _admits_when_empty(found, waiting.pod):
                self._held[name] = waiting
                return name
        self._tried[waiting.uid] = now
        return ""


def _admits_when_empty(record: HostRecord, pod: Pod) -> bool:
    """Whether a host would admit *pod* without any other pod."""
    ledger = record.model.without(record.ledger, tuple(record.ledger.pods))
    try:
        return record.model.at(ledger).decide_without_plugins(pod).admitted
    except AlignError:
        return False
