"""``alignup simulate``: simulate a workload on a node, and compare policies."""

from dataclasses import dataclass
from pathlib import Path

import click
from click.core import ParameterSource

from alignup.cli.app import InputError, Place, define_command
from alignup.cli.completers import complete_parts
from alignup.cli.options import (
    IGNORE_MISSING_HELP,
    IntegerRange,
    NumberRange,
    PredictedHostOptions,
    flag_option,
    option,
    output_option,
    path_option,
    preview_option,
    with_options,
    workload_field,
)

_PROFILES = ("telco", "training", "inference", "mixed", "gangs")
_NODE = "--machine examples/node/machine.yaml --config examples/node/kubelet.yaml"


def _dimensions() -> list[str]:
    from alignup.simulate.compared_settings import DIMENSIONS  # noqa: PLC0415 - only for shells

    return list(DIMENSIONS)


def _strategies() -> list[str]:
    from alignup.simulate.schedulers import STRATEGIES  # noqa: PLC0415 - only for shells

    return [*STRATEGIES, "all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateOptions:
    files: tuple[str, ...] = workload_field()
    trace: Path | None = option(
        "FILE",
        "Trace of arriving and departing pods, as described in docs/simulate-data.md; - for standard input",
        type=click.Path(path_type=Path, allow_dash=True),
    )
    generate: str | None = option(
        "", "Generate a workload of this kind, sized to the machine", type=click.Choice(_PROFILES)
    )
    count: int = option("N", "Number of pods to generate", type=IntegerRange(1, 1_000_000), default=1000)
    load: float = option(
        "SHARE",
        "Average share of the machine that generated pods request; 1 is all of it",
        type=NumberRange(0, 100, min_open=True),
        default=0.9,
    )
    seed: int = option(
        "N", "Random seed for --generate, and for devices that kubelets choose at random", type=int, default=0
    )
    save: Path | None = path_option("FILE", "Write the workload to FILE as a trace")
    compare: str | None = option(
        "SETTING,…",
        "Simulate every combination of policy, scope, topology-options, cpu-policy, cpu-options and memory-policy",
        shell_complete=complete_parts(_dimensions),
    )
    jobs: int | None = option("N", "Number of processes for --compare", "one per CPU", type=IntegerRange(1, 1024))
    ignore_missing_devices: bool = flag_option(IGNORE_MISSING_HELP)
    shared_pool: bool = flag_option(
        "Show where pods without exclusive CPUs can run, with and without 'alignup nri --mode assist'"
    )
    html: Path | None = path_option("FILE", "Write a self-contained HTML report with charts to FILE")
    svg: Path | None = path_option(
        "FILE", "Write a picture of the node with the pods that it holds at peak demand to FILE (SVG)"
    )
    cluster: Path | None = path_option(
        "FILE", "Simulate a cluster: groups of nodes, as described in docs/fleet.md, or the nodes of openb (CSV)"
    )
    nodes: int | None = option("N", "Simulate a cluster of N nodes like this one", type=IntegerRange(1, 100_000))
    strategy: str = option(
        "NAME,…",
        "Strategies of the cluster's scheduler to compare: alignup, alignup-least-allocated, alignup-most-allocated, "
        "aggregate, blind-least-allocated, blind-most-allocated, or all",
        default="alignup",
        shell_complete=complete_parts(_strategies),
    )
    retries: int = option(
        "N",
        "Maximum number of times that a pod is created again after kubelets rejected it",
        type=IntegerRange(0, 1000),
        default=6,
    )
    rate: float = option(
        "FACTOR",
        "Speed up the creation of the cluster's pods by this factor",
        type=NumberRange(0, min_open=True),
        default=1.0,
    )
    stay: bool = flag_option("Keep all pods of a cluster running: ignore when they end")
    shape: str | None = option(
        "FILE", "Count how many pods like that of FILE fit in the cluster at peak demand, and after moves of others"
    )


@define_command(
    "simulate",
    f"alignup simulate -f examples/node/running.yaml {_NODE}",
    f"alignup simulate --generate training --count 200 {_NODE}",
    f"alignup simulate --generate mixed --count 200 {_NODE} --compare policy,scope",
    f"alignup simulate --nodes 9 --generate telco --count 90 {_NODE} --strategy all",
    "alignup simulate --cluster examples/fleet/training.yaml --generate training --count 90 --html report.html",
)
@with_options("options", SimulateOptions)
@with_options("host", PredictedHostOptions)
@preview_option
@output_option("text", "json", "yaml", "csv")
def command(*, host: PredictedHostOptions, options: SimulateOptions, output: str) -> None:
    """Simulate a workload on a node: which pods are admitted and where, which are rejected and why, how full it gets.

    The workload is the pods of -f in order, a trace, or generated. --compare simulates it under every combination of
    settings and ranks them by admitted pods, then by pods on one NUMA node, then by stranded resources.

    A pod that requests devices which no device plugin provides never reaches the node: its outcome is NotSchedulable.

    --cluster and --nodes simulate a whole cluster: a scheduler chooses a node for each pod, and pods that fit nowhere
    wait. The report compares strategies: rejections by kubelets, waiting times, utilization, and stranded resources.

    --html writes a report with charts of the node, the comparison, or the cluster over time.
    """
    if sum(map(bool, (options.files, options.trace, options.generate))) != 1:
        raise InputError(
            "give exactly one workload: -f, --trace or --generate",
            advice="For example: alignup simulate --generate mixed",
        )
    from alignup.cli import simulate_output  # noqa: PLC0415 - not needed for --help

    if options.cluster is not None or options.nodes is not None:
        if options.shared_pool:
            raise InputError("is for a single node", place=Place("--shared-pool"), advice="Omit it.")
        simulate_output.run_cluster(host, options, output)
        return
    context = click.get_current_context()
    for name in ("strategy", "retries", "rate", "stay", "shape"):
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise InputError("is for clusters", place=Place(f"--{name}"), advice="Add --nodes N or --cluster FILE.")
    if options.compare is not None and options.shared_pool:
        raise InputError("--shared-pool and --compare exclude each other", advice="Omit one of them.")
    if options.compare is not None and options.svg:
        raise InputError("--svg and --compare exclude each other", advice="Omit one of them.")
    simulate_output.run(host, options, output)
