"""``alignup doctor``: check a kubelet's configuration and state files, and repair them."""
# ruff: noqa: RUF009 - options are declared by calls, as fields are

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import click

from alignup.cli import terminal
from alignup.cli.app import InputError, Place, define_command
from alignup.cli.exit_codes import FAILED
from alignup.cli.options import NodeOptions, flag_option, output_option, path_option, pods_option, with_options

UNHEALTHY = FAILED
_NODE = "--config examples/node/kubelet.yaml --machine examples/node/machine.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions(NodeOptions):
    config: Path | None = path_option(
        "FILE",
        "KubeletConfiguration of the node, also as /configz, kubelet-config ConfigMap or OpenShift object",
        "config.yaml in --kubelet-dir, or the kubelet's defaults",
    )
    kubelet_dir: Path | None = path_option(
        "DIR", "Check the state files in this kubelet directory, such as /var/lib/kubelet"
    )
    pods: tuple[str, ...] = pods_option("to name them, and to keep their resources first")
    write: bool = flag_option("Repair the state files, after a backup of each")


@define_command(
    "doctor",
    "alignup doctor --config examples/doctor/kubelet.yaml --machine examples/node/machine.yaml",
    f"alignup doctor {_NODE} --kubelet-dir examples/doctor/state",
)
@with_options("options", DoctorOptions)
@output_option("text", "json")
def command(*, options: DoctorOptions, output: str) -> None:
    """Find everything that stops a kubelet from starting on a machine, and settings that have surprising effects.

    Each finding says what the kubelet does and how to fix it, with YAML to paste where possible. --kubelet-dir checks
    the state files too: what is damaged, and what can be saved. Nothing is changed without --write, and never while a
    kubelet uses the directory.

    The exit code is 0 without findings, 1 with errors or warnings, 2 when the input is invalid.
    """
    from alignup.cli import doctor_output, inputs  # noqa: PLC0415 - not needed for --help
    from alignup.doctor import diagnosis  # noqa: PLC0415

    directory = options.kubelet_dir
    if options.pods and directory is None:
        raise click.UsageError("--pods names the pods in the state files: add --kubelet-dir DIR")
    if options.write and directory is None:
        raise click.UsageError("--write repairs state files: add --kubelet-dir DIR")
    config = options.config
    if config is None and directory is not None and (directory / "config.yaml").is_file():
        config = directory / "config.yaml"
    source = inputs.configuration_text(config, options.changes, config_dir=options.config_dir)
    terminal.print_notes(source.notes)
    given = config or options.config_dir or options.changes
    source = source if given else replace(source, file="the kubelet's defaults")
    machine = inputs.read_machine(options.machine, options.devices)
    pods = [pod for work in inputs.read_workloads(options.pods)[0] for pod in work.pods()] if options.pods else []
    names = {pod.uid: f"{pod.namespace}/{pod.name}" for pod in pods if pod.uid}
    check = partial(diagnosis.diagnose, source, machine, directory=directory, pods=names)
    write_to = directory if options.write else None
    _check_unused(write_to)
    with inputs.input_errors(Place("--kubelet-dir"), advice="Give a kubelet's directory, such as /var/lib/kubelet."):
        result = check()
    if write_to is not None:
        _check_unused(write_to)
        advice = "Run the command as a user who may write there, with the kubelet stopped."
        with inputs.input_errors(Place("--kubelet-dir"), advice=advice):
            result = diagnosis.write_repairs(check, result, write_to, now=datetime.now(UTC))
    if output == "json":
        terminal.print_json(doctor_output.to_document(result))
    else:
        shown = options.machine or "this machine"
        terminal.print_lines(doctor_output.lines(result, configuration=source.name, machine=shown))
    if not result.final.healthy:
        raise click.exceptions.Exit(UNHEALTHY)


def _check_unused(directory: Path | None) -> None:
    from alignup.doctor import diagnosis  # noqa: PLC0415 - not needed for --help

    if directory is not None and (users := diagnosis.find_live_kubelets(directory)):
        raise InputError(
            *users,
            place=Place(detail=f"{directory} is in use; nothing was written"),
            advice="Stop the kubelet first (systemctl stop kubelet). Containers keep running.",
        )
