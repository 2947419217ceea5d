"""A container runtime as a process: ``python -m alignup.testing.runtime --help``.

It prints a line once it listens, and runs until SIGTERM or SIGINT; its containers end with it.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from alignup.align.errors import ListenError, ParseError
from alignup.rpc import check_socket_path
from alignup.testing import script
from alignup.testing.runtime.script import ACTIONS
from alignup.testing.runtime.server import Runtime
from alignup.testing.runtime.service import DRIVERS


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        check_socket_path(options.socket)
        steps = script.parse(options.script.read_text(), ACTIONS) if options.script else ()
    except (ListenError, ParseError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    asyncio.run(_run(options, steps))
    return 0


async def _run(options: argparse.Namespace, steps: Sequence[script.ScriptStep[Runtime]]) -> None:
    runtime = Runtime(
        options.socket,
        directory=options.dir,
        images=options.image,
        pullable=options.pullable,
        affinity=options.affinity,
    )
    runtime.service.network = not options.no_network
    runtime.service.cgroup_driver = options.cgroup_driver
    async with runtime:
        sys.stdout.write(f"listening at {options.socket}\n")
        sys.stdout.flush()
        await script.run_until_signal(script.play(steps, runtime))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m alignup.testing.runtime",
        description="A container runtime for tests: CRI v1 on a socket, containers as plain processes.",
    )
    parser.add_argument("--socket", required=True, type=Path, metavar="PATH", help="the socket to listen at")
    parser.add_argument("--dir", required=True, type=Path, help="the working directory of containers")
    parser.add_argument(
        "--image", action="append", default=[], metavar="NAME[=COMMAND]", help="an image it has, and its command"
    )
    parser.add_argument(
        "--pullable", action="append", default=[], metavar="NAME[=COMMAND]", help="an image that can be pulled"
    )
    parser.add_argument(
        "--affinity", action="store_true", help="bind containers to their CPUs, if the machine has them"
    )
    parser.add_argument("--no-network", action="store_true", help="run only pods on the host network")
    parser.add_argument("--cgroup-driver", choices=list(DRIVERS), default="", help="report this cgroup driver")
    parser.add_argument("--script", type=Path, metavar="FILE", help="timed actions (alignup.testing.runtime.script)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
