"""Every way to fail ends in a message and an exit code, never in a trace."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from alignup import __version__
from alignup.cli import entry
from alignup.cli.app import COMMANDS, LazyGroup, app
from tests.cli.commands import alignup, environment, inside, python, started

ROOT = Path(__file__).parents[2]
LARGE = "pack:4 numa:2 l3:8 core:16 pu:2"


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(("nonsense",), id="no such command"),
        pytest.param(("machine", "nonsense"), id="no such command in a group"),
        pytest.param(("machine", "show", "-o", "png"), id="no such form"),
        pytest.param(("machine", "show", "--nonsense"), id="no such option"),
        pytest.param(("machine", "show", "pack:1", "core:2"), id="a synthetic machine without quotes"),
        pytest.param(("machine", "record"), id="a missing argument"),
    ],
)
def test_wrong_usage_is_2_and_says_where_help_is(arguments):
    run = inside(*arguments)

    assert run.returncode == 2
    assert "--help' for help." in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("form", ["text", "svg"])
def test_output_that_nobody_reads_ends_quietly(form, unbuffered):
    with started("machine", "show", LARGE, "-o", form, env={"PYTHONUNBUFFERED": unbuffered}) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()

    assert (process.returncode, said) == (entry.PIPE_CLOSED, b"")


def test_an_interrupt_ends_quietly_even_while_writing():
    with started("machine", "show", LARGE, "-o", "svg") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)  # it writes now, and soon waits for somebody to read the rest
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        process.wait(timeout=30)
        said = process.stderr.read()

    assert (process.returncode, said) == (entry.INTERRUPTED, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("form", ["text", "svg"])
def test_a_full_disk_is_one_line(form):
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        run = python("-m", "alignup", "machine", "show", "pu:2", "-o", form, stdout=full)

    assert (run.returncode, run.stderr) == (1, "alignup: No space left on device\n")


CLOSED = "import os, sys; os.close({}); os.execv(sys.executable, [sys.executable, '-m', 'alignup', *sys.argv[1:]])"


def test_a_closed_output_is_one_line():
    run = python("-c", CLOSED.format(1), "machine", "show")

    assert (run.returncode, run.stderr) == (1, "alignup: the output is closed: there is nowhere to write to\n")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        pytest.param(("why", "-f", "examples/node/trainer.yaml", "--machine", "pu:2"), 1, id="that is not needed"),
        pytest.param(("why", "-f", "-", "--machine", "pu:2"), 2, id="that is asked for"),
        pytest.param(("simulate", "--trace", "-", "--machine", "pu:2"), 2, id="that is to be a trace"),
    ],
)
def test_a_closed_input_is_no_fault(arguments, code):
    run = python("-c", CLOSED.format(0), *arguments, cwd=ROOT)

    assert run.returncode == code
    assert "fault" not in run.stderr


@pytest.mark.parametrize(
    ("arguments", "env"),
    [
        pytest.param(("--debug", "machine", "show", "pack:x"), {}, id="before the command"),
        pytest.param(("machine", "show", "pack:x", "--debug"), {}, id="after it"),
        pytest.param(("machine", "show", "pack:x"), {"ALIGNUP_DEBUG": "1"}, id="in the environment"),
    ],
)
def test_traces_are_for_who_asks(arguments, env):
    run = inside(*arguments, env=env)

    assert run.returncode == 1
    assert "Traceback (most recent call last)" in run.stderr
    assert "alignup: " in run.stderr


FAULTY = """
import sys
from alignup.cli import app, guard
@app.app.command()
def boom(): raise KeyError("x")
app.COMMANDS.clear()
app.Lazy.get_command = lambda self, ctx, name: self.commands[name]
sys.exit(guard.run(sys.argv[1:]))
"""


def test_a_fault_of_ours_says_how_to_report_it():
    run = python("-c", FAULTY, "boom")

    assert run.returncode == 1
    assert run.stderr.splitlines() == [
        "alignup: this is a fault of alignup, not yours: KeyError: 'x'",
        "Please report it, with the command and what it prints with --debug added.",
    ]


def every_command() -> list[tuple[str, ...]]:
    """Each command and group by the words that call it."""
    found: list[tuple[str, ...]] = [()]
    with click.Context(app) as context:
        for name in COMMANDS:
            command = app.get_command(context, name)
            assert command is not None
            inner = command.commands if isinstance(command, click.Group) else ()
            found += [(name,), *((name, each) for each in inner)]
    return found


def examples_of(words: tuple[str, ...]) -> list[str]:
    """The commands that the help of a command shows."""
    command: click.Command = app
    for word in words:
        assert isinstance(command, click.Group)
        with click.Context(command) as context:
            found = command.get_command(context, word)
        assert found is not None
        command = found
    return [line.strip() for line in (command.epilog or "").splitlines()[2:]]


@pytest.mark.parametrize("words", every_command(), ids=lambda words: " ".join(["alignup", *words]))
def test_every_command_has_help_with_an_example(words):
    run = inside(*words, "--help")

    assert (run.returncode, run.stderr) == (0, "")
    assert any(line.startswith(" ".join(["alignup", *words])) for line in examples_of(words))
    text, _, shown = run.stdout.partition("Example")
    assert all(line in shown for line in examples_of(words))
    assert max(map(len, text.splitlines())) <= 80
    assert max(map(len, shown.splitlines())) <= 160  # an example is to be pasted whole


#: Examples that do not end by themselves, or need what is not everywhere; they are run where their command is tested.
ELSEWHERE = tuple(f"alignup {name}" for name in ("agent", "admit", "release", "ps", "logs", "decisions", "watch"))


#: Commands that leave the process they run in as it was.
HARMLESS = ("why", "simulate", "doctor", "machine", "completion")


@pytest.fixture(scope="module")
def somewhere(tmp_path_factory) -> Path:
    """A directory from which the examples can be run, with a recorded machine in it."""
    place: Path = tmp_path_factory.mktemp("examples")
    (place / "examples").symlink_to(ROOT / "examples")
    assert alignup("machine", "record", place / "host.tar.gz").returncode == 0
    return place


@pytest.mark.parametrize(
    "example",
    dict.fromkeys(line for words in every_command() for line in examples_of(words) if not line.startswith(ELSEWHERE)),
    ids=str,
)
def test_every_example_of_the_help_runs(somewhere, example):
    command = example.replace("machine record", "machine record --force")
    if set("|>") & set(command) or "--compare" in command or shlex.split(command)[1] not in HARMLESS:
        program = environment({"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"})
        run = subprocess.run(  # noqa: S602 - our own examples, which have redirections
            command, shell=True, cwd=somewhere, env=program, capture_output=True, text=True, check=False, timeout=60
        )
    else:
        run = inside(*shlex.split(command)[1:], cwd=somewhere)

    assert run.returncode in (0, 1)
    assert not re.search("Traceback|not found|^alignup: ", run.stderr)
    assert run.stdout or ">" in command or "record" in command


def test_the_summaries_of_the_commands_are_those_of_their_help():
    with click.Context(app) as context:
        for name, summary in COMMANDS.items():
            command = app.get_command(context, name)
            assert command is not None
            assert (command.short_help or command.help) == summary
    assert isinstance(app, LazyGroup)


def test_help_loads_nothing_heavy():
    probe = "import sys; from alignup.cli.guard import run; run(['--help']); print(*sys.modules, file=sys.stderr)"
    run = python("-c", probe)

    loaded = {name.partition(".")[0] for name in run.stderr.split()}
    own = {name for name in run.stderr.split() if name.startswith("alignup.") and not name.startswith("alignup.align")}
    assert loaded.isdisjoint({"rich", "yaml", "msgspec", "asyncio", "tarfile", "xml", "http", "unittest"})
    assert own == {"alignup.cli", "alignup.cli.app", "alignup.cli.entry"}


def test_the_version_is_the_packages():
    run = alignup("--version")

    assert (run.returncode, run.stdout) == (0, f"alignup {__version__}\n")
