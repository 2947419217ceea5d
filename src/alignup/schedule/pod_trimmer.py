"""Pods as they are kept in memory: without the parts that no decision depends on, and equal parts once."""

from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from alignup.align.workload.validation import MIRROR_ANNOTATION
from alignup.kubernetes.api.kueue_resources import WORKLOAD_ANNOTATION
from alignup.kubernetes.api.objects import ApiPod, ApiPodSpec, ApiPodStatus, Condition, ObjectMeta
from alignup.schedule.pod_groups import GROUP_LABELS, SIZE_ANNOTATION, group_of

MAX_PARTS = 200_000  #: parts of pods that are stored once
_KEPT_SPEC = (
    "node_name",
    "containers",
    "init_containers",
    "resources",
    "overhead",
    "restart_policy",
    "os",
    "resource_claims",
    "scheduling_group",
    "node_selector",
    "affinity",
    "tolerations",
)
_KEPT_STATUS = ("phase", "reason", "qos_class", "container_statuses", "init_container_statuses")
_UNIQUE_STATUS = ("resource_claim_statuses", "extended_resource_claim_status")
_UNIQUE_METADATA = (
    *("name", "uid", "resource_version", "creation_timestamp"),
    *("deletion_timestamp", "deletion_grace_period_seconds"),
)
_NO_TEXTS: dict[str, str] = {}
#: Of mirror pods, of groups, of workloads, and our own.
_KEPT_ANNOTATIONS = ("kubernetes.io/config.", "alignup.dev/", SIZE_ANNOTATION, WORKLOAD_ANNOTATION, *GROUP_LABELS)

_Part = TypeVar("_Part")


class PodTrimmer:
    """Trims bound pods to the parts that count: what they request, which nodes they may use, how they end, labels.

    Pods of one workload are alike, so their equal parts are stored once, apart from parts with times. Pods that are not
    bound stay whole.
    """

    def __init__(self) -> None:
        self._parts: dict[bytes, Any] = {}

    @property
    def known(self) -> int:
        """How many parts are remembered."""
        return len(self._parts)

    def trim(self, pod: ApiPod) -> ApiPod:
        spec, status = pod.spec, pod.status
        if not spec.node_name:
            return pod
        failed = status.phase == "Failed"  # pages show when, and how many pods of its owner did
        conditions = tuple([self._trim_condition(condition, with_time=failed) for condition in status.conditions])
        message = status.message if pod.finished else ""
        return ApiPod(
            metadata=self._metadata(pod.metadata, with_owners=failed or group_of(pod) is not None),
            spec=ApiPodSpec(**self._share(spec, _KEPT_SPEC), priority=spec.priority),
            status=ApiPodStatus(
                **self._share(status, _KEPT_STATUS),
                **{name: getattr(status, name) for name in _UNIQUE_STATUS},
                conditions=conditions,
                message=message,
            ),
        )

    def _metadata(self, metadata: ObjectMeta, *, with_owners: bool) -> ObjectMeta:
        annotations = {
            name: self._shared(text)
            for name, text in metadata.annotations.items()
            if name.startswith(_KEPT_ANNOTATIONS)
        }
        unique = {name: getattr(metadata, name) for name in _UNIQUE_METADATA}
        shared_fields = self._share(metadata, ("namespace", "labels"))
        owners = self._shared(metadata.owner_references) if MIRROR_ANNOTATION in annotations or with_owners else ()
        return ObjectMeta(**unique, **shared_fields, annotations=annotations or _NO_TEXTS, owner_references=owners)

    def _share(self, part: msgspec.Struct, fields: Iterable[str]) -> dict[str, Any]:
        return {name: self._shared(getattr(part, name)) for name in fields}

    def _shared(self, part: _Part) -> _Part:
        """Return an equal part that was seen before, or this one."""
        key = msgspec.json.encode(part)
        shared_part: _Part | None = self._parts.get(key)
        if shared_part is None or type(shared_part) is not type(part):
            if len(self._parts) >= MAX_PARTS:
                self._parts.clear()
            shared_part = self._parts[key] = part
        return shared_part

    def _trim_condition(self, condition: Condition, *, with_time: bool) -> Condition:
        """Keep the time of a binding, which orders pods; the others are mostly needed by their names only."""
        time = condition.last_transition_time if with_time or condition.type == "PodScheduled" else None
        trimmed_condition = Condition(type=condition.type, status=condition.status, last_transition_time=time)
        return trimmed_condition if time else self._shared(trimmed_condition)
