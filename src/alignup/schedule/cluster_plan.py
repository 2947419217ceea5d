"""Plans for a cluster: who may be evicted, where replacements can go, and the fewest moves that make room.

The objects that say so (pods, PodDisruptionBudgets, Jobs, PodGroups, volumes) are read once. What cannot be read
protects pods: a plan never counts on something unknown.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

import msgspec

from alignup.align import fit
from alignup.align.host import Host
from alignup.align.workload import Pod
from alignup.kubernetes.api import UNFINISHED_PODS, ApiClient, Resource
from alignup.kubernetes.api.errors import ForbiddenError, NotFoundError
from alignup.kubernetes.api.known_pods import asked_pod, bound_pod, kubelet_uid
from alignup.kubernetes.api.objects import ApiObject, ApiPod, ApiPodSpec, ObjectMeta
from alignup.kubernetes.api.pods_with_volumes import PODS_WITH_VOLUMES, PodWithVolumes
from alignup.kubernetes.manifests.disruption import EvictedPod, EvictionRules
from alignup.kubernetes.manifests.node_selectors import NodeSelector
from alignup.kubernetes.manifests.pod_decoder import ObjectPart
from alignup.placement.moves import Defragmentation, MovePlan, MoveRules, PendingPod, PlanStep, RunningPod
from alignup.placement.victims import DisruptionBudget
from alignup.schedule.cluster_snapshot import ClusterView, present_host
from alignup.schedule.disruption_budgets import read_budgets
from alignup.schedule.gate.release_patch import controller_uids
from alignup.schedule.node_selection import exclusions, selection_key, selects_node
from alignup.schedule.pod_groups import KUBERNETES, RESOURCES, group_of

CLAIMS = "with ResourceClaims"
CRITICAL = "of system priority"
NO_CONTROLLER = "without a controller"
NEAR_OTHERS = "with required affinity to other pods or a required spread"
SEVERAL_BUDGETS = "covered by several PodDisruptionBudgets"
UNREADABLE = "that cannot be read"


class JobSpec(ObjectPart, frozen=True):
    pod_failure_policy: dict[str, Any] | None = None


class Job(ObjectPart, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: JobSpec = JobSpec()

    @property
    def ignores_evictions(self) -> bool:
        """Whether the first rule that an evicted pod can match ignores its failure."""
        for rule in (self.spec.pod_failure_policy or {}).get("rules") or ():
            conditions = rule.get("onPodConditions") or ()
            evicted = any(
                condition.get("type") == "DisruptionTarget" and condition.get("status", "True") in ("", "True")
                for condition in conditions
            )
            if evicted or rule.get("onExitCodes"):
                return bool(rule.get("action") == "Ignore" and evicted)
        return False


class VolumeClaimSpec(ObjectPart, frozen=True):
    volume_name: str = ""


class VolumeClaim(ObjectPart, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: VolumeClaimSpec = VolumeClaimSpec()


class VolumeNodeAffinity(ObjectPart, frozen=True):
    required: NodeSelector | None = None


class VolumeSpec(ObjectPart, frozen=True):
    local: dict[str, Any] | None = None
    host_path: dict[str, Any] | None = None
    node_affinity: VolumeNodeAffinity | None = None


class Volume(ObjectPart, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: VolumeSpec = VolumeSpec()


JOBS = Resource(type=Job, kind="Job", plural="jobs", group="batch", namespaced=True)
VOLUME_CLAIMS = Resource(
    type=VolumeClaim, kind="PersistentVolumeClaim", plural="persistentvolumeclaims", namespaced=True
)
VOLUMES = Resource(type=Volume, kind="PersistentVolume", plural="persistentvolumes")

Object = TypeVar("Object", bound=ApiObject)


class EvictionFacts(Protocol):
    """What is known about the pods that run, and about who may be evicted."""

    @property
    def budgets(self) -> Sequence[DisruptionBudget]: ...

    def running(self, view: ClusterView, rules: EvictionRules, *, priority: int) -> Iterable[RunningPod]:
        """Return the pods that run, with what a plan for a pod of this *priority* may do with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFacts:
    """What the API server says about evictions."""

    pods: Sequence[PodWithVolumes]
    budgets: Sequence[DisruptionBudget] = ()
    local_claims: Collection[str] | None = None  #: of local volumes, as ``NAMESPACE/NAME``; ``None``: unknown
    claim_nodes: Mapping[str, NodeSelector] = field(default_factory=dict)  #: that can use the volumes
    disruptable_jobs: Collection[str] | None = None  #: uids of Jobs that ignore evictions; ``None``: unknown
    whole_groups: Collection[tuple[str, str]] = ()  #: namespace and name of PodGroups that are disrupted as a whole
    now: float = 0.0  #: seconds since the epoch
    notes: tuple[str, ...] = ()

    def running(self, view: ClusterView, rules: EvictionRules, *, priority: int) -> Iterable[RunningPod]:
        return running_pods(view, self, rules, priority=priority)


