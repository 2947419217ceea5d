"""``alignup cluster``: questions to the nodes of a cluster, and errors that say what to do."""

import io
import json
import re
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import yaml

from alignup import Policy, Settings, TopologySettings, cli
from alignup.align.claims.resource_claims import NUMA_NODE, DeviceId, Slice, SliceDevice
from alignup.align.workload.names import DEVICE_CLASS_PREFIX
from alignup.cli import terminal
from alignup.cli.cluster_output import print_nodes
from alignup.schedule.cluster_snapshot import NodeSummary
from alignup.testing.api_server import ApiFault, ApiServer, ServedResource
from tests.align.hosts import pod
from tests.cli.commands import in_process, python
from tests.observe.api_objects import SERVED, api_pod, node, running_server
from tests.observe.kubelets import ObservedKubelet
from tests.schedule.claim_objects import claim, claiming, device_class, resource_slice, template

FORBIDDEN = 'nodes is forbidden: User "eve" cannot list resource "nodes" in API group "" at the cluster scope'
MANIFEST = """
apiVersion: {api}
kind: {kind}
metadata: {{name: web}}
spec:
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec:
      {more}
      containers:
      - name: app
        resources: {{limits: {{cpu: "4", memory: 1Gi}}}}
"""


#: One on each NUMA node.
NICS = tuple(SliceDevice(DeviceId("nic.example.com", "b", f"nic-{number}"), {NUMA_NODE: number}) for number in range(2))


def cluster():
    """``a`` is idle, ``b`` has no CPUs left on one NUMA node, ``c`` has no observer, ``d`` is cordoned."""
    server = ApiServer()
    server.serve(SERVED)
    server.serve(ServedResource(kind="Deployment", plural="deployments", group="apps", version="v1", namespaced=True))
    busy = ObservedKubelet()
    busy.slices = (Slice("slice", "nic.example.com", "b", 1, 1, devices=NICS),)
    held = [pod("x", cpu="2", memory="1Gi"), pod("y", cpu="2", memory="1Gi")]
    for held_pod in held:
        busy.run(held_pod)
        busy.claims[held_pod.uid] = {"default/nic": (NICS[0].id,)}
        server.put(api_pod(held_pod, "b"))
    server.put(node("a", labels={"zone": "1"}))
    server.put(node("b"))
    server.put(node("c"))
    server.put(node("d", unschedulable=True))
    for name, kubelet in (("a", ObservedKubelet()), ("b", busy), ("d", ObservedKubelet())):
        problems, observed = (["a gap"], "2026-01-01T00:00:00Z") if name == "b" else ([], "")
        server.put(kubelet.host_state(name, problems=problems, observed_at=observed))
    wide = replace(pod("wide", cpu="4", memory="1Gi"), labels={"size": "wide"})
    server.put(api_pod(wide, "", phase="Pending", schedulingGates=[{"name": "example.com/wait"}]))
    server.put(
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": "wide.1", "namespace": "default"},
            "involvedObject": {"kind": "Pod", "name": "wide", "namespace": "default", "uid": wide.uid},
            "source": {"component": "alignup-gate"},
            "message": "0/4 nodes will admit the pod: 1 kept for ml/trainer-0, which has waited longer.",
            "lastTimestamp": "2026-11-16T00:00:00Z",
        }
    )
    server.put(api_pod(pod("huge", cpu="5", memory="1Gi"), "b", phase="Failed"))
    for document in (device_class(), template(), resource_slice("a", (0, 9)), claim("twice", ["gpu-1"], "a")):
        server.put(document)
    server.put(claim("again", ["gpu-1"], "a"))
    server.put(api_pod(claiming(pod("claiming", cpu="4", memory="1Gi")), "", phase="Pending"))
    server.put(api_pod(claiming(pod("missing", cpu="1"), claim="gone", preference="maybe"), "", phase="Pending"))
    return server


@pytest.fixture(scope="module")
def server():
    with running_server(cluster()) as running:
        yield running


