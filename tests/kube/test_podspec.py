import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align.errors import PodError
from alignup.kubernetes.manifests.workloads import read_paths
from alignup.kubernetes.podspec import field_support, pod_spec_of
from alignup.kubernetes.podspec.types import ContainerKind, ContainerSpec, HostPort, PodSpec, PullPolicy, RestartPolicy
from tests.kubernetes.manifests.podspec import (
    EVERYTHING,
    NOTHING,
    container,
    holding,
    manifest,
    parse,
    problems_of,
    read,
    warnings_of,
)

ROOT = Path(__file__).parents[2]


def test_defaults():
    assert read(manifest(), NOTHING) == PodSpec(
        name="web",
        namespace="default",
        containers=(
            ContainerSpec(name="app", kind=ContainerKind.APP, image="alpine:3", pull_policy=PullPolicy.IF_NOT_PRESENT),
        ),
    )


def test_pod_level_fields():
    document = manifest(
        metadata={"namespace": "shop", "labels": {"app": "x"}, "annotations": {"a": "b"}},
        restartPolicy="OnFailure",
        terminationGracePeriodSeconds=5,
        activeDeadlineSeconds=60,
        hostname="box",
        shareProcessNamespace=True,
        dnsPolicy="None",
        dnsConfig={
            "nameservers": ["10.0.0.1"],
            "searches": ["shop.svc", "."],
            "options": [{"name": "ndots", "value": "2"}, {"name": "edns0"}],
        },
        hostAliases=[{"ip": "10.0.0.9", "hostnames": ["db", "db.shop"]}],
        runtimeClassName="kata",
        serviceAccountName="robot",
        securityContext={"supplementalGroups": [7, 8], "fsGroup": 9, "sysctls": [{"name": "net/core/somaxconn"}]},
    )

    spec = read(document)

    assert (spec.namespace, spec.labels, spec.annotations) == ("shop", {"app": "x"}, {"a": "b"})
    assert (spec.restart, spec.grace, spec.deadline) == (RestartPolicy.ON_FAILURE, 5, 60)
    assert (spec.hostname, spec.share_pid, spec.runtime_handler, spec.service_account) == ("box", True, "kata", "robot")
    assert (spec.dns_policy, spec.nameservers, spec.searches) == ("None", ("10.0.0.1",), ("shop.svc", "."))
    assert spec.dns_options == ("ndots:2", "edns0")
    assert spec.host_aliases == (("10.0.0.9", ("db", "db.shop")),)
    assert (spec.groups, spec.fs_group, spec.sysctls) == ((7, 8, 9), 9, {"net.core.somaxconn": ""})


