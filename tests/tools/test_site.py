"""The documentation as a site: every page is in its navigation, links lead somewhere, and the reference is complete."""
# ruff: noqa: SLF001 - the tables of field names

import re
from pathlib import Path

import pytest
import yaml

from alignup.cli import exit_codes
from alignup.kubernetes.configuration.fields import USED_FIELDS
from alignup.simulate import cluster_file, sweep_file, trace
from tests.console_runner import ROOT
from tools import reference
from tools.command_tree import walk
from tools.configuration_reference import FILE_FIELDS, KUBELET_FIELDS, PROGRAMS, RUN_VARIABLES, machine_fields
from tools.site import TOP

PAGES = [ROOT / name for name in TOP if name.endswith(".md")] + sorted((ROOT / "docs").rglob("*.md"))
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def nav_paths(entry):
    """Every path in the navigation, in order."""
    if isinstance(entry, str):
        return [entry]
    values = entry.values() if isinstance(entry, dict) else entry
    return [path for value in values for path in nav_paths(value)]


@pytest.fixture(scope="module")
def generated():
    return reference.pages()


def test_every_page_is_in_the_navigation_once_and_tasks_come_first(generated):
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"]
    paths = nav_paths(nav)

    made = {f"docs/reference/{name}" for name in generated}
    known = {str(path.relative_to(ROOT)) for path in PAGES} | {"deploy/README.md"} | made
    assert len(paths) == len(set(paths))
    assert set(paths) == known
    assert [title for entry in nav for title in entry] == [
        *("Overview", "Install", "Why was my pod rejected?", "Choose a policy", "Run on a cluster"),
        *(
            "A node without a kubelet",
            "Run one command",
            "Simulate a fleet",
            "Reference",
            "How it works",
            "Contributing",
        ),
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path):
    targets = [target for target in LINK.findall(page.read_text("utf-8")) if "://" not in target]

    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_reference_has_every_command_option_metric_and_object(generated):
    commands = generated["commands.md"]

    assert all(f"\n## {command.name}\n" in commands for command in walk())
    assert "| `-f, --filename FILE` |" in commands
    assert "| `GET /v1/pods` |" in generated["http.md"]
    assert "## HostState (alignup.dev/" in generated["objects.md"]
    assert "| `kubelet_topology_manager_admission_requests_total` | counter |" in generated["metrics.md"]
    assert "alignup_prediction" in generated["metrics.md"]


def test_the_reference_has_every_field_of_configuration_files(generated):
    text = generated["configuration.md"]

    assert KUBELET_FIELDS.keys() == USED_FIELDS.keys() - {"apiVersion", "kind"}
    assert FILE_FIELDS["Cluster"].keys() == set(cluster_file._FIELDS)
    assert list(FILE_FIELDS.values())[1].keys() == set(cluster_file._GROUP_FIELDS)
    assert FILE_FIELDS["Sweep"].keys() == set(sweep_file._FIELDS)
    assert FILE_FIELDS["Sweep: an entry of configurations"].keys() == set(sweep_file._CONFIGURATION_FIELDS)
    assert FILE_FIELDS["Sweep: workload"].keys() == set(sweep_file._WORKLOAD_FIELDS)
    assert FILE_FIELDS["Trace: an event"].keys() == {name for own in trace._EVENT_FIELDS.values() for name in own}
    for fields in (KUBELET_FIELDS, *FILE_FIELDS.values()):
        assert [name for name in fields if f"| `{name}` |" not in text] == []
    assert "| `reservedSystemCPUs` | text | none | CPUs that pods do not get" in text


def test_the_reference_has_every_option_of_the_programs(generated):
    text = generated["configuration.md"]
    commands = {command.words[-1]: command for command in walk()}

    for name in PROGRAMS:
        part = text.split(f"## Options of alignup {name}\n")[1].split("\n## ")[0]
        options = [names.split(",")[0].split("/")[0].split()[0] for names, _ in commands[name].options]
        assert [one for one in options if f"`{one}`" not in part and one != "-h"] == []


def test_the_reference_has_every_environment_variable(generated):
    named = set(re.findall(r"`([A-Z_]+)` ?[|,]", generated["configuration.md"])) | set(RUN_VARIABLES)
    used = set()
    for path in (ROOT / "src" / "alignup").rglob("*.py"):
        if "testing" in path.parts or "wire" in path.parts:
            continue
        text = path.read_text("utf-8")
        used |= set(re.findall(r"\bALIGNUP_[A-Z_]*[A-Z]\b", text))
        used |= {name.upper() for name in re.findall(r"environ\w*(?:\.get\(|\[)\"(\w+)\"", text)}

    assert used - named == {"_ALIGNUP_COMPLETE"} & used
    assert len(used) > 15


def test_every_field_of_a_machine_file_is_in_the_reference_and_on_the_page_of_machines(generated):
    page = (ROOT / "docs" / "machines.md").read_text("utf-8")
    for path, schema in machine_fields().items():
        missing = [name for name in schema["properties"] if f"`{name}`" not in page]
        assert (path, missing) == (path, [])
        assert all(f"| `{name}` |" in generated["configuration.md"] for name in schema["properties"])
        assert all(inner.get("description") for inner in schema["properties"].values())


def test_the_page_of_exit_codes_has_the_table():
    text = (ROOT / "docs" / "exit-codes.md").read_text("utf-8")

    assert re.findall(r"^\| (\d+) \| (.*) \|$", text, re.MULTILINE) == [
        (str(code), meaning) for code, meaning in exit_codes.TEXTS.items()
    ]
