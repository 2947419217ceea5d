"""The kubelet's state files, beyond the conformance vectors, and the directory they are in."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align import bits
from alignup.align.errors import FileError, StateError
from alignup.align.memory.ledger import Block, MemoryTable, NodeMemory
from alignup.align.quantity import Quantity
from alignup.align.settings import FeatureGates
from alignup.align.workload import Resources
from alignup.kubernetes.kubelet_files.allocated_pods import (
    ALLOCATED_PODS_FILE,
    AllocatedPod,
    dump_allocated_pods,
    parse_allocated_pods,
    read_allocated_pods,
)
from alignup.kubernetes.kubelet_files.state_files import (
    CPU_FORMAT,
    MEMORY_FORMAT,
    CpuState,
    DeviceEntry,
    DeviceState,
    KubeletFiles,
    MemoryState,
    dump_cpu_state,
    dump_device_state,
    dump_memory_state,
    fnv1a,
    parse_cpu_state,
    parse_device_state,
    parse_memory_state,
    read_state_files,
    struct_checksum_text,
    write_state_files,
)

NO_GATES = FeatureGates()
PODS = FeatureGates({"PodLevelResourceManagers": True})
ALL = FeatureGates({"PodLevelResourceManagers": True, "InPlacePodVerticalScalingExclusiveCPUs": True})

CPU_V3, CPU_V2 = CPU_FORMAT.older
MEMORY_V2, MEMORY_V1 = MEMORY_FORMAT.older

cpu_sets = st.integers(1, (1 << 70) - 1)
cpu_assignments = st.dictionaries(st.text(), st.dictionaries(st.text(), cpu_sets, min_size=1, max_size=3), max_size=3)
cpu_states = st.builds(
    CpuState,
    policy=st.sampled_from(["static", "none", "odd <&> policy"]),
    default=st.just(0) | cpu_sets,
    entries=cpu_assignments,
    pod_entries=st.dictionaries(st.text(), cpu_sets, max_size=3),
    baselines=cpu_assignments,
)
node_sets = st.integers(1, (1 << 20) - 1)
sizes = st.integers(0, (1 << 64) - 1)
types = st.sampled_from(["memory", "hugepages-2Mi", "hugepages-1Gi"])
tables = st.dictionaries(types, st.builds(MemoryTable, sizes, sizes, sizes, sizes, sizes))
blocks = st.lists(st.builds(Block, node_sets, types, sizes), max_size=3).map(tuple)
memory_states = st.builds(
    MemoryState,
    policy=st.sampled_from(["Static", "None"]),
    machine_state=st.dictionaries(
        st.integers(0, 300), st.builds(NodeMemory, node_sets, st.integers(0, 9), tables), max_size=3
    ),
    entries=st.dictionaries(st.text(), st.dictionaries(st.text(), blocks, min_size=1, max_size=3), max_size=3),
    pod_entries=st.dictionaries(st.text(), blocks, max_size=2),
)
device_ids = st.lists(st.text(), max_size=3).map(tuple)
device_entries = st.builds(
    DeviceEntry,
    uid=st.text(),
    container=st.text(),
    resource=st.text(),
    devices=st.dictionaries(st.integers(-1, 12), device_ids, max_size=3),
    response=st.binary(max_size=20),
)
device_states = st.builds(
    DeviceState,
    entries=st.lists(device_entries, max_size=3).map(tuple),
    registered=st.dictionaries(st.text(), st.none() | device_ids, max_size=3),
)


def read_cpus(text: bytes, gates: FeatureGates = NO_GATES, policy: str | None = "static") -> CpuState:
    return parse_cpu_state(text, configured_policy=policy, gates=gates, path="/k/cpu_manager_state")


def read_memory(text: bytes, gates: FeatureGates = NO_GATES, policy: str | None = "Static") -> MemoryState:
    return parse_memory_state(text, configured_policy=policy, gates=gates, path="/k/memory_manager_state")


def cause(text: bytes, gates: FeatureGates = NO_GATES, *, manager: str = "CPU") -> str:
    """Return the cause in the kubelet's error about a file."""
    with pytest.raises(StateError) as error:
        (read_cpus if manager == "CPU" else read_memory)(text, gates)
    message = str(error.value)
    assert message.startswith("could not restore state from checkpoint: ")
    assert message.endswith(
        f", please drain this node and delete the {manager} manager checkpoint file "
        f'"/k/{manager.lower()}_manager_state" before restarting Kubelet'
    )
    return message.removeprefix("could not restore state from checkpoint: ").partition(", please drain")[0]


