"""Options that several commands share. ``inputs`` reads the files they name."""

import functools
from collections.abc import Callable, Sequence
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


def option(name: str, metavar: str, help_text: str, default_text: str = "", **attributes: Any) -> Decorator:  # noqa: ANN401 - click's
    """An option whose help names its default: *default_text*, or the default value."""
    default = default_text or str(attributes.get("default", ""))
    ending = f" (default: {default})." if default else "."
    return click.option(name, metavar=metavar or None, help=help_text + ending, **attributes)


def path_option(name: str, metavar: str, help_text: str, default_text: str = "") -> Decorator:
    return option(name, metavar, help_text, default_text, type=click.Path(path_type=Path))


def choice_option(name: str, choices: Sequence[str], help_text: str, default_text: str = "") -> Decorator:
    """The first of *choices* is the default."""
    return option(name, "", help_text, default_text, type=click.Choice(choices), default=choices[0])


def count_option(name: str, default: int, help_text: str, *, minimum: int = 0) -> Decorator:
    return option(name, "N", help_text, type=click.IntRange(min=minimum), default=default)


def repeatable_option(name: str, metavar: str, help_text: str, *names: str) -> Decorator:
    return click.option(name, *names, multiple=True, metavar=metavar, help=f"{help_text}. Repeatable.")


def flag_option(*names: str, help_text: str) -> Decorator:
    return click.option(*names, is_flag=True, help=f"{help_text}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOptions:
    """The options that describe a node."""

    machine: str | None
    devices: tuple[str, ...]
    config: Path | None
    changes: tuple[str, ...]
    state: Path | None
    pods: tuple[str, ...]


machine_option = option(
    "--machine",
    "MACHINE",
    "Machine: a recording, directory, description, hwloc XML, cAdvisor JSON, or synthetic 'pack:2 numa:2 core:8 pu:2'",
    "this machine",
)
devices_option = repeatable_option(
    "--devices", "RESOURCE=N@NODE,…", "Add devices to the machine, such as example.com/gpu=4@0,4@1"
)
set_option = repeatable_option(
    "--set", "FIELD=VALUE", "Override a field of the configuration, such as topologyManagerPolicy=restricted", "changes"
)
state_option = path_option(
    "--state", "DIR", "The kubelet's directory with cpu_manager_state and the other state files", "an empty node"
)


def config_option(default_text: str = "the kubelet's defaults") -> Decorator:
    return path_option("--config", "FILE", "KubeletConfiguration of the node", default_text)


def pods_option(purpose: str = "to name the pods in --state") -> Decorator:
    return repeatable_option("--pods", "FILE", f"Pods of the node (kubectl get pods -o yaml), {purpose}")


def output_option(*formats: str) -> Decorator:
    """Add ``-o``. The first of *formats* is the default."""
    return click.option(
        "-o", "--output", type=click.Choice(formats), default=formats[0], help=f"Output format (default: {formats[0]})."
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
