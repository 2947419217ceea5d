"""Pods that are alike are read once, and each keeps what is its own."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from alignup.align.errors import PodError
from alignup.kubernetes.api import PODS
from alignup.kubernetes.api.objects import ApiPod
from alignup.kubernetes.api.pods import bound_pod
from alignup.kubernetes.manifests.pod import pod_from, read_pod
from alignup.schedule import pod_reader
from alignup.schedule.pod_reader import PodReader
from tests.align.hosts import pod
from tests.observe.api_objects import api_pod

CONDITIONS = {
    "scheduled": [{"type": "PodScheduled", "status": "True"}],
    "infeasible": [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}],
}
STATUSES = [{"name": "main", "allocatedResources": {"cpu": "1"}, "resources": {"requests": {"cpu": "1"}}}]


def variants():
    """Pods that differ in one thing each, twice: the second time with other names."""
    plain = pod("first", cpu="2", memory="1Gi")
    changed: list[dict[str, dict[str, Any]]] = [
        {},
        {"metadata": {"labels": {"app": "web"}}},
        {"metadata": {"annotations": {"note": "a"}}},
        {"spec": {"priority": 7}},
        {"spec": {"os": {"name": "windows"}}},
        {"spec": {"overhead": {"cpu": "100m"}}},
        {"spec": {"resourceClaims": [{"name": "claim"}]}},
        {"spec": {"resources": {"limits": {"cpu": "3", "memory": "2Gi"}}}},
        {"spec": {"initContainers": [{"name": "init"}]}},
        {"spec": {"initContainers": [{"name": "init", "restartPolicy": "Always"}]}},
        {"status": {"qosClass": "Burstable"}},
        {"status": {"conditions": CONDITIONS["scheduled"]}},
        {"status": {"conditions": CONDITIONS["infeasible"]}},
        {"status": {"containerStatuses": STATUSES}},
        {"status": {"initContainerStatuses": STATUSES}},
    ]
    for name in ("first", "second"):
        document = api_pod(replace(plain, name=name, uid=f"uid-of-{name}"), "node")
        for change in changed:
            made = {**document, **{part: {**document.get(part, {}), **own} for part, own in change.items()}}
            yield msgspec.convert(made, ApiPod)
    yield msgspec.convert(api_pod(pod("other", cpu="3", memory="1Gi"), "node"), ApiPod)


def test_pods_are_read_as_if_each_was_the_first():
    reader = PodReader()
    for one in variants():
        assert reader.read(one) == read_pod(PODS.document(one))
        assert reader.read_bound(one, None) == bound_pod(one)[0].pod


def test_a_pod_like_one_before_is_not_parsed_again(monkeypatch):
    reader, parsed = PodReader(), []

    def count(pod):
        parsed.append(pod)
        return pod_from(pod)

    monkeypatch.setattr(pod_reader, "pod_from", count)
    for name in ("first", "second", "third"):
        found = reader.read(msgspec.convert(api_pod(replace(pod(name), uid=f"uid-of-{name}")), ApiPod))
        assert (found.name, found.uid) == (name, f"uid-of-{name}")
    assert len(parsed) == 1


def test_an_invalid_pod_stays_invalid():
    reader = PodReader()
    wrong = msgspec.convert(api_pod(pod("wrong"), resources={"limits": {"cpu": "much"}}), ApiPod)
    for _ in range(2):
        with pytest.raises(PodError):
            reader.read(wrong)
        assert reader.read_bound(wrong, None).containers == ()


def test_few_pods_are_kept(monkeypatch):
    monkeypatch.setattr(pod_reader, "MAX_READ", 2)
    reader = PodReader()
    for number in range(5):
        one = msgspec.convert(api_pod(pod(f"pod-{number}", cpu=str(1 + number), memory="1Gi")), ApiPod)
        assert reader.read(one) == read_pod(PODS.document(one))
