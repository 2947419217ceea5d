"""The simulations of ``alignup simulate``: of a node, of a comparison of settings and of a cluster, and their output.

In the table of a comparison, combinations with equal results share a row of 80 columns.
"""

import io
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby, islice
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import click

from alignup.align.claims.alignment import HostClaims
from alignup.align.errors import SettingsError
from alignup.align.explain import sentences
from alignup.align.host import Host
from alignup.align.machine import Machine
from alignup.align.release import Release
from alignup.align.settings import FeatureGates
from alignup.align.workload import Pod
from alignup.cli import claims_output, inputs, terminal
from alignup.cli.app import InputError, Place
from alignup.cli.layout import paragraph, section, table
from alignup.cli.options import HostOptions
from alignup.cli.simulate import SimulateOptions
from alignup.documents import codec
from alignup.documents.line_numbers import find_line
from alignup.kubernetes import configuration
from alignup.kubernetes.manifests.object_reader import ObjectReader
from alignup.kubernetes.manifests.workloads import LoadedWorkloads
from alignup.picture.machine_svg import draw_svg
from alignup.picture.text_format import Cell, Line, clean, display_width, pluralize
from alignup.simulate import (
    cluster_files,
    cluster_result,
    compared_settings,
    generate,
    node_report,
    node_simulation,
    openb,
    trace,
)
from alignup.simulate.arrivals import (
    PodArrival,
    PodDeparture,
    PodSubmission,
    WorkloadEvent,
    format_duration,
    from_events,
    ordered,
)
from alignup.simulate.cluster_files import GroupDocument
from alignup.simulate.cluster_hosts import HostGroup
from alignup.simulate.cluster_result import FleetReport, FleetResult
from alignup.simulate.cluster_simulation import ClusterSimulation
from alignup.simulate.compared_settings import Comparison, RankedVariant
from alignup.simulate.device_connections import figures
from alignup.simulate.executors import ProcessEngine, SerialEngine
from alignup.simulate.node_simulation import SimulationResult
from alignup.simulate.schedulers import STRATEGIES, find_strategy
from alignup.simulate.shared_pods import SharedPoolResult
from alignup.simulate.simulated_claims import NO_CLAIMS
from alignup.simulate.sweeps import change_pace
from alignup.simulate.usage import format_amount

Events = tuple[WorkloadEvent, ...]
Submissions = tuple[PodSubmission, ...]

_MAX_ROWS = 20  #: of pods or combinations
_MAX_EXAMPLES = 4  #: combinations listed per error
_COMPARED = ("admitted", "rejected", "one node", "CPUs", "devices")  #: figures of a combination
_LARGEST = "room: the largest request of one container that still fits, at peak demand and at the end"
_GIVE_CLUSTER = "Give a cluster file as described in docs/fleet.md, or the nodes of openb as CSV."
_GIVE_TRACE = "See docs/simulate-data.md for the format; for openb, give the CSV file of the pods."
_GIVE_STRATEGY = "Give names separated by commas, such as alignup,blind-least-allocated, or all."
_SEE_GENERATE = "See 'alignup simulate --help' for --count and --load."


