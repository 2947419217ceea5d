"""``alignup audit``: compare intended with actual placement."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from alignup.align import bits
from alignup.cli import terminal
from alignup.cli.app import COMMANDS, debug_option, examples
from alignup.cli.client import AgentOptions, find_agent
from alignup.cli.options import output_option, with_options

if TYPE_CHECKING:
    from alignup.enforce.audit import Drift
    from alignup.enforce.container_audit import ContainerProcesses
    from alignup.runs.audit import AuditReport

DRIFTED = 1
VERSION = 1  #: of the JSON document


@click.command(short_help=COMMANDS["audit"], epilog=examples("alignup audit", "alignup audit -o json"))
@click.option("--fix", is_flag=True, help="Restore the intended placement.")
@output_option("text", "json", "prometheus")
@with_options("agent", AgentOptions)
@debug_option
def command(*, fix: bool, output: str, agent: AgentOptions) -> None:
    """Compare the placement of everything that 'alignup run' or the agent runs with what the kernel reports.

    The audit covers cgroup cpusets, the affinity and memory nodes of each thread, the memory of each process, devices,
    the ledger or agent that decided, and containers that the agent does not know. --fix restores what it can.

    The exit code is 0 when everything is in place or fixed, 1 otherwise.
    """
    from alignup.cli.run import run_directory  # noqa: PLC0415 - not needed for --help
    from alignup.runs import audit  # noqa: PLC0415

    client = find_agent(agent)
    report = audit.audit(run_directory(), agent=client, fix=fix)
    if output == "json":
        terminal.print_json(_document(report))
    elif output == "prometheus":
        terminal.print_document("".join(f"{line}\n" for line in _metrics(report)))
    else:
        _print_text(report)
    if report.drifts:
        raise click.exceptions.Exit(DRIFTED)


def _print_text(report: "AuditReport") -> None:
    for drift in report.fixed:
        terminal.print_line(f"{drift} (fixed)")
    for drift in report.drifts:
        terminal.print_line(str(drift))
    terminal.print_notes((*report.failures, *report.containers.notes))
    counts = {"run": len(report.runs), "container": len(report.containers.containers)}
    audited = [f"{count} {what}{'s' if count > 1 else ''}" for what, count in counts.items() if count]
    if report.drifts:
        return
    if audited:
        terminal.print_line(f"{' and '.join(audited)}: no drift")
    else:
        terminal.print_line("no runs or containers to audit" if report.containers.runtime else "no runs to audit")


def _document(report: "AuditReport") -> dict[str, Any]:
    drifts = [(drift, True) for drift in report.fixed] + [(drift, False) for drift in report.drifts]
    return {
        "version": VERSION,
        "runs": [{**run.record.to_document(), "processes": list(run.pids)} for run in report.runs],
        "containers": list(map(_container_document, report.containers.containers)),
        "drift": [{**_drift_document(drift), "fixed": fixed} for drift, fixed in drifts],
        "troubles": [*report.failures, *report.containers.notes],
    }


def _drift_document(drift: "Drift") -> dict[str, Any]:
    is_container = drift.container or drift.kind == "stray"
    subject = {"pod": drift.uid, "container": drift.container} if is_container else {"run": drift.uid}
    return {
        **subject,
        "name": drift.name,
        "kind": str(drift.kind),
        "where": drift.where,
        "intended": drift.intended,
        "actual": drift.actual,
    }


def _container_document(found: "ContainerProcesses") -> dict[str, Any]:
    container = found.container
    return {
        "uid": container.uid,
        "pod": container.pod,
        "container": container.container,
        "id": container.id,
        "pid": container.pid,
        "cpus": bits.show(container.cpus),
        "memoryNodes": bits.show(container.memory),
        "devices": {resource: list(ids) for resource, ids in container.devices.items()},
        "cgroup": None if container.cgroup is None else str(container.cgroup),
        "processes": list(found.pids),
    }


def _metrics(report: "AuditReport") -> Iterator[str]:
    from alignup.enforce.audit import DriftKind  # noqa: PLC0415 - not needed for --help

    kinds = [kind for kind in DriftKind if kind is not DriftKind.STRAY]
    yield from _gauge("alignup_runs", "Active runs.")
    yield f"alignup_runs {len(report.runs)}"
    yield from _gauge("alignup_run_drift", "Deviations of a run from its intended placement.")
    for record in (run.record for run in report.runs):
        for kind in kinds:
            count = sum(drift.uid == record.uid and drift.kind is kind for drift in report.drifts)
            yield f'alignup_run_drift{{run="{record.uid}",name="{_escape_label(record.name)}",kind="{kind}"}} {count}'
    if not report.containers.runtime:
        return
    yield from _gauge("alignup_audited_containers", "Running containers of the agent that were audited.")
    yield f"alignup_audited_containers {len(report.containers.containers)}"
    yield from _gauge("alignup_strays", "Pod sandboxes that the agent does not know.")
    yield f"alignup_strays {sum(drift.kind is DriftKind.STRAY for drift in report.drifts)}"
    yield from _gauge("alignup_container_drift", "Deviations of a container from its intended placement.")
    for container in (found.container for found in report.containers.containers):
        namespace, _, pod = container.pod.partition("/")
        values = {"uid": container.uid, "namespace": namespace, "pod": pod, "container": container.container}
        labels = ",".join(f'{name}="{_escape_label(value)}"' for name, value in values.items())
        key = (container.uid, container.container)
        for kind in kinds:
            count = sum(drift.kind is kind and (drift.uid, drift.container) == key for drift in report.drifts)
            yield f'alignup_container_drift{{{labels},kind="{kind}"}} {count}'


def _gauge(name: str, help_text: str) -> Iterator[str]:
    yield f"# HELP {name} {help_text}"
    yield f"# TYPE {name} gauge"


def _escape_label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
