"""The sweeps of ``alignup sweep``, and their output."""

import hashlib
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path

import click

from alignup import __version__
from alignup.align.errors import SettingsError
from alignup.cli import inputs, terminal
from alignup.cli.app import FailureError, InputError, Place
from alignup.cli.installation import MissingLibraryError
from alignup.cli.layout import paragraph, section, table
from alignup.cli.options import HostOptions, build_options
from alignup.cli.simulate_output import name_field, resolve_group, title_caveat, write_html
from alignup.cli.sweep import SweepOptions
from alignup.kubernetes.manifests.object_reader import ObjectReader
from alignup.machines import machine_file
from alignup.picture.text_format import Cell, Line, clean, pluralize
from alignup.simulate import cluster_files, node_report, openb, trace
from alignup.simulate.arrivals import PodSubmission, format_duration, from_events
from alignup.simulate.cluster_files import ConfigurationDocument, GroupDocument, SweepDocument
from alignup.simulate.cluster_hosts import HostGroup
from alignup.simulate.executors import EngineError, make_engine
from alignup.simulate.sweeps import (
    COLUMNS,
    CombinationMeans,
    ResultsFile,
    Row,
    SweepTask,
    combination_means,
    invalid_combinations,
    run_sweep,
)

_GIVE_SPEC = "See docs/fleet.md for the format; examples/fleet/sweep.yaml is an example."


def run(spec: Path, options: SweepOptions, output: str) -> None:
    if options.dask and options.engine != "dask":
        raise InputError("--dask requires --engine dask", advice="Add --engine dask.")
    if options.engine == "dask" and find_spec("distributed") is None:
        raise MissingLibraryError(ImportError(name="distributed"), "fleet")
    inputs.check_writable("--html", options.html)
    with inputs.input_errors(Place(file=str(spec)), advice=_GIVE_SPEC):
        sweep, top = cluster_files.read_sweep(spec)
    if version := options.kubernetes_version:
        terminal.print_notes(inputs.read_release(version)[1])
        configurations = (
            configuration.replace(kubernetes_version=configuration.kubernetes_version or version)
            for configuration in sweep.configurations
        )
        sweep = sweep.replace(configurations=tuple(configurations))
    releases = []
    versions = [configuration.kubernetes_version for configuration in sweep.configurations]
    for version in dict.fromkeys([*versions, *(machine.kubernetes_version for machine in sweep.machines)]):
        release, notes = inputs.read_release(version or None)
        releases.append(release)
        terminal.print_notes(notes if version != options.kubernetes_version else ())
    tasks = build_tasks(sweep, top)
    path = options.results or Path(spec.name).with_suffix(".csv")
    with inputs.input_errors(
        Place("--results"), advice="Choose another file with --results, or delete this one if you do not need it."
    ):
        results = ResultsFile(path)
    engine = make_engine(options.engine, jobs=options.jobs, address=options.dask, result_timeout=options.result_timeout)
    try:
        with (
            inputs.input_errors(
                Place(detail="in the sweep"), advice="Delete the results, or choose another file with --results."
            ),
            terminal.progress("Simulating", "combinations", estimate=True) as progress,
        ):
            try:
                rows = run_sweep(tasks, results, engine, progress=progress)
            except EngineError as error:
                raise FailureError(str(error), advice=_continuation(results, tasks)) from error
    except KeyboardInterrupt:
        click.echo(_continuation(results, tasks), err=True)
        raise
    if options.html:
        from alignup.simulate import html_reports  # noqa: PLC0415 - only for --html

        title = f"Sweep of {pluralize(len(rows), 'simulation')}{title_caveat(releases)}"
        write_html(options.html, html_reports.render_sweep(rows, title=title))
    if output in terminal.DOCUMENTS:
        terminal.print_as(output, rows)
    elif output == "csv":
        node_report.write_rows(COLUMNS, rows, sys.stdout)
    else:
        terminal.print_lines(_lines(rows, path))


