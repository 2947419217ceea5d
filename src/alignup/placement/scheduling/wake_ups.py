"""Wake-ups: pods that were refused before are tried again when a node has room for them.

kube-scheduler sets a pod aside that an extender refused, until something happens in the cluster that it watches. A new
HostState is nothing of that kind, so such a pod is woken. Nodes change one by one, and each wakes at most one pod, with
its gang: the most important one that it admits. A pod that another process has refused is woken once.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

from alignup.align.workload import Pod
from alignup.placement.pod_shape import is_large, needs_alignment
from alignup.placement.scheduling.common_parts import CommonParts
from alignup.placement.scheduling.facts import PodFacts, WaitState
from alignup.placement.scheduling.instructions import DecideLargePod, WakePod
from alignup.placement.scheduling.tentative_gangs import UNSEEN_SECONDS, TentativeGangs
from alignup.placement.wait_queue import WaitQueue

SWEEP_SECONDS = 30.0  #: between looking for room for all waiting pods, since a woken pod need not take the room
AGAIN_SECONDS = 5.0  #: before a pod is woken again
RETRY_SECONDS = 30.0  #: after a wake-up failed unexpectedly
MAX_PER_SWEEP = 64


@dataclass(slots=True, eq=False)
class RefusedPod:
    facts: PodFacts
    nodes: frozenset[str] | None  #: that the scheduler asked about; ``None``: it has not asked this process
    since: float  #: when it was refused last
    woken: float = float("-inf")  #: when
    deciding: bool = False  #: whether hosts decide on it, which takes long

    @property
    def pod(self) -> Pod:
        return self.facts.pod


class WakeUps:
    """The pods for which no node was offered; *refusals* returns the nodes that are kept from a pod, and why."""

    def __init__(
        self,
        parts: CommonParts,
        *,
        gangs: TentativeGangs,
        refusals: Callable[[Pod], Mapping[str, str]],
    ) -> None:
        self._cluster = parts.cluster
        self._facts = parts.facts
        self._assumptions = parts.assumptions
        self._turn = parts.turn
        self._gangs = gangs
        self._refusals = refusals
        self._waiting: WaitQueue[None, RefusedPod] = WaitQueue()  #: the highest priority first, then the oldest
        self._nodes: tuple[tuple[str, ...], frozenset[str]] = ((), frozenset())  #: of the last pod, to be shared
        self._changed: dict[str, None] = {}  #: nodes
        self._sweep: deque[str] = deque()  #: uids of pods to be looked at
        self.adopts = False  #: whether pods wait that were refused by another process
        self._adopted: set[str] = set()  #: uids of such pods, which are woken once
        self._swept = float("-inf")
        self._looked = float("-inf")  #: when large pods were looked at last

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, uid: str) -> bool:
        """Whether a pod waits for room."""
        return uid in self._waiting

    @property
    def due(self) -> bool:
        """Whether there is something to look at."""
        return bool(self._changed or self._sweep)

    def refused(self, facts: PodFacts, nodes: Collection[str]) -> None:
        """Let a pod wait for which none of *nodes* was offered."""
        if self._nodes[0] != tuple(nodes):
            self._nodes = (tuple(nodes), frozenset(nodes))
        refused_before = self._waiting.get(facts.uid)
        self._put(
            RefusedPod(facts, self._nodes[1], self._turn.now, refused_before.woken if refused_before else float("-inf"))
        )

    def _put(self, refused_pod: RefusedPod) -> None:
        if not self._waiting:
            self._swept = self._turn.now
        self._waiting.put(refused_pod.facts.uid, refused_pod, kind=None, order=(-(refused_pod.pod.priority or 0),))

    def seen(self, facts: PodFacts) -> None:
        """Let a pod wait for which its scheduler found no node; perhaps another process refused the pod."""
        uid, may_be_refused = facts.uid, facts.group is not None or needs_alignment(facts.pod)
        if self.adopts and may_be_refused and uid not in self._waiting and uid not in self._adopted:
            self._adopted.add(uid)
            self._put(RefusedPod(facts, None, self._turn.now))

    def await_room(self, uid: str, nodes: Collection[str]) -> None:
        """Let a pod wait for nodes as well that are kept for it, or where it has a place."""
        refused_pod, facts = self._waiting.get(uid), self._facts.pod(uid)
        if facts is not None and facts.state in {WaitState.UNSCHEDULABLE, WaitState.OTHER}:
            asked_nodes = refused_pod.nodes if refused_pod else frozenset()
            if asked_nodes is not None:  # else it waits for any node already
                self.refused(facts, asked_nodes.union(nodes))
            self.hosts_changed(nodes)  # they may have room now

    def forget(self, uid: str) -> None:
        """Forget a pod that waits no longer, since it is bound or gone."""
        self._adopted.discard(uid)
        self._remove(uid)

    def _remove(self, uid: str) -> None:
        if self._waiting.remove(uid) and not self._waiting:
            self._nodes = ((), frozenset())

    def clear(self) -> None:
        for refused_pod in self._waiting:
            self.forget(refused_pod.facts.uid)
        self._changed.clear()
        self._sweep.clear()
        self._adopted.clear()

    def hosts_changed(self, nodes: Collection[str]) -> None:
        if self._waiting:
            self._changed |= dict.fromkeys(nodes)

    def check(self) -> None:
        """Look at all waiting pods from time to time."""
        now = self._turn.now
        if now - self._swept >= SWEEP_SECONDS:
            self._swept = now
            for refused_pod in self._waiting:
                if now - refused_pod.since >= UNSEEN_SECONDS and self._facts.pod(refused_pod.facts.uid) is None:
                    self.forget(refused_pod.facts.uid)
            self._sweep = deque(refused_pod.facts.uid for refused_pod in islice(self._waiting, MAX_PER_SWEEP))
        elif now - self._looked >= AGAIN_SECONDS and not self._sweep:  # nodes change while others decide
            self._looked = now
            large = (
                refused_pod.facts.uid
                for refused_pod in self._waiting
                if is_large(refused_pod.pod) and not refused_pod.deciding
            )
            self._sweep.extend(islice(large, MAX_PER_SWEEP))

    def wake_next(self) -> None:
        """Look at the next node that has changed, or at the next pod."""
        if self._changed:
            node = next(iter(self._changed))
            del self._changed[node]
            self._wake_first(node)
        elif self._sweep and (refused_pod := self._waiting.get(self._sweep.popleft())):
            self._wake_anywhere(refused_pod)

    def large_pod_decided(self, uid: str) -> None:
        refused_pod = self._waiting.get(uid)
        if refused_pod is not None and refused_pod.deciding:
            refused_pod.deciding = False
            self._wake_anywhere(refused_pod, decided=True)

    def _wake_first(self, node: str) -> None:
        """Wake the first pod that *node* admits."""
        for refused_pod in self._waiting:
            if not self._may_wake(refused_pod) or not self._is_asked_about(refused_pod, node):
                continue
            with self._isolated(refused_pod):
                if not self._is_decided(refused_pod, (node,)):
                    continue
                admits = self._assumptions.verdict(refused_pod.pod, node).admits
                if admits and node not in self._refusals(refused_pod.pod) and self._wake_all(refused_pod, node):
                    return

    def _wake_anywhere(self, refused_pod: RefusedPod, *, decided: bool = False) -> None:
        with self._isolated(refused_pod):
            nodes = (
                refused_pod.nodes
                if refused_pod.nodes is not None
                else frozenset(self._facts.allowed(refused_pod.facts))
            )
            if not self._may_wake(refused_pod) or not (decided or self._is_decided(refused_pod, nodes)):
                return
            nodes = nodes.difference(self._refusals(refused_pod.pod))
            for ranked_host in self._assumptions.rank(refused_pod.pod, nodes, limit=1):
                self._wake_all(refused_pod, ranked_host.host)

    def _is_decided(self, refused_pod: RefusedPod, nodes: Collection[str]) -> bool:
        """Return whether it is quick to say which of *nodes* admit a pod; if not, let them decide."""
        if not is_large(refused_pod.pod) or not self._cluster.undecided(refused_pod.pod, nodes):
            return True
        if not refused_pod.deciding:
            refused_pod.deciding = True
            self._turn.emit(DecideLargePod(refused_pod.facts.uid, refused_pod.pod))
        return False

    def _wake_all(self, refused_pod: RefusedPod, node: str) -> bool:
        """Wake a pod, and its gang if the whole gang fits; return whether it does."""
        if not self._gangs.fits(refused_pod.facts):
            return False
        uids = self._gangs.others_waiting(refused_pod.facts)
        others = [other for uid in uids if (other := self._waiting.get(uid)) and self._may_wake(other)]
        for woken_pod in (refused_pod, *others):
            woken_pod.woken = self._turn.now
            if woken_pod.nodes is None:
                self._remove(woken_pod.facts.uid)
            self._turn.emit(WakePod(woken_pod.facts.uid, woken_pod.facts.namespace, woken_pod.pod.name, node))
        return True

    def _is_asked_about(self, refused_pod: RefusedPod, node: str) -> bool:
        return self._facts.allows(refused_pod.facts, node) if refused_pod.nodes is None else node in refused_pod.nodes

    def _may_wake(self, refused_pod: RefusedPod) -> bool:
        return self._turn.now >= refused_pod.woken + AGAIN_SECONDS

    @contextmanager
    def _isolated(self, refused_pod: RefusedPod) -> Iterator[None]:
        """Let a wake-up fail for one pod, and try it again later."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, all others go on
            refused_pod.woken = self._turn.now + RETRY_SECONDS
            self._turn.failed("wake", refused_pod.facts.full_name, error, RETRY_SECONDS)
