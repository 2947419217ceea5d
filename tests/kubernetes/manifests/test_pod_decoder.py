import json
import re
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align.errors import AlignError, DocumentError, PodError
from alignup.align.quantity import Quantity
from alignup.align.workload import Container, ContainerStatus, Pod, PodClaim, QoS, Resources
from alignup.align.workload.validation import accept
from alignup.kubernetes.manifests.pod_decoder import (
    PodObject,
    pod_from,
    pod_to_dict,
    read_json_pod,
    read_pod,
    read_pod_text,
)
from tests.strategies_pods import amounts, pods

FORMAT = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"


TWO = {"cpu": Quantity.parse("2")}


def document(**spec):
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}


def asking(**requests):
    return document(containers=[{"name": "c", "resources": {"requests": requests}}])


def problems_of(read, written):
    with pytest.raises(PodError) as rejection:
        read(written)
    return [(problem.field, problem.message) for problem in rejection.value.problems]


def test_all_used_fields_are_read():
    written = document(
        containers=[
            {
                "name": "main",
                "image": "alpine",
                "resources": {"requests": {"cpu": 2}, "limits": {"x.y/gpu": "1"}, "claims": [{"name": "net"}]},
            }
        ],
        initContainers=[
            {"name": "proxy", "restartPolicy": "Always"},
            {"name": "setup", "restartPolicy": "OnFailure"},
        ],
        resources={"limits": {"cpu": "4"}},
        overhead={"memory": "1Mi"},
        resourceClaims=[{"name": "net"}],
        priority=1000,
        nodeName="ignored",
    )
    written["metadata"] |= {"namespace": "web", "uid": "u1", "labels": {"app": "x"}, "annotations": {"a": "b"}}
    written["status"] = {"qosClass": "Burstable", "phase": "Running"}

    assert read_pod(written) == Pod(
        name="p",
        namespace="web",
        uid="u1",
        init=(Container("proxy", restartable=True), Container("setup")),
        containers=(Container("main", Resources(amounts({"cpu": "2"}), amounts({"x.y/gpu": "1"}), ("net",))),),
        resources=Resources(limits=amounts({"cpu": "4"})),
        overhead=amounts({"memory": "1Mi"}),
        claims=(PodClaim("net"),),
        recorded_qos=QoS.BURSTABLE,
        priority=1000,
        labels={"app": "x"},
        annotations={"a": "b"},
    )


def test_requests_of_claims_are_read_and_written():
    claims = [{"name": "net", "request": "a"}, {"name": "net", "request": "b"}, {"name": "gpu"}]
    names = [{"name": "net", "resourceClaimName": "n"}, {"name": "gpu", "resourceClaimName": "g"}]
    pod = read_pod(document(containers=[{"name": "main", "resources": {"claims": claims}}], resourceClaims=names))

    assert pod.containers[0].resources.claims == ("net/a", "net/b", "gpu")
    assert pod_to_dict(pod)["spec"]["containers"][0]["resources"]["claims"] == claims
    written = document(containers=[{"name": "c", "resources": {"claims": [{"name": "a/b"}]}}], resourceClaims=names)
    assert problems_of(accept, read_pod(written))[0][0] == "spec.containers[0].resources.claims[0].request"


def test_the_status_of_a_running_pod_is_read():
    written = document(containers=[{"name": "main"}], initContainers=[{"name": "proxy"}], os={"name": "linux"})
    written["status"] = {
        "conditions": [
            {"type": "Ready", "reason": "Infeasible"},
            {"type": "PodResizePending", "status": "True", "reason": "Infeasible"},
            {"type": "PodResizePending", "status": "True", "reason": "Deferred"},
        ],
        "initContainerStatuses": [{"name": "proxy", "resources": {"requests": {"cpu": "1"}}}, {"name": "quiet"}],
        "containerStatuses": [{"name": "main", "allocatedResources": {"cpu": 2}, "resources": {"limits": {"cpu": 3}}}],
    }

    pod = read_pod(written)

    assert pod.os == "linux"
    assert pod.resize_infeasible
    assert pod.statuses == {
        "proxy": ContainerStatus(actual=amounts({"cpu": "1"})),
        "main": ContainerStatus(allocated=amounts({"cpu": "2"})),
    }


def test_invalid_statuses_are_reported():
    written = document()
    written["status"] = {
        "conditions": [{"type": 1}],
        "containerStatuses": [{"name": "c", "allocatedResources": {"cpu": "?"}}],
    }

    assert problems_of(read_pod, written) == [
        ("status.containerStatuses[0].allocatedResources[cpu]", FORMAT),
        ("status.conditions[0].type", "must be a string, not a number"),
    ]