@pytest.fixture
def ask(server, tmp_path):
    """Run ``alignup cluster`` with the server's kubeconfig."""
    config = tmp_path / "config"
    server.write_kubeconfig(config)
    return lambda *arguments, **options: in_process("cluster", *arguments, "--kubeconfig", config, **options)


def groups_of(run):
    (answer,) = json.loads(run.stdout)["answers"]
    return {(group["answer"], group["reason"]): [node["node"] for node in group["nodes"]] for group in answer["groups"]}


def test_a_pending_pod_is_explained_for_every_node(ask):
    run = ask("why", "wide")

    assert run.returncode == 0
    assert run.stdout.splitlines()[0] == "Pod default/wide would be admitted by 1 of 4 nodes"
    for expected in (
        "Admitted: 1 node\n  a\n  NUMA node 1\n",
        "Rejected: 1 node\n  b\n  not enough cpu on one NUMA node\n",
        "What would admit it on b (each change was tried):",
        "evict default/",
        "Unknown: 1 node\n  c\n  no HostState",
        "'alignup observe'",
        "Not considered: 1 node\n  d\n  unschedulable\n  its kubelet would admit the pod: app: CPUs 4-7",
        "example.com/wait",
        "The gate reported: 0/4 nodes will admit the pod: 1 kept for ml/trainer-0",
    ):
        assert expected in run.stdout
    assert re.fullmatch(
        r"note: node b: its observer last reported \d+ days ago; see the log of its pod\nnote: node b: a gap\n",
        run.stderr,
    )
    (answer,) = json.loads(ask("why", "wide", "-o", "json").stdout)["answers"]
    assert [(group["nodes"][0]["node"], group["code"]) for group in answer["groups"]] == [
        ("a", ""),
        ("b", "TopologyAffinityError"),
        ("c", "NotPredicted"),
        ("d", "NotConsidered"),
    ]


def test_claims_are_explained_where_they_can_be_served(ask):
    run = ask("why", "claiming")

    assert run.returncode == 0
    for expected in (
        "device gpu.example.com/a/gpu-1 is allocated to default/again and default/twice",
        "this machine does not have NUMA node 9 of device gpu.example.com/a/gpu-",
        "Admitted: 1 node\n  a\n  NUMA node 1\n",
        "- gpu: claim default/claiming-gpu, not allocated yet",
        "gpu: gpu-0 · NUMA node 0 · driver gpu.example.com · pool a",
        "the device of claim gpu will be on NUMA node 0, the CPUs and memory will be on NUMA node 1: not aligned",
        "not enough free devices for its claims",
    ):
        assert expected in " ".join(run.stdout.split()) or expected in run.stdout, expected
    (answer,) = json.loads(ask("why", "claiming", "-o", "json").stdout)["answers"]
    (claims,) = [row["claims"] for group in answer["groups"] for row in group["nodes"] if row["node"] == "a"]
    assert claims[0]["aligned"] is False


def test_a_pod_whose_claim_is_missing_gets_a_note(ask):
    run = ask("why", "missing")

    assert run.returncode == 1
    assert "ResourceClaim default/gone is not known" in run.stdout
    assert "annotation topology.alignup.dev/claims is 'maybe'; use require, prefer, ignore" in run.stdout


def test_a_rejected_pod_is_asked_about_as_if_it_were_new_and_the_exit_code_says_that_no_node_admits_it(ask):
    run = ask("why", "pod/huge", "-n", "default", "-o", "json")

    assert run.returncode == 1
    document = json.loads(run.stdout)["answers"][0]
    assert document["verdict"] == "Pod default/huge would be admitted by no node whose state is known"
    assert document["notes"] == ["The pod failed on node b"]
    assert groups_of(run)["rejects", "not enough cpu on one NUMA node"] == ["a", "b"]


def test_wide_output_has_a_line_for_each_node(ask):
    run = ask("why", "wide", "-o", "wide")

    rows = [line.split() for line in run.stdout.splitlines()]
    assert rows[0][:3] == ["POD", "NODE", "KUBELET"]
    assert [row[:3] for row in rows[1:]] == [
        ["default/wide", "a", "admits"],
        ["default/wide", "b", "rejects"],
        ["default/wide", "c", "unknown"],
        ["default/wide", "d", "admits"],
    ]


