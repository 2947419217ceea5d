"""What the observer reads about one host: the machine, the kubelet's configuration, its files, and what it answers.

No source has everything. The state files have pod uids and all containers, but neither names nor the topology of free
devices, and they keep entries of dead pods for a while. PodResources has names, devices with topology and only live
pods, but no uids and no init containers. The API server has names, uids and specs, a little later than the kubelet.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from alignup.align.errors import PodError
from alignup.align.machine import Machine
from alignup.align.workload import Pod, Resources
from alignup.align.workload.validation import MIRROR_ANNOTATION
from alignup.kubernetes.api.objects import ApiPod
from alignup.kubernetes.configuration import Configuration
from alignup.kubernetes.kubelet_files.allocated_pods_file import AllocatedPod, AllocatedPods
from alignup.kubernetes.kubelet_files.state_dir import KubeletFiles
from alignup.kubernetes.manifests.pod import pod_from
from alignup.placement.host_report import PodStage, pod_stage

if TYPE_CHECKING:  # not imported: clients of a cluster need no gRPC
    from alignup.kubernetes.plugins.pod_resources_client import AllocatableResources, ListedPod

_HASH_ANNOTATION = "kubernetes.io/config.hash"  #: on a mirror pod: the uid of its static pod


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownPod:
    """A pod of this host as the API server has it; its uid is the one that the kubelet uses."""

    pod: Pod
    stage: PodStage
    finished: bool  #: whether its phase is terminal: the kubelet itself has reported its end
    reported: bool = True  #: whether the kubelet has reported anything about it, which it does after the admission

    @property
    def name(self) -> tuple[str, str]:
        return self.pod.namespace, self.pod.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Everything that was read at one moment; ``None``: the source does not exist or does not answer."""

    machine: Machine  #: without devices, which the kubelet's device plugins report
    configuration: Configuration
    files: KubeletFiles
    allocated: AllocatedPods | None = None
    listed: "tuple[ListedPod, ...] | None" = None
    allocatable: "AllocatableResources | None" = None
    pods: Mapping[str, KnownPod] | None = None  #: by uid
    kubelet: str = ""  #: changes when the kubelet restarts
    gaps: tuple[str, ...] = ()  #: why a source is missing, one sentence each


def known_pod(pod: ApiPod) -> KnownPod:
    """Read a pod of the API server; ``PodError`` if it is invalid.

    The API server has static pods as mirror pods with another uid; the kubelet's is in an annotation.
    """
    read = replace(pod_from(pod), uid=kubelet_uid(pod), labels={}, annotations={})
    status = pod.status
    reported = pod.finished or bool(status.container_statuses or status.init_container_statuses)
    return KnownPod(pod=read, stage=api_pod_stage(pod), finished=pod.finished, reported=reported)


def bound_pod(pod: ApiPod) -> tuple[KnownPod, str]:
    """Read a pod that is bound, and say what is wrong with it; an invalid one requests nothing.

    It still counts as bound, so that it does not seem to have ended.
    """
    try:
        return known_pod(pod), ""
    except PodError as error:
        plain = plain_pod(pod)
        stage = PodStage.TERMINATING if pod.metadata.deletion_timestamp else PodStage.RUNNING
        what = f"the requests of pod {plain.namespace}/{plain.name} are left out: {error}"
        return KnownPod(pod=plain, stage=stage, finished=False), what


def plain_pod(pod: ApiPod) -> Pod:
    """The names of a pod without what it requests."""
    metadata = pod.metadata
    return Pod(name=metadata.name, namespace=metadata.namespace, uid=kubelet_uid(pod), containers=())


def kubelet_uid(pod: ApiPod) -> str:
    """The uid that the kubelet uses: another one for a static pod, whose mirror pod the API server has."""
    annotations = pod.metadata.annotations
    if MIRROR_ANNOTATION in annotations and annotations.get(_HASH_ANNOTATION):
        return annotations[_HASH_ANNOTATION]
    return pod.metadata.uid


def api_pod_stage(pod: ApiPod) -> PodStage:
    """How a pod counts that the API server has."""
    if not pod.finished and _has_completed(pod):
        return PodStage.TERMINATING
    statuses = pod.status.container_statuses
    return pod_stage(
        phase=pod.status.phase,
        deleting=pod.metadata.deletion_timestamp is not None,
        containers_terminated=bool(statuses) and all(one.state.terminated is not None for one in statuses),
    )


def _has_completed(pod: ApiPod) -> bool:
    """Whether all containers have ended by themselves, not to be started again."""
    ends = [one.state.terminated for one in pod.status.container_statuses]
    if not ends or any(one.restart_policy for one in pod.spec.containers):
        return False
    if pod.spec.restart_policy == "OnFailure":
        return all(one is not None and not one.exit_code for one in ends)
    return pod.spec.restart_policy == "Never" and all(one is not None for one in ends)


def was_rejected(pod: ApiPod) -> bool:
    """Whether the kubelet did not admit *pod*."""
    return pod.status.phase == "Failed" and pod.status.message.startswith("Pod was rejected")


def was_preempted(pod: ApiPod) -> bool:
    """Whether the kubelet ended *pod* for a critical one."""
    return api_pod_stage(pod) is PodStage.ENDED and pod.status.reason == "Preempting"


def binding_time(pod: ApiPod) -> tuple[str, str, str]:
    """A sort key for the order of bindings, as far as it is known; times of the API have seconds, and sort as text."""
    scheduled = [one.last_transition_time or "" for one in pod.status.conditions if one.type == "PodScheduled"]
    created = pod.metadata.creation_timestamp or ""
    return max(scheduled, default=created), created, pod.metadata.name


def with_allocation(pod: Pod, allocated: AllocatedPod) -> Pod:
    """*pod* with the resources that the kubelet counts with, which differ from its spec while it is resized."""
    own = allocated.containers
    init, containers = (
        tuple(replace(one, resources=_merged(one.resources, own.get(one.name))) for one in group)
        for group in (pod.init, pod.containers)
    )
    resources = pod.resources
    if allocated.resources != Resources():
        resources = replace(resources, requests=allocated.resources.requests, limits=allocated.resources.limits)
    return replace(pod, init=init, containers=containers, resources=resources, statuses={}, resize_infeasible=False)


def _merged(spec: Resources, allocated: Resources | None) -> Resources:
    return spec if allocated is None else replace(spec, requests=allocated.requests, limits=allocated.limits)
