"""Facts that scheduling depends on, from the objects of the API server: see ``placement.scheduling.facts``."""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from alignup.align.claims.resource_claims import Claim
from alignup.align.errors import AlignError, PodError, Problem
from alignup.align.workload import Pod
from alignup.align.workload.names import MARKER
from alignup.documents.host_state import GROUP
from alignup.kubernetes.api.objects import ApiPod
from alignup.placement.scheduling.facts import ClaimFit, Explained, GangFacts, GroupKey, PodFacts, WaitState
from alignup.placement.verdict import DEFECT, Verdict, defect
from alignup.schedule.gate.release_patch import HOST_NAME, controller_uids, pinned_nodes, scheduled_condition
from alignup.schedule.known_claims import ObjectName
from alignup.schedule.node_selection import (
    has_preferences,
    is_unschedulable,
    selection_key,
    waiting_order,
)
from alignup.schedule.pod_groups import group_of

if TYPE_CHECKING:
    from alignup.schedule.live_cluster import LiveCluster

Result = TypeVar("Result")

PLACEMENT_ANNOTATION = f"{GROUP}/predicted-placement"  #: of pods that the extender has bound: what they will get
GATE = f"{GROUP}/placement"  #: the scheduling gate of pods that wait for a node


class LiveFacts:
    """The facts of a cluster that is followed; facts of pods are kept until the pods change."""

    def __init__(self, live: "LiveCluster") -> None:
        self._live = live
        self._pods: dict[str, PodFacts] = {}  #: of pods without a node, by uid
        self._since: dict[str, float] = {}  #: when they began to wait

    # Pods

    def see(self, pod: ApiPod, now: float) -> PodFacts | None:
        """Return the facts of a pod without a node, as it is now; ``None``: it waits for nothing that is known here.

        ``PodError`` if it cannot be read.
        """
        uid, state, nodes = pod.metadata.uid, pod_state(pod), pinned_nodes(pod)
        pod_before = self._pods.pop(uid, None)
        if state is WaitState.OTHER and not nodes and group_of(pod) is None:
            return None
        if state is not WaitState.OTHER:
            self._since.setdefault(uid, now)
        if pod_before is not None and nodes and pod_before.scheduler == pod.spec.scheduler_name:
            # It is released: what it requests was read before.
            facts = replace(pod_before, **self._changing(pod), released_to=nodes)
        else:
            facts = self.of(pod, now)
        self._pods[uid] = facts
        return facts

    def _changing(self, pod: ApiPod) -> dict[str, Any]:
        """Return the facts that change while a pod waits for its scheduler."""
        condition = scheduled_condition(pod)
        problem = condition.message if condition else None
        return {"state": pod_state(pod), "version": pod.metadata.resource_version, "problem": problem}

    def of(self, pod: ApiPod, now: float) -> PodFacts:
        """Return the facts of a pod without a node; ``PodError`` if it cannot be read."""
        spec, uid = pod.spec, pod.metadata.uid
        affinity = spec.affinity.node_affinity if spec.affinity else None
        return PodFacts(
            pod=self._live.read(pod),
            order=waiting_order(pod),
            since=self._since.get(uid, now),
            **self._changing(pod),
            scheduler=spec.scheduler_name,
            group=group_of(pod),
            selection=selection_key(spec),
            controllers=frozenset(controller_uids(pod)),
            released_to=pinned_nodes(pod),
            has_preferences=has_preferences(pod),
            has_terms=affinity is not None and affinity.required is not None,
            bound_at_once=spec.scheduling_group is not None,
        )

    def forget(self, uid: str) -> None:
        """Forget a pod that is bound or gone."""
        self._pods.pop(uid, None)
        self._since.pop(uid, None)

    def read_again(self, now: float) -> list[PodFacts]:
        """Return the facts of all pods without a node anew: what they request may be served by claims now."""
        again = []
        for pod in [pod for uid in tuple(self._pods) if (pod := self._live.find_by_uid(uid))]:
            with suppress(PodError):
                if facts := self.see(pod, now):
                    again.append(facts)
        return again

    def pod(self, uid: str) -> PodFacts | None:
        return self._pods.get(uid)

    def readable_pod(self, uid: str) -> PodFacts:
        facts, pod = self._pods.get(uid), self._live.find_by_uid(uid)
        if facts is None and pod is not None:
            facts = self.of(pod, self._since.get(uid, 0.0))
        if facts is None:
            raise PodError([Problem("metadata", "the pod is gone")])
        return facts

    def gang(self, key: GroupKey) -> GangFacts:
        members = self._live.pod_groups.members(key)
        running_pods = [pod for pod in members.bound if not pod.finished]
        return GangFacts(
            members.minimum,
            {pod.metadata.uid: pod.spec.node_name for pod in members.bound},
            [pod.metadata.uid for pod in members.waiting],
            [pod.metadata.uid for pod in members.gated],
            [pod.metadata.uid for pod in running_pods],
            [pod.metadata.uid for pod in running_pods if controller_uids(pod)],
            any(PLACEMENT_ANNOTATION in pod.metadata.annotations for pod in members.bound),
            {pod.metadata.uid: pod.spec.scheduler_name for pod in members.waiting},
        )

    @property
    def groups(self) -> Collection[GroupKey]:
        return self._live.pod_groups.groups()

    # Nodes

    @property
    def nodes(self) -> Collection[str]:
        return self._live.node_names

    def allowed(self, facts: PodFacts) -> Collection[str]:
        pod = self._live.find_by_uid(facts.uid)
        return self._live.node_filter.allowed(pod.spec, facts.selection) if pod else ()

    def allows(self, facts: PodFacts, node: str) -> bool:
        pod = self._live.find_by_uid(facts.uid)
        return pod is not None and self._live.node_filter.allows(pod.spec, node, facts.selection)

    def excluded(self, facts: PodFacts) -> Mapping[str, str]:
        pod = self._live.find_by_uid(facts.uid)
        if pod is None:
            return {}
        excludes = self._live.node_filter.excludes
        reasons = {node.metadata.name: excludes(node, pod.spec) for node in self._live.nodes.objects.values()}
        return {name: exclusion_reasons[0] for name, exclusion_reasons in reasons.items() if exclusion_reasons}

    def insufficient(self, node: str, pod: Pod, *, beside: Sequence[Pod] = (), empty: bool = False) -> Collection[str]:
        try:
            return self._live.node_capacity.insufficient(node, pod, beside=beside, empty=empty)
        except Exception as error:  # noqa: BLE001 - whatever one node raises, others are decided
            self._live.failed_decisions.note(node, error)
            return (DEFECT,)

    def _isolated(self, node: str, decide: Callable[[], Result], on_failure: Callable[[Exception], Result]) -> Result:
        """Return a decision about a node; one that a defect prevents is counted, and *on_failure* returns another."""
        try:
            return decide()
        except AlignError:  # about the pod
            raise
        except Exception as error:  # noqa: BLE001
            self._live.failed_decisions.note(node, error)
            return on_failure(error)

    def unique_host_names(self, nodes: Sequence[str]) -> tuple[str, ...]:
        labels = {name: node.metadata.labels.get(HOST_NAME, "") for (_, name), node in self._live.nodes.objects.items()}
        counts = Counter(labels.values())
        return tuple(node for node in nodes if labels.get(node) and counts[labels[node]] == 1)

    @property
    def approximate_nodes(self) -> Collection[str]:
        return self._live.approximate_nodes

    def verdict_without_report(self, pod: Pod, node: str) -> Verdict:
        return self._isolated(node, lambda: self._live.verdict_without_report(pod, node), defect)

    # Claims

    @property
    def claims_known(self) -> bool:
        return self._live.claims.known

    def claim_fit(self, pod: Pod, node: str, *, idle: bool = False) -> ClaimFit:
        return self._isolated(
            node,
            lambda: self._live.claim_fit(pod, node, idle=idle),
            lambda _error: ClaimFit(possible=False, reason=DEFECT, certain=False),
        )

    def claims_open(self, pod: Pod) -> bool:
        return self._live.claims.is_open(pod)

    def claim_kind(self, pod: Pod) -> Hashable:
        return self._live.claims.kind(pod)

    def explain_claims(
        self, pod: Pod, node: str, verdict: Verdict | None = None, newer: Mapping[ObjectName, Claim] | None = None
    ) -> Explained:
        return self._isolated(node, lambda: self._live.explain_claims(pod, node, verdict, newer), lambda _error: ())

    # The extender

    def bound_to(self, node: str) -> AbstractSet[str]:
        return {pod.metadata.uid for pod in self._live.bound_pods(node)}

    @property
    def steering_known(self) -> bool:
        return self._live.steering_instructions.synced

    def has_markers(self, node: str) -> bool | None:
        api_node = self._live.nodes.get(node)
        if api_node is not None and MARKER not in api_node.status.allocatable:
            return None
        return api_node is not None and str(api_node.status.allocatable[MARKER]) != "0"


def pod_state(pod: ApiPod) -> WaitState:
    """Return what a pod waits for."""
    gates = [gate.name for gate in pod.spec.scheduling_gates]
    if pod.spec.node_name or pod.finished or pod.metadata.deletion_timestamp is not None:
        return WaitState.OTHER
    if GATE in gates:
        return WaitState.GATED if len(gates) == 1 else WaitState.OTHER_GATES
    return WaitState.UNSCHEDULABLE if not gates and is_unschedulable(pod) else WaitState.OTHER
