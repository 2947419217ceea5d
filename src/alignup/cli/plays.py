"""What ``alignup simulate`` does, and how it tells."""

import io
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import click

from alignup.align.explain import story
from alignup.align.workload.names import CPU
from alignup.cli import inputs, screen
from alignup.cli.app import Complaint
from alignup.cli.inputs import Node
from alignup.cli.prose import section, sentence, table
from alignup.fleet import compare as comparing
from alignup.fleet import events as timed
from alignup.fleet import generate, report, simulate, trace, variants
from alignup.fleet.compare import Comparison
from alignup.fleet.events import Arrive, Event
from alignup.fleet.executors import Serial, processes
from alignup.fleet.meter import Use
from alignup.fleet.profiles import Profile
from alignup.fleet.room import Stranded
from alignup.fleet.score import Score
from alignup.fleet.simulate import Result
from alignup.picture import svg
from alignup.picture.cells import Cell, Line
from alignup.picture.words import clean, count, size

_SHOWN = 20  #: pods, or combinations, that are listed one by one
_ALIKE = 4  #: combinations with the same error that are


def from_files(files: tuple[str, ...]) -> tuple[Event, ...]:
    """The pods of manifests, one after the other, as many of each workload as it has replicas."""
    workloads, skipped = inputs.read_workloads(files)
    inputs.warn(skipped)
    ended = sum(work.finished for work in workloads)
    if ended:
        inputs.warn((f"{count(ended, 'pod')} that ran to the end left out",))
    events = timed.arrivals([pod for work in workloads if not work.finished for pod in work.pods()])
    if not events:
        raise Complaint("there is no pod to play", where=f"in {', '.join(files)}", advice="Give files with workloads.")
    return events


def from_trace(path: Path) -> tuple[Event, ...]:
    """The events of a trace file."""
    with inputs.complaining("in --trace", advice="docs/simulate.md describes traces; --save writes one to look at."):
        if str(path) == "-":
            return trace.read_stream(inputs.piped() or io.BytesIO(), file="-")
        return trace.read_file(path)


def made_up(profile: str, node: Node, *, count: int, load: float, seed: int) -> tuple[Event, ...]:
    """A workload for the node's machine."""
    with inputs.complaining(
        "in --generate", advice="See 'alignup simulate --help' for what --count and --load can be."
    ):
        return generate.generate(Profile(profile), node.host.machine, seed=seed, pods=count, load=load)


def overlooked(node: Node, events: Iterable[Event]) -> tuple[str, ...]:
    """What the pods ask for and nobody notices."""
    return inputs.overlooked(node, (event.pod for event in events if isinstance(event, Arrive)))


def save(events: Sequence[Event], path: Path) -> None:
    """Write *events* where they can be read again."""
    advice = "Name a file that can be written."
    with inputs.complaining("in --save", advice=advice), path.open("w", encoding="utf-8") as file:
        trace.write(events, file)
    pods = sum(isinstance(event, Arrive) for event in events)
    click.echo(f"Wrote {count(pods, 'pod')} to {path}.", err=True)


def play(node: Node, events: Sequence[Event]) -> Result:
    """Let the workload happen to the node."""
    with inputs.complaining("in the workload"), screen.progress("Playing", "events") as told:
        return simulate.run(node.host, events, progress=told)


def compare(node: Node, events: Sequence[Event], dimensions: str, *, jobs: int | None) -> Comparison:
    """The same workload under every combination of settings."""
    if node.host.ledger.pods:
        raise Complaint("--compare begins with an empty node", where="with --state", advice="Leave --state out.")
    advice = "Write it like policy,scope or policy=none|restricted,cpu-options."
    with inputs.complaining("in --compare", advice=advice):
        tried = variants.combinations(node.host.settings, dimensions.split(","), machine=node.host.machine)
    executor = Serial() if jobs == 1 else processes(jobs)
    with executor, screen.progress("Comparing", "combinations") as told:
        return comparing.compare(node.host.machine, tried, events, executor=executor, progress=told)


def draw(result: Result, path: Path) -> None:
    """A picture of the host as it is in the end."""
    with inputs.complaining("in --svg", advice="Name a file that can be written."):
        path.write_text(svg.draw(result.machine, result.end.ledger), encoding="utf-8")


def show(result: Result, form: str, *, dated: bool) -> None:
    """What came of one play; *dated*: whether the workload itself says when its pods come."""
    if form == "json":
        screen.values(report.to_document(result))
    elif form == "csv":
        report.write_csv(result, sys.stdout)
    else:
        screen.lines(_told(result, dated=dated))


def show_comparison(comparison: Comparison, form: str) -> None:
    """What came of many."""
    if form == "json":
        screen.values(comparing.to_document(comparison))
    elif form == "csv":
        report.write_rows(comparing.columns(comparison), comparing.rows(comparison), sys.stdout)
    else:
        screen.lines(_compared(comparison))


def _told(result: Result, *, dated: bool) -> Iterator[Line]:
    """One play, for people."""
    yield (Cell(f"{count(len(result.fates), 'pod')}: {result.admitted} admitted, {result.refused} refused", "title"),)
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


def _in_use(result: Result) -> Iterator[Line]:
    """How full the nodes got, and what nobody could use."""
    rows = [row for node, uses in result.nodes.items() for row in _node(result, node, uses)]
    if not rows:
        none = "nothing that belongs to a NUMA node: no manager of these settings gives any out"
        yield from section("In use", caption=none)
        return
    room = "room is the largest request of one container that still fits there, when demand is highest and in the end"
    yield from section("In use", caption=room)
    yield from table(rows, ["", "", "of", "mean", "peak", "end", "room (peak)", "room (end)"])
    yield from section("Stranded", caption="when demand was highest: free, but of no use to any pod of this workload")
    yield (Cell(f"  {_stranded(result.height.stranded)}"),)


def _span(seconds: float) -> str:
    for unit, name in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.1f} {name}"
    return timed.seconds(seconds)


def _node(result: Result, node: int, uses: Mapping[str, Use]) -> Iterator[list[str]]:
    for number, (resource, use) in enumerate(uses.items()):
        figures = [_figure(resource, amount) for amount in (use.total, use.mean, use.peak, use.end)]
        room = [_figure(resource, moment.room.get(node, {}).get(resource, 0)) for moment in (result.height, result.end)]
        yield ["" if number else f"node {node}", resource, *figures, *room]


def _figure(resource: str, amount: float) -> str:
    if resource == "memory" or resource.startswith("hugepages-"):
        return size(round(amount))
    return f"{amount:.1f}" if isinstance(amount, float) and amount != int(amount) else str(int(amount))


def _stranded(left: Stranded) -> str:
    parts = [story.amount(CPU, left.cpus)] if left.cpus else []
    parts += [f"{number} {clean(name)}" for name, number in left.devices.items() if number]
    return ", ".join(parts) or "nothing"


def _pods(result: Result) -> Iterator[Line]:
    """The pods, where they went or why they did not; of many those that were refused."""
    few = len(result.fates) <= _SHOWN
    told = [fate for fate in result.fates if few or not fate.admitted]
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
    tried = count(len(ranked) + len(illegal), "combination")
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
            yield from sentence(error, head="  ", style="warn")
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
