"""``alignup doctor``: check a kubelet's configuration and state files, and repair them."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import click

from alignup.cli import inputs, terminal
from alignup.cli.app import InputError, Place, define_command
from alignup.cli.exit_codes import FAILED
from alignup.cli.layout import paragraph, section
from alignup.cli.options import NodeOptions, flag_option, output_option, path_option, pods_option, with_options
from alignup.doctor import diagnosis
from alignup.doctor.diagnosis import Diagnosis
from alignup.doctor.findings import Area, Finding, Severity
from alignup.kubernetes.configuration.distributions import SNIPPET
from alignup.kubernetes.manifests import documents
from alignup.picture.text_format import Cell, Line, clean, pluralize

UNHEALTHY = FAILED
_MARKS = {
    Severity.ERROR: ("ERROR", "lost"),
    Severity.WARNING: ("WARNING", "warn"),
    Severity.NOTE: ("note", "label"),
    Severity.OK: ("ok", "free"),
}
_MARK_WIDTH = 10
_NODE = "--config examples/node/kubelet.yaml --machine examples/node/machine.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions(NodeOptions):
    config: Path | None = path_option(
        "FILE",
        "KubeletConfiguration of the node, also as /configz, ConfigMap, or file of OpenShift, kubeadm or a cloud",
        "config.yaml in --kubelet-dir, or the kubelet's defaults",
    )
    kubelet_dir: Path | None = path_option(
        "DIR", "Check the state files in this kubelet directory, such as /var/lib/kubelet"
    )
    pods: tuple[str, ...] = pods_option("to name them, and to keep their resources first")
    write: bool = flag_option("Repair the state files, after a backup of each")


@define_command(
    "doctor",
    "alignup doctor --config examples/doctor/kubelet.yaml --machine examples/node/machine.yaml",
    f"alignup doctor {_NODE} --kubelet-dir examples/doctor/state",
)
@with_options("options", DoctorOptions)
@output_option("text", "json", "yaml")
def command(*, options: DoctorOptions, output: str) -> None:
    """Find everything that stops a kubelet from starting on a machine, and settings that have surprising effects.

    Each finding says what the kubelet does and how to fix it, with YAML to paste where possible. --kubelet-dir checks
    the state files too: what is damaged, and what can be saved. Nothing is changed without --write, and never while a
    kubelet uses the directory.

    The exit code is 0 without findings, 1 with errors or warnings, 2 when the input is invalid.
    """
    directory = options.kubelet_dir
    if options.pods and directory is None:
        raise click.UsageError("--pods names the pods in the state files: add --kubelet-dir DIR")
    if options.write and directory is None:
        raise click.UsageError("--write repairs state files: add --kubelet-dir DIR")
    config = options.config
    if config is None and directory is not None and (directory / inputs.KUBELET_FILE).is_file():
        config = directory / inputs.KUBELET_FILE
    machine = inputs.read_machine(options.machine, options.devices)
    release, notes = inputs.node_release(options, machine)
    source = inputs.configuration_text(config, options.changes, config_dir=options.config_dir, release=release)
    machine = machine.without_cpus(source.offline)
    terminal.print_notes((*notes, *source.notes))
    if not (config or options.config_dir or options.changes):
        source = replace(source, file="the kubelet's defaults")
    pods = [pod for work in inputs.read_workloads(options.pods)[0] for pod in work.pods()] if options.pods else []
    names = {pod.uid: f"{pod.namespace}/{pod.name}" for pod in pods if pod.uid}
    check = partial(diagnosis.diagnose, source, machine, directory=directory, pods=names)
    write_to = directory if options.write else None
    _check_unused(write_to)
    with inputs.input_errors(Place("--kubelet-dir"), advice="Give a kubelet's directory, such as /var/lib/kubelet."):
        result = check()
    if write_to is not None:
        _check_unused(write_to)
        advice = "Run the command as a user who may write there, with the kubelet stopped."
        with inputs.input_errors(Place("--kubelet-dir"), advice=advice):
            result = diagnosis.write_repairs(check, result, write_to, now=datetime.now(UTC))
    if output in terminal.DOCUMENTS:
        terminal.print_as(output, _document(result))
    else:
        machine_name = options.machine or "this machine"
        pasted_into = source.file if source.path else source.name
        terminal.print_lines(_lines(result, configuration=source.name, machine=machine_name, file=pasted_into))
    if not result.final.healthy:
        raise click.exceptions.Exit(UNHEALTHY)


def _check_unused(directory: Path | None) -> None:
    if directory is not None and (users := diagnosis.find_live_kubelets(directory)):
        raise InputError(
            *users,
            place=Place(detail=f"{directory} is in use; nothing was written"),
            advice="Stop the kubelet first (systemctl stop kubelet). Containers keep running.",
        )


def _lines(diagnosis: Diagnosis, *, configuration: str, machine: str, file: str) -> Iterator[Line]:
    yield from paragraph(f"{configuration} on {machine}", style="title")
    for area in Area:
        findings = diagnosis.report.of(area)
        if findings:
            yield from section(area[0].upper() + area[1:])
        for finding in findings:
            yield from _finding_lines(finding)
    yield from _yaml_lines(file, diagnosis.report.findings)
    yield from _repair_lines(diagnosis)
    yield ()
    yield from paragraph(_verdict(diagnosis), style="title" if diagnosis.final.healthy else "fail")


def _finding_lines(finding: Finding) -> Iterator[Line]:
    mark, style = _MARKS[finding.severity]
    prefix = f"  {mark}".ljust(_MARK_WIDTH) + " "
    text = f"{finding.where}: {finding.summary}" if finding.where else finding.summary
    code = f" ({finding.code})" if finding.code else ""
    yield from paragraph(f"{text}{code}", prefix=prefix, prefix_style=style)
    indent = " " * (_MARK_WIDTH + 1)
    if finding.kubelet_message:
        yield from paragraph(f"kubelet: {finding.kubelet_message}", prefix=indent, style="dim")
    if finding.advice:
        yield from paragraph(f"→ {finding.advice}", prefix=indent)


def _yaml_lines(file: str, findings: Iterable[Finding]) -> Iterator[Line]:
    """The proposed YAML, each key once, without indentation so that it can be pasted."""
    proposed_fields: dict[str, Any] = {}
    for finding in findings:
        for document in documents.read(finding.paste) if finding.paste else ():
            proposed_fields = _merge(proposed_fields, document.value)
    if proposed_fields:
        yield from section(f"Replace these keys in {clean(file)}")
        text = documents.to_yaml(json.loads(documents.to_json(proposed_fields)))  # plain numbers
        yield from ((Cell(line),) for line in text.splitlines())


def _merge(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return *first* with the keys of *second* that it lacks, also inside of values; snippets of JSON are joined."""
    document = dict(first)
    for key, value in second.items():
        earlier = document.setdefault(key, value)
        if isinstance(earlier, Mapping) and isinstance(value, Mapping):
            document[key] = _merge(earlier, value)
        elif key == SNIPPET:
            document[key] = json.dumps(_merge(json.loads(earlier), json.loads(value)))
    return document


