"""Reads pods of the API server, as seldom as possible: that takes longer than most decisions.

Most pods of a cluster are alike but for their names, since workload controllers create them from templates.
"""

import logging
from dataclasses import replace

from alignup.align.workload import Pod
from alignup.documents.codec import encode
from alignup.kubernetes.api.objects import ApiPod
from alignup.kubernetes.api.pods import api_pod_stage, bound_pod, kubelet_uid, plain_pod
from alignup.kubernetes.manifests.pod import Labels, pod_from
from alignup.placement.host_record import HostRecord
from alignup.placement.host_report import PodStage, pod_stage

MAX_READ = 4096  #: pods that are kept as they were read

_RESIZE_CONDITION = "PodResizePending"  #: the only condition that is read

_log = logging.getLogger(__name__)


class PodReader:
    def __init__(self, *, force_deleted_may_run: bool = False) -> None:
        self._force_deleted_may_run = force_deleted_may_run
        self._read: dict[tuple[str, str], Pod] = {}  #: by uid and resource version: a scheduler asks repeatedly
        self._alike: dict[bytes, Pod] = {}  #: by everything that is read but names and uids

    def read(self, pod: ApiPod) -> Pod:
        """The pod as decisions need it; ``PodError`` if it is invalid."""
        key = (pod.metadata.uid, pod.metadata.resource_version)
        found = self._read.get(key)
        if found is None:
            found = self._read_alike(pod)
            if len(self._read) >= MAX_READ:
                self._read.clear()
            if all(key):
                self._read[key] = found
        return found

    def _read_alike(self, pod: ApiPod) -> Pod:
        """Read a pod; one like it that was read before gets another name."""
        metadata = pod.metadata
        content = _content(pod, labels=metadata.labels, annotations=metadata.annotations)
        alike = self._alike.get(content)
        if alike is not None:
            return replace(alike, name=metadata.name, namespace=metadata.namespace, uid=metadata.uid)
        found = pod_from(pod)
        self._keep_alike(content, found)
        return found

    def _keep_alike(self, content: bytes, pod: Pod) -> None:
        if len(self._alike) >= MAX_READ:
            self._alike.clear()
        self._alike[content] = pod

    def read_bound(self, pod: ApiPod, record: HostRecord | None) -> Pod:
        """Read a bound pod; without its requests if it has ended, or if the report in *record* has what it holds."""
        known = record is not None and kubelet_uid(pod) in record.ledger.pods
        if known or api_pod_stage(pod) is PodStage.ENDED:
            return plain_pod(pod)
        content = _content(pod, labels={}, annotations={})
        alike = self._alike.get(content)
        if alike is not None:
            metadata = pod.metadata
            return replace(alike, name=metadata.name, namespace=metadata.namespace, uid=kubelet_uid(pod))
        found, problem = bound_pod(pod)
        if problem:
            _log.warning("pod=%s problem=%s", pod.metadata.full_name, problem)
        else:
            self._keep_alike(content, found.pod)
        return found.pod

    def last_stage(self, pod: ApiPod) -> PodStage:
        """How a pod counts whose object is gone."""
        stage = api_pod_stage(pod)
        if stage is PodStage.ENDED or pod.metadata.deletion_grace_period_seconds != 0:
            return PodStage.ENDED
        return pod_stage(deleted=True, force_deleted_may_run=self._force_deleted_may_run)


def _content(pod: ApiPod, *, labels: Labels, annotations: Labels) -> bytes:
    """Everything that reading *pod* depends on, with these labels and annotations, but its names and uid."""
    spec, status = pod.spec, pod.status
    read = (
        (spec.containers, spec.init_containers, spec.resources, spec.overhead, spec.resource_claims),
        (spec.priority, spec.os, status.qos_class, status.container_statuses, status.init_container_statuses),
        [one for one in status.conditions if one.type == _RESIZE_CONDITION],
        (labels, annotations),
    )
    return encode(read)
