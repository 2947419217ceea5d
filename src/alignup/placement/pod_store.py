"""Ledgers in less memory: equal parts of pods and allocations are stored once.

A cluster has a hundred thousand pods of a few shapes. Labels and annotations, which no decision needs, are
dropped.
"""

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from alignup.align.ledger import AdmittedPod, Ledger
from alignup.align.workload import Pod
from alignup.placement.shape import PodShape, build_shape, shape_key

MAX_SHARED = 200_000  #: parts that are stored once; beyond that, sharing starts anew

_Part = TypeVar("_Part")


class PodStore:
    def __init__(self) -> None:
        self._shapes: dict[Hashable, PodShape] = {}
        self._parts: dict[Hashable, Any] = {}

    def compact_pod(self, pod: Pod) -> Pod:
        """*pod* with everything but its names and priority shared with other pods of its shape."""
        return _like(self._shape(pod), pod)

    def compact(self, ledger: Ledger) -> Ledger:
        """*ledger* with shared parts; it decides alike."""
        pods = {uid: self._compact_admitted(admitted) for uid, admitted in ledger.pods.items()}
        cpus = replace(ledger.cpus, held=self._share_each(ledger.cpus.held))
        memory = replace(ledger.memory, held=self._share_each(ledger.memory.held))
        return replace(ledger, pods=pods, cpus=cpus, memory=memory)

    def _compact_admitted(self, admitted: AdmittedPod) -> AdmittedPod:
        shape = self._shape(admitted.pod)
        usage = shape.usage if shape.usage == admitted.usage else admitted.usage
        return AdmittedPod(_like(shape, admitted.pod), self._share(("hints", admitted.hints), admitted.hints), usage)

    def _share_each(self, held: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Mapping[str, Any]]:
        return {uid: self._share(("held", own), own) for uid, own in held.items()}

    def _share(self, key: tuple[str, Mapping[str, Any]], part: _Part) -> _Part:
        if len(self._parts) > MAX_SHARED:
            self._parts.clear()
        kind, items = key
        shared: _Part = self._parts.setdefault((kind, *items.items()), part)
        return shared

    def _shape(self, pod: Pod) -> PodShape:
        key = shape_key(pod)
        shape = self._shapes.get(key)
        if shape is None:
            if len(self._shapes) > MAX_SHARED:
                self._shapes.clear()
            shape = self._shapes[key] = build_shape(pod)
        return shape


def _like(shape: PodShape, pod: Pod) -> Pod:
    return replace(shape.pod, name=pod.name, namespace=pod.namespace, uid=pod.uid, priority=pod.priority)
