"""``alignup simulate``: a workload played on a machine, under one configuration or under many."""

from pathlib import Path

import click

from alignup.cli.app import InputError, debug_option, examples
from alignup.cli.options import HostOptions, host_options, output_option, workload_option

_NODE = "--machine examples/node/machine.yaml --config examples/node/kubelet.yaml"


@click.command(
    short_help="What becomes of a whole workload, under one configuration or compared under many?",
    epilog=examples(
        f"alignup simulate -f examples/node/running.yaml {_NODE}",
        f"alignup simulate --generate training --count 200 {_NODE}",
        f"alignup simulate --generate mixed --count 200 {_NODE} --compare policy,scope",
    ),
)
@workload_option(required=False)
@click.option(
    "--trace",
    type=click.Path(path_type=Path, allow_dash=True),
    metavar="FILE",
    help="Pods that come and go, as docs/simulate.md describes; - for what is piped in.",
)
@click.option(
    "--generate",
    type=click.Choice(["telco", "training", "inference", "mixed"]),
    help="A made-up workload of this kind, sized to the machine.",
)
@click.option("--count", type=click.IntRange(1, 1_000_000), default=1000, show_default=True, help="Pods to make up.")
@click.option(
    "--load",
    type=click.FloatRange(0, 100, min_open=True),
    default=0.9,
    show_default=True,
    help="How much of the machine they ask for on average; 1 is all.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Another number makes up other pods.")
@click.option("--save", type=click.Path(path_type=Path), metavar="FILE", help="Write the workload to FILE as a trace.")
@click.option(
    "--compare",
    "dimensions",
    metavar="WHAT,…",
    help="Try every value of policy, scope, topology-options, cpu-policy, cpu-options, memory-policy, each with each.",
)
@click.option(
    "--jobs", type=click.IntRange(1, 1024), metavar="N", help="Processes for --compare; one a CPU unless given."
)
@host_options
@click.option("--svg", type=click.Path(path_type=Path), metavar="FILE", help="Write a picture of the end to FILE.")
@output_option("text", "json", "csv", what="For people, for machines, or a table.")
@debug_option
def command(  # noqa: PLR0913, PLR0917 - one an option
    given: HostOptions,
    files: tuple[str, ...],
    trace: Path | None,
    generate: str | None,
    count: int,
    load: float,
    seed: int,
    save: Path | None,
    dimensions: str | None,
    jobs: int | None,
    svg: Path | None,
    form: str,
) -> None:
    """Play a workload on a machine: what is admitted and where, what is refused and why, how full the nodes get.

    The workload is pods in the order of their files (-f), a trace, or made up. With --compare it is played under every
    combination of settings, and these are ranked: admitted pods, then pods on one NUMA node, then what is stranded.
    """
    from alignup.cli import inputs, simulate_output  # noqa: PLC0415 - loaded with the command, not with its help

    if sum(bool(one) for one in (files, trace, generate)) != 1:
        raise InputError(
            "there has to be one workload: -f, --trace or --generate",
            advice="For a first try: alignup simulate --generate mixed",
        )
    if dimensions is not None and svg:
        raise InputError("--svg draws one host, and --compare plays on many", advice="Leave one of them out.")
    node = inputs.read_host(given)
    inputs.print_notes(node.notes)
    if files:
        events = simulate_output.events_from_files(files)
    elif trace:
        events = simulate_output.events_from_trace(trace)
    else:
        events = simulate_output.generate_events(generate or "", node, count=count, load=load, seed=seed)
    inputs.print_notes(simulate_output.ignored_requests(node, events))
    if save:
        simulate_output.save_trace(events, save)
    if dimensions is not None:
        simulate_output.print_comparison(simulate_output.run_comparison(node, events, dimensions, jobs=jobs), form)
    else:
        result = simulate_output.run_simulation(node, events)
        if svg:
            simulate_output.write_svg(result, svg)
        simulate_output.print_result(result, form, dated=not files)