def _repair_lines(diagnosis: Diagnosis) -> Iterator[Line]:
    if diagnosis.repairs:
        yield from section("Repaired" if diagnosis.after else "--write would repair")
    elif diagnosis.after:
        yield ()
        yield (Cell("Nothing to repair; nothing was written."),)
    for repair in diagnosis.repairs:
        backup = diagnosis.backups.get(repair.name)
        yield from paragraph(f"{repair.name}{f' (backup: {backup.name})' if backup else ''}", prefix="  ")
        for line in repair.done:
            yield from paragraph(line, prefix="    - ")


def _verdict(diagnosis: Diagnosis) -> str:
    errors, warnings = map(diagnosis.final.count, (Severity.ERROR, Severity.WARNING))
    now = " now" if diagnosis.backups else ""
    warning_count = pluralize(warnings, "warning")
    failures = [finding for finding in diagnosis.final.findings if finding.severity is Severity.ERROR]
    if errors and all(finding.own_limit for finding in failures):
        return f"alignup cannot tell whether this kubelet starts: {pluralize(errors, 'error')}."
    if errors:
        rest = f" and {warning_count}" if warnings else ""
        return f"This kubelet does not start{now}: {pluralize(errors, 'error')}{rest}."
    return f"This kubelet starts{now}, {f'with {warning_count}' if warnings else 'without warnings'}."


def _document(diagnosis: Diagnosis) -> dict[str, Any]:
    backups = {name: str(path) for name, path in diagnosis.backups.items()}
    repairs = [
        {"file": repair.name, "done": list(repair.done), "backup": backups.get(repair.name)}
        for repair in diagnosis.repairs
    ]
    document = diagnosis.report.to_document() | {"healthy": diagnosis.final.healthy, "repairs": repairs}
    return document | ({"after": diagnosis.after.to_document()["findings"]} if diagnosis.after else {})
