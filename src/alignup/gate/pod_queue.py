"""The pods that wait behind the gate, in the order in which they are tried: priority first, then age.

Pods that differ in nothing a choice depends on form a class. If no node admits the first pod of a class, then none
admits the others, so the class is blocked until a node changes that could admit them. The nodes that admit a class are
ranked once; afterwards only those that changed since are ranked again.
"""

import bisect
import heapq
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from alignup.align.workload import Pod
from alignup.gate.node_filter import NodeFilter, selection_key
from alignup.kubernetes.api.objects import ApiPod, ApiPodSpec
from alignup.placement.cluster import RankedHost
from alignup.placement.pod_shape import SHAPE_UID, shape_key

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
    """Pods of one shape with the same selectors."""

    pod: Pod  #: stands for all of them
    spec: ApiPodSpec
    waiting: list[GatedPod] = field(default_factory=list)  #: in their order
    blocked: bool = False  #: whether no node admits them, until one changes
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
        kept = (one for one in self.ranking if one.host not in self.changed)
        for one in heapq.merge(kept, fresh, key=_rank_order):
            if one.host not in self.full:
                yield one.host


class PodQueue:
    """All waiting pods; *nodes* tells where their selectors allow them to go."""

    def __init__(self, nodes: NodeFilter) -> None:
        self._nodes = nodes
        self._classes: OrderedDict[Hashable, PodClass] = OrderedDict()
        self._pods: dict[str, tuple[GatedPod, PodClass]] = {}

    def __len__(self) -> int:
        return len(self._pods)

    def __contains__(self, uid: str) -> bool:
        return uid in self._pods

    def __iter__(self) -> Iterator[GatedPod]:
        return iter([pod for pod, _ in self._pods.values()])

    def get(self, uid: str) -> GatedPod | None:
        found = self._pods.get(uid)
        return found[0] if found else None

    def put(self, waiting: GatedPod) -> PodClass:
        """Add a pod, or replace it by its present version; return its class."""
        self.remove(waiting.uid)
        key = (shape_key(waiting.pod), selection_key(waiting.api.spec))
        found = self._classes.get(key)
        if found is None:
            found = self._classes[key] = PodClass(replace(waiting.pod, uid=SHAPE_UID), waiting.api.spec)
            self._drop_unused()
        self._classes.move_to_end(key)
        bisect.insort(found.waiting, waiting, key=_order)
        self._pods[waiting.uid] = (waiting, found)
        return found

    def remove(self, uid: str) -> GatedPod | None:
        found = self._pods.pop(uid, None)
        if found is None:
            return None
        waiting, own = found
        own.waiting.remove(waiting)
        return waiting

    def next(self) -> tuple[GatedPod, PodClass] | None:
        """Return the first pod of a class that is not blocked."""
        ready = [one for one in self._classes.values() if one.waiting and not one.blocked]
        if not ready:
            return None
        first = min(ready, key=lambda one: one.waiting[0].order)
        return first.waiting[0], first

    def blocked(self) -> list[PodClass]:
        """Return the classes with waiting pods that no node admits, in the order of their first pods."""
        found = [one for one in self._classes.values() if one.waiting and one.blocked]
        return sorted(found, key=lambda one: one.waiting[0].order)

    def nodes_changed(self, names: Iterable[str], *, taken: bool = False) -> None:
        """Rank these nodes again; unless something was *taken* from them, they may admit blocked classes now."""
        names = frozenset(names)
        for one in self._classes.values():
            one.changed |= names
            if not taken:
                one.full -= names
                if one.blocked and not names.isdisjoint(self._nodes.allowed(one.spec)):
                    one.blocked = False

    def _drop_unused(self) -> None:
        unused = [key for key, one in self._classes.items() if not one.waiting]
        for key in unused[: max(0, len(unused) - MAX_CLASSES)]:
            del self._classes[key]


def waiting_order(pod: ApiPod) -> WaitingOrder:
    """A sort key: the highest priority first, then the oldest."""
    metadata = pod.metadata
    return (-(pod.spec.priority or 0), metadata.creation_timestamp or "", metadata.namespace, metadata.name)


def _order(waiting: GatedPod) -> WaitingOrder:
    return waiting.order


def _rank_order(ranked: RankedHost) -> tuple[float, str]:
    return -ranked.score.total, ranked.host
