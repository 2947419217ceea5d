"""The cluster simulations of ``alignup simulate``, and their output."""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import click

from alignup.cli import inputs, simulate_output, terminal
from alignup.cli.app import InputError
from alignup.cli.layout import section, table
from alignup.cli.options import HostOptions
from alignup.cli.simulate import SimulateOptions
from alignup.documents import codec
from alignup.documents.line_numbers import find_line
from alignup.kubernetes import configuration
from alignup.kubernetes.manifests.object_reader import ObjectReader
from alignup.picture.cells import Cell, Line
from alignup.picture.text_format import clean, pluralize
from alignup.simulate import result_report as report
from alignup.simulate import trace
from alignup.simulate.arrivals import PodArrival, PodDeparture, WorkloadEvent, format_duration
from alignup.simulate.cluster import cluster_file, openb
from alignup.simulate.cluster.cluster_file import GroupDescription, RaisingDiagnostics
from alignup.simulate.cluster.compared_figures import compare_figures, rejection_reasons
from alignup.simulate.cluster.generate import generate
from alignup.simulate.cluster.groups import HostGroup
from alignup.simulate.cluster.pod_table import COLUMNS, rows
from alignup.simulate.cluster.result_documents import FleetReport, FleetResult
from alignup.simulate.cluster.simulation import ClusterSimulation
from alignup.simulate.cluster.strategies import STRATEGIES
from alignup.simulate.cluster.submissions import PodSubmission, from_events
from alignup.simulate.generate import Profile

_ALL = "all"
_GIVE_CLUSTER = "Give a cluster file as described in docs/fleet.md, or the nodes of openb as CSV."
_GIVE_TRACE = "See docs/simulate.md for the format; for openb, give the CSV file of the pods."
_GIVE_STRATEGY = "Give names separated by commas, such as alignup,blind-least-allocated, or all."


def run(host: HostOptions, options: SimulateOptions, output: str) -> None:
    _check(options, host, output)
    inputs.check_writable("--html", options.html)
    names = strategy_names(options.strategy)
    groups = _read_groups(host, options)
    submissions = _read_submissions(options, groups)
    if options.save:
        _save(submissions, options.save)
    results: list[FleetResult] = []
    for name in names:
        with inputs.input_errors("in the cluster"), terminal.progress(f"Simulating {name}", "pods") as progress:
            simulation = ClusterSimulation(groups, submissions, name, retries=options.retries)
            results.append(simulation.run(progress))
        if output == "csv":
            report.write_rows(COLUMNS, rows(simulation), sys.stdout)
    found = FleetReport(results=tuple(results))
    if options.html:
        simulate_output.write_html(options.html, _draw_html(found))
    if output == "json":
        terminal.print_json(json.loads(codec.encode(found)))
    elif output == "text":
        terminal.print_lines(result_lines(results))


def _draw_html(found: FleetReport) -> str:
    from alignup.simulate.cluster import html_report  # noqa: PLC0415 - only for --html

    first = found.results[0]
    return html_report.render(
        found, title=f"Simulation of {pluralize(first.pods, 'pod')} on {pluralize(first.hosts, 'node')}"
    )


def _check(options: SimulateOptions, host: HostOptions, output: str) -> None:
    if options.cluster is not None and options.nodes is not None:
        raise InputError("--cluster and --nodes exclude each other", advice="Omit one of them.")
    for name, given in (("--compare", options.compare), ("--svg", options.svg), ("--state", host.state)):
        if given is not None:
            raise InputError(f"{name} is for one node", advice="Omit it, or omit --cluster and --nodes.")
    if output == "csv" and len(strategy_names(options.strategy)) > 1:
        raise InputError("-o csv is for one strategy", advice="Give one --strategy, or use -o json.")


def strategy_names(text: str) -> tuple[str, ...]:
    """The strategies of ``--strategy``."""
    names = tuple(dict.fromkeys(STRATEGIES if text == _ALL else filter(None, text.split(","))))
    unknown = [name for name in names if name not in STRATEGIES]
    if unknown or not names:
        what = f"unknown strategy {unknown[0]}; expected one of {', '.join(STRATEGIES)}" if unknown else "no strategy"
        raise InputError(what, where="in --strategy", advice=_GIVE_STRATEGY)
    return names


def _read_groups(host: HostOptions, options: SimulateOptions) -> tuple[HostGroup, ...]:
    if options.nodes is not None:
        node = inputs.read_host(host)
        terminal.print_notes(node.notes)
        machine, settings = node.host.machine, node.host.settings
        return (HostGroup(name="node", machine=machine, settings=settings, count=options.nodes),)
    return read_cluster(options.cluster or Path(), host)


