import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align.errors import PodError
from alignup.kube.manifests import read_paths
from alignup.kube.podspec import field_support, pod_spec_of
from alignup.kube.podspec.types import ContainerKind, ContainerSpec, HostPort, PodSpec, PullPolicy, RestartPolicy
from tests.kube.podspec import EVERYTHING, NOTHING, container, holding, manifest, parse, problems_of, read, warnings_of

ROOT = Path(__file__).parents[2]


def test_a_pod_that_says_little_has_the_defaults_of_kubernetes():
    assert read(manifest(), NOTHING) == PodSpec(
        name="web",
        namespace="default",
        containers=(
            ContainerSpec(name="app", kind=ContainerKind.APP, image="alpine:3", pull_policy=PullPolicy.IF_NOT_PRESENT),
        ),
    )


def test_a_pod_that_says_much():
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


def test_containers_come_in_the_order_they_begin():
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
    ("spec", "told"),
    [
        pytest.param({"containers": []}, "spec.containers: Required value", id="no containers"),
        pytest.param({"containers": [{"name": "c"}]}, "spec.containers[0].image: Required value", id="no image"),
        pytest.param(
            {"containers": [container(), container()]},
            'spec.containers[1].name: Duplicate value: "app"',
            id="one name for two",
        ),
        pytest.param(
            {"restartPolicy": "Sometimes"},
            'spec.restartPolicy: Unsupported value: "Sometimes": supported values: "Always", "OnFailure", "Never"',
            id="an unknown restart policy",
        ),
        pytest.param(
            {"terminationGracePeriodSeconds": -1},
            "spec.terminationGracePeriodSeconds: Invalid value: -1: must be between 0 and 2147483647, inclusive",
            id="less than no time to stop",
        ),
        pytest.param(
            {"activeDeadlineSeconds": 0},
            "spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive",
            id="no time to run",
        ),
        pytest.param(
            {"hostNetwork": "yes"}, "spec.hostNetwork: must be true or false, not a string", id="a text for a flag"
        ),
        pytest.param(
            {"hostPID": True, "shareProcessNamespace": True},
            "spec.shareProcessNamespace: Invalid value: true: cannot be set where hostPID is",
            id="the host's processes, shared",
        ),
        pytest.param(
            {"dnsPolicy": "None"},
            "spec.dnsConfig.nameservers: Required value: must provide at least one DNS nameserver when `dnsPolicy` is"
            " None",
            id="nobody to ask for names",
        ),
        pytest.param(
            {"dnsConfig": {"nameservers": ["here"]}},
            'spec.dnsConfig.nameservers[0]: Invalid value: "here": must be a valid IP address',
            id="a name server without address",
        ),
        pytest.param(
            {"dnsConfig": {"nameservers": ["10.0.0.1"] * 4}},
            "spec.dnsConfig.nameservers: Invalid value: must not have more than 3 nameservers",
            id="too many name servers",
        ),
        pytest.param(
            {"dnsConfig": {"searches": ["a b"]}},
            'spec.dnsConfig.searches[0]: Invalid value: "a b": must be a domain in lower case',
            id="no domain to search in",
        ),
        pytest.param(
            {"hostAliases": [{"ip": "fe80::1%eth0"}]},
            'spec.hostAliases[0].ip: Invalid value: "fe80::1%eth0": must be a valid IP address',
            id="an address of one interface",
        ),
        pytest.param(
            {"hostnameOverride": "a.b", "hostNetwork": True},
            "spec.hostnameOverride: Forbidden: may not be specified when hostNetwork is true",
            id="another name for the host",
        ),
        pytest.param(
            {"hostname": "A"},
            "spec.hostname: Invalid value: \"A\": must be lower case letters, digits and '-', with a letter or digit at"
            " both ends",
            id="a name in capitals",
        ),
    ],
)
def test_what_is_wrong_is_told_by_its_field(spec, told):
    assert problems_of(manifest(**spec)) == [told]


