"""``alignup check``: check the pod templates of manifests against profiles of nodes, before a cluster gets them."""

import json
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import click

from alignup.align.errors import LocatedProblem, ManifestError
from alignup.align.host import Host
from alignup.align.settings import FeatureGates
from alignup.check import ignored_findings, report_formats
from alignup.check.manifest_files import ManifestFile, read_files
from alignup.check.template_check import CheckFinding, NodeProfile, TemplateCheck
from alignup.cli import collected, inputs, terminal
from alignup.cli.app import NOWHERE, InputError, Place, define_command
from alignup.cli.completers import complete_files
from alignup.cli.exit_codes import FAILED
from alignup.cli.inputs import HostInput
from alignup.cli.layout import print_table
from alignup.cli.options import HostOptions, build_options, output_option
from alignup.cli.simulate_output import resolve_group
from alignup.kubernetes.manifests.workloads import Workload
from alignup.picture.text_format import pluralize
from alignup.placement.pod_findings import FindingLevel
from alignup.simulate import cluster_files

_TYPE = ("apiVersion", "kind")  #: the fields that every manifest has
_GIVE_NODE = "Give --node NAME=MACHINE,CONFIG, such as gpu=machine.yaml,kubelet.yaml."
_GIVE_NODES = "Give a file of kind Cluster, as in docs/fleet.md."
_EMPTY_NODE = build_options(HostOptions)
_NODE = "--node gpu=examples/node/machine.yaml,examples/node/kubelet.yaml"


@define_command(
    "check",
    f"alignup check examples/node/trainer.yaml {_NODE}",
    f"cat examples/node/trainer.yaml | alignup check - {_NODE} -o sarif > alignup.sarif",
)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", shell_complete=complete_files)
@click.option(
    "--node",
    "nodes",
    multiple=True,
    metavar="NAME=MACHINE[,CONFIG]",
    help="Check against this kind of node: a machine and a KubeletConfiguration, or an archive of 'alignup collect'. "
    "Repeatable.",
)
@click.option(
    "--nodes", "cluster", type=click.Path(path_type=Path), metavar="FILE", help="Check against all kinds of a Cluster."
)
@click.option(
    "--fail-on",
    type=click.Choice([str(level) for level in FindingLevel]),
    default=str(FindingLevel.REJECTED),
    help="Fail on findings of this level, or a worse one (default: rejected).",
)
@click.option(
    "--baseline", type=click.Path(path_type=Path), metavar="FILE", help="Accept the findings that FILE lists."
)
@click.option(
    "--write-baseline",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write all findings to FILE, to accept them from now on, and succeed.",
)
@output_option("table", "json", "yaml", "sarif", "github")
def command(  # noqa: PLR0913 - options
    *,
    paths: tuple[str, ...],
    nodes: tuple[str, ...],
    cluster: Path | None,
    fail_on: str,
    baseline: Path | None,
    write_baseline: Path | None,
    output: str,
) -> None:
    """Say of every pod template in manifests whether an empty node of each kind admits and aligns its pods.

    PATH is a file, a directory with all below it, or - for standard input. A rejection names what does not fit and a
    change that admits the pod; each change was tried.

    To accept a finding, write '# alignup: ignore CODE' into the YAML document, or keep a baseline.

    The exit code is 0 when nothing is found, 1 when there is a finding of --fail-on, 2 when the input is invalid.
    """
    profiles = _read_profiles(nodes, cluster)
    inputs.check_writable("--write-baseline", write_baseline)
    with inputs.input_errors(Place("--baseline"), advice="Write one with --write-baseline FILE."):
        baseline_keys = ignored_findings.read_baseline(baseline) if baseline else frozenset()
    findings, total, ignored_count = _find(paths, profiles, baseline_keys)
    if write_baseline is not None:
        with inputs.input_errors(Place("--write-baseline"), advice=inputs.WRITABLE):
            count = ignored_findings.write_baseline(write_baseline, findings)
        terminal.print_notes([f"wrote {pluralize(count, 'finding')} to {write_baseline}"])
        return
    names = [profile.name for profile in profiles]
    if output in terminal.DOCUMENTS:
        document = report_formats.to_document(findings, workloads=total, profiles=names, ignored_count=ignored_count)
        terminal.print_as(output, document)
    elif output == "sarif":
        terminal.print_document(json.dumps(report_formats.to_sarif(findings), indent=1) + "\n")
    elif output == "github":
        for line in report_formats.to_github(findings):
            terminal.print_line(line)
    else:
        _print_table(findings, total, names, ignored_count)
    if any(finding.answer.level.rank <= FindingLevel(fail_on).rank for finding in findings):
        raise click.exceptions.Exit(FAILED)


