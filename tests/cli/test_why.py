"""``alignup why``."""

import json
import re
from pathlib import Path

import pytest
import yaml

from alignup.align.workload.names import DEVICES_ANNOTATION
from alignup.documents.decisions import from_document
from tests.cli.commands import in_process, measured
from tests.cli.manifests import pod_manifest
from tests.kubernetes.manifests.test_device_selectors import BOMBS
from tests.schedule.claim_objects import ENDLESS_SELECTOR

ROOT = Path(__file__).parents[2]
NODE = ROOT / "examples" / "node"
TRAINER = NODE / "trainer.yaml"
ON_NODE = ("--machine", NODE / "machine.yaml", "--config", NODE / "kubelet.yaml", "--kubelet-dir", NODE / "state")
WITH_POD_NAMES = (*ON_NODE, "--pods", NODE / "running.yaml")
SMALL = ("--machine", "pack:2 numa:1 core:4 pu:1")
STATIC = (
    *("--set", "cpuManagerPolicy=static", "--set", "reservedSystemCPUs=0"),
    *("--set", "topologyManagerPolicy=single-numa-node"),
)
SCHEDULER_VERDICT = "Pod default/web is not schedulable: no device plugin provides example.com/gpu"


@pytest.fixture
def manifest(tmp_path):
    """Write a manifest and return its path."""

    def write(text: str, name: str = "pod.yaml") -> Path:
        place: Path = tmp_path / name
        place.write_text(text, encoding="utf-8")
        return place

    return write


@pytest.mark.parametrize(("version", "hints"), [("1.35", "{1}* {0-1}"), ("v1.36.4", "{1}*"), (None, "{1}*")])
def test_the_answer_is_that_of_the_release(manifest, version, hints):
    devices = ("--devices", "example.com/gpu=1@1", "--set", "topologyManagerPolicy=best-effort")
    given = ("--kubernetes-version", version) if version else ()

    run = in_process("why", "-f", manifest(pod_manifest(gpu="1", cpu="1", memory="1Gi")), *SMALL, *devices, *given)

    assert run.returncode == 0
    assert f"· Kubernetes {(version or '1.37').removeprefix('v')[:4]}\n" in run.stdout
    assert f"│ hints      {hints} " in run.stdout


@pytest.mark.parametrize(
    ("program", "release"),
    [
        ("echo Kubernetes v1.35.8", "1.35"),
        ("echo Kubernetes v1.35.8; exit 1", "1.37"),
        ("echo something else", "1.37"),
    ],
)
def test_on_this_machine_the_installed_kubelet_is_asked(manifest, tmp_path, monkeypatch, program, release):
    kubelet = tmp_path / "kubelet"
    kubelet.write_text(f"#!/bin/sh\n{program}\n")
    kubelet.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    words = ("why", "-f", manifest(pod_manifest(cpu="1")), "-o", "json")

    here = json.loads(in_process(*words).stdout)
    elsewhere = json.loads(in_process(*words, *SMALL).stdout)

    assert (here["kubernetes"], elsewhere["kubernetes"]) == (release, "1.37")


def test_feature_gates_are_those_of_the_release(manifest):
    words = ("why", "-f", manifest(pod_manifest(cpu="1")), *SMALL, "--set", "featureGates.MemoryManager=true")

    refused = in_process(*words, "--kubernetes-version", "1.36")

    assert in_process(*words, "--kubernetes-version", "1.35").returncode == 0
    assert refused.returncode == 2
    assert "Remove MemoryManager: Kubernetes 1.36 has no such feature gate." in refused.stderr


def test_an_unknown_release_is_answered_with_a_note(manifest):
    run = in_process("why", "-f", manifest(pod_manifest(cpu="1")), *SMALL, "--kubernetes-version", "1.99", "-o", "json")

    assert run.returncode == 0
    assert json.loads(run.stdout)["kubernetes"] == "1.38"
    assert "Kubernetes 1.99 is not known: the answers are those of 1.38" in run.stderr


