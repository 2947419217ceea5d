"""Options that several commands share. ``inputs`` reads the files they name."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import click

Decorator = Callable[[Any], Any]


def collect_options(parameter: str, group: type, *options: Decorator) -> Decorator:
    """Add *options* to a command, and pass their values as one *group* (a dataclass) in argument *parameter*."""
    names = [field.name for field in fields(group)]

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def collected(*args: object, **values: object) -> object:
            return command(*args, **{parameter: group(**{name: values.pop(name) for name in names})}, **values)

        for option in reversed(options):
            collected = option(collected)
        return collected

    return decorate


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOptions:
    """The options that describe a node."""

    machine: str | None
    devices: tuple[str, ...]
    config: Path | None
    changes: tuple[str, ...]
    state: Path | None
    pods: tuple[str, ...]


machine_option: Decorator = click.option(
    "--machine",
    metavar="MACHINE",
    help="Machine: a recording, directory, description, hwloc XML, cAdvisor JSON, or a synthetic "
    "'pack:2 numa:2 core:8 pu:2' (default: this machine).",
)
devices_option: Decorator = click.option(
    "--devices",
    multiple=True,
    metavar="RESOURCE=N@NODE,…",
    help="Add devices to the machine, such as example.com/gpu=4@0,4@1. Repeatable.",
)
set_option: Decorator = click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="FIELD=VALUE",
    help="Override a field of the configuration, such as topologyManagerPolicy=restricted. Repeatable.",
)
state_option: Decorator = click.option(
    "--state",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The kubelet's directory with cpu_manager_state and the other state files (default: an empty node).",
)


def config_option(default: str = "the kubelet's defaults") -> Decorator:
    return click.option(
        "--config",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help=f"KubeletConfiguration of the node (default: {default}).",
    )


def pods_option(purpose: str = "to name the pods in --state") -> Decorator:
    return click.option(
        "--pods", multiple=True, metavar="FILE", help=f"Pods of the node (kubectl get pods -o yaml), {purpose}."
    )


def output_option(*formats: str) -> Decorator:
    """Add ``-o``. The first of *formats* is the default."""
    return click.option(
        "-o",
        "--output",
        "output",
        type=click.Choice(formats),
        default=formats[0],
        help=f"Output format (default: {formats[0]}).",
    )


def workload_option(*, required: bool = True) -> Decorator:
    return click.option(
        "-f",
        "--filename",
        "files",
        multiple=True,
        required=required,
        metavar="FILE",
        help="Manifest of Pods, Deployments, Jobs and other workloads: a file, a directory, or - for standard input. "
        "Repeatable.",
    )


with_host_options = collect_options(
    "host", HostOptions, machine_option, devices_option, config_option(), set_option, state_option, pods_option()
)