@given(cpu_states)
def test_a_written_cpu_file_reads_back(state):
    """Missing baselines default to the CPUs of the containers."""
    again = read_cpus(dump_cpu_state(state, gates=ALL), ALL, policy=None)

    baselines = state.baselines or state.entries
    assert (again.policy, again.default, again.version) == (state.policy, state.default, 4)
    assert (again.entries, again.pod_entries, again.baselines) == (state.entries, state.pod_entries, baselines)


@given(cpu_states)
def test_without_gates_only_containers_are_written(state):
    again = read_cpus(dump_cpu_state(state, gates=NO_GATES), ALL, policy=None)

    assert (again.entries, again.pod_entries, again.baselines) == (state.entries, {}, state.entries)


@given(cpu_states, st.data())
def test_the_checksum_detects_every_changed_byte(state, data):
    file = json.loads(dump_cpu_state(state, gates=ALL))
    at = data.draw(st.integers(0, len(file["data"]) - 1))
    other = data.draw(st.characters(exclude_characters=file["data"][at], exclude_categories=["Cs"]))
    file["data"] = file["data"][:at] + other + file["data"][at + 1 :]

    assert cause(json.dumps(file).encode(), ALL).startswith("could not load v4 checkpoint: ")


@pytest.mark.parametrize(
    ("version", "name", "gates", "read_as"),
    [
        pytest.param(CPU_V2, None, NO_GATES, 2, id="version 2"),
        pytest.param(CPU_V2, None, PODS, 2, id="version 2 with pod-level managers"),
        pytest.param(CPU_V2, CPU_V2.struct.name, NO_GATES, 2, id="version 2 by its own name"),
        pytest.param(CPU_V2, CPU_V2.struct.name, PODS, None, id="version 2 by its own name with pod-level managers"),
        pytest.param(CPU_V3, None, NO_GATES, 3, id="version 3"),
        pytest.param(CPU_V3, CPU_V3.struct.name, PODS, 3, id="version 3 by its own name"),
    ],
)
def test_cpu_files_of_older_kubelets_are_read_with_their_version(version, name, gates, read_as):
    contents = {"policyName": "static", "defaultCpuSet": "0-3", "entries": {"p": {"c": "4"}}}
    values = version.struct.zero | {"podEntries": {}} | contents
    checksum = fnv1a(struct_checksum_text(version.struct, values, name=name or CPU_FORMAT.name))
    text = json.dumps({**contents, "checksum": checksum}).encode()

    if read_as is None:
        assert cause(text, gates) == "checkpoint is corrupted"
    else:
        state = read_cpus(text, gates)
        assert (state.version, state.default, state.entries) == (read_as, 0b1111, {"p": {"c": 1 << 4}})


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
def test_invalid_cpu_files_raise_the_kubelets_message(file, error):
    assert cause(json.dumps(file).encode()) == error


@pytest.mark.parametrize("text", [pytest.param(b"{}", id="an empty object"), pytest.param(b"null", id="null")])
def test_a_file_without_contents_has_no_policy(text):
    assert cause(text) == 'configured policy "static" differs from state checkpoint policy ""'
    assert read_cpus(text, policy=None) == CpuState(policy="")


@given(st.binary(max_size=200))
def test_any_other_bytes_are_a_state_error(text):
    for read in (read_cpus, read_memory):
        with pytest.raises(StateError):
            read(text)


@given(memory_states)
def test_a_written_memory_file_reads_back(state):
    again = read_memory(dump_memory_state(state, gates=PODS), PODS, policy=None)

    assert again == state
    assert again.version == 3
    assert list(again.machine_state) == sorted(state.machine_state)


@given(memory_states)
def test_memory_of_pods_is_ignored_without_its_gate(state):
    assert read_memory(dump_memory_state(state, gates=NO_GATES), PODS, policy=None).pod_entries == {}
    assert read_memory(dump_memory_state(state, gates=PODS), NO_GATES, policy=None).pod_entries == {}


