"""Writes a simulation result as a JSON document, or as a table with one row per pod.

Sets are Linux lists, ``"0-3,8"``; memory is in bytes. ``docs/simulate.md`` describes the schema.
"""

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, TextIO

from alignup.align import bits
from alignup.align.decision import Rejection, Shortfall
from alignup.align.explain import sentences
from alignup.simulate.admission import ContainerPlacement
from alignup.simulate.node_simulation import AlignmentCounts, HostSnapshot, PodOutcome, Score, SimulationResult
from alignup.simulate.usage import UsageStats

VERSION = 2  #: of the document; incremented when a field changes its meaning or is removed

#: The columns of a table of pods.
COLUMNS = (
    *("time", "namespace", "name", "uid", "qos", "outcome", "aligned", "nodes", "cpus", "memory", "devices"),
    *("reason", "container", "shortfall", "message", "missing", "kubelet"),
)

_ALIGNED = {True: "one node", False: "several nodes", None: ""}


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
        "pods": [_outcome(outcome) for outcome in result.outcomes],
    }


def score_document(score: Score) -> dict[str, Any]:
    return {
        "arrived": score.admitted + score.rejected,
        "admitted": score.admitted,
        "rejected": score.rejected,
        "reasons": dict(score.reasons),
        "alignment": {"pods": _alignment(score.pods), "containers": _alignment(score.containers)},
        "stranded": asdict(score.stranded),
        "largest": dict(score.largest),
    }


def rows(result: SimulationResult) -> Iterator[dict[str, str]]:
    """One row per pod in the order of arrival, with a text for each of ``COLUMNS``."""
    for outcome in result.outcomes:
        rejection = outcome.rejection
        blocks = [block for one in outcome.placements for block in one.memory]
        devices = [item for one in outcome.placements for item in one.devices.items()]
        yield {
            "time": f"{outcome.time:g}" if outcome.time < 1e6 else f"{outcome.time:.3f}",
            **{name: str(getattr(outcome.pod, name)) for name in ("namespace", "name", "uid", "qos")},
            "outcome": "rejected" if rejection else "admitted",
            "aligned": _ALIGNED[outcome.on_one],
            "nodes": bits.show(outcome.nodes),
            "cpus": bits.show(bits.union(one.cpus for one in outcome.placements)),
            "memory": " ".join(f"{block.type}@{bits.show(block.nodes)}={block.size}" for block in blocks),
            "devices": " ".join(f"{resource}={','.join(ids)}" for resource, ids in devices),
            "reason": rejection.reason if rejection else "",
            "container": (rejection.container or "") if rejection else "",
            "shortfall": shortfall(rejection) if rejection else "",
            "message": rejection.message if rejection else "",
            "missing": " ".join(outcome.missing),
            "kubelet": outcome.kubelet or "",
        }


def write_rows(columns: Iterable[str], table: Iterable[Mapping[str, str]], stream: TextIO) -> None:
    """Write a table as CSV with a header; values that a spreadsheet would take for a formula are quoted."""
    writer = csv.DictWriter(stream, list(columns), lineterminator="\n")
    writer.writeheader()
    for row in table:
        writer.writerow({name: f"'{text}" if text[:1] in {"=", "+", "@"} else text for name, text in row.items()})


def shortfall(rejection: Rejection) -> str:
    """What is missing, in short: ``cpu: 10 needed, at most 8 free on nodes 0-1``."""
    by_resource: dict[str, list[Shortfall]] = {}
    for short in rejection.shortfalls:
        by_resource.setdefault(short.resource, []).append(short)
    return "; ".join(_shortfall(resource, own) for resource, own in by_resource.items())


def _shortfall(resource: str, found: list[Shortfall]) -> str:
    first = found[0]
    milli = first.provider == sentences.HOST
    numbers = (first.needed, max(short.free for short in found))
    needed, free = (sentences.format_number(resource, number, milli=milli) for number in numbers)
    nodes = bits.union(short.nodes or 0 for short in found)
    if not nodes:
        return f"{resource}: {needed} needed, {free} free"
    most, plural = ("at most ", "s") if nodes.bit_count() > 1 else ("", "")
    return f"{resource}: {needed} needed, {most}{free} free on node{plural} {bits.show(nodes)}"


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
        "missingDevices": list(outcome.missing),
        "kubelet": outcome.kubelet,
    }


def _placement(placement: ContainerPlacement) -> dict[str, Any]:
    return {
        "container": placement.container,
        "onOne": placement.on_one,
        "nodes": bits.show(placement.nodes),
        "cpus": bits.show(placement.cpus),
        "memory": [{"type": one.type, "nodes": bits.show(one.nodes), "size": one.size} for one in placement.memory],
        "devices": {resource: list(ids) for resource, ids in placement.devices.items()},
    }


def _snapshot(snapshot: HostSnapshot) -> dict[str, Any]:
    return {
        "time": snapshot.time,
        "room": {str(node): dict(own) for node, own in snapshot.largest_by_node.items()},
        "largest": snapshot.largest,
        "stranded": asdict(snapshot.stranded),
    }


def _alignment(counts: AlignmentCounts) -> dict[str, int]:
    return {"onOne": counts.on_one, "onSeveral": counts.on_several, "anywhere": counts.anywhere}


def _usage(usage: Mapping[str, UsageStats]) -> dict[str, Any]:
    return {resource: {**stats._asdict(), "mean": round(stats.mean, 3)} for resource, stats in usage.items()}
