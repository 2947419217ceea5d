"""``alignup ps``: the pods an agent knows, and what ``alignup run`` runs."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from alignup.cli.app import debug_option, examples
from alignup.cli.client import AgentError, Where, agent_options, connected
from alignup.cli.options import form_option

if TYPE_CHECKING:
    from alignup.enforce.audit import Living

Document = dict[str, Any]


@click.command(
    short_help="What runs where: pods an agent knows, who waits, and what alignup run runs.",
    epilog=examples("alignup ps", "alignup ps -o wide", "alignup ps -o json"),
)
@agent_options
@form_option("text", "wide", "json", what="For people, with more of each pod, or for machines.")
@debug_option
def command(where: Where, form: str) -> None:
    """Show the pods an agent knows: those that run on its node and what they have, then those that wait and why.

    Where the agent runs their containers, STATUS is what 'kubectl get pods' would say, and those that have run come
    last. Before them what 'alignup run' runs for this user. The exit code is 1 when no agent answers and nothing runs.
    """
    from alignup.cli import inputs, screen, tables  # noqa: PLC0415 - loaded with the command, not with its help
    from alignup.cli.run import run_directory  # noqa: PLC0415
    from alignup.runs import registry  # noqa: PLC0415

    going = registry.going_on(run_directory())
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
    inputs.warn(tuple(found.get("notes", ())))
    if going:
        tables.table(("RUN", "CPUS", "MEMORY", "DEVICES", "SINCE", "PROCESSES", "COMMAND"), map(_run_row, going))
        if not found["pods"]:
            return
        click.echo()
    if not found["pods"]:
        click.echo("No pods are here.", err=True)
        return
    columns = _columns(found["pods"], wide=form == "wide")
    rows = [[of(pod) for of in columns.values()] for pod in found["pods"]]
    tables.table(tuple(columns), rows)


def _columns(known: Sequence[Document], *, wide: bool) -> dict[str, Callable[[Document], str]]:
    """Head → what stands under it; some only where somebody runs the pods."""
    from alignup.cli import pods, tables  # noqa: PLC0415 - see above

    runs = any(pod.get("run") for pod in known)
    columns: dict[str, Callable[[Document], str]] = {
        "POD": pods.full_name,
        **({"READY": pods.ready} if runs else {}),
        "STATUS": pods.status,
        **({"RESTARTS": pods.restarts} if runs else {}),
        "QOS": lambda pod: str(pod["qos"]),
        "NODES": lambda pod: tables.nodes(() if pod["status"] == "finished" else pod["placements"]),
        "SINCE": lambda pod: str(pod["since"]),
        "SOURCE": lambda pod: str(pod["source"]),
    }
    if wide:
        columns |= {"UID": lambda pod: str(pod["uid"])}
        columns |= {"IP": pods.ips, "CPUS": pods.cpus} if runs else {}
    columns["WHAT IT HAS, OR WHY IT WAITS"] = pods.what
    return columns


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
