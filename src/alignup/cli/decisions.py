"""``alignup decisions``: list the agent's decisions, or explain one of them."""

import click

from alignup.cli import pod_status, terminal
from alignup.cli.agent_client import AgentOptions, connect
from alignup.cli.app import define_command
from alignup.cli.object_names import parse_object_name
from alignup.cli.options import IntegerRange, output_option, with_options
from alignup.web.agent_client import Document


@define_command("decisions", "alignup decisions --pod web", "alignup decisions 17")
@click.argument("number", required=False, type=IntegerRange(min=1), metavar="[ID]")
@click.option("--pod", metavar="POD", help="Show only decisions about this pod: a name, namespace/name, or uid.")
@click.option("-n", "--namespace", default="", metavar="NAME", help="Namespace of --pod (default: any).")
@click.option(
    "--outcome", type=click.Choice(["admitted", "rejected", "waiting"]), help="Show only decisions with this outcome."
)
@click.option(
    "--limit", type=IntegerRange(1, 1000), default=20, metavar="N", help="Show at most N decisions (default: 20)."
)
@with_options("agent", AgentOptions)
@output_option("text", "wide", "json", "yaml")
def command(  # noqa: PLR0913 - one per option
    *,
    agent: AgentOptions,
    number: int | None,
    pod: str | None,
    namespace: str,
    outcome: str | None,
    limit: int,
    output: str,
) -> None:
    """List the agent's decisions, newest first; with an ID, explain that decision in full.

    The exit code is 1 when no agent answers, or when the decision is no longer kept.
    """
    client = connect(agent)
    if pod is not None:
        named = parse_object_name(pod, namespace)
        pod = f"{named.namespace}/{named.name}" if named.namespace else named.name
    if number is None:
        answer = client.get("/v1/decisions", pod=pod, outcome=outcome, limit=limit)
    else:
        answer = client.get(f"/v1/decisions/{number}")
    if output in terminal.DOCUMENTS:
        terminal.print_as(output, answer)
    elif number is not None:
        for sentence in (f"Decision {number} of {answer['time']}: {answer['outcome']}", *answer["explanation"]):
            terminal.print_line(sentence)
    elif not answer["decisions"]:
        click.echo("No matching decisions.", err=True)
    else:
        from alignup.cli.layout import print_table  # noqa: PLC0415 - slow to import

        heads = ("ID", "TIME", "POD", "OUTCOME", "PLACEMENT OR REASON")
        print_table(heads, map(_row, answer["decisions"]), wide=output == "wide")


def _row(entry: Document) -> tuple[str, ...]:
    decision = entry["decision"]
    return (
        str(entry["id"]),
        entry["time"],
        pod_status.full_name(decision["pod"]),
        entry["outcome"],
        pod_status.describe_outcome(decision["rejection"], decision["placements"]),
    )
