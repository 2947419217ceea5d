"""``alignup decisions``: what an agent decided, and why."""

from typing import Any

import click

from alignup.cli.app import debug_option, examples
from alignup.cli.client import AgentOptions, agent_options, connect
from alignup.cli.options import output_option


@click.command(
    short_help="What an agent decided, and why.",
    epilog=examples("alignup decisions --pod web", "alignup decisions 17"),
)
@click.argument("number", required=False, type=click.IntRange(min=1), metavar="[ID]")
@click.option("--pod", metavar="POD", help="Only about this pod: its name, namespace/name, or uid.")
@click.option("--outcome", type=click.Choice(["admitted", "rejected"]), help="Only those that ended so.")
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=20, show_default=True, metavar="N", help="At most so many."
)
@agent_options
@output_option("text", "json")
@debug_option
def command(  # noqa: PLR0913 - one an option
    *, where: AgentOptions, number: int | None, pod: str | None, outcome: str | None, limit: int, form: str
) -> None:
    """Show what an agent decided, the newest first; with the ID of one, all that was considered, in sentences.

    The exit code is 1 when no agent answers, or the decision is not kept any more.
    """
    from alignup.cli import tables, terminal  # noqa: PLC0415 - loaded with the command, not with its help

    with connect(where) as agent:
        if number is None:
            found = agent.get("/v1/decisions", pod=pod, outcome=outcome, limit=limit)
        else:
            found = agent.get(f"/v1/decisions/{number}")
    if form == "json":
        terminal.print_json(found)
    elif number is not None:
        for sentence in (f"Decision {number} of {found['time']}", *found["story"]):
            terminal.print_line(sentence)
    elif not found["decisions"]:
        click.echo("No such decision was made.", err=True)
    else:
        tables.print_table(("ID", "TIME", "POD", "OUTCOME", "WHERE, OR WHY NOT"), map(_row, found["decisions"]))


def _row(kept: dict[str, Any]) -> tuple[str, ...]:
    from alignup.cli import tables  # noqa: PLC0415 - see above

    decision = kept["decision"]
    return (
        str(kept["id"]),
        kept["time"],
        f"{decision['pod']['namespace']}/{decision['pod']['name']}",
        decision["outcome"],
        tables.describe_outcome(decision["rejection"], decision["placements"]),
    )
