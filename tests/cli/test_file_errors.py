"""An error in a file that people write begins with ``FILE:LINE: FIELD:``, whatever the file and the command."""

import os

import pytest

from tests.cli.commands import in_process

MACHINE = ["--machine", "numa:2 core:4 pu:1"]
FILES = {
    "pod.yaml": """apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
  - name: app
    resources: {limits: {cpu: 1, memory: 1Gi}}
""",
    "pod.json": """{"apiVersion": "v1", "kind": "Pod",
 "metadata": {"name": "web"},
 "spec": {"containers": [
  {"name": "app",
   "resources": {"limits": {"cpu": 1}}}]}}
""",
    "machine.yaml": """alignup: machine/v1
cpus:
  - {socket: 0, node: 0, cores: "0 1"}
  - {socket: 0, node: 1, cores: "2 3"}
nodes:
  - {id: 0, memory: 64Gi}
  - id: 1
    memory: 64Gi
    hugepages: {2Mi: 1}
devices:
  - {resource: example.com/gpu, id: gpu-0, nodes: 0}
pci:
  - {address: "0000:00:01.0", vendor: 0x10de}
distances: [[10, 21], [21, 10]]
""",
    "machine.json": """{"alignup": "machine/v1",
 "cpus": [
  {"socket": 0,
   "cores": "0"}]}
""",
    "info.json": """{"num_cores": 1,
 "topology": [
  {"node_id": 0}]}
""",
    "topology.xml": """<?xml version="1.0"?>
<topology>
</topology>
""",
    "kubelet.yaml": """apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cpuManagerPolicy: none
topologyManagerPolicy: none
systemReserved:
  cpu: 100m
evictionHard:
  memory.available: 1Mi
""",
    "configz.json": """{"kubeletconfig": {
  "topologyManagerPolicy": "none"}}
""",
    "configmap.yaml": """apiVersion: v1
kind: ConfigMap
metadata: {name: kubelet-config}
data:
  kubelet: |
    apiVersion: kubelet.config.k8s.io/v1beta1
    kind: KubeletConfiguration
    topologyManagerPolicy: none
""",
    "drop/10.conf": """apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
topologyManagerPolicy: none
""",
    "cluster.yaml": """apiVersion: alignup.dev/v1
kind: Cluster
groups:
- name: a
  count: 2
  machine: numa:2 core:4 pu:1
  devices: [example.com/gpu=1@0]
  config: kubelet.yaml
  set: [maxPods=10]
""",
    "sweep.yaml": """apiVersion: alignup.dev/v1
kind: Sweep
machines:
- {name: a, machine: "numa:2 core:4 pu:1"}
configurations:
- name: b
  config: kubelet.yaml
seeds: 1
workload:
  generate: mixed
  pods: 3
""",
    "trace.jsonl": """{"apiVersion": "alignup.dev/v1", "kind": "Trace"}
{"at": 0, "arrive": "a", "requests": {"cpu": 1}}
""",
    "trace.yaml": """apiVersion: alignup.dev/v1
kind: Trace
events:
- {at: 0, arrive: a, requests: {cpu: 1}}
- at: 1
  arrive: b
  requests: {cpu: 1}
""",
    "nodes.csv": """sn,cpu_milli,memory_mib,gpu,model
a,64000,262144,2,x
""",
    "pods.csv": """name,cpu_milli,memory_mib,num_gpu,gpu_milli,qos,creation_time,deletion_time,scheduled_time
a,1000,100,0,0,LS,0,10,1
""",
    "kubeconfig": """apiVersion: v1
kind: Config
clusters:
- name: a
  cluster: {server: "http://127.0.0.1:1"}
users:
- name: b
  user:
    token: x
contexts:
- {name: c, context: {cluster: a, user: b}}
current-context: c
""",
}

MANIFEST = ["why", *MACHINE, "-f"]
DESCRIPTION = ["machine", "show"]
CONFIG = ["why", "-f", "pod.yaml", *MACHINE, "--config"]
CLUSTER = ["simulate", "--generate", "mixed", "--count", "2", "--cluster"]
SWEEP = ["sweep", "--engine", "serial", "--results", "results.csv"]
TRACE = ["simulate", *MACHINE, "--trace"]

