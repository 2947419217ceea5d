"""``alignup logs``: what a container printed."""

import sys

import click

from alignup.cli.app import debug_option, examples
from alignup.cli.client import AgentOptions, agent_options, connect


@click.command(
    short_help="What a container printed.",
    epilog=examples("alignup logs web", "alignup logs ml/trainer-0 -c train --tail 20 -f"),
)
@click.argument("pod", metavar="POD")
@click.option("-c", "--container", metavar="NAME", help="Whose; the only one, or the first that is no init container.")
@click.option("-f", "--follow", is_flag=True, help="And all that comes, until the container has ended.")
@click.option("-p", "--previous", is_flag=True, help="Of the time before it was started again.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Only the last so many lines.")
@click.option("--timestamps", is_flag=True, help="When, before each line.")
@agent_options
@debug_option
def command(  # noqa: PLR0913 - one an option
    *,
    where: AgentOptions,
    pod: str,
    container: str | None,
    follow: bool,
    previous: bool,
    tail: int | None,
    timestamps: bool,
) -> None:
    """Show what a container of POD printed, as it did.

    POD is a name, a namespace and name with a slash between them, or a uid. The exit code is 1 when no agent answers or
    there is no such pod, container or log, 2 when the pod could be several.
    """
    from alignup.cli import pod_status  # noqa: PLC0415 - loaded with the command, not with its help

    switches = {"follow": follow, "previous": previous, "timestamps": timestamps}
    asked = {name: "true" for name, given in switches.items() if given}
    with connect(where) as agent:
        one = pod_status.find_pod(pod, agent.get("/v1/pods")["pods"])
        for piece in agent.text(f"{pod_status.pod_path(one)}/logs", container=container or None, tail=tail, **asked):
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