@pytest.mark.parametrize(
    ("version", "checksum", "read_as"),
    [
        pytest.param(MEMORY_V2, None, 2, id="version 2"),
        pytest.param(MEMORY_V1, None, 1, id="version 1"),
        pytest.param(MEMORY_V1, 0, 1, id="version 1 without a checksum"),
    ],
)
def test_memory_files_of_older_kubelets_are_read_with_their_version(version, checksum, read_as):
    contents: dict[str, Any] = {"policyName": "Static", "machineState": {}, "entries": {}, "podEntries": {}}
    right = fnv1a(struct_checksum_text(version.struct, contents, name=MEMORY_FORMAT.name))
    file: dict[str, Any] = {
        "policyName": "Static",
        "machineState": {},
        "checksum": right if checksum is None else checksum,
    }

    assert read_memory(json.dumps(file).encode()).version == read_as


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
    ],
)
def test_invalid_memory_files_raise_the_kubelets_message(file, error):
    assert cause(json.dumps(file).encode(), manager="memory") == error


@given(device_states)
def test_a_written_device_file_reads_back(state):
    assert parse_device_state(dump_device_state(state), path="x") == state


def test_nodes_are_sorted_as_text_in_the_file_and_as_numbers_for_the_checksum():
    entry = DeviceEntry(uid="u", container="c", resource="r", devices={2: ("b",), 10: ("a",), -1: ()})

    text = dump_device_state(DeviceState(entries=(entry,)))

    assert b'"DeviceIDs":{"-1":[],"10":["a"],"2":["b"]}' in text


def test_a_device_on_two_nodes_is_listed_under_both():
    entry = DeviceEntry(uid="u", container="c", resource="r", devices={0: ("a", "b"), 1: ("a",), -1: ("c",)})

    assert entry.nodes == {"a": {0, 1}, "b": {0}, "c": set()}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        pytest.param(lambda text: text[:-1], "unexpected end of JSON input", id="truncated"),
        pytest.param(lambda text: text.replace(b"dev-0", b"dev-1"), "checkpoint is corrupted", id="another device"),
        pytest.param(lambda text: b"{}", "checkpoint is corrupted", id="an empty object"),
        pytest.param(
            lambda text: text.replace(b'"uid"', b"7"),
            "json: cannot unmarshal number into Go struct field PodDevicesEntry.Data.PodDeviceEntries.PodUID "
            "of type string",
            id="a number instead of a uid",
        ),
    ],
)
def test_an_invalid_device_file_is_an_error_that_names_the_consequence(change, why):
    entry = DeviceEntry(uid="uid", container="c", resource="r", devices={0: ("dev-0",)})
    text = change(dump_device_state(DeviceState(entries=(entry,))))

    with pytest.raises(StateError) as caught:
        parse_device_state(text, path="/k/file")

    assert str(caught.value) == (
        f'could not read the device manager checkpoint file "/k/file": {why}; '
        "a kubelet continues without it and forgets which container holds which devices"
    )


def test_members_may_have_any_order():
    state = DeviceState(registered={"r": ("a",)})
    file = json.loads(dump_device_state(state))

    assert parse_device_state(json.dumps(dict(reversed(file.items())), indent=1).encode(), path="x") == state


AMOUNTS = {"cpu": Quantity.parse("2"), "memory": Quantity.parse("1Gi")}
ALLOCATED = (
    '{"entries":{"u1":{"ContainerResources":{"app":{"limits":{"cpu":"2","memory":"1Gi"},'
    '"requests":{"cpu":"2","memory":"1Gi"}},"log":{}},"PodLevelResources":null,"EmptyDirVolumeLimits":null}}}'
)


def allocated_file(data: str, checksum: int | None = None) -> bytes:
    return json.dumps({"data": data, "checksum": fnv1a(f"(string){data}") if checksum is None else checksum}).encode()


def test_containers_have_what_the_kubelet_admitted():
    pods = parse_allocated_pods(allocated_file(ALLOCATED), path="x")

    assert pods == {"u1": AllocatedPod({"app": Resources(AMOUNTS, AMOUNTS), "log": Resources()})}


def test_written_allocated_pods_read_back():
    pods = {"u1": AllocatedPod({"app": Resources(AMOUNTS, AMOUNTS)}, Resources(AMOUNTS, {}))}

    assert parse_allocated_pods(dump_allocated_pods(pods), path="x") == pods