def _continuation(results: ResultsFile, tasks: Sequence[SweepTask]) -> str:
    progress = f"{len(results.rows)} of {pluralize(len(tasks), 'combination')} are in {results.path}"
    return f"{progress}; run the command again to continue."


def build_tasks(sweep: SweepDocument, top: ObjectReader) -> tuple[SweepTask, ...]:
    """Return all combinations, in the order of the file that *top* reads."""
    submissions: tuple[PodSubmission, ...] = ()
    if sweep.workload.trace:
        path = Path(sweep.workload.trace)
        with inputs.input_errors(Place(file=str(path)), advice=_GIVE_SPEC):
            submissions = openb.read_pods(path) if openb.is_openb(path) else from_events(trace.read_file(path))
    checksum = hashlib.sha256()
    for submission in submissions:
        checksum.update(repr(submission).encode())
    digest = checksum.hexdigest()
    tasks = []
    for machine, machine_source in zip(sweep.machines, top.children("machines"), strict=True):
        for configuration, source in zip_longest(sweep.configurations, top.children("configurations")):
            groups, error, text = _resolve(machine, machine_source, configuration, source)
            for strategy in sweep.strategies:
                for seed in range(sweep.seeds):
                    inputs_ = (text, strategy, seed, sweep.workload, sweep.retries, digest, __version__)
                    task = SweepTask(
                        machine=machine.name,
                        configuration=configuration.name,
                        strategy=strategy,
                        seed=seed,
                        groups=groups,
                        workload=sweep.workload,
                        submissions=submissions,
                        retries=sweep.retries,
                        error=error,
                        fingerprint=hashlib.sha256(repr(inputs_).encode()).hexdigest()[:16],
                    )
                    tasks.append(task)
    return tuple(tasks)


def _resolve(
    machine: GroupDocument,
    machine_source: ObjectReader,
    configuration: ConfigurationDocument,
    source: ObjectReader | None,
) -> tuple[tuple[HostGroup, ...], str, str]:
    """Return the hosts of a combination, why their kubelets would not start, and a text of all they depend on."""
    config = Path(configuration.config) if configuration.config else None
    version = configuration.kubernetes_version or None
    host = build_options(HostOptions, config=config, changes=configuration.changes, kubernetes_version=version)
    try:
        release, _ = inputs.read_release(configuration.kubernetes_version or None)
        inputs.configuration_text(config, configuration.changes, release=release)
    except InputError as error:
        raise name_field(error, source) from error.__cause__
    try:
        group = resolve_group(host, machine, machine_source)
    except InputError as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, SettingsError):
            cause = cause.__cause__
        if cause is None:  # a file is missing or malformed
            raise
        return (), "; ".join(error.problems), repr((machine, error.problems))
    return (group,), "", repr((machine_file.dump_json(group.machine), machine, group.settings))


def _lines(rows: Sequence[Row], path: Path) -> Iterator[Line]:
    """Yield the lines of the means of every figure over the seeds."""
    yield (Cell(f"{pluralize(len(rows), 'combination')}, in {path}", "title"),)
    means = combination_means(rows)
    if means:
        yield ()
        seeds = max(combination.seeds for combination in means)
        if seeds > 1:
            yield from paragraph(f"mean of {seeds} seeds", style="dim")
        heads = ["machine", "configuration", "strategy", "started", "failed", "never started", "rejections"]
        heads += ["waiting p99", "stranded CPUs", "requested"]
        yield from table(list(map(_cells, means)), heads)
    if errors := invalid_combinations(rows):
        yield from section("The kubelet does not start with")
        yield from table([list(map(clean, combination)) for combination in errors])


def _cells(means: CombinationMeans) -> list[str]:
    counts = [f"{means.figures[name]:,.0f}" for name in ("started", "failed", "pending", "rejections")]
    cpus = f"{means.figures['stranded_cpus']:,.0f}"
    shares = ", ".join(f"{name.rpartition('/')[2]} {share:.0%}" for name, share in means.requested.items())
    waiting = format_duration(means.figures["waiting_p99"])
    return [*map(clean, means.names), *counts, waiting, cpus, shares]