@pytest.mark.parametrize("output", ["text", "json", "yaml"])
def test_a_resize_is_explained(manifest, output):
    running = yaml.safe_load_all((NODE / "running.yaml").read_text("utf-8"))
    documents = [item for document in running for item in document.get("items", [document])]
    resized = next(document for document in documents if document["metadata"]["name"] == "indexer")
    for container in resized["spec"]["containers"]:
        for amounts in container["resources"].values():
            amounts["cpu"] = "1"

    run = in_process("why", "--resize", "-f", manifest(json.dumps(resized)), *WITH_POD_NAMES, "-o", output)

    text = " ".join(run.stdout.replace("\\", "").split())
    assert run.returncode == 1
    assert 'Resize is infeasible for Guaranteed Pods alongside CPU Manager policy "static"' in text.replace("''", "'")
    assert output == "text" or "Infeasible" in text


def test_only_pods_that_run_can_be_resized(manifest):
    run = in_process("why", "--resize", "-f", manifest(pod_manifest(cpu="1")), *WITH_POD_NAMES)

    assert run.returncode == 2
    assert "pod default/web does not run on the node" in run.stderr


def test_without_pods_the_uids_are_shown_with_a_note():
    run = in_process("why", "-f", TRAINER, *ON_NODE)

    assert run.returncode == 1
    assert (
        run.stderr
        == "note: the state files do not contain the names and shared CPU use of 4 pods; give them with --pods\n"
    )
    assert "6d1f0c5e-0000-4000-8000-000000000005" in run.stdout
    assert " /6d1f" not in run.stdout


def test_finished_pods_and_pods_without_a_uid_do_not_count_as_running(manifest):
    listed = yaml.safe_load((NODE / "running.yaml").read_text("utf-8"))
    gone, nameless = listed["items"][3], listed["items"][4]
    gone["status"] = {"phase": "Succeeded"}
    del nameless["metadata"]["uid"]
    file = manifest(yaml.safe_dump(listed), "pods.yaml")

    run = in_process("why", "-f", TRAINER, *ON_NODE, "--pods", file)

    assert run.stderr.startswith(f"note: {file}:")
    assert "skipped Pod web: without a uid it cannot be found in the state files\n" in run.stderr
    assert "note: a pod in the state files but not in the list counted as running" in run.stderr
    assert "shop/indexer" not in run.stdout


def test_json_holds_the_decision_and_the_proposals():
    run = in_process("why", "-f", TRAINER, *WITH_POD_NAMES, "-o", "json")

    assert run.returncode == 1
    (answer,) = json.loads(run.stdout)["answers"]
    rejection = from_document(answer["decision"]).rejection
    assert rejection is not None
    assert rejection.reason == answer["code"] == "TopologyAffinityError"
    assert answer["workload"] == {"kind": "StatefulSet", "name": "trainer", "source": f"{TRAINER}:1"}
    kinds = [change["kind"] for proposal in answer["proposals"] for change in proposal["changes"]]
    assert {"request", "setting", "leaving"} <= set(kinds)
    assert all(proposal["sentence"] and proposal["placements"] for proposal in answer["proposals"])


def test_each_workload_is_decided_on_its_own(manifest):
    file = manifest(f"{pod_manifest('a', cpu='4', memory='1Gi')}\n---\n{pod_manifest('b', cpu='5', memory='1Gi')}")

    run = in_process("why", "-f", file, *SMALL, *STATIC)

    assert run.returncode == 1
    assert "Pod default/a is admitted" in run.stdout
    assert "Pod default/b is rejected" in run.stdout


def test_a_pod_without_resources_from_standard_input():
    run = in_process("why", "-f", "-", *SMALL, *STATIC, stdin=pod_manifest())

    assert (run.returncode, run.stderr) == (0, "")
    assert "shared CPU pool" in run.stdout


