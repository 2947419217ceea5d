"""Every error of every command has one shape: ``alignup: PLACE: what``, then indented lines that say what to do."""

import re

import click
import pytest

from tests.cli.commands import in_process
from tests.cli.manifests import pod_manifest
from tests.cli.test_option_errors import commands

#: Programs that run until they are stopped: their options are tried where they are parsed, in test_option_errors.
SERVING = {("agent",), ("observe",), ("nri",), ("schedule",)}
#: What makes a command read its other options.
NEEDED = {
    ("why",): ["-f", "pod.yaml", "--machine", "numa:2 core:4 pu:1"],
    ("simulate",): ["-f", "pod.yaml", "--machine", "numa:2 core:4 pu:1"],
    ("admit",): ["-f", "pod.yaml"],
    ("sweep",): ["sweep.yaml"],
    ("upgrade-check",): ["--to", "1.37", "--from", "1.36", "--machine", "numa:2 core:4 pu:1"],
    ("cluster", "upgrade-check"): ["--to", "1.37"],
    ("cluster", "why"): ["web"],
    ("cluster", "collect"): ["web"],
    ("collect",): ["web"],
    ("release",): ["web"],
    ("run",): ["--dry-run", "true"],
    ("schema",): ["machine"],
    ("completion",): ["bash"],
}
LINE = re.compile(r"alignup: \S.*\S")
ALL = [words for words, _ in commands()]
FILES = [
    (words, option.opts[-1])
    for words, command in commands()
    if words not in SERVING
    for option in command.params
    if isinstance(option, click.Option)
    and not option.is_flag
    and (isinstance(option.type, click.Path) or option.metavar in {"FILE", "DIR", "MACHINE"})
    # Files that are written, and places that need not exist here.
    and option.opts[-1] not in {"--archive", "--results", "--html", "--svg", "--save", "--csv", "--filename"}
    and option.opts[-1] not in {"--kubelet-dir", "--state-dir", "--to"}
]


def name(value):
    return " ".join(value) if isinstance(value, tuple) else value


def fail(*words, directory, text=None):
    """Run a command in *directory*, and return its error lines and exit code."""
    (directory / "pod.yaml").write_text(pod_manifest(cpu="1", memory="1Gi"))
    env = {"ALIGNUP_AGENT": f"unix:{directory}/none", "KUBECONFIG": str(directory / "none"), "HOME": str(directory)}
    run = in_process(*words, cwd=directory, env=env | {"ALIGNUP_RUN_DIR": str(directory)}, stdin=text or "")
    lines = [line for line in run.stderr.splitlines() if not line.startswith("note: ")]
    return lines, run.returncode


def check(failure, words, codes=frozenset({1, 2})):
    lines, code = failure
    assert code in ({125, 124} if words[0] == "run" else codes), lines
    assert lines
    assert LINE.fullmatch(lines[0]), lines
    for line in lines:
        assert line.startswith(("alignup: ", "  ")), lines
        assert not re.search(r"Traceback|internal error|Errno|^Usage:|^Error:|\x1b", line), lines
    assert lines[-1].startswith("  ") or "; " in lines[-1] or "did you mean" in lines[-1], lines


@pytest.mark.parametrize("words", ALL, ids=name)
def test_unknown_options_and_missing_values(words, tmp_path):
    for option in ("--nonsense", "--kubernetes-versio"):
        failure = fail(*words, option, directory=tmp_path)
        check(failure, words, {2})
        assert option in failure[0][0]
    valued = [
        option.opts[-1]
        for described, command in commands()
        if described == words
        for option in command.params
        if isinstance(option, click.Option) and not option.is_flag and not option.count
    ]
    for option in valued:
        check(fail(*words, option, directory=tmp_path), words, {2})


@pytest.mark.parametrize(("words", "option"), FILES, ids=name)
def test_files_that_are_missing_or_garbage(words, option, tmp_path):
    garbage = tmp_path / "garbage"
    garbage.write_bytes(b"\x00\xff\x1b[31m{[: \n\t- %")
    (tmp_path / "empty").mkdir()
    unusable = ["missing", "missing\x1b[31m\nx"]
    # A kubelet takes a directory without such files, and why it refuses a file is the answer of these commands.
    unusable += [] if option in {"--config-dir", "--etc"} else ["empty"]
    unusable += [] if words in {("doctor",), ("upgrade-check",)} and option == "--config" else ["garbage"]
    for value in unusable:
        needed = NEEDED.get(words, [])
        at = -1 if words == ("run",) else len(needed)
        check(fail(*words, *needed[:at], option, value, *needed[at:], directory=tmp_path), words)


@pytest.mark.parametrize(
    "words",
    [("why",), ("simulate", "-f"), ("admit",), ("cluster", "why", "-f"), ("sweep",), ("machine", "show")],
    ids=name,
)
def test_inputs_that_are_missing_or_garbage(words, tmp_path):
    (tmp_path / "garbage").write_bytes(b"\x00\xff\x1b[31m{[: \n\t- %")
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("kind: [\n")
    (tmp_path / "list").write_text("- 1\n")
    (tmp_path / "deep").write_text("[" * 20_000)
    for value in ("missing", "garbage", "empty", "text", "list", "deep", "/dev/null", "-"):
        if value == "-" and words[0] in {"sweep", "machine"}:
            continue
        check(fail(*words, value, directory=tmp_path), words)


#: Commands whose first argument is one of several words.
CHOICES = [
    (words, parameter)
    for words, command in commands()
    for parameter in command.params
    if isinstance(parameter, click.Argument) and isinstance(parameter.type, click.Choice) and parameter.required
]


@pytest.mark.parametrize(("words", "parameter"), CHOICES, ids=lambda value: name(value) if value in ALL else "")
def test_a_missing_choice_is_reported_in_one_line(words, parameter, tmp_path):
    lines, code = fail(*words, directory=tmp_path)

    missing = f"missing argument {str(parameter.name).upper()}: choose from {', '.join(parameter.type.choices)}"
    assert (lines[0], code) == (f"alignup: {missing}", 2)
