"""Trimmed pods."""

from alignup.documents.codec import convert
from alignup.kubernetes.api import PODS
from alignup.kubernetes.api.known_pods import binding_time, known_pod
from alignup.kubernetes.api.kueue_resources import WORKLOAD_ANNOTATION
from alignup.schedule.pod_groups import COSCHEDULING, SIZE_ANNOTATION, VOLCANO, group_of
from alignup.schedule.pod_trimmer import PodTrimmer
from bench.pods_of_a_cluster import pod as big_pod


def test_trimmed_pods_count_as_whole_ones():
    documents = [big_pod(number) for number in range(50)]
    documents[1]["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "x", "kubernetes.io/config.hash": "y"}
    owner = {"apiVersion": "v1", "kind": "Node", "name": documents[1]["spec"]["nodeName"]}
    documents[1]["metadata"]["ownerReferences"] = [owner]
    documents[2]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    documents[3]["status"]["phase"] = "Failed"
    documents[4]["metadata"]["annotations"] = {WORKLOAD_ANNOTATION: "train"}
    trimmer = PodTrimmer()
    for document in documents:
        whole = convert(document, PODS.type)
        trimmed = trimmer.trim(whole)
        assert known_pod(trimmed) == known_pod(whole)
        assert (known_pod(whole).pod.uid == "y") is (document is documents[1])
        assert binding_time(trimmed) == binding_time(whole)
        assert trimmed.metadata.labels == whole.metadata.labels
        assert (trimmed.metadata.annotations.get(WORKLOAD_ANNOTATION) == "train") is (document is documents[4])
    pending = convert({**documents[0], "spec": {**documents[0]["spec"], "nodeName": ""}}, PODS.type)
    assert trimmer.trim(pending) is pending


def test_trimmed_pods_that_failed_keep_their_owner_and_when_they_failed():
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "web", "controller": True}
    for phase in ("Failed", "Running"):
        document = big_pod(0)
        document["metadata"]["ownerReferences"] = [owner]
        ready = {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-02T03:04:05Z"}
        document["status"] |= {"phase": phase, "reason": "Evicted", "message": "low memory", "conditions": [ready]}
        whole = convert(document, PODS.type)

        trimmed = PodTrimmer().trim(whole)

        failed = phase == "Failed"
        assert (trimmed.metadata.owner_references == whole.metadata.owner_references) is failed
        assert trimmed.status.message == ("low memory" if failed else "")
        assert trimmed.status.conditions[0].last_transition_time == ("2026-01-02T03:04:05Z" if failed else None)


def test_trimmed_pods_stay_in_their_groups_and_with_their_controllers():
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "job", "controller": True}
    for change in (
        {"schedulingGroup": {"podGroupName": "train"}},
        {"labels": {COSCHEDULING: "train"}},
        {"annotations": {VOLCANO: "train", SIZE_ANNOTATION: "4"}},
    ):
        document = big_pod(0)
        document["metadata"] |= {"labels": {}, "annotations": {}, "ownerReferences": [owner], **change}
        document["spec"] |= change
        whole = convert(document, PODS.type)
        trimmed = PodTrimmer().trim(whole)

        key = group_of(whole)
        assert key is not None
        assert group_of(trimmed) == key
        assert trimmed.metadata.annotations.get(SIZE_ANNOTATION) == whole.metadata.annotations.get(SIZE_ANNOTATION)
        assert trimmed.metadata.owner_references == whole.metadata.owner_references


def test_what_only_one_pod_has_is_not_remembered():
    """Times, names and annotations of pods that come and go would take memory without end."""
    trimmer = PodTrimmer()
    known = []
    for number in range(40):
        document = big_pod(0)
        document["metadata"] |= {"name": f"pod-{number}", "uid": f"uid-{number}"}
        document["metadata"]["creationTimestamp"] = f"2026-01-01T00:00:{number}Z"
        bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": f"2026-01-01T00:01:{number}Z"}
        document["status"]["conditions"] = [bound, {"type": "Ready", "status": "True"}]
        trimmed = trimmer.trim(convert(document, PODS.type))
        assert binding_time(trimmed)[0] == bound["lastTransitionTime"]
        known.append(trimmer.known)
    assert known[-1] == known[0]
