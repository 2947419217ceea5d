"""``alignup run``: one command on CPUs, memory and devices that belong together."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from alignup.align import bits
from alignup.align.errors import AlignError, CheckpointError
from alignup.cli.app import InputError, debug_option, examples
from alignup.cli.client import AgentOptions, agent_options

if TYPE_CHECKING:
    from alignup.align.host import Host, Settings
    from alignup.align.machine import Machine
    from alignup.align.workload import Pod
    from alignup.runs.lifecycle import Allocator
    from alignup.runs.local_allocator import LocalAllocator
    from alignup.runs.request import RunRequest

REJECTED, FAILED = 124, 125
_FOR_EVER = "for ever"
_SEARCH = 2.0  #: seconds to look for what would let a run in
_OF_THE_MOMENT = ("ALIGNUP_RUN", "ALIGNUP_NAME")  #: told to a command, and different every time


class RunFailure(InputError):
    """The command was not run, for a reason of ours."""

    exit_code = FAILED


class RunUsageError(click.UsageError):
    """The command was not run, since nobody could tell what was meant."""

    exit_code = FAILED


class RunCommand(click.Command):
    """A command whose own failures cannot be taken for those of what it runs."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:  # noqa: ANN401 - as click has it
        """What was said on the command line."""
        try:
            return super().make_context(*args, **kwargs)
        except click.UsageError as error:
            raise RunUsageError(error.format_message(), ctx=error.ctx) from error

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - as click has it
        """Run it."""
        with _failing():
            return super().invoke(ctx)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalOptions:
    """What was said on the command line about who decides, and by what."""

    machine: str | None
    devices: tuple[str, ...]
    config: Path | None
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What is to be run, and how."""

    wish: "RunRequest"
    command: tuple[str, ...]
    by: str
    patience: float  #: seconds to wait for room
    dry_run: bool


@click.command(
    cls=RunCommand,
    short_help="Run one command on CPUs, memory and devices that belong together.",
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
    epilog=examples(
        "alignup run --dry-run -- nproc",
        "alignup run --dry-run --cpus 4 --memory 2Gi --machine 'pack:2 numa:1(memory=16GiB) core:8 pu:2' -- ./train",
    ),
)
@click.argument("words", nargs=-1, required=True, metavar="-- COMMAND…", type=click.UNPROCESSED)
@click.option("--cpus", metavar="N", help="CPUs; whole ones are its own, a part of one (500m) is of the shared ones.")
@click.option("--memory", metavar="SIZE", help="Memory to set aside for it, such as 4Gi.")
@click.option("--hugepages", multiple=True, metavar="PAGE=SIZE", help="Huge pages, such as 2Mi=64Mi; repeatable.")
@click.option("--device", "wanted", multiple=True, metavar="RESOURCE=N", help="Devices of a resource; repeatable.")
@click.option(
    "--policy",
    type=click.Choice(["none", "best-effort", "restricted", "single-numa-node"]),
    help="What alignment to insist on; best-effort unless said here or by --config.",
)
@click.option("--scope", type=click.Choice(["container", "pod"]), help="As in a KubeletConfiguration.")
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="An option of the topology or CPU manager's policy, such as prefer-closest-numa-nodes=true; repeatable.",
)
@click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="A KubeletConfiguration to decide by.")
@click.option(
    "--devices",
    multiple=True,
    metavar="RESOURCE=N@NODE,…",
    help="Devices this machine has but does not tell of, such as example.com/gpu=4@0,4@1; repeatable.",
)
@click.option("--name", metavar="NAME", help="What to call it; after its command unless given.")
@click.option(
    "--wait",
    is_flag=False,
    flag_value=_FOR_EVER,
    metavar="[SECONDS]",
    help="Wait for room, for ever or so long; what would not fit on the empty machine is refused at once.",
)
@click.option(
    "--by",
    type=click.Choice(["auto", "cgroup", "affinity"]),
    default="auto",
    show_default=True,
    help="How to hold it there: a cpuset of its own, or affinity and memory policy; auto takes the first permitted.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would become of it.")
@click.option("--machine", metavar="MACHINE", help="With --dry-run: on this machine instead (see 'machine show').")
@click.option("--no-agent", is_flag=True, help="Decide by this user's own ledger, even if an agent runs.")
@agent_options
@debug_option
def command(  # noqa: PLR0913 - one an option
    *,
    words: tuple[str, ...],
    cpus: str | None,
    memory: str | None,
    hugepages: tuple[str, ...],
    wanted: tuple[str, ...],
    policy: str | None,
    scope: str | None,
    options: tuple[str, ...],
    config: Path | None,
    devices: tuple[str, ...],
    name: str | None,
    wait: str | None,
    by: str,
    dry_run: bool,
    machine: str | None,
    no_agent: bool,
    where: AgentOptions,
) -> None:
    """Run COMMAND on CPUs, memory and devices that belong together, and tell it where it is.

    It is decided by the agent, if one runs, and else by a ledger of this user's own; nobody else's run gets the same
    CPUs. The command finds ALIGNUP_CPUS, ALIGNUP_NUMA_NODES, ALIGNUP_MEMORY_NODES, ALIGNUP_DEVICES_… and, for GPUs,
    CUDA_VISIBLE_DEVICES in its environment. Signals are passed on to it. What it had is free again when it ends.

    The exit code is the command's, or 128+N when signal N ended it; 124 when it is refused, 125 when it was not run for
    another reason, 126 when it cannot be executed, 127 when there is no such command.
    """
    from alignup.runs import request as wishes  # noqa: PLC0415 - loaded with the command, not with its help

    if machine is not None and not dry_run:
        raise InputError("a command runs on this machine, not on another", advice="Add --dry-run, or drop --machine.")
    uid = os.urandom(5).hex()
    wish = wishes.RunRequest(
        uid=uid,
        name=wishes.run_name(name, words[0], uid),
        amounts=wishes.parse_amounts(cpus=cpus, memory=memory, hugepages=hugepages, devices=wanted),
        policy=policy,
        scope=scope,
    )
    said = LocalOptions(machine=machine, devices=devices, config=config, options=options)
    order = RunOptions(wish=wish, command=words, by=by, patience=_patience(wait), dry_run=dry_run)
    own = no_agent or machine is not None
    raise click.exceptions.Exit(_by_ledger(order, said) if own else _by_agent(order, said, where))


def run_directory() -> Path:
    """Where the runs of this user are written down."""
    from alignup.agent.address import default_root  # noqa: PLC0415 - see above
    from alignup.runs.registry import default_directory  # noqa: PLC0415

    return default_directory(os.environ, root=default_root(os.environ))


def _by_agent(order: RunOptions, said: LocalOptions, where: AgentOptions) -> int:
    """Have the agent decide; the user's own ledger, if none runs."""
    from alignup.agent.address import SOCKET_NAME, default_root  # noqa: PLC0415 - see above

    if not where.agent and not os.path.lexists(default_root(os.environ) / SOCKET_NAME):
        return _by_ledger(order, said)
    from alignup.cli import asking  # noqa: PLC0415 - see above

    agent = asking.find_agent(where)
    if agent is None:
        return _by_ledger(order, said)
    if said.config or said.options or said.devices:
        raise InputError(
            f"the agent at {agent.address} decides by its own configuration and knows its own devices",
            advice="Leave --config, --option and --devices out, or do without the agent: --no-agent.",
        )
    if order.dry_run:
        answer = agent.admit(order.wish, dry_run=True)
        asking.print_explanation(answer, file=sys.stdout)
        return 0 if answer["outcome"] in {"admitted", "kept"} else REJECTED
    online = bits.parse(Path("/sys/devices/system/cpu/online").read_text("ascii").strip())
    return _run(asking.AgentAllocator(agent, online=online), order)


