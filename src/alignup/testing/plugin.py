"""A device plugin as a process: ``python -m alignup.testing.plugin --help``.

It runs until SIGTERM or SIGINT, and prints a line for each successful registration. Its script has these actions,
besides ``fault`` and ``crash`` (``alignup.testing.script``):

    {"after": 1, "do": "health", "id": "gpu-0", "health": "Unhealthy"}
    {"after": 1, "do": "remove", "id": "gpu-1"}
    {"after": 1, "do": "devices", "devices": "2@0"}
    {"after": 5, "do": "restart"}
    {"after": 5, "do": "register"}

``restart`` breaks every connection; ``register`` registers the plugin again.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from alignup.align.errors import AlignError
from alignup.kubernetes.plugins.unix_grpc import StatusError
from alignup.machines import load_machine
from alignup.testing import script
from alignup.testing.faulty_server import Fault
from alignup.testing.plugin_server import Plugin, Preference, parse_device_list
from alignup.testing.script import Action, Actions, Arguments, fault_action


async def _register(plugin: Plugin, _: Arguments) -> None:
    try:
        await plugin.register()
    except StatusError as error:
        plugin.rejections.append(str(error))


ACTIONS: Actions[Plugin] = {
    "fault": fault_action(Fault, lambda plugin, fault, method: plugin.inject(method, fault), required={"method": str}),
    "health": Action(
        lambda plugin, step: plugin.set_health(step["id"], step["health"]), required={"id": str, "health": str}
    ),
    "remove": Action(lambda plugin, step: plugin.remove(step["id"]), required={"id": str}),
    "devices": Action(
        lambda plugin, step: plugin.set_devices(step["devices"]),
        required={"devices": str},
        check=lambda step: parse_device_list("example.com/device", step["devices"]),
    ),
    "register": Action(_register),
    "restart": Action(lambda plugin, _: plugin.restart()),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m alignup.testing.plugin",
        description="A device plugin for tests: registers with the kubelet.sock in a directory.",
    )
    add = parser.add_argument
    add("--resource", required=True, metavar="NAME", help="such as example.com/gpu")
    add("--devices", required=True, metavar="LIST", help="counts and NUMA nodes: 4@0,4@1,1@2+3")
    add("--dir", required=True, type=Path, help="the directory of kubelet.sock")
    add("--endpoint", default="", metavar="FILE", help="name of the plugin's socket in that directory")
    add("--preferred", type=Preference, choices=list(Preference), default="none", help="devices it prefers")
    add("--machine", help="for --preferred near, as in 'alignup machine show'")
    add("--prestart", action="store_true", help="require PreStartContainer calls")
    add("--allocate-delay", type=float, default=0.0, metavar="S", help="delay Allocate by S seconds")
    add("--crash-after", type=int, metavar="N", help="crash in the Allocate call after the first N")
    add("--script", type=Path, metavar="FILE", help="timed actions (alignup.testing.plugin)")
    options = parser.parse_args(arguments)
    if options.preferred is Preference.NEAR and options.machine is None:
        parser.error("--preferred near needs --machine")
    try:
        machine = load_machine(options.machine) if options.machine else None
    except AlignError as error:
        parser.error(f"--machine: {error}")

    def make_plugin() -> Plugin:
        plugin = Plugin(options.resource, options.devices, directory=options.dir, endpoint=options.endpoint)
        plugin.preference = options.preferred
        plugin.pre_start = options.prestart
        plugin.machine = machine
        plugin.crash_after = options.crash_after
        plugin.inject("Allocate", Fault(delay=options.allocate_delay))
        return plugin

    async def print_registrations(plugin: Plugin) -> None:
        while True:
            await plugin.wait_registered(plugin.registrations + 1)
            sys.stdout.write(f"registered {plugin.resource}: {plugin.registrations}\n")
            sys.stdout.flush()

    return script.main(make_plugin, ACTIONS, file=options.script, report=print_registrations)


if __name__ == "__main__":
    sys.exit(main())