@pytest.mark.parametrize(
    ("options", "code", "first", "second"),
    [
        pytest.param((), 1, SCHEDULER_VERDICT, "The kubelet ignores such requests: Pod", id="for a cluster"),
        pytest.param(
            ("--ignore-missing-devices",),
            0,
            "Pod default/web is admitted",
            f"For a scheduler: {SCHEDULER_VERDICT}",
            id="as a kubelet",
        ),
    ],
)
def test_a_pod_without_a_device_plugin_is_not_schedulable(manifest, options, code, first, second):
    words = ("why", "-f", manifest(pod_manifest(cpu="1", memory="1Gi", gpu="1")), *SMALL, *options)

    run = in_process(*words)
    (answer,) = json.loads(in_process(*words, "-o", "json").stdout)["answers"]

    assert (run.returncode, run.stderr) == (code, "")
    text = " ".join(run.stdout.split())
    assert f" memoryManagerPolicy None {first} {second}" in text
    assert (answer["verdict"], answer["kubeletVerdict"]) == (first, "Pod default/web is admitted")
    assert (answer["schedulable"], answer["missingDevices"]) == (False, ["example.com/gpu"])
    assert answer["code"] == ("NotSchedulable" if code else "")


WHOLE = ("--set", "featureGates.PodLevelResourceManagers=true")


@pytest.mark.parametrize(
    ("version", "stored", "outcome"),
    [
        ("1.36", {}, "Burstable pod"),
        ("1.37", {}, "Guaranteed pod"),
        ("1.37", {"uid": "u1"}, "Burstable pod"),
    ],
)
def test_pod_level_resources_have_the_defaults_of_the_release(manifest, version, stored, outcome):
    whole = json.loads(pod_manifest(cpu="2", memory="1Gi"))
    whole["metadata"] |= stored
    whole["spec"]["resources"] = {"requests": {"cpu": "2", "memory": "1Gi"}}
    whole["status"] = {"qosClass": "Burstable"}

    run = in_process("why", "-f", manifest(json.dumps(whole)), *SMALL, *STATIC, *WHOLE, "--kubernetes-version", version)

    assert outcome in run.stdout
    assert ("CPUs 1-2" in run.stdout) is (outcome == "Guaranteed pod")


def test_control_characters_are_escaped(manifest):
    strange = json.dumps({"apiVersion": "odd/v1", "kind": "Odd\x1b]0;x\x07", "metadata": {"name": "front\x1b[31m"}})

    run = in_process("why", "-f", manifest(f"{strange}\n---\n{pod_manifest()}"), *SMALL)

    assert run.stderr.startswith("note: ")
    assert "\x1b" not in run.stderr
    assert "\\x1b[31m" in run.stderr


@pytest.mark.parametrize("columns", ["1", "40", "200"])
def test_the_output_fits_any_terminal_width(columns):
    run = in_process("why", "-f", TRAINER, *WITH_POD_NAMES, env={"COLUMNS": columns})

    assert run.returncode == 1
    assert max(map(len, run.stdout.splitlines())) <= max(60, min(int(columns), 120))


def test_other_kinds_are_skipped_with_a_note(manifest):
    service = "apiVersion: v1\nkind: Service\nmetadata: {name: front}\n"

    run = in_process("why", "-f", manifest(f"{service}---\n{pod_manifest()}"), *SMALL)
    alone = in_process("why", "-f", manifest(service, "service.yaml"), *SMALL)

    assert run.returncode == 0
    assert "skipped 1 object that runs no pods: Service (1)" in run.stderr
    assert alone.returncode == 2
    assert "no workloads found" in alone.stderr


BAD = {
    "an empty file": ((), "", "is empty"),
    "an unknown nested field": (
        ("--set", "authentication.webook=1"),
        pod_manifest(),
        'unknown field "authentication.webook"',
    ),
    "pods without a state": (("--pods", "running.yaml"), pod_manifest(), "--pods requires --kubelet-dir"),
    "a directory without state": (("--kubelet-dir", "."), pod_manifest(), "none of the kubelet's state files exists"),
}


