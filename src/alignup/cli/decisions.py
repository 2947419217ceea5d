"""``alignup decisions``: list the agent's decisions, or explain one decision."""

import time

import click

from alignup.cli import pod_status, terminal
from alignup.cli.agent_client import AgentOptions, connect
from alignup.cli.app import define_command
from alignup.cli.completers import complete_agent_pods
from alignup.cli.layout import print_table
from alignup.cli.object_names import parse_object_name
from alignup.cli.options import IntegerRange, output_option, with_options
from alignup.web.agent_client import Document


@define_command("decisions", "alignup decisions --pod web", "alignup decisions 17")
@click.argument("subject", required=False, metavar="[ID|POD]", shell_complete=complete_agent_pods)
@click.option("--pod", metavar="POD", help="The same as POD: a name, namespace/name, pod/name, or uid.")
@click.option("-n", "--namespace", default="", metavar="NAME", help="Namespace of the pod (default: any).")
@click.option("-A", "--all-namespaces", is_flag=True, help="Pods of all namespaces, which is the default.")
@click.option(
    "--outcome", type=click.Choice(["admitted", "rejected", "waiting"]), help="Show only decisions with this outcome."
)
@click.option(
    "--limit", type=IntegerRange(1, 1000), default=20, metavar="N", help="Show at most N decisions (default: 20)."
)
@with_options("agent", AgentOptions)
@output_option("text", "wide", "json", "yaml", "name")
def command(  # noqa: PLR0913 - one per option
    *,
    agent: AgentOptions,
    subject: str | None,
    pod: str | None,
    namespace: str,
    all_namespaces: bool,
    outcome: str | None,
    limit: int,
    output: str,
) -> None:
    """List the agent's decisions, newest first, or those about POD; with an ID, explain that decision in full.

    The exit code is 1 when no agent answers, or when the decision is no longer kept.
    """
    number = int(subject) if subject and subject.isdecimal() and len(subject) < 19 else None
    if subject is not None and number is None:
        if pod is not None:
            raise click.UsageError("Give POD once.")
        pod = subject
    client = connect(agent)
    if pod is not None:
        object_name = parse_object_name(pod, "" if all_namespaces else namespace)
        if object_name.kind != "Pod":
            raise click.UsageError(
                f"Decisions are about pods: name one of {object_name.name}, such as {object_name.name}-0."
            )
        pod = f"{object_name.namespace}/{object_name.name}" if object_name.namespace else object_name.name
    if number is None:
        answer = client.get("/v1/decisions", pod=pod, outcome=outcome, limit=limit)
    else:
        answer = client.get(f"/v1/decisions/{number}")
    _print(answer, number, output)


def _print(answer: Document, number: int | None, output: str) -> None:
    """Print one decision, or a list of them."""
    if output in terminal.DOCUMENTS:
        terminal.print_as(output, answer)
    elif output == "name":
        for entry in [answer] if number is not None else answer["decisions"]:
            terminal.print_line(f"decision/{entry['id']}")
    elif number is not None:
        for sentence in (f"Decision {number} of {answer['time']}: {answer['outcome']}", *answer["explanation"]):
            terminal.print_line(sentence)
    elif not answer["decisions"]:
        click.echo("No matching decisions.", err=True)
    else:
        wide = output == "wide"
        heads = ("ID", "TIME" if wide else "AGE", "POD", "OUTCOME", "PLACEMENT OR REASON")
        print_table(heads, [_row(entry, wide=wide) for entry in answer["decisions"]], wide=wide)


def _row(entry: Document, *, wide: bool) -> tuple[str, ...]:
    decision = entry["decision"]
    return (
        str(entry["id"]),
        entry["time"] if wide else pod_status.age(entry["time"], time.time()),
        pod_status.full_name(decision["pod"]),
        entry["outcome"],
        pod_status.describe_outcome(decision["rejection"], decision["placements"]),
    )
