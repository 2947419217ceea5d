"""``alignup upgrade-check``: what changes for a node and its pods when its kubelet gets another release."""

from collections.abc import Iterator
from dataclasses import dataclass

import click

from alignup.align.machine import Machine
from alignup.align.release import Release
from alignup.cli import inputs, terminal
from alignup.cli.app import InputError, Place, define_command
from alignup.cli.exit_codes import FAILED
from alignup.cli.layout import paragraph, section
from alignup.cli.options import HostOptions, option, output_option, with_options
from alignup.doctor import upgrade
from alignup.doctor.upgrade import UpgradeReport
from alignup.picture.text_format import Line, pluralize

_NODE = "--config examples/node/kubelet.yaml --machine examples/node/machine.yaml"
_RUNNING = "--config kubelet.yaml --machine machine.yaml --state state --pods running.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeOptions:
    from_version: str | None = option(
        "VERSION", "Release of the kubelet that runs now", "that of this machine or of the recording", "--from"
    )
    to_version: str = option("VERSION", "Release of the kubelet that replaces it", "", "--to", required=True)


@define_command(
    "upgrade-check",
    f"alignup upgrade-check --from 1.35 --to 1.37 {_NODE}",
    f"cd examples/node && alignup upgrade-check --from 1.35 --to 1.37 {_RUNNING}",
)
@with_options("options", UpgradeOptions)
@with_options("host", HostOptions)
@output_option("text", "json", "yaml")
def command(*, options: UpgradeOptions, host: HostOptions, output: str) -> None:
    """Say what a kubelet of another release makes of a node: its configuration, its state files and its pods.

    The new kubelet reads the configuration and the state files of --state, and admits the pods of --pods once more, the
    oldest first. Everything that it refuses, ignores or does otherwise than the present one is listed, and every pod
    of the state files that --pods lacks: it is not checked.

    The exit code is 0 when nothing breaks, 1 when something does or a pod is not checked, 2 when the input is invalid.
    """
    if host.kubernetes_version is not None:
        raise click.UsageError("--kubernetes-version: give --from and --to instead")
    machine = inputs.read_machine(host.machine, host.devices)
    releases = [_read_present(options, host, machine), _read(options.to_version, "--to")]
    source = inputs.configuration_text(host.config, host.changes, config_dir=host.config_dir, release=releases[0])
    workloads, skipped = inputs.read_workloads(host.pods, releases[0]) if host.pods else ((), ())
    defaults = () if host.config or host.config_dir else (inputs.describe_defaults(host.changes),)
    terminal.print_notes((*defaults, *source.notes, *skipped))
    if host.pods and host.state is None:
        raise InputError("--pods requires --state", advice="Add --state DIR.")
    running = sorted(
        (work for work in workloads if work.has_uid and not work.finished),
        key=lambda work: str(work.manifest.get("metadata", {}).get("creationTimestamp") or ""),
    )
    advice = "Give a kubelet's directory, such as /var/lib/kubelet."
    with inputs.input_errors(Place("--state", file=str(host.state or "")), advice=advice):
        pods = [work.pod for work in running]
        report = upgrade.check_upgrade(source, machine, directory=host.state, pods=pods, releases=releases)
    if output in terminal.DOCUMENTS:
        terminal.print_as(output, report.to_document())
    else:
        terminal.print_lines(_lines(report))
    if not report.safe:
        raise click.exceptions.Exit(FAILED)


def _read_present(options: UpgradeOptions, host: HostOptions, machine: Machine) -> Release:
    """Return the release of the kubelet that runs now."""
    if options.from_version is not None:
        return _read(options.from_version, "--from")
    release, notes = inputs.node_release(host, machine)
    if not notes:
        raise click.UsageError("the release of the present kubelet is not known: add --from VERSION")
    terminal.print_notes(notes)
    return release


def _read(version: str, name: str) -> Release:
    release, notes = inputs.read_release(version, option=name)
    terminal.print_notes(notes)
    return release


def _lines(report: UpgradeReport) -> Iterator[Line]:
    yield from paragraph(f"From Kubernetes {report.old} to {report.new}", style="title")
    for title, findings in (
        ("What the new kubelet refuses or ignores", report.findings),
        ("What both kubelets refuse: neither starts", report.shared),
    ):
        if findings:
            yield from section(title)
        for finding in findings:
            where = f"{finding.where}: " if finding.where else ""
            yield from paragraph(f"{where}{finding.kubelet_message or finding.summary}", prefix="  - ")
            if finding.advice:
                yield from paragraph(f"→ {finding.advice}", prefix="    ", style="dim")
    if report.pods:
        yield from section("Running pods that it treats otherwise")
    for change in report.pods:
        yield from paragraph(change.describe(report.new), prefix="  - ")
    if report.unchecked:
        yield from section("Pods of the state files that were not checked: --pods does not list them")
    for uid in report.unchecked:
        yield from paragraph(uid, prefix="  - ")
    yield ()
    yield from paragraph(_verdict(report), style="title" if report.safe else "warn")


def _verdict(report: UpgradeReport) -> str:
    checked = f"{pluralize(report.checked, 'running pod')} checked"
    if report.unchecked:
        checked += f", {len(report.unchecked)} not checked"
    if report.breaks:
        return f"{checked}: {'no kubelet starts' if report.shared else 'the upgrade breaks something'}"
    return f"{checked}: {'add them to --pods' if report.unchecked else 'nothing breaks'}"
