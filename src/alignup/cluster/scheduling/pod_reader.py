"""Reads pods of the API server, as seldom as possible: that takes longer than most decisions."""

import logging

from alignup.align.workload import Pod
from alignup.cluster.sources import api_pod_stage, bound_pod, kubelet_uid, plain_pod
from alignup.kube.pod import read_pod
from alignup.kubeapi import PODS
from alignup.kubeapi.objects import ApiPod
from alignup.placement.host_record import HostRecord
from alignup.placement.report import PodStage, pod_stage

MAX_READ = 4096  #: pods that are kept as they were read

_log = logging.getLogger(__name__)


class PodReader:
    def __init__(self, *, force_deleted_may_run: bool = False) -> None:
        self._force_deleted_may_run = force_deleted_may_run
        self._read: dict[tuple[str, str], Pod] = {}  #: by uid and resource version: a scheduler asks repeatedly

    def read(self, pod: ApiPod) -> Pod:
        """The pod as decisions need it; ``PodError`` if it is invalid."""
        key = (pod.metadata.uid, pod.metadata.resource_version)
        found = self._read.get(key)
        if found is None:
            found = read_pod(PODS.document(pod))
            if len(self._read) >= MAX_READ:
                self._read.clear()
            if all(key):
                self._read[key] = found
        return found

    def read_bound(self, pod: ApiPod, record: HostRecord | None) -> Pod:
        """Read a bound pod; without its requests if it has ended, or if the report in *record* has what it holds."""
        known = record is not None and kubelet_uid(pod) in record.ledger.pods
        if known or api_pod_stage(pod) is PodStage.ENDED:
            return plain_pod(pod)
        found, problem = bound_pod(pod)
        if problem:
            _log.warning("pod=%s problem=%s", pod.metadata.full_name, problem)
        return found.pod

    def last_stage(self, pod: ApiPod) -> PodStage:
        """How a pod counts whose object is gone."""
        stage = api_pod_stage(pod)
        if stage is PodStage.ENDED or pod.metadata.deletion_grace_period_seconds != 0:
            return PodStage.ENDED
        return pod_stage(deleted=True, force_deleted_may_run=self._force_deleted_may_run)
