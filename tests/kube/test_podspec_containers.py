import pytest

from alignup.kubernetes.podspec.types import EnvVar, LifecycleHook, Probe, PullPolicy
from tests.kubernetes.manifests.podspec import (
    NOTHING,
    container,
    holding,
    manifest,
    problems_of,
    read,
    read_one,
    warnings_of,
)

DIGEST = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("image", "pull"),
    [
        ("alpine", PullPolicy.ALWAYS),
        ("alpine:latest", PullPolicy.ALWAYS),
        ("alpine:3", PullPolicy.IF_NOT_PRESENT),
        ("registry.example:5000/alpine", PullPolicy.ALWAYS),
        ("registry.example:5000/alpine:3", PullPolicy.IF_NOT_PRESENT),
        (f"alpine@{DIGEST}", PullPolicy.IF_NOT_PRESENT),
        (f"alpine:3@{DIGEST}", PullPolicy.IF_NOT_PRESENT),
        (f"alpine:latest@{DIGEST}", PullPolicy.ALWAYS),
        ("0" * 64, PullPolicy.IF_NOT_PRESENT),
    ],
)
def test_default_pull_policy(image, pull):
    assert read_one(image=image).pull_policy is pull
    assert read_one(image=image, imagePullPolicy="Never").pull_policy is PullPolicy.NEVER


def test_process_and_termination_message_fields():
    found = read_one(
        command=["sh"],
        args=["-c", "true"],
        workingDir="/srv",
        stdin=True,
        stdinOnce=True,
        tty=True,
        terminationMessagePath="/end",
        terminationMessagePolicy="FallbackToLogsOnError",
    )

    assert (found.command, found.args, found.working_dir) == (("sh",), ("-c", "true"), "/srv")
    assert found.stdin
    assert found.stdin_once
    assert found.tty
    assert (found.termination_message_path, found.fallback_to_logs_on_error) == ("/end", True)


def env(**source):
    return holding(env=[{"name": "A", "valueFrom": source}])


@pytest.mark.parametrize(
    ("written", "variable"),
    [
        pytest.param({"value": "$(B)"}, EnvVar("A", "$(B)"), id="a value"),
        pytest.param({}, EnvVar("A"), id="an empty value"),
        pytest.param(
            {"valueFrom": {"fieldRef": {"fieldPath": "status.podIP", "apiVersion": "v1"}}},
            EnvVar("A", field_path="status.podIP"),
            id="a field of the pod",
        ),
        pytest.param(
            {"valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['example.com/app']"}}},
            EnvVar("A", field_path="metadata.labels['example.com/app']"),
            id="a label",
        ),
        pytest.param(
            {"valueFrom": {"fieldRef": {"fieldPath": "spec.host"}}},
            EnvVar("A", field_path="spec.nodeName"),
            id="a field under its old name",
        ),
        pytest.param(
            {"valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
            EnvVar("A", resource="limits.memory", divisor="1Mi"),
            id="a resource",
        ),
        pytest.param(
            {"valueFrom": {"resourceFieldRef": {"resource": "requests.hugepages-2Mi", "containerName": "app"}}},
            EnvVar("A", resource="requests.hugepages-2Mi", container_name="app"),
            id="a resource of a named container",
        ),
    ],
)
def test_variables(written, variable):
    assert read_one(env=[{"name": "A", **written}]).env == (variable,)