def read_cluster(path: Path, host: HostOptions) -> tuple[HostGroup, ...]:
    """The groups of a cluster file, or of openb; *host* has the configuration of groups without one."""
    where = f"in --cluster {path}"
    if host.machine or host.devices:
        raise InputError("--machine and --devices are for --nodes", advice="Set them in the groups of the cluster.")
    if openb.is_openb(path):
        read = inputs.read_configuration(host.config, host.changes, config_dir=host.config_dir)
        with inputs.input_errors(where, advice=_GIVE_CLUSTER):
            return openb.read_nodes(path, lambda machine: configuration.host_settings(read, machine))
    with inputs.input_errors(where, advice=_GIVE_CLUSTER):
        described = cluster_file.read(path)
    return tuple(resolve_group(one, host) for one in described)


def resolve_group(group: GroupDescription, host: HostOptions) -> HostGroup:
    """*group* with its machine and settings; without a configuration of its own it has that of *host*."""
    config = Path(group.config) if group.config else host.config
    own = replace(host, machine=group.machine, config=config, changes=(*host.changes, *group.changes))
    try:
        machine = inputs.read_machine(group.machine, group.devices)
        settings = inputs.build_host(machine, own).host.settings
    except InputError as error:
        raise name_field(error, group.source) from error.__cause__
    return HostGroup(name=group.name, count=group.count, machine=machine, settings=settings, labels=group.labels)


def name_field(error: InputError, source: ObjectReader | None) -> InputError:
    """*error* with the field of *source*, an object of a file, instead of the option that has the same meaning."""
    option = error.where.removeprefix("in ").partition(" ")[0]
    field = option.removeprefix("--")
    if source is None or not option.startswith("--") or not source.has(field):
        return error
    path = source.path_of(field)
    problems = [f"{path}: {one.removeprefix(f'{option} ')}" for one in error.what]
    found = source.diagnostics
    if not isinstance(found, RaisingDiagnostics):
        return error
    line = find_line(found.text, path)
    return InputError(*problems, where=f"in {found.file}, line {line}", advice=error.advice)


def _read_submissions(options: SimulateOptions, groups: Sequence[HostGroup]) -> tuple[PodSubmission, ...]:
    if options.generate:
        with inputs.input_errors("in --generate", advice="See 'alignup simulate --help' for --count and --load."):
            found = generate(
                Profile(options.generate), groups, seed=options.seed, pods=options.count, load=options.load
            )
    elif options.trace and openb.is_openb(options.trace):
        with inputs.input_errors("in --trace", advice=_GIVE_TRACE):
            found = openb.read_pods(options.trace)
    else:
        found = from_events(simulate_output.read_events(options, groups[0].machine, with_selectors=True))
    if options.rate != 1:
        found = tuple(replace(one, time=one.time / options.rate) for one in found)
    return tuple(replace(one, duration=None) for one in found) if options.stay else found


def _save(submissions: Sequence[PodSubmission], path: Path) -> None:
    events: list[WorkloadEvent] = []
    for one in submissions:
        events.append(PodArrival(one.time, one.pod, one.selector))
        if one.duration is not None:
            events.append(PodDeparture(one.time + one.duration, one.pod.uid))
    with inputs.input_errors("in --save", advice=inputs.WRITABLE), path.open("w") as file:
        trace.write(events, file)
    click.echo(f"Wrote {pluralize(len(submissions), 'pod')} to {path}.", err=True)


def result_lines(results: Sequence[FleetResult]) -> Iterator[Line]:
    """One column per strategy."""
    first = results[0]
    yield (Cell(f"{pluralize(first.pods, 'pod')} on {pluralize(first.hosts, 'node')}", "title"),)
    if first.duration:
        yield (Cell(f"{format_duration(first.duration)} of workload", "dim"),)
    heads = ["", *(one.strategy for one in results)] if len(results) > 1 else ["", first.strategy]
    yield ()
    yield from table([[name, *figures] for name, figures in compare_figures(results)], heads)
    if reasons := rejection_reasons(results):
        yield from section("Rejected by kubelets", caption="pods that are created again count every time")
        yield from table([[reason, *(f"{one.rejections.get(reason, 0):,}" for one in results)] for reason in reasons])
    if len(first.groups) > 1:
        yield from section("Started by group")
        rows_ = [
            [clean(group.name), f"{group.hosts:,} nodes", *(f"{one.groups[place].started:,}" for one in results)]
            for place, group in enumerate(first.groups)
        ]
        yield from table(rows_)
