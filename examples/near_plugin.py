"""A device plugin that prefers devices near each other: the GPUs or NICs of this machine, by PCI address.

    python examples/near_plugin.py example.com/nic --dir /var/lib/kubelet/device-plugins

It reads the machine once, at its start, so GetPreferredAllocation asks no driver. With ``--machine`` it offers the
devices of another machine (a file, as in ``alignup machine show``), to try it out.
"""

import argparse
import asyncio
from functools import partial
from pathlib import Path

import alignup
from alignup import Device, Machine
from alignup.align.locality import DeviceKind
from alignup.kubernetes.plugins.device_plugin import DevicePlugin


def find_devices(machine: Machine, resource: str, kind: DeviceKind) -> list[Device]:
    """Return the devices of a kind, each near its NUMA node."""
    locality = machine.locality
    nodes = {address: locality.pci[address].node for address, each in locality.devices.items() if each is kind}
    return [Device(resource, address, nodes=None if node is None else 1 << node) for address, node in nodes.items()]


async def serve(machine: Machine, resource: str, kind: DeviceKind, directory: Path) -> None:
    plugin = DevicePlugin(resource, directory)
    plugin.preferred = partial(alignup.preferred_devices, machine)
    plugin.set_devices(find_devices(machine, resource, kind))
    await plugin.run()


def main() -> None:
    parser = argparse.ArgumentParser(description="A device plugin that prefers devices near each other.")
    parser.add_argument("resource", help="such as example.com/nic")
    parser.add_argument("--kind", type=DeviceKind, choices=list(DeviceKind), default=DeviceKind.NIC)
    parser.add_argument("--dir", type=Path, required=True, help="the directory of kubelet.sock")
    parser.add_argument("--machine", help="another machine (default: this machine)")
    options = parser.parse_args()
    machine = alignup.load_machine(options.machine) if options.machine else alignup.discover()
    asyncio.run(serve(machine, options.resource, options.kind, options.dir))


if __name__ == "__main__":
    main()
