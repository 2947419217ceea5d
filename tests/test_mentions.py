"""Documents are true: each path, module, name, command and option that they mention exists, and links lead somewhere.

``tests/mentions.py`` says which spellings are checked. A name that other projects have is in its ``OTHERS``.
"""

import re
import tomllib

import pytest

from alignup.cli.app import COMMANDS
from tests.mentions import (
    ROOT,
    Mention,
    anchors,
    is_wrong,
    links_in,
    markdown_files,
    mentions_in_comments,
    mentions_in_docstrings,
    mentions_in_markdown,
    python_files,
)

CHANGELOG = ROOT / "CHANGELOG.md"  #: mentions what is gone, on purpose
DOCUMENTS = [path for path in markdown_files() if path != CHANGELOG]
PYPROJECT = ROOT / "pyproject.toml"


def wrong(mentions) -> list[str]:
    return sorted({str(mention) for mention in mentions if is_wrong(mention)})


def test_documents_mention_what_exists():
    mentions = [mention for path in DOCUMENTS for mention in mentions_in_markdown(path, path.read_text("utf-8"))]

    assert len(mentions) > 3_000
    assert wrong(mentions) == []


def test_docstrings_mention_what_exists():
    mentions = [mention for path in python_files() for mention in mentions_in_docstrings(path, path.read_text("utf-8"))]

    assert len(mentions) > 1_500
    assert wrong(mentions) == []


def test_links_lead_to_files_and_headings():
    broken = []
    for path in [*DOCUMENTS, CHANGELOG]:
        for link in links_in(path, path.read_text("utf-8")):
            target = path.parent / link.target if link.target else path
            if not target.exists() or (link.anchor and link.anchor not in anchors(target.read_text("utf-8"))):
                broken.append(f"{path.relative_to(ROOT)}: {link.target}#{link.anchor}")

    assert broken == []


def test_the_home_page_links_to_every_page():
    home = ROOT / "docs" / "home.md"
    linked = {(home.parent / link.target).resolve() for link in links_in(home, home.read_text("utf-8")) if link.target}

    assert [path.name for path in (ROOT / "docs").rglob("*.md") if path.resolve() not in {*linked, home}] == []


def test_the_readme_lists_every_command():
    listed = (ROOT / "README.md").read_text("utf-8").split("## All commands\n")[1].split("\n\n")[0]

    assert [command for command in COMMANDS if not re.search(rf"\b{command}\b", listed)] == []


def test_comments_in_pyproject_name_packages_that_exist():
    """At the end of a comment on a dependency are its owners, in parentheses; paths of linters match files."""
    text = PYPROJECT.read_text("utf-8")
    owners = [
        owner
        for owned in re.findall(r'^ *(?:\w+ = \[)?"[\w>=.-]+"\]?,? *#.*\(([\w., ]+)\)$', text, re.MULTILINE)
        for owner in owned.split(", ")
    ]
    ignored = tomllib.loads(text)["tool"]["ruff"]["lint"]["per-file-ignores"]

    assert len(owners) > 15
    assert [owner for owner in owners if not exists_as_package(owner)] == []
    assert [pattern for pattern in ignored if not any(ROOT.glob(pattern))] == []
    assert wrong(mentions_in_comments(PYPROJECT, text)) == []


def test_comments_of_pyproject_are_mentions():
    text = "a = 1 # see docs/nothing.md, nothing.py and alignup.nothing\n# and `alignup nothing`, hatch_build.py\n"

    assert wrong(mentions_in_comments(PYPROJECT, text)) == [
        f"pyproject.toml: {name}" for name in ("alignup nothing", "alignup.nothing", "docs/nothing.md", "nothing.py")
    ]


def exists_as_package(name: str) -> bool:
    path = ROOT / "src" / "alignup" / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").exists() or (ROOT / name).is_dir()


@pytest.mark.parametrize(
    "text",
    [
        *("src/alignup/align/nothing.py", "tests/PACKAGE/test_nothing.py", "../nothing", "nothing.py"),
        *("alignup.align.nothing", "placement.cluster.Nothing", "Host.nothing", "host.nothing(pod)", "os.path.nothing"),
        *(":class:`Nothingness`", ":meth:`Host.nothing`"),
        *("a_name_of_nothing", "NameOfNothing", "nameOfNothing", "ALIGNUP_NOTHING", "alignup_nothing_total"),
        *(
            "alignup nothing",
            "alignup why --nothing",
            "alignup machine show --nothing",
            "kubectl alignup nothing",
        ),
        *("--nothing", "--nothing FILE", "make nothing", "make test nothing SEED=1", "python -m alignup.nothing"),
        "python -m bench nothing",
    ],
)
def test_a_mention_of_nothing_is_wrong(text):
    assert is_wrong(Mention(ROOT / "docs" / "cluster.md", text))


@pytest.mark.parametrize(
    "text",
    [
        *("src/alignup/align/admit.py", "tests/PACKAGE/test_MODULE.py", "../README.md", "admit.py"),
        *("alignup.align.admit", "placement.cluster.Cluster", "Host.decide", "host.decide(pod)", "os.path.join"),
        *(":class:`Host`", ":meth:`Host.decide`", ":meth:`decide`"),
        *("feasible_gang", "NodeResourceTopology", "numaNodes", "ALIGNUP_DEBUG", "alignup_decisions_total"),
        *("alignup why --machine x", "kubectl alignup why POD -n ml", "alignup run -- ls --all", "alignup"),
        *("--machine FILE", "make test", "make soak SEED=1", "python -m alignup.testing.plugin", "python -m bench cli"),
        *("spec.nodeName", "gpu.example.com", "a sentence with words", "4Gi", "image.tag"),
    ],
)
def test_a_mention_of_what_exists_is_right(text):
    assert not is_wrong(Mention(ROOT / "docs" / "cluster.md", text))


@pytest.mark.parametrize(
    ("file", "text", "wrong_there"),
    [
        pytest.param("align", "test_cpu_take", False, id="answers of the kubelet"),
        pytest.param("align", "test_nothing", True, id="no such answers"),
        pytest.param("cli", "test_cpu_take", True, id="answers that are not named"),
        pytest.param("align", "../strategies*.py", False, id="files above"),
        pytest.param("align", "../nothing*.py", True, id="no files above"),
    ],
)
def test_a_readme_of_tests_mentions_its_folder(file, text, wrong_there):
    assert is_wrong(Mention(ROOT / "tests" / file / "README.md", text)) == wrong_there


def test_commands_in_blocks_are_mentions():
    text = "```console\n$ alignup why \\\n    --nothing | head\n```\n\n    make nothing   a target\n\nand `--nothing`\n"
    mentions = list(mentions_in_markdown(ROOT / "README.md", text))

    assert [re.sub(" +", " ", mention.text) for mention in mentions] == [
        "--nothing",
        "$ alignup why --nothing",
        "make nothing",
    ]
    assert len(wrong(mentions)) == 3


def test_anchors_are_those_of_headings():
    assert anchors("# What `alignup` does\n\n## A, b & c: 1.5\n") == {"what-alignup-does", "a-b--c-15"}