@pytest.mark.parametrize(
    "written",
    [
        pytest.param({"apiVersion": "v1", "kind": "Pod"}, id="only a kind"),
        pytest.param(
            {"apiVersion": "v1", "kind": "Pod", "metadata": None, "spec": None, "status": None}, id="null everywhere"
        ),
        pytest.param(
            {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": None, "resources": {"limits": None}}},
            id="null inside",
        ),
    ],
)
def test_absent_and_null_fields_are_empty(written):
    assert read_pod(written) == Pod(name="", namespace="")


def test_null_in_a_list_is_an_empty_container():
    assert read_pod(document(containers=[None])).containers == (Container(""),)


@pytest.mark.parametrize(
    ("token", "printed"),
    [
        pytest.param('"1.5Gi"', "1536Mi", id="a string"),
        pytest.param('" 2 "', "2", id="surrounding spaces are trimmed"),
        pytest.param('"\u00a02\u3000"', "2", id="so is other white space"),
        pytest.param("2", "2", id="a number"),
        pytest.param("0.1", "100m", id="a fraction is exact"),
        pytest.param("1e3", "1e3", id="a number keeps its spelling"),
        pytest.param("1000", "1k", id="a whole number"),
        pytest.param("12345678901234567890", "12345678901234567890", id="a number beyond 64 bits"),
        pytest.param("null", "0", id="null is zero"),
    ],
)
def test_quantities_in_json(token, printed):
    text = json.dumps(asking(cpu="?")).replace('"?"', token)

    assert str(read_pod_text(text).containers[0].resources.requests["cpu"]) == printed


def test_quantities_in_yaml():
    """Vectors have the other ways to spell a number: ``../../conformance/test_quantity.py``."""
    text = json.dumps(asking(cpu="?")).replace('"?"', "010")

    assert str(read_pod_text("---\n" + text).containers[0].resources.requests["cpu"]) == "8"


@pytest.mark.parametrize(
    ("token", "message"),
    [
        pytest.param('""', FORMAT, id="an empty string"),
        pytest.param('"1 Gi"', FORMAT, id="a space inside"),
        pytest.param(r'"1\n"', FORMAT, id="an escaped line break"),
        pytest.param("true", FORMAT, id="true"),
        pytest.param("[]", FORMAT, id="a list"),
        pytest.param("{}", FORMAT, id="an object"),
        pytest.param("NaN", FORMAT, id="not JSON"),
        pytest.param('"1K"', "unable to parse quantity's suffix", id="an unknown suffix"),
    ],
)
def test_invalid_quantities_name_the_field(token, message):
    text = json.dumps(asking(cpu="?")).replace('"?"', token)

    assert problems_of(read_pod_text, text) == [("spec.containers[0].resources.requests[cpu]", message)]


@pytest.mark.parametrize(
    ("value", "amount"),
    [
        pytest.param(2, "2", id="an int"),
        pytest.param(0.1, "0.1", id="a float as it prints"),
        pytest.param(1e3, "1000", id="a large float"),
        pytest.param(1e-7, "1e-7", id="a small float"),
    ],
)
def test_quantities_decoded_elsewhere(value, amount):
    read = read_pod(asking(cpu=value)).containers[0].resources.requests["cpu"]

    assert read == Quantity.parse(amount)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(True, id="true"),
        pytest.param(float("nan"), id="not a number"),
        pytest.param(float("-inf"), id="minus infinity"),
        pytest.param(10**5000, id="an int that Python does not print"),
        pytest.param(b"1", id="bytes"),
        pytest.param(("1",), id="a tuple"),
    ],
)
def test_decoded_values_that_are_not_quantities(value):
    assert problems_of(read_pod, asking(cpu=value)) == [("spec.containers[0].resources.requests[cpu]", FORMAT)]


def nested(path, value):
    """An object with a value at a path such as ``spec.containers[0].name``."""
    for step in reversed(re.findall(r"\w+|\[\w+\]", path)):
        value = [value] if step == "[0]" else {step.strip("[]"): value}
    return value


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        pytest.param("kind", "Pods", 'no kind "Pods" is registered for version "v1"', id="another kind"),
        pytest.param("apiVersion", "v2", 'no kind "Pod" is registered for version "v2"', id="another version"),
        pytest.param("kind", None, "Required value", id="no kind"),
        pytest.param("apiVersion", "", "Required value", id="no version"),
        pytest.param("kind", 5, "must be a string, not a number", id="a number as kind"),
        pytest.param("metadata", [], "must be an object, not a list", id="a list as metadata"),
        pytest.param("metadata", {1: 2}, "must have strings as keys", id="a key that is not a string"),
        pytest.param("metadata.uid", b"u", "must be a string, not bytes", id="bytes as string"),
        pytest.param("metadata.name", 5, "must be a string, not a number", id="a number as name"),
        pytest.param("metadata.labels[a]", True, "must be a string, not true or false", id="a label of another type"),
        pytest.param("spec", "x", "must be an object, not a string", id="a string as spec"),
        pytest.param("spec.containers", {}, "must be a list, not an object", id="an object as list"),
        pytest.param("spec.containers[0]", "c", "must be an object, not a string", id="a string in a list"),
        pytest.param(
            "spec.initContainers[0].restartPolicy", 5, "must be a string, not a number", id="a list in a spec"
        ),
        pytest.param("spec.priority", 1.5, "must be a 32-bit integer, not a number", id="a fraction as priority"),
        pytest.param("spec.priority", 1 << 31, "must be a 32-bit integer, not a number", id="more than 32 bits"),
    ],
)
def test_problems_name_the_field(path, value, message):
    assert problems_of(read_pod, document() | nested(path, value)) == [(path, message)]