async def read_plan_facts(client: ApiClient) -> PlanFacts:
    notes: list[str] = []

    async def read(resource: Resource[Object]) -> Sequence[Object] | None:
        try:
            return (await client.list(resource)).items
        except NotFoundError:
            return ()
        except ForbiddenError as error:
            notes.append(f"{error}; pods that depend on it are not evicted")
            return None

    pods = (await client.list(PODS_WITH_VOLUMES, UNFINISHED_PODS)).items
    claims = await read(VOLUME_CLAIMS)
    volumes = await read(VOLUMES)
    local_claims, claim_nodes = None, dict[str, NodeSelector]()
    if claims is not None and volumes is not None:
        local = {volume.metadata.name for volume in volumes if volume.spec.local or volume.spec.host_path}
        local_claims = {claim.metadata.full_name for claim in claims if claim.spec.volume_name in local}
        affinities = {volume.metadata.name: volume.spec.node_affinity for volume in volumes}
        for claim in claims:
            affinity = affinities.get(claim.spec.volume_name)
            if affinity is not None and affinity.required is not None:
                claim_nodes[claim.metadata.full_name] = affinity.required
    jobs = await read(JOBS)
    groups = [group for resource in RESOURCES[KUBERNETES] for group in await read(resource) or ()]
    return PlanFacts(
        pods=pods,
        budgets=await read_budgets(client, pods),
        local_claims=local_claims,
        claim_nodes=claim_nodes,
        disruptable_jobs=None if jobs is None else {job.metadata.uid for job in jobs if job.ignores_evictions},
        whole_groups={(group.metadata.namespace, group.metadata.name) for group in groups if group.disrupted_whole},
        now=client.timing.time_of_day(),
        notes=tuple(notes),
    )


class _NodeSets:
    """The nodes that schedulers consider for pods with the same selectors and volumes."""

    def __init__(self, view: ClusterView, claim_nodes: Mapping[str, NodeSelector] = MappingProxyType({})) -> None:
        self._view = view
        self._claim_nodes = claim_nodes
        self._allowed_nodes: dict[Hashable, frozenset[str]] = {}

    def of_pod(self, pod: PodWithVolumes) -> frozenset[str]:
        """Return the nodes for the next pod that equals this pod and uses the same claims."""
        claims = msgspec.convert(pod, EvictedPod, from_attributes=True).claims() if pod.spec.volumes else ()
        nodes = self.considered(_unbound(pod.spec))
        for selector in [self._claim_nodes[claim] for claim in claims if claim in self._claim_nodes]:
            if selector not in self._allowed_nodes:
                terms = selector.node_selector_terms
                self._allowed_nodes[selector] = frozenset(
                    name for name, node in self._view.nodes.items() if selects_node(terms, name, node.metadata.labels)
                )
            nodes &= self._allowed_nodes[selector]
        return nodes

    def considered(self, spec: ApiPodSpec) -> frozenset[str]:
        key = selection_key(spec)
        if key not in self._allowed_nodes:
            nodes = self._view.nodes.items()
            self._allowed_nodes[key] = frozenset(name for name, node in nodes if not exclusions(node, spec))
        return self._allowed_nodes[key]


def running_pods(view: ClusterView, facts: PlanFacts, rules: EvictionRules, *, priority: int) -> Iterator[RunningPod]:
    """Yield the pods that run on nodes, with what a plan for a pod of this *priority* may do with them."""
    rules = replace(rules, local_claims=facts.local_claims, disruptable_jobs=facts.disruptable_jobs)
    nodes = _NodeSets(view, facts.claim_nodes)
    uids = {pod.metadata.uid for pod in facts.pods}
    budgeted_uids: dict[str, int] = {}
    for budget in facts.budgets:
        for uid in budget.pods:
            budgeted_uids[uid] = budgeted_uids.get(uid, 0) + 1
    for pod in facts.pods:
        if not pod.spec.node_name or pod.finished:
            continue
        metadata = pod.metadata
        key = group_of(pod)
        whole = key is not None and key.source == KUBERNETES and (key.namespace, key.name) in facts.whole_groups
        protection = rules.protection(msgspec.convert(pod, EvictedPod, from_attributes=True)) or _protection(pod)
        decoded_pod, problem = bound_pod(pod, uid=kubelet_uid(pod, uids))
        running_pod = replace(decoded_pod.pod, statuses={}, resize_infeasible=False)
        if not protection and problem:
            protection = UNREADABLE
        if not protection and budgeted_uids.get(metadata.uid, 0) > 1:
            protection = SEVERAL_BUDGETS
        if not protection and fit.is_critical(running_pod):
            protection = CRITICAL
        yield RunningPod(
            pod=running_pod,
            host=pod.spec.node_name,
            protected=protection,
            preemptible=rules.allow_preemption and (running_pod.priority or 0) < priority,
            group=f"{metadata.namespace}/{key.name}" if key and whole else "",
            hosts=nodes.of_pod(pod),
            age=_age(metadata.creation_timestamp, facts.now),
            terminating=metadata.deletion_timestamp is not None,
            controllers=frozenset(controller_uids(pod)),
            scheduler=pod.spec.scheduler_name,
        )


