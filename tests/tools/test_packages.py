"""The files that the build adds to a wheel: the commit, manual pages and completions."""

import json
import re
import runpy
import subprocess
import tomllib

import pytest

from alignup import __version__
from alignup.cli import installation
from alignup.cli.app import COMMANDS
from tests.console_runner import ROOT
from tools.command_tree import walk
from tools.shared_data import shared_files

build_document = runpy.run_path(str(ROOT / "hatch_build.py"))["build_document"]

#: A command that would get Alignup from a package index.
PROMISE = re.compile(r"\b(pip|pipx|uv tool) (install|run) (--\S+ )*['\"]?alignup\b|--from ['\"]?alignup\b")


@pytest.fixture(scope="module")
def shared():
    return shared_files()


def test_every_command_has_a_manual_page_with_its_options_and_examples(shared):
    pages = {f"man/man1/alignup-{name}.1" for name in COMMANDS}

    assert pages | {"man/man1/alignup.1", "man/man1/alignup-machine-show.1"} <= shared.keys()
    page = shared["man/man1/alignup-machine-show.1"]
    assert page.startswith('.TH "ALIGNUP-MACHINE-SHOW" "1" "20')
    assert "\\fB\\-\\-kubelet\\fR\nShow the machine as the kubelet sees it." in page
    assert ".SH EXAMPLES\n.PP\n.nf\nalignup machine show\n" in page
    assert "\\fBalignup\\-machine\\fR(1)" in page


def test_man_reads_the_pages_without_a_warning(shared):
    """Lines that begin with a dot or an apostrophe are requests: all of ours are known ones."""
    requests = {line.split()[0] for page in shared.values() for line in page.splitlines() if line[:1] in {".", "'"}}

    assert {request for request in requests if request != "'"} - {
        ".TH",
        ".SH",
        ".PP",
        ".TP",
        ".B",
        ".nf",
        ".fi",
    } == set()


def test_every_command_has_an_example_and_a_summary():
    assert [
        command.name for command in walk() if not (command.summary and (command.examples or command.subcommands))
    ] == []


def test_completions_are_where_shells_look_for_them(shared):
    assert "complete -o nosort -F" in shared["bash-completion/completions/alignup"]
    assert shared["zsh/site-functions/_alignup"].startswith("#compdef alignup\n")
    assert "complete --no-files --command alignup" in shared["fish/vendor_completions.d/alignup.fish"]


def test_the_page_of_installation_has_every_extra():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    page = (ROOT / "docs" / "install.md").read_text("utf-8")

    extras = project["optional-dependencies"].keys() - {"dev", "browser"}
    assert [extra for extra in extras if f"| `{extra}` |" not in page] == []


class TestCommit:
    @pytest.fixture
    def repository(self, tmp_path):
        def git(*words):
            user = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
            command = ["git", "-C", tmp_path, *user, *words]
            return subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603

        (tmp_path / "file").write_text("1")
        git("init", "-q")
        git("add", "file")
        git("commit", "-qm", "one")
        return tmp_path, git("rev-parse", "HEAD").strip()

    def test_it_is_that_of_the_repository_with_whether_files_have_changed(self, repository, monkeypatch):
        monkeypatch.delenv("ALIGNUP_COMMIT", raising=False)
        place, commit = repository

        assert build_document(place) == {"commit": commit, "changed": False}
        (place / "file").write_text("2")
        assert build_document(place) == {"commit": commit, "changed": True}

    def test_a_source_distribution_keeps_it(self, tmp_path, monkeypatch):
        monkeypatch.delenv("ALIGNUP_COMMIT", raising=False)
        packed = {"commit": "12ab", "changed": False}
        (tmp_path / "src" / "alignup").mkdir(parents=True)
        assert build_document(tmp_path) is None

        (tmp_path / "src" / "alignup" / "build.json").write_text(json.dumps(packed))

        assert build_document(tmp_path) == packed

    def test_the_environment_can_give_it(self, tmp_path, monkeypatch):
        monkeypatch.setenv("ALIGNUP_COMMIT", "34cd")

        assert build_document(tmp_path) == {"commit": "34cd", "changed": False}

    @pytest.mark.parametrize(
        ("document", "text"),
        [
            pytest.param(None, f"alignup {__version__}", id="not from git"),
            pytest.param(
                {"commit": "0123456789abcdef", "changed": False}, f"alignup {__version__} (commit 0123456789ab)"
            ),
            pytest.param(
                {"commit": "0" * 40, "changed": True}, f"alignup {__version__} (commit 000000000000, with changes)"
            ),
        ],
    )
    def test_the_version_names_it(self, document, text, tmp_path, monkeypatch):
        if document:
            (tmp_path / "build.json").write_text(json.dumps(document))
        monkeypatch.setattr(installation, "files", lambda _package: tmp_path)

        assert installation.version_text() == text


def test_no_text_promises_a_package_index_or_registry_that_has_nothing():
    """``install_advice`` is the one place that says what pip installs; documents refer to the README."""
    paths = [
        ROOT / "README.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "deploy").rglob("*"),
        *(ROOT / "src").rglob("*.py"),
    ]
    texts = {path: path.read_text("utf-8") for path in paths if path.is_file() and path.suffix != ".pyc"}

    wrong = [str(path) for path, text in texts.items() if PROMISE.search(text)]

    assert wrong == []
    assert "pip install '.[agent,cluster]'" in texts[ROOT / "README.md"]
    assert "pip install '.[agent,cluster]'" in installation.install_advice("agent", "cluster")
