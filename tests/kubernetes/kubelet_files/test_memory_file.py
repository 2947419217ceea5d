"""The memory manager's state file, beyond the conformance vectors."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align.errors import StateError
from alignup.align.memory.ledger import Block, MemoryTable, NodeMemory
from alignup.align.settings import FeatureGates
from alignup.kubernetes.kubelet_files.checkpoint import fnv1a, struct_checksum_text
from alignup.kubernetes.kubelet_files.memory_file import FORMAT, MemoryState, dump, parse

NO_GATES = FeatureGates()
PODS = FeatureGates({"PodLevelResourceManagers": True})
V2, V1 = FORMAT.older

nodes = st.integers(1, (1 << 20) - 1)
sizes = st.integers(0, (1 << 64) - 1)
types = st.sampled_from(["memory", "hugepages-2Mi", "hugepages-1Gi"])
tables = st.builds(MemoryTable, sizes, sizes, sizes, sizes, sizes)
blocks = st.lists(st.builds(Block, nodes, types, sizes), max_size=3).map(tuple)
states = st.builds(
    MemoryState,
    policy=st.sampled_from(["Static", "None"]),
    machine_state=st.dictionaries(
        st.integers(0, 300), st.builds(NodeMemory, nodes, st.integers(0, 9), st.dictionaries(types, tables)), max_size=3
    ),
    entries=st.dictionaries(st.text(), st.dictionaries(st.text(), blocks, min_size=1, max_size=3), max_size=3),
    pod_entries=st.dictionaries(st.text(), blocks, max_size=2),
)


def read(text: bytes, gates: FeatureGates = NO_GATES, policy: str | None = "Static") -> MemoryState:
    return parse(text, configured_policy=policy, gates=gates, path="/k/memory_manager_state")


@given(states)
def test_a_written_file_reads_back(state):
    again = read(dump(state, gates=PODS), PODS, policy=None)

    assert again == state
    assert again.version == 3
    assert list(again.machine_state) == sorted(state.machine_state)


@given(states)
def test_pod_entries_are_ignored_without_their_gate(state):
    assert read(dump(state, gates=NO_GATES), PODS, policy=None).pod_entries == {}
    assert read(dump(state, gates=PODS), NO_GATES, policy=None).pod_entries == {}


@pytest.mark.parametrize(
    ("version", "checksum", "read_as"),
    [
        pytest.param(V2, None, 2, id="version 2"),
        pytest.param(V1, None, 1, id="version 1"),
        pytest.param(V1, 0, 1, id="version 1 without a checksum"),
    ],
)
def test_files_of_older_kubelets_are_read_with_their_version(version, checksum, read_as):
    contents: dict[str, Any] = {"policyName": "Static", "machineState": {}, "entries": {}, "podEntries": {}}
    right = fnv1a(struct_checksum_text(FORMAT, version.struct, contents))
    file: dict[str, Any] = {
        "policyName": "Static",
        "machineState": {},
        "checksum": right if checksum is None else checksum,
    }

    assert read(json.dumps(file).encode()).version == read_as


@pytest.mark.parametrize(
    ("file", "error"),
    [
        pytest.param(
            {"machineState": {"0": {"memoryMap": {"memory": {"total": "x"}}}}},
            "json: cannot unmarshal string into Go struct field MemoryTable.machineState.memoryMap.total "
            "of type uint64",
            id="a string instead of a number",
        ),
        pytest.param(
            [], "json: cannot unmarshal array into Go value of type state.MemoryManagerCheckpointV1", id="not an object"
        ),
        pytest.param(
            {"policyName": "Static", "machineState": {"0": None}},
            "NUMA node 0, or one of its memory types, is null",
            id="a null node, with which the kubelet crashes",
        ),
        pytest.param(
            {"policyName": "Static", "machineState": {"0": {"cells": [-1]}}}, "-1 is not a NUMA node", id="node -1"
        ),
        pytest.param(
            {"policyName": "None"},
            '[memorymanager] configured policy "Static" differs from state checkpoint policy "None"',
            id="another policy",
        ),
    ],
)
def test_invalid_files_are_rejected(file, error):
    with pytest.raises(StateError) as caught:
        read(json.dumps(file).encode())

    assert str(caught.value) == (
        f"could not restore state from checkpoint: {error}, please drain this node and delete the memory manager "
        'checkpoint file "/k/memory_manager_state" before restarting Kubelet'
    )


@given(st.binary(max_size=200))
def test_any_other_bytes_are_a_state_error(text):
    with pytest.raises(StateError):
        read(text)