@pytest.mark.parametrize(("arguments", "text", "message"), BAD.values(), ids=BAD)
def test_invalid_input_reports_what_is_wrong_where_and_what_to_do(manifest, arguments, text, message):
    run = in_process("why", "-f", manifest(text), *SMALL, *arguments)

    lines = run.stderr.splitlines()
    assert run.returncode == 2
    assert run.stdout == ""
    assert lines[0].startswith("alignup: ")
    assert message in lines[0]
    assert len(lines) >= 2
    assert all(line.startswith("  ") for line in lines[1:])


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        pytest.param(
            ("--set", "topologyManagerPolicy=strict"),
            "Fix the value there, or try another one with --set.",
            id="a value",
        ),
        pytest.param(
            ("--set", "featureGates.Nonsense=true"),
            "Remove Nonsense: Kubernetes 1.37 has no such feature gate.",
            id="a feature gate",
        ),
        pytest.param(
            ("--set", "maxPod=1"),
            "Give a field of KubeletConfiguration v1beta1, such as topologyManagerPolicy=restricted.",
            id="a field",
        ),
        pytest.param(
            ("--set", "kind=Pod"),
            "Give a KubeletConfiguration of kubelet.config.k8s.io/v1beta1, or that of a running kubelet: "
            "kubectl get --raw /api/v1/nodes/NODE/proxy/configz > configz.json",
            id="a kind",
        ),
        pytest.param(
            (*STATIC, "--machine", "pack:2 numa:5 core:2 pu:1"),
            "Raise the kubelet's limit with --set topologyManagerPolicyOptions.max-allowable-numa-nodes=10",
            id="more nodes than the kubelet's limit",
        ),
    ],
)
def test_the_advice_fits_the_error(manifest, arguments, advice):
    run = in_process("why", "-f", manifest(pod_manifest()), *SMALL, *arguments)

    assert run.returncode == 2
    assert run.stderr.splitlines()[-1] == f"  {advice}"
    assert "defaulting_panic" not in run.stderr


def test_a_short_search_lists_what_was_not_tried():
    run = in_process("why", "-f", TRAINER, *WITH_POD_NAMES, "--search", "0")

    assert run.returncode == 1
    assert "What was not tried" in run.stdout


def test_a_misspelled_field_is_an_error_unless_unknown_fields_are_ignored(manifest):
    text = (NODE / "trainer.yaml").read_text("utf-8").replace("limits:", "limit:")
    file = manifest(text, "trainer.yaml")
    line = next(number for number, line in enumerate(text.splitlines(), 1) if "limit:" in line)

    run = in_process("why", "-f", file, *ON_NODE)
    ignored = in_process("why", "-f", file, *ON_NODE, "--ignore-unknown-fields")

    assert run.returncode == 2
    assert run.stdout == ""
    assert f"alignup: {file}:{line}: spec.template.spec.containers[0].resources.limit: unknown field" in run.stderr
    assert "did you mean limits?" in run.stderr
    assert "--ignore-unknown-fields" in run.stderr
    assert ignored.returncode == 0
    assert "ignored spec.template.spec.containers[0].resources.limit: unknown field" in ignored.stderr


CLAIMS = ROOT / "examples" / "claims"
WITH_GPUS = ("--machine", CLAIMS / "machine.yaml", "--config", CLAIMS / "kubelet.yaml")