@pytest.mark.parametrize(
    ("kind", "more", "admitting", "excluded"),
    [
        pytest.param("Deployment", "", ["a"], {"unschedulable": ["d"]}, id="no restrictions"),
        pytest.param("DaemonSet", "", ["a", "d"], {}, id="daemon sets tolerate unschedulable nodes"),
        pytest.param(
            "Deployment",
            "nodeSelector: {zone: '1'}",
            ["a"],
            {"node selector zone=1": ["b", "c"], "unschedulable; node selector zone=1": ["d"]},
            id="a node selector",
        ),
    ],
)
def test_a_manifest_need_not_exist_in_the_cluster(ask, kind, more, admitting, excluded):
    run = ask("why", "-f", "-", "-o", "json", stdin=MANIFEST.format(api="apps/v1", kind=kind, more=more))

    groups = groups_of(run)
    assert groups["admits", ""] == admitting
    shown = {reason: nodes for (answer, reason), nodes in groups.items() if answer == "not considered"}
    assert excluded.items() <= shown.items()
    assert bool(shown) is bool(excluded)


JOB = """
apiVersion: batch/v1
kind: Job
metadata: {{name: train, namespace: ml}}
spec:
  parallelism: {pods}
  completions: {pods}
  template:
    spec:
      restartPolicy: Never
      containers:
      - name: app
        resources: {{limits: {{cpu: "2", memory: 1Gi, example.com/gpu: "1"}}}}
"""


def test_all_pods_of_a_job_are_asked_about_together(ask):
    run = ask("why", "-f", "-", stdin=JOB.format(pods=2))

    assert run.returncode == 0
    assert run.stdout.startswith(
        "Job ml/train: all 2 pods fit together: 1 on a, 1 on b\n\nPod ml/train-0 would be admitted by"
    )


def test_the_part_of_a_job_that_fits_is_named_with_what_the_rest_lacks(ask):
    run = ask("why", "-f", "-", "-o", "json", stdin=JOB.format(pods=8))

    assert run.returncode == 1
    (answer,) = json.loads(run.stdout)["answers"]
    workload = answer["workload"]
    assert workload["sentence"] == ("Job ml/train: 3 of 8 pods fit together; b lacks 1 CPU on one NUMA node")
    assert workload["proved"]
    assert [binding["pod"] for binding in workload["bindings"]] == ["train-0", "train-1", "train-2"]
    assert not answer["admitted"]
    wide = ask("why", "-f", "-", "-o", "wide", stdin=JOB.format(pods=8))
    assert "note: Job ml/train: 3 of 8 pods fit together" in wide.stderr


def test_extended_resources_of_a_device_class_need_no_device_plugin_in_a_job_either(ask):
    job = JOB.format(pods=2).replace("example.com/gpu", f"{DEVICE_CLASS_PREFIX}gpu").replace('cpu: "2"', 'cpu: "1"')
    run = ask("why", "-f", "-", "-o", "json", stdin=job)

    sentence = json.loads(run.stdout)["answers"][0]["workload"]["sentence"]
    assert sentence.startswith("Job ml/train: all 2 pods fit together: ")
    assert sentence.endswith("; whether there are devices for the claims of all of them is not computed")


def test_an_exported_pod_may_go_to_other_nodes_than_before(ask):
    exported = json.dumps(api_pod(pod("old", cpu="4", memory="1Gi"), "b", phase="Failed"))

    assert groups_of(ask("why", "-f", "-", "-o", "json", stdin=exported))["admits", ""] == ["a"]


@pytest.fixture
def ask_one_node(tmp_path):
    """Ask about a cluster whose only node has this kubelet."""

    def ask(*words, kubelet=None, status=None, **options):
        with running_server(ApiServer()) as server:
            server.serve(SERVED)
            server.put({**node("a"), "status": status or {}})
            server.put((kubelet or ObservedKubelet()).host_state("a"))
            server.write_kubeconfig(tmp_path / "config")
            return in_process("cluster", *words, "--kubeconfig", tmp_path / "config", **options)

    return ask


