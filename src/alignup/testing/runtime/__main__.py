"""A container runtime as a process: ``python -m alignup.testing.runtime --help``.

It prints a line once it listens, and runs until SIGTERM or SIGINT; its containers end with it. Its script has these
actions, besides ``fault`` and ``crash`` (``alignup.testing.script``):

    {"after": 1, "do": "image", "image": "busybox"}
    {"after": 1, "do": "pullable", "image": "registry.test/app:1=sleep 60"}
    {"after": 1, "do": "forget", "image": "busybox"}
    {"after": 1, "do": "network", "ready": false}
    {"after": 5, "do": "kill", "container": "main", "signal": 9}
    {"after": 5, "do": "lose", "pod": "web"}
    {"after": 5, "do": "drop", "seconds": 2}

``kill`` signals the newest container of that name, if any; ``lose`` ends all sandboxes of a pod. ``drop`` makes the
runtime unreachable for some seconds while its containers keep running. After ``crash`` they keep running as orphans.
"""

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from alignup.align.errors import ParseError
from alignup.kubernetes.plugins.rpc import check_socket_path
from alignup.testing import script
from alignup.testing.runtime.server import DRIVERS, Runtime
from alignup.testing.script import Action, Actions, Arguments


def _check_signal(step: Arguments) -> None:
    if step["signal"] not in signal.valid_signals():
        raise ParseError(f"{step['signal']} is not a signal")


def _kill(runtime: Runtime, step: Arguments) -> None:
    with suppress(KeyError):
        runtime.kill(step["container"], signal.Signals(step["signal"]))


async def _drop(runtime: Runtime, step: Arguments) -> None:
    await runtime.drop()
    await asyncio.sleep(step["seconds"])
    await runtime.serve()


ACTIONS: Actions[Runtime] = {
    "image": Action(lambda runtime, step: runtime.images.add(step["image"]), required={"image": str}),
    "pullable": Action(lambda runtime, step: runtime.images.add(step["image"], pullable=True), required={"image": str}),
    "forget": Action(lambda runtime, step: runtime.images.remove(step["image"]), required={"image": str}),
    "network": Action(lambda runtime, step: setattr(runtime, "network", step["ready"]), required={"ready": bool}),
    "kill": Action(_kill, required={"container": str, "signal": int}, check=_check_signal),
    "lose": Action(lambda runtime, step: runtime.fail_sandboxes(step["pod"]), required={"pod": str}),
    "drop": Action(_drop, required={"seconds": int | float}),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m alignup.testing.runtime",
        description="A container runtime for tests: CRI v1 on a socket, containers as plain processes.",
    )
    add, image = parser.add_argument, "NAME[=COMMAND]"
    add("--socket", required=True, type=Path, metavar="PATH", help="the socket to listen at")
    add("--dir", required=True, type=Path, help="the working directory of containers")
    add("--image", action="append", default=[], metavar=image, help="an image it has, and its command")
    add("--pullable", action="append", default=[], metavar=image, help="an image that can be pulled")
    add("--affinity", action="store_true", help="bind containers to their CPUs, if the machine has them")
    add("--no-network", action="store_true", help="run only pods on the host network")
    add("--cgroup-driver", choices=list(DRIVERS), default="", help="report this cgroup driver")
    add("--script", type=Path, metavar="FILE", help="timed actions (alignup.testing.runtime.__main__)")
    options = parser.parse_args(arguments)
    return script.main(lambda: _runtime(options), ACTIONS, file=options.script, report=_print_socket)


def _runtime(options: argparse.Namespace) -> Runtime:
    check_socket_path(options.socket)
    runtime = Runtime(options.socket, directory=options.dir, images=options.image, pullable=options.pullable)
    runtime.affinity = options.affinity
    runtime.network = not options.no_network
    runtime.cgroup_driver = options.cgroup_driver
    return runtime


async def _print_socket(runtime: Runtime) -> None:
    sys.stdout.write(f"listening at {runtime.socket}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
