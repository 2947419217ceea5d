"""The pods that wait behind the gate, in the order in which they are tried: priority first, then age.

Pods that differ in nothing a choice depends on form a class. If no node admits the first pod of a class, then none
admits the others, so the class is blocked until a node changes that could admit them. The nodes that admit a class are
ranked once; afterwards only those that changed since are ranked again.
"""

import heapq
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from alignup.align.workload import Pod
from alignup.gate.schedulable_nodes import NodeFilter, selection_key
from alignup.kubernetes.api.objects import ApiPod, ApiPodSpec
from alignup.placement.cluster import RankedHost
from alignup.placement.pod_shape import SHAPE_UID, shape_key
from alignup.placement.wait_queue import Entry, WaitQueue

MAX_CLASSES = 128  #: classes that are kept although none of their pods waits
MAX_CHANGED = 256  #: nodes that changed since a class was ranked; with more, all are ranked again

WaitingOrder = tuple[int, str, str, str]
Rank = Callable[[Pod, Collection[str]], list[RankedHost]]


@dataclass(frozen=True, slots=True)
class GatedPod:
    order: WaitingOrder
    api: ApiPod
    pod: Pod
    since: float  #: when it was first seen, by the clock

    @property
    def uid(self) -> str:
        return self.api.metadata.uid


@dataclass(slots=True, eq=False)
class PodClass:
    """Pods of one namespace and one shape with the same selectors; the kind of the wait queue."""

    namespace: str
    pod: Pod  #: stands for all of them
    spec: ApiPodSpec
    full: set[str] = field(default_factory=set)  #: nodes whose kubelets admit them, but whose Node objects do not
    changed: set[str] = field(default_factory=set)  #: nodes that changed since the ranking
    ranking: list[RankedHost] | None = None

    def candidates(self, allowed: Collection[str], rank: Rank) -> Iterator[str]:
        """Yield the nodes among *allowed* that admit the pods, best first."""
        fresh: list[RankedHost] = []
        if self.ranking is None or len(self.changed) > MAX_CHANGED:
            self.ranking = rank(self.pod, allowed)
            self.changed.clear()
        elif self.changed:
            fresh = rank(self.pod, [name for name in self.changed if name in allowed])
        kept = (ranked for ranked in self.ranking if ranked.host not in self.changed)
        for ranked in heapq.merge(kept, fresh, key=lambda ranked: (-ranked.score.total, ranked.host)):
            if ranked.host not in self.full:
                yield ranked.host


class PodQueue(WaitQueue[PodClass, GatedPod]):
    """All waiting pods; *nodes* selects the nodes that their selectors allow."""

    def __init__(self, nodes: NodeFilter) -> None:
        super().__init__()
        self._nodes = nodes
        self._classes: OrderedDict[Hashable, PodClass] = OrderedDict()
        self.namespaces: Counter[str] = Counter()  #: of the waiting pods

    def add(self, waiting: GatedPod) -> PodClass:
        """Add a pod, or replace it by its present version; return its class."""
        namespace = waiting.api.metadata.namespace
        key = (namespace, shape_key(waiting.pod), selection_key(waiting.api.spec))
        if key not in self._classes:
            self._classes[key] = PodClass(namespace, replace(waiting.pod, uid=SHAPE_UID), waiting.api.spec)
            unused = [unused for unused, pod_class in self._classes.items() if pod_class not in self._kinds]
            for oldest in unused[: max(0, len(unused) - MAX_CLASSES)]:
                self.blocked.discard(self._classes.pop(oldest))
        self._classes.move_to_end(key)
        pod_class = self._classes[key]
        self.put(waiting.uid, waiting, kind=pod_class, order=waiting.order)
        self.namespaces[namespace] += 1
        return pod_class

    def _pop(self, uid: str) -> Entry | None:
        entry = super()._pop(uid)
        if entry is not None:
            namespace = entry.kind.namespace
            self.namespaces[namespace] -= 1
            if not self.namespaces[namespace]:
                del self.namespaces[namespace]
        return entry

    def nodes_changed(self, names: Iterable[str], *, taken: bool = False) -> None:
        """Rank these nodes again; unless something was *taken* from them, they may admit blocked classes now."""
        names = frozenset(names)
        for pod_class in self._classes.values():
            pod_class.changed |= names
            if not taken:
                pod_class.full -= names
        if not taken:
            self.unblock(lambda pod_class: not names.isdisjoint(self._nodes.allowed(pod_class.spec)))


def waiting_order(pod: ApiPod) -> WaitingOrder:
    """Return a sort key: the highest priority first, then the oldest."""
    metadata = pod.metadata
    return (-(pod.spec.priority or 0), metadata.creation_timestamp or "", metadata.namespace, metadata.name)
