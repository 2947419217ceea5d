"""``alignup run``: run a command on aligned CPUs, memory and devices."""

import os
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, TextIO

import click

from alignup.align import bits
from alignup.align.cpus.options import OPTION_STAGES
from alignup.align.errors import ParseError, QuantityError, SettingsError
from alignup.align.quantity import Quantity
from alignup.align.settings import TOPOLOGY_OPTIONS, TopologyOption
from alignup.align.workload.names import is_extended
from alignup.cli.agent_client import AgentOptions, find_agent
from alignup.cli.app import FailureError, InputError, Place, Session, define_command, escape_control
from alignup.cli.exit_codes import RUN_FAILED, RUN_REJECTED
from alignup.cli.options import (
    IntegerRange,
    choice_option,
    flag_option,
    option,
    path_option,
    policy_options_option,
    topology_policy_option,
    topology_scope_option,
    with_options,
)
from alignup.run import lifecycle
from alignup.run.agent_allocator import AgentAllocator, PolicyRefusedError, pod_manifest
from alignup.run.lifecycle import CommandStartError
from alignup.run.registry import RunRegistry
from alignup.run.request import GPU, RunRejectedError, RunRequest, missing_devices, run_name
from alignup.run.run_claims import RunClaims
from alignup.web.address import default_root
from alignup.web.agent_client import AgentClient

_FOREVER = "forever"


class RunCommand(click.Command):
    """A command whose failures have another exit code than the command that it runs."""

    allow_interspersed_args = False

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:  # noqa: ANN401 - as in click
        click.get_current_context().ensure_object(Session).failure_code = RUN_FAILED
        return super().make_context(*args, **kwargs)


def _parse_wait(_ctx: click.Context, _parameter: click.Parameter, text: str | None) -> float:
    """Return the seconds of --wait; 0 without it."""
    if text in {None, _FOREVER}:
        return 0.0 if text is None else inf
    try:
        seconds = float(text or "")
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= inf:
        advice = "Put -- between the options and the command."
        raise InputError(f'"{text}" is not a number of seconds', place=Place("--wait"), advice=advice)
    return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    cpus: str | None = option("N", "CPUs. Whole CPUs are exclusive; fractions (500m) use the shared pool")
    memory: str | None = option("SIZE", "Memory to allocate, such as 4Gi")
    hugepages: tuple[str, ...] = option("PAGE=SIZE", "Huge pages, such as 2Mi=64Mi", multiple=True)
    gpus: int | None = option("N", f"NVIDIA GPUs, the same as --device {GPU}=N", type=IntegerRange(min=1))
    device: tuple[str, ...] = option("RESOURCE=N", "Devices, such as amd.com/gpu=1", multiple=True)
    devices_near: str | None = option(
        "DEMAND", "Demand near devices: same-switch, same-root, nvlink or spread, as in docs/near-devices.md"
    )
    policy: str | None = topology_policy_option()
    scope: str | None = topology_scope_option()
    policy_options: tuple[str, ...] = policy_options_option()
    config: Path | None = path_option("FILE", "Use the settings of this KubeletConfiguration")
    devices: tuple[str, ...] = option(
        "RESOURCE=N@NODE,…", "Devices that discovery does not find, such as example.com/gpu=4@0,4@1", multiple=True
    )
    name: str | None = option("NAME", "Name of the run", "derived from the command")
    wait: float = option(
        "[SECONDS]",
        "Wait until the run fits, forever or for SECONDS. A run that never fits is rejected at once",
        is_flag=False,
        flag_value=_FOREVER,
        callback=_parse_wait,
    )
    by: str = choice_option(
        ["auto", "cgroup", "affinity"],
        "How to enforce the placement: a cpuset cgroup, or CPU affinity and memory policy",
        "auto, the first that is permitted",
    )
    dry_run: bool = flag_option("Print the decision; run nothing")
    machine: str | None = option(
        "MACHINE", "With --dry-run, decide for this machine, as in 'machine show'", "this machine"
    )
    ignore_claims: bool = flag_option("Also use CPUs and devices that runs of other users hold")
    no_agent: bool = flag_option("Use this user's own ledger even if an agent is running")