def run(host: HostOptions, options: SimulateOptions, output: str) -> None:
    inputs.check_writable("--svg", options.svg)
    inputs.check_writable("--html", options.html)
    node = inputs.read_host(host, kubelet_faults=True)
    terminal.print_notes(node.notes)
    claims = None
    if options.files:
        manifests = inputs.read_manifests(options.files, node.host.settings.gates)
        events = _file_events(manifests, options.files)
        if manifests.use_claims:
            claims = claims_output.read_claims(manifests, node.host.machine)
    else:
        events = read_events(options, node.host.machine, node.host.settings.gates)
    pods = [event.pod for event in events if isinstance(event, PodArrival)]
    terminal.print_notes(sentences.ignored_requests(node.host, pods))
    if options.save:
        save_trace(options.save, events, pods=len(pods))
    comparison = None if options.compare is None else _compare(node.host, events, options, claims)
    defaults = node.defaults if output == "text" else ""
    terminal.print_lines(paragraph(defaults, style="dim") if defaults else ())
    release = node.host.settings.release
    if comparison is not None and options.html is None:
        _print_comparison(comparison, output, release)
        return
    with inputs.input_errors(Place(detail="in the workload")), terminal.progress("Simulating", "events") as progress:
        lenient = options.ignore_missing_devices
        result = node_simulation.run(
            node.host,
            events,
            progress=progress,
            ignore_missing_devices=lenient,
            claims=claims,
            shared_pool=options.shared_pool,
            seed=options.seed,
        )
    if options.svg:
        with inputs.input_errors(Place("--svg"), advice=inputs.WRITABLE):
            options.svg.write_text(draw_svg(result.machine, result.peak.ledger), encoding="utf-8")
    if options.html:
        from alignup.simulate import html_reports  # noqa: PLC0415 - only for --html

        comparison_text = "" if comparison is None else ", and a comparison of settings"
        title = f"Simulation of {pluralize(len(result.outcomes), 'pod')}{comparison_text}{title_caveat([release])}"
        write_html(options.html, html_reports.render_node(result, events, title=title, comparison=comparison))
    if comparison is not None:
        _print_comparison(comparison, output, release)
    elif output in terminal.DOCUMENTS:
        terminal.print_as(output, node_report.to_document(result) | caveat_document([release]))
    elif output == "csv":
        node_report.write_rows(node_report.COLUMNS, node_report.rows(result), sys.stdout)
    else:
        terminal.print_lines(_node_lines(result, timed=not options.files))


def title_caveat(releases: Iterable[Release]) -> str:
    """Return what a title says of releases that are not known as a whole."""
    return "".join(f" · Kubernetes {release.describe()}" for release in dict.fromkeys(releases) if release.caveat)


def caveat_document(releases: Iterable[Release]) -> dict[str, Any]:
    """Return what a document says of a release that is not known as a whole."""
    return next((release.to_document() for release in releases if release.caveat), {})


def _print_comparison(comparison: Comparison, output: str, release: Release) -> None:
    if output in terminal.DOCUMENTS:
        terminal.print_as(output, compared_settings.to_document(comparison) | caveat_document([release]))
    elif output == "csv":
        node_report.write_rows(compared_settings.columns(comparison), compared_settings.rows(comparison), sys.stdout)
    else:
        terminal.print_lines(comparison_lines(comparison))


def save_trace(path: Path, events: Iterable[WorkloadEvent], *, pods: int) -> None:
    """Write the trace of ``--save``."""
    with inputs.input_errors(Place("--save"), advice=inputs.WRITABLE), path.open("w", encoding="utf-8") as file:
        trace.write(events, file)
    click.echo(f"Wrote {pluralize(pods, 'pod')} to {path}.", err=True)


def write_html(path: Path, text: str) -> None:
    """Write the report of ``--html``."""
    with inputs.input_errors(Place("--html"), advice=inputs.WRITABLE):
        path.write_text(text, encoding="utf-8", errors="replace")
    click.echo(f"Wrote {path}.", err=True)


def read_events(options: SimulateOptions, machine: Machine, gates: FeatureGates) -> Events:
    """Return a trace, whose pods an API server with *gates* accepts, or a workload that is generated for *machine*."""
    if options.trace:
        fixes_defaults = gates.on("PodLevelResourcesFixDefaulting")
        with inputs.input_errors(
            Place("--trace"), advice="See docs/simulate-data.md for the format; --save writes an example."
        ):
            if str(options.trace) == "-":
                stream = inputs.standard_input() or io.BytesIO()
                return trace.read(stream.read(trace.MAX_BYTES + 1), file="-", fix_pod_level=fixes_defaults)
            return trace.read_file(options.trace, fix_pod_level=fixes_defaults)
    with inputs.input_errors(Place("--generate"), advice=_SEE_GENERATE):
        profile = generate.Profile(options.generate or "")
        return generate.generate(profile, machine, seed=options.seed, pods=options.count, load=options.load)


