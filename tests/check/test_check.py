"""``alignup check``: manifests against kinds of nodes."""

import json
import os
import shlex
from pathlib import Path

import jsonschema_rs
import pytest
import yaml

from alignup.cli import check as cli
from tests.cli.commands import in_process

ROOT = Path(__file__).parents[2]
#: The part of SARIF 2.1.0 that we write, by its specification. The schema of OASIS has terms of its own, and is not
#: here; ALIGNUP_SARIF_SCHEMA names a copy (sarif-schema-2.1.0.json) to check with as well.
SARIF = yaml.safe_load((Path(__file__).parent / "sarif.yaml").read_text("utf-8"))
COPY = os.environ.get("ALIGNUP_SARIF_SCHEMA")
OFFICIAL = [pytest.param(json.loads(Path(COPY).read_text("utf-8")), id="official")] if COPY else []
TWO_NODES = "pack:2 numa:1(memory=16GiB) core:4 pu:2"
SINGLE = "topologyManagerPolicy: single-numa-node"
CONFIGURATION = """\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cpuManagerPolicy: static
reservedSystemCPUs: "0"
"""


def deployment(name: str, cpu: str, *, annotations: str = "{}", comment: str = "") -> str:
    return f"""\
{comment}
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}, namespace: ml}}
spec:
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}, annotations: {annotations}}}
    spec:
      containers:
      - name: app
        image: example.com/app
        resources: {{limits: {{cpu: "{cpu}", memory: 1Gi}}}}
"""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with two kinds of nodes: ``strict`` aligns to one NUMA node, ``loose`` aligns nothing."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "strict.yaml").write_text(f"{CONFIGURATION}{SINGLE}\n")
    (tmp_path / "loose.yaml").write_text(CONFIGURATION)
    (tmp_path / "machine").write_text(TWO_NODES)
    (tmp_path / "manifests").mkdir()
    return tmp_path / "manifests"


def check(*words: str | Path, nodes: tuple[str, ...] = ("strict",), stdin: str | None = None):
    options = [word for name in nodes for word in ("--node", f"{name}={TWO_NODES},{name}.yaml")]
    return in_process("check", *words, *options, stdin=stdin)


def findings(*words: str | Path, nodes: tuple[str, ...] = ("strict",)) -> list[dict[str, object]]:
    listed: list[dict[str, object]] = json.loads(check(*words, "-o", "json", nodes=nodes).stdout)["findings"]
    return listed


def test_a_pod_that_no_numa_node_holds_is_rejected_with_its_place_and_a_remedy(repository):
    (repository / "app.yaml").write_text(deployment("small", "2") + "---\n" + deployment("large", "10"))

    run = check(repository, "-o", "json", nodes=("strict", "loose"))

    document = json.loads(run.stdout)
    rejected = [finding for finding in document["findings"] if finding["level"] == "rejected"]
    assert run.returncode == 1
    assert (document["workloads"], document["nodes"]) == (2, ["strict", "loose"])
    assert [(finding["code"], finding["name"], finding["nodes"]) for finding in rejected] == [
        ("TopologyAffinityError", "large", ["strict"])
    ]
    assert Path(str(rejected[0]["file"])).name == "app.yaml"
    assert rejected[0]["line"] == 16
    assert rejected[0]["remedy"]


@pytest.mark.parametrize(
    ("level", "cpu", "code"),
    [
        ("rejected", "2", 0),
        ("warning", "1500m", 1),
        ("misaligned", "1500m", 0),
        ("misaligned", "2", 0),
    ],
)
def test_the_exit_code_follows_the_level_that_fails(repository, level, cpu, code):
    (repository / "app.yaml").write_text(deployment("app", cpu))

    assert check(repository, "--fail-on", level).returncode == code


def test_findings_without_a_node_are_about_the_manifest(repository):
    (repository / "app.yaml").write_text(deployment("app", "2", annotations='{topology.alignup.dev/polcy: "x"}'))

    (finding,) = findings(repository)

    assert (finding["code"], finding["nodes"]) == ("UnknownAnnotation", [])


def test_a_comment_accepts_a_finding_in_its_document_only(repository):
    ignore = "# alignup: ignore FractionalCPUs, Other"
    (repository / "app.yaml").write_text(
        deployment("first", "500m") + "---\n" + deployment("second", "500m", comment=ignore)
    )

    assert [finding["name"] for finding in findings(repository)] == ["first"]


def test_a_baseline_accepts_what_was_there_before(repository):
    (repository / "app.yaml").write_text(deployment("old", "10"))
    check("manifests", "--write-baseline", "baseline.json")
    both = f"# one line more\n{deployment('old', '10')}---\n{deployment('new', '10')}"
    (repository / "app.yaml").write_text(both)

    run = check("manifests", "--baseline", "baseline.json", "-o", "json")

    document = json.loads(run.stdout)
    assert ([finding["name"] for finding in document["findings"]], document["accepted"]) == (["new"], 1)


def test_github_shows_each_finding_at_its_line(repository):
    (repository / "a,b.yaml").write_text(deployment("large", "10"))

    lines = check("manifests", "-o", "github").stdout.splitlines()

    assert len(lines) == 1
    place = "file=manifests/a%2Cb.yaml,line=2,title=TopologyAffinityError"
    assert lines[0].startswith(f"::error {place}::Deployment ml/large on strict: ")


