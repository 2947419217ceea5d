"""The pods that wait behind the gate, in the order in which they are tried: priority first, then age.

Pods that differ in nothing a choice depends on form a class. If no node admits the first pod of a class, then none
admits the others, so the class is blocked. It is tried again after a node has changed that could admit it. The nodes
that admit a class are ranked once; afterwards only pods that changed since are ranked again. A gang is a class.

Many blocked classes must not hold up other pods. So the new classes of a namespace, and its blocked ones that are tried
again, form a list each. After ``MAX_FAILURES`` tries of a list without success, the other lists have their turn.
"""

import heapq
from bisect import bisect_left, bisect_right, insort
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from alignup.align.workload import Pod
from alignup.align.workload.names import CLAIMS_ANNOTATION
from alignup.placement.pod_shape import SHAPE_UID, shape_key
from alignup.placement.scheduling.facts import ClusterFacts, GroupKey, PodFacts
from alignup.placement.wait_queue import Entry, WaitQueue

MAX_CLASSES = 128  #: classes that are kept although none of their pods waits
MAX_CHANGED = 256  #: nodes that changed since a class was ranked; with more, all are ranked again
MAX_FAILURES = 8  #: tries of a list without success before other lists have their turn

Rank = tuple[bool, float, str]  #: whether it is approximate, minus the score, and the name of a node
RankNodes = Callable[[Pod, Collection[str]], list[Rank]]
_List = tuple[str, bool]  #: namespace, and whether the list has blocked classes


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingGang(PodFacts):
    """The pods of a group that wait, as one entry of the queue; the other fields are fields of the first pod."""

    key: GroupKey
    members: tuple[PodFacts, ...]

    @property
    def uid(self) -> str:
        return gang_uid(self.key)

    @property
    def full_name(self) -> str:
        return f"gang {self.key}"


def gang_uid(key: GroupKey) -> str:
    """Return the name of a gang in the queue, which no pod has as its uid."""
    return f"gang {key} {key.source}"


@dataclass(slots=True, eq=False)
class PodClass:
    """Pods of one namespace and one shape with the same selectors; the kind of the wait queue."""

    key: Hashable
    namespace: str
    pod: Pod  #: stands for all of them
    ranking: list[Rank] | None = None  #: of the nodes that admit them, the best first
    version: int = 0  #: of the changes of nodes that the ranking contains
    explained: tuple[frozenset[str], str] | None = None  #: why no node admits them, and the text of the events
    prepared: bool = False  #: whether verdicts on a large pod were computed, so that a decision is quick
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
        position = 0
        while self.ranking is not None and position < len(self.ranking):
            rank = self.ranking[position]
            yield rank[2]
            position += rank[2] in self._ranks


@dataclass(slots=True, eq=False)
class NodeChanges:
    """The nodes that have changed, in the order of their last changes; each change has a version."""

    version: int = 0
    _versions: OrderedDict[str, int] = field(default_factory=OrderedDict)

    def add(self, node: str) -> None:
        self.version += 1
        self._versions[node] = self.version
        self._versions.move_to_end(node)

    def forget(self, node: str) -> None:
        self._versions.pop(node, None)

    def since(self, version: int) -> list[str]:
        nodes = []
        for node, node_version in reversed(self._versions.items()):
            if node_version <= version:
                break
            nodes.append(node)
        return nodes


@dataclass(slots=True, eq=False)
class BlockedClasses:
    """The blocked classes of a namespace, which are tried again one after the other whenever a node has changed."""

    _changes: int  #: when the round began in which they are tried, or was over
    entries: list[Entry] = field(default_factory=list)  #: their first pods, sorted
    _tried: Entry | None = None  #: the last one in this round; ``None``: it has not begun
    _over: bool = True

    def put(self, entry: Entry) -> None:
        insort(self.entries, entry)
        if not self._over and self._tried is not None and entry < self._tried:
            self._changes = -1  # another round is needed

    def remove(self, entry: Entry) -> None:
        """Remove an entry; do nothing without it, since an earlier step may have failed."""
        position = bisect_left(self.entries, entry)
        if self.entries[position : position + 1] == [entry]:
            del self.entries[position]

    def next(self, changes: int) -> Entry | None:
        """Return the first pod of the class to try next, after as many *changes*; ``None``: there were none since."""
        while True:
            if self._over:
                if self._changes == changes:
                    return None
                self._changes = changes
                self._tried = None
                self._over = False
            position = 0 if self._tried is None else bisect_right(self.entries, self._tried)
            if position < len(self.entries):
                return self.entries[position]
            self._over = True

    def tried(self, entry: Entry) -> None:
        self._tried = entry


