"""The documentation as a site: every page is in its navigation, links lead somewhere, and the reference is complete."""

import re
from pathlib import Path

import pytest
import yaml

from alignup.cli import exit_codes
from tests.console_runner import ROOT
from tools import reference
from tools.command_tree import walk
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


def test_the_page_of_exit_codes_has_the_table():
    text = (ROOT / "docs" / "exit-codes.md").read_text("utf-8")

    assert re.findall(r"^\| (\d+) \| (.*) \|$", text, re.MULTILINE) == [
        (str(code), meaning) for code, meaning in exit_codes.TEXTS.items()
    ]
