"""Every failure ends with a message and an exit code, never with a traceback."""

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from alignup import __version__
from alignup.cli import exit_codes
from alignup.cli.app import COMMANDS, LazyGroup, app, commands_by_job
from tests.cli.commands import alignup, environment, in_process, python, start
from tests.deadlines import wait_for
from tools.command_tree import walk

ROOT = Path(__file__).parents[2]
LARGE = "pack:4 numa:2 l3:8 core:16 pu:2"


@pytest.mark.parametrize(("form", "unbuffered"), [("text", ""), ("svg", "1")], ids=["buffered", "unbuffered"])
def test_a_closed_pipe_ends_quietly(form, unbuffered):
    with start("machine", "show", LARGE, "-o", form, env={"PYTHONUNBUFFERED": unbuffered}) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        message = process.stderr.read()

    assert (process.returncode, message) == (exit_codes.PIPE_CLOSED, b"")


def is_blocked(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def test_an_interrupt_during_output_ends_quietly():
    with start("machine", "show", LARGE, "-o", "svg") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        wait_for(lambda: is_blocked(process.pid))  # in the write to the full pipe
        process.send_signal(signal.SIGINT)
        process.wait(timeout=120)
        message = process.stderr.read()

    assert (process.returncode, message) == (exit_codes.INTERRUPTED, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_reported_in_one_line():
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        run = python("-m", "alignup", "machine", "show", "pu:2", stdout=full)

    assert (run.returncode, run.stderr) == (1, "alignup: No space left on device\n")


CLOSED = "import os, sys; os.close({}); os.execv(sys.executable, [sys.executable, '-m', 'alignup', *sys.argv[1:]])"


def test_closed_standard_output_is_reported_in_one_line():
    run = python("-c", CLOSED.format(1), "machine", "show")

    assert (run.returncode, run.stderr) == (1, "alignup: standard output is closed\n")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        pytest.param(("why", "-f", "-", "--machine", "pu:2"), 2, id="for a manifest"),
        pytest.param(("simulate", "--trace", "-", "--machine", "pu:2"), 2, id="for a trace"),
    ],
)
def test_closed_standard_input_is_not_an_internal_error(arguments, code):
    run = in_process(*arguments, stdin=None)

    assert run.returncode == code
    assert "internal error" not in run.stderr


def test_standard_input_may_be_closed_when_it_is_not_needed():
    run = python("-c", CLOSED.format(0), "why", "-f", "examples/node/trainer.yaml", "--machine", "pu:2", cwd=ROOT)

    assert run.returncode == 1
    assert "internal error" not in run.stderr


@pytest.mark.parametrize(
    ("arguments", "env"),
    [
        pytest.param(("--debug", "machine", "show", "pack:x"), {}, id="option before the command"),
        pytest.param(("machine", "show", "pack:x", "--debug"), {}, id="option after the command"),
        pytest.param(("machine", "show", "pack:x"), {"ALIGNUP_DEBUG": "1"}, id="environment variable"),
    ],
)
def test_tracebacks_are_printed_on_request(arguments, env):
    run = in_process(*arguments, env=env)

    assert run.returncode == 2
    assert "Traceback (most recent call last)" in run.stderr
    assert "alignup: " in run.stderr


FAULTY = """
import sys
from alignup.cli import app, entry
@app.app.command()
def boom(): raise KeyError("x")
app.COMMANDS.clear()
app.LazyGroup.get_command = lambda self, ctx, name: self.commands[name]
sys.exit(entry.run(sys.argv[1:]))
"""


def test_an_internal_error_says_how_to_report_it():
    run = python("-c", FAULTY, "boom")

    assert run.returncode == 1
    assert run.stderr.splitlines() == [
        "alignup: internal error: KeyError: 'x'",
        "This is a bug in alignup. Please report it with the command and its output with --debug.",
    ]


COMMAND_HELP = list(walk())


@pytest.mark.parametrize("command", COMMAND_HELP, ids=lambda command: command.name)
def test_every_command_has_help_with_an_example(command):
    run = in_process(*command.words[1:], "--help")

    assert (run.returncode, run.stderr) == (0, "")
    assert any(line.startswith(command.name) for line in command.examples)
    text, _, shown = run.stdout.partition("Example")
    assert all(line in shown for line in command.examples)
    assert max(map(len, text.splitlines())) <= 80
    assert max(map(len, shown.splitlines())) <= 160  # examples are not wrapped, so that they can be pasted


#: Examples that need an agent or a cluster, or do not end; the tests of these commands run them.
TESTED_ELSEWHERE = tuple(
    f"alignup {name}"
    for name in (
        *("agent", "admit", "cluster", "collect", "release", "ps", "decisions"),
        *("watch", "web", "schedule", "webhook-certificates", "nri"),
    )
)


#: One command, perhaps in a folder or with its output in a file: no shell is needed to run it.
PLAIN = re.compile(r"(?:cd (?P<folder>\S+)(?:;| &&) )?alignup (?P<words>[^>|]+?)(?: > \S+)?")


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    """A directory to run the examples in, with a recorded machine."""
    place: Path = tmp_path_factory.mktemp("examples")
    (place / "examples").symlink_to(ROOT / "examples")
    assert in_process("machine", "record", place / "host.tar.gz").returncode == 0
    return place


@pytest.mark.parametrize(
    "example",
    dict.fromkeys(
        line for command in COMMAND_HELP for line in command.examples if not line.startswith(TESTED_ELSEWHERE)
    ),
    ids=str,
)
def test_every_example_in_the_help_works(directory, example):
    command = example.replace("machine record", "machine record --force").replace("--compare", "--jobs 1 --compare")
    if (plain := PLAIN.fullmatch(command)) is not None:
        run = in_process(*shlex.split(plain["words"]), cwd=directory / (plain["folder"] or ""))
    else:
        program = environment({"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"})
        run = subprocess.run(  # noqa: S602 - our own examples, which have pipes
            command, shell=True, cwd=directory, env=program, capture_output=True, text=True, check=False, timeout=120
        )

    assert run.returncode in (0, 1)
    assert not re.search("Traceback|not found|^alignup: ", run.stderr)
    assert run.stdout or ">" in command or "record" in command


