"""Pods that have run to their end: who is remembered, and how they ended, as JSON values and back."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from alignup.agent.pod_record import API_SOURCE, PodRecord
from alignup.align import bits
from alignup.schema.api import ContainerRunStatus, PodRunStatus

MAX_FINISHED = 1_000  #: pods that came from no file


@dataclass(frozen=True, kw_only=True)
class FinishedPod:
    """A pod that holds nothing any more."""

    known: PodRecord
    run: PodRunStatus  #: how it ended


def add_finished(finished: Mapping[str, FinishedPod], one: FinishedPod) -> dict[str, FinishedPod]:
    """*finished*, by uid, and one more; of too many the oldest are forgotten.

    Those that came from a file never are: it would have them run again.
    """
    all_of_them = {**finished, one.known.pod.uid: one}
    others = [uid for uid, each in all_of_them.items() if each.known.source == API_SOURCE]
    too_many = set(others[: max(len(others) - MAX_FINISHED, 0)])
    return {uid: each for uid, each in all_of_them.items() if uid not in too_many}


def run_to_document(run: PodRunStatus) -> dict[str, Any]:
    """As JSON values; sets of CPUs and nodes as lists."""
    return {**asdict(run), "containers": [_container(one) for one in run.containers]}


def run_from_document(document: Mapping[str, Any]) -> PodRunStatus:
    """What ``run_to_document`` wrote; a ``TypeError``, ``KeyError`` or ``ValueError`` when it did not."""
    containers = tuple(map(_read_container, document["containers"]))
    texts = {name: tuple(map(str, document[name])) for name in ("ips", "warnings")}
    return PodRunStatus(**{**document, **texts, "containers": containers})


def _container(run: ContainerRunStatus) -> dict[str, Any]:
    last = None if run.last is None else _container(run.last)
    return {**asdict(run), "cpus": bits.show(run.cpus), "nodes": bits.show(run.nodes), "last": last}


def _read_container(document: Mapping[str, Any]) -> ContainerRunStatus:
    last = None if document["last"] is None else _read_container(document["last"])
    cpus, nodes = bits.parse(document["cpus"]), bits.parse(document["nodes"])
    return ContainerRunStatus(**{**document, "cpus": cpus, "nodes": nodes, "last": last})
