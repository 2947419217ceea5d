"""The command line: one file a command group, loaded when one of its commands is called.

``main`` is the one way in. Whatever goes wrong ends in a line or two that say what, where and what to do, and in an
exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted. Python's own traces are for ``--debug``.
"""

import sys
from collections.abc import Sequence
from typing import NoReturn


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command that *arguments* (those of the process unless given) name, and exit."""
    try:
        from alignup.cli.entry import run  # noqa: PLC0415 - a Ctrl-C while this loads is caught as well
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))