@pytest.mark.parametrize(("version", "known"), [("v1.37.0", None), ("v1.38.0-alpha.2", "alpha.2, 2026-10-07")])
def test_answers_of_nodes_whose_release_is_not_out_say_so(ask_one_node, version, known):
    manifest = MANIFEST.format(api="apps/v1", kind="Deployment", more="")
    status = {"nodeInfo": {"kubeletVersion": version}}

    answers = ask_one_node("why", "-f", "-", "-o", "json", status=status, stdin=manifest)
    nodes = ask_one_node("nodes", "-o", "json", status=status)

    assert json.loads(answers.stdout).get("knownUpTo") == known
    assert json.loads(nodes.stdout)["nodes"][0].get("knownUpTo") == known
    for run in (answers, nodes):
        assert run.stderr.count("Kubernetes 1.38 is not released; known up to alpha.2") == bool(known)


def test_nodes_are_listed_with_what_is_free_and_what_fits(ask):
    run = ask("nodes")

    rows = run.stdout.splitlines()
    assert rows[0].split("  ")[0] == "NODE"
    assert "0: 3 CPUs, 16320Mi memory, 1 example.com/gpu; 1: 4 CPUs, 16Gi memory, 1 example.com/gpu" in rows[1]
    assert rows[1].endswith("4 CPUs, 16Gi memory, 1 example.com/gpu")
    assert rows[2].endswith("2 CPUs, 15Gi memory, 1 example.com/gpu")
    assert "no HostState" in rows[3]
    assert "note: node c: no HostState" in run.stderr
    assert "alignup observe" in run.stderr


def test_named_nodes_are_listed_in_full(ask):
    rows = ask("nodes", "d", "b", "-o", "wide").stdout.splitlines()[1:]

    assert [row.split()[0] for row in rows] == ["d", "b"]
    assert "unschedulable" in rows[0]
    assert rows[1].endswith("a gap")
    assert "1 example.com/gpu, 0 nic.example.com (DRA); 1: " in rows[1]
    assert "1 example.com/gpu, 1 nic.example.com (DRA)  " in rows[1]


def test_nodes_as_json(ask):
    document = json.loads(ask("nodes", "b", "c", "-o", "json").stdout)

    first, second = document["nodes"]
    assert (first["topologyManagerPolicy"], first["pods"]) == ("single-numa-node", 2)
    assert re.fullmatch(r"its observer last reported \d+ days ago.*", first["problems"][0])
    assert first["problems"][1:] == ["a gap"]
    assert first["numaNodes"][1]["free"]["cpu"] == 2
    assert (second["unknown"], second["topologyManagerPolicy"]) == ("no HostState", None)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        pytest.param(("why",), 2, "Give either POD or -f FILE.", id="no pod"),
        pytest.param(("why", "x", "-f", "y"), 2, "Give either POD or -f FILE.", id="a pod and a file"),
        pytest.param(("why", "absent"), 1, "pod absent not found in namespace default", id="no such pod"),
        pytest.param(("why", "wide", "-n", "ml"), 1, "pod wide not found in namespace ml", id="another namespace"),
        pytest.param(("why", "deploy/no"), 1, "deployment no not found in namespace default", id="another kind"),
        pytest.param(("why", "-l", "app=none"), 1, "no such pods found", id="no such labels"),
        pytest.param(("why", "ml/wide", "-A"), 1, "no such pods found", id="a namespace beside all"),
        pytest.param(("why", "deploy/web", "-A"), 2, "-A and -l select pods", id="a workload of all namespaces"),
        pytest.param(("nodes", "absent"), 1, "node absent not found", id="no such node"),
        pytest.param(("nodes", "--context", "absent"), 2, "absent", id="no such context"),
    ],
)
def test_wrong_arguments(ask, arguments, code, message):
    run = ask(*arguments)

    assert (run.returncode, run.stdout) == (code, "")
    assert message in run.stderr