def test_a_kind_is_looked_up_with_its_version():
    message = 'no kind "Deployment" is registered for version "apps/v1"'

    assert problems_of(read_pod, document() | {"kind": "Deployment", "apiVersion": "apps/v1"}) == [("kind", message)]


def test_all_problems_are_reported_at_once():
    written = document(containers=[{"name": 1}, {"resources": {"limits": {"cpu": "x", "memory": "1"}}}])

    assert [field for field, _ in problems_of(read_pod, written)] == [
        "spec.containers[0].name",
        "spec.containers[1].resources.limits[cpu]",
    ]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("{", id="an unclosed object"),
        pytest.param("[]", id="a list"),
        pytest.param("5", id="a number"),
        pytest.param("[" * 100_000, id="too deep"),
        pytest.param("a: 1\n---\nb: 2", id="two documents"),
        pytest.param(b"\xff", id="invalid UTF-8"),
    ],
)
def test_texts_that_are_not_one_pod(text):
    with pytest.raises((DocumentError, PodError)) as rejection:
        read_pod_text(text)

    assert [problem.field for problem in getattr(rejection.value, "problems", ())] in ([], [""])


KEYS = st.sampled_from(
    ["metadata", "spec", "containers", "resources", "limits", "requests", "name", "cpu", "overhead", "labels", "claims"]
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(KEYS, json_values), st.booleans())
def test_any_document_gives_a_pod_or_problems(written, as_text):
    written |= {"apiVersion": "v1", "kind": "Pod"}
    try:
        pod = read_pod_text(json.dumps(written)) if as_text else read_pod(written)
    except PodError as rejection:
        assert rejection.problems
    except DocumentError:
        assert as_text  # JSON has no infinity
    else:
        assert isinstance(pod, Pod)


FULL = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "trainer",
        "namespace": "ml",
        "uid": "u-1",
        "labels": {"app": "trainer"},
        "annotations": {"a/b": "ü", "empty": ""},
        "creationTimestamp": None,
    },
    "spec": {
        "initContainers": [{"name": "fetch", "restartPolicy": "Always"}],
        "containers": [
            {
                "name": "app",
                "image": "example.com/app",
                "resources": {
                    "requests": {"cpu": 2, "memory": " 1.5Gi "},
                    "limits": {"cpu": "2000m", "memory": 1.5e9, "example.com/gpu": None},
                    "claims": [{"name": "claim"}, {}],
                },
            },
            {"name": "odd", "restartPolicy": "Sometimes"},
        ],
        "resources": {"limits": {"cpu": "4"}},
        "overhead": {"memory": "64Mi"},
        "resourceClaims": [{"name": "claim"}],
        "priority": -5,
        "os": {"name": "linux"},
    },
    "status": {"qosClass": "Burstable", "containerStatuses": [{"name": "app", "allocatedResources": {"cpu": 2.0}}]},
}
MINIMAL = {"apiVersion": "v1", "kind": "Pod"}


