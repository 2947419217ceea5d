"""A device plugin as a process: ``python -m alignup.testing.plugin --help``.

It runs until SIGTERM or SIGINT, and prints a line for each successful registration.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from alignup.align.errors import ParseError
from alignup.testing import script
from alignup.testing.device_list import Preference, parse_device_list
from alignup.testing.faults import Fault
from alignup.testing.plugin_script import ACTIONS
from alignup.testing.plugin_server import Plugin


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        parse_device_list(options.resource, options.devices)
        steps = script.parse(options.script.read_text(), ACTIONS) if options.script else ()
    except (ParseError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    asyncio.run(_run(options, steps))
    return 0


async def _run(options: argparse.Namespace, steps: Sequence[script.ScriptStep[Plugin]]) -> None:
    plugin = Plugin(
        options.resource,
        options.devices,
        directory=options.dir,
        preference=options.preferred,
        endpoint=options.endpoint,
    )
    plugin.service.pre_start = options.prestart
    plugin.service.crash_after = options.crash_after
    plugin.inject("Allocate", Fault(delay=options.allocate_delay))
    async with plugin:
        await script.run_until_signal(_print_registrations(plugin), script.play(steps, plugin))


async def _print_registrations(plugin: Plugin) -> None:
    while True:
        await plugin.wait_registered(plugin.registrations + 1)
        sys.stdout.write(f"registered {plugin.service.resource}: {plugin.registrations}\n")
        sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m alignup.testing.plugin",
        description="A device plugin for tests: registers with the kubelet.sock in a directory.",
    )
    parser.add_argument("--resource", required=True, metavar="NAME", help="such as example.com/gpu")
    parser.add_argument("--devices", required=True, metavar="LIST", help="counts and NUMA nodes: 4@0,4@1,1@2+3")
    parser.add_argument("--dir", required=True, type=Path, help="the directory of kubelet.sock")
    parser.add_argument("--endpoint", default="", metavar="FILE", help="name of the plugin's socket in that directory")
    parser.add_argument(
        "--preferred", type=Preference, choices=list(Preference), default=Preference.NONE, help="devices it prefers"
    )
    parser.add_argument("--prestart", action="store_true", help="require PreStartContainer calls")
    parser.add_argument("--allocate-delay", type=float, default=0.0, metavar="S", help="delay Allocate by S seconds")
    parser.add_argument("--crash-after", type=int, metavar="N", help="crash in the Allocate call after the first N")
    parser.add_argument("--script", type=Path, metavar="FILE", help="timed actions (alignup.testing.plugin_script)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
