"""The cluster simulations of ``alignup simulate``, and their output."""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from alignup.align.errors import SettingsError
from alignup.cli import inputs, simulate_output, terminal
from alignup.cli.app import InputError, Place
from alignup.cli.layout import section, table
from alignup.cli.options import HostOptions
from alignup.cli.simulate import SimulateOptions
from alignup.documents import codec
from alignup.documents.line_numbers import find_line
from alignup.kubernetes import configuration
from alignup.kubernetes.manifests.object_reader import ObjectReader
from alignup.picture.text_format import Cell, Line, clean, pluralize
from alignup.simulate import cluster_files, node_report, openb
from alignup.simulate.arrivals import (
    PodArrival,
    PodDeparture,
    PodSubmission,
    WorkloadEvent,
    format_duration,
    from_events,
)
from alignup.simulate.cluster_files import GroupDescription
from alignup.simulate.cluster_hosts import HostGroup
from alignup.simulate.cluster_result import (
    POD_COLUMNS,
    FleetReport,
    FleetResult,
    compare_figures,
    pod_rows,
    rejection_reasons,
)
from alignup.simulate.cluster_simulation import ClusterSimulation
from alignup.simulate.generate import Profile, generate_for_cluster
from alignup.simulate.schedulers import STRATEGIES, find_strategy
from alignup.simulate.sweeps import change_pace
from alignup.simulate.trace import FirstProblem

_GIVE_CLUSTER = "Give a cluster file as described in docs/fleet.md, or the nodes of openb as CSV."
_GIVE_TRACE = "See docs/simulate.md for the format; for openb, give the CSV file of the pods."
_GIVE_STRATEGY = "Give names separated by commas, such as alignup,blind-least-allocated, or all."


def run(host: HostOptions, options: SimulateOptions, output: str) -> None:
    for name, value in (("--compare", options.compare), ("--svg", options.svg), ("--state", host.state)):
        if value is not None:
            raise InputError(f"{name} is for one node", advice="Omit it, or omit --cluster and --nodes.")
    strategies = _strategy_names(options.strategy)
    if output == "csv" and len(strategies) > 1:
        raise InputError("-o csv is for one strategy", advice="Give one --strategy, or use -o json.")
    inputs.check_writable("--html", options.html)
    groups = _read_groups(host, options)
    submissions = _read_submissions(options, groups)
    if options.save:
        _save(submissions, options.save)
    results: list[FleetResult] = []
    for name in strategies:
        with (
            inputs.input_errors(Place(detail="in the cluster")),
            terminal.progress(f"Simulating {name}", "pods") as progress,
        ):
            simulation = ClusterSimulation(groups, submissions, name, retries=options.retries)
            results.append(simulation.run(progress))
        if output == "csv":
            node_report.write_rows(POD_COLUMNS, pod_rows(simulation.runs), sys.stdout)
    report = FleetReport(results=tuple(results))
    if options.html:
        from alignup.simulate import html_reports  # noqa: PLC0415 - only for --html

        title = f"Simulation of {_pods_on_nodes(results[0])}"
        simulate_output.write_html(options.html, html_reports.render_cluster(report, title=title))
    if output == "json":
        terminal.print_json(json.loads(codec.encode(report)))
    elif output == "text":
        terminal.print_lines(_result_lines(results))


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


def _read_groups(host: HostOptions, options: SimulateOptions) -> tuple[HostGroup, ...]:
    """Return the nodes like *host*, or those of a cluster file or openb; groups may have its configuration."""
    if options.cluster is not None and options.nodes is not None:
        raise InputError("--cluster and --nodes exclude each other", advice="Omit one of them.")
    if options.nodes is not None:
        node = inputs.read_host(host)
        terminal.print_notes(node.notes)
        machine, settings = node.host.machine, node.host.settings
        return (HostGroup(name="node", machine=machine, settings=settings, count=options.nodes),)
    path = options.cluster or Path()
    place = Place("--cluster", file=str(path))
    if host.machine or host.devices:
        raise InputError("--machine and --devices are for --nodes", advice="Set them in the groups of the cluster.")
    if openb.is_openb(path):
        kubelet = inputs.read_configuration(host.config, host.changes, config_dir=host.config_dir)
        with inputs.input_errors(place, advice=_GIVE_CLUSTER):
            return openb.read_nodes(path, lambda machine: configuration.host_settings(kubelet, machine))
    with inputs.input_errors(place, advice=_GIVE_CLUSTER):
        described = cluster_files.read_cluster(path)
    return tuple(resolve_group(group, host) for group in described)