class TestClaims:
    def test_programs_get_the_devices_of_claims(self):
        run = in_process("why", "-f", CLAIMS / "trainer.yaml", "-f", CLAIMS / "gpus.yaml", *WITH_GPUS, "-o", "json")

        (claim,) = json.loads(run.stdout)["answers"][0]["claims"]
        assert (claim["name"], claim["claim"], claim["aligned"]) == ("gpu", "ml/trainer-gpu", False)
        assert [device["device"] for device in claim["devices"]] == ["gpu-3"]

    @pytest.mark.parametrize(("roots", "satisfied"), [("1111", True), ("1122", False)])
    def test_all_devices_that_a_claim_may_get_have_to_satisfy_a_demand(self, tmp_path, roots, satisfied):
        first, *others = (CLAIMS / "gpus.yaml").read_text("utf-8").split("attributes:\n")
        root = "attributes:\n      resource.kubernetes.io/pcieRoot: {string: 'pci0000:%s0'}\n"
        devices = [root % number + other for number, other in zip(roots, others, strict=True)]
        (tmp_path / "gpus.yaml").write_text("".join([first, *devices]), "utf-8")
        trainer = (CLAIMS / "trainer.yaml").read_text("utf-8")
        trainer = re.sub(r"selectors:.*?\n---", "count: 2\n---", trainer, flags=re.DOTALL)
        annotation = f"namespace: ml, annotations: {{{DEVICES_ANNOTATION}: same-root}}}}\nspec:\n  resourceClaims"
        trainer = trainer.replace("namespace: ml}\nspec:\n  resourceClaims", annotation)
        (tmp_path / "trainer.yaml").write_text(trainer, "utf-8")

        run = in_process("why", "-f", tmp_path / "trainer.yaml", "-f", tmp_path / "gpus.yaml", *WITH_GPUS, "-o", "json")

        (answer,) = json.loads(run.stdout)["answers"]
        assert (run.returncode, run.stderr) == (0 if satisfied else 1, "")
        assert bool(answer["unmetDemand"]) is not satisfied
        assert satisfied or "have no root complex in common" in answer["unmetDemand"]["detail"]

    @pytest.mark.parametrize("resource", ["example.com/gpu", "deviceclass.resource.kubernetes.io/gpu.example.com"])
    def test_extended_resources_of_a_class_are_served_by_a_claim(self, manifest, resource):
        extended = manifest(pod_manifest(cpu="1", memory="1Gi", gpu="1").replace("example.com/gpu", resource))

        run = in_process("why", "-f", extended, "-f", CLAIMS / "gpus.yaml", *SMALL, *STATIC)

        assert run.returncode == 0, run.stdout
        assert "\nPod default/web is admitted\n" in run.stdout
        shown = " ".join(run.stdout.split())
        assert f"- {resource}: claim default/web-extended-resources, not allocated yet" in shown

    def test_an_older_kubelet_rejects_a_class_by_its_own_name(self, manifest):
        implicit = "deviceclass.resource.kubernetes.io/gpu.example.com"
        extended = manifest(pod_manifest(cpu="1", memory="1Gi", gpu="1").replace("example.com/gpu", implicit))

        run = in_process("why", "-f", extended, *SMALL, *STATIC, "--kubernetes-version", "1.35")

        assert run.returncode == 1
        assert f"\nPod default/web is rejected:\nOutOf{implicit}\n" in run.stdout

    @staticmethod
    def selecting(manifest, selector):
        """Write the example with another selector."""
        text = (CLAIMS / "trainer.yaml").read_text("utf-8")
        example = text[text.index("device.capacity") :].partition("\n")[0]
        return manifest(text.replace(example, f"'{selector}'"), "selecting.yaml")

    @pytest.mark.parametrize(
        ("selector", "problem", "advice"),
        [
            pytest.param("device.driver ==", "is not valid: ", "Correct", id="invalid"),
            pytest.param(
                'device.attributes["none"].size == 1',
                "fails for device gpu.example.com/node-a/gpu-0: ",
                "Correct",
                id="failing",
            ),
            pytest.param(
                ENDLESS_SELECTOR,
                "takes more than 10,000 steps, which only the scheduler computes",
                "Shorten",
                id="only for schedulers",
            ),
        ],
    )
    def test_a_selector_that_fails_is_an_error_that_names_its_request(self, manifest, selector, problem, advice):
        run = in_process("why", "-f", self.selecting(manifest, selector), "-f", CLAIMS / "gpus.yaml", *WITH_GPUS)

        assert (run.returncode, run.stdout) == (2, "")
        words = " ".join(run.stderr.split())
        assert problem in words
        assert f"{advice} the selectors of request gpu, or those of DeviceClass gpu.example.com." in words

    def test_a_selector_that_would_fill_the_memory_is_an_error_with_little_of_it(self, manifest):
        bomb = self.selecting(manifest, BOMBS["bind"])
        code, megabytes, errors = measured(
            "why", "-f", str(bomb), "-f", str(CLAIMS / "gpus.yaml"), *map(str, WITH_GPUS)
        )

        assert code == 2
        assert "takes more than 1 s or 128 MB, which only the scheduler computes" in errors
        assert megabytes < 300

    def test_slices_of_several_nodes_are_refused(self, manifest):
        other = manifest((CLAIMS / "gpus.yaml").read_text().replace("node-a", "node-b"), "b.yaml")

        run = in_process("why", "-f", CLAIMS / "trainer.yaml", "-f", CLAIMS / "gpus.yaml", "-f", other, *WITH_GPUS)

        assert run.returncode == 2
        assert "the ResourceSlices belong to several nodes: node-a, node-b" in run.stderr