def pending_pods(view: ClusterView, pods: Iterable[tuple[Pod, ApiPodSpec]]) -> list[PendingPod]:
    """Return *pods* with the nodes that schedulers consider for them."""
    nodes = _NodeSets(view)
    return [PendingPod(pod, nodes.considered(_unbound(spec))) for pod, spec in pods]


def plan_for_pods(
    view: ClusterView,
    facts: EvictionFacts,
    pods: Sequence[tuple[Pod, ApiPodSpec]],
    *,
    rules: EvictionRules,
    should_stop: Callable[[], bool] = lambda: False,
) -> MovePlan:
    """Return the fewest moves after which the nodes admit all *pods* together."""
    candidates = pending_pods(view, pods)
    priority = min(pod.priority or 0 for pod, _ in pods)
    pods_by_uid = {running_pod.pod.uid: running_pod for running_pod in facts.running(view, rules, priority=priority)}
    return view.cluster.plan(candidates, MoveRules(pods=pods_by_uid, budgets=facts.budgets, should_stop=should_stop))


def defragment_for(  # noqa: PLR0913 - one question
    view: ClusterView,
    facts: EvictionFacts,
    shape: tuple[Pod, ApiPodSpec],
    *,
    rules: EvictionRules,
    max_moves: int,
    should_stop: Callable[[], bool],
) -> Defragmentation:
    """Return moves after which more pods of one shape fit."""
    pod, _ = shape
    pods_by_uid = {
        running_pod.pod.uid: running_pod for running_pod in facts.running(view, rules, priority=pod.priority or 0)
    }
    move_rules = MoveRules(pods=pods_by_uid, budgets=facts.budgets, max_moves=max_moves, should_stop=should_stop)
    (pending_pod,) = pending_pods(view, [shape])
    return view.cluster.planner(move_rules, [pod]).defragment(pending_pod)


def gang_of(facts: PlanFacts, pod: ApiPod) -> list[ApiPod]:
    """Return the pods that wait together with *pod*, and *pod* itself: the pods of its group that are not bound."""
    key = group_of(pod)
    waiting_pods = [other for other in facts.pods if key and group_of(other) == key and not other.spec.node_name]
    return [pod, *(other for other in waiting_pods if other.metadata.uid != pod.metadata.uid)]


def pending_pod(pod: ApiPod) -> tuple[Pod, ApiPodSpec]:
    """Return a pod of the cluster as it is decided on again; ``PodError`` if it is invalid."""
    return asked_pod(pod), pod.spec


def hosts_after(view: ClusterView, steps: Iterable[PlanStep]) -> dict[str, tuple[Host, Host]]:
    """Return the hosts that *steps* change, before and after them."""
    changed_hosts: dict[str, tuple[Host, Host]] = {}
    for step in steps:
        if step.host not in changed_hosts:
            before, after = (present_host(view.cluster, step.host) for _ in range(2))
            if before is None or after is None:
                continue
            changed_hosts[step.host] = before, after
        host = changed_hosts[step.host][1]
        if step.evicts:
            host.release(step.pod.uid)
        else:
            decision = host.decide_without_plugins(step.pod)
            if decision.admitted:
                host.apply(decision)
    return changed_hosts


def _protection(pod: PodWithVolumes) -> str:
    """Return why a pod of a cluster is never evicted, beside the rules for all pods."""
    if not any(owner.controller for owner in pod.metadata.owner_references):
        return NO_CONTROLLER
    if pod.spec.resource_claims:
        return CLAIMS
    affinity = pod.spec.affinity
    pod_terms = (affinity.pod_affinity, affinity.pod_anti_affinity) if affinity else ()
    spread = any(
        constraint.when_unsatisfiable != "ScheduleAnyway" for constraint in pod.spec.topology_spread_constraints
    )
    return NEAR_OTHERS if spread or any(part is not None and part.required for part in pod_terms) else ""


def _unbound(spec: ApiPodSpec) -> ApiPodSpec:
    """Return what a scheduler reads of the next pod like this one."""
    return ApiPodSpec(node_selector=spec.node_selector, affinity=spec.affinity, tolerations=spec.tolerations)


def _age(creation: str | None, now: float) -> int:
    try:
        return max(int(now - datetime.fromisoformat(creation or "").timestamp()), 0)
    except ValueError:
        return 0
