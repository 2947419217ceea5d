"""Devices and settings that options of ``alignup run`` give this machine."""

from alignup.align.host import Settings
from alignup.align.machine import Machine
from alignup.cli import inputs
from alignup.cli.app import Place
from alignup.cli.run import RunOptions
from alignup.kubernetes import configuration


def apply_options(machine: Machine, options: RunOptions) -> tuple[Machine, Settings | None]:
    """Return *machine* with the devices of ``--devices``, and the settings of ``--config``."""
    machine = inputs.add_devices(machine, options.devices)
    if options.config is None:
        return machine, None
    kubelet_configuration = inputs.read_configuration(options.config)
    with inputs.input_errors(Place(detail=f"with {options.config} on this machine")):
        return machine, configuration.host_settings(kubelet_configuration, machine)
