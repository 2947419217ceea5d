"""A plan for one node, from its files: a move is the end of a pod, since nothing is known about other nodes."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

import msgspec

from alignup.align.decision import Decision
from alignup.align.explain import sentences
from alignup.align.host import Host
from alignup.align.ledger import AdmittedPod
from alignup.align.workload import Pod
from alignup.kubernetes.manifests.disruption import EvictedPod, EvictionRules
from alignup.kubernetes.manifests.workloads import Workload
from alignup.placement.cluster import Cluster
from alignup.placement.host_report import HostReport
from alignup.placement.moves import MovePlan, MoveRules, PendingPod, RunningPod

NODE = "the node"
NOT_GIVEN = "that --pods does not name"
HIGHER_PRIORITY = "of higher priority"
NO_CONTROLLER = "without a controller (end them with --allow-preemption)"


@dataclass(frozen=True, slots=True)
class NodePlan:
    pod: Pod
    plan: MovePlan
    controllers: Mapping[str, str]  #: uid of an evicted pod → what creates it again; empty: nothing does
    after: Host  #: the node after the last eviction, before the pod comes
    decision: Decision  #: on the pod then


def plan_on_node(
    host: Host,
    pod: Pod,
    running: Iterable[Workload],
    *,
    rules: EvictionRules,
    should_stop: Callable[[], bool] = lambda: False,
) -> NodePlan:
    """Return the fewest pods whose end lets *host* admit *pod*.

    Pods of higher priority stay, and absent priorities count as equal. Pods without a controller would be lost, so they
    end only if preemption is allowed.
    """
    objects = {workload.pod.uid: _read_object(workload) for workload in running if workload.has_uid}
    pods = {running_pod.pod.uid: running_pod for running_pod in _running_pods(host, pod, objects, rules)}
    if missing_devices := host.missing_devices(pod):
        plan = MovePlan(problem=sentences.not_schedulable(pod, missing_devices))
    else:
        plan = _plan(host, pod, MoveRules(pods=pods, should_stop=should_stop))
    after = host.copy()
    for step in plan.evictions:
        after.release(step.pod.uid)
    controllers = {step.pod.uid: _controller(objects.get(step.pod.uid)) for step in plan.evictions}
    return NodePlan(pod, plan, controllers, after, after.predict(pod))


def _plan(host: Host, pod: Pod, rules: MoveRules) -> MovePlan:
    cluster = Cluster(max_unconfirmed=None)
    cluster.confirm(HostReport(host=NODE, machine=host.machine, settings=host.settings, ledger=host.ledger, sequence=1))
    return cluster.plan([PendingPod(pod)], rules)


def _running_pods(
    host: Host, pod: Pod, objects: Mapping[str, EvictedPod | None], rules: EvictionRules
) -> Iterator[RunningPod]:
    ages = _ages(host.ledger.pods, objects)
    for uid, admitted_pod in host.ledger.pods.items():
        api_pod = objects.get(uid)
        if api_pod is None:
            protection = NOT_GIVEN
        elif (admitted_pod.pod.priority or 0) > (pod.priority or 0):
            protection = HIGHER_PRIORITY
        else:
            protection = rules.protection(api_pod)
            if not protection and api_pod.controller is None and not rules.allow_preemption:
                protection = NO_CONTROLLER
        yield RunningPod(
            pod=admitted_pod.pod, host=NODE, protected=protection, moves=False, preemptible=True, age=ages.get(uid, 0)
        )


def _ages(pods: Mapping[str, AdmittedPod], objects: Mapping[str, EvictedPod | None]) -> dict[str, int]:
    """Return the ages of pods in seconds before the youngest; where a time is missing, their order of admission."""
    creation_times = {}
    for uid in pods:
        api_pod = objects.get(uid)
        try:
            creation_times[uid] = int(
                datetime.fromisoformat((api_pod and api_pod.metadata.creation_timestamp) or "").timestamp()
            )
        except ValueError:
            return {other: len(pods) - position for position, other in enumerate(pods)}
    return {uid: max(creation_times.values()) - second for uid, second in creation_times.items()}


def _read_object(workload: Workload) -> EvictedPod | None:
    try:
        return msgspec.convert({**workload.manifest}, EvictedPod)
    except msgspec.ValidationError:
        return None


def _controller(pod: EvictedPod | None) -> str:
    owner = pod.controller if pod else None
    return f"{owner.kind} {owner.name}" if owner else ""