def test_containers_are_in_start_order():
    document = manifest(
        init=[
            container(name="setup"),
            container(name="proxy", restartPolicy="Always"),
            container(name="check", restartPolicy="OnFailure"),
        ],
        containers=[container(name="a"), container(name="b")],
    )

    assert [(each.name, each.kind) for each in read(document).containers] == [
        ("setup", ContainerKind.INIT),
        ("proxy", ContainerKind.SIDECAR),
        ("check", ContainerKind.INIT),
        ("a", ContainerKind.APP),
        ("b", ContainerKind.APP),
    ]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param({"containers": []}, "spec.containers: Required value", id="no containers"),
        pytest.param({"containers": [{"name": "c"}]}, "spec.containers[0].image: Required value", id="no image"),
        pytest.param(
            {"containers": [container(), container()]},
            'spec.containers[1].name: Duplicate value: "app"',
            id="a duplicate name",
        ),
        pytest.param(
            {"restartPolicy": "Sometimes"},
            'spec.restartPolicy: Unsupported value: "Sometimes": supported values: "Always", "OnFailure", "Never"',
            id="an unknown restart policy",
        ),
        pytest.param(
            {"terminationGracePeriodSeconds": -1},
            "spec.terminationGracePeriodSeconds: Invalid value: -1: must be between 0 and 2147483647, inclusive",
            id="a negative grace period",
        ),
        pytest.param(
            {"activeDeadlineSeconds": 0},
            "spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive",
            id="a zero deadline",
        ),
        pytest.param(
            {"hostNetwork": "yes"}, "spec.hostNetwork: must be true or false, not a string", id="a string as flag"
        ),
        pytest.param(
            {"hostPID": True, "shareProcessNamespace": True},
            "spec.shareProcessNamespace: Invalid value: true: must not be set together with hostPID",
            id="a shared host PID namespace",
        ),
        pytest.param(
            {"dnsPolicy": "None"},
            "spec.dnsConfig.nameservers: Required value: must provide at least one DNS nameserver when `dnsPolicy` is"
            " None",
            id="no nameserver",
        ),
        pytest.param(
            {"dnsConfig": {"nameservers": ["here"]}},
            'spec.dnsConfig.nameservers[0]: Invalid value: "here": must be a valid IP address',
            id="an invalid nameserver",
        ),
        pytest.param(
            {"dnsConfig": {"nameservers": ["10.0.0.1"] * 4}},
            "spec.dnsConfig.nameservers: Invalid value: must not have more than 3 nameservers",
            id="too many nameservers",
        ),
        pytest.param(
            {"dnsConfig": {"searches": ["a b"]}},
            'spec.dnsConfig.searches[0]: Invalid value: "a b": must be a lowercase domain name',
            id="an invalid search domain",
        ),
        pytest.param(
            {"hostAliases": [{"ip": "fe80::1%eth0"}]},
            'spec.hostAliases[0].ip: Invalid value: "fe80::1%eth0": must be a valid IP address',
            id="an address with a zone",
        ),
        pytest.param(
            {"hostnameOverride": "a.b", "hostNetwork": True},
            "spec.hostnameOverride: Forbidden: may not be specified when hostNetwork is true",
            id="a hostname override on the host network",
        ),
        pytest.param(
            {"hostname": "A"},
            "spec.hostname: Invalid value: \"A\": must be lower case letters, digits and '-', with a letter or digit at"
            " both ends",
            id="an uppercase hostname",
        ),
    ],
)
def test_problems_name_the_field(spec, expected):
    assert problems_of(manifest(**spec)) == [expected]


def test_all_problems_are_reported_once():
    document = manifest(
        containers=[container(name="a", image=""), container(name="b", stdin=1)], securityContext={"runAsUser": "root"}
    )

    assert problems_of(document) == [
        "spec.containers[0].image: Required value",
        "spec.securityContext.runAsUser: must be a 64-bit integer, not a string",
        "spec.containers[1].stdin: must be true or false, not a number",
    ]


def test_host_ports():
    ports = [
        {"containerPort": 80, "hostPort": 8080, "hostIP": "10.0.0.1"},
        {"containerPort": 53, "hostPort": 53, "protocol": "UDP"},
        {"containerPort": 9000},
    ]

    assert read(holding(ports=ports)).ports == (
        HostPort(container_port=80, host_port=8080, host_ip="10.0.0.1"),
        HostPort(container_port=53, host_port=53, protocol="UDP"),
    )
    assert read(manifest(hostNetwork=True, containers=[container(ports=ports[1:])])).ports == ()


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param(
            {"containers": [container(ports=[{"containerPort": 1, "hostPort": 2}] * 2)]},
            'spec.containers[0].ports[1].hostPort: Duplicate value: "TCP//2"',
            id="a duplicate port",
        ),
        pytest.param(
            {"hostNetwork": True, "containers": [container(ports=[{"containerPort": 1, "hostPort": 2}])]},
            "spec.containers[0].ports[0].hostPort: Invalid value: 2: must match `containerPort` when `hostNetwork` is"
            " true",
            id="another port on the host network",
        ),
        pytest.param(
            {"containers": [container(ports=[{"hostPort": 2}])]},
            "spec.containers[0].ports[0].containerPort: Required value",
            id="no container port",
        ),
        pytest.param(
            {"containers": [container(ports=[{"containerPort": 65536}])]},
            "spec.containers[0].ports[0].containerPort: Invalid value: 65536: must be between 1 and 65535, inclusive",
            id="a port out of range",
        ),
    ],
)
def test_invalid_ports(spec, expected):
    assert problems_of(manifest(**spec)) == [expected]


