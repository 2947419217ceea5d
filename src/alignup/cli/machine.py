"""``alignup machine``: look at a machine, or record one."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from alignup.cli.app import Session, debug_option, examples
from alignup.cli.options import output_option

if TYPE_CHECKING:
    from alignup.align.machine import Machine

_ADVICE = "See 'alignup machine show --help' for what MACHINE can be."


@click.group(epilog=examples("alignup machine show 'pack:2 numa:1 core:8 pu:2'"))
@debug_option
def command() -> None:
    """Machines: look at one, or record one to look at elsewhere."""


@command.command(
    short_help="Show a machine.",
    epilog=examples(
        "alignup machine show",
        "alignup machine show 'pack:2 numa:1 core:8 pu:2'",
        "alignup machine show host.tar.gz -o svg > host.svg",
    ),
)
@click.argument("machine", required=False)
@output_option(
    "text",
    "svg",
    "yaml",
    "json",
    what="A picture for the terminal or as SVG, or a description that alignup reads back.",
)
@click.option("--kubelet", is_flag=True, help="Show the machine as the kubelet sees it.")
@debug_option
@click.pass_obj
def show(session: Session, machine: str | None, form: str, kubelet: bool) -> None:  # noqa: FBT001 - click's way
    """Show a machine: sockets, NUMA nodes, caches, cores, CPUs, memory, devices, distances.

    MACHINE is this one when left out; otherwise a recording (alignup machine record), a directory with sys and proc in
    it, a description in YAML or JSON, hwloc's XML, cAdvisor's MachineInfo, or a synthetic machine as one argument.
    """
    from alignup.cli import terminal  # noqa: PLC0415 - see below

    session.advice = _ADVICE
    with terminal.waiting_message(f"Reading {machine or 'this machine'}"):
        found = load_machine(machine)
    shown = _as_seen(found) if kubelet else found
    _FORMS[form](shown)


@command.command(short_help="Record a machine.", epilog=examples("alignup machine record host.tar.gz"))
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--root",
    type=click.Path(path_type=Path),
    default=Path("/"),
    metavar="DIR",
    help="Record the machine whose sys and proc are in DIR; this one unless given.",
)
@click.option("--force", is_flag=True, help="Replace FILE where there is one.")
@debug_option
def record(file: Path, root: Path, force: bool) -> None:  # noqa: FBT001 - click's way
    """Record a machine: write the few files that describe it to the archive FILE.

    The recording names no host, user, serial number or address, and can be shown, tested and decided on anywhere.
    """
    from alignup.cli import terminal  # noqa: PLC0415 - loaded with the command, not with its help
    from alignup.discover import record as write  # noqa: PLC0415

    if file.is_dir():
        raise click.ClickException(f"{file} is a directory. Name the file to write, such as {file / 'host.tar.gz'}.")
    if not file.absolute().parent.is_dir():
        raise click.ClickException(f"{file.parent} is no directory. Make it first, or write elsewhere.")
    if not force and (file.exists() or file.is_symlink()):
        raise click.ClickException(f"{file} exists already. Choose another name, or replace it with --force.")
    with terminal.waiting_message(f"Recording {root}"):
        found = write(root, file)
    cpus, nodes = len(found.cpus), len(found.nodes)
    click.echo(f"Recorded {cpus} CPUs and {nodes} NUMA nodes in {file} ({file.stat().st_size} bytes).", err=True)


def load_machine(machine: str | None) -> "Machine":
    """The machine that somebody named; this one when nobody did."""
    from alignup.discover import discover, load  # noqa: PLC0415 - msgspec and YAML are not needed for help

    if machine is None:
        return discover()
    return load(Path(machine) if _is_name(machine) else machine)


def _is_name(machine: str) -> bool:
    """Whether a file must be meant: levels have colons or are numbers alone, documents have brackets or lines."""
    return bool(machine.strip()) and not re.search(r"[:<{\n\0]", machine) and not re.fullmatch(r"[\d\s]*", machine)


def _as_seen(machine: "Machine") -> "Machine":
    """The kubelet's view as a machine of its own."""
    from alignup.align.machine import Machine  # noqa: PLC0415 - see above

    view = machine.kubelet_view()
    gaps = (f"the kubelet's CPU manager would not start: {view.discovery_error}",) if view.discovery_error else ()
    return Machine(cpus=view.cpus, nodes=view.nodes, distances=view.distances, devices=machine.devices, gaps=gaps)


def _text(machine: "Machine") -> None:
    from alignup.cli import terminal  # noqa: PLC0415 - see above
    from alignup.picture import text  # noqa: PLC0415

    terminal.print_lines(text.draw(machine, width=terminal.width(), ascii_only=not terminal.supports_unicode()))


def _svg(machine: "Machine") -> None:
    from alignup.cli import terminal  # noqa: PLC0415 - see above
    from alignup.picture import svg  # noqa: PLC0415

    terminal.write_document(svg.draw(machine))


def _yaml(machine: "Machine") -> None:
    from alignup.cli import terminal  # noqa: PLC0415 - see above
    from alignup.discover import machine_file  # noqa: PLC0415

    terminal.write_document(machine_file.dump(machine))


def _json(machine: "Machine") -> None:
    from alignup.cli import terminal  # noqa: PLC0415 - see above
    from alignup.discover import machine_file  # noqa: PLC0415

    terminal.write_document(machine_file.dump_json(machine) + "\n")


_FORMS: dict[str, Callable[["Machine"], None]] = {"text": _text, "svg": _svg, "yaml": _yaml, "json": _json}
