"""Preemption: which pods of lower priority must end so that a node admits a pod.

Up to Kubernetes 1.37, the scheduler asks only about nodes where it would evict pods itself, because the node as a whole
has no room; we check whether that is enough, and add pods. It fails with an error if a node that has room as a whole
seems to need preemption. From 1.38 on, it asks about such nodes as well, without victims, and takes ours.

For a pod of a gang, the search is for room for the whole gang: nothing is evicted for a gang that cannot start. Each of
its pods is told the victims on its own node of the same plan, since the same state has the same plan.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import count, islice

from alignup.align.workload import Pod
from alignup.placement.cluster import Cluster
from alignup.placement.moves import MovePlan, MoveRules, PendingPod, RunningPod, lack
from alignup.placement.pod_demands import needs_exact_host
from alignup.placement.pod_shape import build_shape, is_large, needs_alignment
from alignup.placement.scheduling.facts import ClusterFacts, NodeVictims, PodFacts
from alignup.placement.victims import DisruptionBudget, admits_without, count_violations

MAX_SEARCHED = 32  #: nodes on which victims are searched for, to say whether evicting pods may help
GANG_TRIES = 2000  #: sets of pods that are decided on for one gang
GANG_MOVES = 64  #: pods that may be evicted for one


class Preemption:
    """The search for victims; *refusals* returns the nodes that are kept from a pod, and why.

    *chooses*: whether the scheduler asks about nodes without victims of its own.
    """

    def __init__(self, cluster: Cluster, facts: ClusterFacts, *, refusals: Callable[[Pod], Mapping[str, str]]) -> None:
        self._cluster = cluster
        self._facts = facts
        self._refusals = refusals
        self.chooses = False
        self.allow_unknown = False

    def resolvable(self, pod: Pod, nodes: Iterable[str]) -> Collection[str]:
        """Return the nodes that may admit *pod* after evictions of other pods; exact for the first nodes."""
        resolvable: set[str] = set()
        search_count = 0
        for node in nodes if self.chooses else ():
            if not self._has_lower(node, pod.priority or 0):
                continue
            search_count += 1
            if search_count > MAX_SEARCHED or is_large(pod) or self._helps(pod, node):
                resolvable.add(node)
        return resolvable

    # Gangs

    def gang_nodes(self, pod: Pod, gang: Sequence[PodFacts], names: Collection[str]) -> Collection[str]:
        """Return which of *names* the pod of *gang* gets, if evicting pods lets the whole gang start."""
        plan = self._plan_gang(pod, gang, names, ()) if self.chooses else None
        return () if plan is None else {step.host for step in plan.admissions if step.pod.uid == pod.uid}

    def gang_victims(
        self,
        pod: Pod,
        gang: Sequence[PodFacts],
        proposed_victims: Mapping[str, NodeVictims],
        budgets: Sequence[DisruptionBudget],
    ) -> dict[str, NodeVictims]:
        """Return the pods to evict from the node of the pod of *gang*, so that the whole gang can start.

        Others of the gang are told theirs when the scheduler asks about them. Nothing: the gang could not start.
        """
        for kept_budgets in (budgets, ()) if budgets else ((),):  # sets that respect all disruption budgets first
            plan = self._plan_gang(pod, gang, proposed_victims, kept_budgets)
            if plan is not None:
                break
        else:
            return {}
        (node,) = [step.host for step in plan.admissions if step.pod.uid == pod.uid]
        victims = [step.pod.uid for step in plan.evictions if step.host == node]
        if not victims or not self._facts.bound_to(node) >= set(victims):
            return {}
        together = tuple(dict.fromkeys([*proposed_victims[node].pods, *victims]))
        same = len(together) == len(proposed_victims[node].pods)
        violations = proposed_victims[node].violations if same else count_violations(budgets, together)
        return {node: NodeVictims(together, violations)}

    def _plan_gang(
        self, pod: Pod, gang: Sequence[PodFacts], proposed_nodes: Collection[str], budgets: Sequence[DisruptionBudget]
    ) -> MovePlan | None:
        """Return the smallest set of pods of lower priority without which all of *gang* fit; ``None``: there is none.

        The *pod* may go to *proposed_nodes* only. Pods are evicted only from the nodes that lack least.
        """
        if any(is_large(member.pod) or member.pod.uses_claims for member in gang):
            return None
        lowest = min(member.pod.priority or 0 for member in gang)
        arrivals = []
        for member in gang:
            refusals = self._refusals(member.pod)
            hosts = {node for node in self._facts.allowed(member) if node not in refusals}
            is_asked = member.uid == pod.uid
            targets = hosts.intersection(proposed_nodes) if is_asked else hosts
            arrivals.append(PendingPod(member.pod, frozenset(targets)))
        running_pods = {
            uid: RunningPod(pod=admitted_pod.pod, host=node, moves=False, preemptible=True)
            for node in self._gang_candidates(arrivals, lowest)
            if (record := self._cluster.record(node)) is not None
            for uid, admitted_pod in record.ledger.pods.items()
            if (admitted_pod.pod.priority or 0) < lowest
        }
        tries = count()
        rules = MoveRules(
            pods=running_pods, budgets=budgets, max_moves=GANG_MOVES, should_stop=lambda: next(tries) > GANG_TRIES
        )
        plan = self._cluster.plan(arrivals, rules)
        return plan if plan.feasible and plan.evictions else None

    def _gang_candidates(self, arrivals: Sequence[PendingPod], priority: int) -> Collection[str]:
        """Return nodes with pods of a lower priority, for each kind of pods the nodes that lack least."""
        candidates: set[str] = set()
        for pending_pod in {build_shape(pending_pod.pod): pending_pod for pending_pod in arrivals}.values():
            verdicts = self._cluster.verdicts(pending_pod.pod, pending_pod.hosts or ())
            names = sorted(verdicts, key=lambda node: (lack(verdicts[node]), node))
            lower = (node for node in names if self._has_lower(node, priority))
            candidates.update(islice(lower, max(MAX_SEARCHED, 2 * len(arrivals))))
        return candidates

    def _has_lower(self, node: str, priority: int) -> bool:
        record = self._cluster.record(node)
        return record is not None and any(
            (admitted_pod.pod.priority or 0) < priority for admitted_pod in record.ledger.pods.values()
        )

    # Single pods

    def _helps(self, pod: Pod, node: str) -> bool:
        victims = self._cluster.victims(pod, node, allow_violations=True)
        return bool(victims.sets) or not victims.complete

    def victims(
        self, pod: Pod, proposed_victims: Mapping[str, NodeVictims], budgets: Sequence[DisruptionBudget]
    ) -> dict[str, NodeVictims]:
        """Return the pods to evict from each node so that it admits *pod*; nodes where nothing helps are left out."""
        by_node = {}
        for node, victims in proposed_victims.items():
            chosen_victims = self._choose(pod, node, victims.pods, budgets)
            if chosen_victims is not None:
                same = len(chosen_victims) == len(victims.pods)
                violations = victims.violations if same else count_violations(budgets, chosen_victims)
                by_node[node] = NodeVictims(chosen_victims, violations)
        return by_node

    def _choose(
        self, pod: Pod, node: str, proposed_uids: tuple[str, ...], budgets: Sequence[DisruptionBudget]
    ) -> tuple[str, ...] | None:
        """Return the proposed pods, and more if necessary; ``None`` if the node does not admit *pod* then."""
        record = self._cluster.record(node)
        if not needs_alignment(pod) or (record is None and self.allow_unknown and not needs_exact_host(pod)):
            return proposed_uids or None
        if record is None:
            return None
        if proposed_uids and admits_without(record, pod, proposed_uids):
            return proposed_uids
        if is_large(pod):  # each of thousands of sets would be a decision
            return None
        present = self._facts.bound_to(node)
        for violate in (False, True) if budgets else (True,):  # sets that respect all disruption budgets first
            for victims in self._cluster.victims(pod, node, budgets=budgets, allow_violations=violate).sets:
                together = tuple(dict.fromkeys([*proposed_uids, *victims.pods]))
                if victims.pods and present >= set(victims.pods) and admits_without(record, pod, together):
                    return together
        return None