@define_command(
    "run",
    "alignup run --dry-run -- nproc",
    "alignup run --dry-run --cpus 4 --memory 2Gi --machine 'pack:2 numa:1(memory=16GiB) core:8 pu:2' -- ./train",
    cls=RunCommand,
)
@click.argument("words", nargs=-1, required=True, metavar="-- COMMAND…", type=click.UNPROCESSED)
@with_options("options", RunOptions)
@with_options("agent", AgentOptions)
def command(*, words: tuple[str, ...], options: RunOptions, agent: AgentOptions) -> None:
    """Run COMMAND on aligned CPUs, memory and devices.

    If an agent is running, it decides on the placement; otherwise this user's own ledger does. No two runs share an
    exclusive CPU or a device, not even runs of different users; --dry-run says if this machine cannot ensure that. The
    command finds its placement in ALIGNUP_CPUS, ALIGNUP_NUMA_NODES, ALIGNUP_MEMORY_NODES,
    ALIGNUP_DEVICES_… and, for GPUs, CUDA_VISIBLE_DEVICES. Signals are forwarded to it. Its resources are free again
    when it ends.

    The exit code is the command's own, or 128+N after signal N; 124 when the run is rejected, 125 when it fails before
    the command starts, 126 when the command cannot be executed, 127 when it is not found.
    """
    if options.machine is not None and not options.dry_run:
        raise InputError("--machine requires --dry-run: commands run on this machine", advice="Add --dry-run.")
    uid = os.urandom(5).hex()
    amounts = parse_amounts(options)
    request = RunRequest(
        uid=uid,
        name=run_name(options.name, words[0], uid),
        amounts=amounts,
        policy=options.policy,
        scope=options.scope,
        devices_near=_checked_demands(options.devices_near, amounts),
    )
    client = None if options.no_agent or options.machine is not None else find_agent(agent)
    if client is not None:
        raise click.exceptions.Exit(_run_with_agent(client, request, words, options))
    from alignup.cli import local_run  # noqa: PLC0415 - a run with the agent does not wait for its imports

    raise click.exceptions.Exit(local_run.run_with_ledger(request, words, options))


def parse_amounts(options: RunOptions) -> dict[str, str]:
    """Return resource → quantity, as the options request them."""
    amounts: dict[str, str] = {}
    for flag, name, amount in (("--cpus", "cpu", options.cpus), ("--memory", "memory", options.memory)):
        if amount is not None:
            amounts[name] = _checked_amount(flag, amount)
    if options.gpus is not None:
        amounts[GPU] = str(options.gpus)
    for flag, texts, prefix in (("--hugepages", options.hugepages, "hugepages-"), ("--device", options.device, "")):
        for text in texts:
            name, _, amount = text.partition("=")
            if not name or not amount:
                example = "2Mi=64Mi" if prefix else "example.com/gpu=1"
                raise ParseError(f"{flag} {text}: invalid value; use a value like {example}")
            if not prefix and not is_extended(name):
                message = f"{name} is not a device; write DOMAIN/NAME, such as nvidia.com/gpu=1"
                raise ParseError(f"{flag} {text}: {message}")
            if prefix + name in amounts:
                raise ParseError(f"{flag} {text}: {prefix + name} is requested twice")
            amounts[prefix + name] = _checked_amount(f"{flag} {text}", amount)
    return amounts


def _checked_demands(text: str | None, amounts: Collection[str]) -> str | None:
    if text is None:
        return None
    from alignup.align.devices.demanded_locality import parse_demands  # noqa: PLC0415 - rarely needed

    try:
        demands = parse_demands(text)
    except ParseError as error:
        raise ParseError(f"--devices-near: {error}") from error
    if missing_names := [name for demand in demands for name in demand.names if name not in amounts]:
        raise ParseError(f"--devices-near: the run does not request {', '.join(missing_names)}; add --device")
    return text


