"""The public trace openb: nodes and pods as CSV."""

from pathlib import Path

import pytest

from alignup.align.errors import TraceError
from alignup.align.workload import QoS
from alignup.simulate.openb import GPU, MODEL_LABEL, build_machine, read_nodes, read_pods
from tests.align.hosts import make_host

SAMPLE = Path(__file__).parents[2] / "examples" / "fleet"
SETTINGS = make_host().settings
NODES = "sn,cpu_milli,memory_mib,gpu,model\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"


def write(tmp_path, text):
    (tmp_path / "file.csv").write_text(text)
    return tmp_path / "file.csv"


def test_the_sample_is_grouped_by_shape():
    groups = read_nodes(SAMPLE / "openb_nodes.csv", lambda _: SETTINGS)

    assert [(group.name, group.count) for group in groups][:2] == [("G2-96c-384g-8", 4), ("P100-64c-256g-2", 3)]
    assert groups[0].host_names()[0] == "sample-node-00"
    assert groups[0].labels == {MODEL_LABEL: "G2"}
    assert len(read_pods(SAMPLE / "openb_pods.csv")) == 120


@pytest.mark.parametrize(
    ("cpus", "gpus", "nodes", "near"),
    [
        pytest.param(96, 8, 2, [0, 0, 0, 0, 1, 1, 1, 1], id="two sockets share the GPUs"),
        pytest.param(16, 3, 2, [0, 0, 1], id="the first half is the larger one"),
        pytest.param(8, 2, 1, [0, 0], id="a small node has one socket"),
    ],
)
def test_numa_nodes_are_made_by_rule(cpus, gpus, nodes, near):
    machine = build_machine(cpus, 4096, gpus)

    assert (len(machine.cpus), len(machine.nodes)) == (cpus, nodes)
    assert [device.nodes for device in machine.devices] == [1 << node for node in near]
    assert sum(node.memory or 0 for node in machine.nodes) == 4096 << 20


def test_pods_are_made_by_rule(tmp_path):
    rows = "a,3152,1024,1,460,V100M32|V100M16,LS,Running,10,50,20\nb,3152,1024,0,0,,BE,Pending,5,5,\n"
    late, early = reversed(read_pods(write(tmp_path, PODS + rows)))

    assert (late.time, late.duration, late.selector) == (10.0, 30.0, {MODEL_LABEL: ("V100M16", "V100M32")})
    assert late.pod.qos is QoS.GUARANTEED
    requests = late.pod.containers[0].resources.requests
    assert (requests["cpu"].milli(), requests[GPU].value()) == (4000, 1)
    assert (early.pod.qos, early.duration) == (QoS.BURSTABLE, 1.0)
    assert early.pod.containers[0].resources.requests["cpu"].milli() == 3152


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        pytest.param(read_pods, NODES, r"\.csv:1: not a file of openb: column name is missing", id="another file"),
        pytest.param(read_pods, f"{PODS}a,x,1,0,0,,LS,,0,1,0\n", r"\.csv:2: cpu_milli: x is not a number", id="text"),
        pytest.param(read_pods, f"{PODS}a,1,1,0,0,,LS,,0,1,0\n" * 1 + "a,1,1,0,0,,LS,,0,1,0\n", "name", id="repeated"),
        pytest.param(
            lambda path: read_nodes(path, lambda _: SETTINGS), f"{NODES}n,0,1,0,\n", "must have CPUs", id="no CPUs"
        ),
    ],
)
def test_errors_name_the_place(tmp_path, read, text, message):
    with pytest.raises(TraceError, match=message):
        read(write(tmp_path, text))


def test_without_the_column_of_classes_all_pods_are_guaranteed(tmp_path):
    file = tmp_path / "pods.csv"
    notes: list[str] = []
    header = PODS.replace("qos,", "")
    file.write_text(f"{header}a,4000,1024,0,0,,Running,1,5,2\nb,500,1024,0,0,,Running,2,5,2\n")

    pods = read_pods(file, note=notes.append)

    assert [submission.pod.qos for submission in pods] == [QoS.GUARANTEED, QoS.GUARANTEED]
    assert notes == [f"{file}: there is no column qos: all pods count as Guaranteed (LS)"]
