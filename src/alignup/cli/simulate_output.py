"""What ``alignup simulate`` does, and how it tells."""

import io
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import click

from alignup.align.explain import sentences
from alignup.align.workload.names import CPU
from alignup.cli import inputs, terminal
from alignup.cli.app import InputError
from alignup.cli.inputs import HostInput
from alignup.cli.text_layout import paragraph, section, table
from alignup.fleet import compare as comparing
from alignup.fleet import events as timed
from alignup.fleet import generate, report, settings_grid, simulate, trace
from alignup.fleet.compare import Comparison
from alignup.fleet.events import PodArrival, WorkloadEvent
from alignup.fleet.executors import SerialExecutor, process_pool
from alignup.fleet.fragmentation import StrandedResources
from alignup.fleet.profiles import Profile
from alignup.fleet.score import Score
from alignup.fleet.simulate import SimulationResult
from alignup.fleet.usage import UsageStats
from alignup.picture import svg
from alignup.picture.cells import Cell, Line
from alignup.picture.text_format import clean, format_size, pluralize

_SHOWN = 20  #: pods, or combinations, that are listed one by one
_ALIKE = 4  #: combinations with the same error that are


def events_from_files(files: tuple[str, ...]) -> tuple[WorkloadEvent, ...]:
    """The pods of manifests, one after the other, as many of each workload as it has replicas."""
    workloads, skipped = inputs.read_workloads(files)
    inputs.print_notes(skipped)
    ended = sum(work.finished for work in workloads)
    if ended:
        inputs.print_notes((f"{pluralize(ended, 'pod')} that ran to the end left out",))
    events = timed.arrivals([pod for work in workloads if not work.finished for pod in work.pods()])
    if not events:
        raise InputError("there is no pod to play", where=f"in {', '.join(files)}", advice="Give files with workloads.")
    return events


def events_from_trace(path: Path) -> tuple[WorkloadEvent, ...]:
    """The events of a trace file."""
    with inputs.input_errors("in --trace", advice="docs/simulate.md describes traces; --save writes one to look at."):
        if str(path) == "-":
            return trace.read_stream(inputs.standard_input() or io.BytesIO(), file="-")
        return trace.read_file(path)


def generate_events(profile: str, node: HostInput, *, count: int, load: float, seed: int) -> tuple[WorkloadEvent, ...]:
    """A workload for the node's machine."""
    with inputs.input_errors(
        "in --generate", advice="See 'alignup simulate --help' for what --count and --load can be."
    ):
        return generate.generate(Profile(profile), node.host.machine, seed=seed, pods=count, load=load)


def ignored_requests(node: HostInput, events: Iterable[WorkloadEvent]) -> tuple[str, ...]:
    """What the pods ask for and nobody notices."""
    return inputs.ignored_requests(node, (event.pod for event in events if isinstance(event, PodArrival)))


def save_trace(events: Sequence[WorkloadEvent], path: Path) -> None:
    """Write *events* where they can be read again."""
    advice = "Name a file that can be written."
    with inputs.input_errors("in --save", advice=advice), path.open("w", encoding="utf-8") as file:
        trace.write(events, file)
    pods = sum(isinstance(event, PodArrival) for event in events)
    click.echo(f"Wrote {pluralize(pods, 'pod')} to {path}.", err=True)


def run_simulation(node: HostInput, events: Sequence[WorkloadEvent]) -> SimulationResult:
    """Let the workload happen to the node."""
    with inputs.input_errors("in the workload"), terminal.progress("Playing", "events") as told:
        return simulate.run(node.host, events, progress=told)


def run_comparison(
    node: HostInput, events: Sequence[WorkloadEvent], dimensions: str, *, jobs: int | None
) -> Comparison:
    """The same workload under every combination of settings."""
    if node.host.ledger.pods:
        raise InputError("--compare begins with an empty node", where="with --state", advice="Leave --state out.")
    advice = "Write it like policy,scope or policy=none|restricted,cpu-options."
    with inputs.input_errors("in --compare", advice=advice):
        tried = settings_grid.build_grid(node.host.settings, dimensions.split(","), machine=node.host.machine)
    executor = SerialExecutor() if jobs == 1 else process_pool(jobs)
    with executor, terminal.progress("Comparing", "combinations") as told:
        return comparing.compare(node.host.machine, tried, events, executor=executor, progress=told)


def write_svg(result: SimulationResult, path: Path) -> None:
    """A picture of the host as it is in the end."""
    with inputs.input_errors("in --svg", advice="Name a file that can be written."):
        path.write_text(svg.draw(result.machine, result.end.ledger), encoding="utf-8")


def print_result(result: SimulationResult, form: str, *, dated: bool) -> None:
    """What came of one play; *dated*: whether the workload itself says when its pods come."""
    if form == "json":
        terminal.print_json(report.to_document(result))
    elif form == "csv":
        report.write_csv(result, sys.stdout)
    else:
        terminal.print_lines(_told(result, dated=dated))


def print_comparison(comparison: Comparison, form: str) -> None:
    """What came of many."""
    if form == "json":
        terminal.print_json(comparing.to_document(comparison))
    elif form == "csv":
        report.write_rows(comparing.columns(comparison), comparing.rows(comparison), sys.stdout)
    else:
        terminal.print_lines(_compared(comparison))