def test_variables_keep_their_order_and_duplicates():
    names = ["B", "A", "B"]

    assert [each.name for each in read_one(env=[{"name": name} for name in names]).env] == names


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        pytest.param(
            holding(env=[{"name": "A=B"}]),
            'spec.containers[0].env[0].name: Invalid value: "A=B": must consist of printable ASCII characters other'
            " than '='",
            id="an invalid name",
        ),
        pytest.param(
            holding(env=[{"name": "A", "value": 1}]),
            "spec.containers[0].env[0].value: must be a string, not a number",
            id="a number",
        ),
        pytest.param(
            env(),
            "spec.containers[0].env[0].valueFrom: Invalid value: must have one of fieldRef, resourceFieldRef,"
            " configMapKeyRef, secretKeyRef, fileKeyRef, not none",
            id="no source",
        ),
        pytest.param(
            holding(env=[{"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]),
            "spec.containers[0].env[0].valueFrom: Invalid value: may not be specified when `value` is not empty",
            id="two values",
        ),
        pytest.param(
            env(configMapKeyRef={"name": "c", "key": "k"}),
            "spec.containers[0].env[0].valueFrom.configMapKeyRef: the value of a ConfigMap is not available:"
            " there is no Kubernetes API; put the value into the manifest, or set optional: true",
            id="from a ConfigMap",
        ),
        pytest.param(
            holding(envFrom=[{"secretRef": {"name": "s"}}]),
            "spec.containers[0].envFrom[0].secretRef: the variables of a Secret are not available: there is no"
            " Kubernetes API; put the value into the manifest, or set optional: true",
            id="envFrom a Secret",
        ),
        pytest.param(
            env(fieldRef={"fieldPath": "metadata.labels"}),
            'spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Unsupported value: "metadata.labels": supported'
            ' values: "metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName",'
            ' "spec.serviceAccountName", "status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs"',
            id="all labels",
        ),
        pytest.param(
            env(fieldRef={"fieldPath": "metadata.name", "apiVersion": "v2"}),
            'spec.containers[0].env[0].valueFrom.fieldRef.apiVersion: Unsupported value: "v2": supported values: "v1"',
            id="a field of another version",
        ),
        pytest.param(
            env(resourceFieldRef={"resource": "limits.gpu"}),
            'spec.containers[0].env[0].valueFrom.resourceFieldRef.resource: Unsupported value: "limits.gpu": supported'
            ' values: "limits.cpu", "limits.ephemeral-storage", "limits.memory", "requests.cpu",'
            ' "requests.ephemeral-storage", "requests.memory"',
            id="an unsupported resource",
        ),
        pytest.param(
            env(resourceFieldRef={"resource": "limits.cpu", "containerName": "other"}),
            'spec.containers[0].env[0].valueFrom.resourceFieldRef.containerName: Not found: "other": must be a'
            " container of this pod",
            id="an unknown container",
        ),
        pytest.param(
            env(resourceFieldRef={"resource": "limits.cpu", "divisor": "1Mi"}),
            'spec.containers[0].env[0].valueFrom.resourceFieldRef.divisor: Unsupported value: "1Mi": supported values:'
            " 1, 1m",
            id="an unsupported divisor",
        ),
    ],
)
def test_invalid_variables(document, expected):
    assert problems_of(document) == [expected]


def test_optional_variables_are_not_set():
    optional = {"name": "c", "key": "k", "optional": True}
    document = holding(
        env=[{"name": "A", "valueFrom": {"secretKeyRef": optional}}, {"name": "B"}],
        envFrom=[{"configMapRef": {"name": "c", "optional": True}}],
    )

    listed, single = warnings_of(document)
    assert listed == (
        "spec.containers[0].envFrom[0].configMapRef: the variables of a ConfigMap are not available: there is no"
        " Kubernetes API; no variables are set"
    )
    assert single == (
        "spec.containers[0].env[0].valueFrom.secretKeyRef: the value of a Secret is not available: there is no"
        " Kubernetes API; the variable is not set"
    )


PORTS = [{"name": "web", "containerPort": 8080}]


@pytest.mark.parametrize(
    ("written", "probe"),
    [
        pytest.param({"exec": {"command": ["true"]}}, Probe(command=("true",)), id="a command"),
        pytest.param({"httpGet": {"port": 80}}, Probe(http_path="/", port=80), id="an HTTP request"),
        pytest.param(
            {
                "httpGet": {
                    "port": "web",
                    "path": "/up",
                    "scheme": "HTTPS",
                    "httpHeaders": [{"name": "A-B", "value": "c"}],
                }
            },
            Probe(http_path="/up", port=8080, http_scheme="HTTPS", http_headers=(("A-B", "c"),)),
            id="an HTTP request with every field",
        ),
        pytest.param({"tcpSocket": {"port": "web"}}, Probe(port=8080), id="a TCP connection"),
        pytest.param(
            {
                "tcpSocket": {"port": 1},
                "initialDelaySeconds": 2,
                "periodSeconds": 3,
                "timeoutSeconds": 4,
                "failureThreshold": 5,
                "terminationGracePeriodSeconds": 6,
            },
            Probe(port=1, delay=2, period=3, timeout=4, failures=5, grace=6),
            id="times",
        ),
        pytest.param(
            {"tcpSocket": {"port": 1}, "periodSeconds": 0, "timeoutSeconds": 0, "failureThreshold": 0},
            Probe(port=1),
            id="zero means the default",
        ),
    ],
)
def test_probes(written, probe):
    found = read_one(ports=PORTS, livenessProbe=written, startupProbe=written)

    assert (found.liveness, found.startup, found.readiness) == (probe, probe, None)


def test_only_readiness_probes_may_need_several_successes():
    written = {"tcpSocket": {"port": 1}, "successThreshold": 2}

    readiness = read_one(readinessProbe=written).readiness
    assert readiness is not None
    assert readiness.successes == 2
    assert problems_of(holding(startupProbe=written)) == [
        "spec.containers[0].startupProbe.successThreshold: Invalid value: 2: must be 1"
    ]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        pytest.param(
            {}, ": Required value: must specify a handler type: exec, httpGet, tcpSocket, grpc", id="no handler"
        ),
        pytest.param(
            {"exec": {"command": ["true"]}, "tcpSocket": {"port": 1}},
            ".tcpSocket: Forbidden: may not specify more than 1 handler type",
            id="two handlers",
        ),
        pytest.param({"exec": {}}, ".exec.command: Required value", id="no command"),
        pytest.param({"tcpSocket": {}}, ".tcpSocket.port: Required value", id="no port"),
        pytest.param(
            {"httpGet": {"port": "other"}},
            '.httpGet.port: Not found: "other": must be a number or the name of a port of the container',
            id="an unknown port",
        ),
        pytest.param(
            {"httpGet": {"port": 0}},
            ".httpGet.port: Invalid value: 0: must be between 1 and 65535, inclusive",
            id="port 0",
        ),
        pytest.param(
            {"httpGet": {"port": 1, "httpHeaders": [{"name": "A", "value": "b\r\nC: d"}]}},
            '.httpGet.httpHeaders[0].value: Invalid value: "b\\r\\nC: d": must not contain control characters',
            id="a header with a line break",
        ),
        pytest.param(
            {"tcpSocket": {"port": 1}, "terminationGracePeriodSeconds": 1},
            ".terminationGracePeriodSeconds: Invalid value: 1: must not be set for readinessProbes",
            id="a grace period for readiness",
        ),
    ],
)
def test_invalid_probes(written, expected):
    assert problems_of(holding(readinessProbe=written)) == [f"spec.containers[0].readinessProbe{expected}"]


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("startupProbe", "the container counts as started once it runs"),
        ("livenessProbe", "the container counts as live while it runs"),
        ("readinessProbe", "the container counts as ready once it runs"),
    ],
)
def test_grpc_probes_are_ignored(name, instead):
    assert warnings_of(holding(**{name: {"grpc": {"port": 1}}})) == [
        f"spec.containers[0].{name}.grpc: gRPC probes are not supported: {instead}"
    ]


