"""``alignup machine``: show or record the topology of a machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from alignup.align.errors import AlignError
from alignup.align.machine import Machine
from alignup.align.release import find_release, release_note
from alignup.cli import terminal
from alignup.cli.app import COMMANDS, DEBUG_OPTION, InputError, Place, define_command, examples
from alignup.cli.completers import complete_machines
from alignup.cli.machine_input import load_machine, machine_place
from alignup.cli.options import output_option
from alignup.kubernetes.kubelet_files.kubelet_version import find_kubelet_version
from alignup.machines import device_links, machine_file, record_script
from alignup.machines import record as write_recording
from alignup.picture.machine_svg import draw_svg
from alignup.picture.machine_text import draw_text
from alignup.picture.pcie_tree import draw_matrix
from alignup.picture.text_format import format_size, pluralize

_ADVICE = "See 'alignup machine show --help' for the forms of MACHINE."
_SYNTHETIC = "alignup machine show 'pack:2 numa:1 core:8 pu:2'"


@click.group(short_help=COMMANDS["machine"], epilog=examples(_SYNTHETIC), params=[DEBUG_OPTION])
def command() -> None:
    """Show or record the topology of a machine."""


@define_command(
    "show",
    "alignup machine show",
    _SYNTHETIC,
    "alignup machine show host.tar.gz -o svg > host.svg",
    "alignup machine show host.tar.gz --matrix",
    summary="Show the topology of a machine",
)
@click.argument("machine", required=False, shell_complete=complete_machines)
@output_option("text", "svg", "yaml", "json")
@click.option(
    "--matrix",
    is_flag=True,
    help="Show how near GPUs and network interfaces are to each other, as 'nvidia-smi topo -m' does.",
)
@click.option(
    "--links",
    "files",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="FILE",
    help="Add the links, levels or PCIe paths of devices in FILE to the machine: XML of NCCL or RCCL, the output of"
    " 'nvidia-smi topo -m', or of 'ls -l /sys/bus/pci/devices'.",
)
@click.option("--kubelet", is_flag=True, help="Show the machine as the kubelet sees it.")
@click.option(
    "--kubernetes-version",
    "version",
    metavar="VERSION",
    help="Release of that kubelet, such as 1.35. All known releases see a machine alike.",
)
def show(  # noqa: PLR0913 - options
    *, machine: str | None, output: str, matrix: bool, files: tuple[Path, ...], kubelet: bool, version: str | None
) -> None:
    """Show the sockets, NUMA nodes, caches, cores, CPUs, memory, PCIe tree, devices and distances of a machine.

    MACHINE is a recording (alignup machine record), a directory with sys and proc in it, a description in YAML or JSON,
    hwloc XML, cAdvisor's MachineInfo, or a synthetic machine as one argument (default: this machine). A file for
    --links shows its devices only. alignup reads the YAML and JSON output back.
    """
    if matrix and (output != "text" or kubelet):
        raise click.UsageError("--matrix is text, and does not go with --kubelet: -o json has all pairs of devices")
    if version is not None:
        _print_release(version, kubelet=kubelet)
    place = machine_place(machine)
    with terminal.waiting_message(f"Reading {machine or 'this machine'}"), _input_errors(_ADVICE, place):
        described_machine = load_machine(machine, devices_only=not files)
    for file in files:
        with _input_errors(_ADVICE, Place("--links", file=str(file))):
            described_machine = device_links.load_links(described_machine, file)
    if matrix:
        terminal.print_document("".join(f"{line}\n" for line in draw_matrix(described_machine)))
        return
    if kubelet:
        view = described_machine.kubelet_view()
        gaps = (f"the kubelet's CPU manager fails to start: {view.discovery_error}",) if view.discovery_error else ()
        described_machine = Machine(
            cpus=view.cpus,
            nodes=view.nodes,
            distances=view.distances,
            memory=described_machine.memory,
            hugepages=described_machine.hugepages,
            gaps=gaps,
        ).with_reported(described_machine.devices)
    if output == "svg":
        terminal.print_document(draw_svg(described_machine))
    elif output == "yaml":
        terminal.print_document(machine_file.dump(described_machine))
    elif output == "json":
        terminal.print_document(machine_file.dump_json(described_machine) + "\n")
    else:
        terminal.print_lines(draw_text(described_machine, width=terminal.width()))


@define_command(
    "record",
    "alignup machine record host.tar.gz",
    "alignup machine record --script > record.sh",
    summary="Record the topology of a machine in a file",
)
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--script", is_flag=True, help="Print a shell script that records a machine without Alignup.")
@click.option(
    "--root",
    type=click.Path(path_type=Path),
    default=Path("/"),
    metavar="DIR",
    help="Record the machine whose sys and proc are in DIR (default: /, this machine).",
)
@click.option("--force", is_flag=True, help="Overwrite FILE if it exists.")
def record(*, file: Path | None, root: Path, force: bool, script: bool) -> None:
    """Record a machine: write the files that describe its topology to the archive FILE.

    The recording holds no host name, user, serial number or address. It names the version of the kubelet that is
    installed here. Other commands take it as --machine, and answer for that kubelet.
    """
    if script == (file is not None):
        raise click.UsageError("Give either FILE or --script.")
    if file is None:
        terminal.print_document(record_script())
        return
    if file.is_dir():
        raise click.ClickException(f"{file} is a directory. Give a file name, such as {file / 'host.tar.gz'}.")
    if not file.absolute().parent.is_dir():
        raise click.ClickException(f"{file.parent} is not a directory. Create it, or choose another file.")
    if not force and (file.exists() or file.is_symlink()):
        raise click.ClickException(f"{file} already exists. Choose another file, or overwrite it with --force.")
    with (
        terminal.waiting_message(f"Recording {root}"),
        _input_errors("Give a directory with sys and proc in it.", Place("--root", file=str(root))),
    ):
        recording = write_recording(root, file, kubelet_version=find_kubelet_version() if root == Path("/") else "")
    cpus, nodes = pluralize(len(recording.cpus), "CPU"), pluralize(len(recording.nodes), "NUMA node")
    kubelet = f" and the version of the kubelet ({version})" if (version := recording.kubelet_version) else ""
    size = format_size(file.stat().st_size)
    click.echo(f"Recorded {cpus} and {nodes}{kubelet} in {file} ({size}).", err=True)


command.add_command(show)
command.add_command(record)


def _print_release(version: str, *, kubelet: bool) -> None:
    """Say that the kubelet's view does not depend on its release; an error if Kubernetes has no release *version*."""
    if not kubelet:
        raise click.UsageError("--kubernetes-version is the release of the kubelet: add --kubelet")
    with _input_errors("Give a release, such as 1.35 or v1.35.8.", Place("--kubernetes-version")):
        find_release(version)
    terminal.print_notes(filter(None, (release_note(version), "all known releases of the kubelet see a machine alike")))


@contextmanager
def _input_errors(advice: str, place: Place) -> Iterator[None]:
    try:
        yield
    except AlignError as error:
        raise InputError(str(error), place=place, advice=advice) from error