@pytest.mark.parametrize(
    "written",
    [
        pytest.param(FULL, id="all fields"),
        pytest.param(MINIMAL, id="no fields"),
        pytest.param(MINIMAL | {"spec": {"os": {}, "containers": [], "priority": None}}, id="empty fields"),
        pytest.param(MINIMAL | {"status": {}}, id="an empty status"),
    ],
)
def test_json_is_decoded_as_other_texts_are_read(written):
    content = json.dumps(written).encode()
    decoded = read_json_pod(content)

    assert decoded is not None
    assert decoded == read_pod_text(content)
    assert str(decoded) == str(read_pod_text(content))  # amounts are spelled alike


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"apiVersion: v1\nkind: Pod\n", id="YAML"),
        pytest.param(b"{apiVersion: v1, kind: Pod}", id="YAML that begins like JSON"),
        pytest.param(b"[]", id="a list"),
        pytest.param(json.dumps(MINIMAL).encode() * 2, id="two documents"),
        pytest.param(json.dumps(MINIMAL | {"kind": "Deployment"}).encode(), id="no pod"),
        pytest.param(json.dumps(MINIMAL | {"spec": {"containers": [{"name": 5}]}}).encode(), id="a wrong type"),
        pytest.param(json.dumps(MINIMAL | {"spec": {"overhead": {"cpu": "much"}}}).encode(), id="a wrong amount"),
        pytest.param(json.dumps(MINIMAL | {"status": {"qosClass": "Best"}}).encode(), id="an unknown class"),
        pytest.param(json.dumps(MINIMAL | {"metadata": None, "spec": None, "status": None}).encode(), id="null"),
        pytest.param(json.dumps(FULL).encode("utf-16"), id="UTF-16"),
        pytest.param(json.dumps(MINIMAL | {"spec": {"priority": 1e3}}).encode(), id="a fraction as the priority"),
        pytest.param(json.dumps(MINIMAL | {"spec": {"overhead": {"cpu": '"1"'}}}).encode(), id="an escape"),
        pytest.param(b'{"apiVersion": "v1", "kind": "Pod", "odd": "\xff"}', id="no UTF-8 in a field that is skipped"),
    ],
)
def test_unusual_and_invalid_texts_are_left_to_the_field_reader(content):
    assert read_json_pod(content) is None


values = (
    st.none() | st.booleans() | st.sampled_from(["", "1", "1Gi", "x", "1e3", 1, 0.5, -1, 1e30, [], {}, {"name": "n"}])
)
limits = st.dictionaries(st.sampled_from(["cpu", "memory", "example.com/gpu"]), values, max_size=2)
resources = values | st.fixed_dictionaries({"limits": limits})
containers = st.fixed_dictionaries({}, optional={"name": values, "restartPolicy": values, "resources": resources})


@given(
    st.fixed_dictionaries({}, optional={"containers": values | st.lists(containers, max_size=2), "priority": values})
)
def test_no_document_is_read_in_two_ways(spec):
    content = json.dumps(MINIMAL | {"spec": spec}).encode()
    decoded = read_json_pod(content)
    if decoded is None:
        return
    try:
        read = read_pod_text(content)
    except AlignError as error:  # must not be read
        pytest.fail(f"{content!r}: {error}")
    assert decoded == read


@pytest.mark.parametrize(
    ("written", "field", "message"),
    [
        pytest.param({"spec": {"overhead": {"cpu": "x"}}}, "spec.overhead[cpu]", FORMAT, id="an invalid amount"),
        pytest.param(
            {"status": {"qosClass": "Best"}},
            "status.qosClass",
            'Unsupported value: "Best": supported values: "Guaranteed", "Burstable", "BestEffort"',
            id="an unknown class",
        ),
    ],
)
def test_problems_of_values_name_the_field_in_decoded_objects_too(written, field, message):
    assert problems_of(read_pod, document() | written) == [(field, message)]
    assert problems_of(pod_from, msgspec.convert(written, PodObject)) == [(field, message)]


@given(pods())
def test_pods_round_trip(pod):
    written = pod_to_dict(pod)
    text = json.dumps(written).encode()

    assert read_pod(written) == read_pod_text(text) == read_json_pod(text) == pod
    assert pod_from(msgspec.convert(written, PodObject)) == pod
    assert accept(read_pod(pod_to_dict(accept(pod)))) == accept(pod)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"labels": {"app": "web"}, "annotations": {"a/b": "c"}}, id="labels and annotations"),
        pytest.param({"claims": (PodClaim("gpu", "gpu-7"), PodClaim("nic", template="nic"))}, id="resource claims"),
        pytest.param({"claims": (PodClaim("gpu", "web-gpu-x7k2p", "gpu"),)}, id="a claim made from a template"),
        pytest.param(
            {"claimed_requests": (("app", "x.y/gpu"),), "extended_claim": "web-extended-resources-x7k2p"},
            id="extended resources of a claim",
        ),
        pytest.param({"priority": 0, "os": "linux"}, id="priority and operating system"),
        pytest.param({"statuses": {"app": ContainerStatus(TWO, TWO)}}, id="container statuses"),
        pytest.param({"resize_infeasible": True}, id="an infeasible resize"),
        pytest.param({"uid": "1-2-3", "namespace": "prod"}, id="uid and namespace"),
    ],
)
def test_all_fields_are_written(changes):
    resources = Resources(TWO, TWO, claims=("gpu",) if "claims" in changes else ())
    pod = replace(Pod(name="p", containers=(Container("app", resources),)), **changes)

    assert read_pod(pod_to_dict(pod)) == pod


def test_empty_fields_are_omitted():
    assert pod_to_dict(Pod(name="p", containers=(Container("app"),))) == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "default"},
        "spec": {"containers": [{"name": "app"}]},
    }
