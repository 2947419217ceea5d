"""How a pod ended, as JSON values and back, for the checkpoint."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from alignup.align import bits
from alignup.serve.service import ContainerRun, PodRun


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
