"""The commands of ``alignup`` as data: what manual pages, the reference and tests are made from."""

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass

import click

from alignup.cli.app import app


@dataclass(frozen=True, slots=True)
class CommandHelp:
    """The help of one command."""

    words: tuple[str, ...]  #: such as ``("alignup", "machine", "show")``
    summary: str  #: one line
    usage: str  #: what follows the name: ``[OPTIONS] [MACHINE]``
    paragraphs: tuple[str, ...]  #: those that begin with a line break are preformatted
    options: tuple[tuple[str, str], ...]  #: names and help
    examples: tuple[str, ...]
    subcommands: tuple[tuple[str, str], ...]  #: name and summary

    @property
    def name(self) -> str:
        return " ".join(self.words)


def walk() -> Iterator[CommandHelp]:
    """Return the help of every command, groups before their commands."""
    yield from _walk(app, ("alignup",), None)


def _walk(command: click.Command, words: tuple[str, ...], parent: click.Context | None) -> Iterator[CommandHelp]:
    context = click.Context(command, parent, info_name=words[-1])
    context.help_option_names = ["-h", "--help"]
    children: list[tuple[str, click.Command]] = []
    if isinstance(command, click.Group):
        names = command.list_commands(context)
        children = [(name, child) for name in names if (child := command.get_command(context, name))]
    yield CommandHelp(
        words=words,
        summary=(command.short_help or command.get_short_help_str(200)).rstrip("."),
        usage=" ".join(command.collect_usage_pieces(context)),
        paragraphs=_paragraphs(command.help or ""),
        options=tuple(record for option in command.get_params(context) if (record := option.get_help_record(context))),
        examples=_examples(command.epilog or ""),
        subcommands=tuple((name, child.get_short_help_str(200)) for name, child in children),
    )
    for name, child in children:
        yield from _walk(child, (*words, name), context)


def _paragraphs(text: str) -> tuple[str, ...]:
    """Split help into paragraphs; line breaks stay in those that a backspace marks as preformatted."""
    parts = inspect.cleandoc(text).split("\n\n")
    return tuple(
        part.removeprefix("\b") if part.startswith("\b") else re.sub(r"\s+", " ", part)
        for part in parts
        if part.strip()
    )


def _examples(epilog: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in epilog.splitlines() if line.startswith("  "))
