"""``alignup why``: would a pod be admitted, where would it go, and if not, what would let it in?"""

from math import isnan

import click

from alignup.cli.app import InputError, debug_option, examples
from alignup.cli.options import HostOptions, host_options, output_option, workload_option

REJECTED = 1
_NODE = "--machine examples/node/machine.yaml --config examples/node/kubelet.yaml --state examples/node/state"


@click.command(
    short_help="Would a pod be admitted, where would it go, and if not, what would let it in?",
    epilog=examples(
        "alignup why -f examples/node/trainer.yaml --machine 'pack:2 numa:1 core:8 pu:2'",
        f"alignup why -f examples/node/trainer.yaml {_NODE}",
    ),
)
@workload_option()
@host_options
@click.option("--pod", "only", metavar="NAME", help="Of several workloads only the one of this name.")
@click.option(
    "--search",
    "seconds",
    type=click.FloatRange(0, 3600),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to look for what would admit a pod that is refused.",
)
@output_option("text", "json", "yaml")
@debug_option
def command(given: HostOptions, files: tuple[str, ...], only: str | None, seconds: float, form: str) -> None:
    """Explain what becomes of a pod: the verdict, what was asked of whom, how the nodes were chosen, the placement.

    For a refusal also what did not fit where and by how much, and what would admit it; each proposal was tried. Every
    workload in FILE is judged by itself, one replica of it, on the node as it is. Nothing is changed anywhere.

    The exit code is 0 when all are admitted, 1 when one is refused, 2 when something given cannot be used.
    """
    from alignup.cli import inputs, terminal, why_output  # noqa: PLC0415 - loaded with the command, not with its help

    if isnan(seconds):  # which no time is past
        raise InputError("--search nan is no time", advice="Give seconds, such as --search 10.")
    node = inputs.read_host(given)
    workloads, skipped = inputs.read_workloads(files)
    inputs.print_notes((*node.notes, *skipped))
    chosen = inputs.select_workloads(workloads, only, files=files)
    inputs.print_notes(inputs.ignored_requests(node, (work.pod for work in chosen)))
    with terminal.waiting_message("Looking for what would admit it"):
        found = [why_output.explain(node, work, seconds=seconds) for work in chosen]
    why_output.RENDERERS[form](node, found)
    if any(not answer.decision.admitted for answer in found):
        raise click.exceptions.Exit(REJECTED)