CASES = [
    (MANIFEST, "pod.yaml", "cpu: 1", "cpu: x", "7: spec.containers[0].resources.limits[cpu]: not a quantity; write"),
    (MANIFEST, "pod.yaml", "name: app", "name: A_", "6: spec.containers[0].name: Invalid value"),
    (MANIFEST, "pod.yaml", "spec:", "spec: [", "6: did not find expected node content"),
    (
        MANIFEST,
        "pod.json",
        '"cpu": 1',
        '"cpu": "x"',
        "5: spec.containers[0].resources.limits[cpu]: not a quantity; write",
    ),
    (
        ["admit", "-f"],
        "pod.yaml",
        "cpu: 1",
        "cpu: x",
        "7: spec.containers[0].resources.limits[cpu]: not a quantity; write",
    ),
    (["why", "-f", "pod.yaml", "--machine"], "machine.yaml", "id: 1", "id: x", "7: nodes[1].id: expected `int`"),
    (DESCRIPTION, "machine.yaml", "machine/v1", "machine/v9", "1: alignup: the format 'machine/v9' is unknown"),
    (DESCRIPTION, "machine.yaml", '"2 3"', '"2 x"', "4: cpus[1].cores: 'x' is not a list such as 0-3,8"),
    (
        DESCRIPTION,
        "machine.yaml",
        '"2 3"',
        '"2 3", numbers: "1"',
        "4: cpus[1].numbers: expected as many as cores, 2, not 1",
    ),
    (DESCRIPTION, "machine.yaml", "    memory: 64Gi", "    memory: x", "8: nodes[1].memory: 'x' is not a quantity"),
    (DESCRIPTION, "machine.yaml", "{2Mi: 1}", "{2Mx: 1}", "9: nodes[1].hugepages[2Mx]: '2Mx' is not a quantity"),
    (DESCRIPTION, "machine.yaml", "nodes: 0", "nodes: x", "11: devices[0].nodes: 'x' is not a list"),
    (DESCRIPTION, "machine.yaml", "0x10de", "x", "13: pci[0].vendor: 'x' is not a hexadecimal code"),
    (DESCRIPTION, "machine.yaml", "[[10, 21], ", "[", "14: distances: expected a row of 2 for each NUMA node"),
    (DESCRIPTION, "machine.yaml", "nodes:\n", "nodes: [\n", "6: not valid YAML: did not find expected node content"),
    (DESCRIPTION, "machine.json", '"socket": 0', '"socket": "x"', "3: cpus[0].socket: expected `int`"),
    (DESCRIPTION, "machine.json", "}]", "}", "4: not valid JSON: "),
    (DESCRIPTION, "info.json", '"node_id": 0', '"node_id": "x"', "3: topology[0].node_id: expected `int`"),
    (DESCRIPTION, "topology.xml", "</topology>", "</x>", "3: not valid XML: mismatched tag"),
    (CONFIG, "kubelet.yaml", "cpuManagerPolicy: none", "cpuManagerPolicy: x", "3: cpuManagerPolicy: unknown policy"),
    (CONFIG, "kubelet.yaml", "topologyManagerPolicy: none", "topologyManagerPolicy: x", "4: topologyManagerPolicy: "),
    (CONFIG, "kubelet.yaml", "cpu: 100m", "cpu: x", "6: systemReserved[cpu]: "),
    (CONFIG, "kubelet.yaml", "1Mi", "x", "8: evictionHard[memory.available]: "),
    (CONFIG, "kubelet.yaml", "systemReserved:", "systemReserved: [", "7: did not find expected"),
    (CONFIG, "configz.json", '"none"', '"x"', "2: kubeletconfig.topologyManagerPolicy: "),
    (CONFIG, "configmap.yaml", "Policy: none", "Policy: x", "8: topologyManagerPolicy: "),
    (CONFIG[:-1], "drop/10.conf", "Policy: none", "Policy: x", "3: topologyManagerPolicy: "),
    (["agent", *MACHINE, "--config"], "kubelet.yaml", "cpu: 100m", "cpu: x", "6: systemReserved[cpu]: "),
    (CLUSTER, "cluster.yaml", "kind: Cluster", "kind: x", "2: kind: must be Cluster"),
    (CLUSTER, "cluster.yaml", "count: 2", "count: x", "5: groups[0].count: must be a 64-bit integer"),
    (CLUSTER, "cluster.yaml", "count: 2", "count: 0", "5: groups[0].count: Invalid value: 0"),
    (CLUSTER, "cluster.yaml", "count: 2", "size: 2", "5: groups[0].size: unknown field; expected one of name, count"),
    (CLUSTER, "cluster.yaml", "numa:2", "x:2", "6: groups[0].machine: "),
    (CLUSTER, "cluster.yaml", "numa:2 core:4 pu:1", "none.yaml", "6: groups[0].machine: none.yaml does not exist"),
    (CLUSTER, "cluster.yaml", "gpu=1@0", "gpu=x", "7: groups[0].devices: "),
    (CLUSTER, "cluster.yaml", "kubelet.yaml", "missing.yaml", "8: groups[0].config: missing.yaml: No such file"),
    (CLUSTER, "cluster.yaml", "maxPods=10", "maxPods", "9: groups[0].set: maxPods: no value"),
    (SWEEP, "sweep.yaml", "kind: Sweep", "kind: Trace", "2: kind: must be Sweep"),
    (SWEEP, "sweep.yaml", "seeds: 1", "seeds: x", "8: seeds: must be a 64-bit integer"),
    (SWEEP, "sweep.yaml", "generate: mixed", "generate: x", "10: workload.generate: Unsupported value"),
    (SWEEP, "sweep.yaml", "pods: 3", "pods: x", "11: workload.pods: must be a 64-bit integer"),
    (SWEEP, "sweep.yaml", "config: kubelet", "config: missing", "7: configurations[0].config: missing.yaml: No such"),
    (SWEEP, "sweep.yaml", "numa:2", "x:2", "4: machines[0].machine: "),
    (TRACE, "trace.jsonl", '"at": 0', '"at": "x"', '2: at: "x" is not a time'),
    (TRACE, "trace.jsonl", '"cpu": 1', '"cpu": "x"', "2: requests[cpu]: not a quantity; write"),
    (TRACE, "trace.yaml", "at: 1", "at: x", '5: events[1].at: "x" is not a time'),
    (TRACE, "trace.yaml", "arrive: b", "arrive: 7", "6: events[1].arrive: must be a string"),
    (CLUSTER, "nodes.csv", "64000", "x", "2: cpu_milli: x is not a number"),
    (["simulate", "--cluster", "nodes.csv", "--trace"], "pods.csv", "a,1000,100", "a,1000,x", "2: memory_mib: x is"),
    (["cluster", "nodes", "--kubeconfig"], "kubeconfig", "token: x", "token: [x]", "9: users[0].user.token: expected"),
    (["cluster", "nodes", "--kubeconfig"], "kubeconfig", "users:", "users: [", "7: did not find expected node"),
]


