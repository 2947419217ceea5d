"""The patch that releases a pod to a node."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.documents.codec import convert, encode
from alignup.kubernetes.api import PODS
from alignup.kubernetes.api.errors import ConflictError
from alignup.kubernetes.api.objects import ApiNode, ApiPod, ApiPodSpec
from alignup.kubernetes.manifests.node_selectors import NodeSelector
from alignup.kubernetes.manifests.pod_decoder import NamedItem
from alignup.schedule.cluster_facts import GATE
from alignup.schedule.gate.release_patch import HOST_NAME, pinned, pinned_nodes, release_patch
from alignup.schedule.node_selection import exclusions
from alignup.testing.api_server.patches import merge

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
NODES = ("host-a", "host-b", "host-c")
KEYS = ("zone", "disk")
NAME = {"key": "metadata.name", "operator": "In", "values": ["host-a"]}

values = st.lists(st.sampled_from(["1", "2"]), min_size=1, max_size=2, unique=True)
expressions = st.one_of(
    st.builds(
        lambda key, operator, values: {"key": key, "operator": operator, "values": values},
        st.sampled_from(KEYS),
        st.sampled_from(["In", "NotIn"]),
        values,
    ),
    st.builds(
        lambda key, operator: {"key": key, "operator": operator},
        st.sampled_from(KEYS),
        st.sampled_from(["Exists", "DoesNotExist"]),
    ),
)
fields = st.builds(
    lambda operator, node: {"key": "metadata.name", "operator": operator, "values": [node]},
    st.sampled_from(["In", "NotIn"]),
    st.sampled_from(NODES),
)
terms = st.fixed_dictionaries(
    {}, optional={"matchExpressions": st.lists(expressions, max_size=2), "matchFields": st.lists(fields, max_size=2)}
)
selectors = st.none() | st.builds(lambda chosen: {"nodeSelectorTerms": chosen}, st.lists(terms, max_size=3))
nodes = st.builds(
    lambda name, labels: convert({"metadata": {"name": name, "labels": labels}}, ApiNode),
    st.sampled_from(NODES),
    st.dictionaries(st.sampled_from(KEYS), st.sampled_from(["1", "2", "3"])),
)


def gated_pod(affinity=None, **spec):
    metadata = {"name": "web", "namespace": "default", "uid": "u", "resourceVersion": "5"}
    constraint = {} if affinity is None else {"affinity": affinity}
    document = {"metadata": metadata, "spec": {"schedulingGates": [{"name": GATE}], **constraint, **spec}}
    return document, convert(document, ApiPod)


def release(document, pod, node):
    """The pod as the API server has it afterwards."""
    return merge(document, json.loads(encode(release_patch(pod, {node: node}))))


def selects(spec: ApiPodSpec, node: ApiNode) -> bool:
    return exclusions(node, spec) == ()


@given(selectors, nodes, st.sampled_from(NODES))
def test_a_released_pod_selects_the_chosen_node_if_it_did_before_and_no_other(selector, node, chosen):
    document, pod = gated_pod(None if selector is None else {"nodeAffinity": {REQUIRED: selector}})
    released = convert(release(document, pod, chosen), ApiPod)

    assert selects(released.spec, node) is (selects(pod.spec, node) and node.metadata.name == chosen)


@given(selectors, st.sampled_from(NODES))
def test_terms_only_gain_conditions_at_their_end(selector, chosen):
    """The rule of the API server for pods with gates."""
    before = None if selector is None else convert(selector, NodeSelector)
    after = pinned(before, {chosen: chosen})

    if before is not None:
        assert len(after.node_selector_terms) == len(before.node_selector_terms)
        for old, new in zip(before.node_selector_terms, after.node_selector_terms, strict=True):
            assert new.match_expressions == old.match_expressions
            assert new.match_fields[: len(old.match_fields)] == old.match_fields
            if not old.match_expressions and not old.match_fields:
                assert new == old
    assert pinned(after, {chosen: chosen}) == after


@given(selectors, nodes, st.sets(st.sampled_from(NODES), min_size=2))
def test_a_pod_released_to_several_nodes_selects_those_of_them_that_it_did_before(selector, node, chosen):
    """Nodes are found by their host names where the pod has terms of its own."""
    document, pod = gated_pod(None if selector is None else {"nodeAffinity": {REQUIRED: selector}})
    patch = release_patch(pod, {name: f"host-{name}" for name in sorted(chosen)})
    released = convert(merge(document, json.loads(encode(patch))), ApiPod)
    name = node.metadata.name
    labels = node.metadata.labels | {HOST_NAME: f"host-{name}"}
    named = convert({"metadata": {"name": name, "labels": labels}}, ApiNode)

    assert selects(released.spec, named) is (selects(pod.spec, named) and name in chosen)
    if selector is None or any(term for term in selector["nodeSelectorTerms"]):
        assert set(pinned_nodes(released)) <= chosen


def test_everything_else_of_the_affinity_stays():
    affinity = {
        "podAntiAffinity": {REQUIRED: [{"topologyKey": "zone"}]},
        "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}]},
    }
    document, pod = gated_pod(affinity)
    released = release(document, pod, "host-a")["spec"]["affinity"]

    assert released.pop("podAntiAffinity") == affinity["podAntiAffinity"]
    assert released["nodeAffinity"].pop(REQUIRED) == {"nodeSelectorTerms": [{"matchFields": [NAME]}]}
    assert released == {"nodeAffinity": affinity["nodeAffinity"]}


def test_the_gate_goes_and_the_pod_names_its_node():
    document, pod = gated_pod()
    released = release(document, pod, "host-a")

    assert "schedulingGates" not in released["spec"]
    assert pinned_nodes(convert(released, ApiPod)) == ("host-a",)
    assert pinned_nodes(pod) == ()


@pytest.mark.anyio
async def test_a_pod_that_has_changed_is_not_released(server, client):
    stored = server.put({"apiVersion": "v1", "kind": "Pod", **gated_pod()[0]})
    pod = await client.get(PODS.at("web", namespace="default"))
    server.put({**stored, "spec": {**stored["spec"], "nodeSelector": {"zone": "b"}}})

    with pytest.raises(ConflictError):
        await client.patch(PODS.of(pod), release_patch(pod, {"host-a": ""}))
    assert (await client.get(PODS.of(pod))).spec.scheduling_gates == (NamedItem(GATE),)