def test_hooks():
    lifecycle = {"postStart": {"exec": {"command": ["true"]}}, "preStop": {"sleep": {"seconds": 5}}}

    found = read_one(lifecycle=lifecycle)

    assert (found.post_start, found.pre_stop) == (LifecycleHook(command=("true",)), LifecycleHook(sleep=5))


def test_a_hook_must_not_sleep_longer_than_the_grace_period():
    sleeping = container(lifecycle={"preStop": {"sleep": {"seconds": 3}}})

    assert read(manifest(containers=[sleeping], terminationGracePeriodSeconds=3), NOTHING)
    assert problems_of(manifest(containers=[sleeping], terminationGracePeriodSeconds=2)) == [
        "spec.containers[0].lifecycle.preStop.sleep.seconds: Invalid value: 3: must be between 0 and 2, inclusive"
    ]


def test_unsupported_hooks_are_reported():
    document = holding(
        lifecycle={"postStart": {"httpGet": {"port": 1, "host": "x"}}, "preStop": {"tcpSocket": {"port": 1}}}
    )

    assert warnings_of(document, NOTHING) == [
        "spec.containers[0].lifecycle.postStart.httpGet: ignored: HTTP hooks are not supported",
        "spec.containers[0].lifecycle.preStop.tcpSocket: ignored, as in Kubernetes",
    ]


@pytest.mark.parametrize("name", ["livenessProbe", "readinessProbe", "startupProbe"])
def test_sidecars_may_have_probes_and_init_containers_may_not(name):
    probe = {name: {"tcpSocket": {"port": 1}}}

    assert problems_of(manifest(init=[container(name="setup", **probe)])) == [
        f"spec.initContainers[0].{name}: Forbidden: may not be set for init containers without restartPolicy=Always"
    ]
    assert read(manifest(init=[container(name="proxy", restartPolicy="Always", **probe)]))


def test_invalid_port_names():
    ports = [{"name": "Web", "containerPort": 1}, {"name": "a", "containerPort": 2}, {"name": "a", "containerPort": 3}]

    assert problems_of(holding(ports=ports)) == [
        (
            'spec.containers[0].ports[0].name: Invalid value: "Web": must have at most 15 characters a-z, 0-9'
            " and single inner '-', with at least one letter"
        ),
        'spec.containers[0].ports[2].name: Duplicate value: "a"',
    ]


def test_an_image_with_surrounding_whitespace_is_rejected():
    assert problems_of(holding(image=" alpine:3")) == [
        'spec.containers[0].image: Invalid value: " alpine:3": must not have leading or trailing whitespace'
    ]
