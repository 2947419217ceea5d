"""The part of an extender in preemption: which pods of lower priority must end so that a node admits a pod.

Up to Kubernetes 1.37, the scheduler asks only about nodes where it would evict pods itself, because the node as a whole
has no room; we check whether that is enough, and add pods. It fails with an error if a node that has room as a whole
seems to need preemption. From 1.38 on, it asks about such nodes as well, without victims, and takes ours.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from alignup.align.workload import Pod
from alignup.kubernetes.api.objects import ApiPod
from alignup.placement.host_record import HostRecord
from alignup.placement.pod_shape import build_shape
from alignup.placement.victims import DisruptionBudget
from alignup.schedule.alignment_need import needs_alignment
from alignup.schedule.disruption_budgets import LabelSelector, PodDisruptionBudget
from alignup.schedule.extender_messages import MetaPod, MetaVictims
from alignup.schedule.live_cluster import LiveCluster
from alignup.schedule.node_selection import holds

CHOOSES_VICTIMS = (1, 38)  #: the first version of kube-scheduler that lets extenders name all victims
SEARCH_SECONDS = 0.1  #: for one pod, over all nodes


class Preemption:
    """Answers about victims. *chooses*: whether the scheduler asks about nodes without victims of its own."""

    def __init__(
        self,
        live: LiveCluster,
        *,
        chooses: bool = False,
        allow_unknown: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.chooses = chooses
        self._live, self._allow_unknown, self._clock = live, allow_unknown, clock

    def resolvable(self, pod: Pod, nodes: Iterable[str]) -> Collection[str]:
        """The nodes that may admit *pod* after evicting others; exact until the time for searching is over."""
        if not self.chooses:
            return ()
        end = self._clock() + SEARCH_SECONDS
        return frozenset(name for name in nodes if self._may_help(pod, name, search=self._clock() < end))

    def _may_help(self, pod: Pod, node: str, *, search: bool) -> bool:
        record = self._live.cluster.record(node)
        if record is None:
            return False
        own = pod.priority or 0
        if not any((one.pod.priority or 0) < own for one in record.ledger.pods.values()):
            return False
        if not search:
            return True
        found = self._live.cluster.victims(pod, node, allow_violations=True)
        return bool(found.sets) or not found.complete

    def victims(
        self, pod: Pod, proposed: dict[str, MetaVictims], budgets: Sequence[PodDisruptionBudget] = ()
    ) -> dict[str, MetaVictims]:
        """The pods to evict from each node so that it admits *pod*; nodes where nothing helps are left out."""
        known = self._known_budgets(budgets)
        found = {}
        for node, own in proposed.items():
            chosen = self._choose(pod, node, [one.uid for one in own.pods or ()], known)
            if chosen is not None:
                violations = sum(max(0, len(one.pods.intersection(chosen)) - one.allowed) for one in known)
                same = len(chosen) == len(own.pods or ())
                found[node] = MetaVictims(tuple(map(MetaPod, chosen)), own.violations if same else violations)
        return found

    def _choose(
        self, pod: Pod, node: str, proposed: list[str], budgets: Sequence[DisruptionBudget]
    ) -> list[str] | None:
        """The proposed pods, and more if they are not enough; ``None`` if the node does not admit the pod then."""
        record = self._live.cluster.record(node)
        if not needs_alignment(pod) or (record is None and self._allow_unknown):
            return proposed or None
        if record is None:
            return None
        if proposed and _admits_without(record, pod, proposed):
            return proposed
        present = {one.metadata.uid for one in self._live.bound_pods(node)}
        for own in self._sets(pod, node, budgets):
            together = list(dict.fromkeys([*proposed, *own]))
            if own and present.issuperset(own) and _admits_without(record, pod, together):
                return together
        return None

    def _sets(self, pod: Pod, node: str, budgets: Sequence[DisruptionBudget]) -> Iterator[tuple[str, ...]]:
        """Sets of victims, those that respect all disruption budgets first."""
        for violate in (False, True) if budgets else (True,):
            found = self._live.cluster.victims(pod, node, budgets=budgets, allow_violations=violate)
            yield from (one.pods for one in found.sets)

    def _known_budgets(self, budgets: Sequence[PodDisruptionBudget]) -> list[DisruptionBudget]:
        pods = tuple(self._live.pods.objects.values()) if budgets else ()
        return [
            DisruptionBudget(
                one.metadata.full_name,
                one.status.disruptions_allowed,
                frozenset(pod.metadata.uid for pod in pods if _covers(one, pod)),
            )
            for one in budgets
        ]


def _admits_without(record: HostRecord, pod: Pod, uids: Collection[str]) -> bool:
    """Whether the host admits *pod* in every possible state once these pods have ended."""
    asked, ledgers = build_shape(pod).pod, record.states().ledgers
    without = [record.model.at(record.model.without(ledger, uids)) for ledger in ledgers]
    return bool(without) and all(host.decide_without_plugins(asked).admitted for host in without)


def _covers(budget: PodDisruptionBudget, pod: ApiPod) -> bool:
    selector = budget.spec.selector
    same = pod.metadata.namespace == budget.metadata.namespace
    return same and selector is not None and _selects(selector, pod.metadata.labels)


def _selects(selector: LabelSelector, labels: dict[str, str]) -> bool:
    plain = all(labels.get(key) == value for key, value in selector.match_labels.items())
    return plain and all(holds(one, labels) for one in selector.match_expressions)