def _told(result: SimulationResult, *, dated: bool) -> Iterator[Line]:
    """One play, for people."""
    yield (
        Cell(
            f"{pluralize(len(result.outcomes), 'pod')}: {result.admitted} admitted, {result.refused} refused", "title"
        ),
    )
    topology = result.settings.topology
    took = f" · {_span(result.duration)} of workload" if result.duration and dated else ""
    yield (Cell(f"policy {topology.policy} · scope {topology.scope}{took}", "dim"),)
    pods = result.pods
    alignment = {"on one NUMA node": pods.on_one, "on several": pods.on_several, "nothing to align": pods.anywhere}
    yield from section("Admitted")
    yield from table([[name, str(number)] for name, number in alignment.items() if number])
    if result.reasons:
        yield from section("Refused")
        yield from table([[reason, str(number)] for reason, number in result.reasons.items()])
    yield from _in_use(result)
    yield from _pods(result)


def _in_use(result: SimulationResult) -> Iterator[Line]:
    """How full the nodes got, and what nobody could use."""
    rows = [row for node, uses in result.nodes.items() for row in _node(result, node, uses)]
    if not rows:
        none = "nothing that belongs to a NUMA node: no manager of these settings gives any out"
        yield from section("In use", caption=none)
        return
    room = "room is the largest request of one container that still fits there, when demand is highest and in the end"
    yield from section("In use", caption=room)
    yield from table(rows, ["", "", "of", "mean", "peak", "end", "room (peak)", "room (end)"])
    yield from section(
        "StrandedResources", caption="when demand was highest: free, but of no use to any pod of this workload"
    )
    yield (Cell(f"  {_stranded(result.height.stranded)}"),)


def _span(seconds: float) -> str:
    for unit, name in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.1f} {name}"
    return timed.format_seconds(seconds)


def _node(result: SimulationResult, node: int, uses: Mapping[str, UsageStats]) -> Iterator[list[str]]:
    for number, (resource, use) in enumerate(uses.items()):
        figures = [_figure(resource, amount) for amount in (use.total, use.mean, use.peak, use.end)]
        room = [_figure(resource, moment.room.get(node, {}).get(resource, 0)) for moment in (result.height, result.end)]
        yield ["" if number else f"node {node}", resource, *figures, *room]


def _figure(resource: str, amount: float) -> str:
    if resource == "memory" or resource.startswith("hugepages-"):
        return format_size(round(amount))
    return f"{amount:.1f}" if isinstance(amount, float) and amount != int(amount) else str(int(amount))


def _stranded(left: StrandedResources) -> str:
    parts = [sentences.format_amount(CPU, left.cpus)] if left.cpus else []
    parts += [f"{number} {clean(name)}" for name, number in left.devices.items() if number]
    return ", ".join(parts) or "nothing"


def _pods(result: SimulationResult) -> Iterator[Line]:
    """The pods, where they went or why they did not; of many those that were refused."""
    few = len(result.outcomes) <= _SHOWN
    told = [fate for fate in result.outcomes if few or not fate.admitted]
    if not told:
        return
    yield from section("Pods" if few else "Pods that were refused")
    rows = []
    for row in (row for row in report.rows(result) if few or row["outcome"] != "admitted"):
        what = f"CPUs {row['cpus']}" if row["cpus"] else ""
        given = " ".join(filter(None, (what, row["devices"])))
        where = f"node {row['nodes']}" if row["nodes"] else "anywhere"
        refused = f"{row['reason']}: {row['shortfall'] or row['message']}"
        said = f"{where} {given}" if row["outcome"] == "admitted" else refused
        rows.append([f"{row['namespace']}/{row['name']}", row["outcome"], said])
        if len(rows) == _SHOWN:
            break
    yield from table(rows)
    yield from _more(len(told))


def _compared(comparison: Comparison) -> Iterator[Line]:
    """Many plays, for people: a table, and what could not be."""
    ranked, illegal = comparison.ranked, comparison.illegal
    tried = pluralize(len(ranked) + len(illegal), "combination")
    best = "; the best first" if ranked else ""
    yield (Cell(f"{tried}, {len(ranked)} of them legal{best}", "title"),)
    if ranked:
        yield ()
        figures = ["admitted", "refused", "one node", "stranded CPUs", "devices", "refused for"]
        rows = [[str(one.rank), *one.variant.choices.values(), *_figures(one.score)] for one in ranked[:_SHOWN]]
        yield from table(rows, ["", *ranked[0].variant.choices, *figures])
        yield from _more(len(ranked))
    if illegal:
        yield from section("With these a kubelet would not start")
        for error in dict.fromkeys(one.error for one in illegal):
            yield from paragraph(error, head="  ", style="warn")
            labels = [clean(one.label) for one in illegal if one.error == error]
            for label in labels[:_ALIKE]:
                yield (Cell(f"      {label}"),)
            yield from _more(len(labels), shown=_ALIKE)


def _figures(score: Score) -> list[str]:
    reasons = ", ".join(f"{number} {reason}" for reason, number in score.reasons.items())
    numbers = (score.admitted, score.refused, score.pods.on_one, score.stranded.cpus, score.stranded.all_devices)
    return [*map(str, numbers), reasons]


def _more(number: int, *, shown: int = _SHOWN) -> Iterator[Line]:
    if number > shown:
        yield (Cell(f"      … and {number - shown} more; -o csv lists all", "dim"),)
