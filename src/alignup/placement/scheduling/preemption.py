"""Preemption: which pods of lower priority must end so that a node admits a pod.

Up to Kubernetes 1.37, the scheduler asks only about nodes where it would evict pods itself, because the node as a whole
has no room; we check whether that is enough, and add pods. It fails with an error if a node that has room as a whole
seems to need preemption. From 1.38 on, it asks about such nodes as well, without victims, and takes ours.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from alignup.align.workload import Pod
from alignup.placement.cluster import Cluster
from alignup.placement.host_record import HostRecord
from alignup.placement.pod_demands import needs_exact_host
from alignup.placement.pod_shape import build_shape, is_large, needs_alignment
from alignup.placement.scheduling.facts import ClusterFacts, NodeVictims
from alignup.placement.victims import DisruptionBudget, count_violations

MAX_SEARCHED = 32  #: nodes on which victims are searched for, to say whether evicting pods may help


class Preemption:
    """The search for victims. *chooses*: whether the scheduler asks about nodes without victims of its own."""

    def __init__(self, cluster: Cluster, facts: ClusterFacts) -> None:
        self._cluster = cluster
        self._facts = facts
        self.chooses = False
        self.allow_unknown = False

    def resolvable(self, pod: Pod, nodes: Iterable[str]) -> Collection[str]:
        """Return the nodes that may admit *pod* after evicting others; exact for the first ones."""
        resolvable: set[str] = set()
        searched = 0
        for node in nodes if self.chooses else ():
            record = self._cluster.record(node)
            if record is None or not _has_lower_priority(record, pod):
                continue
            searched += 1
            if searched > MAX_SEARCHED or is_large(pod) or self._helps(pod, node):
                resolvable.add(node)
        return resolvable

    def _helps(self, pod: Pod, node: str) -> bool:
        victims = self._cluster.victims(pod, node, allow_violations=True)
        return bool(victims.sets) or not victims.complete

    def victims(
        self, pod: Pod, proposed: Mapping[str, NodeVictims], budgets: Sequence[DisruptionBudget]
    ) -> dict[str, NodeVictims]:
        """Return the pods to evict from each node so that it admits *pod*; nodes where nothing helps are left out."""
        by_node = {}
        for node, victims in proposed.items():
            chosen = self._choose(pod, node, victims.pods, budgets)
            if chosen is not None:
                same = len(chosen) == len(victims.pods)
                violations = victims.violations if same else count_violations(budgets, chosen)
                by_node[node] = NodeVictims(chosen, violations)
        return by_node

    def _choose(
        self, pod: Pod, node: str, proposed: tuple[str, ...], budgets: Sequence[DisruptionBudget]
    ) -> tuple[str, ...] | None:
        """Return the proposed pods, and more if they are not enough; ``None`` if the node does not admit *pod* then."""
        record = self._cluster.record(node)
        if not needs_alignment(pod) or (record is None and self.allow_unknown and not needs_exact_host(pod)):
            return proposed or None
        if record is None:
            return None
        if proposed and _admits_without(record, pod, proposed):
            return proposed
        if is_large(pod):  # each of thousands of sets would be a decision
            return None
        present = self._facts.bound_to(node)
        for violate in (False, True) if budgets else (True,):  # sets that respect all disruption budgets first
            for victims in self._cluster.victims(pod, node, budgets=budgets, allow_violations=violate).sets:
                together = tuple(dict.fromkeys([*proposed, *victims.pods]))
                if victims.pods and present >= set(victims.pods) and _admits_without(record, pod, together):
                    return together
        return None


def _has_lower_priority(record: HostRecord, pod: Pod) -> bool:
    return any((other.pod.priority or 0) < (pod.priority or 0) for other in record.ledger.pods.values())


def _admits_without(record: HostRecord, pod: Pod, uids: Collection[str]) -> bool:
    """Return whether the host admits *pod* in every possible state once these pods have ended."""
    asked, model = build_shape(pod).pod, record.model
    without = [model.without(ledger, uids) for ledger in record.states().ledgers]
    return bool(without) and all(model.admit(ledger, asked) for ledger in without)