def _file_events(manifests: LoadedWorkloads, files: tuple[str, ...], *, with_selectors: bool = False) -> Events:
    """Return all replicas of all workloads of *files*, arriving one after the other."""
    terminal.print_notes(manifests.warnings)
    if finished_count := sum(workload.finished for workload in manifests.workloads):
        terminal.print_notes((f"skipped {pluralize(finished_count, 'finished pod')}",))
    pods = [(pod, workload) for workload in manifests.workloads if not workload.finished for pod in workload.pods()]
    if not pods:
        raise InputError("no pods to simulate", place=Place(file=", ".join(files)), advice="Give files with workloads.")
    events = []
    for index, (pod, workload) in enumerate(pods):
        selector = (workload.manifest.get("spec") or {}).get("nodeSelector") if with_selectors else None
        events.append(PodArrival(float(index), pod, {label: (value,) for label, value in (selector or {}).items()}))
    return ordered(events)


def _compare(host: Host, events: Events, options: SimulateOptions, claims: HostClaims | None) -> Comparison:
    dimensions, jobs, lenient = options.compare or "", options.jobs, options.ignore_missing_devices
    if host.ledger.pods:
        place = Place(detail="with --kubelet-dir")
        raise InputError("--compare starts with an empty node", place=place, advice="Omit --kubelet-dir.")
    example = "Give settings like policy,scope or policy=none|restricted,cpu-options."
    with inputs.input_errors(Place("--compare"), advice=example):
        grid = compared_settings.build_grid(host.settings, dimensions.split(","), machine=host.machine)
    with terminal.progress("Comparing", "combinations") as progress:
        return compared_settings.compare(
            host.machine,
            grid,
            events,
            engine=SerialEngine() if jobs == 1 else ProcessEngine(jobs),
            progress=progress,
            ignore_missing_devices=lenient,
            claims=claims,
            seed=options.seed,
        )


def _node_lines(result: SimulationResult, *, timed: bool) -> Iterator[Line]:
    """Yield the lines of a result; *timed*: the workload defines when its pods arrive."""
    total = pluralize(len(result.outcomes), "pod")
    yield (Cell(f"{total}: {result.admitted} admitted, {result.rejected} rejected", "title"),)
    topology = result.settings.topology
    duration = f" · {format_duration(result.duration)} of workload" if result.duration and timed else ""
    yield (Cell(f"policy {topology.policy} · scope {topology.scope}{duration}", "dim"),)
    names = ("on one NUMA node", "on several NUMA nodes", "nothing to align")
    yield from section("Admitted")
    yield from table([[name, str(number)] for name, number in zip(names, result.pods, strict=True) if number])
    if (claims := result.claims) != NO_CLAIMS:
        names = ("CPUs and memory beside the devices", "elsewhere", "nothing to align")
        yield from section("Claims of admitted pods")
        counts = (claims.aligned, claims.unaligned, claims.unknown)
        yield from table([[name, str(number)] for name, number in zip(names, counts, strict=True) if number])
    if figures_text := figures([result.connections]):
        yield from section("Containers with several GPUs, or with GPU and NIC")
        yield from table([[name, str(number)] for name, (number,) in figures_text.items()])
    if result.reasons:
        yield from section("Rejected")
        yield from table([[reason, str(number)] for reason, number in result.reasons.items()])
    yield from _usage_lines(result)
    if result.shared is not None:
        yield from _shared_lines(result.shared)
    yield from _pod_lines(result)


def _shared_lines(pool_result: SharedPoolResult) -> Iterator[Line]:
    """Yield where pods without exclusive CPUs can run."""
    caption = f"means over the time of {pluralize(pool_result.pods, 'pod')} without exclusive CPUs"
    yield from section("Shared pool", caption=caption)
    columns = (pool_result.kubelet, pool_result.assist)
    yield from table(
        [
            ["NUMA nodes that a pod may use", *(f"{column.nodes:.2f}" for column in columns)],
            ["pods that may use one only", *(f"{column.on_one:.0%}" for column in columns)],
            ["locality of memory", *(f"{column.locality:.0%}" for column in columns)],
            ["highest load of a NUMA node", *(f"{column.load:.0%}" for column in columns)],
            ["moves of running pods", "", str(pool_result.moves)],
        ],
        ["", "kubelet", "assist"],
    )