def test_the_summaries_are_those_of_the_commands():
    with click.Context(app) as context:
        for name, summary in COMMANDS.items():
            command = app.get_command(context, name)
            assert command is not None
            assert (command.short_help or command.help) == summary
    assert isinstance(app, LazyGroup)


def test_help_imports_nothing_slow():
    probe = "import sys; from alignup.cli.entry import run; run(['--help']); print(*sys.modules, file=sys.stderr)"
    run = python("-c", probe)

    loaded = {name.partition(".")[0] for name in run.stderr.split()}
    modules = {name for name in run.stderr.split() if name.startswith("alignup.")}
    modules -= {name for name in modules if name.startswith("alignup.align")}
    assert loaded.isdisjoint({"rich", "yaml", "msgspec", "asyncio", "tarfile", "xml", "http", "unittest"})
    modules.remove("alignup.garbage_collection")
    assert modules == {"alignup.cli", "alignup.cli.app", "alignup.cli.entry", "alignup.cli.exit_codes"}


def test_version():
    """Without a build from git; tests/tools has the commit."""
    run, short = alignup("--version"), in_process("-V")

    assert (run.returncode, run.stdout) == (0, f"alignup {__version__}\n")
    assert short.stdout == run.stdout


def test_why_imports_no_more_than_it_needs():
    """Most of the time of a short command is spent on imports."""
    program = (
        "import sys; from alignup.cli.entry import run; "
        "run(sys.argv[1:]); print(*sorted(sys.modules), sep='\\n', file=sys.stderr)"
    )
    pod, machine = "examples/node/trainer.yaml", "examples/node/machine.yaml"
    command = [sys.executable, "-c", program, "why", "-f", pod, "--machine", machine]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)  # noqa: S603 - our own

    imported = set(run.stderr.splitlines())
    unneeded = "machines.synthetic picture.machine_svg picture.machine_layout documents.decisions store"
    discover = "machines.system machines.cadvisor"
    assert "alignup.cli.why" in imported
    assert not imported & {f"alignup.{name}" for name in f"{unneeded} {discover}".split()}
    assert not imported & {"rich", "asyncio", "shutil"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(("why", "--machin", "x"), "no such option '--machin'; did you mean --machine?", id="misspelled"),
        pytest.param(("why", "--machine"), "--machine: needs a value", id="no value"),
        pytest.param(("why", "--debug=1"), "--debug: takes no value", id="a value of a flag"),
        pytest.param(("wyh",), "no such command 'wyh'; did you mean why?", id="a misspelled command"),
        pytest.param(("machine", "nonsense"), "no such command 'nonsense'", id="a command in a group"),
        pytest.param(
            ("machine", "show", "pack:1", "core:2"), "Got unexpected extra argument (core:2)", id="without quotes"
        ),
        pytest.param(("machine", "record"), "Give either FILE or --script.", id="no argument"),
        pytest.param(
            ("schema", "pod"), "kind: 'pod' is not one of 'machine', 'cluster', 'sweep', 'trace'.", id="no such choice"
        ),
        pytest.param(("help", "why", "pods"), "alignup why has no commands", id="help of no command"),
    ],
)
def test_wrong_arguments_are_described_in_our_words(words, message):
    run = in_process(*words)

    lines = run.stderr.splitlines()
    assert (run.returncode, lines[0]) == (2, f"alignup: {message}")
    assert lines[-1].startswith("  Try 'alignup ")
    assert lines[-1].endswith("--help' for help.")


@pytest.mark.parametrize(("name", "choices"), [("why", "FILE, -f FILE or -k DIR"), ("admit", "FILE, or -f FILE")])
def test_a_command_without_a_file_says_what_is_missing(name, choices):
    run = in_process(name)

    assert run.returncode == 2
    assert run.stderr.startswith(f"alignup: Give {choices}.\n")


@pytest.mark.parametrize(
    ("words", "proposal"),
    [
        pytest.param(("version",), "--version", id="an option of the program"),
        pytest.param(("nodes",), "cluster nodes", id="a command of a group"),
        pytest.param(("record",), "machine record", id="a command of another group"),
        pytest.param(("help", "wyh"), "why", id="a misspelled command after help"),
        pytest.param(("run", "--gpu", "1", "--", "true"), "--gpus N", id="GPUs of a run"),
        pytest.param(("why", "--gpus", "1"), "--devices nvidia.com/gpu=N@NODE", id="GPUs of a machine"),
    ],
)
def test_a_name_from_elsewhere_gets_a_proposal(words, proposal):
    run = in_process(*words)

    assert run.returncode in {2, exit_codes.RUN_FAILED}
    assert run.stderr.splitlines()[0].endswith(f"; did you mean {proposal}?")


def test_the_help_groups_all_commands_by_job():
    shown = in_process("--help").stdout

    assert [name for names in commands_by_job().values() for name in names if f"\n  {name} " not in shown] == []
    assert sorted(name for names in commands_by_job().values() for name in names) == sorted(COMMANDS)
    assert shown.index("Explain and plan") < shown.index("\n  why ") < shown.index("Never a rejected pod")


@pytest.mark.parametrize("words", [(), ("why",), ("cluster", "why")])
def test_help_is_the_same_as_the_option(words):
    assert in_process("help", *words).stdout == in_process(*words, "--help").stdout