def resolve_group(group: GroupDescription, host: HostOptions) -> HostGroup:
    """Return *group* with its machine and settings; without a configuration it has that of *host*."""
    config = Path(group.config) if group.config else host.config
    options = replace(host, machine=group.machine, config=config, changes=(*host.changes, *group.changes))
    try:
        machine = inputs.read_machine(group.machine, group.devices)
        settings = inputs.build_host(machine, options).host.settings
    except InputError as error:
        raise name_field(error, group.source) from error.__cause__
    return HostGroup(name=group.name, count=group.count, machine=machine, settings=settings, labels=group.labels)


def name_field(error: InputError, source: ObjectReader | None) -> InputError:
    """Return *error* with the field of *source*, an object of a file, instead of the option with the same meaning."""
    field = error.place.option.removeprefix("--")
    if source is None or not field or not source.has(field):
        return error
    path = source.path_of(field)
    problems = [": ".join(filter(None, (path, error.place.value, problem))) for problem in error.problems]
    document = source.diagnostics
    if not isinstance(document, FirstProblem):
        return error
    line = find_line(document.text, path)
    return InputError(*problems, place=Place(file=document.file, line=line), advice=error.advice)


def _read_submissions(options: SimulateOptions, groups: Sequence[HostGroup]) -> tuple[PodSubmission, ...]:
    if options.generate:
        with inputs.input_errors(Place("--generate"), advice="See 'alignup simulate --help' for --count and --load."):
            profile, seed = Profile(options.generate), options.seed
            submissions = generate_for_cluster(profile, groups, seed=seed, pods=options.count, load=options.load)
    elif options.trace and openb.is_openb(options.trace):
        with inputs.input_errors(Place("--trace"), advice=_GIVE_TRACE):
            submissions = openb.read_pods(options.trace)
    else:
        submissions = from_events(simulate_output.read_events(options, groups[0].machine, with_selectors=True))
    return change_pace(submissions, rate=options.rate, stay=options.stay)


def _save(submissions: Sequence[PodSubmission], path: Path) -> None:
    events: list[WorkloadEvent] = []
    for submission in submissions:
        time, pod, duration = submission.time, submission.pod, submission.duration
        events.append(PodArrival(time, pod, submission.selector))
        if duration is not None:
            events.append(PodDeparture(time + duration, pod.uid))
    simulate_output.save_trace(path, events, pods=len(submissions))


def _result_lines(results: Sequence[FleetResult]) -> Iterator[Line]:
    """Yield the lines of the results, with one column per strategy."""
    first = results[0]
    yield (Cell(_pods_on_nodes(first), "title"),)
    if first.duration:
        yield (Cell(f"{format_duration(first.duration)} of workload", "dim"),)
    heads = ["", *(result.strategy for result in results)]
    yield ()
    yield from table([[name, *figures] for name, figures in compare_figures(results)], heads)
    if reasons := rejection_reasons(results):
        yield from section("Rejected by kubelets", caption="pods that are created again count every time")
        yield from table(
            [[reason, *(f"{result.rejections.get(reason, 0):,}" for result in results)] for reason in reasons]
        )
    if len(first.groups) > 1:
        yield from section("Started by group")
        rows = []
        for place, group in enumerate(first.groups):
            started = [f"{result.groups[place].started:,}" for result in results]
            rows.append([clean(group.name), f"{group.hosts:,} nodes", *started])
        yield from table(rows)
