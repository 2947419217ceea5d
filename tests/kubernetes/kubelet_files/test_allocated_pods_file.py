"""``allocated_pods_state``: read as the kubelet writes it, and rejected where it is damaged."""

import json

import pytest

from alignup.align.errors import StateError
from alignup.align.quantity import Quantity
from alignup.align.workload import Resources
from alignup.kubernetes.kubelet_files import allocated_pods_file
from alignup.kubernetes.kubelet_files.allocated_pods_file import AllocatedPod
from alignup.kubernetes.kubelet_files.checkpoint import fnv1a

DATA = (
    '{"entries":{"u1":{"ContainerResources":{"app":{"limits":{"cpu":"2","memory":"1Gi"},'
    '"requests":{"cpu":"2","memory":"1Gi"}},"log":{}},"PodLevelResources":null,"EmptyDirVolumeLimits":null}}}'
)
AMOUNTS = {"cpu": Quantity.parse("2"), "memory": Quantity.parse("1Gi")}


def file(data, checksum=None):
    return json.dumps({"data": data, "checksum": fnv1a(f"(string){data}") if checksum is None else checksum}).encode()


def test_containers_have_what_the_kubelet_admitted():
    found = allocated_pods_file.parse(file(DATA), path="x")

    assert found == {"u1": AllocatedPod({"app": Resources(AMOUNTS, AMOUNTS), "log": Resources()})}


def test_what_is_written_reads_back():
    pods = {"u1": AllocatedPod({"app": Resources(AMOUNTS, AMOUNTS)}, Resources(AMOUNTS, {}))}

    assert allocated_pods_file.parse(allocated_pods_file.dump(pods), path="x") == pods


@pytest.mark.parametrize("data", ["{}", '{"entries":null}', '{"entries":{"u":{"ContainerResources":null}}}'])
def test_absent_parts_are_empty(data):
    assert all(pod == AllocatedPod() for pod in allocated_pods_file.parse(file(data), path="x").values())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (file(DATA)[:-10], "unexpected end of JSON input"),
        (b"", "unexpected end of JSON input"),
        (file(DATA, checksum=1), "checkpoint is corrupted"),
        (file("[]"), "json: cannot unmarshal array into Go value of type state.PodResourceCheckpointInfo"),
        (file(DATA.replace("1Gi", "1Gb")), "quantities must match"),
    ],
    ids=["cut", "empty", "checksum", "type", "quantity"],
)
def test_a_damaged_file_is_an_error(text, why):
    with pytest.raises(StateError, match='could not read the checkpoint file of allocated resources "x": ') as raised:
        allocated_pods_file.parse(text, path="x")

    assert why in str(raised.value)
