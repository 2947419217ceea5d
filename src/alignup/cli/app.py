"""The ``alignup`` command group: its commands are imported only when they are called."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import NamedTuple, Self

import click

from alignup.align.errors import SourceLocation
from alignup.cli.exit_codes import FAILED, USAGE

#: Command → summary. A command's module here has its name, with _ for -; ``alignup --help`` does not import it.
COMMANDS = {
    "why": "Explain why a pod is admitted or rejected, and what would admit it",
    "plan": "Find the fewest pods to move so that a node admits a pod",
    "check": "Check the pods of manifests against kinds of nodes, before a cluster gets them",
    "explain": "Print what a reason code means, and what to do about it",
    "cluster": "Ask the nodes of a cluster about a pod, and list what they have left",
    "collect": "Gather what explains a pod's rejection from a cluster into one archive",
    "simulate": "Simulate a workload on a node, and compare policies",
    "sweep": "Simulate a cluster for every combination of machines, configurations and strategies",
    "doctor": "Check a kubelet's configuration and state files, and repair them",
    "upgrade-check": "Say what breaks on a node when its kubelet gets another release",
    "run": "Run a command on aligned CPUs, memory and devices",
    "audit": "Compare intended with actual placement; fix drift with --fix",
    "agent": "Run the node agent, which admits pods and records each decision",
    "admit": "Send pods to the agent",
    "release": "Release pods and free their resources",
    "ps": "List pods and runs with their placement",
    "decisions": "List the agent's decisions, or explain one of them",
    "watch": "Print the agent's events as they happen",
    "web": "Print a link to the agent's web pages",
    "observe": "Publish what the kubelet of this node holds",
    "nri": "Place containers on NUMA nodes beside a kubelet",
    "schedule": "Tell schedulers which nodes will admit a pod",
    "webhook-certificates": "Create the authority of the webhook of 'schedule --gate'",
    "machine": "Show or record the topology of a machine",
    "schema": "Print the JSON Schema of a kind of file, for editors",
    "completion": "Print the shell completion script",
    "help": "Show the help of a command",
}

#: Job → its commands, in the order of the help; a command that is in none of them is listed last.
JOBS = {
    "Explain and plan, without a cluster": (
        *("why", "check", "explain", "plan", "simulate", "sweep", "doctor", "upgrade-check", "machine"),
    ),
    "Never a rejected pod in a cluster": ("cluster", "collect", "schedule", "observe", "nri", "webhook-certificates"),
    "Aligned commands on one machine": ("run", "ps", "audit"),
    "The node agent": ("agent", "admit", "release", "decisions", "watch", "web"),
    "This program": ("help", "completion", "schema"),
}


_NAME_COLUMNS = max(map(len, COMMANDS)) + 2


class Place(NamedTuple):
    """The place of a problem: ``--OPTION``, ``FILE:LINE``, or neither."""

    option: str = ""
    value: str = ""  #: of the option, if it has several values
    file: str = ""  #: with an option: the directory that it names
    line: int = 0
    detail: str = ""  #: printed below the message

    @classmethod
    def at(cls, location: SourceLocation, object_name: str = "") -> Self:
        document = f"document {location.document}" if location.document else ""
        return cls(file=location.file, line=location.line or 0, detail=", ".join(filter(None, (document, object_name))))

    def put_before(self, messages: Iterable[str]) -> list[str]:
        """Put the place before each of *messages*, unless it begins with the file."""
        file = f"{self.file}/" if self.option else self.file
        prefix = f"{self.option} {self.value}".strip() or (f"{file}:{self.line}" if file and self.line else file)
        if not prefix:
            return list(messages)
        return [message if self.file and message.startswith(file) else f"{prefix}: {message}" for message in messages]


NOWHERE = Place()


class InputError(click.ClickException):
    """Invalid input: what is wrong (one line each), where it is, and what to do about it."""

    exit_code = USAGE

    def __init__(self, *problems: str, place: Place = NOWHERE, advice: str = "") -> None:
        super().__init__("; ".join(problems))
        self.problems = problems
        self.place = place
        self.advice = advice


class FailureError(InputError):
    """A failure with valid input: a server does not answer, an object is not found, a library is missing."""

    exit_code = FAILED


@dataclass(slots=True)
class Session:
    debug: bool = False
    advice: str = ""  #: printed below an error in the input
    failure_code: int = 0  #: exit code of every failure; 0: the exit code of the error
    ignore_unknown_fields: bool = False  #: of manifests


class LazyGroup(click.Group):
    """A group that imports a command when it is called."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"alignup.cli.{cmd_name.replace('-', '_')}").command
        return command

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for job, names in commands_by_job().items():
            with formatter.section(job):
                formatter.write_dl([(name, COMMANDS[name]) for name in names], col_max=_NAME_COLUMNS)