def test_a_file_needs_no_option():
    assert in_process("why", TRAINER, *ON_NODE).stdout == in_process("why", "-f", TRAINER, *ON_NODE).stdout


@pytest.mark.parametrize("name", ["trainer", "ml/trainer-0", "sts/trainer", "pod/trainer-0"])
def test_a_workload_is_named_as_for_kubectl(name):
    run = in_process("why", "-f", TRAINER, *ON_NODE, "--pod", name)

    assert "Pod ml/trainer-0 " in run.stdout


@pytest.mark.parametrize("name", ["shop/trainer", "deploy/trainer"])
def test_other_workloads_are_not_found(name):
    run = in_process("why", "-f", TRAINER, *ON_NODE, "--pod", name)

    assert run.returncode == 2
    assert f"workload {name!r} not found" in run.stderr


LOCALITY = ("--machine", "examples/locality/machine.yaml", "--set", "topologyManagerPolicy=best-effort")


def test_devices_that_are_chosen_at_random_are_all_named():
    run = in_process("why", "-f", "examples/locality/pods.yaml", *LOCALITY, "-o", "json")

    pair, sender = json.loads(run.stdout)["answers"]
    (choices,) = [placement["choices"]["nvidia.com/gpu"] for placement in pair["decision"]["placements"]]
    assert (choices["count"], choices["certain"], choices["text"]) == (2, False, "{gpu-0, gpu-3} or {gpu-1, gpu-2}")
    assert sender["deviceChoices"][0] == (
        "container train: 4 of 8 possible choices put GPU and NIC under different root complexes; "
        "best gpu-0 + 0000:1f:00.0 (one switch), worst gpu-0 + 0000:2f:00.0 (NODE)"
    )


def test_plugin_rule_of_a_resource_can_be_set():
    run = in_process(
        "why", "-f", "examples/locality/pods.yaml", "--pod", "pair", *LOCALITY, "--plugin-rule", "nvidia.com/gpu=any"
    )
    wrong = in_process("why", "-f", "examples/locality/pods.yaml", *LOCALITY, "--plugin-rule", "nvidia.com/gpu=best")

    assert "nvidia.com/gpu any 2 of gpu-0…3" in run.stdout
    assert wrong.returncode == 2
    assert "'nvidia.com/gpu=best' is not a rule" in wrong.stderr


def test_pod_that_may_be_rejected_is_not_admitted(tmp_path):
    containers = [
        {"name": name, "image": "x", "resources": {"limits": {"example.com/gpu": count}}}
        for name, count in (("first", 4), ("second", 2))
    ]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": {"containers": containers}}
    (tmp_path / "pod.json").write_text(json.dumps(pod))
    machine = ("--machine", "pack:2 numa:1 core:4 pu:1", "--devices", "example.com/gpu=3@0,3@1")

    run = in_process("why", "-f", tmp_path / "pod.json", *machine, "--set", "topologyManagerPolicy=restricted")

    assert run.returncode == 1
    assert "Pod default/web may be rejected: TopologyAffinityError" in run.stdout
    assert "some choices leave no place for container second" in " ".join(run.stdout.split())

    words = ("--set", "topologyManagerPolicy=restricted", "-o", "json")
    (answer,) = json.loads(in_process("why", "-f", tmp_path / "pod.json", *machine, *words).stdout)["answers"]
    assert answer["code"] == "MayBeRejected"


