"""The pods that wait behind the gate, in the order in which they are tried: priority first, then age.

Pods that differ in nothing a choice depends on form a class. If no node admits the first pod of a class, then none
admits the others, so the class is blocked. It is tried again after a node has changed that could admit it. The nodes
that admit a class are ranked once; afterwards only those that changed since are ranked again.

Many blocked classes must not hold up other pods. So the new classes of a namespace, and its blocked ones that are tried
again, form a list each. After ``MAX_FAILURES`` tries of a list without success, the other lists have their turn.
"""

import heapq
from bisect import bisect_left, insort
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from alignup.align.workload import Pod
from alignup.gate.schedulable_nodes import NodeFilter, selection_key
from alignup.kubernetes.api.objects import ApiPod, ApiPodSpec
from alignup.placement.pod_shape import SHAPE_UID, shape_key
from alignup.placement.wait_queue import Entry, WaitQueue

MAX_CLASSES = 128  #: classes that are kept although none of their pods waits
MAX_CHANGED = 256  #: nodes that changed since a class was ranked; with more, all are ranked again
MAX_FAILURES = 8  #: tries of a list without success before other lists have their turn

WaitingOrder = tuple[int, str, str, str]
Rank = tuple[bool, float, str]  #: whether it is approximate, minus the score, and the name of a node
RankNodes = Callable[[Pod, Collection[str]], list[Rank]]
_List = tuple[str, bool]  #: namespace, and whether it is that of blocked classes


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

    key: Hashable
    namespace: str
    pod: Pod  #: stands for all of them
    spec: ApiPodSpec
    ranking: list[Rank] | None = None  #: of the nodes that admit them, the best first
    version: int = 0  #: of the changes of nodes that the ranking contains
    explained: tuple[frozenset[str], str] | None = None  #: why no node admits them, and the text of the events
    _ranks: dict[str, Rank] = field(default_factory=dict)  #: by node

    def rank(self, nodes: Iterable[str] | None, ranks: Iterable[Rank]) -> None:
        """Replace the ranks of *nodes*, or of all."""
        if nodes is None or self.ranking is None:
            self.ranking = sorted(ranks)
            self._ranks = {rank[2]: rank for rank in self.ranking}
            return
        for node in nodes:
            self.drop(node)
        for rank in ranks:
            self._ranks[rank[2]] = rank
            insort(self.ranking, rank)

    def drop(self, node: str) -> None:
        """Leave a node out until it changes."""
        rank = self._ranks.pop(node, None)
        if rank is not None and self.ranking is not None:
            del self.ranking[bisect_left(self.ranking, rank)]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the nodes, the best first; the caller may drop the last one."""
        place = 0
        while self.ranking is not None and place < len(self.ranking):
            rank = self.ranking[place]
            yield rank[2]
            place += rank[2] in self._ranks


class NodeChanges:
    """The nodes that have changed, in the order of their last changes; each change has a version."""

    def __init__(self) -> None:
        self.version = 0
        self._versions: OrderedDict[str, int] = OrderedDict()

    def add(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            self.version += 1
            self._versions[node] = self.version
            self._versions.move_to_end(node)

    def since(self, version: int) -> list[str]:
        nodes = []
        for node, changed in reversed(self._versions.items()):
            if changed <= version:
                break
            nodes.append(node)
        return nodes


class PodQueue(WaitQueue[PodClass, GatedPod]):
    """All waiting pods; *nodes* selects the nodes that their selectors allow."""

    def __init__(self, nodes: NodeFilter) -> None:
        super().__init__()
        self._nodes = nodes
        self._classes: dict[Hashable, PodClass] = {}
        self._unused: OrderedDict[PodClass, None] = OrderedDict()  #: classes without pods, the last used at the end
        self.namespaces: Counter[str] = Counter()  #: of the waiting pods
        self.tries = 0  #: of classes so far
        self._changes = NodeChanges()
        self._freed = 0  #: changes after which blocked classes may be admitted
        self._lists: dict[_List, list[Entry]] = {}  #: heaps of the first pods of classes; outdated entries are skipped
        self._blocked: dict[str, set[PodClass]] = {}  #: by namespace
        self._listed: dict[str, int] = {}  #: namespace → ``_freed`` when its blocked classes were listed
        self._failures: Counter[_List] = Counter()

    def add(self, waiting: GatedPod) -> PodClass:
        """Add a pod, or replace it by its present version; return its class."""
        namespace = waiting.api.metadata.namespace
        key = (namespace, shape_key(waiting.pod), selection_key(waiting.api.spec))
        pod_class = self._classes.get(key)
        if pod_class is None:
            representative = replace(waiting.pod, uid=SHAPE_UID)
            pod_class = self._classes[key] = PodClass(key, namespace, representative, waiting.api.spec)
        self._unused.pop(pod_class, None)
        self.put(waiting.uid, waiting, kind=pod_class, order=waiting.order)
        self._unused.pop(pod_class, None)  # again: it may have been without pods for a moment
        self.namespaces[namespace] += 1
        if self._kinds[pod_class][0].uid == waiting.uid:
            self._list(pod_class)
        return pod_class

    def _pop(self, uid: str) -> Entry | None:
        entry = super()._pop(uid)
        if entry is not None:
            pod_class: PodClass = entry.kind
            self.namespaces[pod_class.namespace] -= 1
            if not self.namespaces[pod_class.namespace]:
                del self.namespaces[pod_class.namespace]
            if pod_class in self._kinds:
                if entry < self._kinds[pod_class][0]:
                    self._list(pod_class)
            else:
                self.unblock(pod_class)
                pod_class.explained = None
                self._unused[pod_class] = None
                if len(self._unused) > MAX_CLASSES:
                    oldest, _ = self._unused.popitem(last=False)
                    del self._classes[oldest.key]
        return entry

    # Tries

    def block(self, pod_class: PodClass) -> None:
        """Note that no node admits the first pod of a class."""
        blocked = pod_class in self.blocked
        self._failures[pod_class.namespace, blocked] += 1
        if not blocked:
            self.blocked.add(pod_class)
            self._blocked.setdefault(pod_class.namespace, set()).add(pod_class)

    def unblock(self, pod_class: PodClass) -> None:
        """Note that a node admits a pod of a class, or that none of its pods waits."""
        if pod_class in self.blocked:
            self.blocked.discard(pod_class)
            self._blocked[pod_class.namespace].discard(pod_class)
            if not self._blocked[pod_class.namespace]:
                del self._blocked[pod_class.namespace]

    def next_head(self, may_try: Callable[[str], bool]) -> tuple[PodClass, GatedPod] | None:
        """Return the next class to try with its first pod; *may_try* says whether those of a namespace may be tried.

        The caller removes the pod, or blocks the class.
        """
        for namespace in self._blocked:
            if self._listed.get(namespace) != self._freed and not self._lists.get((namespace, True)):
                self._listed[namespace] = self._freed
                heads = [self._kinds[pod_class][0] for pod_class in self._blocked[namespace]]
                heapq.heapify(heads)
                self._lists[namespace, True] = heads
        firsts = {
            key: first for key in tuple(self._lists) if may_try(key[0]) and (first := self._first(key)) is not None
        }
        if not firsts:
            return None
        patient = [key for key in firsts if self._failures[key] < MAX_FAILURES]
        if not patient:
            self._failures.clear()
        chosen = min(patient or firsts, key=lambda key: firsts[key])
        heapq.heappop(self._lists[chosen])
        self.tries += 1
        return firsts[chosen].kind, firsts[chosen].item

    def _first(self, key: _List) -> Entry | None:
        """Return the first entry of a list that is not outdated."""
        entries = self._lists[key]
        while entries:
            entry = entries[0]
            current = self._kinds.get(entry.kind)
            if current and current[0] is entry and (entry.kind in self.blocked) is key[1]:
                return entry
            heapq.heappop(entries)
        del self._lists[key]
        if key[0] not in self._blocked:
            self._listed.pop(key[0], None)
        return None

    def _list(self, pod_class: PodClass) -> None:
        """Try a class whose first pod is another one now."""
        key = (pod_class.namespace, pod_class in self.blocked)
        heapq.heappush(self._lists.setdefault(key, []), self._kinds[pod_class][0])

    # Nodes

    def nodes_changed(self, names: Iterable[str], *, taken: bool = False) -> None:
        """Rank these nodes again; unless something was *taken* from them, they may admit blocked classes now."""
        self._changes.add(names)
        self._freed += not taken

    def candidates(self, pod_class: PodClass, rank: RankNodes) -> Iterator[str]:
        """Return the nodes that admit the pods of a class, the best first."""
        changed = self._changes.since(pod_class.version)
        if pod_class.ranking is None or len(changed) > MAX_CHANGED:
            pod_class.rank(None, rank(pod_class.pod, self._nodes.allowed(pod_class.spec)))
        else:
            allowed = [node for node in changed if self._nodes.allows(pod_class.spec, node)]
            pod_class.rank(changed, rank(pod_class.pod, allowed) if allowed else ())
        pod_class.version = self._changes.version
        return iter(pod_class)

    def first_blocked(self, condition: Callable[[GatedPod], bool]) -> tuple[PodClass, GatedPod] | None:
        """Return the blocked class whose first pod comes before all others that meet a condition."""
        heads = (self._kinds[pod_class][0] for pod_class in self.blocked)
        first = min((head for head in heads if condition(head.item)), default=None)
        return None if first is None else (first.kind, first.item)


def waiting_order(pod: ApiPod) -> WaitingOrder:
    """Return a sort key: the highest priority first, then the oldest."""
    metadata = pod.metadata
    return (-(pod.spec.priority or 0), metadata.creation_timestamp or "", metadata.namespace, metadata.name)
