"""What came of a simulation, as a JSON document and as a table with one row a pod.

Sets are Linux lists, ``"0-3,8"``; memory is in bytes. The schema is in ``docs/simulate.md``.
"""

import csv
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TextIO

from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.decision import Rejection, Shortfall
from alignup.align.explain import sentences
from alignup.fleet.placements import ContainerPlacement
from alignup.fleet.score import Score, stranded_document
from alignup.fleet.simulate import HostSnapshot, PodOutcome, SimulationResult
from alignup.fleet.usage import UsageStats

VERSION = 1  #: of the document; raised when a field changes its meaning or goes away, not when one is added

#: The columns of a table of pods.
COLUMNS = (
    "time",
    "namespace",
    "name",
    "uid",
    "qos",
    "outcome",
    "aligned",
    "nodes",
    "cpus",
    "memory",
    "devices",
    "reason",
    "container",
    "shortfall",
    "message",
)

_ALIGNED = {True: "one node", False: "several nodes", None: ""}


def to_document(result: SimulationResult) -> dict[str, Any]:
    """All of *result* but the ledgers, as plain JSON values."""
    topology = result.settings.topology
    return {
        "version": VERSION,
        "policy": str(topology.policy),
        "scope": str(topology.scope),
        "duration": result.duration,
        **Score.of(result).to_document(),
        "uses": {resource: _use(use) for resource, use in result.uses.items()},
        "nodes": {
            str(node): {resource: _use(use) for resource, use in uses.items()} for node, uses in result.nodes.items()
        },
        "height": _moment(result.height),
        "end": _moment(result.end),
        "pods": [_fate(fate) for fate in result.outcomes],
    }


def rows(result: SimulationResult) -> Iterator[dict[str, str]]:
    """One row a pod, in the order they came; a text for each of ``COLUMNS``."""
    for fate in result.outcomes:
        refusal = fate.rejection
        yield {
            "time": f"{fate.time:g}" if fate.time < 1e6 else f"{fate.time:.3f}",
            "namespace": fate.namespace,
            "name": fate.name,
            "uid": fate.uid,
            "qos": str(fate.qos),
            "outcome": "rejected" if refusal else "admitted",
            "aligned": _ALIGNED[fate.on_one],
            "nodes": bits.show(fate.nodes),
            "cpus": bits.show(bits.union(place.cpus for place in fate.places)),
            "memory": _joined(_memory(place) for place in fate.places),
            "devices": _joined(_devices(place) for place in fate.places),
            "reason": refusal.reason if refusal else "",
            "container": (refusal.container or "") if refusal else "",
            "shortfall": shortfall(refusal) if refusal else "",
            "message": refusal.message if refusal else "",
        }


def write_csv(result: SimulationResult, stream: TextIO) -> None:
    """The table as CSV, with a line of column names."""
    write_rows(COLUMNS, rows(result), stream)


def write_rows(columns: Iterable[str], table: Iterable[Mapping[str, str]], stream: TextIO) -> None:
    """Any table as CSV, with a line of column names; what a spreadsheet would take for a formula is quoted."""
    writer = csv.DictWriter(stream, list(columns), lineterminator="\n")
    writer.writeheader()
    for row in table:
        writer.writerow({name: f"'{text}" if text[:1] in {"=", "+", "@"} else text for name, text in row.items()})


def shortfall(refusal: Rejection) -> str:
    """What there was too little of, in a few words: ``cpu: 10 needed, at most 8 free on nodes 0-1``."""
    by_resource: dict[str, list[Shortfall]] = {}
    for short in refusal.shortfalls:
        by_resource.setdefault(short.resource, []).append(short)
    return "; ".join(_short(resource, own) for resource, own in by_resource.items())


def _short(resource: str, found: list[Shortfall]) -> str:
    first = found[0]
    milli = first.provider == sentences.HOST
    needed, free = (
        sentences.format_number(resource, number, milli=milli)
        for number in (first.needed, max(short.free for short in found))
    )
    nodes = bits.union(short.nodes or 0 for short in found)
    where = f" on {_nodes(nodes)}" if nodes else ""
    most = "at most " if nodes.bit_count() > 1 else ""
    return f"{resource}: {needed} needed, {most}{free} free{where}"


def _nodes(nodes: NodeSet) -> str:
    return f"node {bits.show(nodes)}" if nodes.bit_count() == 1 else f"nodes {bits.show(nodes)}"


def _joined(texts: Iterable[str]) -> str:
    return " ".join(text for text in texts if text)


def _memory(place: ContainerPlacement) -> str:
    return " ".join(f"{block.type}@{bits.show(block.nodes)}={block.size}" for block in place.memory)


def _devices(place: ContainerPlacement) -> str:
    return " ".join(f"{resource}={','.join(ids)}" for resource, ids in place.devices.items())


def _fate(fate: PodOutcome) -> dict[str, Any]:
    refusal = fate.rejection
    return {
        "time": fate.time,
        "uid": fate.uid,
        "name": fate.name,
        "namespace": fate.namespace,
        "qos": str(fate.qos),
        "outcome": "rejected" if refusal else "admitted",
        "onOne": fate.on_one,
        "nodes": bits.show(fate.nodes),
        "places": [_place(place) for place in fate.places],
        "rejection": refusal
        and {
            "reason": refusal.reason,
            "message": refusal.message,
            "container": refusal.container,
            "provider": refusal.provider,
            "shortfall": shortfall(refusal),
        },
    }


def _place(place: ContainerPlacement) -> dict[str, Any]:
    return {
        "container": place.container,
        "onOne": place.on_one,
        "nodes": bits.show(place.nodes),
        "cpus": bits.show(place.cpus),
        "memory": [{"type": one.type, "nodes": bits.show(one.nodes), "size": one.size} for one in place.memory],
        "devices": {resource: list(ids) for resource, ids in place.devices.items()},
    }


def _moment(moment: HostSnapshot) -> dict[str, Any]:
    return {
        "time": moment.time,
        "room": {str(node): dict(own) for node, own in moment.room.items()},
        "largest": moment.largest,
        "stranded": stranded_document(moment.stranded),
    }


def _use(use: UsageStats) -> dict[str, Any]:
    return {"total": use.total, "end": use.end, "peak": use.peak, "mean": round(use.mean, 3)}
