"""The command line: one module per command, imported when the command is called.

``main`` is the entry point, also that of ``kubectl alignup``. Every failure ends with a message that says what is
wrong, where, and what to do, and with an exit code of ``exit_codes``. Use ``--debug`` for Python tracebacks.
"""

import sys
from collections.abc import Sequence
from typing import NoReturn

from alignup import garbage_collection


def main(arguments: Sequence[str] | None = None, *, program: str = "alignup") -> NoReturn:
    """Run the command given by *arguments* (default: those of the process), and exit; usage lines name *program*."""
    garbage_collection.set_for_short_command()
    try:
        from alignup.cli.entry import run  # noqa: PLC0415 - so that Ctrl-C during the import is handled too
    except KeyboardInterrupt:
        sys.exit(130)
    code = run(sys.argv[1:] if arguments is None else arguments, program=program)
    garbage_collection.skip_at_exit()
    sys.exit(code)


def kubectl_main() -> NoReturn:
    """Run ``kubectl alignup``, which is ``alignup cluster``."""
    main(program="kubectl alignup")


def kubectl_complete_main() -> None:
    """Complete the words of ``kubectl alignup`` for kubectl, which runs ``kubectl_complete-alignup`` for this."""
    from alignup.cli.completion import kubectl_completions  # noqa: PLC0415 - only for shells

    for line in kubectl_completions(sys.argv[1:]):
        print(line)  # noqa: T201 - for kubectl
