"""``alignup ps``: the pods an agent knows, and what ``alignup run`` runs."""

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from alignup.cli.app import debug_option, examples
from alignup.cli.client import AgentError, Where, agent_options, connected
from alignup.cli.options import form_option

if TYPE_CHECKING:
    from alignup.enforce.audit import Living


@click.command(
    short_help="What runs where: pods an agent knows, who waits, and what alignup run runs.",
    epilog=examples("alignup ps", "alignup ps -o json"),
)
@agent_options
@form_option("text", "json")
@debug_option
def command(where: Where, form: str) -> None:
    """Show the pods an agent knows: those that run on its node and what they have, then those that wait and why.

    Before them what 'alignup run' runs for this user. The exit code is 1 when no agent answers and nothing runs.
    """
    from alignup.cli import runs, screen, tables  # noqa: PLC0415 - loaded with the command, not with its help

    going = runs.going_on(runs.default_directory(os.environ))
    try:
        with connected(where) as agent:
            found = agent.get("/v1/pods")
    except AgentError:
        if where.agent or not going:
            raise
        found = {"pods": []}
    if form == "json":
        told = [{**run.intent.to_document(), "processes": list(run.pids)} for run in going]
        screen.values({**found, "runs": told})
        return
    if going:
        tables.table(("RUN", "CPUS", "MEMORY", "DEVICES", "SINCE", "PROCESSES", "COMMAND"), map(_run_row, going))
        if not found["pods"]:
            return
        click.echo()
    if not found["pods"]:
        click.echo("No pods are here.", err=True)
    else:
        heads = ("POD", "STATUS", "QOS", "NODES", "SINCE", "SOURCE", "WHAT IT HAS, OR WHY IT WAITS")
        tables.table(heads, map(_row, found["pods"]))


def _row(pod: dict[str, Any]) -> tuple[str, ...]:
    from alignup.cli import tables  # noqa: PLC0415 - see above

    place = f" ({pod['position']})" if pod["position"] else ""
    return (
        f"{pod['namespace']}/{pod['name']}",
        f"{pod['status']}{place}",
        pod["qos"],
        tables.nodes(pod["placements"]),
        pod["since"],
        pod["source"],
        tables.outcome(pod["refusal"], pod["placements"]),
    )


def _run_row(run: "Living") -> tuple[str, ...]:
    from alignup.align import bits  # noqa: PLC0415 - see above

    intent = run.intent
    since = datetime.fromtimestamp(intent.since, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    devices = ",".join(id_ for ids in intent.devices.values() for id_ in ids)
    return (
        intent.name,
        bits.show(intent.cpus) + ("" if intent.exclusive else " (shared)"),
        f"node {bits.show(intent.memory)}" if intent.memory else "any",
        devices or "-",
        since,
        str(len(run.pids)),
        " ".join(intent.command),
    )
