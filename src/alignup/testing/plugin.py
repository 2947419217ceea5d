"""A device plugin as a process of its own: ``python -m alignup.testing.plugin --help``.

It runs until it is told to stop (SIGTERM, SIGINT), and says on its output when a registration was taken.
"""

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from alignup.align.errors import ParseError
from alignup.testing import script
from alignup.testing.device_list import Preference, parse_device_list
from alignup.testing.faults import Fault
from alignup.testing.plugin_server import Plugin


def main(arguments: Sequence[str] | None = None) -> int:
    """Be a plugin; the exit status."""
    options = _parser().parse_args(arguments)
    try:
        parse_device_list(options.resource, options.devices)
        steps = script.parse(options.script.read_text()) if options.script else ()
    except (ParseError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    asyncio.run(_run(options, steps))
    return 0


async def _run(options: argparse.Namespace, steps: Sequence[script.ScriptStep]) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    plugin = Plugin(
        options.resource,
        options.devices,
        directory=options.dir,
        advice=options.preferred,
        endpoint=options.endpoint,
    )
    plugin.service.pre_start = options.prestart
    plugin.service.crash_after = options.crash_after
    plugin.misbehave("Allocate", Fault(delay=options.allocate_delay))
    async with plugin, asyncio.TaskGroup() as tasks:
        beside = (
            tasks.create_task(_tell(plugin)),
            tasks.create_task(script.play(steps, plugin)),
        )
        await stop.wait()
        for task in beside:
            task.cancel()


async def _tell(plugin: Plugin) -> None:
    """Say how often a registration was taken."""
    while True:
        await plugin.registered(plugin.registrations + 1)
        sys.stdout.write(f"registered {plugin.service.resource}: {plugin.registrations}\n")
        sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m alignup.testing.plugin",
        description="A device plugin for tests: registers with whoever listens at kubelet.sock in a directory.",
    )
    parser.add_argument("--resource", required=True, metavar="NAME", help="such as example.com/gpu")
    parser.add_argument("--devices", required=True, metavar="LIST", help="how many, at which NUMA nodes: 4@0,4@1,1@2+3")
    parser.add_argument("--dir", required=True, type=Path, help="the directory of kubelet.sock")
    parser.add_argument("--endpoint", default="", metavar="FILE", help="name of the plugin's own socket there")
    parser.add_argument(
        "--preferred",
        type=Preference,
        choices=list(Preference),
        default=Preference.NONE,
        help="devices it prefers when asked",
    )
    parser.add_argument("--prestart", action="store_true", help="wants to know when a container starts")
    parser.add_argument("--allocate-delay", type=float, default=0.0, metavar="S", help="seconds Allocate takes")
    parser.add_argument("--crash-after", type=int, metavar="N", help="calls of Allocate it survives")
    parser.add_argument(
        "--script", type=Path, metavar="FILE", help="things to do at set times (alignup.testing.script)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
