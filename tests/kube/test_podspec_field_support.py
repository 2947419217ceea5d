import pytest

from alignup.kubernetes.podspec import MAX_WARNINGS
from tests.kubernetes.manifests.podspec import NOTHING, container, holding, manifest, parse, problems_of, warnings_of

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


def test_a_pod_exported_from_a_cluster_only_loses_its_token():
    parsed = parse(EXPORTED, NOTHING)

    assert parsed.warnings == (
        "spec.volumes[0]: ignored: the pod gets no API server token: there is no Kubernetes API",
    )
    assert parsed.spec.volumes == ()
    assert parsed.spec.containers[0].mounts == ()


def test_fields_that_only_a_cluster_uses_share_one_warning():
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
            " ignored: there is no scheduler and no cluster"
        )
    ]


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        pytest.param(
            holding(imagee="x"),
            "spec.containers[0].imagee: unknown field; did you mean image?",
            id="of a container",
        ),
        pytest.param(manifest(zzz=1), "spec.zzz: unknown field", id="of the pod, without a suggestion"),
        pytest.param(
            manifest(metadata={"lables": {}}),
            "metadata.lables: unknown field; did you mean labels?",
            id="of metadata",
        ),
        pytest.param(
            holding(env=[{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name", "fieldpath": ""}}}]),
            "spec.containers[0].env[0].valueFrom.fieldRef.fieldpath: unknown field; did you mean fieldPath?",
            id="nested",
        ),
        pytest.param(
            manifest(volumes=[{"name": "v", "emtpyDir": {}}]),
            "spec.volumes[0].emtpyDir: unknown field; did you mean emptyDir?",
            id="of a volume",
        ),
        pytest.param(manifest(**{"a\nb": 1}), 'spec["a\\nb"]: unknown field', id="with a line break"),
    ],
)
def test_unknown_fields_are_reported(document, expected):
    assert warnings_of(document) == [expected]


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        pytest.param(
            manifest(hostUsers=False),
            "spec.hostUsers: ignored: the pod gets no user namespace",
            id="a user namespace",
        ),
        pytest.param(
            manifest(imagePullSecrets=[{"name": "s"}]),
            "spec.imagePullSecrets: ignored: images are pulled with the credentials of the runtime",
            id="pull secrets",
        ),
        pytest.param(
            manifest(ephemeralContainers=[container(name="debug")]),
            "spec.ephemeralContainers: ignored: ephemeral containers are not started",
            id="ephemeral containers",
        ),
        pytest.param(
            manifest(resourceClaims=[{"name": "gpu", "resourceClaimName": "x"}]),
            "spec.resourceClaims: ignored: no devices are allocated for resource claims",
            id="unused claims",
        ),
        pytest.param(
            manifest(securityContext={"supplementalGroupsPolicy": "Strict"}),
            "spec.securityContext.supplementalGroupsPolicy: ignored: the groups of the image are added too",
            id="strict groups",
        ),
        pytest.param(
            manifest(securityContext={"windowsOptions": {"hostProcess": True}}),
            "spec.securityContext.windowsOptions: ignored: it applies to Windows only",
            id="Windows options",
        ),
        pytest.param(
            holding(lifecycle={"stopSignal": "SIGUSR1"}),
            "spec.containers[0].lifecycle.stopSignal: ignored: the container gets the stop signal of its image, or"
            " SIGTERM",
            id="a stop signal",
        ),
        pytest.param(
            holding(restartPolicy="Never"),
            "spec.containers[0].restartPolicy: ignored: spec.restartPolicy applies (Always)",
            id="a container restart policy",
        ),
        pytest.param(
            manifest(init=[container(name="setup", restartPolicy="Never")]),
            "spec.initContainers[0].restartPolicy: ignored: spec.restartPolicy applies (Always)",
            id="an init container restart policy",
        ),
    ],
)
def test_unsupported_fields_are_reported(document, expected):
    assert warnings_of(document) == [expected]


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(manifest(hostUsers=True, imagePullSecrets=[], setHostnameAsFQDN=None), id="of the pod"),
        pytest.param(manifest(securityContext={"supplementalGroupsPolicy": "Merge"}), id="of its security context"),
        pytest.param(holding(restartPolicy="Always", lifecycle={"stopSignal": "SIGTERM"}), id="of a container"),
        pytest.param(manifest(affinity={}, nodeSelector={}, tolerations=[{}]), id="of its scheduling"),
    ],
)
def test_harmless_values_are_not_reported(document):
    assert warnings_of(document) == []


def test_resource_claims_of_a_container_are_rejected():
    document = manifest(
        resourceClaims=[{"name": "gpu", "resourceClaimName": "x"}],
        containers=[container(resources={"claims": [{"name": "gpu"}]})],
    )

    (problem,) = problems_of(document)
    assert problem == (
        "spec.containers[0].resources.claims: resource claims are not supported: there is no Kubernetes API; request"
        " devices of a device plugin"
    )


def test_the_number_of_warnings_is_limited():
    warnings = warnings_of(manifest(**{f"x{number}": 1 for number in range(MAX_WARNINGS + 7)}))

    assert len(warnings) == MAX_WARNINGS + 1
    assert warnings[-1] == "and 7 more"
