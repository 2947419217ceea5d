"""``alignup audit``: compare intended with actual placement."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from alignup.align import bits
from alignup.cli import terminal
from alignup.cli.agent_client import AgentOptions, find_agent
from alignup.cli.app import define_command
from alignup.cli.exit_codes import FAILED
from alignup.cli.options import output_option, with_options
from alignup.cli.run import run_directory

if TYPE_CHECKING:
    from alignup.run.audit import AuditReport
    from alignup.run.placement_audit import Drift, PlacedContainer

DRIFTED = FAILED
VERSION = 1  #: of the JSON document
_LABEL_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})  #: of Prometheus


@define_command("audit", "alignup audit", "alignup audit -o json")
@click.option("--fix", is_flag=True, help="Restore the intended placement.")
@output_option("text", "json", "prometheus")
@with_options("agent", AgentOptions)
def command(*, fix: bool, output: str, agent: AgentOptions) -> None:
    """Compare the placement of everything that 'alignup run' or the agent runs with what the kernel reports.

    The audit covers cgroup cpusets, the affinity and memory nodes of each thread, the memory of each process, devices,
    the ledger or agent that decided, and containers that the agent does not know. --fix restores what it can.

    The exit code is 0 when everything is in place or fixed, 1 otherwise.
    """
    from alignup.run import audit  # noqa: PLC0415 - not needed for --help

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
    if report.drifts:
        return
    counts = {"run": len(report.runs), "container": len(report.containers.containers)}
    audited = " and ".join(f"{count} {what}{'s' if count > 1 else ''}" for what, count in counts.items() if count)
    nothing = "no runs or containers to audit" if report.containers.runtime else "no runs to audit"
    terminal.print_line(f"{audited}: no drift" if audited else nothing)


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
    return subject | {name: getattr(drift, name) for name in ("name", "kind", "where", "intended", "actual")}


def _container_document(container: "PlacedContainer") -> dict[str, Any]:
    return {
        **{name: getattr(container, name) for name in ("uid", "pod", "container", "id", "pid")},
        "cpus": bits.show(container.cpus),
        "memoryNodes": bits.show(container.memory),
        "devices": {resource: list(ids) for resource, ids in container.devices.items()},
        "cgroup": None if container.cgroup is None else str(container.cgroup),
        "processes": list(container.pids),
    }


def _metrics(report: "AuditReport") -> Iterator[str]:
    from alignup.run.placement_audit import DriftKind  # noqa: PLC0415 - not needed for --help

    kinds = [kind for kind in DriftKind if kind is not DriftKind.ORPHAN]
    drifts = Counter((drift.uid, drift.container, drift.kind) for drift in report.drifts)
    yield from _gauge("alignup_runs", "Active runs.", [({}, len(report.runs))])
    of_runs = [
        ({"run": run.record.uid, "name": run.record.name, "kind": kind}, drifts[run.record.uid, "", kind])
        for run in report.runs
        for kind in kinds
    ]
    yield from _gauge("alignup_run_drift", "Deviations of a run from its intended placement.", of_runs)
    if not report.containers.runtime:
        return
    containers = report.containers.containers
    audited = "Running containers of the agent that were audited."
    yield from _gauge("alignup_audited_containers", audited, [({}, len(containers))])
    orphans = sum(drift.kind is DriftKind.ORPHAN for drift in report.drifts)
    yield from _gauge("alignup_strays", "Pod sandboxes that the agent does not know.", [({}, orphans)])
    of_containers = []
    for one in containers:
        namespace, _, pod = one.pod.partition("/")
        labels = {"uid": one.uid, "namespace": namespace, "pod": pod, "container": one.container}
        of_containers += [({**labels, "kind": kind}, drifts[one.uid, one.container, kind]) for kind in kinds]
    yield from _gauge(
        "alignup_container_drift", "Deviations of a container from its intended placement.", of_containers
    )


def _gauge(name: str, help_text: str, samples: Iterable[tuple[Mapping[str, str], int]]) -> Iterator[str]:
    yield f"# HELP {name} {help_text}"
    yield f"# TYPE {name} gauge"
    for labels, value in samples:
        shown = ",".join(f'{label}="{text.translate(_LABEL_ESCAPES)}"' for label, text in labels.items())
        yield f"{name}{{{shown}}} {value}" if shown else f"{name} {value}"
