"""Manual pages of the commands, in the format of man(7)."""

import re
from collections.abc import Sequence

from tools.command_tree import CommandHelp


def manual_page(command: CommandHelp, *, version: str, date: str, others: Sequence[CommandHelp] = ()) -> str:
    """Return the page of a command; *others* are those it refers to."""
    title = page_name(command)
    lines = [
        f'.TH "{title.upper()}" "1" "{date}" "alignup {version}" "Alignup"',
        ".SH NAME",
        f"{_text(title)} \\- {_text(command.summary)}",
        ".SH SYNOPSIS",
        f".B {_text(command.name)}",
        _text(command.usage),
        ".SH DESCRIPTION",
    ]
    for paragraph in command.paragraphs:
        lines += _preformatted(paragraph) if paragraph.startswith("\n") else [".PP", _text(paragraph)]
    if command.subcommands:
        lines.append(".SH COMMANDS")
        lines += [line for name, help_text in command.subcommands for line in _term(name, help_text)]
    lines.append(".SH OPTIONS")
    lines += [line for names, help_text in command.options for line in _term(names, help_text)]
    if command.examples:
        lines += [".SH EXAMPLES", *_preformatted("\n".join(command.examples))]
    if others:
        names = ", ".join(f"\\fB{_text(page_name(one))}\\fR(1)" for one in others)
        lines += [".SH SEE ALSO", names]
    return "\n".join(lines) + "\n"


def page_name(command: CommandHelp) -> str:
    return "-".join(command.words)


def _term(term: str, text: str) -> list[str]:
    return [".TP", f"\\fB{_text(term)}\\fR", _text(text)]


def _preformatted(text: str) -> list[str]:
    return [".PP", ".nf", *map(_text, text.strip("\n").splitlines()), ".fi"]


def _text(text: str) -> str:
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return re.sub(r"^([.'])", r"\\&\1", escaped, flags=re.MULTILINE)
