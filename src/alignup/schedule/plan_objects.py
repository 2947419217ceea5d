"""Plan objects: of the steps of a plan, and the pods of the cluster that it makes room for."""

from collections.abc import Iterable, Sequence

from alignup.align import bits
from alignup.documents.plans import PlannedPod, PlannedStep, PlanSpec, StepAction
from alignup.kubernetes.api.objects import ApiPod
from alignup.kubernetes.manifests.disruption import EvictionRules
from alignup.kubernetes.manifests.workloads import Workload
from alignup.placement.moves import PlanStep
from alignup.schedule.cluster_plan import PlanFacts, gang_of

_TEMPLATE_HASH = "pod-template-hash"  #: label by which the ReplicaSets of a Deployment and their pods are named


def plan_spec(steps: Iterable[PlanStep], rules: EvictionRules, *, deadline_seconds: int) -> PlanSpec:
    """Return the spec of a Plan with *steps*, which were planned under *rules*."""
    return PlanSpec(
        steps=tuple(map(_planned_step, steps)),
        deadline_seconds=deadline_seconds,
        allow_preemption=rules.allow_preemption,
        allow_local_volumes=rules.allow_local_volumes,
        exempt=tuple(dict.fromkeys(rules.exempt)),
    )


def _planned_step(step: PlanStep) -> PlannedStep:
    pod = PlannedPod(namespace=step.pod.namespace, name=step.pod.name, uid=step.pod.uid)
    if step.evicts:
        return PlannedStep(action=StepAction.EVICT, pod=pod, node=step.host)
    return PlannedStep(
        action=StepAction.ADMIT,
        pod=pod,
        node=step.host,
        replacement=step.replacement,
        numa_nodes=bits.show(step.numa_nodes),
    )


def pods_of(facts: PlanFacts, workload: Workload, namespace: str) -> list[ApiPod]:
    """Return the unfinished pods of a workload; its namespace is *namespace* if its manifest names none."""
    if workload.namespace != "default":
        namespace = workload.namespace
    return [pod for pod in facts.pods if pod.metadata.namespace == namespace and _belongs(pod, workload)]


def _belongs(pod: ApiPod, workload: Workload) -> bool:
    metadata = pod.metadata
    if workload.kind == "Pod":
        return metadata.name == workload.name
    owners = {(owner.kind, owner.name) for owner in metadata.owner_references if owner.controller}
    replica_set = ("ReplicaSet", f"{workload.name}-{metadata.labels.get(_TEMPLATE_HASH, '')}")
    return (workload.kind, workload.name) in owners or (workload.kind == "Deployment" and replica_set in owners)


def missing_pods(pods: Sequence[ApiPod], templates: Sequence[Workload]) -> int:
    """Return how many pods of an object do not exist yet; the pods of a DaemonSet depend on the nodes."""
    if templates[0].kind == "DaemonSet":
        return 0 if pods else 1
    return max(sum(template.replicas for template in templates) - len(pods), 0)


def with_gangs(facts: PlanFacts, pods: Iterable[ApiPod]) -> list[ApiPod]:
    """Return the waiting pods of *pods*, with all waiting pods of the same groups."""
    waiting_pods = [pod for pod in pods if not pod.spec.node_name and not pod.finished]
    members = [member for pod in waiting_pods for member in gang_of(facts, pod)]
    return list({member.metadata.uid: member for member in members}.values())
