"""``alignup ps``: the pods an agent knows."""

from typing import Any

import click

from alignup.cli.app import debug_option, examples
from alignup.cli.client import Where, agent_options, connected, form_option


@click.command(
    short_help="The pods an agent knows: what they have, and who waits.",
    epilog=examples("alignup ps", "alignup ps -o json"),
)
@agent_options
@form_option
@debug_option
def command(where: Where, form: str) -> None:
    """Show the pods an agent knows: those that run on its node and what they have, then those that wait and why.

    The exit code is 1 when no agent answers.
    """
    from alignup.cli import tables  # noqa: PLC0415 - loaded with the command, not with its help

    with connected(where) as agent:
        found = agent.get("/v1/pods")
    if form == "json":
        tables.documents(found)
    elif not found["pods"]:
        click.echo("No pods are here.", err=True)
    else:
        heads = ("POD", "STATUS", "QOS", "NODES", "SINCE", "SOURCE", "WHAT IT HAS, OR WHY IT WAITS")
        tables.table(heads, map(_row, found["pods"]))


def _row(pod: dict[str, Any]) -> tuple[str, ...]:
    from alignup.cli import tables  # noqa: PLC0415 - see above

    place = f" ({pod['position']})" if pod["position"] else ""
    refusal = pod["refusal"]
    return (
        f"{pod['namespace']}/{pod['name']}",
        f"{pod['status']}{place}",
        pod["qos"],
        tables.nodes(pod["placements"]),
        pod["since"],
        pod["source"],
        f"{refusal['reason']}: {refusal['message']}" if refusal else tables.placed(pod["placements"]),
    )
