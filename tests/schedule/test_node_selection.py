"""Which nodes schedulers consider for a pod."""

import pytest

from alignup.documents.codec import convert, to_builtins
from alignup.kubernetes.api.objects import ApiNode, ApiPodSpec
from alignup.schedule.node_selection import DAEMON_SET_TOLERATIONS, exclusions

DEDICATED = {"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}
UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


def found(spec=None, *, labels=None, **pod):
    node = convert({"metadata": {"name": "host-a", "labels": labels or {}}, "spec": spec or {}}, ApiNode)
    return exclusions(node, convert(pod, ApiPodSpec))


def affinity(*terms):
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


def expression(operator, *values, key="zone"):
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def test_a_node_without_restrictions_is_considered():
    assert found() == ()


def test_an_unschedulable_node_is_excluded_once():
    assert found({"unschedulable": True, "taints": [UNSCHEDULABLE]}) == ("unschedulable",)


@pytest.mark.parametrize(
    "toleration",
    [
        pytest.param({"operator": "Exists"}, id="everything"),
        pytest.param({"key": UNSCHEDULABLE["key"], "operator": "Exists", "effect": "NoSchedule"}, id="this taint"),
    ],
)
def test_a_toleration_of_the_taint_makes_unschedulable_nodes_usable(toleration):
    assert found({"unschedulable": True, "taints": [UNSCHEDULABLE]}, tolerations=[toleration]) == ()


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        pytest.param({"key": "dedicated", "value": "gpu"}, True, id="equal by default"),
        pytest.param({"key": "dedicated", "operator": "Equal", "value": "gpu", "effect": "NoSchedule"}, True, id="all"),
        pytest.param({"key": "dedicated", "operator": "Exists"}, True, id="any value"),
        pytest.param({"operator": "Exists"}, True, id="any key"),
        pytest.param({"key": "dedicated", "value": "cpu"}, False, id="another value"),
        pytest.param({"key": "other", "operator": "Exists"}, False, id="another key"),
        pytest.param({"key": "dedicated", "operator": "Exists", "effect": "NoExecute"}, False, id="another effect"),
        pytest.param({"key": "dedicated", "operator": "Gt", "value": "gpu"}, False, id="an operator that is off"),
    ],
)
def test_taints_exclude_unless_tolerated(toleration, tolerated):
    expected = () if tolerated else ("taint dedicated=gpu:NoSchedule",)

    assert found({"taints": [DEDICATED]}, tolerations=[toleration]) == expected


def test_every_taint_that_is_not_tolerated_is_named_but_preferences_exclude_nothing():
    taints = [DEDICATED, {"key": "broken", "effect": "NoExecute"}, {"key": "slow", "effect": "PreferNoSchedule"}]

    assert found({"taints": taints}) == ("taint dedicated=gpu:NoSchedule", "taint broken:NoExecute")


def test_pods_of_daemon_sets_go_to_nodes_under_pressure():
    taints = [{"key": f"node.kubernetes.io/{key}", "effect": "NoSchedule"} for key in ("disk-pressure", "pid-pressure")]
    tolerations = [to_builtins(toleration) for toleration in DAEMON_SET_TOLERATIONS]

    assert found({"unschedulable": True, "taints": taints}, tolerations=tolerations) == ()


def test_a_node_selector_names_what_is_missing():
    labels = {"disk": "ssd", "zone": "a"}

    assert found(labels=labels, nodeSelector={"disk": "ssd"}) == ()
    assert found(labels=labels, nodeSelector={"disk": "ssd", "zone": "b"}) == ("node selector zone=b",)


@pytest.mark.parametrize(
    ("terms", "selected"),
    [
        pytest.param([expression("In", "a", "b")], True, id="in"),
        pytest.param([expression("In", "b")], False, id="not in the values"),
        pytest.param([expression("NotIn", "b")], True, id="not in"),
        pytest.param([expression("NotIn", "b", key="absent")], True, id="not in without the label"),
        pytest.param([expression("Exists")], True, id="exists"),
        pytest.param([expression("Exists", key="absent")], False, id="exists without the label"),
        pytest.param([expression("DoesNotExist", key="absent")], True, id="does not exist"),
        pytest.param([expression("DoesNotExist")], False, id="does not exist with the label"),
        pytest.param([expression("Gt", "9", key="cores")], True, id="greater"),
        pytest.param([expression("Gt", "10", key="cores")], False, id="not greater"),
        pytest.param([expression("Lt", "11", key="cores")], True, id="less"),
        pytest.param([expression("Lt", "11", key="zone")], False, id="less than no number"),
        pytest.param([expression("Lt", "11", key="absent")], False, id="less without the label"),
        pytest.param([expression("Gt", "+9", key="cores")], True, id="greater than a number with a sign"),
        pytest.param([expression("Gt", "0_9", key="cores")], False, id="greater than digits with an underscore"),
        pytest.param([expression("Gt", " 9", key="cores")], False, id="greater than a number after a space"),
        pytest.param([expression("Gt", "٩", key="cores")], False, id="greater than a digit of another script"),
        pytest.param([expression("Lt", str(2**63 - 1), key="cores")], True, id="less than the largest number"),
        pytest.param([expression("Lt", str(2**63), key="cores")], False, id="less than more than 64 bits"),
        pytest.param([expression("Lt", "11", "12", key="cores")], False, id="less than two numbers"),
        pytest.param([expression("Gt", "1", key="lanes")], False, id="a label with an underscore is no number"),
        pytest.param([expression("In", "b"), expression("In", "a")], True, id="one of two terms"),
        pytest.param([{}], False, id="an empty term"),
        pytest.param([], False, id="no terms"),
        pytest.param(
            [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["host-a"]}]}], True, id="by name"
        ),
        pytest.param(
            [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["host-b"]}]}], False, id="another"
        ),
    ],
)
def test_required_node_affinity(terms, selected):
    expected = () if selected else ("node affinity",)

    assert found(labels={"zone": "a", "cores": "10", "lanes": "1_0"}, affinity=affinity(*terms)) == expected


def test_a_pod_that_names_a_node_goes_there_only():
    assert found(nodeName="host-a") == ()
    assert found(nodeName="host-b") == ("the pod names node host-b",)