class PodQueue(WaitQueue[PodClass, PodFacts]):
    """All waiting pods behind the gate."""

    def __init__(self, facts: ClusterFacts, *, is_planned: Callable[[str], bool] = lambda _uid: False) -> None:
        super().__init__()
        self._facts = facts
        self._is_planned = is_planned  #: whether a pod gets the node that a plan names, and no other
        self._classes: dict[Hashable, PodClass] = {}
        self._unused: OrderedDict[PodClass, None] = OrderedDict()  #: classes without pods, the last used at the end
        self.namespaces: Counter[str] = Counter()  #: of the waiting pods
        self.tries = 0  #: of classes so far
        self._changes = NodeChanges()
        self._freed = 0  #: changes after which blocked classes may be admitted
        #: by namespace, the first pods of classes that are not blocked, as a heap; outdated entries are skipped
        self._new: dict[str, list[Entry]] = {}
        self._blocked: dict[str, BlockedClasses] = {}  #: by namespace
        self._failures: Counter[_List] = Counter()

    def add(self, waiting_pod: PodFacts) -> PodClass:
        """Add a pod, or replace it by its present version; return its class."""
        self._pop(waiting_pod.uid)
        namespace = waiting_pod.namespace
        key = _class_key(waiting_pod)
        if self._is_planned(waiting_pod.uid):
            key = (key, waiting_pod.uid)  # no other pod may go where it may
        pod_class = self._classes.get(key)
        if pod_class is None:
            representative = replace(waiting_pod.pod, uid=SHAPE_UID)
            pod_class = self._classes[key] = PodClass(key, namespace, representative)
        self._unused.pop(pod_class, None)
        head_before = self._kinds[pod_class][0] if pod_class in self._kinds else None
        self.put(waiting_pod.uid, waiting_pod, kind=pod_class, order=waiting_pod.order)
        self.namespaces[namespace] += 1
        self._replace_head(pod_class, head_before)
        return pod_class

    def _pop(self, uid: str) -> Entry | None:
        entry = super()._pop(uid)
        if entry is not None:
            pod_class: PodClass = entry.kind
            self.namespaces[pod_class.namespace] -= 1
            if not self.namespaces[pod_class.namespace]:
                del self.namespaces[pod_class.namespace]
            if pod_class not in self._kinds:
                pod_class.explained = None
                self._unused[pod_class] = None
                if len(self._unused) > MAX_CLASSES:
                    oldest, _ = self._unused.popitem(last=False)
                    del self._classes[oldest.key]
                    self.blocked.discard(oldest)
                self._unblock(pod_class, entry)
            elif entry < self._kinds[pod_class][0]:
                self._replace_head(pod_class, entry)
        return entry

    def _replace_head(self, pod_class: PodClass, head_before: Entry | None) -> None:
        """Note that the first pod of a class may be another pod than *head_before*."""
        head = self._kinds[pod_class][0]
        if head is head_before:
            return
        if pod_class not in self.blocked:
            heapq.heappush(self._new.setdefault(pod_class.namespace, []), head)
            return
        blocked_classes = self._blocked.setdefault(pod_class.namespace, BlockedClasses(self._freed))
        if head_before is not None:
            blocked_classes.remove(head_before)
        blocked_classes.put(head)

    def is_blocked(self, uid: str) -> bool:
        entry = self._entries.get(uid)
        return entry is not None and entry.kind in self.blocked

    # Tries

    def block(self, pod_class: PodClass) -> None:
        """Note that no node admits the first pod of a class."""
        namespace, again = pod_class.namespace, pod_class in self.blocked
        self._failures[namespace, again] += 1
        if not again:
            self.blocked.add(pod_class)
            self._blocked.setdefault(namespace, BlockedClasses(self._freed)).put(self._kinds[pod_class][0])

    def unblock(self, pod_class: PodClass) -> None:
        """Note that a node admits the first pod of a class; the caller removes the pod."""
        self._unblock(pod_class, self._kinds[pod_class][0])

    def retry(self, pod_class: PodClass) -> None:
        """Try a blocked class again, like a new one."""
        if pod_class in self.blocked and pod_class in self._kinds:
            head = self._kinds[pod_class][0]
            self._unblock(pod_class, head)
            heapq.heappush(self._new.setdefault(pod_class.namespace, []), head)

    def rank_again(self, condition: Callable[[PodClass], bool]) -> None:
        """Rank all nodes again for the classes that meet a condition, and try them again."""
        for pod_class in filter(condition, self._classes.values()):
            pod_class.ranking = None
            self.retry(pod_class)

    def _unblock(self, pod_class: PodClass, head: Entry) -> None:
        if pod_class in self.blocked:
            self.blocked.discard(pod_class)
            blocked_classes = self._blocked.get(pod_class.namespace)
            if blocked_classes is not None:
                blocked_classes.remove(head)
                if not blocked_classes.entries:
                    del self._blocked[pod_class.namespace]

    def next_head(
        self, may_try: Callable[[str], bool], isolate: Callable[[str], AbstractContextManager[object]]
    ) -> tuple[PodClass, PodFacts] | None:
        """Return the next class to try with its first pod; *may_try* says whether pods of a namespace may be tried.

        The caller blocks the class, or unblocks it and removes the pod. *isolate* contains failures of one namespace.
        """
        firsts: dict[_List, Entry] = {}
        for namespace in {*self._new, *self._blocked}:
            with isolate(namespace):
                if may_try(namespace):
                    firsts |= self._first_entries(namespace)
        if not firsts:
            return None
        patient = [key for key in firsts if self._failures[key] < MAX_FAILURES]
        if not patient:
            self._failures.clear()
        chosen_key = min(patient or firsts, key=lambda key: firsts[key])
        entry, (namespace, again) = firsts[chosen_key], chosen_key
        if again:
            self._blocked[namespace].tried(entry)
        else:
            heapq.heappop(self._new[namespace])
        self.tries += 1
        return entry.kind, entry.item

    def _first_entries(self, namespace: str) -> dict[_List, Entry]:
        firsts = {(namespace, False): self._first_new(namespace), (namespace, True): self._first_blocked(namespace)}
        for key in [key for key, first in firsts.items() if first is None]:
            self._failures.pop(key, None)
        return {key: first for key, first in firsts.items() if first is not None}

    def _first_new(self, namespace: str) -> Entry | None:
        entries = self._new.get(namespace, [])
        while entries:
            if self._is_head(entries[0]) and entries[0].kind not in self.blocked:
                return entries[0]
            heapq.heappop(entries)  # it is outdated
        self._new.pop(namespace, None)
        return None

    def _first_blocked(self, namespace: str) -> Entry | None:
        blocked_classes = self._blocked.get(namespace)
        while blocked_classes is not None and (entry := blocked_classes.next(self._freed)) is not None:
            if self._is_head(entry):
                return entry
            blocked_classes.remove(entry)  # it is outdated, since a step failed
        return None

    def _is_head(self, entry: Entry) -> bool:
        return self._kinds.get(entry.kind, (None,))[0] is entry

    # Nodes

    def nodes_changed(self, names: Iterable[str], *, taken: bool = False) -> None:
        """Rank these nodes again; unless pods have *taken* resources there, the nodes may admit blocked classes now."""
        nodes = self._facts.nodes
        for name in names:
            if name in nodes:
                self._changes.add(name)
            else:
                self._forget_node(name)
        self._freed += not taken

    def _forget_node(self, name: str) -> None:
        self._changes.forget(name)
        for pod_class in self._classes.values():
            pod_class.drop(name)

    def candidates(self, pod_class: PodClass, rank: RankNodes) -> Iterator[str]:
        """Return the nodes that admit the pods of a class, the best first."""
        changed_nodes = self._changes.since(pod_class.version)
        first: PodFacts = self._kinds[pod_class][0].item
        if pod_class.ranking is None or len(changed_nodes) > MAX_CHANGED:
            pod_class.rank(None, rank(pod_class.pod, self._facts.allowed(first)))
        else:
            allowed_nodes = [node for node in changed_nodes if self._facts.allows(first, node)]
            pod_class.rank(changed_nodes, rank(pod_class.pod, allowed_nodes) if allowed_nodes else ())
        pod_class.version = self._changes.version
        return iter(pod_class)


def _class_key(waiting_pod: PodFacts) -> Hashable:
    if isinstance(waiting_pod, WaitingGang):
        return waiting_pod.key
    return waiting_pod.namespace, kind_key(waiting_pod)


def kind_key(waiting_pod: PodFacts) -> Hashable:
    """Return a key that is equal for pods of a namespace that can go to the same nodes."""
    return shape_key(waiting_pod.pod), waiting_pod.selection, _claims_key(waiting_pod.pod)


def _claims_key(pod: Pod) -> Hashable:
    """Return a key that is equal for pods whose claims can have the same devices."""
    if not pod.claims and not pod.class_resources:
        return ()
    claims = [(claim.name, claim.template or claim.claim) for claim in pod.claims]
    users = [container.resources.claims for container in pod.all_containers]
    return (tuple(claims), tuple(users), pod.annotations.get(CLAIMS_ANNOTATION))
