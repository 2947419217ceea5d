"""SteeringInstructions, their definition, and the ids of markers."""

import yaml
from hypothesis import given
from hypothesis import strategies as st

from alignup.documents.codec import decode, encode, to_builtins
from alignup.documents.steering import (
    SteeredPod,
    SteeringInstruction,
    SteeringMetadata,
    SteeringPhase,
    SteeringSpec,
    SteeringStatus,
    marker_id,
    marker_number,
)
from alignup.kubernetes.api.steering_instructions import STEERING_INSTRUCTIONS
from tests.console_runner import ROOT

DEFINITION = yaml.safe_load((ROOT / "deploy/kubernetes/crds/steeringinstructions.yaml").read_text("utf-8"))
FULL = SteeringInstruction(
    metadata=SteeringMetadata(name="host-a", generation=3),
    spec=SteeringSpec(pod=SteeredPod(namespace="a", name="b", uid="c"), numa_nodes="1", containers=2),
    status=SteeringStatus(observed_generation=3, phase="Ready", message="m"),
)


def test_the_definition_has_every_field():
    spec = DEFINITION["spec"]
    (version,) = spec["versions"]
    schema = version["schema"]["openAPIV3Schema"]["properties"]

    assert DEFINITION["metadata"]["name"] == STEERING_INSTRUCTIONS.full_name
    assert (spec["group"], spec["names"]["plural"], spec["names"]["kind"], version["name"], spec["scope"]) == (
        *(STEERING_INSTRUCTIONS.group, STEERING_INSTRUCTIONS.plural, STEERING_INSTRUCTIONS.kind),
        *(STEERING_INSTRUCTIONS.version, "Cluster"),
    )
    assert version["subresources"] == {"status": {}}  # which makes the generation rise with the spec only
    document = to_builtins(FULL)
    for part in ("spec", "status"):
        assert schema[part]["properties"].keys() == document[part].keys()
    assert schema["spec"]["properties"]["pod"]["properties"].keys() == document["spec"]["pod"].keys()
    assert schema["status"]["properties"]["phase"]["enum"] == [*SteeringPhase]


def test_it_reads_back():
    assert decode(encode(FULL), SteeringInstruction) == FULL
    assert decode(b'{"metadata":{"name":"n","generation":1}}', SteeringInstruction).spec.pod is None


def test_only_an_answer_to_this_generation_counts():
    assert FULL.phase is SteeringPhase.READY
    assert FULL.replace(metadata=SteeringMetadata(generation=4)).phase is None
    assert FULL.replace(status=SteeringStatus(observed_generation=3, phase="Later")).phase is None


@given(node=st.integers(0, 4095), number=st.integers(0, 99_999))
def test_the_id_of_a_marker_says_its_numa_node_and_number(node, number):
    assert marker_number(node, marker_id(node, number)) == number
    assert marker_number(node + 1, marker_id(node, number)) is None


@given(st.text() | st.from_regex(r"numa-1-\d*", fullmatch=True))
def test_no_other_id_has_a_number(text):
    number = marker_number(1, text)

    assert number is None or marker_id(1, number) == text