@pytest.fixture
def place(tmp_path):
    (tmp_path / "drop").mkdir()
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize("case", CASES, ids=[f"{case[1]}-{case[3]}" for case in CASES])
def test_the_first_line_names_file_line_and_field(case, place):
    words, file, good, bad, message = case
    assert FILES[file].count(good) == 1
    (place / file).write_text(FILES[file].replace(good, bad))
    named = ["--config-dir", "drop"] if file.startswith("drop/") else [file]

    run = in_process(*words, *named, cwd=place, env={"ALIGNUP_RUN_DIR": str(place), "HOME": str(place)})

    assert run.stderr.startswith(f"alignup: {file}:{message}"), run.stderr
    assert run.returncode == 2


@pytest.mark.parametrize("option", [[], ["--config", "kubelet.yaml"]])
def test_a_bad_override_is_named_instead_of_the_file(option, place):
    run = in_process("why", "-f", "pod.yaml", *MACHINE, *option, "--set", "cpuManagerPolicy=x", cwd=place)

    assert run.stderr.startswith("alignup: --set cpuManagerPolicy=x: cpuManagerPolicy: unknown policy"), run.stderr


@pytest.mark.parametrize("name", sorted(FILES.keys() - {"topology.xml", "info.json", "kubeconfig"}))
def test_the_files_are_valid_without_the_bad_values(name, place):
    words = next(case[0] for case in CASES if case[1] == name)
    named = ["--config-dir", "drop"] if name.startswith("drop/") else [name]

    assert in_process(*words, *named, cwd=place).returncode == 0


def test_a_configuration_from_a_pipe_is_named(tmp_path):
    read, write = os.pipe()
    with os.fdopen(read, "rb"):
        with os.fdopen(write, "wb") as file:
            file.write(
                FILES["kubelet.yaml"].replace("topologyManagerPolicy: none", "topologyManagerPolicy: 7").encode()
            )
        (tmp_path / "pod.yaml").write_text(FILES["pod.yaml"])

        result = in_process("why", "-f", str(tmp_path / "pod.yaml"), *MACHINE, "--config", f"/dev/fd/{read}")

    assert result.returncode == 2
    assert f"/dev/fd/{read}: " in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["why", "-f", "PIPE", *MACHINE],
        ["why", "-f", "pod.yaml", *MACHINE, "--config", "PIPE"],
        ["why", "-f", "pod.yaml", "--machine", "PIPE"],
        ["simulate", *MACHINE, "--trace", "PIPE"],
        ["cluster", "nodes", "--kubeconfig", "PIPE"],
        ["ps", "--agent", "http://127.0.0.1:1", "--token-file", "PIPE"],
    ],
    ids=lambda arguments: " ".join(arguments[:1]),
)
def test_a_named_pipe_is_no_input_file(tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("PIPE")
    (tmp_path / "pod.yaml").write_text(FILES["pod.yaml"])

    result = in_process(*arguments)

    assert result.returncode in {1, 2}
    assert "PIPE" in result.stderr
    assert "named pipe" in result.stderr or "neither a file nor a directory" in result.stderr
