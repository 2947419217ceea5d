"""The result of a node simulation as a JSON document, as a table with one row per pod, and as a timeline for charts.

Sets are Linux lists, ``"0-3,8"``; memory is in bytes. ``docs/simulate-data.md`` describes the schema.
"""

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TextIO

from msgspec import structs

from alignup.align import bits
from alignup.align.fit import PODS
from alignup.align.workload.names import CPU
from alignup.simulate.arrivals import PodArrival, WorkloadEvent, ordered
from alignup.simulate.container_placements import ContainerPlacement
from alignup.simulate.node_simulation import (
    AlignmentCounts,
    HostSnapshot,
    PodOutcome,
    Score,
    SimulationResult,
    shortfall,
)
from alignup.simulate.usage import UsageStats

REJECTION_INTERVALS = 60
VERSION = 2  #: of the document; incremented when a field changes its meaning or is removed

#: The columns of a table of pods.
COLUMNS = (
    *("time", "namespace", "name", "uid", "qos", "outcome", "aligned", "nodes", "cpus", "memory", "devices"),
    "claims",
    *("reason", "container", "shortfall", "message", "missing", "kubelet"),
)


def to_document(result: SimulationResult) -> dict[str, Any]:
    topology = result.settings.topology
    return {
        "version": VERSION,
        "policy": str(topology.policy),
        "scope": str(topology.scope),
        "duration": result.duration,
        **score_document(result),
        "uses": _usage(result.usage),
        "nodes": {str(node): _usage(usage) for node, usage in result.nodes.items()},
        "height": _snapshot(result.peak),
        "end": _snapshot(result.end),
        **({} if result.shared is None else {"sharedPool": result.shared.to_document()}),
        "pods": [_outcome(outcome) for outcome in result.outcomes],
    }


def score_document(score: Score) -> dict[str, Any]:
    return {
        "arrived": score.admitted + score.rejected,
        "admitted": score.admitted,
        "rejected": score.rejected,
        "reasons": dict(score.reasons),
        "alignment": {"pods": _alignment(score.pods), "containers": _alignment(score.containers)},
        "claims": structs.asdict(score.claims),
        "connections": structs.asdict(score.connections),
        "stranded": asdict(score.stranded),
        "largest": dict(score.largest),
    }


def rows(result: SimulationResult) -> Iterator[dict[str, str]]:
    """Yield one row per pod in the order of arrival, with a text for each of ``COLUMNS``."""
    for outcome, row in zip(result.outcomes, result.to_rows(), strict=True):
        time = f"{outcome.time:g}" if outcome.time < 1e6 else f"{outcome.time:.3f}"
        yield {name: str(value) for name, value in row.items()} | {"time": time}


def write_rows(columns: Iterable[str], table: Iterable[Mapping[str, str]], stream: TextIO) -> None:
    """Write a table as CSV with a header; values that a spreadsheet would take for a formula are quoted."""
    writer = csv.DictWriter(stream, list(columns), lineterminator="\n")
    writer.writeheader()
    for row in table:
        writer.writerow({name: f"'{text}" if text[:1] in {"=", "+", "@"} else text for name, text in row.items()})


def _outcome(outcome: PodOutcome) -> dict[str, Any]:
    rejection = outcome.rejection
    return {
        "time": outcome.time,
        **{name: str(getattr(outcome.pod, name)) for name in ("uid", "name", "namespace", "qos")},
        "outcome": "rejected" if rejection else "admitted",
        "onOne": outcome.on_one,
        "nodes": bits.show(outcome.nodes),
        "places": [_placement(placement) for placement in outcome.placements],
        "rejection": rejection
        and {name: getattr(rejection, name) for name in ("reason", "message", "container", "provider")}
        | {"shortfall": shortfall(rejection)},
        "claims": [claim.to_document() for claim in outcome.claims],
        "missingDevices": list(outcome.missing),
        "kubelet": outcome.kubelet,
    }


def _placement(placement: ContainerPlacement) -> dict[str, Any]:
    return {
        "container": placement.container,
        "onOne": placement.on_one,
        "nodes": bits.show(placement.nodes),
        "cpus": bits.show(placement.cpus),
        "memory": [
            {"type": block.type, "nodes": bits.show(block.nodes), "size": block.size} for block in placement.memory
        ],
        "devices": {resource: list(ids) for resource, ids in placement.devices.items()},
    }


def _snapshot(snapshot: HostSnapshot) -> dict[str, Any]:
    return {
        "time": snapshot.time,
        "room": {str(node): dict(largest) for node, largest in snapshot.largest_by_node.items()},
        "largest": snapshot.largest,
        "stranded": asdict(snapshot.stranded),
    }


def _alignment(counts: AlignmentCounts) -> dict[str, int]:
    return {"onOne": counts.on_one, "onSeveral": counts.on_several, "anywhere": counts.anywhere}


def _usage(usage: Mapping[str, UsageStats]) -> dict[str, Any]:
    return {resource: {**stats._asdict(), "mean": round(stats.mean, 3)} for resource, stats in usage.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """What pods held over time, how many ran, and which were rejected."""

    times: Sequence[float]  #: of events, each once
    held: Mapping[str, Sequence[float]]  #: resource → share of what is allocatable, 0 to 1
    running: Sequence[int]  #: admitted pods
    starts: Sequence[float]  #: of the intervals in which rejections are counted
    rejections: Mapping[str, Sequence[int]]  #: reason → pods rejected in each interval, the most frequent first


def build_timeline(result: SimulationResult, events: Iterable[WorkloadEvent]) -> Timeline:
    """Return the timeline of a result and its events; what pods held before the first event is not counted."""
    in_order = ordered(events)
    outcomes = iter(result.outcomes)
    present: dict[str, Counter[str]] = {}
    totals: Counter[str] = Counter()
    limits = {name: stats.total for name, stats in result.usage.items() if stats.total and name != PODS}
    shares: dict[str, list[float]] = {name: [] for name in limits}
    running_counts: list[int] = []
    times: list[float] = []
    for event in in_order:
        if isinstance(event, PodArrival):
            outcome = next(outcomes)
            if outcome.admitted:
                amounts = present[event.pod.uid] = _held(outcome)
                totals.update(amounts)
        elif event.uid in present:
            totals.subtract(present.pop(event.uid))
        if times and times[-1] == event.time:  # what lasts no time is not shown
            columns: tuple[list[Any], ...] = (times, running_counts, *shares.values())
            for values in columns:
                values.pop()
        for name, total in limits.items():
            shares[name].append(totals[name] / total)
        running_counts.append(len(present))
        times.append(event.time)
    first = in_order[0].time if in_order else 0.0
    width = (result.duration or 1.0) / REJECTION_INTERVALS
    counts: dict[str, list[int]] = {reason: [0] * REJECTION_INTERVALS for reason in result.reasons}
    for outcome in result.outcomes:
        if outcome.rejection is not None:
            interval = min(int((outcome.time - first) / width), REJECTION_INTERVALS - 1)
            counts[outcome.rejection.reason][interval] += 1
    return Timeline(
        times=times,
        held=shares,
        running=running_counts,
        starts=[first + number * width for number in range(REJECTION_INTERVALS)],
        rejections=counts,
    )


def _held(outcome: PodOutcome) -> Counter[str]:
    amounts: Counter[str] = Counter()
    for placement in outcome.placements:
        amounts[CPU] += placement.cpus.bit_count()
        for block in placement.memory:
            amounts[block.type] += block.size
        for resource, ids in placement.devices.items():
            amounts[resource] += len(ids)
    return amounts