def test_all_that_is_wrong_is_told_at_once_and_once():
    document = manifest(
        containers=[container(name="a", image=""), container(name="b", stdin=1)], securityContext={"runAsUser": "root"}
    )

    assert problems_of(document) == [
        "spec.containers[0].image: Required value",
        "spec.securityContext.runAsUser: must be a 64-bit integer, not a string",
        "spec.containers[1].stdin: must be true or false, not a number",
    ]


def test_ports_of_the_host():
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
    ("spec", "told"),
    [
        pytest.param(
            {"containers": [container(ports=[{"containerPort": 1, "hostPort": 2}] * 2)]},
            'spec.containers[0].ports[1].hostPort: Duplicate value: "TCP//2"',
            id="one port for two",
        ),
        pytest.param(
            {"hostNetwork": True, "containers": [container(ports=[{"containerPort": 1, "hostPort": 2}])]},
            "spec.containers[0].ports[0].hostPort: Invalid value: 2: must match `containerPort` when `hostNetwork` is"
            " true",
            id="another port on the host's network",
        ),
        pytest.param(
            {"containers": [container(ports=[{"hostPort": 2}])]},
            "spec.containers[0].ports[0].containerPort: Required value",
            id="a port that leads nowhere",
        ),
        pytest.param(
            {"containers": [container(ports=[{"containerPort": 65536}])]},
            "spec.containers[0].ports[0].containerPort: Invalid value: 65536: must be between 1 and 65535, inclusive",
            id="a port that no machine has",
        ),
    ],
)
def test_ports_that_cannot_be_had(spec, told):
    assert problems_of(manifest(**spec)) == [told]


def test_a_port_of_the_host_for_an_init_container_is_not_opened():
    document = manifest(init=[container(name="setup", ports=[{"containerPort": 1, "hostPort": 2}])])

    (warning,) = warnings_of(document)
    assert warning.startswith("spec.initContainers[0].ports[0].hostPort: it is not opened")


def recorded():
    for path in sorted((ROOT / "tests/recorded/kubelet").glob("*.json.gz")):
        with gzip.open(path) as file:
            steps = json.load(file)["steps"]
        yield from (step["manifest"] for step in steps if step["op"] == "pod")


def test_every_pod_a_real_kubelet_ran_can_be_run():
    found = [read(document) for document in recorded()]

    assert len(found) > 100
    assert all(spec.host_network for spec in found)
    assert {each.kind for spec in found for each in spec.containers} == set(ContainerKind)


def test_the_examples_can_be_run_under_their_own_names():
    reading = read_paths([ROOT / "examples/node/running.yaml", ROOT / "examples/node/trainer.yaml"], keep=True)
    pods = [pod for workload in reading.workloads for pod in workload.pods()]

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


KEYS = st.sampled_from(sorted(set(names_in(field_support.POD_FIELDS))))
WORDS = "app v Always Never None Localhost Memory HugePages-2Mi /a ../a limits.cpu 80 kube-api-access-x net/core/x"
NUMBERS = (0, 1, -1, 80, 1 << 70, 1.5)
VALUES = st.sampled_from(["", *WORDS.split(), "metadata.labels['a']", *NUMBERS, True, False, None])
json_values = st.recursive(
    VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(max_size=3), inner, max_size=5),
    max_leaves=25,
)


def shaped(table):
    """An object that has some of the fields of *table*, mostly of the right shape."""
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
    shaped(field_support.SPEC_FIELDS),
    shaped({name: field for name, field in field_support.CONTAINER_FIELDS.items() if name not in container()}),
)


@given(json_values | st.dictionaries(KEYS, json_values) | specs, st.sampled_from([NOTHING, EVERYTHING]))
def test_any_document_is_a_pod_to_run_or_a_list_of_problems(document, allowed):
    try:
        reading = parse(document, allowed)
    except PodError as refusal:
        assert refusal.problems
    else:
        assert reading.spec.containers
        assert all("\n" not in warning for warning in reading.warnings)


@given(specs)
def test_whoever_may_do_more_is_refused_no_more(document):
    """What is allowed only takes problems away."""

    def problems(allowed):
        try:
            parse(document, allowed)
        except PodError as refusal:
            return set(refusal.problems)
        return set()

    assert problems(EVERYTHING) <= problems(NOTHING)
