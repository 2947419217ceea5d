"""The CPU manager's state file, beyond the conformance vectors."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align import bits
from alignup.align.errors import StateError
from alignup.align.settings import FeatureGates
from alignup.kubernetes.kubelet_files.checkpoint import fnv1a, struct_checksum_text
from alignup.kubernetes.kubelet_files.cpu_file import FORMAT, CpuState, dump, parse

NO_GATES = FeatureGates()
PODS = FeatureGates({"PodLevelResourceManagers": True})
ALL = FeatureGates({"PodLevelResourceManagers": True, "InPlacePodVerticalScalingExclusiveCPUs": True})
V3, V2 = FORMAT.older

sets = st.integers(1, (1 << 70) - 1)
owned = st.dictionaries(st.text(), st.dictionaries(st.text(), sets, min_size=1, max_size=3), max_size=3)
states = st.builds(
    CpuState,
    policy=st.sampled_from(["static", "none", "odd <&> policy"]),
    default=st.just(0) | sets,
    entries=owned,
    pod_entries=st.dictionaries(st.text(), sets, max_size=3),
    baselines=owned,
)


def read(text: bytes, gates: FeatureGates = NO_GATES, policy: str | None = "static") -> CpuState:
    return parse(text, configured_policy=policy, gates=gates, path="/k/cpu_manager_state")


def cause(text: bytes, gates: FeatureGates = NO_GATES) -> str:
    """Return the cause in the kubelet's error about a file."""
    with pytest.raises(StateError) as error:
        read(text, gates)
    message = str(error.value)
    assert message.startswith("could not restore state from checkpoint: ")
    assert message.endswith(
        ', please drain this node and delete the CPU manager checkpoint file "/k/cpu_manager_state" '
        "before restarting Kubelet"
    )
    return message.removeprefix("could not restore state from checkpoint: ").partition(", please drain")[0]


@given(states)
def test_a_written_file_reads_back(state):
    """Missing baselines default to the CPUs of the containers."""
    again = read(dump(state, gates=ALL), ALL, policy=None)

    baselines = state.baselines or state.entries
    assert (again.policy, again.default, again.version) == (state.policy, state.default, 4)
    assert (again.entries, again.pod_entries, again.baselines) == (state.entries, state.pod_entries, baselines)


@given(states)
def test_without_gates_only_containers_are_written(state):
    again = read(dump(state, gates=NO_GATES), ALL, policy=None)

    assert (again.entries, again.pod_entries, again.baselines) == (state.entries, {}, state.entries)


@given(states, st.data())
def test_the_checksum_detects_every_changed_byte(state, data):
    file = json.loads(dump(state, gates=ALL))
    at = data.draw(st.integers(0, len(file["data"]) - 1))
    other = data.draw(st.characters(exclude_characters=file["data"][at], exclude_categories=["Cs"]))
    file["data"] = file["data"][:at] + other + file["data"][at + 1 :]

    assert cause(json.dumps(file).encode(), ALL).startswith("could not load v4 checkpoint: ")


def older(number: int, name: str | None = None, **contents: object) -> bytes:
    """Return a file of an older version, with the checksum of a Go type name."""
    version = {3: V3, 2: V2}[number]
    values = version.struct.zero | {"entries": {}, "podEntries": {}} | contents
    text = struct_checksum_text(FORMAT, version.struct, values, name=name)
    return json.dumps({**contents, "checksum": fnv1a(text)}).encode()


@pytest.mark.parametrize(
    ("number", "name", "gates", "read_as"),
    [
        pytest.param(2, None, NO_GATES, 2, id="version 2"),
        pytest.param(2, None, PODS, 2, id="version 2 with pod-level managers"),
        pytest.param(2, V2.struct.name, NO_GATES, 2, id="version 2 by its own name"),
        pytest.param(2, V2.struct.name, PODS, None, id="version 2 by its own name with pod-level managers"),
        pytest.param(3, None, NO_GATES, 3, id="version 3"),
        pytest.param(3, V3.struct.name, PODS, 3, id="version 3 by its own name"),
    ],
)
def test_files_of_older_kubelets_are_read_with_their_version(number, name, gates, read_as):
    text = older(number, name, policyName="static", defaultCpuSet="0-3", entries={"p": {"c": "4"}})

    if read_as is None:
        assert cause(text, gates) == "checkpoint is corrupted"
    else:
        state = read(text, gates)
        assert (state.version, state.default, state.entries) == (read_as, 0b1111, {"p": {"c": 1 << 4}})


def test_pod_entries_are_ignored_without_their_gate():
    text = dump(CpuState(policy="static", default=1, pod_entries={"p": 0b110}), gates=PODS)

    assert read(text, PODS).pod_entries == {"p": 0b110}
    assert read(text, NO_GATES).pod_entries == {}


@pytest.mark.parametrize(
    ("file", "error"),
    [
        pytest.param(
            {"policyName": 1},
            "json: cannot unmarshal number into Go struct field CPUManagerCheckpointV2.policyName of type string",
            id="without the newest version, the error is of the oldest",
        ),
        pytest.param(
            {"data": 5, "dataChecksum": 1},
            "could not load v4 checkpoint: failed to deserialize cpu manager checkpoint: "
            "json: cannot unmarshal number into Go struct field CPUManagerCheckpoint.data of type string",
            id="with a part of the newest version, the error is of the newest",
        ),
        pytest.param(
            {"data": '{"podEntries":{"p":{"cpuSet":"x"}}}'},
            "could not load v4 checkpoint: failed to deserialize cpu manager checkpoint data: "
            'failed to parse cpuset: strconv.Atoi: parsing "x": invalid syntax',
            id="invalid CPUs of a pod",
        ),
        pytest.param(
            {"policyName": "static", "defaultCpuSet": "0", "entries": None, "checksum": 1},
            "checkpoint is corrupted",
            id="null instead of a map",
        ),
        pytest.param(
            {"policyName": "static", "defaultCpuSet": "99999999"},
            "could not parse default CPU set \"99999999\": '99999999' contains 99999999, but numbers must be below "
            f"{bits.MAX_MEMBER}",
            id="more CPUs than any machine has",
        ),
    ],
)
def test_invalid_files_raise_the_kubelets_message(file, error):
    assert cause(json.dumps(file).encode()) == error


@pytest.mark.parametrize("text", [pytest.param(b"{}", id="an empty object"), pytest.param(b"null", id="null")])
def test_a_file_without_contents_has_no_policy(text):
    assert cause(text) == 'configured policy "static" differs from state checkpoint policy ""'
    assert read(text, policy=None) == CpuState(policy="")


@given(st.binary(max_size=200))
def test_any_other_bytes_are_a_state_error(text):
    with pytest.raises(StateError):
        read(text)
