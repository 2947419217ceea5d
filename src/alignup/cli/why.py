"""``alignup why``: would a pod be admitted, where would it go, and if not, what would let it in?"""

from math import isnan

import click

from alignup.cli.app import Complaint, debug_option, examples
from alignup.cli.options import Given, form_option, node_options, workload_option

REFUSED = 1
_NODE = "--machine examples/node/machine.yaml --config examples/node/kubelet.yaml --state examples/node/state"


@click.command(
    short_help="Would a pod be admitted, where would it go, and if not, what would let it in?",
    epilog=examples(
        "alignup why -f examples/node/trainer.yaml --machine 'pack:2 numa:1 core:8 pu:2'",
        f"alignup why -f examples/node/trainer.yaml {_NODE}",
    ),
)
@workload_option()
@node_options
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
@form_option("text", "json", "yaml")
@debug_option
def command(given: Given, files: tuple[str, ...], only: str | None, seconds: float, form: str) -> None:
    """Explain what becomes of a pod: the verdict, what was asked of whom, how the nodes were chosen, the placement.

    For a refusal also what did not fit where and by how much, and what would admit it; each proposal was tried. Every
    workload in FILE is judged by itself, one replica of it, on the node as it is. Nothing is changed anywhere.

    The exit code is 0 when all are admitted, 1 when one is refused, 2 when something given cannot be used.
    """
    from alignup.cli import answers, inputs, screen  # noqa: PLC0415 - loaded with the command, not with its help

    if isnan(seconds):  # which no time is past
        raise Complaint("--search nan is no time", advice="Give seconds, such as --search 10.")
    node = inputs.read_node(given)
    workloads, skipped = inputs.read_workloads(files)
    inputs.warn((*node.notes, *skipped))
    chosen = inputs.choose(workloads, only, files=files)
    inputs.warn(inputs.overlooked(node, (work.pod for work in chosen)))
    with screen.waiting("Looking for what would admit it"):
        found = [answers.answer(node, work, seconds=seconds) for work in chosen]
    answers.FORMS[form](node, found)
    if any(not answer.decision.admitted for answer in found):
        raise click.exceptions.Exit(REFUSED)
