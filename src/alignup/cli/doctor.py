"""``alignup doctor``: check a kubelet's configuration and state files, and repair them."""
# ruff: noqa: RUF009 - options are declared by calls, as fields are

from dataclasses import dataclass
from pathlib import Path

import click

from alignup.cli.app import COMMANDS, debug_option, examples
from alignup.cli.options import (
    config_option,
    devices_option,
    flag_option,
    machine_option,
    output_option,
    path_option,
    pods_option,
    set_option,
    with_options,
)

UNHEALTHY = 1
_NODE = "--config examples/node/kubelet.yaml --machine examples/node/machine.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions:
    config: Path | None = config_option("config.yaml in --kubelet-dir, or the kubelet's defaults")
    changes: tuple[str, ...] = set_option()
    machine: str | None = machine_option()
    devices: tuple[str, ...] = devices_option()
    kubelet_dir: Path | None = path_option(
        "DIR", "Check the state files in this kubelet directory, such as /var/lib/kubelet"
    )
    pods: tuple[str, ...] = pods_option("to name them, and to keep their resources first")
    write: bool = flag_option("Repair the state files, after a backup of each")


@click.command(
    short_help=COMMANDS["doctor"],
    epilog=examples(
        "alignup doctor --config examples/doctor/kubelet.yaml --machine examples/node/machine.yaml",
        f"alignup doctor {_NODE} --kubelet-dir examples/doctor/state",
    ),
)
@with_options("options", DoctorOptions)
@output_option("text", "json")
@debug_option
def command(*, options: DoctorOptions, output: str) -> None:
    """Find everything that stops a kubelet from starting on a machine, and settings that have surprising effects.

    Each finding says what the kubelet does and how to fix it, with YAML to paste where possible. --kubelet-dir checks
    the state files too: what is damaged, and what can be saved. Nothing is changed without --write, and never while a
    kubelet uses the directory.

    The exit code is 0 without findings, 1 with errors or warnings, 2 when the input is invalid.
    """
    from alignup.cli import doctor_output, inputs  # noqa: PLC0415 - not needed for --help
    from alignup.cli.doctor_output import DoctorInput  # noqa: PLC0415

    directory = options.kubelet_dir
    if options.pods and directory is None:
        raise click.UsageError("--pods names the pods in the state files: add --kubelet-dir DIR")
    if options.write and directory is None:
        raise click.UsageError("--write repairs state files: add --kubelet-dir DIR")
    config = options.config
    if config is None and directory is not None and (directory / "config.yaml").is_file():
        config = directory / "config.yaml"
    text, name = inputs.configuration_text(config, options.changes)
    given = DoctorInput(
        text=text,
        name=name if config or options.changes else "the kubelet's defaults",
        machine=inputs.read_machine(options.machine, options.devices),
        machine_name=options.machine or "this machine",
        directory=directory,
        pods=doctor_output.pod_names(options.pods),
    )
    if options.write and directory is not None:
        found = doctor_output.diagnose_and_repair(given, directory)
    else:
        found = doctor_output.diagnose(given)
    doctor_output.PRINTERS[output](given, found)
    if not found.final.healthy:
        raise click.exceptions.Exit(UNHEALTHY)
