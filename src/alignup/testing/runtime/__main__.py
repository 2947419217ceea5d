"""A container runtime as a process of its own: ``python -m alignup.testing.runtime --help``.

It says on its output when it listens, and runs until it is told to stop (SIGTERM, SIGINT); its containers end with it.
"""

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from alignup.align.errors import ListenError, ParseError
from alignup.rpc import check_socket_path
from alignup.testing.runtime import script
from alignup.testing.runtime.server import Runtime
from alignup.testing.runtime.service import DRIVERS
from alignup.testing.script import ScriptStep


def main(arguments: Sequence[str] | None = None) -> int:
    """Be a runtime; the exit status."""
    options = _parser().parse_args(arguments)
    try:
        check_socket_path(options.socket)
        steps = script.parse(options.script.read_text()) if options.script else ()
    except (ListenError, ParseError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    asyncio.run(_run(options, steps))
    return 0


async def _run(options: argparse.Namespace, steps: Sequence[ScriptStep]) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    runtime = Runtime(
        options.socket,
        directory=options.dir,
        images=options.image,
        pullable=options.pullable,
        affinity=options.affinity,
    )
    runtime.service.network = not options.no_network
    runtime.service.cgroup_driver = options.cgroup_driver
    async with runtime, asyncio.TaskGroup() as tasks:
        sys.stdout.write(f"listening at {options.socket}\n")
        sys.stdout.flush()
        playing = tasks.create_task(script.play(steps, runtime))
        await stop.wait()
        playing.cancel()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m alignup.testing.runtime",
        description="A container runtime for tests: CRI v1 on a socket, containers as plain processes.",
    )
    parser.add_argument("--socket", required=True, type=Path, metavar="PATH", help="where it listens")
    parser.add_argument("--dir", required=True, type=Path, help="the directory containers run in")
    parser.add_argument(
        "--image", action="append", default=[], metavar="NAME[=COMMAND]", help="an image it has, and what it runs"
    )
    parser.add_argument(
        "--pullable", action="append", default=[], metavar="NAME[=COMMAND]", help="an image it can fetch"
    )
    parser.add_argument("--affinity", action="store_true", help="bind containers to their CPUs, where there are such")
    parser.add_argument("--no-network", action="store_true", help="only pods on the host's network can run")
    parser.add_argument(
        "--cgroup-driver", choices=list(DRIVERS), default="", help="what it says of it; unless said, nothing"
    )
    parser.add_argument(
        "--script", type=Path, metavar="FILE", help="things to do at set times (alignup.testing.runtime.script)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
