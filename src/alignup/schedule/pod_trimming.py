"""Bound pods with only the parts that count, for a cache of all pods of a large cluster.

Pods of one workload are alike, so their equal parts are stored once.
"""

from typing import Any, TypeVar

import msgspec

from alignup.kubernetes.api.objects import ApiPod, ApiPodSpec, ApiPodStatus, Condition, ObjectMeta

_T = TypeVar("_T")
_MAX_PARTS = 200_000  #: parts that are remembered
_ANNOTATIONS = ("kubernetes.io/config.", "alignup.dev/")  #: of mirror pods, and our own


class PodTrimmer:
    """Trims bound pods: what they request, how they end, their labels; pods that are not bound stay whole."""

    def __init__(self) -> None:
        self._parts: dict[bytes, Any] = {}

    def trim(self, pod: ApiPod) -> ApiPod:
        spec, status = pod.spec, pod.status
        if not spec.node_name:
            return pod
        return ApiPod(
            metadata=self._metadata(pod.metadata),
            spec=ApiPodSpec(
                node_name=self._shared(spec.node_name),
                containers=self._shared(spec.containers),
                init_containers=self._shared(spec.init_containers),
                resources=self._shared(spec.resources),
                overhead=self._shared(spec.overhead),
                priority=spec.priority,
                restart_policy=self._shared(spec.restart_policy),
                os=self._shared(spec.os),
            ),
            status=ApiPodStatus(
                phase=self._shared(status.phase),
                reason=self._shared(status.reason),
                message=status.message if pod.finished else "",
                qos_class=self._shared(status.qos_class),
                conditions=self._shared(tuple(map(_trim_condition, status.conditions))),
                container_statuses=self._shared(status.container_statuses),
                init_container_statuses=self._shared(status.init_container_statuses),
            ),
        )

    def _metadata(self, metadata: ObjectMeta) -> ObjectMeta:
        kept = {name: text for name, text in metadata.annotations.items() if name.startswith(_ANNOTATIONS)}
        return ObjectMeta(
            name=metadata.name,
            namespace=self._shared(metadata.namespace),
            uid=metadata.uid,
            resource_version=metadata.resource_version,
            creation_timestamp=self._shared(metadata.creation_timestamp),
            deletion_timestamp=metadata.deletion_timestamp,
            deletion_grace_period_seconds=metadata.deletion_grace_period_seconds,
            labels=self._shared(metadata.labels),
            annotations=self._shared(kept),
        )

    def _shared(self, part: _T) -> _T:
        """Return an equal part that was seen before, or this one."""
        key = msgspec.json.encode(part)
        known: _T | None = self._parts.get(key)
        if known is None or type(known) is not type(part):
            if len(self._parts) >= _MAX_PARTS:
                self._parts.clear()
            known = self._parts[key] = part
        return known


def _trim_condition(condition: Condition) -> Condition:
    """Keep the time of a binding, which orders pods; the other conditions are needed by their names only."""
    bound = condition.type == "PodScheduled"
    time = condition.last_transition_time if bound else None
    return Condition(type=condition.type, status=condition.status, last_transition_time=time)
