"""``alignup doctor``: will this kubelet start, and behave? Its state files are looked into, and repaired if asked."""

from pathlib import Path

import click

from alignup.cli.app import debug_option, examples
from alignup.cli.options import config_option, devices_option, machine_option, output_option, pods_option, set_option

UNHEALTHY = 1
_NODE = "--config examples/node/kubelet.yaml --machine examples/node/machine.yaml"


@click.command(
    short_help="Will this kubelet start, and behave? State files looked into and repaired.",
    epilog=examples(
        "alignup doctor --config examples/doctor/kubelet.yaml --machine examples/node/machine.yaml",
        f"alignup doctor {_NODE} --kubelet-dir examples/doctor/state",
    ),
)
@config_option("config.yaml of --kubelet-dir, or the kubelet's defaults,")
@set_option
@machine_option
@devices_option
@click.option(
    "--kubelet-dir",
    "directory",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The kubelet's directory, such as /var/lib/kubelet: its state files are looked into.",
)
@pods_option("so that they have names, and keep what they hold before others")
@click.option("--write", is_flag=True, help="Repair the state files, after a backup of each.")
@output_option("text", "json")
@debug_option
def command(  # noqa: PLR0913 - one an option
    *,
    config: Path | None,
    changes: tuple[str, ...],
    machine: str | None,
    devices: tuple[str, ...],
    directory: Path | None,
    pods: tuple[str, ...],
    write: bool,
    form: str,
) -> None:
    """Say all that keeps a kubelet from starting on a machine, and what it does not treat as one may think.

    Each finding says what the kubelet does and what to do about it; where a part of the configuration can be computed
    it is printed as YAML to paste. With --kubelet-dir the state files are looked into as well: the damage is named, and
    what can be saved. Nothing is changed without --write, and never while a kubelet uses the directory.

    The exit code is 0 when all is well, 1 when there are errors or warnings, 2 when something given cannot be used.
    """
    from alignup.cli import doctor_output, inputs  # noqa: PLC0415 - loaded with the command, not with its help
    from alignup.cli.doctor_output import DoctorInput  # noqa: PLC0415

    if pods and directory is None:
        raise click.UsageError("--pods names the pods in the state files: add --kubelet-dir DIR")
    if write and directory is None:
        raise click.UsageError("--write repairs state files: add --kubelet-dir DIR")
    if config is None and directory is not None and (directory / "config.yaml").is_file():
        config = directory / "config.yaml"
    text, name = inputs.configuration_text(config, changes)
    asked = DoctorInput(
        text=text,
        name=name if config or changes else "the kubelet's defaults",
        machine=inputs.read_machine(machine, devices),
        machine_name=machine or "this machine",
        directory=directory,
        pods=doctor_output.pod_names(pods),
    )
    found = doctor_output.repair_state(asked, directory) if write and directory else doctor_output.diagnose(asked)
    doctor_output.RENDERERS[form](asked, found)
    if not found.last.healthy:
        raise click.exceptions.Exit(UNHEALTHY)
