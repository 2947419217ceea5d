"""What nobody here heeds is told, and what loses nothing is not."""

import pytest

from alignup.kube.podspec.manifest import MAX_WARNINGS
from tests.kube.podspec import NOTHING, container, holding, manifest, parse, problems_of, warnings_of

EXPORTED = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "web-5d9c-x",
        "generateName": "web-5d9c-",
        "namespace": "shop",
        "uid": "u",
        "resourceVersion": "1",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "ownerReferences": [{"kind": "ReplicaSet", "name": "web-5d9c"}],
        "managedFields": [{}],
    },
    "spec": {
        "containers": [
            {
                "name": "web",
                "image": "registry.example/web:1",
                "imagePullPolicy": "IfNotPresent",
                "resources": {"limits": {"cpu": "1"}},
                "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}],
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
                "volumeMounts": [
                    {
                        "name": "kube-api-access-abcde",
                        "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
                        "readOnly": True,
                    }
                ],
            }
        ],
        "dnsPolicy": "ClusterFirst",
        "enableServiceLinks": True,
        "nodeName": "node-1",
        "preemptionPolicy": "PreemptLowerPriority",
        "priority": 0,
        "restartPolicy": "Always",
        "schedulerName": "default-scheduler",
        "securityContext": {},
        "serviceAccount": "default",
        "serviceAccountName": "default",
        "terminationGracePeriodSeconds": 30,
        "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}],
        "volumes": [
            {
                "name": "kube-api-access-abcde",
                "projected": {
                    "defaultMode": 420,
                    "sources": [
                        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                        {
                            "downwardAPI": {
                                "items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]
                            }
                        },
                    ],
                },
            }
        ],
    },
    "status": {"phase": "Running"},
}


def test_a_pod_exported_from_a_cluster_loses_its_token_and_nothing_else():
    reading = parse(EXPORTED, NOTHING)

    assert reading.warnings == (
        "spec.volumes[0]: the pod has no token for an API server, as there is no Kubernetes API here",
    )
    assert reading.spec.volumes == ()
    assert reading.spec.containers[0].mounts == ()


def test_what_means_something_to_a_cluster_only_is_told_in_one_line():
    document = manifest(
        nodeSelector={"disk": "ssd"},
        affinity={"nodeAffinity": {}},
        topologySpreadConstraints=[],
        readinessGates=[{"conditionType": "x"}],
        subdomain="web",
        setHostnameAsFQDN=False,
    )

    assert warnings_of(document) == [
        (
            "spec.nodeSelector, spec.affinity, spec.readinessGates, spec.subdomain:"
            " not heeded, as there is no scheduler and no cluster here"
        )
    ]


@pytest.mark.parametrize(
    ("document", "told"),
    [
        pytest.param(
            holding(imagee="x"),
            "spec.containers[0].imagee is no field of a pod; perhaps image is meant",
            id="of a container",
        ),
        pytest.param(manifest(zzz=1), "spec.zzz is no field of a pod", id="of the pod, like no other"),
        pytest.param(
            manifest(metadata={"lables": {}}),
            "metadata.lables is no field of a pod; perhaps labels is meant",
            id="of metadata",
        ),
        pytest.param(
            holding(env=[{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name", "fieldpath": ""}}}]),
            "spec.containers[0].env[0].valueFrom.fieldRef.fieldpath is no field of a pod; perhaps fieldPath is meant",
            id="deep inside",
        ),
        pytest.param(
            manifest(volumes=[{"name": "v", "emtpyDir": {}}]),
            "spec.volumes[0].emtpyDir is no field of a pod; perhaps emptyDir is meant",
            id="of a volume",
        ),
        pytest.param(manifest(**{"a\nb": 1}), 'spec["a\\nb"] is no field of a pod', id="one that would spoil the line"),
    ],
)
def test_a_field_that_no_pod_has_is_told(document, told):
    assert warnings_of(document) == [told]


@pytest.mark.parametrize(
    ("document", "told"),
    [
        pytest.param(
            manifest(hostUsers=False),
            "spec.hostUsers: its users are those of the host: no user namespace is made",
            id="a user namespace",
        ),
        pytest.param(
            manifest(imagePullSecrets=[{"name": "s"}]),
            "spec.imagePullSecrets: images are fetched with what the runtime knows itself,"
            " as there is no Kubernetes API here",
            id="pull secrets",
        ),
        pytest.param(
            manifest(ephemeralContainers=[container(name="debug")]),
            "spec.ephemeralContainers: they are not started",
            id="ephemeral containers",
        ),
        pytest.param(
            manifest(resourceClaims=[{"name": "gpu", "resourceClaimName": "x"}]),
            "spec.resourceClaims: no devices are given for claims, as there is no Kubernetes API here",
            id="claims nobody uses",
        ),
        pytest.param(
            manifest(securityContext={"supplementalGroupsPolicy": "Strict"}),
            "spec.securityContext.supplementalGroupsPolicy: groups that the image names are added too",
            id="strict groups",
        ),
        pytest.param(
            manifest(securityContext={"windowsOptions": {"hostProcess": True}}),
            "spec.securityContext.windowsOptions: it is for Windows, and means nothing here",
            id="rights on Windows",
        ),
        pytest.param(
            holding(lifecycle={"stopSignal": "SIGUSR1"}),
            "spec.containers[0].lifecycle.stopSignal: the container gets the signal its image names, or TERM",
            id="another signal",
        ),
        pytest.param(
            holding(restartPolicy="Never"),
            "spec.containers[0].restartPolicy: the container is treated as spec.restartPolicy says: Always",
            id="a restart policy of its own",
        ),
        pytest.param(
            manifest(init=[container(name="setup", restartPolicy="Never")]),
            "spec.initContainers[0].restartPolicy: the container is treated as spec.restartPolicy says: Always",
            id="one of an init container",
        ),
    ],
)
def test_what_is_not_supported_is_told_by_what_will_not_happen(document, told):
    assert warnings_of(document) == [told]


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(manifest(hostUsers=True, imagePullSecrets=[], setHostnameAsFQDN=None), id="of the pod"),
        pytest.param(manifest(securityContext={"supplementalGroupsPolicy": "Merge"}), id="of its rights"),
        pytest.param(holding(restartPolicy="Always", lifecycle={"stopSignal": "SIGTERM"}), id="of a container"),
        pytest.param(manifest(affinity={}, nodeSelector={}, tolerations=[{}]), id="of its place"),
    ],
)
def test_values_that_change_nothing_are_not_told(document):
    assert warnings_of(document) == []


def test_claims_that_a_container_uses_are_refused():
    document = manifest(
        resourceClaims=[{"name": "gpu", "resourceClaimName": "x"}],
        containers=[container(resources={"claims": [{"name": "gpu"}]})],
    )

    (problem,) = problems_of(document)
    assert problem == (
        "spec.containers[0].resources.claims: names devices of a resource claim, and there is no Kubernetes API here;"
        " ask for those of a device plugin"
    )


def test_warnings_are_not_without_end():
    warnings = warnings_of(manifest(**{f"x{number}": 1 for number in range(MAX_WARNINGS + 7)}))

    assert len(warnings) == MAX_WARNINGS + 1
    assert warnings[-1] == "and 7 more"
