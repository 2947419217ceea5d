"""The entry point: run a command, and turn every failure into a message and an exit code."""

import os
import sys
from collections.abc import Iterable, Sequence

import click

from alignup.align.errors import AlignError, StoreError
from alignup.cli.app import HELP_OPTIONS, KUBECTL, InputError, Session, app, escape_control
from alignup.cli.exit_codes import FAILED, INTERRUPTED, OK, PIPE_CLOSED

#: Set by a shell that completes a command line; see ``alignup completion``.
COMPLETE = "_ALIGNUP_COMPLETE"


def run(arguments: Sequence[str], *, program: str = "alignup") -> int:
    """Run the command and return its exit code. Raises nothing; click's ``main`` returns 1 for a closed pipe.

    *program* is the name in usage lines; as ``kubectl alignup``, the arguments are those of ``alignup cluster``.
    """
    session = Session(debug=bool(os.environ.get("ALIGNUP_DEBUG")))
    if instruction := os.environ.get(COMPLETE):
        from click.shell_completion import shell_complete  # noqa: PLC0415 - only for shells

        return shell_complete(app, {}, "alignup", COMPLETE, instruction)
    if sys.stdout is None:
        _print_error("standard output is closed")
        return FAILED
    try:
        try:
            command: click.Command = app
            if program == KUBECTL:
                from alignup.cli.cluster import command  # noqa: PLC0415 - only for kubectl
            words = list(arguments)
            with command.make_context(program, words, obj=session, help_option_names=HELP_OPTIONS) as context:
                command.invoke(context)
            code = OK
        except click.exceptions.Exit as exit_:
            code = exit_.exit_code
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
        return PIPE_CLOSED
    except (KeyboardInterrupt, click.Abort):
        _discard_output()  # the write that was interrupted would block again
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last handler
        if session.debug:
            import traceback  # noqa: PLC0415 - only for --debug

            traceback.print_exception(error)
        described_error = _describe(error, ["cluster"] if program == KUBECTL else arguments)
        _report(described_error, session, *_find_command(program, arguments))
        _discard_output()
        return session.failure_code or getattr(described_error, "exit_code", FAILED)
    return code


def _describe(error: Exception, arguments: Sequence[str]) -> Exception:
    """Return *error* as an error in the input, or as a missing library, if it is either."""
    if isinstance(error, ImportError):
        from alignup.cli.installation import describe_import_error  # noqa: PLC0415 - only for errors

        return describe_import_error(error, next((word for word in arguments if not word.startswith("-")), ""))
    from alignup.cli.agent_client import input_error  # noqa: PLC0415
    from alignup.web.agent_client import AgentError  # noqa: PLC0415

    return input_error(error) if isinstance(error, AgentError) else error


def _find_command(program: str, arguments: Sequence[str]) -> tuple[click.Command, str]:
    """Return the command that *arguments* name, as far as they name one, and its name in usage lines."""
    command: click.Command = app
    words = [program]
    for word in (["cluster"] if program == KUBECTL else []) + [*arguments]:
        if not isinstance(command, click.Group):
            break
        if not (subcommand := command.get_command(click.Context(command), word)):
            break
        command = subcommand
        words += [word] if word in arguments else []
    return command, " ".join(words)


def _report(error: Exception, session: Session, command: click.Command, name: str) -> None:
    match error:
        case click.BadParameter(param=click.Option() as option) if not isinstance(error, click.MissingParameter):
            advice = f"Try '{error.ctx.command_path} --help' for help." if error.ctx else ""
            _print_error(f"{option.opts[-1]}: {error.message}", details=(advice,))
        case click.exceptions.NoArgsIsHelpError():
            error.show()
        case click.UsageError():
            path = error.ctx.command_path if error.ctx else name
            _print_error(_describe_usage(error, command), details=(f"Try '{path} --help' for help.",))
        case InputError():
            _print_error(*error.place.put_before(error.problems), details=(error.place.detail, error.advice))
        case StoreError():
            _print_error(error.message, details=(error.where, error.advice))
        case AlignError():
            message, *details = str(error).splitlines() or [""]
            _print_error(message, details=details)
            if session.advice and not details:
                click.echo(session.advice, err=True)
        case click.ClickException():
            _print_error(error.message)
        case OSError():
            reason = error.strerror or str(error)
            has_name = isinstance(error.filename, str | bytes)
            _print_error(f"{os.fsdecode(error.filename)}: {reason}" if has_name else reason)
        case _:
            _print_error(f"internal error: {type(error).__name__}: {error}")
            click.echo(
                "This is a bug in alignup. Please report it with the command and its output with --debug.", err=True
            )


def _describe_usage(error: click.UsageError, command: click.Command) -> str:
    """Return the message of *error* in our words; a misspelled name gets a proposal."""
    match error:
        case click.MissingParameter(param=click.Parameter() as parameter):
            name = parameter.opts[-1] if isinstance(parameter, click.Option) else parameter.human_readable_name
            choices = parameter.type.choices if isinstance(parameter.type, click.Choice) else ()
            advice = f": choose from {', '.join(choices)}" if choices else ""
            return f"missing {parameter.param_type_name} {name}{advice}"
        case click.BadOptionUsage():
            flags = [option for option in command.params if isinstance(option, click.Option) and option.is_flag]
            is_flag = any(error.option_name in flag.opts for flag in flags)
            return f"{error.option_name}: {'takes no value' if is_flag else 'needs a value'}"
        case click.NoSuchOption(option_name=name):
            return f"no such option {name!r}{_propose(_similar_options(name, command) or error.possibilities or [])}"
        case click.NoSuchCommand(command_name=name, ctx=click.Context(command=click.Group() as group) as context):
            return f"no such command {name!r}{_propose(_similar_commands(name, group, context))}"
        case click.BadParameter(param=click.Argument() as argument):
            return f"{argument.human_readable_name if argument.metavar else argument.name}: {error.message}"
    return error.format_message()


def _similar_options(name: str, command: click.Command) -> list[str]:
    """Return what an option of other programs is called here."""
    if name not in {"--gpu", "--gpus"}:
        return []
    options = {option for parameter in command.params for option in parameter.opts}
    replacements = {
        "--gpus": "--gpus N",
        "--device": "--device nvidia.com/gpu=N",
        "--devices": "--devices nvidia.com/gpu=N@NODE",
    }
    return [text for option, text in replacements.items() if option in options]


def _similar_commands(name: str, group: click.Group, context: click.Context) -> list[str]:
    """Return options and commands of groups that have this name, or a command with a similar one."""
    if any(f"--{name}" in option.opts for option in group.params):
        return [f"--{name}"]
    names = group.list_commands(context)
    for outer in ("cluster", "machine") if group is app else ():
        inner = group.get_command(context, outer)
        if isinstance(inner, click.Group) and name in inner.list_commands(context):
            return [f"{outer} {name}"]
    from difflib import get_close_matches  # noqa: PLC0415 - only for errors

    return get_close_matches(name, names, n=1)


def _propose(names: Sequence[str]) -> str:
    return f"; did you mean {names[0]}?" if names else ""


def _print_error(*messages: str, details: Iterable[str] = ()) -> None:
    for message in messages:
        click.echo(f"alignup: {escape_control(message)}", err=True)
    for line in filter(None, details):
        click.echo(f"  {escape_control(line)}", err=True)


def _discard_output() -> None:
    """Redirect standard output to /dev/null, so that Python does not write the rest of it at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
