"""``alignup why``: explain why a pod is admitted or rejected, and what would admit it."""

from math import isnan

import click

from alignup.cli import terminal
from alignup.cli.app import InputError, define_command
from alignup.cli.exit_codes import FAILED
from alignup.cli.options import IGNORE_MISSING_HELP, HostOptions, output_option, with_options, workload_option

REJECTED = FAILED
_NODE = "--machine examples/node/machine.yaml --config examples/node/kubelet.yaml --state examples/node/state"


@define_command(
    "why",
    "alignup why -f examples/node/trainer.yaml --machine 'pack:2 numa:1 core:8 pu:2' "
    "--devices example.com/gpu=2@0 --devices example.com/nic=1@0",
    f"alignup why -f examples/node/trainer.yaml {_NODE}",
)
@workload_option
@with_options("host", HostOptions)
@click.option("--pod", "name", metavar="NAME", help="Explain only the workload with this name.")
@click.option(
    "--search",
    type=click.FloatRange(0, 3600),
    default=2.0,
    metavar="SECONDS",
    help="Search up to SECONDS for changes that would admit a rejected pod (default: 2).",
)
@click.option("--ignore-missing-devices", "lenient", is_flag=True, help=f"{IGNORE_MISSING_HELP}.")
@output_option("text", "json", "yaml")
def command(  # noqa: PLR0913 - options
    *, host: HostOptions, files: tuple[str, ...], name: str | None, search: float, lenient: bool, output: str
) -> None:
    """Explain the decision on a pod: the verdict, each resource's hints, how the NUMA nodes were chosen, the placement.

    A rejection also lists what did not fit, and changes that would admit the pod; each change was tried. Every workload
    in FILE is decided on its own, one replica of it, on the node as given. Nothing is changed.

    A pod that requests devices which no device plugin provides is not schedulable. A kubelet that gets it anyway
    ignores these requests; its verdict is shown, too, and counts with --ignore-missing-devices.

    The exit code is 0 when all pods are admitted, 1 when one is not, 2 when the input is invalid.
    """
    from alignup.align.explain import sentences  # noqa: PLC0415 - not needed for --help
    from alignup.cli import inputs, why_output  # noqa: PLC0415
    from alignup.kubernetes.manifests.documents import to_yaml  # noqa: PLC0415

    if isnan(search):
        raise InputError("--search nan: not a number of seconds", advice="Give seconds, such as --search 10.")
    node = inputs.read_host(host)
    workloads, skipped = inputs.read_workloads(files)
    terminal.print_notes((*node.notes, *skipped))
    chosen = inputs.select_workloads(workloads, name, files=files)
    terminal.print_notes(sentences.ignored_requests(node.host, [workload.pod for workload in chosen]))
    with terminal.waiting_message("Searching for changes that would admit it"):
        explanations = [why_output.explain(node.host, workload, seconds=search, lenient=lenient) for workload in chosen]
    if output == "text":
        why_output.print_text(node.host, explanations)
    elif output == "json":
        terminal.print_json(why_output.to_document(node, explanations))
    else:
        terminal.print_document(to_yaml(why_output.to_document(node, explanations)))
    if not all(explanation.admitted for explanation in explanations):
        raise click.exceptions.Exit(REJECTED)