class TestSeveralFiles:
    def test_files_that_are_no_manifests_are_skipped_in_a_directory(self, tmp_path):
        (tmp_path / "values.yaml").write_text("replicas: 2\n")
        (tmp_path / "web.yaml").write_text(pod_manifest())
        run = in_process("why", "-f", tmp_path, "--machine", "pu:4")

        assert run.returncode == 0
        assert "values.yaml:1: skipped: it has no apiVersion and kind" in run.stderr

    def test_a_file_named_alone_must_be_a_manifest(self, tmp_path):
        (tmp_path / "values.yaml").write_text("replicas: 2\n")

        assert in_process("why", "-f", tmp_path / "values.yaml", "--machine", "pu:4").returncode == 2

    def test_a_broken_file_is_reported_after_the_answers_for_the_others(self, tmp_path):
        (tmp_path / "broken.yaml").write_text("kind: [\n")
        (tmp_path / "web.yaml").write_text(pod_manifest())
        run = in_process("why", "-f", tmp_path, "--machine", "pu:4")

        assert run.returncode == 2
        assert "Pod default/web is admitted" in run.stdout
        assert f"alignup: {tmp_path}/broken.yaml:" in run.stderr

    def test_one_line_for_each_workload_or_the_names_of_the_admitted(self, tmp_path):
        (tmp_path / "web.yaml").write_text(pod_manifest())
        words = ("why", "-f", tmp_path, "-f", "examples/node/trainer.yaml", "--machine", "pu:4", "-o")
        wide, names = in_process(*words, "wide"), in_process(*words, "name")

        lines = wide.stdout.splitlines()
        assert [line.split()[:2] for line in lines[1:]] == [["pod/web", "yes"], ["statefulset/trainer", "no"]]
        assert "OutOfcpu" in lines[2]
        assert (names.returncode, names.stdout) == (1, "pod/web\n")


class TestKustomizations:
    """``-k``, with a program called kubectl that prints a pod, or fails."""

    def kubectl(self, directory, script):
        program = directory / "kubectl"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        return {"PATH": str(directory)}

    def test_the_rendered_pods_are_explained(self, tmp_path):
        (tmp_path / "pod.yaml").write_text(pod_manifest())
        env = self.kubectl(tmp_path, f'[ "$1 $2" = "kustomize overlay" ] && exec /bin/cat {tmp_path}/pod.yaml')
        run = in_process("why", "-k", "overlay", "--machine", "pu:4", env=env)

        assert run.returncode == 0
        assert "Pod default/web is admitted" in run.stdout

    @pytest.mark.parametrize(
        "error",
        [
            "no such overlay",
            "error: no such overlay",
            'E1118 19:20:44.098178    1560 run.go:72] "command failed" err="no such overlay"',
        ],
    )
    def test_what_kubectl_reports_is_shown(self, tmp_path, error):
        env = self.kubectl(tmp_path, f"echo '{error}' >&2; exit 1")
        run = in_process("why", "-k", "overlay", "--machine", "pu:4", env=env)

        assert (run.returncode, run.stderr.splitlines()) == (
            2,
            ["alignup: -k: no such overlay", "  Try: kubectl kustomize overlay"],
        )

    def test_without_kubectl_the_error_says_what_to_do(self, tmp_path):
        run = in_process("why", "-k", "overlay", "--machine", "pu:4", env={"PATH": str(tmp_path)})

        assert run.returncode == 1
        assert "kubectl is not installed" in run.stderr
        assert "kubectl kustomize overlay > pods.yaml" in run.stderr


def test_the_earlier_name_of_the_kubelets_directory_still_works():
    words = ("why", "-f", "examples/node/trainer.yaml", "--machine", "examples/node/machine.yaml")
    now = in_process(*words, "--config", "examples/node/kubelet.yaml", "--kubelet-dir", "examples/node/state")
    earlier = in_process(*words, "--config", "examples/node/kubelet.yaml", "--state", "examples/node/state")

    assert (now.stdout, now.returncode) == (earlier.stdout, 1)
    assert "--state" not in in_process("why", "--help").stdout


