"""The parts of a release: one version, a changelog, and licenses that allow it."""

import re
import tomllib
from importlib import metadata
from typing import Any

import pytest
import yaml

from alignup import __version__
from tests.console_runner import ROOT
from tools.release_notes import release_notes


def test_every_copy_of_the_version_is_set_with_it():
    """The rest of the tree has it in examples of documents only."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["bumpversion"]
    paths = [path for folder in ("src", "deploy") for path in (ROOT / folder).rglob("*") if path.is_file()]
    version = __version__.encode()
    having = {str(path.relative_to(ROOT)) for path in paths if path.suffix != ".pyc" and version in path.read_bytes()}

    assert settings["current_version"] == __version__
    assert having == {file["filename"] for file in settings["files"]}
    for file in settings["files"]:
        line = file["search"].replace("{current_version}", re.escape(__version__))
        assert len(re.findall(line, (ROOT / file["filename"]).read_text("utf-8"), re.MULTILINE)) == 1


def test_the_changelog_has_this_version_or_unreleased_changes():
    """Sections are in order, newest first; a release has a date, and ends the unreleased changes."""
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    heads = re.findall(r"^## \[(.+?)\](?: - (\d{4}-\d\d-\d\d))?$", text, re.MULTILINE)

    assert heads[0] == ("Unreleased", "")
    assert all(date for _, date in heads[1:])
    assert [date for _, date in heads[1:]] == sorted((date for _, date in heads[1:]), reverse=True)
    assert "dev" in __version__ or heads[1][0] == __version__
    assert set(re.findall(r"^### (\w+)$", text, re.MULTILINE)) <= {
        *("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
    }


def test_releasing_takes_ten_steps():
    assert re.findall(r"^(\d+)\. ", (ROOT / "RELEASING.md").read_text("utf-8"), re.MULTILINE) == [
        *map(str, range(1, 11))
    ]


def workflows() -> dict[str, dict[str, Any]]:
    return {path.stem: yaml.safe_load(path.read_text("utf-8")) for path in (ROOT / ".github" / "workflows").glob("*")}


def test_workflows_run_targets_and_modules_that_exist():
    scripts = [
        step["run"]
        for workflow in workflows().values()
        for job in workflow["jobs"].values()
        for step in job["steps"]
        if "run" in step
    ]
    targets = {
        target for script in scripts for line in re.findall(r"\bmake ([a-z0-9 ]+)", script) for target in line.split()
    }
    modules = {module for script in scripts for module in re.findall(r"-m (tools\.\w+)", script)}

    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert targets >= {"lint", "test", "dist", "image", "bundle", "sbom", "krew"}
    assert [
        target for target in targets if not re.search(rf"^[\w -]*\b{target}\b[\w -]*:", makefile, re.MULTILINE)
    ] == []
    assert modules == {"tools.release_notes"}


def test_a_release_is_published_after_tests_and_an_approval_only():
    jobs = workflows()["release"]["jobs"]
    writing = [name for name, job in jobs.items() if "write" in str(job.get("permissions", ""))]

    assert writing == ["publish"]
    assert jobs["publish"]["environment"] == "release"
    assert set(jobs["publish"]["needs"]) == {"build", "test"}
    assert jobs["test"]["needs"] == "build"
    assert not any(
        "checkout" in step.get("uses", "") for step in jobs["publish"]["steps"]
    )  # it runs nothing of the tree


def test_notes_are_the_section_of_a_version():
    sections = ("## [Unreleased]", "## [0.2.0] - 2026-01-01\n\n### Added\n\n- a", "## [0.1.0] - 2025-01-01\n\n- b\n")
    text = "\n\n".join(("# Changelog", *sections))

    assert release_notes("0.2.0", text) == "### Added\n\n- a\n"
    assert release_notes("0.1.0", text) == "- b\n"
    for version in ("0.3.0", "Unreleased", "0.2"):
        with pytest.raises(ValueError, match="no section"):
            release_notes(version, text)


def test_the_chart_describes_its_definitions_for_artifact_hub():
    chart = yaml.safe_load((ROOT / "deploy" / "helm" / "alignup" / "Chart.yaml").read_text("utf-8"))
    described = {(crd["name"], crd["version"]) for crd in yaml.safe_load(chart["annotations"]["artifacthub.io/crds"])}
    definitions = [
        yaml.safe_load(path.read_text("utf-8")) for path in (ROOT / "deploy" / "kubernetes" / "crds").glob("*s.yaml")
    ]
    ours = {
        (definition["metadata"]["name"], definition["spec"]["versions"][0]["name"])
        for definition in definitions
        if definition["kind"] == "CustomResourceDefinition" and definition["spec"]["group"] == "alignup.dev"
    }

    assert described == ours


def test_every_library_states_a_license_that_allows_redistribution():
    text = (ROOT / "lock" / "runtime.txt").read_text("utf-8")
    locked = re.findall(r"^([\w.-]+)==[\w.+]+(?! ; .*emscripten)(?=\s)", text, re.MULTILINE)
    licenses = {name: stated_license(name) for name in locked}

    free = re.compile(r"MIT|BSD|Apache|ISC|PSF|Python Software|MPL|Unlicense")
    assert {name: text for name, text in licenses.items() if not free.search(text)} == {}
    assert {"click", "grpcio", "cryptography"} <= licenses.keys()


def stated_license(name: str) -> str:
    stated = metadata.metadata(name).json
    classifiers = [line for line in stated.get("classifier", ()) if line.startswith("License ::")]
    return " ".join([str(stated.get("license_expression", "")), str(stated.get("license", "")), *classifiers])
