"""``alignup ps``: list the agent's pods, and what ``alignup run`` runs."""

import time
from collections.abc import Callable

import click

from alignup.align import bits
from alignup.cli import pod_status, terminal
from alignup.cli.agent_client import AgentOptions, connect
from alignup.cli.app import define_command
from alignup.cli.completers import complete_agent_pods
from alignup.cli.layout import print_table
from alignup.cli.options import output_option, with_options
from alignup.cli.pod_status import AgentPodOptions
from alignup.cli.run import run_directory
from alignup.documents.codec import timestamp
from alignup.run import registry
from alignup.run.registry import RunProcesses
from alignup.web.agent_client import AgentError, Document


@define_command("ps", "alignup ps", "alignup ps -o wide", "alignup ps -n ml -l app=web -o json")
@click.argument("pods", nargs=-1, metavar="[POD]...", shell_complete=complete_agent_pods)
@with_options("selection", AgentPodOptions)
@with_options("agent", AgentOptions)
@output_option("text", "wide", "json", "yaml", "name")
def command(*, agent: AgentOptions, pods: tuple[str, ...], selection: AgentPodOptions, output: str) -> None:
    """List the commands that 'alignup run' runs for this user, and the agent's pods, admitted and waiting.

    With POD, -n or -l, only these pods and no runs. The exit code is 1 when no agent answers and nothing runs, or when
    POD does not exist.
    """
    selects = bool(pods or selection.namespace or selection.selector)
    runs = [] if selects else registry.active_runs(run_directory())
    try:
        listing = connect(agent).pod_list()
    except AgentError:
        if agent.agent or not runs:
            raise
        listing = {"pods": []}
    listing = {**listing, "pods": pod_status.select_pods(pods, listing["pods"], selection)}
    if output in terminal.DOCUMENTS:
        documents = [{**run.record.to_document(), "processes": list(run.pids)} for run in runs]
        terminal.print_as(output, {**listing, "runs": documents})
        return
    if output == "name":
        for name in (*(f"run/{run.record.name}" for run in runs), *(f"pod/{pod['name']}" for pod in listing["pods"])):
            terminal.print_line(name)
        return
    terminal.print_notes(listing.get("notes", ()))
    listed_pods = listing["pods"]
    if runs:
        heads = ("RUN", "CPUS", "MEMORY", "DEVICES", "SINCE", "PROCESSES", "COMMAND")
        print_table(heads, map(_run_row, runs), wide=output == "wide")
    if runs and listed_pods:
        click.echo()
    if listed_pods:
        columns = _columns(wide=output == "wide")
        print_table(
            tuple(columns), [[column(pod) for column in columns.values()] for pod in listed_pods], wide=output == "wide"
        )
    elif not runs:
        click.echo("No pods found.", err=True)


def _columns(*, wide: bool) -> dict[str, Callable[[Document], str]]:
    """Return heading → cell."""
    columns: dict[str, Callable[[Document], str]] = {
        "POD": pod_status.full_name,
        "STATUS": pod_status.status,
        "QOS": lambda pod: str(pod["qos"]),
        "NODES": lambda pod: pod_status.numa_nodes(pod["placements"]),
        "AGE": lambda pod: pod_status.age(pod["since"], time.time()),
    }
    if wide:
        columns |= {
            "SINCE": lambda pod: str(pod["since"]),
            "SOURCE": lambda pod: str(pod["source"]),
            "UID": lambda pod: str(pod["uid"]),
        }
    columns["PLACEMENT OR REASON"] = lambda pod: pod_status.describe_outcome(pod["rejection"], pod["placements"])
    return columns


def _run_row(run: RunProcesses) -> tuple[str, ...]:
    record = run.record
    return (
        record.name,
        bits.show(record.cpus) + ("" if record.exclusive else " (shared)"),
        f"node {bits.show(record.memory)}" if record.memory else "any",
        ",".join(id_ for ids in record.devices.values() for id_ in ids) or "-",
        timestamp(record.since, timespec="seconds"),
        str(len(run.pids)),
        " ".join(record.command),
    )
