"""Cluster files and sweep files, described in ``docs/fleet.md``.

A cluster file lists the hosts of a simulated cluster, in groups; a sweep file the machines, configurations, strategies
and seeds to combine. Machines and configurations are only named here; the caller resolves them.
"""

from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from alignup.align.errors import DocumentError, TraceError
from alignup.kubernetes.manifests import documents
from alignup.kubernetes.manifests.object_reader import ObjectReader
from alignup.simulate.cluster_hosts import MAX_HOSTS
from alignup.simulate.cluster_simulation import RETRIES
from alignup.simulate.file_structs import FileStruct, check_header, describe, equal_to, one_of, read_struct
from alignup.simulate.generate import Profile
from alignup.simulate.schedulers import STRATEGIES
from alignup.simulate.trace import API_VERSION, FirstProblem, read_bytes

MAX_BYTES = 1 << 20
MAX_SEEDS = 10_000

_T = TypeVar("_T", bound=FileStruct)

_RENAMED = {"changes": "set", "kubernetes_version": "kubernetes-version"}
_Name = Annotated[str, describe("Name in the results.", min_length=1)]
_Changes = Annotated[tuple[str, ...], describe("As for --set.")]
_Version = Annotated[str, describe("As for --kubernetes-version: the release of the kubelets.")]
_Config = Annotated[str, describe("KubeletConfiguration, a file beside this one.")]


class GroupDocument(FileStruct, frozen=True, kw_only=True, rename=_RENAMED):
    """Equal nodes of a cluster."""

    name: _Name
    count: Annotated[int, describe("Number of nodes.", ge=1, le=MAX_HOSTS)] = 1
    machine: Annotated[str, describe("As for --machine, or a file beside this one.", min_length=1)]
    devices: Annotated[tuple[str, ...], describe("As for --devices.")] = ()
    config: _Config = ""
    changes: _Changes = ()
    kubernetes_version: _Version = ""
    labels: Annotated[dict[str, str], describe("Labels of the nodes.")] = msgspec.field(default_factory=dict)


class ClusterDocument(FileStruct, frozen=True, kw_only=True, rename="camel"):
    """A cluster file."""

    api_version: Annotated[str, equal_to(API_VERSION)]
    kind: Annotated[str, equal_to("Cluster")]
    groups: Annotated[tuple[GroupDocument, ...], describe("Groups of equal nodes.", min_length=1)]


class ConfigurationDocument(FileStruct, frozen=True, kw_only=True, rename=_RENAMED):
    """A configuration of kubelets."""

    name: _Name
    config: _Config = ""
    changes: _Changes = ()
    kubernetes_version: _Version = ""


class WorkloadDescription(FileStruct, frozen=True, kw_only=True, rename={"profile": "generate"}):
    """A generated workload, or a trace."""

    profile: Annotated[str, one_of(Profile, description="Kind of generated pods; this or trace is required.")] = ""
    pods: Annotated[int, describe("Number of generated pods.", ge=1, le=1_000_000)] = 1000
    load: Annotated[float, describe("Share of the cluster that they request on average.", gt=0)] = 0.9
    trace: Annotated[str, describe("A trace, or the pods of openb as CSV, beside this file.")] = ""
    rate: Annotated[float, describe("How many times as fast pods are created.", gt=0)] = 1.0
    stay: Annotated[bool, describe("Whether all pods stay.")] = False


class SweepDocument(FileStruct, frozen=True, kw_only=True, rename="camel"):
    """A sweep file."""

    api_version: Annotated[str, equal_to(API_VERSION)]
    kind: Annotated[str, equal_to("Sweep")]
    machines: Annotated[tuple[GroupDocument, ...], describe("Groups of nodes, each a cluster.", min_length=1)]
    configurations: Annotated[tuple[ConfigurationDocument, ...], describe("Configurations to combine them with.")] = ()
    strategies: Annotated[
        tuple[Annotated[str, one_of(STRATEGIES)], ...], describe("Strategies of the scheduler; without them, all.")
    ] = ()
    seeds: Annotated[int, describe("Number of random seeds.", ge=1, le=MAX_SEEDS)] = 1
    workload: Annotated[WorkloadDescription, describe("The pods.")]
    retries: Annotated[int, describe("How often a rejected pod is created again.", ge=0, le=1000)] = RETRIES


def _read_document(path: Path, type_: type[_T]) -> tuple[_T, ObjectReader]:
    """Return the only document of a file, and its reader for errors; ``TraceError`` if it is unusable."""
    text = read_bytes(path, limit=MAX_BYTES)
    try:
        objects = documents.read(text)
    except DocumentError as error:
        raise TraceError(error.message, file=str(path), line=error.line) from error
    if len(objects) != 1:
        raise TraceError(f"must have one document, not {len(objects)}", file=str(path))
    top = ObjectReader.of(objects[0].value, FirstProblem(file=str(path), text=text))
    check_header(top, type_)
    return read_struct(top, type_), top


def read_cluster(path: Path) -> tuple[ClusterDocument, ObjectReader]:
    """Return a cluster file, and its reader for errors; :class:`TraceError` names the place of an error."""
    cluster, top = _read_document(path, ClusterDocument)
    return cluster.replace(groups=_with_paths(cluster.groups, path.parent)), top


def _with_paths(groups: tuple[GroupDocument, ...], base: Path) -> tuple[GroupDocument, ...]:
    """Return groups of nodes whose relative paths are relative to *base*."""
    return tuple(
        group.replace(machine=_relative(group.machine, base), config=_relative(group.config, base)) for group in groups
    )


def _relative(text: str, base: Path) -> str:
    """Return the file *text* beside the cluster file, if there is one."""
    beside = base / text if text and "\n" not in text and ":" not in text else None
    return str(beside) if beside is not None and beside.exists() else text


def read_sweep(path: Path) -> tuple[SweepDocument, ObjectReader]:
    """Return a sweep file with its defaults, and its reader for errors; ``TraceError`` names the place of an error."""
    sweep, top = _read_document(path, SweepDocument)
    for field_name, descriptions in (("machines", sweep.machines), ("configurations", sweep.configurations)):
        if len({description.name for description in descriptions}) < len(descriptions):
            top.error(field_name, "every name must be given once")
    workload, base = sweep.workload, path.parent
    if bool(workload.profile) is bool(workload.trace):
        top.error("workload", "give either generate or trace")
    configurations = tuple(entry.replace(config=_beside(entry.config, base)) for entry in sweep.configurations)
    resolved_sweep = sweep.replace(
        machines=_with_paths(sweep.machines, base),
        configurations=configurations or (ConfigurationDocument(name="default"),),
        strategies=tuple(dict.fromkeys(sweep.strategies)) or tuple(STRATEGIES),
        workload=workload.replace(trace=_beside(workload.trace, base)),
    )
    return resolved_sweep, top


def _beside(name: str, base: Path) -> str:
    return str(base / name) if name else ""