def _checked_amount(flag: str, amount: str) -> str:
    try:
        Quantity.parse(amount)
    except QuantityError as error:
        raise ParseError(f"{flag}: {bits.quote(amount)} is not a quantity, such as 2, 500m or 4Gi") from error
    return amount


def parse_policy_options(texts: Iterable[str]) -> dict[str, str]:
    """Return name → value; ``InputError`` for an option that does not exist, or cannot have this value."""
    options = {}
    for text in texts:
        name, equals, options[name] = text.partition("=")
        if not equals:
            raise ParseError(f"--option {text}: no value; use an option like prefer-closest-numa-nodes=true")
        place = Place("--option", value=name)
        if name not in (option_names := (*TOPOLOGY_OPTIONS, *OPTION_STAGES)):
            raise InputError("there is no such option", place=place, advice=f"Choose from {', '.join(option_names)}.")
        policy_option = TOPOLOGY_OPTIONS.get(name) or TopologyOption("")  # options of CPUs are true or false
        try:
            policy_option.parse(name, options[name])
        except SettingsError as error:
            raise InputError(
                f"{bits.quote(options[name])} is not a value of it", place=place, advice=f"Give {policy_option.values}."
            ) from error
    return options


def run_directory() -> Path:
    """Return the directory of this user's runs: ``ALIGNUP_RUN_DIR``, or one in the root directory of the agent."""
    directory = os.environ.get("ALIGNUP_RUN_DIR")
    return Path(directory).absolute() if directory else default_root(os.environ) / "run"


def _run_with_agent(client: AgentClient, request: RunRequest, words: tuple[str, ...], options: RunOptions) -> int:
    if options.config or options.policy_options or options.devices:
        raise InputError(
            f"--config, --option and --devices do not apply: the agent at {client.address} has its own settings",
            advice="Omit them, or run without the agent: --no-agent.",
        )
    if options.dry_run:
        admission = client.admit(pod_manifest(request), dry_run=True)
        _print_admission(admission, file=sys.stdout)
        if admission["outcome"] not in {"admitted", "kept"}:
            return RUN_REJECTED
        missing_names = missing_devices(request, admission["decision"]["placements"][0])
        if missing_names:
            click.echo(f"Not schedulable: no device plugin of the agent provides {', '.join(missing_names)}")
        return RUN_REJECTED if missing_names else 0
    online = bits.parse(Path("/sys/devices/system/cpu/online").read_text("ascii").strip())
    allocator = AgentAllocator(client, online=online, explain=partial(_print_admission, file=sys.stderr))
    return run_command(allocator, request, words, options)


def notify(note: str) -> None:
    click.echo(f"note: {note}", err=True)


def run_command(
    allocator: lifecycle.Allocator,
    request: RunRequest,
    words: tuple[str, ...],
    options: RunOptions,
    claims: RunClaims | None = None,
) -> int:
    job = lifecycle.RunJob(
        request=request, command=words, registry=RunRegistry(run_directory(), claims), method=options.by, notify=notify
    )
    try:
        return lifecycle.run(allocator, job, timeout=options.wait)
    except PolicyRefusedError as error:
        advice = "Omit --policy, or run without the agent: --no-agent."
        raise FailureError(str(error), advice=advice) from error
    except RunRejectedError as rejection:
        rejection.show()
        if not rejection.impossible and not options.wait:
            click.echo("To wait until it fits, use --wait.", err=True)
        return RUN_REJECTED
    except CommandStartError as error:
        click.echo(f"alignup: {error}", err=True)
        return error.exit_code


def _print_admission(admission: Mapping[str, Any], *, file: TextIO) -> None:
    rejection = admission["decision"]["rejection"]
    for sentence in (*admission.get("explanation", ()), *([rejection["message"]] if rejection else ())):
        click.echo(escape_control(str(sentence)), file=file)