@pytest.mark.parametrize("data", ["{}", '{"entries":null}', '{"entries":{"u":{"ContainerResources":null}}}'])
def test_absent_parts_of_allocated_pods_are_empty(data):
    pods = parse_allocated_pods(allocated_file(data), path="x")

    assert all(pod == AllocatedPod() for pod in pods.values())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (allocated_file(ALLOCATED)[:-10], "unexpected end of JSON input"),
        (b"", "unexpected end of JSON input"),
        (allocated_file(ALLOCATED, checksum=1), "checkpoint is corrupted"),
        (allocated_file("[]"), "json: cannot unmarshal array into Go value of type state.PodResourceCheckpointInfo"),
        (allocated_file(ALLOCATED.replace("1Gi", "1Gb")), "quantities must match"),
    ],
    ids=["cut", "empty", "checksum", "type", "quantity"],
)
def test_a_damaged_file_of_allocated_pods_is_an_error(text, why):
    with pytest.raises(StateError, match='could not read the checkpoint file of allocated resources "x": ') as raised:
        parse_allocated_pods(text, path="x")

    assert why in str(raised.value)


CPU = CpuState(policy="static", default=0b11)
MEMORY = MemoryState(policy="Static")
DEVICES = DeviceState(registered={"example.com/gpu": ("gpu-0",)})
FILES = KubeletFiles(cpu=CPU, memory=MEMORY, devices=DEVICES)


def test_a_written_directory_is_read(tmp_path):
    written = write_state_files(tmp_path, FILES, gates=NO_GATES)

    assert [str(path.relative_to(tmp_path)) for path in written] == [
        "cpu_manager_state",
        "memory_manager_state",
        "device-plugins/kubelet_internal_checkpoint",
    ]
    assert read_state_files(tmp_path, gates=NO_GATES) == FILES


def test_a_missing_file_is_a_gap(tmp_path):
    write_state_files(tmp_path, KubeletFiles(memory=MEMORY), gates=NO_GATES)

    files = read_state_files(tmp_path, gates=NO_GATES)

    assert (files.cpu, files.memory, files.devices, files.problems) == (None, MEMORY, None, ())
    assert files.gaps == (
        f"{tmp_path} has no cpu_manager_state, so the CPUs in use are unknown",
        f"{tmp_path} has no kubelet_internal_checkpoint, so the devices are unknown",
    )


def test_an_invalid_file_is_a_problem_and_the_others_are_read(tmp_path):
    write_state_files(tmp_path, FILES, gates=NO_GATES)
    (tmp_path / "cpu_manager_state").write_bytes(b"{")
    (tmp_path / "device-plugins" / "kubelet_internal_checkpoint").write_bytes(b"{}")

    files = read_state_files(tmp_path, gates=NO_GATES)

    assert (files.cpu, files.memory, files.devices, files.gaps) == (None, MEMORY, None, ())
    assert [problem.field for problem in files.problems] == [
        f"{tmp_path}/cpu_manager_state",
        f"{tmp_path}/device-plugins/kubelet_internal_checkpoint",
    ]
    assert "unexpected end of JSON input, please drain this node" in files.problems[0].message


def test_an_unreadable_file_is_a_problem(tmp_path):
    (tmp_path / "cpu_manager_state").mkdir()

    files = read_state_files(tmp_path, gates=NO_GATES)

    assert [problem.message for problem in files.problems] == [
        f"cannot read {tmp_path}/cpu_manager_state: it is not a regular file"
    ]


def test_the_device_file_may_be_beside_the_others(tmp_path):
    write_state_files(tmp_path, KubeletFiles(devices=DEVICES), gates=NO_GATES)
    (tmp_path / "device-plugins" / "kubelet_internal_checkpoint").rename(tmp_path / "kubelet_internal_checkpoint")

    assert read_state_files(tmp_path, gates=NO_GATES).devices == DEVICES


@pytest.mark.parametrize("folder", ["", "nowhere"], ids=["an empty directory", "no directory"])
def test_a_directory_without_state_files_is_an_error(tmp_path, folder):
    with pytest.raises(FileError):
        read_state_files(tmp_path / folder, gates=NO_GATES)


def test_allocated_pods_are_read_if_the_kubelet_writes_them(tmp_path):
    assert read_allocated_pods(tmp_path) is None
    pods = {"u": AllocatedPod()}
    (tmp_path / ALLOCATED_PODS_FILE).write_bytes(dump_allocated_pods(pods))

    assert read_allocated_pods(tmp_path) == pods