def test_sarif_names_rules_places_and_levels(repository):
    (repository / "an app.yaml").write_text(deployment("large", "10") + "---\n" + deployment("half", "500m"))

    log = json.loads(check("manifests", "-o", "sarif").stdout)

    (run,) = log["runs"]
    assert log["version"] == "2.1.0"
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["FractionalCPUs", "TopologyAffinityError"]
    assert [(result["ruleId"], result["level"]) for result in run["results"]] == [
        ("TopologyAffinityError", "error"),
        ("FractionalCPUs", "note"),
    ]
    _, rule = run["tool"]["driver"]["rules"]
    assert rule["shortDescription"]["text"].startswith("The policy of the topology manager")
    location = run["results"][0]["locations"][0]["physicalLocation"]
    assert location == {"artifactLocation": {"uri": "manifests/an%20app.yaml"}, "region": {"startLine": 2}}


@pytest.mark.parametrize("schema", [pytest.param(SARIF, id="the parts that we write"), *OFFICIAL])
def test_sarif_follows_its_schema(repository, schema):
    wrong = '{topology.alignup.dev/polcy: "x"}'
    (repository / "an app.yaml").write_text(deployment("large", "10", annotations=wrong))
    (repository / "b.yaml").write_text(deployment("half", "500m") + "---\n" + deployment("even", "2"))
    (repository / "c.yaml").write_text(deployment("right", "2"))
    log, empty_log = (check(path, "-o", "sarif").stdout for path in ("manifests", "manifests/c.yaml"))

    validator = jsonschema_rs.validator_for(schema, validate_formats=True)
    assert [str(error) for error in validator.iter_errors(json.loads(log))] == []
    assert len(json.loads(log)["runs"][0]["results"]) == 3
    assert [str(error) for error in validator.iter_errors(json.loads(empty_log))] == []


def test_standard_input_and_what_is_no_manifest(repository):
    (repository / "values.yaml").write_text("replicas: 3\n")
    (repository / "chart").mkdir()
    (repository / "chart" / "Chart.yaml").write_text("apiVersion: v2\nname: chart\n")
    (repository / "kubelet.json").write_text('{"kubeletconfig": {"apiVersion": "x"}}')

    directory, stdin = check(repository), check("-", stdin=deployment("app", "2"))

    assert (directory.returncode, stdin.returncode) == (0, 0)
    assert "helm template" in directory.stderr
    assert stdin.stdout == "1 workload on 1 kind of node: nothing found\n"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("manifests",), "There is no node to check against"),
        (("manifests", "--node", "x"), "is not NAME=MACHINE[,CONFIG]"),
        (("manifests", "--node", "gpu=pack:9x"), "--node gpu: the text does not describe a machine"),
        (("nowhere", "--node", "a=pack:1 numa:1 core:2 pu:1"), "No such file or directory"),
        (("manifests", "--node", "a=pack:1 core:2 pu:1", "--node", "a=pack:1 core:2 pu:1"), "two nodes are called a"),
        (("manifests", "--node", "a=pack:1 core:2 pu:1", "--baseline", "manifests/app.yaml"), "is not a baseline"),
    ],
)
def test_unusable_input_is_named(repository, words, problem):
    (repository / "app.yaml").write_text(deployment("app", "2"))

    run = in_process("check", *words)

    assert run.returncode == 2
    assert problem in " ".join(run.stderr.split())


def test_all_broken_manifests_are_named_at_once(repository):
    (repository / "a.yaml").write_text(deployment("a", "x"))
    (repository / "b.yaml").write_text(deployment("b", "y"))

    run = check("manifests")

    assert run.returncode == 2
    assert "manifests/a.yaml" in run.stderr
    assert "manifests/b.yaml" in run.stderr


@pytest.mark.parametrize(
    ("policy", "code"), [("strict", "UnknownDemand"), ("single-numa-node", "DemandNotMet"), ("best-effort", "")]
)
def test_a_pod_that_no_node_places_as_it_demands_is_rejected(repository, policy, code):
    annotations = f"{{topology.alignup.dev/policy: {policy}}}"
    (repository / "app.yaml").write_text(deployment("app", "2", annotations=annotations))

    rejected = [each for each in findings(repository, nodes=("loose",)) if each["level"] == "rejected"]

    assert [each["code"] for each in rejected] == ([code] if code else [])


WORKFLOW = ROOT / "examples" / "check" / "workflow.yaml"


def test_the_example_workflow_calls_the_action_and_the_command_as_they_are():
    workflow = yaml.safe_load(WORKFLOW.read_text("utf-8"))
    action = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    (called,) = [step["with"] for step in steps if "/alignup@" in step.get("uses", "")]
    required = {name for name, item in action["inputs"].items() if item.get("required")}

    assert required <= called.keys() <= action["inputs"].keys()
    (line,) = [line for step in steps for line in step.get("run", "").splitlines() if line.startswith("alignup ")]
    command, _, file = line.partition(" > ")
    name, *words = shlex.split(command.partition(" || ")[0])[1:]
    assert cli.command.make_context(name, words).params["output"] == "sarif"
    (uploaded,) = [step["with"]["sarif_file"] for step in steps if "upload-sarif" in step.get("uses", "")]
    assert file.partition(" ")[0] == uploaded
    assert workflow["permissions"] == {"contents": "read"}


def test_the_action_calls_the_command_as_it_is(repository):
    action = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
    *_, script = action["runs"]["steps"][-1]["run"].splitlines()
    options = [word for word in script.split() if word.startswith("-")]
    known = {name for parameter in cli.command.params for name in parameter.opts}

    assert set(options) <= known
