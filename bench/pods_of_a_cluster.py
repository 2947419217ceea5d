"""Pods as a large cluster has them: about 7 kB each, most of which Alignup does not read."""

from typing import Any

_ENVIRONMENT = [{"name": f"SETTING_{number}", "value": f"value-of-setting-{number}"} for number in range(12)]
_PROBE = {
    "httpGet": {"path": "/healthz", "port": 8080, "scheme": "HTTP"},
    "timeoutSeconds": 1,
    "periodSeconds": 10,
    "successThreshold": 1,
    "failureThreshold": 3,
}
_MOUNTS = [
    {"name": "config", "mountPath": "/etc/config"},
    {"name": "kube-api-access-abcde", "readOnly": True, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"},
]


def pod(number: int) -> dict[str, Any]:
    """One of them; all are different."""
    app, replica = f"service-{number // 20}", f"{number // 20:05x}"
    amounts = {"cpu": str(1 + number % 8), "memory": f"{1 + number % 16}Gi"}
    container = {
        "image": f"registry.example.com/team/{app}:v1.{number % 30}.0",
        "env": _ENVIRONMENT,
        "resources": {"limits": amounts, "requests": amounts},
        "volumeMounts": _MOUNTS,
        "livenessProbe": _PROBE,
        "readinessProbe": _PROBE,
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
    }
    names = ("app", "proxy")
    times = {"lastProbeTime": None, "lastTransitionTime": "2026-01-01T00:00:00Z"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{app}-{replica}-{number:05x}",
            "namespace": f"team-{number % 50}",
            "labels": {"app": app, "pod-template-hash": replica, "tier": "backend", "version": f"v{number % 7}"},
            "annotations": {"prometheus.io/scrape": "true", "checksum/config": f"{number:064x}"},
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "ReplicaSet",
                    "name": f"{app}-{replica}",
                    "uid": f"00000000-0000-4000-8000-{number // 20:012x}",
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
            "managedFields": [_managed("kube-controller-manager"), _managed("kubelet")],
        },
        "spec": {
            "nodeName": f"host-{number % 500}",
            "schedulerName": "default-scheduler",
            "containers": [{"name": name, **container} for name in names],
            "volumes": [
                {"name": "config", "configMap": {"name": app, "defaultMode": 420}},
                {
                    "name": "kube-api-access-abcde",
                    "projected": {"sources": [{"configMap": {"name": "kube-root-ca.crt"}}]},
                },
            ],
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 30,
            "dnsPolicy": "ClusterFirst",
            "priority": 0,
            "tolerations": [
                {
                    "key": f"node.kubernetes.io/{why}",
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": 300,
                }
                for why in ("not-ready", "unreachable")
            ],
        },
        "status": {
            "phase": "Running",
            "qosClass": "Guaranteed",
            "hostIP": f"10.0.{number % 250}.1",
            "podIP": f"10.1.{number % 250}.{number // 250}",
            "startTime": "2026-01-01T00:00:00Z",
            "conditions": [
                {"type": condition, "status": "True", **times}
                for condition in (
                    "PodReadyToStartContainers",
                    "Initialized",
                    "Ready",
                    "ContainersReady",
                    "PodScheduled",
                )
            ],
            "containerStatuses": [
                {
                    "name": name,
                    "state": {"running": {"startedAt": "2026-01-01T00:00:05Z"}},
                    "ready": True,
                    "restartCount": 0,
                    "image": container["image"],
                    "imageID": f"registry.example.com/team/{app}@sha256:{number:064x}",
                    "containerID": f"containerd://{number:064x}",
                    "allocatedResources": amounts,
                    "resources": {"limits": amounts, "requests": amounts},
                }
                for name in names
            ],
        },
    }


def _managed(manager: str) -> dict[str, Any]:
    fields: dict[str, Any] = {f"f:field{number}": {".": {}, "f:first": {}, "f:second": {}} for number in range(12)}
    return {
        "manager": manager,
        "operation": "Update",
        "apiVersion": "v1",
        "time": "2026-01-01T00:00:00Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:metadata": fields, "f:spec": fields},
    }
