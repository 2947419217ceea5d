"""Plans and their definition."""

from typing import Any

import jsonschema_rs
import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from alignup.align import bits
from alignup.align.errors import ParseError
from alignup.documents.codec import decode, encode, timestamp, to_builtins
from alignup.documents.plans import (
    DEADLINE_SECONDS,
    MAX_STEPS,
    Plan,
    PlanCondition,
    PlanMetadata,
    PlannedPod,
    PlannedStep,
    PlanSpec,
    PlanStatus,
    StepAction,
    StepStatus,
)
from alignup.kubernetes.api.plan_resource import PLANS
from alignup.placement.scheduling.plan_steps import PlanPhase, StepPhase
from tests.console_runner import ROOT

DEFINITION = yaml.safe_load((ROOT / "deploy/kubernetes/crds/plans.yaml").read_text("utf-8"))
(VERSION,) = DEFINITION["spec"]["versions"]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]

NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=63)
TEXTS = st.text(max_size=40)
COUNTS = st.integers(0, 2**31 - 1)
TIMES = st.none() | st.floats(0, 4e9).map(timestamp)
PODS = st.builds(PlannedPod, namespace=NAMES, name=NAMES, uid=NAMES)
NODES = st.integers(0, (1 << 12) - 1).map(bits.show)
EVICTIONS = st.builds(PlannedStep, action=st.just(StepAction.EVICT), pod=PODS, node=NAMES)
ADMISSIONS = st.builds(
    PlannedStep, action=st.just(StepAction.ADMIT), pod=PODS, node=NAMES, replacement=st.booleans(), numa_nodes=NODES
)
SPECS = st.builds(
    PlanSpec,
    steps=st.lists(EVICTIONS | ADMISSIONS, min_size=1, max_size=5).map(tuple),
    deadline_seconds=st.integers(1, 86400),
    paused=st.booleans(),
    allow_preemption=st.booleans(),
    allow_local_volumes=st.booleans(),
    exempt=st.lists(NAMES, max_size=3).map(tuple),
)
STATUSES = st.builds(
    PlanStatus,
    observed_generation=COUNTS,
    phase=st.sampled_from(PlanPhase),
    message=TEXTS,
    evicted=COUNTS,
    steps=st.lists(
        st.builds(
            StepStatus,
            phase=st.sampled_from(StepPhase),
            message=TEXTS,
            pod=TEXTS,
            time=TIMES,
            evicted_pod=TEXTS,
            controllers=st.lists(NAMES, max_size=2).map(tuple),
            earlier_pods=st.lists(NAMES, max_size=2).map(tuple),
        ),
        max_size=3,
    ).map(tuple),
    conditions=st.lists(
        st.builds(
            PlanCondition,
            type=st.sampled_from(["Complete", "Failed"]),
            status=st.sampled_from(["True", "False", "Unknown"]),
            reason=TEXTS,
            message=TEXTS,
            last_transition_time=TIMES,
        ),
        max_size=2,
        unique_by=lambda condition: condition.type,
    ).map(tuple),
)
PLAN_OBJECTS = st.builds(
    Plan, metadata=st.builds(PlanMetadata, name=NAMES, uid=NAMES, generation=COUNTS), spec=SPECS, status=STATUSES
)


def test_the_definition_is_that_of_the_resource():
    spec = DEFINITION["spec"]

    assert DEFINITION["metadata"]["name"] == PLANS.full_name
    assert (spec["group"], spec["names"]["plural"], spec["names"]["kind"], VERSION["name"], spec["scope"]) == (
        *(PLANS.group, PLANS.plural, PLANS.kind, PLANS.version),
        "Cluster",
    )
    assert VERSION["subresources"] == {"status": {}}  # which makes the generation rise with the spec only


def check(type_: Any, schema: dict[str, Any]) -> None:
    """Compare the fields of a struct, and of all structs inside it, with the properties of a schema."""
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(type_)}
    assert fields.keys() == schema["properties"].keys()
    for name, inner in fields.items():
        items = getattr(inner, "__args__", (inner,))[0]
        described = schema["properties"][name]
        if isinstance(items, type) and issubclass(items, msgspec.Struct):
            check(items, described.get("items", described))


@pytest.mark.parametrize("part", ["spec", "status"])
def test_the_definition_has_every_field_and_no_other(part):
    check({"spec": PlanSpec, "status": PlanStatus}[part], SCHEMA["properties"][part])


def test_the_definition_has_the_same_values_and_limits():
    spec, status = SCHEMA["properties"]["spec"]["properties"], SCHEMA["properties"]["status"]["properties"]

    assert spec["steps"]["items"]["properties"]["action"]["enum"] == [*StepAction]
    assert status["phase"]["enum"] == [*PlanPhase]
    assert status["steps"]["items"]["properties"]["phase"]["enum"] == [*StepPhase]
    assert spec["steps"]["maxItems"] == status["steps"]["maxItems"] == MAX_STEPS
    assert spec["deadlineSeconds"]["default"] == DEADLINE_SECONDS


def test_every_field_of_the_spec_but_paused_is_compared_with_its_old_value():
    (rule,) = SCHEMA["properties"]["spec"]["x-kubernetes-validations"]
    fields = {field.encode_name for field in msgspec.structs.fields(PlanSpec)} - {"paused"}
    compared = {part.split(" == ")[0].removeprefix("self.") for part in rule["rule"].split(" && ")}

    assert compared == fields
    for name in fields:
        assert f"self.{name} == oldSelf.{name}" in rule["rule"]
        described = SCHEMA["properties"]["spec"]
        # A rule fails with an error where a field is absent.
        assert name in described["required"] or "default" in described["properties"][name]


@given(PLAN_OBJECTS)
def test_a_plan_reads_back_and_the_definition_accepts_it(plan):
    assert decode(encode(plan), Plan) == plan
    jsonschema_rs.validate(SCHEMA, to_builtins(plan))


@pytest.mark.parametrize(
    "change",
    [
        {"steps": []},
        {"steps": [{"action": "Delete", "pod": {"namespace": "a", "name": "b", "uid": "c"}, "node": "n"}]},
        {"steps": [{"action": "Evict", "pod": {"namespace": "a", "name": "b"}, "node": "n"}]},
        {"deadlineSeconds": 0},
        {"deadlineSeconds": 100_000},
    ],
    ids=["no steps", "an unknown action", "a pod without a uid", "no time", "too much time"],
)
def test_the_definition_refuses_mistakes(change):
    step = {"action": "Evict", "pod": {"namespace": "a", "name": "b", "uid": "c"}, "node": "n"}
    jsonschema_rs.validate(SCHEMA, {"spec": {"steps": [step]}})
    with pytest.raises(jsonschema_rs.ValidationError):
        jsonschema_rs.validate(SCHEMA, {"spec": {"steps": [step], **change}})


def test_what_a_newer_version_writes_is_an_error_and_not_another_plan():
    step = {"action": "Move", "pod": {"namespace": "a", "name": "b", "uid": "c"}, "node": "n"}
    with pytest.raises(ParseError, match=r"spec\.steps\[0\]\.action"):
        decode(encode({"spec": {"steps": [step]}}), Plan)