def _by_ledger(order: RunOptions, said: LocalOptions) -> int:
    """Decide by the user's own ledger."""
    from alignup.enforce import cgroup, process  # noqa: PLC0415 - see above
    from alignup.runs import local_allocator, registry  # noqa: PLC0415
    from alignup.runs.request import GPU  # noqa: PLC0415

    machine = _machine(said, gpus=GPU in order.wish.amounts)
    around = cgroup.effective_cpuset() if said.machine is None else None
    permitted = machine.kubelet_view().all_cpus
    if said.machine is None:
        permitted = around.cpus if around else process.permitted_cpus()
        machine = local_allocator.restrict_memory(machine, around)
    if said.devices:
        from alignup.discover import device_spec  # noqa: PLC0415 - see above

        machine = device_spec.add_devices(machine, said.devices)
    rules = local_allocator.PolicyOverrides(
        policy=order.wish.policy, scope=order.wish.scope, options=said.options, settings=_settings(said, machine)
    )
    idle = local_allocator.build_host(machine, rules, permitted=permitted)
    directory = run_directory()
    office = local_allocator.LocalAllocator(directory, idle, permitted=permitted, explain=_complained)
    if not order.dry_run:
        return _run(office, order)
    if said.machine is None and directory.exists():
        known = registry.RunRegistry(directory)
        with known.locked():
            gone = {one.uid for one in registry.finished_runs(known.all())}
            office.open(alive=[one.uid for one in known.all() if one.uid not in gone], gone=())
    return _shown(office, order)


