"""``alignup audit``: compare intended with actual placement."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from alignup.cli import terminal
from alignup.cli.agent_client import AgentOptions, find_agent
from alignup.cli.app import Place, define_command
from alignup.cli.exit_codes import FAILED
from alignup.cli.options import output_option, with_options
from alignup.cli.run import run_directory
from alignup.picture.text_format import pluralize
from alignup.run import audit, nri_audit
from alignup.run.audit import AuditReport, DriftKind

DRIFTED = FAILED
VERSION = 1  #: of the JSON document
_PAUSE = 2.0  #: seconds until the plugin has surely written what it gave to containers
_LABEL_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})  #: of Prometheus


@define_command("audit", "alignup audit", "alignup audit -o json")
@click.option("--fix", is_flag=True, help="Restore the intended placement.")
@click.option(
    "--nri",
    "nri_dir",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Audit the containers of 'alignup nri' with this --state-dir instead.",
)
@output_option("text", "json", "yaml", "prometheus")
@with_options("agent", AgentOptions)
def command(*, fix: bool, nri_dir: Path | None, output: str, agent: AgentOptions) -> None:
    """Compare the placement of everything that 'alignup run' runs with what the kernel reports.

    The audit covers cgroup cpusets, the affinity and memory nodes of each thread, the memory of each process, devices,
    and the ledger or agent that decided. --fix restores what it can.

    With --nri it covers the containers that 'alignup nri' places, in both modes, pods that run unaligned, and whether
    the plugin runs and is connected. The plugin itself restores containers whenever it connects.

    The exit code is 0 when everything is in place or fixed, 1 otherwise.
    """
    if nri_dir is None:
        report = audit.audit(run_directory(), agent=find_agent(agent), fix=fix)
    elif fix:
        raise click.UsageError("--fix restores runs, not containers: restart 'alignup nri', which restores them.")
    else:
        report = _audit_containers(nri_dir)
    if output in terminal.DOCUMENTS:
        terminal.print_as(output, _document(report))
    elif output == "prometheus":
        terminal.print_document("".join(f"{line}\n" for line in _metrics(report)))
    else:
        _print_text(report, "run" if nri_dir is None else "container")
    if report.drifts:
        raise click.exceptions.Exit(DRIFTED)


def _audit_containers(directory: Path) -> AuditReport:
    from alignup.cli import inputs  # noqa: PLC0415 - rarely needed

    with inputs.input_errors(Place("--nri"), advice="Give the --state-dir of 'alignup nri'."):
        return nri_audit.audit_containers(directory, now=time.time(), pause=lambda: time.sleep(_PAUSE))


def _print_text(report: AuditReport, noun: str) -> None:
    for drift in report.fixed:
        terminal.print_line(f"{drift} (fixed)")
    for drift in report.drifts:
        terminal.print_line(str(drift))
    terminal.print_notes(report.failures)
    if report.drifts:
        return
    runs = pluralize(len(report.runs), noun)
    terminal.print_line(f"{runs}: no drift" if report.runs else f"no {noun}s to audit")


def _document(report: AuditReport) -> dict[str, Any]:
    drifts = [(drift, True) for drift in report.fixed] + [(drift, False) for drift in report.drifts]
    return {
        "version": VERSION,
        "runs": [{**run.record.to_document(), "processes": list(run.pids)} for run in report.runs],
        "drift": [{**drift._asdict(), "fixed": is_fixed} for drift, is_fixed in drifts],
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
        labels_text = ",".join(f'{label}="{text.translate(_LABEL_ESCAPES)}"' for label, text in labels.items())
        yield f"{name}{{{labels_text}}} {value}" if labels_text else f"{name} {value}"
