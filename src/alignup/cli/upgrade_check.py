"""``alignup upgrade-check``: what changes for a node and its pods when its kubelet gets another release."""

from dataclasses import dataclass, replace
from pathlib import Path

import click

from alignup.align.machine import Machine
from alignup.align.release import Release
from alignup.align.restart import UpgradeSeverity
from alignup.cli import collected, inputs, terminal
from alignup.cli.app import InputError, Place, define_command
from alignup.cli.completers import complete_files
from alignup.cli.exit_codes import FAILED
from alignup.cli.options import HostOptions, option, output_option, path_option, with_options, workload_field
from alignup.cli.upgrade_output import upgrade_lines
from alignup.collect.collection import ETC, Part
from alignup.doctor import upgrade
from alignup.doctor.upgrade import UpgradedNode, UpgradeReport
from alignup.kubernetes.kubelet_files.sub_ids import read_sub_ids
from alignup.picture.text_format import pluralize

_NODE = "--config examples/node/kubelet.yaml --machine examples/node/machine.yaml"
_RUNNING = "--config kubelet.yaml --machine machine.yaml --kubelet-dir state --pods running.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeOptions:
    from_version: str | None = option(
        "VERSION",
        "Release of the kubelet that runs now",
        "that of this machine, recording or archive",
        "--from",
    )
    to_version: str = option("VERSION", "Release of the kubelet that replaces it", "", "--to", required=True)
    files: tuple[str, ...] = workload_field()
    etc: Path | None = path_option("DIR", "Directory with subuid and subgid", "/etc of this machine, or in the archive")


@define_command(
    "upgrade-check",
    f"alignup upgrade-check --from 1.35 --to 1.37 {_NODE}",
    f"cd examples/node && alignup upgrade-check --from 1.35 --to 1.37 {_RUNNING}",
)
@click.argument("archive", required=False, metavar="[ARCHIVE]", shell_complete=complete_files)
@with_options("options", UpgradeOptions)
@with_options("host", HostOptions)
@output_option("text", "json", "yaml")
def command(*, archive: str | None, options: UpgradeOptions, host: HostOptions, output: str) -> None:
    """Say what a kubelet of another release makes of a node: its configuration, its state files and its pods.

    The new kubelet reads the configuration and the state files of --kubelet-dir, and admits the pods of --pods once
    more, the oldest first. Everything that it refuses, ignores or does otherwise than the present one is listed, the
    worst first, and every pod of the state files that --pods lacks: it is not checked. Pods of -f wait: it is said
    which of them get another answer. A rollback is an upgrade to an older release.

    ARCHIVE is one of 'alignup collect'. It has all of these; its pod waits if it does not run.

    The exit code is 0 when nothing breaks, 1 when something does or a pod is not checked, 2 when the input is invalid.
    """
    if host.kubernetes_version is not None:
        raise click.UsageError("--kubernetes-version: give --from and --to instead")
    if options.etc is not None and not options.etc.is_dir():
        raise InputError(f"{options.etc}: no such directory", place=Place("--etc"), advice="Give a node's /etc.")
    if archive is None:
        report = _check(options, host)
    else:
        with collected.unpacked(host, archive) as host_options:
            etc = options.etc or host_options.directory / ETC
            files = (*options.files, *host_options.files(Part.POD))
            version = options.from_version or host_options.options.kubernetes_version
            node_options = replace(options, files=files, etc=etc, from_version=version)
            report = _check(node_options, host_options.options)
    if output in terminal.DOCUMENTS:
        terminal.print_as(output, report.to_document())
    else:
        _print(report)
    if not report.safe:
        raise click.exceptions.Exit(FAILED)


def _check(options: UpgradeOptions, host: HostOptions) -> UpgradeReport:
    machine = inputs.read_machine(host.machine, host.devices)
    releases = [_read_present(options, host, machine), _read(options.to_version, "--to")]
    source = inputs.configuration_text(host.config, host.changes, config_dir=host.config_dir, release=releases[0])
    workloads, skip_notes = inputs.read_workloads(host.pods, releases[0]) if host.pods else ((), ())
    new_workloads, skipped_new = inputs.read_workloads(options.files, releases[0]) if options.files else ((), ())
    defaults = () if host.config or host.config_dir else (inputs.describe_defaults(host.changes),)
    terminal.print_notes((*defaults, *source.notes, *skip_notes, *skipped_new))
    if host.pods and host.state is None:
        raise InputError("--pods requires --kubelet-dir", advice="Add --kubelet-dir DIR.")
    running_pods = sorted(
        (work for work in workloads if work.has_uid and not work.finished),
        key=lambda work: str(work.manifest.get("metadata", {}).get("creationTimestamp") or ""),
    )
    uids = {work.pod.uid for work in running_pods}
    etc = options.etc or (Path("/etc") if host.machine is None else None)
    with inputs.input_errors(Place("--etc", file=str(etc or ""))):
        sub_ids = read_sub_ids(etc) if etc else {}
    advice = "Give a kubelet's directory, such as /var/lib/kubelet."
    with inputs.input_errors(Place("--kubelet-dir", file=str(host.state or "")), advice=advice):
        node = UpgradedNode(
            source=source,
            machine=machine.without_cpus(source.offline),
            directory=host.state,
            pods=[work.pod for work in running_pods],
            waiting=[work.pod for work in new_workloads if work.pod.uid not in uids],
            sub_ids=sub_ids,
        )
        return upgrade.check_upgrade(node, releases)


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
    terminal.print_notes(note for note in notes if note != f"Kubernetes {release.caveat}")  # the verdict says so
    return release


def _print(report: UpgradeReport) -> None:
    heading = f"From Kubernetes {report.old} to {report.new}: {pluralize(report.checked, 'running pod')} checked"
    if report.waiting:
        heading += f", {pluralize(report.waiting, 'waiting pod')} asked about"
    if report.unchecked:
        heading += f", {len(report.unchecked)} not checked"
    terminal.print_lines(upgrade_lines(report.items, report.new, verdict=_verdict(report), heading=heading))


def _verdict(report: UpgradeReport) -> str:
    """Return what breaks; empty if nothing does."""
    if report.safe:
        return ""
    if report.shared:
        return "no kubelet starts"
    if all(item.severity >= UpgradeSeverity.UNCHECKED for item in report.items):
        return "not all pods are checked"
    return f"the {'upgrade' if report.new.minor >= report.old.minor else 'rollback'} breaks something"
