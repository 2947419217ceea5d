"""Pods that have run to their end: who is remembered, and how they ended, as JSON values and back."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from alignup.agent.known import API, Known
from alignup.align import bits
from alignup.serve.service import ContainerRun, PodRun

MOST = 1_000  #: pods that came from no file


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A pod that holds nothing any more."""

    known: Known
    run: PodRun  #: how it ended


def joined(finished: Mapping[str, Finished], one: Finished) -> dict[str, Finished]:
    """*finished*, by uid, and one more; of too many the oldest are forgotten.

    Those that came from a file never are: it would have them run again.
    """
    all_of_them = {**finished, one.known.pod.uid: one}
    others = [uid for uid, each in all_of_them.items() if each.known.source == API]
    too_many = set(others[: max(len(others) - MOST, 0)])
    return {uid: each for uid, each in all_of_them.items() if uid not in too_many}


def document(run: PodRun) -> dict[str, Any]:
    """As JSON values; sets of CPUs and nodes as lists."""
    return {**asdict(run), "containers": [_container(one) for one in run.containers]}


def read(document: Mapping[str, Any]) -> PodRun:
    """What ``document`` wrote; a ``TypeError``, ``KeyError`` or ``ValueError`` when it did not."""
    containers = tuple(map(_read_container, document["containers"]))
    texts = {name: tuple(map(str, document[name])) for name in ("ips", "warnings")}
    return PodRun(**{**document, **texts, "containers": containers})


def _container(run: ContainerRun) -> dict[str, Any]:
    last = None if run.last is None else _container(run.last)
    return {**asdict(run), "cpus": bits.show(run.cpus), "nodes": bits.show(run.nodes), "last": last}


def _read_container(document: Mapping[str, Any]) -> ContainerRun:
    last = None if document["last"] is None else _read_container(document["last"])
    cpus, nodes = bits.parse(document["cpus"]), bits.parse(document["nodes"])
    return ContainerRun(**{**document, "cpus": cpus, "nodes": nodes, "last": last})