def _machine(said: LocalOptions, *, gpus: bool) -> "Machine":
    """The machine to run on; its driver takes half a second to tell of GPUs, and is asked when one is wanted."""
    if gpus or said.machine is not None:
        from alignup.cli.machine import load_machine  # noqa: PLC0415 - see above

        return load_machine(said.machine)
    from alignup.discover import system  # noqa: PLC0415 - see above
    from alignup.discover.file_reader import DirectoryFiles, FileReader  # noqa: PLC0415

    return system.read_machine(FileReader(DirectoryFiles("")), name="this machine")


def _run(office: "Allocator", order: RunOptions) -> int:
    """Run the command, and say what is to be said."""
    from alignup.enforce.launcher import CommandStartError  # noqa: PLC0415 - see above
    from alignup.runs import lifecycle  # noqa: PLC0415
    from alignup.runs.registry import RunRegistry  # noqa: PLC0415
    from alignup.runs.request import RunRejectedError  # noqa: PLC0415

    job = lifecycle.RunJob(
        wish=order.wish,
        command=order.command,
        runs=RunRegistry(run_directory()),
        by=order.by,
        note=lambda what: click.echo(f"note: {what}", err=True),
    )
    try:
        return lifecycle.run(office, job, patience=order.patience)
    except RunRejectedError as refused:
        refused.show()
        return REJECTED
    except CommandStartError as error:
        click.echo(f"alignup: {error}", err=True)
        return error.exit_code


def _shown(office: "LocalAllocator", order: RunOptions) -> int:
    """Say what would become of a run."""
    from alignup.runs import local_allocator, request  # noqa: PLC0415 - see above

    asking = local_allocator.build_pod(order.wish)
    host = office.host
    _explained(host, asking)
    decision = host.decide(asking)
    if not decision.admitted:
        return REJECTED
    click.echo()
    click.echo("What the command would be told")
    for name, value in request.build_environment(order.wish, request.resolve_placement(office.offer(decision))).items():
        if value and name not in _OF_THE_MOMENT:
            click.echo(f"  {name}={value}")
    return 0


def _complained(now: "Host", asking: "Pod") -> None:
    """Tell why a run is refused, where errors are told."""
    with redirect_stdout(sys.stderr):
        _explained(now, asking)


def _explained(now: "Host", asking: "Pod") -> None:
    """Tell what becomes of a run, as ``alignup why`` does."""
    from alignup.cli import inputs, why_output  # noqa: PLC0415 - only for who is refused, or asks
    from alignup.kube.manifests import SourceLocation, Workload  # noqa: PLC0415

    work = Workload("Run", asking.name, asking.namespace, 1, asking, SourceLocation("the command line"))
    node = inputs.HostInput(now, inputs.read_configuration(None))
    why_output.RENDERERS["text"](node, [why_output.explain(node, work, seconds=_SEARCH)])


def _settings(said: LocalOptions, machine: "Machine") -> "Settings | None":
    """What a KubeletConfiguration says; ``None`` when there is none."""
    if said.config is None:
        return None
    from alignup.cli import inputs  # noqa: PLC0415 - see above
    from alignup.kube import configuration  # noqa: PLC0415

    read = inputs.read_configuration(said.config)
    with inputs.input_errors(f"with {said.config} on this machine"):
        return configuration.host_settings(read, machine)


def _patience(said: str | None) -> float:
    """How many seconds to wait for room."""
    if said in {None, _FOR_EVER}:
        return 0.0 if said is None else inf
    try:
        seconds = float(said or "")
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= inf:
        raise InputError(
            f"--wait {said}: that is no number of seconds", advice="Put -- between the options and the command."
        )
    return seconds


@contextmanager
def _failing() -> Iterator[None]:
    """Give whatever goes wrong here an exit code of its own."""
    try:
        yield
    except InputError as error:
        raise RunFailure(*error.what, where=error.where, advice=error.advice) from error
    except CheckpointError as error:
        raise RunFailure(error.what, where=error.where, advice=error.advice) from error
    except AlignError as error:
        raise RunFailure(str(error)) from error
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        raise RunFailure(f"{name}{error.strerror or error}") from error
