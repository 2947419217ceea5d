"""``alignup ps``: the pods an agent knows, and what ``alignup run`` runs."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from alignup.cli.app import debug_option, examples
from alignup.cli.client import AgentError, AgentOptions, agent_options, connect
from alignup.cli.options import output_option

if TYPE_CHECKING:
    from alignup.enforce.audit import RunProcesses

Document = dict[str, Any]


@click.command(
    short_help="What runs where: pods an agent knows, who waits, and what alignup run runs.",
    epilog=examples("alignup ps", "alignup ps -o wide", "alignup ps -o json"),
)
@agent_options
@output_option("text", "wide", "json", what="For people, with more of each pod, or for machines.")
@debug_option
def command(where: AgentOptions, form: str) -> None:
    """Show the pods an agent knows: those that run on its node and what they have, then those that wait and why.

    Where the agent runs their containers, STATUS is what 'kubectl get pods' would say, and those that have run come
    last. Before them what 'alignup run' runs for this user. The exit code is 1 when no agent answers and nothing runs.
    """
    from alignup.cli import inputs, tables, terminal  # noqa: PLC0415 - loaded with the command, not with its help
    from alignup.cli.run import run_directory  # noqa: PLC0415
    from alignup.runs import registry  # noqa: PLC0415

    going = registry.active_runs(run_directory())
    try:
        with connect(where) as agent:
            found = agent.get("/v1/pods")
    except AgentError:
        if where.agent or not going:
            raise
        found = {"pods": []}
    if form == "json":
        told = [{**run.intent.to_document(), "processes": list(run.pids)} for run in going]
        terminal.print_json({**found, "runs": told})
        return
    inputs.print_notes(tuple(found.get("notes", ())))
    if going:
        tables.print_table(("RUN", "CPUS", "MEMORY", "DEVICES", "SINCE", "PROCESSES", "COMMAND"), map(_run_row, going))
        if not found["pods"]:
            return
        click.echo()
    if not found["pods"]:
        click.echo("No pods are here.", err=True)
        return
    columns = _columns(found["pods"], wide=form == "wide")
    rows = [[of(pod) for of in columns.values()] for pod in found["pods"]]
    tables.print_table(tuple(columns), rows)


def _columns(known: Sequence[Document], *, wide: bool) -> dict[str, Callable[[Document], str]]:
    """Head → what stands under it; some only where somebody runs the pods."""
    from alignup.cli import pod_status, tables  # noqa: PLC0415 - see above

    runs = any(pod.get("run") for pod in known)
    columns: dict[str, Callable[[Document], str]] = {
        "POD": pod_status.full_name,
        **({"READY": pod_status.ready} if runs else {}),
        "STATUS": pod_status.status,
        **({"RESTARTS": pod_status.restarts} if runs else {}),
        "QOS": lambda pod: str(pod["qos"]),
        "NODES": lambda pod: tables.numa_nodes(() if pod["status"] == "finished" else pod["placements"]),
        "SINCE": lambda pod: str(pod["since"]),
        "SOURCE": lambda pod: str(pod["source"]),
    }
    if wide:
        columns |= {"UID": lambda pod: str(pod["uid"])}
        columns |= {"IP": pod_status.ips, "CPUS": pod_status.cpus} if runs else {}
    columns["WHAT IT HAS, OR WHY IT WAITS"] = pod_status.detail
    return columns


def _run_row(run: "RunProcesses") -> tuple[str, ...]:
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