def commands_by_job() -> dict[str, list[str]]:
    """Return the commands of each job; commands of no job have the title ``More``."""
    groups = {job: [name for name in names if name in COMMANDS] for job, names in JOBS.items()}
    more = [name for name in COMMANDS if not any(name in names for names in JOBS.values())]
    return groups | ({"More": more} if more else {})


def _handle_flag(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's way
    """Print the version and exit, or note the flag in the session."""
    if not value or ctx.resilient_parsing:
        return
    if parameter.name == "version":
        from alignup.cli.installation import version_text  # noqa: PLC0415 - only for --version

        click.echo(version_text())
        ctx.exit()
    setattr(ctx.ensure_object(Session), str(parameter.name), True)


def _session_flag(*names: str, summary: str, eager: bool = False) -> click.Option:
    return click.Option(names, is_flag=True, is_eager=eager, expose_value=False, callback=_handle_flag, help=summary)


#: Of ``alignup`` and of ``kubectl alignup``.
VERSION_OPTION = _session_flag("-V", "--version", summary="Show the version.", eager=True)
#: Accepted before and after the command's name.
DEBUG_OPTION = _session_flag("--debug", summary="Print the Python traceback of an error (or set ALIGNUP_DEBUG).")
#: Of the commands that read manifests.
_IGNORE_UNKNOWN_OPTION = _session_flag(
    "--ignore-unknown-fields",
    summary="Read manifests with fields that Kubernetes does not have, and name them in notes.",
)


def define_command(
    name: str, *lines: str, cls: type[click.Command] = click.Command, summary: str = ""
) -> Callable[[Callable[..., None]], click.Command]:
    """Make a function the command *name*, with example *lines* at the end of its help."""

    def decorate(function: Callable[..., None]) -> click.Command:
        short_help = summary or COMMANDS[name]
        command = click.command(name, cls, short_help=short_help, epilog=examples(*lines))(function)
        if any(isinstance(param, click.Option) and param.name in {"files", "pods"} for param in command.params):
            command.params.append(_IGNORE_UNKNOWN_OPTION)
        command.params.append(DEBUG_OPTION)
        return command

    return decorate


def escape_control(text: str) -> str:
    """Escape line breaks and terminal control characters, which file names and file contents may hold."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def examples(*lines: str) -> str:
    return "\b\n" + "\n".join(["Examples:" if len(lines) > 1 else "Example:", *(f"  {line}" for line in lines)])


HELP_OPTIONS = ["-h", "--help"]
KUBECTL = "kubectl alignup"  #: the name of ``alignup cluster`` as a plugin of kubectl


@click.group(
    cls=LazyGroup,
    epilog=examples(
        "alignup machine show", "alignup why -f examples/node/trainer.yaml --machine examples/node/machine.yaml"
    ),
)
def app() -> None:
    """Decide which NUMA nodes, CPUs, memory and devices each container gets, and explain why."""


app.params += [VERSION_OPTION, DEBUG_OPTION]
