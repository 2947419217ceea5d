"""The environment of a container, expanded by Kubernetes' rules."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.agent.pods.environment import (
    MAX_BYTES,
    PodFacts,
    expand,
    expand_all,
    field_value,
    make_environment,
    resource_value,
)
from alignup.agent.pods.pod_state import PodStartError
from alignup.align.workload import Pod, Resources
from alignup.kubernetes.podspec.types import EnvVar
from tests.agent.pods.statuses import APP
from tests.strategies_pods import amounts, container

POD = Pod(
    name="web",
    namespace="shop",
    uid="4711",
    labels={"app": "web", "a": 'say "hi"\n', "ä": "é\x7f\u200b"},
    annotations={"note": "one\ttwo"},
    init=(container("setup", {"cpu": "100m"}),),
    containers=(
        container("app", {"cpu": "1500m", "memory": "64Mi"}, {"cpu": "2", "hugepages-2Mi": "4Mi"}),
        container("other", {}, {"memory": "1G"}),
    ),
)
FACTS = PodFacts(
    pod=POD,
    host_name="node-1",
    host_ips=("192.0.2.1", "2001:db8::1"),
    pod_ips=("10.0.0.7", "fd00::7"),
    service_account="robot",
    allocatable=amounts({"cpu": "7500m", "memory": "10Gi", "ephemeral-storage": "1Ti"}),
)
VALUES = {"A": "a", "B": "b b", "EMPTY": "", "ODD$(A": "odd"}


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        pytest.param("$(A)-$(B)", "a-b b", id="names are replaced"),
        pytest.param("$(EMPTY)x", "x", id="an empty value"),
        pytest.param("$(MISSING)", "$(MISSING)", id="an undefined name is left alone"),
        pytest.param("$$(A)", "$(A)", id="two dollars are an escape"),
        pytest.param("$$$(A)", "$a", id="a third dollar begins a reference"),
        pytest.param("$$$$(A)", "$$(A)", id="four dollars are two escapes"),
        pytest.param("$", "$", id="a dollar at the end"),
        pytest.param("x$$", "x$", id="two dollars at the end"),
        pytest.param("$A ${A} $ (A)", "$A ${A} $ (A)", id="other syntax is left alone"),
        pytest.param("$(A", "$(A", id="an unclosed reference is left alone"),
        pytest.param("$(A $(B)", "$(A $(B)", id="a name ends at the first bracket"),
        pytest.param("$(ODD$(A)", "odd", id="a name may contain any character"),
        pytest.param("$()", "$()", id="the empty name is undefined"),
        pytest.param("$(A)$(", "a$(", id="an opening bracket at the end"),
    ],
)
def test_expand(text, expanded):
    assert expand(text, VALUES) == expanded


def go_expand(text: str, values: dict[str, str]) -> str:
    """Expand character by character, as the rule is documented."""
    out, place = "", 0
    while place < len(text):
        rest = text[place + 1 :]
        if text[place] != "$" or not rest:
            out, place = out + text[place], place + 1
        elif rest[0] == "$":
            out, place = out + "$", place + 2
        elif rest[0] == "(" and ")" in rest:
            name = rest[1 : rest.index(")")]
            out, place = out + values.get(name, f"$({name})"), place + len(name) + 3
        else:
            out, place = out + "$" + rest[0], place + 2
    return out


@given(st.text(alphabet="$()AB x", max_size=30))
def test_expand_agrees_with_a_character_by_character_implementation(text):
    assert expand(text, VALUES) == go_expand(text, VALUES)


def test_many_open_brackets_expand_in_linear_time():
    assert expand("$(" * 1_000_000, VALUES) == "$(" * 1_000_000


def test_exponential_expansion_is_rejected():
    doubling = tuple(EnvVar(f"V{n}", f"$(V{n - 1})$(V{n - 1})" if n else "x" * 1000) for n in range(60))

    with pytest.raises(PodStartError) as caught:
        make_environment(replace(APP, env=doubling), FACTS)

    assert caught.value.reason == "CreateContainerConfigError"


def test_a_command_that_is_too_long_is_rejected():
    with pytest.raises(PodStartError):
        expand_all(("$(LONG)",) * 1000, {"LONG": "x" * (MAX_BYTES // 10)})


def test_a_variable_expands_earlier_variables_but_not_those_of_plugins():
    variables = (
        EnvVar("FIRST", "$(SECOND) $(GIVEN)"),
        EnvVar("SECOND", "2"),
        EnvVar("THIRD", "$(SECOND)$(FIRST)"),
        EnvVar("NAME", field_path="metadata.name"),
        EnvVar("SECOND", "two"),
        EnvVar("EMPTY"),
    )

    found = make_environment(replace(APP, env=variables), FACTS, plugin_envs={"GIVEN": "g", "NAME": "plugin", "X": "y"})

    assert list(found.items()) == [
        ("GIVEN", "g"),
        ("NAME", "web"),
        ("X", "y"),
        ("FIRST", "$(SECOND) $(GIVEN)"),
        ("SECOND", "two"),
        ("THIRD", "2$(SECOND) $(GIVEN)"),
        ("EMPTY", ""),
    ]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "web"),
        ("metadata.namespace", "shop"),
        ("metadata.uid", "4711"),
        ("metadata.labels['app']", "web"),
        ("metadata.labels['missing']", ""),
        ("metadata.annotations['note']", "one\ttwo"),
        ("metadata.labels", 'a="say \\"hi\\"\\n"\napp="web"\nä="é\\x7f\\u200b"'),
        ("metadata.annotations", 'note="one\\ttwo"'),
        ("spec.nodeName", "node-1"),
        ("spec.serviceAccountName", "robot"),
        ("status.hostIP", "192.0.2.1"),
        ("status.hostIPs", "192.0.2.1,2001:db8::1"),
        ("status.podIP", "10.0.0.7"),
        ("status.podIPs", "10.0.0.7,fd00::7"),
    ],
)
def test_fields(path, value):
    assert field_value(path, FACTS) == value


@pytest.mark.parametrize("path", ["metadata.finalizers", "spec.volumes['x']", "", "metadata.name['x']"])
def test_unsupported_field_paths_are_rejected(path):
    with pytest.raises(PodStartError, match=re.escape(f"unsupported fieldPath: {path}")):
        field_value(path, FACTS)


def test_missing_addresses_are_empty():
    assert field_value("status.podIP", replace(FACTS, pod_ips=())) == ""


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        pytest.param(EnvVar("V", resource="limits.cpu"), "2", id="whole CPUs"),
        pytest.param(EnvVar("V", resource="requests.cpu"), "2", id="rounded up"),
        pytest.param(EnvVar("V", resource="requests.cpu", divisor="1m"), "1500", id="thousandths"),
        pytest.param(EnvVar("V", resource="requests.memory"), str(64 << 20), id="bytes"),
        pytest.param(EnvVar("V", resource="requests.memory", divisor="1Mi"), "64", id="mebibytes"),
        pytest.param(EnvVar("V", resource="requests.memory", divisor="1Gi"), "1", id="fractions are rounded up"),
        pytest.param(EnvVar("V", resource="limits.memory", divisor="1Gi"), "10", id="no limit: the host's allocatable"),
        pytest.param(EnvVar("V", resource="limits.ephemeral-storage", divisor="1Gi"), "1024", id="also for storage"),
        pytest.param(
            EnvVar("V", resource="limits.memory", container_name="other"), "1000000000", id="another container"
        ),
        pytest.param(EnvVar("V", resource="requests.memory", container_name="other"), "0", id="no request: zero"),
        pytest.param(
            EnvVar("V", resource="requests.cpu", container_name="setup", divisor="1m"), "100", id="an init container"
        ),
        pytest.param(EnvVar("V", resource="limits.hugepages-2Mi", divisor="2Mi"), "2", id="huge pages"),
        pytest.param(EnvVar("V", resource="limits.hugepages-1Gi"), "0", id="huge pages have no default"),
    ],
)
def test_resources(variable, value):
    assert resource_value(variable, FACTS, container="app") == value


def test_without_a_limit_the_pods_limit_precedes_the_hosts():
    pod = replace(POD, resources=Resources(limits=amounts({"memory": "2Gi"})))

    found = resource_value(EnvVar("V", resource="limits.memory"), replace(FACTS, pod=pod), container="app")

    assert found == str(2 << 30)


@pytest.mark.parametrize(
    ("variable", "words"),
    [
        (EnvVar("V", resource="limits.gpu"), "unsupported container resource : limits.gpu"),
        (EnvVar("V", resource="cpu"), "unsupported container resource : cpu"),
        (EnvVar("V", resource="limits.cpu", container_name="missing"), "container missing not found"),
        (EnvVar("V", resource="limits.cpu", divisor="many"), "divisor 'many'"),
        (EnvVar("V", resource="limits.cpu", divisor="-1"), "is negative"),
    ],
)
def test_unsupported_resource_fields_are_rejected(variable, words):
    with pytest.raises(PodStartError, match=re.escape(words)) as caught:
        resource_value(variable, FACTS, container="app")

    assert caught.value.reason == "CreateContainerConfigError"
