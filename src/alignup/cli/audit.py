"""``alignup audit``: compare intended with actual placement."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import click

from alignup.cli import terminal
from alignup.cli.agent_client import AgentOptions, find_agent
from alignup.cli.app import define_command
from alignup.cli.exit_codes import FAILED
from alignup.cli.options import output_option, with_options
from alignup.cli.run import run_directory
from alignup.run import audit
from alignup.run.audit import AuditReport, DriftKind

DRIFTED = FAILED
VERSION = 1  #: of the JSON document
_LABEL_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})  #: of Prometheus


@define_command("audit", "alignup audit", "alignup audit -o json")
@click.option("--fix", is_flag=True, help="Restore the intended placement.")
@output_option("text", "json", "yaml", "prometheus")
@with_options("agent", AgentOptions)
def command(*, fix: bool, output: str, agent: AgentOptions) -> None:
    """Compare the placement of everything that 'alignup run' runs with what the kernel reports.

    The audit covers cgroup cpusets, the affinity and memory nodes of each thread, the memory of each process, devices,
    and the ledger or agent that decided. --fix restores what it can.

    The exit code is 0 when everything is in place or fixed, 1 otherwise.
    """
    report = audit.audit(run_directory(), agent=find_agent(agent), fix=fix)
    if output in terminal.DOCUMENTS:
        terminal.print_as(output, _document(report))
    elif output == "prometheus":
        terminal.print_document("".join(f"{line}\n" for line in _metrics(report)))
    else:
        _print_text(report)
    if report.drifts:
        raise click.exceptions.Exit(DRIFTED)


def _print_text(report: AuditReport) -> None:
    for drift in report.fixed:
        terminal.print_line(f"{drift} (fixed)")
    for drift in report.drifts:
        terminal.print_line(str(drift))
    terminal.print_notes(report.failures)
    if report.drifts:
        return
    count = len(report.runs)
    terminal.print_line(f"{count} run{'s' if count > 1 else ''}: no drift" if count else "no runs to audit")


def _document(report: AuditReport) -> dict[str, Any]:
    drifts = [(drift, True) for drift in report.fixed] + [(drift, False) for drift in report.drifts]
    return {
        "version": VERSION,
        "runs": [{**run.record.to_document(), "processes": list(run.pids)} for run in report.runs],
        "drift": [{**drift._asdict(), "fixed": fixed} for drift, fixed in drifts],
        "troubles": list(report.failures),
    }


def _metrics(report: AuditReport) -> Iterator[str]:
    drifts = Counter((drift.run, drift.kind) for drift in report.drifts)
    yield from _gauge("alignup_runs", "Active runs.", [({}, len(report.runs))])
    of_runs = [
        ({"run": run.record.uid, "name": run.record.name, "kind": kind}, drifts[run.record.uid, kind])
        for run in report.runs
        for kind in DriftKind
    ]
    yield from _gauge("alignup_run_drift", "Deviations of a run from its intended placement.", of_runs)


def _gauge(name: str, help_text: str, samples: Iterable[tuple[Mapping[str, str], int]]) -> Iterator[str]:
    yield f"# HELP {name} {help_text}"
    yield f"# TYPE {name} gauge"
    for labels, value in samples:
        shown = ",".join(f'{label}="{text.translate(_LABEL_ESCAPES)}"' for label, text in labels.items())
        yield f"{name}{{{shown}}} {value}" if shown else f"{name} {value}"
