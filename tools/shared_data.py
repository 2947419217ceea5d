"""Manual pages (man(7)) and completions where shells look for them: what a wheel has below ``share``."""

import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from alignup import __version__
from alignup.cli.completion import SHELLS, completion_script
from tools.command_tree import CommandHelp, walk
from tools.wheels import source_date

#: Where each shell looks for the completion of a command, below ``share``.
COMPLETIONS = {
    "bash": "bash-completion/completions/alignup",
    "zsh": "zsh/site-functions/_alignup",
    "fish": "fish/vendor_completions.d/alignup.fish",
}


def shared_files() -> dict[str, str]:
    """Return path → text."""
    commands = list(walk())
    date = datetime.fromtimestamp(source_date(Path(__file__).parents[1]), UTC).strftime("%Y-%m-%d")
    files = {COMPLETIONS[shell]: completion_script(shell) for shell in SHELLS}
    for command in commands:
        depth = len(command.words)
        parent = [other for other in commands if other.words == command.words[:-1]]
        children = [
            other for other in commands if other.words[:depth] == command.words and len(other.words) == depth + 1
        ]
        text = manual_page(command, version=__version__, date=date, others=[*parent, *children])
        files[f"man/man1/{page_name(command)}.1"] = text
    return files


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
        names = ", ".join(f"\\fB{_text(page_name(other))}\\fR(1)" for other in others)
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


def main() -> None:
    """Write the files into the directory that is the argument."""
    for name, text in shared_files().items():
        path = Path(sys.argv[1]) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
