"""Which pods may be evicted."""

from typing import Any

import msgspec
import pytest

from alignup.kubernetes.manifests import disruption
from alignup.kubernetes.manifests.disruption import EvictedPod, EvictionRules

REPLICA_SET = {"kind": "ReplicaSet", "name": "web-1", "uid": "r", "controller": True}


def pod(*volumes: dict[str, Any], owner: dict[str, Any] | None = None, **metadata: Any) -> EvictedPod:
    owners = [REPLICA_SET if owner is None else {"controller": True, **owner}]
    named = {"name": "web-1-x", "namespace": "shop", "ownerReferences": owners, **metadata}
    return msgspec.convert({"metadata": named, "spec": {"volumes": list(volumes)}}, EvictedPod)


@pytest.mark.parametrize(
    ("stored", "reason"),
    [
        pytest.param(pod(), "", id="of a ReplicaSet"),
        pytest.param(pod(owner={"kind": "DaemonSet"}), disruption.DAEMON_SETS, id="of a DaemonSet"),
        pytest.param(pod(owner={"kind": "Node"}), disruption.STATIC, id="of a node"),
        pytest.param(pod(annotations={"kubernetes.io/config.mirror": "x"}), disruption.STATIC, id="mirror"),
        pytest.param(pod(namespace="kube-system"), disruption.EXEMPT, id="in an exempt namespace"),
        pytest.param(pod(annotations={disruption.SAFE_TO_EVICT: "false"}), disruption.UNSAFE, id="not safe"),
        pytest.param(pod(annotations={disruption.SAFE_TO_EVICT: "true"}), "", id="safe"),
        pytest.param(pod(annotations={"topology.alignup.dev/never-move": ""}), disruption.NEVER_MOVE, id="never"),
        pytest.param(pod(annotations={"topology.alignup.dev/never-move": "false"}), "", id="not never"),
        pytest.param(pod(deletionTimestamp="2026-01-01T00:00:00Z"), disruption.TERMINATING, id="terminating"),
        pytest.param(pod(owner={"kind": "Job", "uid": "j"}), disruption.JOBS, id="of a Job"),
        pytest.param(pod(owner={"kind": "Job", "uid": "tolerant"}), "", id="of a Job that ignores evictions"),
        pytest.param(pod({"hostPath": {"path": "/"}}), disruption.LOCAL_VOLUMES, id="hostPath"),
        pytest.param(pod({"emptyDir": {}}), disruption.LOCAL_VOLUMES, id="emptyDir on disk"),
        pytest.param(pod({"emptyDir": {"medium": "Memory"}}), "", id="emptyDir in memory"),
        pytest.param(pod({"emptyDir": {"medium": "HugePages-2Mi"}}), "", id="emptyDir in huge pages"),
        pytest.param(pod({"configMap": {"name": "x"}}), "", id="ConfigMap"),
        pytest.param(pod({"persistentVolumeClaim": {"claimName": "near"}}), disruption.LOCAL_VOLUMES, id="local claim"),
        pytest.param(pod({"persistentVolumeClaim": {"claimName": "far"}}), "", id="remote claim"),
        pytest.param(pod({"name": "cache", "ephemeral": {}}), disruption.LOCAL_VOLUMES, id="local ephemeral claim"),
    ],
)
def test_protection(stored, reason):
    rules = EvictionRules(
        exempt=("kube-system",), local_claims={"shop/near", "shop/web-1-x-cache"}, disruptable_jobs={"tolerant"}
    )

    assert rules.protection(stored) == reason


def test_what_is_unknown_about_volumes_and_jobs_protects():
    claimed = pod({"persistentVolumeClaim": {"claimName": "far"}})

    assert EvictionRules().protection(claimed) == disruption.MAYBE_LOCAL
    assert EvictionRules().protection(pod(owner={"kind": "Job", "uid": "tolerant"})) == disruption.JOBS


def test_local_volumes_can_be_allowed():
    rules = EvictionRules(allow_local_volumes=True)

    assert rules.protection(pod({"hostPath": {"path": "/"}})) == ""
    assert rules.protection(pod({"hostPath": {"path": "/"}}, owner={"kind": "DaemonSet"})) == disruption.DAEMON_SETS
