"""The command ``alignup`` itself: which commands there are, and where to find them when one is called."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

import click

from alignup import __version__

#: Command → what it is about. Its module in this package is of the same name, and is not loaded for the help.
COMMANDS = {
    "why": "Would a pod be admitted, where would it go, and if not, what would let it in?",
    "simulate": "What becomes of a whole workload, under one configuration or compared under many?",
    "doctor": "Will this kubelet start, and behave? State files looked into and repaired.",
    "run": "Run one command on CPUs, memory and devices that belong together.",
    "audit": "Is everything where it was placed? What drifted is found, and put back.",
    "agent": "Admit pods on this node, each decision on disk before it is answered.",
    "admit": "Send pods to an agent.",
    "release": "Release pods: what they had is free again.",
    "ps": "What runs where: pods an agent knows, who waits, and what alignup run runs.",
    "logs": "What a container printed.",
    "decisions": "What an agent decided, and why.",
    "watch": "What an agent does, as it happens.",
    "machine": "Machines: look at one, or record one to look at elsewhere.",
    "completion": "Completion of commands and options for your shell.",
}

Command = TypeVar("Command", bound=Callable[..., Any])


class InputError(click.ClickException):
    """Input that is no good: what is wrong with it (a line each), where it is, and what to do."""

    exit_code = 2

    def __init__(self, *what: str, where: str = "", advice: str = "") -> None:
        super().__init__("; ".join(what))
        self.what, self.where, self.advice = what, where, advice


@dataclass(slots=True)
class Session:
    """What one call of the program remembers."""

    debug: bool = False
    advice: str = ""  #: what to do when the input is no good


class LazyGroup(click.Group):
    """A group whose commands are loaded when they are called."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """The names, in the order people meet them."""
        return list(COMMANDS)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"alignup.cli.{cmd_name}").command
        return command

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Names and summaries, without loading anything."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def debug_option(command: Command) -> Command:
    """``--debug``, wherever on the line people put it."""

    def remember(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's way
        if value:
            ctx.ensure_object(Session).debug = True

    return click.option(
        "--debug",
        is_flag=True,
        expose_value=False,
        callback=remember,
        help="Show Python's trace of an error (or set ALIGNUP_DEBUG).",
    )(command)


def escape_control(text: str) -> str:
    """*text* without line ends and what else a terminal would obey: names and contents of files may be in it."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def examples(*lines: str) -> str:
    """Commands to try, as the end of a help page, each on a line of its own."""
    return "\b\n" + "\n".join(["Examples:" if len(lines) > 1 else "Example:", *(f"  {line}" for line in lines)])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(
        "alignup machine show", "alignup why -f examples/node/trainer.yaml --machine examples/node/machine.yaml"
    ),
)
@click.version_option(__version__, message="alignup %(version)s")
@debug_option
def app() -> None:
    """Which NUMA nodes, CPUs, memory and devices each container gets, and why."""