def test_a_cluster_without_the_resource_says_how_to_install_it(tmp_path):
    with running_server(ApiServer()) as server:
        server.write_kubeconfig(tmp_path / "config")
        run = in_process("cluster", "nodes", "--kubeconfig", tmp_path / "config")

    assert run.returncode == 1
    assert run.stderr.splitlines() == [
        "alignup: the cluster has no resource hoststates.alignup.dev",
        "  Install the observers of the nodes with kubectl apply -k deploy/kubernetes, or with Helm: deploy/README.md",
    ]


@pytest.mark.parametrize(
    ("status", "message", "advice"),
    [
        pytest.param(403, FORBIDDEN, "Alignup lists nodes, hoststates.alignup.dev, and the pods", id="forbidden"),
        pytest.param(401, "Unauthorized", "Renew the credentials", id="unauthorized"),
    ],
)
def test_an_api_server_that_refuses(tmp_path, status, message, advice):
    server = ApiServer()
    server.inject(ApiFault(status=status, message=message), verb="list", resource="nodes")
    with running_server(server):
        server.write_kubeconfig(tmp_path / "config")
        run = in_process("cluster", "nodes", "--kubeconfig", tmp_path / "config")

    assert run.returncode == 1
    assert message in run.stderr
    assert advice in run.stderr


def test_an_api_server_that_cannot_be_reached(tmp_path, monkeypatch):
    with running_server(ApiServer()) as server:
        server.write_kubeconfig(tmp_path / "config")
    monkeypatch.setattr("alignup.cli.cluster_client.ATTEMPTS", 1)

    run = in_process("cluster", "nodes", env={"KUBECONFIG": str(tmp_path / "config")})

    assert run.returncode == 1
    assert "cannot reach the API server http://127.0.0.1:" in run.stderr
    assert "Check the address and the network" in run.stderr


def test_without_a_kubeconfig_the_message_says_where_it_was_looked_for(tmp_path):
    environment = {"HOME": str(tmp_path), "KUBECONFIG": "", "KUBERNETES_SERVICE_HOST": ""}

    run = in_process("cluster", "nodes", env=environment)

    assert run.returncode == 2
    assert "KUBECONFIG is not set" in run.stderr


@pytest.mark.parametrize(
    "words",
    [("default/wide", "-n", "ml"), ("pods", "wide"), ("wide", "-A"), ("-A", "-l", "size=wide")],
    ids=" ".join,
)
def test_pods_are_named_as_for_kubectl(ask, words):
    run = ask("why", *words)

    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("Pod default/wide would be admitted by 1 of 4 nodes")


def test_a_workload_of_the_cluster_stands_for_its_pods(ask, server):
    server.put(
        yaml.safe_load(MANIFEST.format(api="apps/v1", kind="Deployment", more=""))
        | {"metadata": {"name": "web", "namespace": "default"}}
    )

    run = ask("why", "deployments.apps/web")

    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("Pod default/web-0 would be admitted by")


def test_output_for_programs_and_names(ask):
    assert ask("why", "wide", "-o", "name").stdout == "node/a\n"
    assert ask("nodes", "-o", "name").stdout == "node/a\nnode/b\nnode/c\nnode/d\n"
    for words in (("why", "wide"), ("nodes",), ("upgrade-check", "--to", "1.36")):
        assert yaml.safe_load(ask(*words, "-o", "yaml").stdout) == json.loads(ask(*words, "-o", "json").stdout)


def run_kubectl(*words):
    with mock.patch.object(sys, "argv", ["kubectl-alignup", *words]), pytest.raises(SystemExit) as ended:
        cli.kubectl_main()
    return ended.value.code


def test_kubectl_runs_the_same_commands(capsys):
    assert run_kubectl("why", "-h") == 0
    text = capsys.readouterr().out
    assert text.startswith("Usage: kubectl alignup why [OPTIONS] [POD]...\n")
    assert "whether its kubelet would admit a pod" in text
    assert Path(sys.executable).with_name("kubectl-alignup").exists()


def test_kubectl_shows_the_version_and_its_own_name_in_errors(capsys):
    assert run_kubectl("--version") == 0
    assert capsys.readouterr().out.startswith("alignup 0.")
    script = "from alignup.cli import main; main(['nods'], program='kubectl alignup')"
    assert python("-c", script).stderr == (
        "alignup: no such command 'nods'; did you mean nodes?\n  Try 'kubectl alignup --help' for help.\n"
    )


