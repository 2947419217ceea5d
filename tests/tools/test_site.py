"""The documentation as a site: every page is in its navigation, and the reference is complete."""
# ruff: noqa: SLF001 - the tables of field names

import re
from pathlib import Path

import msgspec
import pytest
import yaml

from alignup.align.release import NEWEST
from alignup.align.settings import FEATURE_GATES
from alignup.cli import exit_codes
from alignup.documents.machines import MachineDocument
from alignup.kubernetes.configuration.fields import USED_FIELDS, Configuration
from alignup.simulate import cluster_files, trace
from alignup.simulate.file_structs import field_names
from tests.console_runner import ROOT
from tools import reference
from tools.command_tree import walk
from tools.reference import TOP

PAGES = [ROOT / name for name in TOP] + sorted((ROOT / "docs").rglob("*.md"))
CONFIGURATION = (ROOT / "docs" / "configuration.md").read_text("utf-8")


def nav_paths(entry):
    """Return every path in the navigation, in order."""
    if isinstance(entry, str):
        return [entry]
    values = entry.values() if isinstance(entry, dict) else entry
    return [path for value in values for path in nav_paths(value)]


@pytest.fixture(scope="module")
def generated():
    return {name: "\n".join(lines) + "\n" for name, lines in reference.pages().items()}


def test_every_page_is_in_the_navigation_once_and_the_tutorial_comes_first(generated):
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"]
    paths = nav_paths(nav)

    reference_pages = {f"docs/reference/{name}" for name in generated}
    known = {str(path.relative_to(ROOT)) for path in PAGES} | {"deploy/README.md"} | reference_pages
    assert len(paths) == len(set(paths))
    assert set(paths) == known
    titles = [title for entry in nav for title in entry]
    assert titles == ["Overview", "Tutorial", "How-to guides", "Reference", "Explanation", "Contributing"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_fences_are_rendered_as_code(page: Path):
    fences = [line for line in page.read_text("utf-8").splitlines() if "```" in line]

    assert [fence for fence in fences if not re.fullmatch(r"```[\w-]*", fence)] == [], "the site shows them literally"
    assert all(not closing.strip("`") for closing in fences[1::2])
    assert len(fences) % 2 == 0


def test_the_reference_has_every_command_option_metric_and_object(generated):
    commands = generated["commands.md"]

    assert all(f"\n## {command.name}\n" in commands for command in walk())
    assert "| `-f, --filename FILE` |" in commands
    assert "| `GET /v1/pods` |" in generated["http.md"]
    assert "## HostState (alignup.dev/" in generated["objects.md"]
    assert "| `kubelet_topology_manager_admission_requests_total` | counter |" in generated["metrics.md"]
    assert "alignup_prediction" in generated["metrics.md"]
    assert "| `alignup_schedule_known_nodes` | gauge |" in generated["metrics.md"]
    assert "| `alignup_gate_pods` | gauge |" in generated["metrics.md"]
    assert "| `kubelet_container_aligned_compute_resources_count` |" in generated["metrics.md"]


def rows(heading: str) -> set[str]:
    """Return the names in the first column of the tables below a heading of the page of configuration."""
    text = CONFIGURATION.split(f"# {heading}\n")[1].split("\n#")[0]
    return set(re.findall(r"^\| `([^`]+)`", text, re.MULTILINE))


@pytest.mark.parametrize(
    ("heading", "fields"),
    [
        ("KubeletConfiguration", USED_FIELDS.keys() - {"apiVersion", "kind"}),
        ("Feature gates that change decisions", FEATURE_GATES.keys()),
        ("Cluster", field_names(cluster_files.ClusterDocument)),
        ("Cluster: an entry of groups; Sweep: an entry of machines", field_names(cluster_files.GroupDocument)),
        ("Sweep", field_names(cluster_files.SweepDocument)),
        ("Sweep: an entry of configurations", field_names(cluster_files.ConfigurationDocument)),
        ("Sweep: workload", field_names(cluster_files.WorkloadDescription)),
        ("Trace", field_names(trace.TraceDocument)),
        ("Trace: an event", {name for names in trace._EVENT_FIELDS.values() for name in names}),
    ],
)
def test_the_page_of_configuration_has_every_field(heading, fields):
    assert rows(heading) == set(fields)


def test_the_page_of_configuration_has_every_policy_option_and_its_stage():
    shown = set(re.findall(r"^\| `\w+PolicyOptions` \| `([\w-]+)` \| .* \| (\w+) \|$", CONFIGURATION, re.MULTILINE))

    stages = dict(NEWEST.options)
    assert shown == {(name, str(stage)) for name, stage in stages.items()}


def test_the_page_of_configuration_has_the_defaults_of_the_kubelet():
    defaults = dict(re.findall(r"^\| `(\w+)` \| .*? \| (.*?) \|", CONFIGURATION, re.MULTILINE))

    assert defaults["maxPods"] == str(Configuration().max_pods)
    assert defaults["cpuManagerReconcilePeriod"] == str(Configuration().cpu_manager_reconcile_period)
    assert defaults["evictionHard"] == ", ".join(
        f"{name}: {text}" for name, text in Configuration().eviction_hard.items()
    )


def test_the_page_of_configuration_has_every_environment_variable():
    named = set(re.findall(r"`([A-Z_]+)` ?(?:[|,]|and)", CONFIGURATION))
    used = set()
    for path in (ROOT / "src" / "alignup").rglob("*.py"):
        if "testing" in path.parts or "wire" in path.parts:
            continue
        text = path.read_text("utf-8")
        used |= set(re.findall(r"\bALIGNUP_[A-Z_]*[A-Z]\b", text))
        used |= {name.upper() for name in re.findall(r"environ\w*(?:\.get\(|\[)\"(\w+)\"", text)}

    assert used - named == {"_ALIGNUP_COMPLETE"} & used
    assert len(used) > 15


def test_the_page_of_values_has_every_value_of_the_chart_with_its_default_and_meaning():
    values = yaml.safe_load((ROOT / "deploy" / "helm" / "alignup" / "values.yaml").read_text("utf-8"))
    page = (ROOT / "docs" / "helm-values.md").read_text("utf-8")
    shown = re.findall(r"^\| `([^`]+)` \| `([^`]*)` \| (.+) \|$", page, re.MULTILINE)

    assert {name: yaml.safe_load(default) for name, default, _ in shown} == dict(chart_values(values))
    assert [name for name, _, meaning in shown if not meaning.strip().endswith(".")] == []


def chart_values(values, path=""):
    for name, value in values.items():
        if isinstance(value, dict) and value and name not in {"resources", "nodeSelector"}:
            yield from chart_values(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value


def test_every_field_of_a_machine_file_is_on_the_page_of_machines():
    page = (ROOT / "docs" / "machines.md").read_text("utf-8")
    _, schemas = msgspec.json.schema_components([MachineDocument], ref_template="{name}")
    objects = {name: schema for name, schema in schemas.items() if "enum" not in schema}
    for name, schema in objects.items():
        assert (name, [field for field in schema["properties"] if f"`{field}`" not in page]) == (name, [])
        assert all(inner.get("description") for inner in schema["properties"].values())


def test_the_page_of_exit_codes_has_the_table():
    text = (ROOT / "docs" / "exit-codes.md").read_text("utf-8")

    assert re.findall(r"^\| (\d+) \| (.*) \|$", text, re.MULTILINE) == [
        (str(code), meaning) for code, meaning in exit_codes.TEXTS.items()
    ]
