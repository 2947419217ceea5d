"""The verb preempt: which pods of lower priority must end so that a node admits a pod.

Up to Kubernetes 1.37, the scheduler asks only about nodes where it would evict pods itself, because the node as a whole
has no room; we check whether that is enough, and add pods. It fails with an error if a node that has room as a whole
seems to need preemption. From 1.38 on, it asks about such nodes as well, without victims, and takes ours.
"""

import time
from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec

from alignup.align.workload import Pod
from alignup.kubernetes.api.objects import ApiPod, ObjectMeta
from alignup.kubernetes.api.resource import Resource
from alignup.kubernetes.manifests.node_selectors import NodeSelectorRequirement
from alignup.kubernetes.manifests.pod_decoder import Labels, ObjectPart
from alignup.placement.host_record import HostRecord
from alignup.placement.pod_shape import build_shape, is_large, needs_alignment
from alignup.placement.victims import DisruptionBudget
from alignup.schedule.extender_messages import MetaPod, MetaVictims
from alignup.schedule.live_cluster import LiveCluster
from alignup.schedule.node_selection import holds

CHOOSES_VICTIMS = (1, 38)  #: the first version of kube-scheduler that lets extenders name all victims
SEARCH_SECONDS = 0.1  #: for one pod, over all nodes


class LabelSelector(ObjectPart, frozen=True):
    """Conditions on labels that must all be true; one without any selects everything."""

    match_labels: Labels = msgspec.field(default_factory=dict)
    match_expressions: tuple[NodeSelectorRequirement, ...] = ()


class DisruptionBudgetSpec(ObjectPart, frozen=True):
    selector: LabelSelector | None = None  #: ``None``: no pod


class DisruptionBudgetStatus(ObjectPart, frozen=True):
    disruptions_allowed: int = 0


class PodDisruptionBudget(ObjectPart, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: DisruptionBudgetSpec = DisruptionBudgetSpec()
    status: DisruptionBudgetStatus = DisruptionBudgetStatus()


POD_DISRUPTION_BUDGETS = Resource(
    type=PodDisruptionBudget, kind="PodDisruptionBudget", plural="poddisruptionbudgets", group="policy", namespaced=True
)


class Preemption:
    """The search for victims. *chooses*: whether the scheduler asks about nodes without victims of its own."""

    def __init__(
        self, live: LiveCluster, *, chooses: bool, allow_unknown: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.chooses = chooses
        self._live, self._allow_unknown, self._clock = live, allow_unknown, clock

    def resolvable(self, pod: Pod, nodes: Iterable[str]) -> Collection[str]:
        """Return the nodes that may admit *pod* after evicting others; exact until the time for searching is over."""
        if not self.chooses:
            return ()
        end = self._clock() + SEARCH_SECONDS
        return frozenset(name for name in nodes if self._may_help(pod, name, search=self._clock() < end))

    def _may_help(self, pod: Pod, node: str, *, search: bool) -> bool:
        record = self._live.cluster.record(node)
        if record is None:
            return False
        priority = pod.priority or 0
        if not any((held.pod.priority or 0) < priority for held in record.ledger.pods.values()):
            return False
        if not search or is_large(pod):
            return True
        victims = self._live.cluster.victims(pod, node, allow_violations=True)
        return bool(victims.sets) or not victims.complete

    def victims(
        self, pod: Pod, proposed: dict[str, MetaVictims], budgets: Sequence[PodDisruptionBudget] = ()
    ) -> dict[str, MetaVictims]:
        """Return the pods to evict from each node so that it admits *pod*; nodes where nothing helps are left out."""
        pods = tuple(self._live.pods.objects.values()) if budgets else ()
        known = []
        for budget in budgets:
            covered = frozenset(pod.metadata.uid for pod in pods if _covers(budget, pod))
            known.append(DisruptionBudget(budget.metadata.full_name, budget.status.disruptions_allowed, covered))
        by_node = {}
        for node, victims in proposed.items():
            chosen = self._choose(pod, node, [victim.uid for victim in victims.pods or ()], known)
            if chosen is not None:
                violations = sum(max(0, len(budget.pods.intersection(chosen)) - budget.allowed) for budget in known)
                same = len(chosen) == len(victims.pods or ())
                by_node[node] = MetaVictims(tuple(map(MetaPod, chosen)), victims.violations if same else violations)
        return by_node

    def _choose(
        self, pod: Pod, node: str, proposed: list[str], budgets: Sequence[DisruptionBudget]
    ) -> list[str] | None:
        """Return the proposed pods, and more if they are not enough; ``None`` if the node does not admit *pod* then."""
        record = self._live.cluster.record(node)
        if not needs_alignment(pod) or (record is None and self._allow_unknown):
            return proposed or None
        if record is None:
            return None
        if proposed and _admits_without(record, pod, proposed):
            return proposed
        if is_large(pod):  # each of thousands of sets would be a decision
            return None
        present = {bound.metadata.uid for bound in self._live.bound_pods(node)}
        for violate in (False, True) if budgets else (True,):  # sets that respect all disruption budgets first
            for victims in self._live.cluster.victims(pod, node, budgets=budgets, allow_violations=violate).sets:
                together = list(dict.fromkeys([*proposed, *victims.pods]))
                if victims.pods and present.issuperset(victims.pods) and _admits_without(record, pod, together):
                    return together
        return None


def _admits_without(record: HostRecord, pod: Pod, uids: Collection[str]) -> bool:
    """Return whether the host admits *pod* in every possible state once these pods have ended."""
    asked, ledgers = build_shape(pod).pod, record.states().ledgers
    without = [record.model.at(record.model.without(ledger, uids)) for ledger in ledgers]
    return bool(without) and all(host.decide_without_plugins(asked).admitted for host in without)


def _covers(budget: PodDisruptionBudget, pod: ApiPod) -> bool:
    selector, labels = budget.spec.selector, pod.metadata.labels
    if selector is None or pod.metadata.namespace != budget.metadata.namespace:
        return False
    return all(labels.get(key) == value for key, value in selector.match_labels.items()) and all(
        holds(requirement, labels) for requirement in selector.match_expressions
    )
