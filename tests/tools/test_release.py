"""The parts of a release: one version, a changelog, and licenses that allow it."""

import re
import tomllib
from importlib import metadata

from alignup import __version__
from tests.console_runner import ROOT


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