def _usage_lines(result: SimulationResult) -> Iterator[Line]:
    rows = []
    for node, stats in result.nodes.items():
        for number, (resource, use) in enumerate(stats.items()):
            largest = [room.largest_by_node.get(node, {}).get(resource, 0) for room in (result.peak, result.end)]
            amounts = (use.total, use.mean, use.peak, use.end, *largest)
            figures = [format_amount(resource, amount) for amount in amounts]
            rows.append(["" if number else f"node {node}", resource, *figures])
    if not rows:
        yield from section("In use", caption="nothing: no manager allocates per NUMA node with these settings")
        return
    yield from section("In use", caption=_LARGEST)
    yield from table(rows, ["", "", "of", "mean", "peak", "end", "room (peak)", "room (end)"])
    yield from section("Stranded", caption="at peak demand: free, but unusable for every pod of this workload")
    yield (Cell(f"  {result.peak.stranded.text}"),)


def _pod_lines(result: SimulationResult) -> Iterator[Line]:
    """Yield all pods, or of many only the rejected ones."""
    few = len(result.outcomes) <= _MAX_ROWS
    number = len(result.outcomes) if few else result.rejected
    if not number:
        return
    yield from section("Pods" if few else "Rejected pods")
    shown_rows = (row for row in node_report.rows(result) if few or row["outcome"] != "admitted")
    rows = []
    for row in islice(shown_rows, _MAX_ROWS):
        detail = f"{row['reason']}: {row['shortfall'] or row['message']}"
        if row["outcome"] == "admitted":
            cpus = f"CPUs {row['cpus']}" if row["cpus"] else ""
            node_text = f"node {row['nodes']}" if row["nodes"] else "any node"
            detail = " ".join(filter(None, (node_text, cpus, row["devices"], row["claims"])))
        if row["kubelet"]:
            detail += f" (a kubelet that got it: {row['kubelet']})"
        if row["missing"] and row["outcome"] == "admitted":
            detail += f" (not schedulable: {sentences.no_plugin(row['missing'].split(' '))})"
        rows.append([f"{row['namespace']}/{row['name']}", row["outcome"], detail])
    yield from table(rows)
    yield from more_lines(number)


# Comparisons


class FoldedVariants(NamedTuple):
    """The combinations with equal figures."""

    variants: tuple[RankedVariant, ...]
    grids: tuple[dict[str, tuple[str, ...]], ...]  #: dimension → values, which can be combined freely

    @property
    def first(self) -> RankedVariant:
        return self.variants[0]


def fold_ties(ranked_variants: Sequence[RankedVariant]) -> list[FoldedVariants]:
    """Return the variants in their order, with variants of one rank and equal figures folded into a few grids."""
    groups: list[FoldedVariants] = []
    for _, equal in groupby(ranked_variants, lambda item: (item.rank, _numbers(item))):
        variants = other_variants = tuple(equal)
        names = list(other_variants[0].variant.choices)
        grids = []
        while other_variants:
            grid = _largest_grid(other_variants, names)
            grids.append({name: tuple(dict.fromkeys(item.variant.choices[name] for item in grid)) for name in names})
            other_variants = tuple(item for item in other_variants if item not in grid)
        groups.append(FoldedVariants(variants, tuple(grids)))
    return groups


def comparison_lines(comparison: Comparison) -> Iterator[Line]:
    ranked_variants, invalid = comparison.ranked, comparison.invalid
    combinations = pluralize(len(ranked_variants) + len(invalid), "combination")
    best = ", best first" if ranked_variants else ""
    yield (Cell(f"{combinations}, {len(ranked_variants)} of them valid{best}", "title"),)
    if ranked_variants:
        groups = fold_ties(ranked_variants)
        yield from paragraph("CPUs and devices: stranded at peak demand", style="dim")
        yield ()
        yield from _comparison_table(groups[:_MAX_ROWS])
        yield from more_lines(len(groups))
        yield from _reason_lines(groups[:_MAX_ROWS])
    if invalid:
        yield from section("The kubelet does not start with")
        for error in dict.fromkeys(variant.error for variant in invalid):
            yield from paragraph(error, prefix="  ", style="warn")
            labels = [clean(variant.label) for variant in invalid if variant.error == error]
            for label in labels[:_MAX_EXAMPLES]:
                yield from paragraph(_breakable(label), prefix="      ")
            yield from more_lines(len(labels), shown=_MAX_EXAMPLES)


