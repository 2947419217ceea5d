"""The node simulations of ``alignup simulate``, and their output."""

import io
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import click

from alignup.align.explain import sentences
from alignup.align.host import Host
from alignup.align.machine import Machine
from alignup.cli import inputs, terminal
from alignup.cli.app import InputError, Place
from alignup.cli.comparison_output import comparison_lines, more_lines
from alignup.cli.layout import section, table
from alignup.cli.options import HostOptions
from alignup.cli.simulate import SimulateOptions
from alignup.picture.machine_svg import draw_svg
from alignup.picture.text_format import Cell, Line, pluralize
from alignup.simulate import compare, generate, node_report, node_simulation, trace
from alignup.simulate.arrivals import PodArrival, WorkloadEvent, arrivals, format_duration
from alignup.simulate.compare import Comparison
from alignup.simulate.executors import ProcessPool, SerialExecutor
from alignup.simulate.node_simulation import SimulationResult
from alignup.simulate.usage import format_amount

Events = tuple[WorkloadEvent, ...]

_MAX_ROWS = 20  #: of pods or combinations
_LARGEST = "room: the largest request of one container that still fits, at peak demand and at the end"


def run(host: HostOptions, options: SimulateOptions, output: str) -> None:
    inputs.check_writable("--svg", options.svg)
    inputs.check_writable("--html", options.html)
    node = inputs.read_host(host)
    terminal.print_notes(node.notes)
    events = read_events(options, node.host.machine)
    pods = [event.pod for event in events if isinstance(event, PodArrival)]
    terminal.print_notes(sentences.ignored_requests(node.host, pods))
    if options.save:
        save_trace(options.save, events, pods=len(pods))
    comparison = None if options.compare is None else _compare(node.host, events, options)
    if comparison is not None and options.html is None:
        _print_comparison(comparison, output)
        return
    with inputs.input_errors(Place(detail="in the workload")), terminal.progress("Simulating", "events") as progress:
        lenient = options.ignore_missing_devices
        result = node_simulation.run(node.host, events, progress=progress, ignore_missing_devices=lenient)
    if options.svg:
        with inputs.input_errors(Place("--svg"), advice=inputs.WRITABLE):
            options.svg.write_text(draw_svg(result.machine, result.peak.ledger), encoding="utf-8")
    if options.html:
        from alignup.simulate import html_reports  # noqa: PLC0415 - only for --html

        compared = "" if comparison is None else ", and a comparison of settings"
        title = f"Simulation of {pluralize(len(result.outcomes), 'pod')}{compared}"
        write_html(options.html, html_reports.render_node(result, events, title=title, comparison=comparison))
    if comparison is not None:
        _print_comparison(comparison, output)
    elif output == "json":
        terminal.print_json(node_report.to_document(result))
    elif output == "csv":
        node_report.write_rows(node_report.COLUMNS, node_report.rows(result), sys.stdout)
    else:
        terminal.print_lines(_result_lines(result, timed=not options.files))


def _print_comparison(comparison: Comparison, output: str) -> None:
    if output == "json":
        terminal.print_json(compare.to_document(comparison))
    elif output == "csv":
        node_report.write_rows(compare.columns(comparison), compare.rows(comparison), sys.stdout)
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


def read_events(options: SimulateOptions, machine: Machine, *, with_selectors: bool = False) -> Events:
    """Return the workload of a command for *machine*; *with_selectors*: and the node selectors of manifests."""
    if options.files:
        return _read_files(options.files, with_selectors=with_selectors)
    if options.trace:
        with inputs.input_errors(
            Place("--trace"), advice="See docs/simulate.md for the format; --save writes an example."
        ):
            if str(options.trace) == "-":
                stream = inputs.standard_input() or io.BytesIO()
                return trace.read(stream.read(trace.MAX_BYTES + 1), file="-")
            return trace.read_file(options.trace)
    with inputs.input_errors(Place("--generate"), advice="See 'alignup simulate --help' for --count and --load."):
        profile = generate.Profile(options.generate or "")
        return generate.generate(profile, machine, seed=options.seed, pods=options.count, load=options.load)