DEMAND = '"name": "web", "annotations": {"topology.alignup.dev/policy": "single-numa-node"}'
TWO_GPUS = ("--devices", "example.com/gpu=1@0", "--devices", "example.com/gpu=1@1")
PLACING = """\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cpuManagerPolicy: static
memoryManagerPolicy: Static
reservedSystemCPUs: "0"
systemReserved: {memory: 100Mi}
evictionHard: {memory.available: 28Mi}
reservedMemory: [{numaNode: 0, limits: {memory: 128Mi}}]
"""
WITH_MEMORY = ("--machine", "pack:2 numa:1(memory=8GiB) core:4 pu:1")


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"cpu": "2"}, ""),
        ({"cpu": "5"}, "the kubelet would not place the pod as single-numa-node demands"),
        ({"cpu": "2", "gpu": "1"}, "the kubelet may choose devices that single-numa-node does not accept"),
    ],
)
def test_a_pod_does_not_get_a_node_that_does_not_meet_its_demand(manifest, asked, reason):
    text = pod_manifest(memory="1Gi", **asked).replace('"name": "web"', DEMAND)
    config = ("--config", manifest(PLACING, "kubelet.yaml"))
    run = in_process("why", manifest(text), *WITH_MEMORY, *config, *TWO_GPUS, "-o", "json")

    (answer,) = json.loads(run.stdout)["answers"]
    assert run.returncode == (1 if reason else 0), run.stderr
    assert answer["kubeletVerdict"] == "Pod default/web is admitted"
    assert answer["verdict"].endswith("by the kubelet, but not as its annotations demand") is bool(reason)
    assert (answer["unmetDemand"] or {"reason": ""})["reason"] == reason


def test_the_policies_say_what_the_pod_would_get(manifest):
    config = ("--config", manifest(PLACING, "kubelet.yaml"))
    words = ("why", manifest(pod_manifest(cpu="5", memory="1Gi")), *WITH_MEMORY, *config, "--policies")
    run = in_process(*words)
    (answer,) = json.loads(in_process(*words, "-o", "json").stdout)["answers"]

    assert run.returncode == 0
    rows = [line.split()[:3] for line in run.stdout.partition("\nPolicies\n")[2].splitlines()]
    assert ["none", "met", "admitted:"] in rows
    assert "single-numa-node  not met    rejected: TopologyAffinityError" in run.stdout
    policies = {policy["policy"]: policy for policy in answer["policies"]}
    assert [policies[name]["meetsDemand"] for name in ("none", "best-effort", "restricted")] == [True, True, False]
    assert policies["single-numa-node"]["asNodePolicy"] == "rejected: TopologyAffinityError"
    assert "is on NUMA nodes 0-1" in policies["single-numa-node"]["detail"]


def test_an_unknown_policy_is_not_ignored(manifest):
    run = in_process(
        "why", manifest(pod_manifest(cpu="1", memory="1Gi").replace('"name": "web"', DEMAND.replace("single", "x")))
    )

    assert run.returncode == 1
    assert "annotation topology.alignup.dev/policy is 'x-numa-node'; use" in " ".join(run.stdout.split())


class TestPage:
    def test_it_has_the_answer_and_nothing_from_elsewhere(self, tmp_path):
        file = tmp_path / "ticket.html"
        words = ("--machine", "examples/node/machine.yaml", "--config", "examples/node/kubelet.yaml")
        state = ("--kubelet-dir", "examples/node/state", "--pods", "examples/node/running.yaml")
        run = in_process("why", "-f", "examples/node/trainer.yaml", *words, *state, "--html", file)

        text = file.read_text("utf-8")
        assert (run.returncode, run.stderr) == (1, f"Wrote {file}.\n")
        assert "request 6 CPUs instead of 8 for container train" in text
        assert "ml/finetune" in text
        assert "<svg" in text
        assert not re.search(r"<script|<link|(src|href)=", text)

    def test_a_place_that_cannot_be_written_is_an_error(self, tmp_path):
        run = in_process(
            "why", "-f", "examples/node/trainer.yaml", "--machine", "pu:4", "--html", tmp_path / "no" / "page.html"
        )

        assert run.returncode == 2
        assert "--html: " in run.stderr