def test_kubectl_gets_completions(server, capsys, monkeypatch, tmp_path):
    server.write_kubeconfig(tmp_path / "config")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    for words, expected in (
        (["wh"], ["why\tExplain which nodes admit a pod, and what would admit it elsewhere", ":4"]),
        (["why", "wi"], ["wide", ":4"]),
        (["why", "-f", ""], [":0"]),
    ):
        monkeypatch.setattr(sys, "argv", ["kubectl_complete-alignup", *words])
        cli.kubectl_complete_main()
        assert capsys.readouterr().out.splitlines() == expected


def test_the_upgrade_of_a_cluster_is_checked(ask):
    run = ask("upgrade-check", "--to", "1.36")

    assert run.returncode == 1
    text = " ".join(run.stdout.split())
    assert text.startswith(
        "1 node would break or cannot be checked 2 running pods on 4 nodes checked for Kubernetes 1.36"
    )
    assert "cannot be checked: no HostState" in run.stdout
    document = json.loads(ask("upgrade-check", "--to", "1.36", "-o", "json").stdout)
    assert {upgrade["node"]: upgrade["safe"] for upgrade in document["nodes"]} == {
        **dict.fromkeys("abd", True),
        "c": False,
    }
    assert ask("upgrade-check", "--to", "new").returncode == 2


def test_the_release_of_kubelets_can_be_given(ask):
    older, unknown, wrong = (ask("why", "wide", "--kubernetes-version", each) for each in ("1.34", "1.99", "new"))

    assert older.returncode == 0
    assert "note: Kubernetes 1.99 is not known" in unknown.stderr
    assert wrong.returncode == 2


@pytest.mark.parametrize("length", [3, 17, 24, 63])
def test_nodes_fit_eighty_columns(length, monkeypatch):
    """Whatever nodes are called, and however much they have."""
    monkeypatch.setattr(terminal, "table_width", lambda: 80)
    free = {node: {"cpu": 64, "memory": 512 << 30, "nvidia.com/gpu": 4, "hugepages-1Gi": 8 << 30} for node in range(2)}
    settings = Settings(topology=TopologySettings(policy=Policy.SINGLE_NUMA_NODE))
    summary = NodeSummary(node="n" * length, settings=settings, free=free, largest=free[0])
    with redirect_stdout(io.TextIOWrapper(io.BytesIO())) as output:
        print_nodes([summary], wide=False)

        lines = output.buffer.getvalue().decode().splitlines()
    assert max(map(len, lines)) <= 80
    assert {"NODE", "POLICY", "LARGEST"} <= {word for line in lines[:3] for word in line.split()}


@pytest.mark.parametrize("of_cluster", [False, True])
def test_a_node_that_does_not_meet_a_demand_is_explained(ask, tmp_path, server, of_cluster):
    """The kubelet aligns each container; the pod wants all of them on one NUMA node."""
    manifest = tmp_path / "pod.yaml"
    amounts = {"cpu": "3", "memory": "1Gi"}
    resources = {"requests": amounts, "limits": amounts}
    containers = [{"name": name, "resources": resources} for name in ("first", "second")]
    annotations = {"topology.alignup.dev/policy": "single-numa-node", "topology.alignup.dev/scope": "pod"}
    metadata = {"name": "both", "annotations": annotations}
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers}}
    manifest.write_text(json.dumps(document))
    stored = {"metadata": {**metadata, "namespace": "default", "uid": "both"}, "status": {"phase": "Pending"}}
    server.put(document | stored)

    run = ask("why", "both") if of_cluster else ask("why", "-f", manifest)

    assert run.returncode == 1
    text = " ".join(run.stdout.split())
    assert "Rejected: 1 node a the kubelet would not place the pod as single-numa-node demands" in text
    assert "- the pod is on NUMA nodes 0-1 (cpu on 0-1, memory on 0-1), and single-numa-node demands one; " in text
    assert "topologyManagerScope pod" in text