def _read_files(files: tuple[str, ...], *, with_selectors: bool) -> Events:
    """Return all replicas of all workloads in *files*, arriving one after the other."""
    workloads, skipped = inputs.read_workloads(files)
    terminal.print_notes(skipped)
    if finished := sum(workload.finished for workload in workloads):
        terminal.print_notes((f"skipped {pluralize(finished, 'finished pod')}",))
    pods = [(pod, workload) for workload in workloads if not workload.finished for pod in workload.pods()]
    if not pods:
        raise InputError("no pods to simulate", place=Place(file=", ".join(files)), advice="Give files with workloads.")
    if not with_selectors:
        return arrivals([pod for pod, _ in pods])
    events = []
    for index, (pod, workload) in enumerate(pods):
        selector = (workload.manifest.get("spec") or {}).get("nodeSelector") or {}
        events.append(PodArrival(index, pod, {label: (value,) for label, value in selector.items()}))
    return tuple(events)


def _compare(host: Host, events: Events, options: SimulateOptions) -> Comparison:
    dimensions, jobs, lenient = options.compare or "", options.jobs, options.ignore_missing_devices
    if host.ledger.pods:
        place = Place(detail="with --state")
        raise InputError("--compare starts with an empty node", place=place, advice="Omit --state.")
    example = "Give settings like policy,scope or policy=none|restricted,cpu-options."
    with inputs.input_errors(Place("--compare"), advice=example):
        grid = compare.build_grid(host.settings, dimensions.split(","), machine=host.machine)
    executor = SerialExecutor() if jobs == 1 else ProcessPool(jobs)
    with executor, terminal.progress("Comparing", "combinations") as progress:
        return compare.compare(
            host.machine, grid, events, executor=executor, progress=progress, ignore_missing_devices=lenient
        )


def _result_lines(result: SimulationResult, *, timed: bool) -> Iterator[Line]:
    """Yield the lines of a result; *timed*: the workload defines when its pods arrive."""
    total = pluralize(len(result.outcomes), "pod")
    yield (Cell(f"{total}: {result.admitted} admitted, {result.rejected} rejected", "title"),)
    topology = result.settings.topology
    duration = f" · {format_duration(result.duration)} of workload" if result.duration and timed else ""
    yield (Cell(f"policy {topology.policy} · scope {topology.scope}{duration}", "dim"),)
    names = ("on one NUMA node", "on several NUMA nodes", "nothing to align")
    yield from section("Admitted")
    yield from table([[name, str(number)] for name, number in zip(names, result.pods, strict=True) if number])
    if result.reasons:
        yield from section("Rejected")
        yield from table([[reason, str(number)] for reason, number in result.reasons.items()])
    yield from _usage_lines(result)
    yield from _pod_lines(result)


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
    listed = (row for row in node_report.rows(result) if few or row["outcome"] != "admitted")
    rows = []
    for row in islice(listed, _MAX_ROWS):
        detail = f"{row['reason']}: {row['shortfall'] or row['message']}"
        if row["outcome"] == "admitted":
            cpus = f"CPUs {row['cpus']}" if row["cpus"] else ""
            where = f"node {row['nodes']}" if row["nodes"] else "any node"
            detail = " ".join(filter(None, (where, cpus, row["devices"])))
        if row["kubelet"]:
            detail += f" (a kubelet that got it: {row['kubelet']})"
        if row["missing"] and row["outcome"] == "admitted":
            detail += f" (not schedulable: {sentences.no_plugin(row['missing'].split(' '))})"
        rows.append([f"{row['namespace']}/{row['name']}", row["outcome"], detail])
    yield from table(rows)
    yield from more_lines(number)
