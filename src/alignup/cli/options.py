"""Options that several commands have, said the same way everywhere; ``inputs`` reads what they are given."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOptions:
    """What was said on the command line about a node."""

    machine: str | None
    devices: tuple[str, ...]
    config: Path | None
    changes: tuple[str, ...]
    state: Path | None
    pods: tuple[str, ...]


def host_options(command: Command) -> Command:
    """``--machine``, ``--devices``, ``--config``, ``--set``, ``--state`` and ``--pods``, as one parameter ``given``."""

    @functools.wraps(command)
    def gathered(  # noqa: PLR0913 - one an option
        *args: object,
        machine: str | None,
        devices: tuple[str, ...],
        config: Path | None,
        changes: tuple[str, ...],
        state: Path | None,
        pods: tuple[str, ...],
        **rest: object,
    ) -> object:
        given = HostOptions(machine=machine, devices=devices, config=config, changes=changes, state=state, pods=pods)
        return command(*args, given=given, **rest)

    options = (machine_option, devices_option, config_option(), set_option, state_option, pods_option())
    wrapped: Any = gathered
    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[no-any-return] # the same command, with options


def machine_option(command: Command) -> Command:
    """``--machine``."""
    return click.option(
        "--machine",
        metavar="MACHINE",
        help="A recording, directory, description, hwloc XML, cAdvisor JSON, or 'pack:2 numa:2 core:8 pu:2'; this one.",
    )(command)


def devices_option(command: Command) -> Command:
    """``--devices``."""
    return click.option(
        "--devices",
        multiple=True,
        metavar="RESOURCE=N@NODE,…",
        help="Devices of the machine, such as example.com/gpu=4@0,4@1; repeatable.",
    )(command)


def config_option(otherwise: str = "the kubelet's defaults") -> Callable[[Command], Command]:
    """``--config``, and what counts where it is not given."""
    return click.option(
        "--config",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help=f"The node's KubeletConfiguration; {otherwise} unless given.",
    )


def set_option(command: Command) -> Command:
    """``--set``."""
    return click.option(
        "--set",
        "changes",
        multiple=True,
        metavar="FIELD=VALUE",
        help="Another value for a field of the configuration, such as topologyManagerPolicy=restricted.",
    )(command)


def state_option(command: Command) -> Command:
    """``--state``."""
    return click.option(
        "--state",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="The kubelet's directory with cpu_manager_state and the like: the node as it is; empty unless given.",
    )(command)


def pods_option(what_for: str = "so that those in --state have names") -> Callable[[Command], Command]:
    """``--pods``, and what they are good for."""
    return click.option(
        "--pods", multiple=True, metavar="FILE", help=f"Pods of the node (kubectl get pods -o yaml), {what_for}."
    )


def output_option(*forms: str, what: str = "For people, or for machines.") -> Callable[[Command], Command]:
    """``-o``; the first of *forms* counts unless another is given."""
    return click.option(
        "-o", "--output", "form", type=click.Choice(forms), default=forms[0], show_default=True, help=what
    )


def workload_option(*, required: bool = True) -> Callable[[Command], Command]:
    """``-f``."""
    return click.option(
        "-f",
        "--filename",
        "files",
        multiple=True,
        required=required,
        metavar="FILE",
        help="Pods, Deployments, Jobs and the like: a file, a directory, or - for what is piped in; repeatable.",
    )
