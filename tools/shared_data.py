"""Writes what a wheel installs below ``share``: manual pages, and completions where shells look for them."""

import sys
from datetime import UTC, datetime
from pathlib import Path

from alignup import __version__
from alignup.cli.completion import SHELLS, completion_script
from tools.command_tree import walk
from tools.manual import manual_page, page_name
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
    found = {COMPLETIONS[shell]: completion_script(shell) for shell in SHELLS}
    for command in commands:
        depth = len(command.words)
        parent = [one for one in commands if one.words == command.words[:-1]]
        children = [one for one in commands if one.words[:depth] == command.words and len(one.words) == depth + 1]
        text = manual_page(command, version=__version__, date=date, others=[*parent, *children])
        found[f"man/man1/{page_name(command)}.1"] = text
    return found


def main() -> None:
    """Write the files into the directory that is the argument."""
    for name, text in shared_files().items():
        path = Path(sys.argv[1]) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