def test_host_ports_of_init_containers_are_ignored():
    document = manifest(init=[container(name="setup", ports=[{"containerPort": 1, "hostPort": 2}])])

    (warning,) = warnings_of(document)
    assert warning.startswith("spec.initContainers[0].ports[0].hostPort: ignored")


def recorded():
    for path in sorted((ROOT / "tests/recorded/kubelet").glob("*.json.gz")):
        with gzip.open(path) as file:
            steps = json.load(file)["steps"]
        yield from (step["manifest"] for step in steps if step["op"] == "pod")


def test_every_pod_of_the_recorded_runs_is_valid():
    found = [read(document) for document in recorded()]

    assert len(found) > 100
    assert all(spec.host_network for spec in found)
    assert {each.kind for spec in found for each in spec.containers} == set(ContainerKind)


def test_the_examples_are_valid():
    parsed = read_paths([ROOT / "examples/node/running.yaml", ROOT / "examples/node/trainer.yaml"], keep=True)
    pods = [pod for workload in parsed.workloads for pod in workload.pods()]

    found = [pod_spec_of(pod) for pod in pods]
    for each in found:
        each.check(NOTHING)

    assert [(each.spec.namespace, each.spec.name) for each in found] == [(pod.namespace, pod.name) for pod in pods]
    assert ("ml", "trainer-0") in [(each.spec.namespace, each.spec.name) for each in found]
    assert not any(each.warnings for each in found)


def names_in(table):
    for name, field in table.items():
        yield name
        yield from names_in(field.inside or {})


KEYS = st.sampled_from(sorted(set(names_in(field_support.TYPES["Pod"]))))
WORDS = "app v Always Never None Localhost Memory HugePages-2Mi /a ../a limits.cpu 80 kube-api-access-x net/core/x"
NUMBERS = (0, 1, -1, 80, 1 << 70, 1.5)
VALUES = st.sampled_from(["", *WORDS.split(), "metadata.labels['a']", *NUMBERS, True, False, None])
json_values = st.recursive(
    VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(max_size=3), inner, max_size=5),
    max_leaves=25,
)


def shaped(table):
    """An object with some of the fields of *table*, mostly of the right type."""
    return st.lists(st.sampled_from(sorted(table)), max_size=5, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: value_of(table[name]) for name in names})
    )


def value_of(field):
    if field.inside is None:
        return VALUES | st.lists(VALUES, max_size=2)
    inner = st.deferred(lambda: shaped(field.inside))
    return inner | st.lists(inner, min_size=1, max_size=2)


specs = st.builds(
    lambda spec, first: {"metadata": {"name": "p"}, "spec": {**spec, "containers": [{**container(), **first}]}},
    shaped(field_support.TYPES["PodSpec"]),
    shaped({name: field for name, field in field_support.TYPES["Container"].items() if name not in container()}),
)


@given(json_values | st.dictionaries(KEYS, json_values) | specs, st.sampled_from([NOTHING, EVERYTHING]))
def test_any_document_gives_a_spec_or_problems(document, allowed):
    try:
        parsed = parse(document, allowed)
    except PodError as rejection:
        assert rejection.problems
    else:
        assert parsed.spec.containers
        assert all("\n" not in warning for warning in parsed.warnings)


@given(specs)
def test_permissions_only_remove_problems(document):
    def problems(allowed):
        try:
            parse(document, allowed)
        except PodError as rejection:
            return set(rejection.problems)
        return set()

    assert problems(EVERYTHING) <= problems(NOTHING)
