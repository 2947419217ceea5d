"""What stands between a command and the person who called it: every way to fail, as a message and an exit code."""

import os
import sys
from collections.abc import Sequence

import click

from alignup.align.errors import AlignError
from alignup.cli.app import InputError, Session, app, escape_control

#: A shell reports 141 of a program that wrote to a pipe nobody reads any more and had no opinion about it.
FAILED, INTERRUPTED, PIPE_CLOSED = 1, 130, 141

#: Set by the shell that wants to complete a line; see ``alignup completion``.
COMPLETE = "_ALIGNUP_COMPLETE"


def run(arguments: Sequence[str]) -> int:
    """Run the command and give its exit code; nothing is raised."""
    session = Session(debug=bool(os.environ.get("ALIGNUP_DEBUG")))
    if asked := os.environ.get(COMPLETE):
        from click.shell_completion import shell_complete  # noqa: PLC0415 - only shells ask

        return shell_complete(app, {}, "alignup", COMPLETE, asked)
    if sys.stdout is None:
        _say("the output is closed: there is nowhere to write to")
        return FAILED
    try:
        code = _run(arguments, session)
        sys.stdout.flush()
    except BrokenPipeError:
        _discard()
        return PIPE_CLOSED
    except (KeyboardInterrupt, click.Abort):
        _discard()  # what is left of the output may be what blocked
        return INTERRUPTED
    except click.UsageError as error:
        error.show()
        return error.exit_code
    except Exception as error:  # noqa: BLE001 - nothing may leave here
        _tell(error, session)
        _discard()
        return error.exit_code if isinstance(error, click.ClickException) else FAILED
    return code


def _run(arguments: Sequence[str], session: Session) -> int:
    """Click's own ``main`` would make 1 of a closed pipe, so its two halves are called here."""
    try:
        with app.make_context("alignup", list(arguments), obj=session) as context:
            app.invoke(context)
    except click.exceptions.Exit as asked:
        return asked.exit_code
    return 0


def _tell(error: Exception, session: Session) -> None:
    if session.debug:
        import traceback  # noqa: PLC0415 - only for who asks

        traceback.print_exception(error)
    if isinstance(error, InputError):
        for what in error.what:
            _say(what)
        for line in filter(None, (error.where, error.advice)):
            click.echo(f"  {escape_control(line)}", err=True)
    elif isinstance(error, AlignError):
        _say(str(error), session.advice)
    elif isinstance(error, click.ClickException):
        _say(error.message)
    elif isinstance(error, OSError):
        why = error.strerror or str(error)
        _say(f"{os.fsdecode(error.filename)}: {why}" if isinstance(error.filename, str | bytes) else why)
    else:
        _say(
            f"this is a fault of alignup, not yours: {type(error).__name__}: {error}",
            "Please report it, with the command and what it prints with --debug added.",
        )


def _say(what: str, advice: str = "") -> None:
    click.echo(f"alignup: {escape_control(what)}", err=True)
    if advice:
        click.echo(advice, err=True)


def _discard() -> None:
    """Let go of the output, so that Python does not try to write the rest of it on its way out."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