def more_lines(number: int, *, shown: int = _MAX_ROWS) -> Iterator[Line]:
    if number > shown:
        yield (Cell(f"      … and {number - shown} more; -o csv lists all", "dim"),)


def _comparison_table(groups: Sequence[FoldedVariants]) -> Iterator[Line]:
    """Yield a column for each setting if they fit, else lines below the figures."""
    heads = ["", *groups[0].grids[0], *_COMPARED]
    rows = [row for variants in groups for row in _comparison_rows(variants)]
    widths = [max(map(display_width, column)) for column in zip(heads, *rows, strict=True)]
    if sum(widths) + 2 * len(widths) <= terminal.width():
        yield from table(rows, heads)
        return
    lines = list(
        table([[str(variants.first.rank), *_numbers(variants.first)] for variants in groups], ["", *_COMPARED])
    )
    yield lines[0]
    for variants, line in zip(groups, lines[1:], strict=True):
        yield line
        for grid in variants.grids:
            text = "; ".join(f"{name}: {', '.join(values)}" for name, values in grid.items())
            yield from paragraph(_breakable(text), prefix="     - ", style="dim")


def _comparison_rows(group: FoldedVariants) -> Iterator[list[str]]:
    """Yield the figures once, and every value on its own line."""
    first = True
    for grid in group.grids:
        for number in range(max(map(len, grid.values()))):
            rank, figures = ("", [""] * len(_COMPARED))
            if first:
                rank, figures, first = str(group.first.rank), _numbers(group.first), False
            yield [rank, *(values[number] if number < len(values) else "" for values in grid.values()), *figures]


def _breakable(text: str) -> str:
    """Return *text* with spaces in sets of options, which can be wider than a terminal."""
    return text.replace("+", " + ")


def _reason_lines(groups: Sequence[FoldedVariants]) -> Iterator[Line]:
    ranks: dict[str, list[str]] = {}
    for ranked_variant in (variant for group in groups for variant in group.variants):
        reasons = ranked_variant.score.reasons_text
        if reasons and str(ranked_variant.rank) not in ranks.setdefault(reasons, []):
            ranks[reasons].append(str(ranked_variant.rank))
    if ranks:
        yield from section("Why pods are rejected")
        yield from table([[", ".join(numbers), reasons] for reasons, numbers in ranks.items()])


def _numbers(ranked_variant: RankedVariant) -> list[str]:
    score, stranded_amounts = ranked_variant.score, ranked_variant.score.stranded
    numbers = (score.admitted, score.rejected, score.pods.on_one, stranded_amounts.cpus, stranded_amounts.all_devices)
    return list(map(str, numbers))


def _largest_grid(variants: Sequence[RankedVariant], names: Sequence[str]) -> list[RankedVariant]:
    """Return variants, the first among them, that are all combinations of some values; not always the most."""
    largest = [variants[0]]
    for variant in variants[1:]:
        together = [*largest, variant]
        values = [dict.fromkeys(other.variant.choices[name] for other in together) for name in names]
        grid = [
            other
            for other in variants
            if all(other.variant.choices[name] in options for name, options in zip(names, values, strict=True))
        ]
        if len(grid) == prod(map(len, values)):
            largest = grid
    return largest


# Clusters


