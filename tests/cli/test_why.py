"""``alignup why``, run as people run it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from alignup.schema.decisions import from_document
from tests.cli.commands import alignup, environment, inside, on_a_terminal, started

ROOT = Path(__file__).parents[2]
NODE = ROOT / "examples" / "node"
TRAINER = NODE / "trainer.yaml"
ON_NODE = ("--machine", NODE / "machine.yaml", "--config", NODE / "kubelet.yaml", "--state", NODE / "state")
WITH_NAMES = (*ON_NODE, "--pods", NODE / "running.yaml")
SMALL = ("--machine", "pack:2 numa:1 core:4 pu:1")
STATIC = (
    *("--set", "cpuManagerPolicy=static", "--set", "reservedSystemCPUs=0"),
    *("--set", "topologyManagerPolicy=single-numa-node"),
)


def pod(name: str = "p", **limits: str) -> str:
    """A manifest of a pod with one container."""
    asked = {key.replace("gpu", "example.com/gpu"): value for key, value in limits.items()}
    container = {"name": "app", "image": "registry.example/app", "resources": {"limits": asked}}
    return json.dumps(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container]}}
    )


@pytest.fixture
def manifest(tmp_path):
    """Writes a manifest and says where."""

    def write(text: str, name: str = "pod.yaml") -> Path:
        place: Path = tmp_path / name
        place.write_text(text, encoding="utf-8")
        return place

    return write


def test_a_refusal_says_what_did_not_fit_and_what_would_admit_it():
    run = alignup("why", "-f", TRAINER, *WITH_NAMES)

    assert (run.returncode, run.stderr) == (1, "")
    assert run.stdout.startswith(
        "Pod ml/trainer-0 is rejected: TopologyAffinityError\nResources cannot be allocated with Topology locality\n"
    )
    assert "  - NUMA node 1: 2 CPUs short (8 requested, 6 free)\n" in run.stdout
    assert "  - request 6 CPUs instead of 8 for container train\n" in run.stdout
    assert "  - set topologyManagerPolicy to best-effort instead of single-numa-node\n" in run.stdout
    assert "  - evict shop/indexer" in run.stdout


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(("--set", "topologyManagerPolicy=best-effort"), id="another policy"),
        pytest.param(("--devices", "example.com/gpu=4@0,4@1", "--set", "topologyManagerPolicy=none"), id="no policy"),
    ],
)
def test_what_was_proposed_can_be_tried(changes):
    run = inside("why", "-f", TRAINER, *WITH_NAMES, *changes)

    assert run.returncode == 0
    assert run.stdout.startswith("Pod ml/trainer-0 is admitted\n")


def test_without_a_list_of_pods_they_go_by_their_uids_and_that_is_said():
    run = inside("why", "-f", TRAINER, *ON_NODE)

    assert run.returncode == 1
    assert run.stderr == "note: names and shared CPU use of 4 pods are not in the state files; give them with --pods\n"
    assert "6d1f0c5e-0000-4000-8000-000000000005" in run.stdout
    assert " /6d1f" not in run.stdout


def test_pods_that_cannot_be_in_the_state_or_are_gone_are_not_counted_as_running(manifest):
    listed = yaml.safe_load((NODE / "running.yaml").read_text("utf-8"))
    gone, nameless = listed["items"][3], listed["items"][4]
    gone["status"] = {"phase": "Succeeded"}
    del nameless["metadata"]["uid"]
    file = manifest(yaml.safe_dump(listed), "pods.yaml")

    run = inside("why", "-f", TRAINER, *ON_NODE, "--pods", file)

    assert run.stderr.startswith(f"note: {file}, line ")
    assert "Pod web tells no uid, so it cannot be found in the state files; left out\n" in run.stderr
    assert "note: a pod of the state files counted as running, though not in the list" in run.stderr
    assert "shop/indexer" not in run.stdout


@pytest.mark.parametrize(("form", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_machines_get_the_whole_decision_and_the_proposals(form, read):
    run = inside("why", "-f", TRAINER, *WITH_NAMES, "-o", form)

    assert run.returncode == 1
    (answer,) = read(run.stdout)["answers"]
    refusal = from_document(answer["decision"]).refusal
    assert refusal is not None
    assert refusal.reason == "TopologyAffinityError"
    assert answer["workload"] == {"kind": "StatefulSet", "name": "trainer", "source": f"{TRAINER}, line 1"}
    kinds = [change["kind"] for proposal in answer["proposals"] for change in proposal["changes"]]
    assert {"request", "setting", "leaving"} <= set(kinds)
    assert all(proposal["sentence"] and proposal["placements"] for proposal in answer["proposals"])


def test_every_workload_is_judged_by_itself_one_replica_of_it(manifest):
    file = manifest(f"{pod('a', cpu='4', memory='1Gi')}\n---\n{pod('b', cpu='5', memory='1Gi')}")

    run = inside("why", "-f", file, *SMALL, *STATIC)
    only = inside("why", "-f", file, *SMALL, *STATIC, "--pod", "a")

    assert run.returncode == 1
    assert "Pod default/a is admitted" in run.stdout
    assert "Pod default/b is rejected" in run.stdout
    assert only.returncode == 0
    assert "default/b" not in only.stdout


def test_what_is_piped_in():
    run = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-m", "alignup", "why", "-f", "-", *SMALL],
        input=pod(cpu="1", memory="1Gi"),
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )

    assert (run.returncode, run.stderr) == (0, "")


def test_a_pod_without_resources(manifest):
    run = inside("why", "-f", manifest(pod()), *SMALL, *STATIC)

    assert run.returncode == 0
    assert "shared CPU pool" in run.stdout


def test_what_nobody_offers_is_told(manifest):
    run = inside("why", "-f", manifest(pod(cpu="1", memory="1Gi", gpu="1")), *SMALL, "-o", "json")

    told = "nobody offers example.com/gpu here, and a kubelet lets pods that ask for it pass"
    assert run.returncode == 0
    assert run.stderr.startswith(f"note: {told}")
    assert json.loads(run.stdout)["answers"][0]["notes"][0].startswith(told)


@pytest.mark.parametrize("gates", [(), ("--set", "featureGates.PodLevelResourceManagers=true")])
def test_resources_of_a_pod_as_a_whole_are_not_aligned_without_a_gate(manifest, gates):
    whole = json.loads(pod())
    whole["spec"]["resources"] = {"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "2", "memory": "1Gi"}}

    run = inside("why", "-f", manifest(json.dumps(whole)), *SMALL, *STATIC, *gates)

    assert ("without feature gate PodLevelResourceManagers" in run.stderr) is not bool(gates)


def test_what_a_terminal_would_obey_is_spelt_out(manifest):
    strange = json.dumps({"apiVersion": "v1", "kind": "Odd\x1b]0;x\x07", "metadata": {"name": "front\x1b[31m"}})

    run = inside("why", "-f", manifest(f"{strange}\n---\n{pod()}"), *SMALL)

    assert run.stderr.startswith("note: ")
    assert "\x1b" not in run.stderr
    assert "\\x1b[31m" in run.stderr


@pytest.mark.parametrize("columns", ["1", "40", "200"])
def test_any_width_of_a_terminal_will_do(columns):
    run = inside("why", "-f", TRAINER, *WITH_NAMES, env={"COLUMNS": columns})

    assert run.returncode == 1
    assert max(map(len, run.stdout.splitlines())) <= max(60, min(int(columns), 120))


def test_other_kinds_are_skipped_with_a_note(manifest):
    service = "apiVersion: v1\nkind: Service\nmetadata: {name: front}\n"

    run = inside("why", "-f", manifest(f"{service}---\n{pod()}"), *SMALL)
    alone = inside("why", "-f", manifest(service, "service.yaml"), *SMALL)

    assert run.returncode == 0
    assert "Service front" in run.stderr
    assert alone.returncode == 2
    assert "there is no workload to judge" in alone.stderr


BAD = {
    "an empty file": ((), "", "is empty"),
    "no YAML": ((), "a: [", "flow"),
    "no quantity": ((), pod(cpu="two"), "spec.containers[0].resources.limits[cpu]: quantities must match"),
    "an unknown policy": (("--set", "topologyManagerPolicy=strict"), pod(), "topologyManagerPolicy"),
    "an unknown feature gate": (("--set", "featureGates.Nonsense=true"), pod(), "unrecognized feature gate: Nonsense"),
    "a change that says nothing": (("--set", "topologyManagerPolicy"), pod(), "write it like"),
    "a kubelet that would not start": (("--set", "cpuManagerPolicy=static"), pod(), "reserved CPU resources"),
    "no configuration": (("--config", "nowhere.yaml"), pod(), "nowhere.yaml: No such file"),
    "no state": (("--state", "nowhere"), pod(), "nowhere: there is no such directory"),
    "pods without a state": (("--pods", "running.yaml"), pod(), "there is no --state"),
    "no device": (("--devices", "gpu=1"), pod(), "is no name of a device resource"),
    "no machine": (("--machine", "nowhere.xml"), pod(), "nowhere.xml is not there"),
    "no time": (("--search", "nan"), pod(), "--search nan is no time"),
    "a directory without state": (("--state", "."), pod(), "none of the kubelet's state files is there"),
    "no such workload": (("--pod", "q"), pod(), "there is no workload 'q', only p"),
}


@pytest.mark.parametrize(("arguments", "text", "told"), BAD.values(), ids=BAD)
def test_bad_input_says_what_where_and_what_to_do(manifest, arguments, text, told):
    run = inside("why", "-f", manifest(text), *SMALL, *arguments)

    lines = run.stderr.splitlines()
    assert run.returncode == 2
    assert run.stdout == ""
    assert lines[0].startswith("alignup: ")
    assert told in lines[0]
    assert len(lines) >= 2
    assert all(line.startswith("  ") for line in lines[1:])


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        pytest.param(
            ("--set", "topologyManagerPolicy=strict"),
            "Correct it there, or try another value with --set.",
            id="a value",
        ),
        pytest.param(
            ("--set", "featureGates.Nonsense=true"),
            "Leave out Nonsense: Kubernetes 1.37 has no such feature gate.",
            id="a feature gate",
        ),
        pytest.param(
            ("--set", "kind=Pod"), "Give a KubeletConfiguration of kubelet.config.k8s.io/v1beta1.", id="a kind"
        ),
        pytest.param(
            (*STATIC, "--machine", "pack:2 numa:5 core:2 pu:1"),
            "A kubelet takes more when told so: --set topologyManagerPolicyOptions.max-allowable-numa-nodes=10",
            id="more nodes than a kubelet takes",
        ),
    ],
)
def test_advice_is_about_what_is_wrong(manifest, arguments, advice):
    run = inside("why", "-f", manifest(pod()), *SMALL, *arguments)

    assert run.returncode == 2
    assert run.stderr.splitlines()[-1] == f"  {advice}"
    assert "defaulting_panic" not in run.stderr


@pytest.mark.parametrize(
    "bomb",
    [
        pytest.param(
            "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n"
            + "".join(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)),
            id="a billion laughs",
        ),
        pytest.param("- x\n" * 2_600_000, id="ten megabytes of list"),
        pytest.param("[" * 10_000_000, id="ten megabytes of brackets"),
        pytest.param("a: '" + "x" * 40_000_000 + "'", id="forty megabytes of text"),
    ],
)
def test_bombs_are_refused_with_a_limit(manifest, bomb):
    run = inside("why", "-f", manifest(bomb), *SMALL)

    assert run.returncode == 2
    assert run.stderr.startswith("alignup: ")
    assert any(word in run.stderr for word in ("more than", "larger", "longer", "deep"))


def test_output_that_nobody_reads_ends_quietly():
    with started("why", "-f", str(TRAINER), *map(str, WITH_NAMES)) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()

    assert (process.returncode, said) == (141, b"")


def test_colours_are_for_terminals_and_for_those_who_want_them():
    arguments = ("why", "-f", str(TRAINER), *map(str, WITH_NAMES))

    assert "\033[" in on_a_terminal(*arguments, env={"TERM": "xterm"})
    assert "\033[" not in on_a_terminal(*arguments, env={"TERM": "xterm", "NO_COLOR": "1"})
    assert "\033[" not in inside(*arguments).stdout


def test_where_only_ascii_can_be_shown():
    run = alignup("why", "-f", TRAINER, *WITH_NAMES, env={"PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"})

    assert run.stdout.isascii()
    assert "What did not fit" in run.stdout


def test_the_search_can_be_cut_short_and_says_so():
    run = inside("why", "-f", TRAINER, *WITH_NAMES, "--search", "0")

    assert run.returncode == 1
    assert "What was not tried" in run.stdout


def test_shells_can_complete():
    shown = alignup("completion", "bash")
    asked = alignup(env={"_ALIGNUP_COMPLETE": "bash_complete", "COMP_WORDS": "alignup why -o ", "COMP_CWORD": "3"})

    assert "_ALIGNUP_COMPLETE=bash_complete" in shown.stdout
    assert asked.stdout.split() == ["plain,text", "plain,json", "plain,yaml"]
