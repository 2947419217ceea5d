"""Pods as the API server has them: what they request, what they are to the kubelet, and how they ended."""

from collections.abc import Container
from dataclasses import dataclass, replace

from alignup.align.errors import PodError, Problem, ProblemKind, QuantityError
from alignup.align.workload import Pod, demand
from alignup.align.workload.validation import MIRROR_ANNOTATION
from alignup.kubernetes.api.objects import ApiPod
from alignup.kubernetes.manifests.pod_decoder import pod_from
from alignup.placement.host_report import PodStage, pod_stage

MAX_CONTAINERS = 500  #: of a pod that the cluster service decides on
_LARGE_POWER = 100  #: of ten; only sums of amounts that are much further apart fail
_HASH_ANNOTATION = "kubernetes.io/config.hash"  #: on a mirror pod: the uid of its static pod


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownPod:
    """A pod of the API server, with the uid that the kubelet uses."""

    pod: Pod
    stage: PodStage
    finished: bool  #: whether its phase is terminal: the kubelet itself has reported its end
    reported: bool = True  #: whether the kubelet has reported anything about it, which it does after the admission

    @property
    def name(self) -> tuple[str, str]:
        return self.pod.namespace, self.pod.name


def readable_pod(pod: ApiPod) -> Pod:
    """Read what a pod requests; ``PodError`` if it is invalid, or if its amounts cannot be added up.

    The API server accepts amounts such as ``1e20000``.
    """
    decoded_pod = pod_from(pod)
    resources = [decoded_pod.resources, *(container.resources for container in decoded_pod.all_containers)]
    every = [
        decoded_pod.overhead,
        *(
            amounts
            for container_resources in resources
            for amounts in (container_resources.requests, container_resources.limits)
        ),
    ]
    every += [amounts for status in decoded_pod.statuses.values() for amounts in (status.allocated, status.actual)]
    if any(amount.power > _LARGE_POWER for amounts in every for amount in amounts.values()):
        try:
            demand.fit_used(decoded_pod), demand.limits(decoded_pod)
        except QuantityError as error:
            raise PodError([Problem("spec", f"cannot add up the amounts: {error}")]) from error
    return decoded_pod


def check_container_count(count: int) -> None:
    """Raise ``PodError`` for a pod with so many containers and init containers that decisions would take seconds."""
    if count > MAX_CONTAINERS:
        message = f"the pod has {count} containers and init containers; alignup decides on pods with {MAX_CONTAINERS}"
        raise PodError([Problem("spec", f"{message} at most", ProblemKind.OWN_LIMIT)])


def known_pod(pod: ApiPod, *, uid: str = "") -> KnownPod:
    """Read a pod of the API server; ``PodError`` if it is invalid. *uid*: the kubelet's, if it is known."""
    decoded_pod = replace(readable_pod(pod), uid=uid or kubelet_uid(pod), labels={}, annotations={})
    status = pod.status
    is_reported = pod.finished or bool(status.container_statuses or status.init_container_statuses)
    return KnownPod(pod=decoded_pod, stage=api_pod_stage(pod), finished=pod.finished, reported=is_reported)


def asked_pod(pod: ApiPod) -> Pod:
    """Read a pod of the API server that nodes are asked about: with its annotations, which may demand something."""
    return replace(readable_pod(pod), uid=kubelet_uid(pod))


def bound_pod(pod: ApiPod, *, uid: str = "") -> tuple[KnownPod, str]:
    """Read a pod that is bound, and return what is wrong with it; an invalid one has no containers.

    The pod still counts as bound and not as ended, and makes the state of its node unknown.
    """
    try:
        check_container_count(len(pod.spec.containers) + len(pod.spec.init_containers))
        return known_pod(pod, uid=uid), ""
    except PodError as error:
        plain = plain_pod(pod, uid=uid)
        stage = PodStage.TERMINATING if pod.metadata.deletion_timestamp else PodStage.RUNNING
        return KnownPod(pod=plain, stage=stage, finished=False), str(error)


def plain_pod(pod: ApiPod, *, uid: str = "") -> Pod:
    """Return the names of a pod without what it requests."""
    metadata = pod.metadata
    return Pod(name=metadata.name, namespace=metadata.namespace, uid=uid or kubelet_uid(pod), containers=())


def kubelet_uid(pod: ApiPod, others: Container[str] = ()) -> str:
    """Return the uid that the kubelet uses. For a mirror pod, it is the uid of the static pod that it mirrors.

    *others*: the uids of all pods of the API server. Anyone who may create pods can write the annotations of a mirror
    pod; a real one belongs to its Node, and its uid to no pod of the API server.
    """
    annotations = pod.metadata.annotations
    static_uid = annotations.get(_HASH_ANNOTATION, "")
    if MIRROR_ANNOTATION not in annotations or not static_uid or static_uid in others:
        return pod.metadata.uid
    node = ("v1", "Node", pod.spec.node_name)
    owners = ((owner.api_version, owner.kind, owner.name) for owner in pod.metadata.owner_references)
    return static_uid if node in owners else pod.metadata.uid


def api_pod_stage(pod: ApiPod) -> PodStage:
    """Return how a pod counts that the API server has."""
    statuses = pod.status.container_statuses
    ends = [status.state.terminated for status in statuses]
    all_ended = bool(statuses) and all(end is not None for end in ends)
    # Whether all containers have ended by themselves, not to be started again.
    completed = all_ended and not any(container.restart_policy for container in pod.spec.containers)
    if pod.spec.restart_policy == "OnFailure":
        completed = completed and not any(end.exit_code for end in ends if end is not None)
    elif pod.spec.restart_policy != "Never":
        completed = False
    if completed and not pod.finished:
        return PodStage.TERMINATING
    deleting = pod.metadata.deletion_timestamp is not None
    return pod_stage(phase=pod.status.phase, deleting=deleting, containers_terminated=all_ended)


def was_rejected(pod: ApiPod) -> bool:
    """Return whether the kubelet did not admit *pod*; only its message says so."""
    return pod.status.phase == "Failed" and pod.status.message.startswith("Pod was rejected")


def was_preempted(pod: ApiPod) -> bool:
    """Return whether the kubelet ended *pod* for a critical one."""
    return api_pod_stage(pod) is PodStage.ENDED and pod.status.reason == "Preempting"


def binding_time(pod: ApiPod) -> tuple[str, str, str]:
    """Return a sort key for the order of bindings, as far as it is known; times of the API sort as text."""
    conditions = pod.status.conditions
    times = [condition.last_transition_time or "" for condition in conditions if condition.type == "PodScheduled"]
    creation = pod.metadata.creation_timestamp or ""
    return max(times, default=creation), creation, pod.metadata.name
