"""Pods in JSON are read quickly, and exactly as the other reader reads them; what is unusual is left to that one."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align.errors import AlignError
from alignup.kubernetes.manifests.pod import read_pod_text
from alignup.kubernetes.manifests.pod_json import read_json_pod

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
        "initContainers": [{"name": "fetch", "restartPolicy": "Always", "resources": None}],
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
    "status": {},
}
MINIMAL = {"apiVersion": "v1", "kind": "Pod"}


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(FULL, id="all fields"),
        pytest.param(MINIMAL, id="no fields"),
        pytest.param(MINIMAL | {"metadata": None, "spec": None, "status": None}, id="null is absent"),
        pytest.param(MINIMAL | {"spec": {"os": {}, "containers": [], "priority": None}}, id="empty fields"),
    ],
)
def test_pods_are_read_as_the_other_reader_reads_them(document):
    content = json.dumps(document).encode()
    read = read_json_pod(content)

    assert read is not None
    assert read == read_pod_text(content)
    assert str(read) == str(read_pod_text(content))  # amounts are spelled alike


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
    ],
)
def test_everything_else_is_left_to_the_other_reader(content):
    assert read_json_pod(content) is None


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(json.dumps(FULL).encode("utf-16"), id="UTF-16"),
        pytest.param(json.dumps(MINIMAL | {"status": {"qosClass": "Burstable"}}).encode(), id="a status"),
        pytest.param(json.dumps(MINIMAL | {"spec": {"priority": 1e3}}).encode(), id="a fraction as the priority"),
        pytest.param(json.dumps(MINIMAL | {"spec": {"overhead": {"cpu": '"1"'}}}).encode(), id="an escape"),
        pytest.param(b'{"apiVersion": "v1", "kind": "Pod", "odd": "\xff"}', id="no UTF-8 in a field that is skipped"),
    ],
)
def test_what_the_quick_reader_does_not_know(content):
    assert read_json_pod(content) is None


values = (
    st.none() | st.booleans() | st.sampled_from(["", "1", "1Gi", "x", "1e3", 1, 0.5, -1, 1e30, [], {}, {"name": "n"}])
)
amounts = st.dictionaries(st.sampled_from(["cpu", "memory", "example.com/gpu"]), values, max_size=2)
containers = st.fixed_dictionaries(
    {},
    optional={"name": values, "restartPolicy": values, "resources": values | amounts.map(lambda own: {"limits": own})},
)


@given(
    st.fixed_dictionaries({}, optional={"containers": values | st.lists(containers, max_size=2), "priority": values})
)
def test_no_document_is_read_in_two_ways(spec):
    content = json.dumps(MINIMAL | {"spec": spec}).encode()
    quick = read_json_pod(content)
    if quick is None:
        return
    try:
        other = read_pod_text(content)
    except AlignError as error:  # must not be read
        pytest.fail(f"{content!r}: {error}")
    assert quick == other