def run_cluster(host: HostOptions, options: SimulateOptions, output: str) -> None:
    for name, value in (("--compare", options.compare), ("--svg", options.svg), ("--kubelet-dir", host.state)):
        if value is not None:
            raise InputError(f"{name} is for one node", advice="Omit it, or omit --cluster and --nodes.")
    strategies = _strategy_names(options.strategy)
    if output == "csv" and len(strategies) > 1:
        raise InputError("-o csv is for one strategy", advice="Give one --strategy, or use -o json.")
    inputs.check_writable("--html", options.html)
    groups, submissions = _read_cluster(host, options)
    releases = [group.settings.release for group in groups]
    shape = _read_shape(options.shape) if options.shape else None
    if options.save:
        _save(submissions, options.save)
    results: list[FleetResult] = []
    for name in strategies:
        with (
            inputs.input_errors(Place(detail="in the cluster")),
            terminal.progress(f"Simulating {name}", "pods") as progress,
        ):
            simulation = ClusterSimulation(
                groups, submissions, name, retries=options.retries, seed=options.seed, shape=shape
            )
            results.append(simulation.run(progress))
        if output == "csv":
            node_report.write_rows(cluster_result.POD_COLUMNS, cluster_result.pod_rows(simulation.runs), sys.stdout)
    report = FleetReport(results=tuple(results))
    if options.html:
        from alignup.simulate import html_reports  # noqa: PLC0415 - only for --html

        title = f"Simulation of {_pods_on_nodes(results[0])}{title_caveat(releases)}"
        write_html(options.html, html_reports.render_cluster(report, title=title))
    if output in terminal.DOCUMENTS:
        terminal.print_as(output, json.loads(codec.encode(report)) | caveat_document(releases))
    elif output == "text":
        terminal.print_lines(_cluster_lines(results))


def simulate_once(host: HostOptions, options: SimulateOptions) -> ClusterSimulation:
    """Return the simulation of a cluster with one strategy, after it has ended."""
    (name, *more) = _strategy_names(options.strategy)
    if more:
        raise InputError("give one strategy", place=Place("--strategy"))
    groups, submissions = _read_cluster(host, options)
    with (
        inputs.input_errors(Place(detail="in the cluster")),
        terminal.progress(f"Simulating {name}", "pods") as progress,
    ):
        simulation = ClusterSimulation(groups, submissions, name, retries=options.retries, seed=options.seed)
        simulation.run(progress)
    return simulation


def _read_shape(file: str) -> Pod:
    workloads, notes = inputs.read_workloads((file,))
    terminal.print_notes(notes)
    return inputs.select_workloads(workloads, files=(file,))[0].pod


def _pods_on_nodes(result: FleetResult) -> str:
    return f"{pluralize(result.pods, 'pod')} on {pluralize(result.hosts, 'node')}"


def _strategy_names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(STRATEGIES if text == "all" else filter(None, text.split(","))))
    with inputs.input_errors(Place("--strategy"), advice=_GIVE_STRATEGY):
        for name in names:
            find_strategy(name)
        if not names:
            raise SettingsError("no strategy")
    return names


def _read_cluster(host: HostOptions, options: SimulateOptions) -> tuple[tuple[HostGroup, ...], Submissions]:
    groups = _read_groups(host, options)
    manifests = inputs.read_manifests(options.files, _newest_gates(groups)) if options.files else None
    if manifests is not None and manifests.use_claims:
        groups = claims_output.claims_of_groups(manifests, groups)
    return groups, _read_submissions(options, groups, manifests)


def _newest_gates(groups: Sequence[HostGroup]) -> FeatureGates:
    """Return the feature gates of the newest kubelet; an API server is not older than it."""
    return max((group.settings.gates for group in groups), key=lambda gates: gates.release.minor)


def _read_groups(host: HostOptions, options: SimulateOptions) -> tuple[HostGroup, ...]:
    """Return nodes like *host*, or nodes of a cluster file or of openb; groups may have its configuration."""
    if options.cluster is not None and options.nodes is not None:
        raise InputError("--cluster and --nodes exclude each other", advice="Omit one of them.")
    if options.nodes is not None:
        node = inputs.read_host(host, kubelet_faults=True)
        terminal.print_notes(node.notes)
        machine, settings = node.host.machine, node.host.settings
        return (HostGroup(name="node", machine=machine, settings=settings, count=options.nodes),)
    path = options.cluster or Path()
    place = Place("--cluster", file=str(path))
    if host.machine or host.devices:
        raise InputError("--machine and --devices are for --nodes", advice="Set them in the groups of the cluster.")
    if openb.is_openb(path):
        release, notes = inputs.read_release(host.kubernetes_version)
        terminal.print_notes(notes)
        kubelet = inputs.read_configuration(host.config, host.changes, config_dir=host.config_dir, release=release)
        with inputs.input_errors(place, advice=_GIVE_CLUSTER):
            return openb.read_nodes(path, lambda machine: configuration.host_settings(kubelet, machine))
    with inputs.input_errors(place, advice=_GIVE_CLUSTER):
        cluster, top = cluster_files.read_cluster(path)
    groups = tuple(map(partial(resolve_group, host), cluster.groups, top.children("groups")))
    for release in dict.fromkeys(group.settings.release for group in groups):
        terminal.print_notes([f"Kubernetes {release.describe()}"] if release.caveat else ())
    return groups