def _find(
    paths: Sequence[str], profiles: Sequence[NodeProfile], baseline: Collection[tuple[str, ...]]
) -> tuple[list[CheckFinding], int, int]:
    """Return the findings, the number of workloads, and the number of accepted findings."""
    check = TemplateCheck(profiles)
    findings: list[CheckFinding] = []
    total = ignored_count = 0
    newest = max((profile.host.settings.gates for profile in profiles), key=lambda gates: gates.release.minor)
    with terminal.waiting_message(lambda: f"Checking {pluralize(total, 'workload')}"):
        for manifest, workloads in _read_workloads(paths, newest):
            comments = ignored_findings.IgnoreComments(manifest.text.decode(errors="replace"))
            for workload in workloads:
                total += 1
                codes = comments.codes_at(workload.source.line)
                with inputs.input_errors(Place.at(workload.source)):
                    for finding in check.findings(workload):
                        if ignored_findings.is_accepted(finding, codes, baseline):
                            ignored_count += 1
                        else:
                            findings.append(finding)
    return findings, total, ignored_count


def _read_profiles(nodes: Sequence[str], cluster: Path | None) -> list[NodeProfile]:
    profiles = [_read_profile(node) for node in nodes]
    if cluster is not None:
        with inputs.input_errors(Place("--nodes", file=str(cluster)), advice=_GIVE_NODES):
            document, top = cluster_files.read_cluster(cluster)
        for group, source in zip(document.groups, top.children("groups"), strict=True):
            resolved_group = resolve_group(_EMPTY_NODE, group, source)
            profiles.append(NodeProfile(resolved_group.name, Host(resolved_group.machine, resolved_group.settings)))
    if not profiles:
        raise click.UsageError(f"There is no node to check against. {_GIVE_NODE}")
    twice = [name for name, count in Counter(profile.name for profile in profiles).items() if count > 1]
    if twice:
        raise InputError(f"two nodes are called {twice[0]}", place=Place("--node"), advice="Give each another name.")
    return profiles


def _read_profile(node: str) -> NodeProfile:
    name, equals, value = node.partition("=")
    machine, _, config = value.partition(",")
    if not (name and equals and machine):
        raise InputError(f"{node!r} is not NAME=MACHINE[,CONFIG]", place=Place("--node"), advice=_GIVE_NODE)
    options = replace(_EMPTY_NODE, machine=machine, config=Path(config) if config else None)
    try:
        if machine.endswith(inputs.ARCHIVES) and not config:
            with collected.unpacked(replace(options, machine=None), machine) as archive:
                profile = _empty_host(replace(archive.options, state=None, pods=()))
        else:
            profile = _empty_host(options)
    except InputError as error:
        if error.place.option in ("--machine", "--config"):
            error.place = error.place._replace(option="--node", value=name)
        raise
    terminal.print_notes(f"{name}: {note}" for note in (*profile.notes, *filter(None, [profile.defaults])))
    return NodeProfile(name, profile.host)


def _empty_host(options: HostOptions) -> HostInput:
    return inputs.build_host(inputs.read_machine(options.machine), options, kubelet_faults=True)


def _read_workloads(paths: Sequence[str], gates: FeatureGates) -> list[tuple[ManifestFile, tuple[Workload, ...]]]:
    """Return the workloads of each file; all problems of all files are reported together."""
    notes: list[str] = []
    problems: list[LocatedProblem] = []
    files = []
    with inputs.input_errors(NOWHERE, advice=inputs.GIVE_MANIFESTS):
        for manifest in read_files(paths, inputs.standard_input(), notes):
            try:
                manifests = inputs.read_manifest_text(manifest.text, manifest.name, gates)
            except ManifestError as error:
                if manifest.in_directory and all(
                    located_problem.problem.field in _TYPE for located_problem in error.problems
                ):
                    notes.append(f"{manifest.name}: skipped, since it is not a manifest")
                else:
                    problems += error.problems
            else:
                notes += [warning for warning in manifests.warnings if not warning.startswith("skipped ")]
                files.append((manifest, manifests.workloads))
        terminal.print_notes(notes)
        if problems:
            raise ManifestError(problems)
    return files


def _print_table(findings: Sequence[CheckFinding], total: int, profiles: Sequence[str], ignored_count: int) -> None:
    if findings:
        rows = [
            (
                str(finding.workload.source),
                str(finding.answer.level),
                finding.answer.code,
                report_formats.describe(finding),
            )
            for finding in sorted(findings, key=lambda finding: finding.answer.level.rank)
        ]
        print_table(("WHERE", "LEVEL", "CODE", "FINDING"), rows)
    counts = Counter(str(finding.answer.level) for finding in findings)
    levels = ", ".join(f"{counts[level]} {level}" for level in FindingLevel if counts[level]) or "nothing found"
    also = f" ({ignored_count} accepted)" if ignored_count else ""
    nodes = pluralize(len(profiles), "kind")
    terminal.print_line(f"{pluralize(total, 'workload')} on {nodes} of node: {levels}{also}")
