"""``alignup run`` without an agent: on this machine, with a ledger of the user."""

import os
import sys
from contextlib import redirect_stdout

import click

from alignup.align.host import Host, Settings
from alignup.align.machine import Machine
from alignup.align.policy_overrides import PolicyOverrides
from alignup.align.workload import Pod
from alignup.cli.app import Place
from alignup.cli.exit_codes import RUN_REJECTED
from alignup.cli.run import RunOptions, notify, parse_policy_options, run_command, run_directory
from alignup.machines import system
from alignup.machines.file_reader import DirectoryFiles, FileReader
from alignup.run import local_allocator
from alignup.run.request import GPU, RunRequest, build_environment
from alignup.run.run_claims import RunClaims

_PER_RUN_VARIABLES = ("ALIGNUP_RUN", "ALIGNUP_NAME")  #: different for each run


def run_with_ledger(request: RunRequest, words: tuple[str, ...], options: RunOptions) -> int:
    """Run a command on what the runs of this user leave, and return the exit code."""
    machine = _read_machine(options, gpus=GPU in request.amounts)
    permitted_cpus = machine.kubelet_view().all_cpus
    if options.machine is None:
        machine, permitted_cpus = local_allocator.permitted_machine(machine)
    settings = None
    if options.devices or options.config is not None:
        machine, settings = _apply_options(machine, options)
    overrides = PolicyOverrides(options.policy, options.scope, parse_policy_options(options.policy_options), settings)
    idle = local_allocator.build_host(machine, overrides, permitted_cpus=permitted_cpus)
    claims = RunClaims.of_environment(os.environ, notify)
    allocator = local_allocator.LocalAllocator(
        run_directory(),
        idle,
        permitted_cpus=permitted_cpus,
        explain=_explain_rejection,
        claims=claims if options.machine is None else None,
        ignore_claims=options.ignore_claims,
    )
    if not options.dry_run:
        return run_command(allocator, request, words, options, claims)
    if options.machine is None:
        allocator.load_for_dry_run()
    pod = local_allocator.build_pod(request)
    _explain(allocator.host, pod)
    decision = allocator.host.decide(pod)
    if not decision.admitted or allocator.host.missing_devices(pod):
        return RUN_REJECTED
    click.echo("\nEnvironment of the command")
    for name, value in build_environment(request, allocator.placement(decision)).items():
        if value and name not in _PER_RUN_VARIABLES:
            click.echo(f"  {name}={value}")
    if options.machine is None:
        click.echo(f"\nExclusive CPUs and devices are exclusive {_describe_exclusivity(claims, options)}")
    return 0


def _describe_exclusivity(claims: RunClaims, options: RunOptions) -> str:
    own_runs = f"among the runs of this user in {run_directory()}"
    if claims.directory is None:
        return f"only {own_runs}: {claims.problem}"
    if options.ignore_claims:
        return f"{own_runs}, and among later runs of other users: --ignore-claims"
    return f"among the runs of all users (claims in {claims.directory})"


def _read_machine(options: RunOptions, *, gpus: bool) -> Machine:
    """Read the machine. The GPU driver takes half a second to answer, so GPUs are read only when requested."""
    if gpus or options.machine is not None:
        from alignup.cli import inputs  # noqa: PLC0415 - rarely needed

        return inputs.read_machine(options.machine)
    return system.read_machine(FileReader(DirectoryFiles("")), name="this machine")


def _apply_options(machine: Machine, options: RunOptions) -> tuple[Machine, Settings | None]:
    """Return *machine* with the devices of ``--devices``, and the settings of ``--config``."""
    from alignup.cli import inputs  # noqa: PLC0415 - slow to import, and rarely needed
    from alignup.kubernetes import configuration  # noqa: PLC0415

    machine = inputs.add_devices(machine, options.devices)
    if options.config is None:
        return machine, None
    kubelet_configuration = inputs.read_configuration(options.config)
    with inputs.input_errors(Place(detail=f"with {options.config} on this machine")):
        return machine, configuration.host_settings(kubelet_configuration, machine)


def _explain_rejection(host: Host, pod: Pod) -> None:
    with redirect_stdout(sys.stderr):
        _explain(host, pod)


def _explain(host: Host, pod: Pod) -> None:
    from alignup.cli import run_explanation  # noqa: PLC0415 - slow to import

    run_explanation.explain(host, pod)