def resolve_group(host: HostOptions, group: GroupDocument, source: ObjectReader) -> HostGroup:
    """Return *group* of a file with its machine and settings; a group without a configuration has the one of *host*."""
    config = Path(group.config) if group.config else host.config
    version = group.kubernetes_version or host.kubernetes_version
    changes = (*host.changes, *group.changes)
    options = replace(host, machine=group.machine, config=config, changes=changes, kubernetes_version=version)
    try:
        machine = inputs.read_machine(group.machine, group.devices)
        settings = inputs.build_host(machine, options, kubelet_faults=True).host.settings
    except InputError as error:
        raise name_field(error, source) from error.__cause__
    return HostGroup(name=group.name, count=group.count, machine=machine, settings=settings, labels=group.labels)


def name_field(error: InputError, source: ObjectReader | None) -> InputError:
    """Return *error* with the field of *source*, an object of a file, instead of the option with the same meaning."""
    field = error.place.option.removeprefix("--")
    document = source.diagnostics if source else None
    if source is None or not isinstance(document, trace.FirstProblem) or not field or not source.has(field):
        return error
    path = source.path_of(field)
    problems = [": ".join(filter(None, (path, error.place.value, problem))) for problem in error.problems]
    place = Place(file=document.file, line=find_line(document.text, path))
    return InputError(*problems, place=place, advice=error.advice)


def _read_submissions(
    options: SimulateOptions, groups: Sequence[HostGroup], manifests: LoadedWorkloads | None
) -> Submissions:
    if options.generate:
        with inputs.input_errors(Place("--generate"), advice=_SEE_GENERATE):
            profile, seed = generate.Profile(options.generate), options.seed
            submissions = generate.generate_for_cluster(
                profile, groups, seed=seed, pods=options.count, load=options.load
            )
    elif options.trace and openb.is_openb(options.trace):
        with inputs.input_errors(Place("--trace"), advice=_GIVE_TRACE):
            submissions = openb.read_pods(options.trace, note=lambda note: terminal.print_notes([note]))
    elif manifests is not None:
        submissions = from_events(_file_events(manifests, options.files, with_selectors=True))
    else:
        submissions = from_events(read_events(options, groups[0].machine, _newest_gates(groups)))
    return change_pace(submissions, rate=options.rate, stay=options.stay)


def _save(submissions: Sequence[PodSubmission], path: Path) -> None:
    events: list[WorkloadEvent] = []
    for submission in submissions:
        time, pod, duration = submission.time, submission.pod, submission.duration
        events.append(PodArrival(time, pod, submission.selector))
        if duration is not None:
            events.append(PodDeparture(time + duration, pod.uid))
    save_trace(path, events, pods=len(submissions))


def _cluster_lines(results: Sequence[FleetResult]) -> Iterator[Line]:
    """Yield the lines of the results, with one column per strategy."""
    first = results[0]
    yield (Cell(_pods_on_nodes(first), "title"),)
    if first.duration:
        yield (Cell(f"{format_duration(first.duration)} of workload", "dim"),)
    heads = ["", *(result.strategy for result in results)]
    yield ()
    yield from table([[name, *figures] for name, figures in cluster_result.compare_figures(results)], heads)
    if reasons := cluster_result.rejection_reasons(results):
        yield from section("Rejected by kubelets", caption="pods that are created again count every time")
        yield from table(
            [[reason, *(f"{result.rejections.get(reason, 0):,}" for result in results)] for reason in reasons]
        )
    if len(first.groups) > 1:
        yield from section("Started by group")
        rows = []
        for index, group in enumerate(first.groups):
            started_counts = [f"{result.groups[index].started:,}" for result in results]
            rows.append([clean(group.name), f"{group.hosts:,} node{'s' if group.hosts != 1 else ' '}", *started_counts])
        yield from table(rows)
